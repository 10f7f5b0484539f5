"""What a ledger costs. Prints figures, asserts none.

    python -m tests.store.measure [EFFECTS]             cycles, look-ups, releases, expiry
    python -m tests.store.measure restore [ENTRIES]     a ledger rebuilt from its changelog

One cycle is 2,000 new effects, with random keys, and the 1,000 lanes they belong to: what a cycle of
a no-op pipeline stores. The tenths tell whether the cost grows with the ledger.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.lane import Lane
from laneway.lanes.view import Entry, PutEffect, PutLane, PutParked
from laneway.store import codec
from laneway.store.ledger import Ledger
from laneway.store.port import Change, ChangelogMark
from tests.store.builders import IDENTITY, meta, parked

CYCLE = 2000
RESTORE_BATCH = 5000
LANES = 1000
FOLLOWERS = 100_000
T0_MS = 1_700_000_000_000


def effect_key(number: int) -> str:
    return hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest()


def effect(number: int) -> Effect:
    digest = hashlib.sha256(b"%d" % number).digest()[:16]
    lane = f"kcustomer-{number % LANES}"
    return Effect(
        EffectState.SUCCEEDED, f"job-{number:012d}", number, lane, number, 1, digest, 1, 1,
        f"reminders/{number}", "", T0_MS + number,
    )  # fmt: skip


def timed(action: Callable[[], object]) -> float:
    """Milliseconds that one call took."""
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def line(what: str, times: list[float], per_call: int) -> None:
    tenth = max(1, len(times) // 10)
    first, middle, last = map(statistics.median, (times[:tenth], times, times[-tenth:]))
    print(
        f"{what:<34} median {middle:7.2f} ms  {middle / per_call * 1000:6.2f} us each"
        f"   first tenth {first:.2f} ms  last tenth {last:.2f} ms"
    )


def changelog(first: int, end: int) -> list[Change]:
    """Entries as a compacted topic holds them: two effects to a lane, 100,000 lanes for each million."""
    found: list[Change] = []
    for number in range(first, end):
        if number % 3:
            found.append((codec.effect_key(effect_key(number)), codec.encode(effect(number))))
        else:
            found.append(
                (codec.lane_key(f"kcustomer-{number * 7919 % 1_000_003}"), codec.encode(Lane(number)))
            )
    return found


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def restore(total: int) -> None:
    """Only the ledger's part is timed: making the entries stands in for the reading, and is left out."""
    with tempfile.TemporaryDirectory() as root:
        ledger = Ledger.open(Path(root) / "store", IDENTITY)
        before, peak, slowest_ms, took_ms, cpu_s = resident_mib(), 0.0, 0.0, 0.0, 0.0
        ledger.begin_restore()
        for begin in range(0, total, RESTORE_BATCH):
            end = min(total, begin + RESTORE_BATCH)
            batch, mark = changelog(begin, end), ChangelogMark("topic-id", end, T0_MS)
            cpu_s -= time.thread_time()
            spent_ms = timed(lambda batch=batch, mark=mark: ledger.apply_changes(batch, mark))  # type: ignore[misc]
            cpu_s += time.thread_time()
            took_ms, slowest_ms = took_ms + spent_ms, max(slowest_ms, spent_ms)
            peak = max(peak, resident_mib())
        flush_ms = timed(ledger.end_restore)
        took_ms += flush_ms
        print(f"restore of {total} entries, {RESTORE_BATCH} a time: {total / took_ms * 1000:,.0f} entries/s")
        print(f"{total / cpu_s:,.0f} entries for each second that the thread was running, flushes apart")
        print(f"slowest batch {slowest_ms:.0f} ms, flush at the end {flush_ms:.0f} ms")
        print(f"resident memory {before:.0f} MiB before, {peak:.0f} MiB at most")
        print(
            f"{ledger.stats().disk_bytes / 2**20:.0f} MiB on disk, opening() {timed(ledger.opening):.2f} ms"
        )
        ledger.close()


def main(total: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "store"
        ledger = Ledger.open(path, IDENTITY)
        looks: list[float] = []
        writes: list[float] = []
        syncs: list[float] = []
        for begin in range(0, total, CYCLE):
            numbers = range(begin, begin + CYCLE)
            keys = [effect_key(number) for number in numbers]
            entries: list[Entry] = [PutEffect(keys[n - begin], effect(n)) for n in numbers]
            entries += [PutLane(f"kcustomer-{n}", Lane(begin + n)) for n in range(LANES)]
            looks.append(timed(lambda keys=keys: ledger.effects(keys)))  # type: ignore[misc]
            writes.append(timed(lambda entries=entries: ledger.apply(entries, meta(), [])))  # type: ignore[misc]
            syncs.append(timed(ledger.sync))
        print(f"{total} effects, {ledger.stats().disk_bytes / 2**20:.0f} MiB on disk")
        line("effects() of 2,000 new keys", looks, CYCLE)
        line("apply() of 2,000 effects + lanes", writes, CYCLE + LANES)
        line("sync()", syncs, 1)
        known = [effect_key(number * 7 % total) for number in range(CYCLE)]
        line("effects() of 2,000 known keys", [timed(lambda: ledger.effects(known)) for _ in range(9)], CYCLE)
        print(f"close() {timed(ledger.close):.1f} ms")
        opened: list[Ledger] = []
        print(f"open() {timed(lambda: opened.append(Ledger.open(path, IDENTITY))):.1f} ms")
        ledger = opened.pop()
        print(f"opening() {timed(ledger.opening):.2f} ms")

        for begin in range(0, FOLLOWERS, CYCLE):
            page = [PutParked(("kx", n, n), parked()) for n in range(begin, begin + CYCLE)]
            ledger.apply(page, meta(), [])

        def release() -> None:
            while found := ledger.parked("kx", None, 100):
                ledger.apply([PutParked(key, None) for key, _ in found], meta(), [])

        def expire() -> None:
            while ledger.expire(T0_MS + total, CYCLE) == CYCLE:
                pass

        print(f"release of {FOLLOWERS} followers, 100 a time: {timed(release):.0f} ms")
        took = timed(expire)
        print(f"expire() of all, 2,000 a time: {took:.0f} ms, {took / total * 1000:.2f} us each")
        ledger.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["restore"]:
        restore(int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
