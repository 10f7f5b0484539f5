"""Rebalances under load: workers come, go, die and come back, and nobody works twice at once.

Handlers write a line when they begin and a line when they end, so that a test sees which intervals of one
lane overlap, in which process. Both group protocols, unless a test is about one of them.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from laneway.lanes.record import Channel
from laneway.store.state_dir import StateDir
from tests.broker import recording
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.journal_checks import check_saved_before_acked, events_of
from tests.broker.kafka import KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

# One file per process, one line per write: what stands there has happened.
APP = """
import json, os, time
from laneway import Pipeline, TemporaryFailure

pipeline = Pipeline()
out = os.open(f"{os.getpid()}.spans", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@pipeline.handler
def handle(delivery):
    said = dict(lane=delivery.sequence_key, seq=delivery.sequence, attempt=delivery.attempt, pid=os.getpid(),
                partition=delivery.partition, redelivered=delivery.redelivered)
    headers = {name: (value or b"").decode() for name, value in delivery.headers}
    os.write(out, json.dumps(dict(said, what="begin", at=time.time_ns())).encode() + b"\\n")
    time.sleep(int(headers.get("work-ms", "0")) / 1000)
    failed = headers.get("act") == "fail:1" and delivery.attempt == 1
    what = "failed" if failed else "end"
    os.write(out, json.dumps(dict(said, what=what, at=time.time_ns())).encode() + b"\\n")
    if failed:
        raise TemporaryFailure("told to")
"""


@dataclass(frozen=True)
class Span:
    """One run of a handler; `end` is None when its process died first."""

    lane: str
    seq: int
    attempt: int
    pid: int
    redelivered: bool
    begin: int
    end: int | None
    failed: bool


def read_spans(directory: Path) -> list[Span]:
    """All runs of all processes, by their beginning."""
    spans: list[Span] = []
    for path in directory.glob("*.spans"):
        begun: dict[tuple[str, int, int], dict[str, Any]] = {}
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            said = json.loads(line)
            ident = (said["lane"], said["seq"], said["attempt"])
            if said["what"] == "begin":
                begun[ident] = said
            else:
                spans.append(_span(begun.pop(ident), said["at"], said["what"] == "failed"))
        spans += [_span(said, None, False) for said in begun.values()]
    return sorted(spans, key=lambda span: span.begin)


def _span(begin: Mapping[str, Any], end: int | None, failed: bool) -> Span:
    return Span(
        begin["lane"],
        begin["seq"],
        begin["attempt"],
        begin["pid"],
        begin["redelivered"],
        begin["at"],
        end,
        failed,
    )


@dataclass
class Group:
    """One source, one group, and the workers of it, which share a state directory."""

    bootstrap: str
    names: Names
    directory: Path
    settings: Mapping[str, Any]
    partitions: int
    cluster: Cluster
    stack: ExitStack
    workers: list[WorkerProcess] = field(default_factory=list)
    sent: int = 0

    def add(self, *arguments: str) -> WorkerProcess:
        """One more worker, started."""
        name = f"worker-{len(self.workers)}"
        worker = WorkerProcess(
            "app:pipeline", self.settings, directory=self.directory, name=name, arguments=arguments
        )
        self.workers.append(self.stack.enter_context(worker))
        return worker.start()

    def send(self, records: Sequence[Outgoing]) -> None:
        """Produces to the source."""
        self.cluster.produce(self.names.source, records)
        self.sent += len(records)

    def await_live(self, *workers: WorkerProcess) -> None:
        """Until each of these has a share and together they have all."""

        def shared() -> bool:
            for worker in workers:
                assert worker.running, f"{worker.name} ended with {worker.wait()}: {worker.stderr()}"
            shares = [worker.live() for worker in workers]
            return all(shares) and len(set().union(*shares)) == self.partitions

        eventually(shared, 40, f"{len(workers)} workers to share {self.partitions} partitions", poll_s=0.1)

    def await_end(self, deadline_s: float = 60) -> None:
        """Until all is committed, the retry topic too; never past any log's end (case 11)."""

        def lag() -> dict[str, int]:
            left = {}
            for topic in (self.names.source, f"{self.names.source}.{self.names.group}.retry"):
                committed = self.cluster.committed(self.names.group, topic)
                for number, end in self.cluster.end_offsets(topic).items():
                    at = committed[number] or 0
                    assert at <= end, f"committed {at} past the end {end} of {topic}-{number}"
                    if at < end:
                        left[f"{topic}-{number}"] = end - at
            return left

        eventually(
            lambda: not lag() and self.effects() >= self.sent, deadline_s, "lag to be zero", poll_s=0.3
        )

    def effects(self) -> int:
        """How many effects have happened at least once."""
        return len({(span.lane, span.seq) for span in self.spans() if span.end and not span.failed})

    def spans(self) -> list[Span]:
        """All runs so far."""
        return read_spans(self.directory)

    def journal(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Each process's journal."""
        for worker in self.workers:
            for pid in worker.pids:
                yield pid, worker.journal(pid)

    def stop_all(self) -> None:
        """Every worker that runs leaves in order."""
        for worker in self.workers:
            if worker.running:
                worker.stop()

    def check(self, killed: Iterable[int] = ()) -> None:
        """What must hold of every story: order, one at a time, once but for kills, nothing refused."""
        spans = self.spans()
        check_never_at_once(spans)
        check_in_order(spans)
        dead = set(killed)
        runs: dict[tuple[str, int, int], list[Span]] = defaultdict(list)
        for span in spans:
            runs[span.lane, span.seq, span.attempt].append(span)
        for same in runs.values():
            for first, second in pairwise(same):
                assert first.pid in dead, f"ran again although nobody died: {first} {second}"
                assert second.redelivered, f"not marked redelivered (S21): {second}"
        for pid, journal in self.journal():
            check_saved_before_acked(journal)
            if pid not in dead:
                assert not events_of(journal, "completion_refused"), f"worker {pid} lost a completion"
        for worker in self.workers:
            assert "Traceback" not in worker.stderr(), worker.stderr()


def check_never_at_once(spans: Iterable[Span]) -> None:
    """No two runs of one lane overlap (invariant 2). A dead process's open run ended with it."""
    lanes: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        lanes[span.lane].append(span)
    for lane, runs in lanes.items():
        for first, second in pairwise(runs):
            assert first.end is None or first.end <= second.begin, f"{lane} at once: {first} {second}"


def check_in_order(spans: Iterable[Span]) -> None:
    """Per lane, effects first happen in the order of their sequences (S16)."""
    lanes: dict[str, list[int]] = defaultdict(list)
    for span in spans:
        if span.end is not None and not span.failed and span.seq not in lanes[span.lane]:
            lanes[span.lane].append(span.seq)
    for lane, sequences in lanes.items():
        assert sequences == list(range(1, len(sequences) + 1)), f"{lane}: {sequences}"


@contextmanager
def group_of(
    broker: KafkaBroker, names: Names, directory: Path, protocol: str, partitions: int = 4, **tables: Any
) -> Iterator[Group]:
    """A group without members yet; all its processes end with the block."""
    (directory / "app.py").write_text(APP)
    cluster = Cluster(broker.bootstrap)
    cluster.create_topic(names.source, partitions)
    settings = settings_of(broker.bootstrap, names, directory / "state", protocol, **tables)
    create_companions(settings, directory)
    with ExitStack() as stack:
        yield Group(broker.bootstrap, names, directory, settings, partitions, cluster, stack)


def load(lanes: int, records: int, *, work_ms: int = 0, act: str = "", partitions: int = 4) -> list[Outgoing]:
    """Records of several lanes, spread evenly over the partitions, sequences taking turns."""
    return [
        recording.event(f"lane-{lane}", seq, work_ms=work_ms, act=act, partition=lane % partitions)
        for seq in range(1, records + 1)
        for lane in range(lanes)
    ]


def test_a_worker_joins_and_leaves_under_load(
    kafka: KafkaBroker, names: Names, tmp_path: Path, group_protocol: str
) -> None:
    """Each record runs once, in order, never twice at once; lag ends at zero (cases 9, 11, 12, S22)."""
    with group_of(kafka, names, tmp_path, group_protocol) as group:
        group.send(load(16, 25, work_ms=40))
        first = group.add()
        eventually(lambda: group.effects() > 20, 30, "the work to be under way")
        second = group.add()
        group.await_live(first, second)
        second.stop()
        group.send([recording.event(f"lane-{lane}", 26, partition=lane % 4) for lane in range(16)])
        group.await_live(first)
        group.await_end()
        group.stop_all()
        group.check()


def test_nothing_is_committed_that_the_ledger_has_not_settled(
    kafka: KafkaBroker, names: Names, tmp_path: Path
) -> None:
    """Whenever a worker is killed, the group's offset is at most what its ledger has settled (case 9)."""
    with group_of(kafka, names, tmp_path, "classic") as group:
        group.send(load(8, 60, work_ms=10))
        killed = []
        worker = group.add()
        for done in (60, 200):
            eventually(lambda least=done: group.effects() > least, 40, f"{done} effects")  # type: ignore[misc]
            worker.kill()
            killed.append(worker.pid)
            check_committed_is_settled(group)
            worker.start()
        group.await_end()
        group.stop_all()
        check_committed_is_settled(group)
        group.check(killed)


def check_committed_is_settled(group: Group) -> None:
    """No committed offset is above the frontier of its ledger."""
    committed = group.cluster.committed(group.names.group, group.names.source)
    state = StateDir.inspect(group.directory / "state")
    for topic, number in state.list_stores():
        with state.read_store(topic, number) as ledger:
            meta = ledger.opening().meta
        frontier = meta.marks[Channel.SOURCE].frontier if meta is not None else 0
        assert (committed[number] or 0) <= frontier, f"{topic}-{number}: {committed[number]} > {frontier}"


def test_a_dead_workers_deliveries_come_back_marked(
    kafka: KafkaBroker, names: Names, tmp_path: Path, group_protocol: str
) -> None:
    """kill -9: the other worker gets what was in hand, redelivered=true in handler and journal (S21)."""
    with group_of(kafka, names, tmp_path, group_protocol, lanes={"handler_timeout_ms": 120_000}) as group:
        one, two = group.add(), group.add()
        group.await_live(one, two)
        group.send(load(4, 3, work_ms=800))
        eventually(lambda: {span.pid for span in group.spans()} == {one.pid, two.pid}, 20, "both to work")
        one.kill()
        in_hand = {
            (span.lane, span.seq) for span in group.spans() if span.pid == one.pid and span.end is None
        }
        assert in_hand
        group.await_end(90)
        group.stop_all()
        group.check([one.pid])
        again = {(span.lane, span.seq) for span in group.spans() if span.pid == two.pid and span.redelivered}
        assert in_hand <= again
        told = {
            (line["sequenceKey"], line["sequence"])
            for line in events_of(two.journal(), "running")
            if line["redelivered"]
        }
        assert told == again


def test_a_storm_of_joins_and_leaves_ends_with_lag_zero(
    kafka: KafkaBroker, names: Names, tmp_path: Path, group_protocol: str
) -> None:
    """Workers come and go at random under load, some by kill -9; nothing is lost or stuck (case 15)."""
    seed = int(os.environ.get("STORM_SEED", "7"))
    chance = random.Random(seed)
    killed: list[int] = []
    with group_of(kafka, names, tmp_path, group_protocol) as group:
        group.add()
        workers = [group.workers[0]]
        group.await_live(*workers)
        until = time.monotonic() + 9
        seq = 0
        while time.monotonic() < until:
            seq += 1
            group.send(
                [recording.event(f"lane-{lane}", seq, work_ms=15, partition=lane % 4) for lane in range(12)]
            )
            act = chance.random()
            if act < 0.25 and len(workers) < 3:
                workers.append(group.add())
            elif act < 0.45 and len(workers) > 1 and (up := [w for w in workers if w.stderr()]):
                # Whoever has said something has its signal handlers.
                leaver = chance.choice(up)
                workers.remove(leaver)
                if chance.random() < 0.7:
                    leaver.terminate()
                else:
                    leaver.kill()
                    killed.append(leaver.pid)
            time.sleep(0.3)  # the storm's own rhythm, not a wait for anything
        group.await_live(*workers)
        group.await_end(90)
        for worker in workers:
            worker.stop()
        assert {worker.wait() for worker in group.workers} <= {0, -9}, f"seed {seed}"
        group.check(killed)


def test_retries_move_with_their_source(
    kafka: KafkaBroker, names: Names, tmp_path: Path, group_protocol: str
) -> None:
    """Due records run once, those due before the move and those due after it, never early (case 16)."""
    with group_of(
        kafka, names, tmp_path, group_protocol, retry={"delays_ms": [3000]}, lanes={"workers": 8}
    ) as group:
        one = group.add()
        group.await_live(one)
        group.send(load(4, 2, act="fail:1"))
        eventually(lambda: sum(span.failed for span in group.spans()) >= 4, 20, "the first attempts to fail")
        two = group.add()
        group.await_live(one, two)  # moved while the retries wait
        group.await_end(60)
        group.send([recording.event(f"lane-{lane}", 3, act="fail:1", partition=lane) for lane in range(4)])
        eventually(lambda: sum(span.failed for span in group.spans()) >= 12, 20, "the third ones to fail")
        two.stop()  # moved back while the next retries wait
        group.await_end(60)
        group.stop_all()
        group.check()
        attempts: dict[tuple[str, int], list[Span]] = defaultdict(list)
        for span in group.spans():
            attempts[span.lane, span.seq].append(span)
        for (lane, seq), (failed, done) in ((key, tuple(value)) for key, value in attempts.items()):
            assert (failed.attempt, done.attempt) == (1, 2), f"{lane} {seq}"
            waited_ms = (done.begin - (failed.end or 0)) / 1e6
            assert waited_ms >= 2990, f"{lane} {seq} ran {waited_ms:.0f} ms after its failure"
        assert any(failed.pid != done.pid for failed, done in attempts.values()), (
            "no retry moved to the other worker"
        )


def test_a_handler_longer_than_the_session_keeps_its_partition(
    kafka: KafkaBroker, names: Names, tmp_path: Path
) -> None:
    """Work beyond session timeout and poll interval loses no partition: polling never waits for it (S23)."""
    limits = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 300, "max.poll.interval.ms": 3000}
    with group_of(kafka, names, tmp_path, "classic", partitions=1, kafka=limits) as group:
        worker = group.add()
        group.await_live(worker)
        group.send([recording.event("slow", 1, work_ms=8000, partition=0)])
        group.send([recording.event("quick", n, partition=0) for n in range(1, 4)])
        group.await_end(30)
        group.stop_all()
        assert "lost" not in worker.stderr()
        assert "revoked" not in worker.stderr().split("stopping")[0]
        slow = [span for span in group.spans() if span.lane == "slow"]
        assert len(slow) == 1
        quick = [span.end or 0 for span in group.spans() if span.lane == "quick"]
        assert max(quick) < (slow[0].end or 0), "other lanes waited for the slow one"
        group.check()


def test_sigterm_in_mid_work_settles_everything_in_hand(
    kafka: KafkaBroker, names: Names, tmp_path: Path
) -> None:
    """A worker told to stop ends with 0; what it ran is settled and committed as far as the order allows."""
    with group_of(kafka, names, tmp_path, "classic") as group:
        group.send(load(8, 20, work_ms=100))
        worker = group.add()
        eventually(lambda: group.effects() > 10, 30, "the work to be under way")
        worker.stop(15)
        ran = {(span.lane, span.seq) for span in group.spans()}
        assert all(span.end is not None for span in group.spans()), "a handler was cut short"
        saved = {
            (line["sequenceKey"], line["sequence"]) for line in events_of(worker.journal(), "result_saved")
        }
        assert saved == ran
        check_committed_is_settled(group)
        worker.start()
        group.await_end()
        group.stop_all()
        group.check()
