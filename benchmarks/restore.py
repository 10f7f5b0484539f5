"""A restore measured: how fast it is alone, and what it costs the live partition beside it.

A changelog partition is filled with transactions as a worker writes them. Then, in each round:

    alone    a worker has nothing else to do than to restore it
    beside   a worker handles a backlog at full speed while another member of its group, which has the
             big partition and does nothing with it, leaves; the worker restores it and goes on. The
             rebalance stops all partitions (classic protocol); "meanwhile" begins when the live one is back

Everything is bounded: entries, rounds, seconds. The backlog has to last: a live partition that ran dry
gives no figure.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
from confluent_kafka import Consumer, Producer

from benchmarks import load
from benchmarks.environments import REPOSITORY
from benchmarks.restore_worker import Line, Live, Sample, Task
from benchmarks.subject import worker_settings
from benchmarks.supervise import SubjectFailedError, subject_environment
from laneway.consumer import topics
from laneway.consumer.kafka import clients
from laneway.consumer.kafka.cluster import Cluster as Admin
from laneway.consumer.settings.model import Settings
from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.lane import Lane
from laneway.lanes.record import Channel, keyed_lane
from laneway.lanes.view import ChannelMark, Entry, Meta, PutEffect, PutLane
from laneway.store.changes import encode_cycle
from tests.broker.cluster import Cluster

EFFECTS, LANES = 2_000, 1_000
"""Of one cycle of the fill, beside its meta entry."""
KEYS: Final = 1_000
WARM_S: Final = 1.5
WINDOW_S: Final = 3.0
FULL_WINDOW_S: Final = 10.0
FASTEST: Final = 20_000
"""Records a second that the backlog must last for."""
SLOWEST_RESTORE: Final = 25_000
"""Entries a second; a restore that is slower runs into the deadline."""
SLACK_S: Final = 10.0
"""For the rebalance."""
JOIN_S: Final = 60.0
STOP_S: Final = 45.0
POLL_S: Final = 0.02


class Beside(msgspec.Struct, frozen=True):
    """A restore beside a live partition.

    Attributes:
        before_per_s, during_per_s, after_per_s: records of the live partition.
        before_cpus, during_cpus, after_cpus: that the process had: a machine that is busy with other things
            gives less, and then throughput says little.
        before_mib, peak_mib, after_mib: resident memory of the process.
    """

    entries: int
    restore_s: float
    before_per_s: float
    during_per_s: float
    after_per_s: float
    before_cpus: float
    during_cpus: float
    after_cpus: float
    before_mib: float
    peak_mib: float
    after_mib: float


class Alone(msgspec.Struct, frozen=True):
    """A restore by itself."""

    entries: int
    restore_s: float
    before_mib: float
    peak_mib: float


class Restored(msgspec.Struct):
    """All rounds. `window_s`: how long the live partition was looked at before and after."""

    entries: int
    window_s: float
    alone: list[Alone] = []
    beside: list[Beside] = []


def measure_restore(
    cluster: Cluster,
    tag: str,
    *,
    entries: int,
    rounds: int,
    window_s: float,
    beside: bool = True,
    say: Callable[[str], None],
) -> Restored:
    """Fill, then measure. Topics begin with `tag`; whoever calls deletes them.

    Args:
        beside: also beside a live partition.

    Raises:
        SubjectFailedError: there is no figure.
    """
    group, big, live = f"{tag}-g", f"{tag}-big", f"{tag}-live"
    result = Restored(entries, window_s)
    longest_s = 2 * WARM_S + 2 * window_s + entries / SLOWEST_RESTORE + SLACK_S
    backlog = int(rounds * longest_s * FASTEST) if beside else 1
    say(f"filling {live}: {backlog:,} records")
    load.publish(cluster, live, partitions=1, records=backlog, keys=KEYS)
    cluster.create_topic(big, 1)
    with TemporaryDirectory(prefix="laneway-bench-") as directory:
        settings = worker_settings(
            Path(directory),
            bootstrap=cluster.bootstrap,
            group=group,
            sources=(big, live),
            replication="changelog",
        )
        with Admin(settings) as admin:
            topics.create(settings, admin)
    say(f"filling the changelog of {big}: {entries:,} entries")
    written = fill(settings, topics.topic_names(settings, big).ledger, entries)
    for number in range(1, rounds + 1):
        alone = _alone(Task(cluster.bootstrap, group, (big,), longest_s + JOIN_S), big)
        _require_whole(alone.entries, written)
        result.alone.append(alone)
        name = f"round {number}/{rounds}  restore"
        say(f"{name} alone   {alone.entries / alone.restore_s:>10,.0f} entries/s")
        if not beside:
            continue
        task = Task(cluster.bootstrap, group, (big, live), longest_s + JOIN_S)
        both = _beside(task, big, live, window_s)
        _require_whole(both.entries, written)
        result.beside.append(both)
        speeds = (both.before_per_s, both.during_per_s, both.after_per_s)
        say(
            f"{name} beside  {both.entries / both.restore_s:>10,.0f} entries/s; records/s of the live "
            f"partition before, meanwhile, after: {', '.join(f'{speed:,.0f}' for speed in speeds)}"
        )
    return result


def _require_whole(read: int, written: int) -> None:
    # Compaction may have taken lanes that were written twice; a worker that went live adds little.
    if not 0.5 * written < read < 1.1 * written:
        raise SubjectFailedError(f"restore: {read:,} entries were read of {written:,}")


# --- the changelog --------------------------------------------------------------------------------


def fill(settings: Settings, topic: str, entries: int) -> int:
    """Write that many entries, in transactions of one cycle each; returns how many it were with the metas."""
    producer = clients.new_transactional_producer(settings, f"laneway-{settings.group}-fill")
    producer.init_transactions(30)
    written = 0
    # Of now: what is past retention would be forgotten at once, beside what is measured.
    now_ms = time.time_ns() // 1_000_000
    for number in range(1, entries // (EFFECTS + LANES) + 1):
        producer.begin_transaction()
        # The source is empty, so nothing of it is settled.
        meta = Meta("fill", number, {Channel.SOURCE: ChannelMark(0)}, 0, 0, now_ms)
        changes = encode_cycle(_cycle(number, now_ms), meta)
        for key, value in changes:
            _produce(producer, topic, key, value)
        producer.commit_transaction(30)
        written += len(changes)
    return written


def _produce(producer: Producer, topic: str, key: bytes, value: bytes | None) -> None:
    while True:
        try:
            producer.produce(topic, value, key, 0)
        except BufferError:
            producer.poll(0.05)
        else:
            return


def _cycle(number: int, now_ms: int) -> Iterator[Entry]:
    """2,000 effects of 1,000 lanes, each with what a succeeded effect of the no-op pipeline has."""
    for place in range(EFFECTS):
        effect = number * EFFECTS + place
        name = f"customer-{(number * LANES + place % LANES) % 1_000_000:06}"
        lane = keyed_lane(name)
        yield PutEffect(
            f"reminder-{name}-{effect}",
            Effect(
                EffectState.SUCCEEDED, f"m-{effect:08}", effect, lane, number, 1, effect.to_bytes(16), 1, 1,
                None, "", now_ms,
            ),
        )  # fmt: skip
        if place < LANES:
            yield PutLane(lane, Lane(number))


# --- one run --------------------------------------------------------------------------------------


class _Watched:
    """A worker's process, and what it has said so far."""

    def __init__(self, task: Task, process: subprocess.Popen[bytes]) -> None:
        self.samples: list[Sample] = []
        self.lives: list[Live] = []
        self._process = process
        self._deadline = time.monotonic() + task.deadline_s
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._said = bytearray()
        for target in (self._read, self._read_errors):
            threading.Thread(target=target, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        decoder = msgspec.json.Decoder(Line)
        for line in self._process.stdout:
            self._lines.put(decoder.decode(line))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said = (self._said + line)[-2000:]

    def until(self, what: str, is_over: Callable[[], bool], meanwhile: Callable[[], object]) -> None:
        """Take in what it says until that is so."""
        while not is_over():
            meanwhile()
            while True:
                try:
                    line = self._lines.get(timeout=POLL_S)
                except queue.Empty:
                    break
                if line is None:
                    raise SubjectFailedError(
                        f"restore: the worker ended before {what}: {self._said.decode()}"
                    )
                if isinstance(line, Live):
                    self.lives.append(line)
                else:
                    self.samples.append(line)
            if time.monotonic() > self._deadline:
                raise SubjectFailedError(f"restore: no {what} in time: {self._said.decode()}")

    def pause(self, seconds: float, meanwhile: Callable[[], object]) -> tuple[float, float]:
        """Watch it for so long."""
        began_s = time.monotonic()
        self.until("the end of a pause", lambda: time.monotonic() - began_s >= seconds, meanwhile)
        return began_s, began_s + seconds

    def live(self, topic: str) -> Live | None:
        """The last time that it went live."""
        return next((each for each in reversed(self.lives) if each.topic == topic), None)

    def handled_per_s(self, from_s: float, to_s: float) -> float:
        """Between two moments that samples surround."""
        return self._rate(lambda sample: sample.handled, from_s, to_s)

    def cpus(self, from_s: float, to_s: float) -> float:
        """CPUs that the process had in between."""
        return self._rate(lambda sample: sample.cpu_s, from_s, to_s)

    def _rate(self, count: Callable[[Sample], float], from_s: float, to_s: float) -> float:
        return (self._at(count, to_s) - self._at(count, from_s)) / (to_s - from_s)

    def _at(self, count: Callable[[Sample], float], at_s: float) -> float:
        at = bisect_left(self.samples, at_s, key=lambda sample: sample.at_s)
        before, after = self.samples[max(0, at - 1)], self.samples[min(at, len(self.samples) - 1)]
        if after.at_s <= before.at_s:
            return count(after)
        share = (at_s - before.at_s) / (after.at_s - before.at_s)
        return count(before) + share * (count(after) - count(before))

    def memory(self, from_s: float, to_s: float) -> list[float]:
        """MiB of each sample in between; the one nearest when there is none."""
        found = [sample.resident_mib for sample in self.samples if from_s <= sample.at_s <= to_s]
        return found or [min(self.samples, key=lambda sample: abs(sample.at_s - to_s)).resident_mib]


@contextmanager
def _watched(task: Task) -> Iterator[_Watched]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.restore_worker", msgspec.json.encode(task).decode()],
        cwd=REPOSITORY,
        env=subject_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield _Watched(task, process)
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise SubjectFailedError(f"restore: the worker did not stop within {STOP_S:g} s") from None
    finally:
        process.kill()
        process.wait()


def _nothing() -> None:
    """There is no other member to be polled."""


def _alone(task: Task, big: str) -> Alone:
    with _watched(task) as worker:
        worker.until("restore", lambda: worker.live(big) is not None, _nothing)
        worker.pause(0.3, _nothing)
        live = worker.live(big)
    assert live is not None
    return Alone(
        live.entries,
        live.at_s - live.began_s,
        before_mib=worker.memory(live.began_s - 1, live.began_s)[-1],
        peak_mib=max(worker.memory(live.began_s, live.at_s)),
    )


def _beside(task: Task, big: str, live: str, window_s: float) -> Beside:
    holder = Consumer(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": task.group,
            # The range assignor gives the one partition to the member whose id comes first.
            "client.id": "a-holder",
            "partition.assignment.strategy": "range",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    closed = False
    try:
        held: list[object] = []
        holder.subscribe([big], on_assign=lambda _, places: held.extend(places))
        joined = time.monotonic()
        while not held:
            holder.poll(0.1)
            if time.monotonic() - joined > JOIN_S:
                raise SubjectFailedError("restore: the group did not form")

        def hold() -> None:
            holder.poll(0)

        with _watched(task) as worker:
            worker.until("the live partition", lambda: worker.live(live) is not None, hold)
            worker.pause(WARM_S, hold)
            before = worker.pause(window_s, hold)
            if worker.live(big) is not None:
                raise SubjectFailedError("restore: the worker had the big partition from the start")
            holder.close()
            closed = True
            worker.until("restore", lambda: worker.live(big) is not None, _nothing)
            worker.pause(WARM_S, _nothing)
            after = worker.pause(window_s, _nothing)
            worker.pause(0.3, _nothing)
            done, back = worker.live(big), worker.live(live)
    finally:
        if not closed:
            holder.close()
    assert done is not None
    assert back is not None
    if worker.handled_per_s(*after) < 0.05 * worker.handled_per_s(*before):
        raise SubjectFailedError("restore: the live partition ran dry; there is no figure")
    during = (min(max(done.began_s, back.at_s), done.at_s - 0.1), done.at_s)
    return Beside(
        done.entries,
        done.at_s - done.began_s,
        worker.handled_per_s(*before),
        worker.handled_per_s(*during),
        worker.handled_per_s(*after),
        worker.cpus(*before),
        worker.cpus(*during),
        worker.cpus(*after),
        before_mib=worker.memory(*before)[-1],
        peak_mib=max(worker.memory(done.began_s, done.at_s)),
        after_mib=worker.memory(*after)[-1],
    )
