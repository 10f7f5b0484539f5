"""What a RocksDB ledger survives, what it refuses, and what it costs to keep many open.

The scripts run in processes of their own: they are killed, or could abort.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from laneway.errors import LedgerError, LedgerFormatError, LedgerLockedError, StateDirError
from laneway.lanes.lane import Lane
from laneway.lanes.record import Channel
from laneway.lanes.view import PutEffect, PutLane, PutParked
from laneway.store import codec, rocks
from laneway.store.ledger import Ledger
from laneway.store.port import StoreIdentity
from tests.store.builders import IDENTITY, effect, forward, meta, put_parked

ROOT = Path(__file__).parents[2]
CYCLES = 50
PER_CYCLE = 20


def start(script: str, *arguments: Path | str) -> subprocess.Popen[str]:
    """Run a script in a process of its own, with this tree to import from."""
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def names(cycle: int) -> list[str]:
    return [f"e{cycle}-{n}" for n in range(PER_CYCLE)]


def whole_cycles(ledger: Ledger) -> int:
    """How many cycles are stored, once it is certain that each is stored whole and none is skipped."""
    stored = [sum(found is not None for found in ledger.effects(names(cycle))) for cycle in range(CYCLES + 1)]
    count = stored.index(0)
    assert stored == [PER_CYCLE] * count + [0] * (len(stored) - count)
    last = ledger.opening().meta
    assert (last.cycle if last else -1) == count - 1
    assert len(ledger.parked("k", None, 1000)) == count
    assert len(ledger.opening().outbox) == count
    return count


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def crashed(store: Path, tmp_path: Path) -> Iterator[Path]:
    """A store of `CYCLES` synced cycles, all in its log, as a kill leaves it."""
    ledger = Ledger.open(tmp_path / "living", IDENTITY)
    for cycle in range(CYCLES):
        entries = [PutEffect(name, effect(offset=cycle)) for name in names(cycle)]
        ledger.apply([*entries, *put_parked(("k", cycle, 1))], meta(cycle), [forward()])
    ledger.sync()
    shutil.copytree(tmp_path / "living", store)
    yield store
    ledger.close()


def newest_log(store: Path) -> Path:
    return max(store.glob("*.log"))


def test_a_second_opening_waits_for_the_first(store: Path) -> None:
    """A store in use, by this process or another, is a LedgerLockedError; after close it opens."""
    first = Ledger.open(store, IDENTITY)
    with pytest.raises(LedgerLockedError, match="in use"):
        Ledger.open(store, IDENTITY)
    script = (
        "import sys; from pathlib import Path; from laneway.errors import LedgerLockedError\n"
        "from laneway.store.ledger import Ledger; from tests.store.builders import IDENTITY\n"
        "try: Ledger.open(Path(sys.argv[1]), IDENTITY)\n"
        "except LedgerLockedError: print('locked')\n"
    )
    assert start(script, store).communicate()[0].strip() == "locked"
    first.close()
    Ledger.open(store, IDENTITY).close()


WRITER = """
import sys
from pathlib import Path
from laneway.lanes.view import PutEffect
from laneway.store.ledger import Ledger
from tests.store.builders import IDENTITY, effect, forward, meta, put_parked
from tests.store.test_durability import CYCLES, names

ledger = Ledger.open(Path(sys.argv[1]), IDENTITY)
for cycle in range(CYCLES):
    entries = [PutEffect(name, effect(offset=cycle)) for name in names(cycle)]
    ledger.apply([*entries, *put_parked(("k", cycle, 1))], meta(cycle), [forward()])
    if cycle % 5 == 0:
        ledger.sync()
    print(cycle, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kill_after", [0, 3, 11, 27, 49])
def test_kill_9_loses_nothing_that_was_applied(store: Path, kill_after: int) -> None:
    """S4: after kill -9 every applied cycle is there, synced or not, whole; the lock is free again."""
    process = start(WRITER, store)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= kill_after:
            break
    process.kill()
    process.wait()
    process.stdout.close()
    ledger = Ledger.open(store, IDENTITY)
    assert kill_after < whole_cycles(ledger) <= CYCLES
    ledger.close()


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from laneway.errors import LedgerError
from laneway.store.ledger import Ledger
from tests.store.builders import IDENTITY, forward, meta

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ledger = Ledger.open(Path(sys.argv[1]), IDENTITY)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for name, act in (("apply", lambda: [ledger.apply([], meta(n), [forward()]) for n in range(5000)]),
                  ("close", ledger.close), ("again", ledger.close)):
    try:
        act()
        print(name, "done", flush=True)
    except LedgerError as error:
        print(name, "refused", flush=True)
"""


def test_a_full_disk_is_one_of_our_errors_to_the_end(store: Path) -> None:
    """Writing and closing on a full disk raise LedgerError, never a bare Exception; then it opens again."""
    said = start(FULL_DISK, store).communicate()[0].split("\n")
    assert said[:3] == ["apply refused", "close refused", "again done"]
    ledger = Ledger.open(store, IDENTITY)
    assert ledger.opening().meta is not None
    ledger.close()


@pytest.mark.parametrize("seed", range(12))
def test_a_torn_tail_opens_with_whole_cycles(crashed: Path, seed: int) -> None:
    """A log cut short anywhere opens, and holds the cycles before the cut, each of them whole."""
    log = newest_log(crashed)
    data = log.read_bytes()
    # The marker of the store is the first record, synced before anything else is written.
    log.write_bytes(data[: random.Random(seed).randrange(200, len(data))])
    ledger = Ledger.open(crashed, IDENTITY)
    assert 0 <= whole_cycles(ledger) <= CYCLES
    ledger.close()


def test_zeros_behind_the_last_record_lose_nothing(crashed: Path) -> None:
    """Preallocated zeros behind the last whole record cost no cycle."""
    with newest_log(crashed).open("ab") as file:
        file.write(b"\x00" * 70_000)
    ledger = Ledger.open(crashed, IDENTITY)
    assert whole_cycles(ledger) == CYCLES
    ledger.close()


@pytest.mark.parametrize("length", range(1, 60, 3))
def test_garbage_behind_the_last_record_loses_nothing_in_silence(crashed: Path, length: int) -> None:
    """Garbage behind the last whole record is passed over or refused, wherever it falls; no cycle is lost."""
    with newest_log(crashed).open("ab") as file:
        file.write((b"\x13\x37" * length)[:length])
    try:
        ledger = Ledger.open(crashed, IDENTITY)
    except LedgerFormatError:
        return
    assert whole_cycles(ledger) == CYCLES
    ledger.close()


@pytest.mark.parametrize("seed", range(12))
def test_flipped_bytes_in_the_log_are_refused(crashed: Path, seed: int) -> None:
    """One changed bit among the records of the log is a LedgerFormatError: never fewer cycles in silence."""
    log = newest_log(crashed)
    data = bytearray(log.read_bytes().rstrip(b"\x00"))
    place = random.Random(seed).randrange(len(data))
    data[place] ^= 1 << (seed % 8)
    log.write_bytes(data)
    with pytest.raises(LedgerFormatError, match=r"(?s)damaged .*next: keep a copy"):
        Ledger.open(crashed, IDENTITY)


@pytest.mark.parametrize("seed", range(20))
def test_flipped_bytes_in_a_table_never_give_wrong_data(store: Path, seed: int) -> None:
    """A changed bit in a table file gives an error or, where it does not matter, the right data."""
    ledger = Ledger.open(store, IDENTITY)
    for cycle in range(CYCLES):
        entries = [PutEffect(name, effect(offset=cycle)) for name in names(cycle)]
        ledger.apply([*entries, *put_parked(("k", cycle, 1))], meta(cycle), [forward()])
    ledger.close()
    Ledger.open(store, IDENTITY).close()  # a reopening turns the log into a table
    table = max(store.glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    data[random.Random(seed).randrange(len(data))] ^= 1 << (seed % 8)
    table.write_bytes(data)
    try:
        ledger = Ledger.open(store, IDENTITY)
    except LedgerFormatError:
        return
    try:
        assert whole_cycles(ledger) == CYCLES
        for cycle in range(CYCLES):
            assert ledger.effects(names(cycle)) == [effect(offset=cycle)] * PER_CYCLE
    except LedgerFormatError:
        pass
    finally:
        ledger.close()  # an error in the middle of a read keeps nothing open
    shutil.rmtree(store)
    Ledger.open(store, IDENTITY).close()


@pytest.mark.parametrize("name", ["MANIFEST-*", "CURRENT", "*.sst"])
def test_a_missing_file_is_damage(store: Path, name: str) -> None:
    """A store that lost its manifest, its table or the name of its manifest is refused, not begun anew."""
    ledger = Ledger.open(store, IDENTITY)
    ledger.apply([PutEffect("e", effect())], meta(), [])
    ledger.close()
    Ledger.open(store, IDENTITY).close()
    for file in store.glob(name):
        file.unlink()
    with pytest.raises(LedgerError):
        Ledger.open(store, IDENTITY)


CLOSE_BESIDE_SYNC = """
import shutil, sys, threading
from pathlib import Path
from laneway.errors import LedgerError
from laneway.store.ledger import Ledger
from laneway.lanes.view import PutEffect
from tests.store.builders import IDENTITY, effect, meta

path = Path(sys.argv[1])
for round in range(100):
    ledger = Ledger.open(path, IDENTITY)
    started = threading.Event()

    def syncing():
        started.set()
        try:
            while True:
                ledger.sync()
        except LedgerError as error:
            assert "closed" in str(error), error

    threads = [threading.Thread(target=syncing) for _ in range(2)]
    for thread in threads:
        thread.start()
    started.wait()
    ledger.apply([PutEffect(f"e{round}", effect())], meta(round), [])
    ledger.close()
    for thread in threads:
        thread.join()
ledger = Ledger.open(path, IDENTITY)
assert None not in ledger.effects([f"e{round}" for round in range(100)])
print("done")
"""


def test_close_beside_a_syncing_thread(store: Path) -> None:
    """100 times, close() while other threads sync() ends in order: no abort, no lock left, nothing lost."""
    process = start(CLOSE_BESIDE_SYNC, store)
    assert process.communicate()[0].strip() == "done"
    assert process.returncode == 0


def test_sync_runs_beside_the_owner(store: Path) -> None:
    """The owner applies and reads while another thread syncs; neither disturbs the other."""
    ledger = Ledger.open(store, IDENTITY)
    stop = threading.Event()

    def syncing() -> int:
        count = 0
        while not stop.is_set():
            ledger.sync()
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        syncs = pool.submit(syncing)
        for cycle in range(100):
            ledger.apply([PutEffect(f"e{cycle}", effect())], meta(cycle), [])
            assert ledger.effects([f"e{cycle}"]) == [effect()]
        stop.set()
        assert syncs.result() > 0
    ledger.close()


def test_reads_leave_nothing_open(store: Path) -> None:
    """After every kind of read, also one that failed in mid-scan, close() gives the lock back."""
    ledger = Ledger.open(store, IDENTITY)
    ledger.apply([*put_parked(("a", 1, 1), ("a", 2, 2), ("b", 1, 3))], meta(), [forward()])
    ledger.opening()
    ledger.parked("a", None, 1)
    ledger.cases(limit=1)
    kept = None
    try:
        ledger._store.skip_scan(codec.PARKED, codec.end_of(codec.PARKED), lambda key: 1 / 0)  # type: ignore[arg-type, return-value]
    except LedgerError as error:
        kept = error  # with its traceback, and so with every frame it went through
    assert kept is not None
    ledger.close()
    Ledger.open(store, IDENTITY).close()


def test_a_store_of_another_partition_is_refused(store: Path) -> None:
    """A store marked for another group, topic or partition is a StateDirError (exit 4) that names both."""
    Ledger.open(store, IDENTITY).close()
    for other in (
        StoreIdentity("others", IDENTITY.topic, IDENTITY.partition),
        StoreIdentity(IDENTITY.group, "Invoices", IDENTITY.partition),
        StoreIdentity(IDENTITY.group, IDENTITY.topic, 4),
    ):
        with pytest.raises(
            StateDirError, match=r"(?s)ledger of group 'reminders', invoices \[3\].*next: "
        ) as caught:
            Ledger.open(store, other)
        assert caught.value.exit_code == 4
    Ledger.open(store, IDENTITY).close()


@pytest.mark.parametrize("which", ["topic_id", "retry_id"])
def test_a_store_whose_topic_was_made_anew_is_refused(store: Path, which: str) -> None:
    """Ids are learnt once and kept; another id of the topic, or of its retry topic, is exit 4 (case 34)."""
    Ledger.open(store, IDENTITY).close()
    first = StoreIdentity(IDENTITY.group, IDENTITY.topic, IDENTITY.partition, "id-1", "retry-1")
    Ledger.open(store, first).close()
    Ledger.open(store, IDENTITY).close()  # a cluster that gives no ids takes nothing away
    with pytest.raises(StateDirError, match=r"(?s)made anew.*next: ") as caught:
        Ledger.open(store, msgspec.structs.replace(first, **{which: "id-2"}))
    assert caught.value.exit_code == 4
    Ledger.open(store, first).close()


def test_a_store_of_an_unknown_format_is_refused_unchanged(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer format is exit 4 with the advice to start the newer release; N-1 opens; nothing is changed."""
    monkeypatch.setattr(codec, "FORMAT", 2)
    Ledger.open(store, IDENTITY).close()
    monkeypatch.setattr(codec, "FORMAT", 1)
    with pytest.raises(StateDirError, match=r"has format 2; this release reads 1 to 1") as caught:
        Ledger.open(store, IDENTITY)
    assert caught.value.exit_code == 4
    monkeypatch.setattr(codec, "FORMAT", 3)
    Ledger.open(store, IDENTITY).close()


def test_a_rocksdb_that_is_no_ledger_is_refused(store: Path) -> None:
    """A store with entries and no marker is a LedgerFormatError, never taken for a new one."""
    store.mkdir()
    plain = rocks.open_primary(store)
    plain.put(b"something", b"else")
    plain.close()
    with pytest.raises(LedgerFormatError, match="no format marker"):
        Ledger.open(store, IDENTITY)


def test_a_reopened_store_has_the_shared_cache_and_filters(store: Path) -> None:
    """A store that was there already is opened with our options, not with those it was left with."""
    for _ in range(3):
        ledger = Ledger.open(store, IDENTITY)
        found = (store / "LOG").read_text()
        assert "filter_policy: bloomfilter" in found
        assert f"capacity : {rocks.BLOCK_CACHE_BYTES}" in found
        ledger.apply([PutEffect("e", effect())], meta(), [])
        ledger.close()


def test_rocksdbs_own_logs_are_bounded(store: Path) -> None:
    """However often a store is opened, at most three of RocksDB's LOG files lie in it."""
    for _ in range(8):
        Ledger.open(store, IDENTITY).close()
    assert len(list(store.glob("LOG*"))) <= rocks.LOG_FILES + 1


SIXTY_FOUR = """
import os, resource, sys
from pathlib import Path
from laneway.lanes.view import PutEffect
from laneway.store.ledger import Ledger
from laneway.store.port import StoreIdentity
from tests.store.builders import effect, meta

root = Path(sys.argv[1])
root.mkdir()
Ledger.open(root / "warm", StoreIdentity("g", "t", 99)).close()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ledgers = [Ledger.open(root / str(n), StoreIdentity("g", "t", n)) for n in range(64)]
opened = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for n, ledger in enumerate(ledgers):
    ledger.apply([PutEffect(f"e{m}", effect()) for m in range(500)], meta(n), [])
    ledger.sync()
handles = len(os.listdir("/proc/self/fd"))
for ledger in ledgers:
    ledger.close()
print(handles, (opened - before) // 1024, len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="handles and threads are counted in /proc")
def test_sixty_four_stores_at_once(store: Path) -> None:
    """64 open stores take few handles (under 1024 with room), share threads, and cost little memory."""
    process = start(SIXTY_FOUR, store)
    handles, mebibytes, threads = map(int, process.communicate()[0].split())
    assert process.returncode == 0
    assert handles < 64 * 8
    assert mebibytes < 64 * 2
    assert threads < 16


def test_hand_over_marks_survive_a_kill(store: Path, tmp_path: Path) -> None:
    """S21: a hand-over noted before the handlers started is there after a kill, without a sync."""
    ledger = Ledger.open(tmp_path / "living", IDENTITY)
    ledger.note_handed_over({Channel.SOURCE: 41})
    shutil.copytree(tmp_path / "living", store)
    ledger.close()
    reopened = Ledger.open(store, IDENTITY)
    assert reopened.opening().handed_over == {Channel.SOURCE: 41}
    reopened.close()


def test_a_long_parked_lane_is_released_from_its_front_in_linear_time(store: Path) -> None:
    """Releasing followers one page at a time does not get slower with those already released."""
    ledger = Ledger.open(store, IDENTITY)
    total, page = 6000, 50
    ledger.apply([*put_parked(*(("k", n, n) for n in range(total)))], meta(), [])
    released = 0
    while found := ledger.parked("k", None, page):
        assert found[0][0] == ("k", released, released)
        # What RocksDB would have to step over on the next look is at most this page.
        first = ledger._fronts[codec.parked_prefix("k")]
        assert codec.decode_parked_key(first)[1] == released
        ledger.apply([PutParked(key, None) for key, _ in found], meta(), [])
        released += len(found)
    assert released == total
    ledger.close()


def test_many_lanes_cost_the_opening_one_seek_each(store: Path) -> None:
    """Opening names each lane with followers once, by one seek per lane, however many followers it has."""
    ledger = Ledger.open(store, IDENTITY)
    ledger.apply([*put_parked(*((f"k{n % 7}", n, n) for n in range(700)))], meta(), [])
    ledger.apply([PutLane("k1", Lane(1))], meta(), [])
    skipped: list[bytes] = []

    def skip(key: bytes) -> bytes:
        skipped.append(key)
        return codec.behind_lane(key)

    ledger._store.skip_scan(codec.PARKED, codec.end_of(codec.PARKED), skip)
    assert len(skipped) == 7
    assert sorted(ledger.opening().lanes_with_parked) == [f"k{n}" for n in range(7)]
    ledger.close()
