"""A record that waits for its retry holds its lane, and nothing but its lane, whatever happens meanwhile."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.broker import recording
from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.journal_checks import (
    check_lane_order,
    check_saved_before_acked,
    events_of,
    header,
)
from tests.broker.kafka import KafkaBroker
from tests.broker.recording import Run, event, read_runs
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

SHORT_MS, LONG_MS = 1000, 4000
LATE_MS = 1000
"""How much later than its time a retry may run here: two cores, a broker and other tests beside it."""


@dataclass
class Bench:
    """A worker that has partitions, and where to look at what it did."""

    worker: WorkerProcess
    cluster: Cluster
    names: Names
    runs_dir: Path

    def topic(self, kind: str) -> str:
        """A companion topic."""
        return f"{self.names.source}.{self.names.group}.{kind}"

    def runs(self, key: str | None = None) -> list[Run]:
        """The handler's runs so far, of one sequence key or of all."""
        return [run for run in read_runs(self.runs_dir) if key is None or run.sequence_key == key]

    def wait_for_effects(self, count: int, deadline_s: float = 20) -> None:
        """Until so many effects have happened."""

        def happened() -> bool:
            done = {run.effect_key for run in self.runs() if run.outcome == "effect"}
            assert len(done) >= count, f"{len(done)} of {count} effects"
            return True

        eventually(happened, deadline_s, "the effects")

    def wait_for_commits(self) -> None:
        """Until source and retry topic are committed to their ends."""

        def committed() -> bool:
            for topic in (self.names.source, self.topic("retry")):
                found, ends = self.cluster.committed(self.names.group, topic), self.cluster.end_offsets(topic)
                assert {n: found[n] or 0 for n in ends} == ends, topic
            return True

        eventually(committed, 20, "the commits")

    def check_nothing_else(self) -> None:
        """Nothing of it is in review or DLQ, and the journal never said so."""
        assert self.cluster.read_topic(self.topic("review")) == []
        assert self.cluster.read_topic(self.topic("dlq")) == []
        journal = self.worker.journal()
        assert events_of(journal, "gap_detected", "review_opened", "quarantined") == []
        for pid in self.worker.pids:
            check_saved_before_acked(self.worker.journal(pid))
        check_lane_order(self.runs())

    def check_lateness(self) -> None:
        """No retry ran before its time, and none long after it (case 18)."""
        ran = {(run.effect_key, run.attempt): run.at_ms for run in self.runs()}
        for message in self.cluster.read_topic(self.topic("retry")):
            key, attempt = header(message, "effect-key"), int(header(message, "attempt"))
            late_ms = ran[key, attempt] - int(header(message, "due-at"))
            assert 0 <= late_ms <= LATE_MS, f"{key} attempt {attempt} ran {late_ms} ms after its time"


def bench(
    kafka: KafkaBroker,
    cluster: Cluster,
    names: Names,
    tmp_path: Path,
    *,
    partitions: int = 1,
    protocol: str = "classic",
    **tables: Any,
) -> Bench:
    """A worker that is not started yet.

    Started again as a static member it takes its former place at once. Under the `consumer` protocol a
    killed one's name is free only when its session has ended, so there it has none.
    """
    cluster.create_topic(names.source, partitions)
    if protocol == "classic":
        tables["instance_id"] = "the-worker"
    settings = settings_of(kafka.bootstrap, names, tmp_path / "state", protocol, **tables)
    create_companions(settings, tmp_path)
    environment = recording.environment(tmp_path / "runs")
    worker = WorkerProcess(recording.APP, settings, directory=tmp_path / "worker", environment=environment)
    return Bench(worker, cluster, names, tmp_path / "runs")


@pytest.mark.parametrize("meanwhile", ["nothing", "killed", "stopped"])
def test_followers_wait_and_run_right_behind(
    kafka: KafkaBroker,
    cluster: Cluster,
    names: Names,
    tmp_path: Path,
    group_protocol: str,
    meanwhile: str,
) -> None:
    """While N waits its followers wait too, over a kill -9 or a stop, then run in order (case 1, S16, S17).

    None of it is a gap; the retry is neither forgotten nor early; attempts are neither reset nor inflated.
    """
    delay_ms = 2 * SHORT_MS
    at = bench(kafka, cluster, names, tmp_path, protocol=group_protocol, retry={"delays_ms": [delay_ms]})
    with at.worker as worker:
        worker.start()
        eventually(worker.live, 30, "a partition")
        followers = [event("k", n) for n in (3, 4, 5)]
        cluster.produce(
            names.source, [event("k", 1), event("k", 2, act="fail:1"), *followers, event("other", 1)]
        )
        eventually(lambda: len(events_of(worker.journal(), "parked")) >= 3, 20, "three parked followers")
        if meanwhile == "killed":
            worker.kill()
        elif meanwhile == "stopped":
            worker.stop()
        if meanwhile != "nothing":
            assert [run.sequence for run in at.runs("k")] == [1, 2], "a follower ran before its predecessor"
            worker.start()
            eventually(worker.live, 30, "the partition again")
        # A new follower behind the parked ones: it must not pass them.
        cluster.produce(names.source, [event("k", 6)])
        at.wait_for_effects(7)
        at.wait_for_commits()
        worker.stop()
    runs = at.runs("k")
    assert [(run.sequence, run.attempt, run.outcome) for run in runs] == [
        (1, 1, "effect"),
        (2, 1, "temporary"),
        (2, 2, "effect"),
        (3, 1, "effect"),
        (4, 1, "effect"),
        (5, 1, "effect"),
        (6, 1, "effect"),
    ]
    assert runs[2].at_ms - runs[1].at_ms >= delay_ms, "the retry came early"
    if meanwhile == "nothing":
        assert [run.sequence for run in at.runs("other")] == [1]
        assert at.runs("other")[0].at_ms < runs[2].at_ms, "another lane waited for the retry"
    assert runs[-1].at_ms - runs[2].at_ms <= LATE_MS, "the followers did not run right behind"
    at.check_nothing_else()


def test_a_burst_of_failures_is_never_early_and_hardly_late(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """50 failures at once, half fail again: 1000 and 4000 ms do not disturb each other (case 18, S17).

    Half-way through the long delays a second burst waits the short one: it passes those who wait longer.
    """
    at = bench(kafka, cluster, names, tmp_path, partitions=2)
    with at.worker as worker:
        worker.start()
        eventually(lambda: len(worker.live()) == 2, 30, "two partitions")
        cluster.produce(
            names.source,
            [event(f"burst-{n}", 1, act=f"fail:{1 + n % 2}") for n in range(50)]
            + [event(f"burst-{n}", 2) for n in range(50)],
        )
        eventually(lambda: sum(run.attempt == 2 for run in at.runs()) >= 50, 20, "the second attempts")
        cluster.produce(names.source, [event(f"later-{n}", 1, act="fail:1") for n in range(10)])
        at.wait_for_effects(110)
        at.wait_for_commits()
        worker.stop()
    at.check_lateness()
    at.check_nothing_else()
    attempts = defaultdict(list)
    for run in at.runs():
        attempts[run.effect_key].append(run)
    for n in range(50):
        first, *again = attempts[f"burst-{n}:1"]
        assert [run.attempt for run in again] == [2, 3][: 1 + n % 2]
        assert again[0].at_ms - first.at_ms >= SHORT_MS
        if n % 2:
            assert again[1].at_ms - again[0].at_ms >= LONG_MS
    passed = max(attempts[f"later-{n}:1"][1].at_ms for n in range(10))
    waiting = min(attempts[f"burst-{n}:1"][2].at_ms for n in range(1, 50, 2))
    assert passed < waiting, "a short delay waited behind a long one"


def test_two_failures_both_come_to_their_end(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """Two records that fail beside each other are both tried again, and the commit covers both (case 17)."""
    at = bench(kafka, cluster, names, tmp_path, retry={"delays_ms": [200]})
    with at.worker as worker:
        worker.start()
        cluster.produce(names.source, [event("a", 1, act="fail:1"), event("b", 1, act="fail:1")])
        at.wait_for_effects(2)
        at.wait_for_commits()
        worker.stop()
    assert cluster.committed(names.group, names.source) == {0: 2}
    assert cluster.committed(names.group, at.topic("retry")) == {0: 2}
    for key in ("a", "b"):
        outcomes = [(run.attempt, run.outcome) for run in at.runs(key)]
        assert outcomes == [(1, "temporary"), (2, "effect")]
    at.check_nothing_else()


@pytest.mark.parametrize("step", ["synced", "published"])
def test_a_success_does_not_pass_over_a_failure(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path, step: str
) -> None:
    """5 fails, 6 succeeds, kill before the commit: 5 comes again as its retry, 6 is suppressed (case 19)."""
    at = bench(kafka, cluster, names, tmp_path, retry={"delays_ms": [300]}, cycle={"max_ms": 200})
    with at.worker as worker:
        cluster.produce(names.source, [event("five", 1, act="fail:1"), event("six", 1)])
        worker.crash_at = f"{step}:1:settling"
        worker.start()
        assert worker.wait() == -9, worker.stderr()
        worker.crash_at = None
        worker.start()
        at.wait_for_effects(2)
        at.wait_for_commits()
        worker.stop()
        journal = worker.journal(worker.pid)
    assert [(run.attempt, run.outcome) for run in at.runs("five")] == [(1, "temporary"), (2, "effect")]
    assert [(run.attempt, run.outcome) for run in at.runs("six")] == [(1, "effect")]
    suppressed = events_of(journal, "duplicate_suppressed")
    assert [(line["effectKey"], line["reason"]) for line in suppressed if line["topic"] == names.source] == [
        ("five:1", "already-settled"),
        ("six:1", "already-settled"),
    ]
    assert at.cluster.read_topic(at.topic("review")) == []


def test_a_success_does_not_pass_over_a_record_in_hand(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """5 is with its handler, 6 is done, kill -9: 5 comes again, redelivered, 6 is suppressed (case 9)."""
    at = bench(kafka, cluster, names, tmp_path)
    with at.worker as worker:
        cluster.produce(names.source, [event("five", 1, act="hang"), event("six", 1), event("seven", 1)])
        worker.start()
        eventually(lambda: len(events_of(worker.journal(), "result_saved")) == 2, 20, "six and seven")
        assert cluster.committed(names.group, names.source)[0] in (None, 0), "committed past a record in hand"
        worker.kill()
        worker.start()
        at.wait_for_effects(3)
        at.wait_for_commits()
        worker.stop()
        journal = worker.journal(worker.pid)
    assert [(run.outcome, run.redelivered) for run in at.runs("five")] == [
        ("hanging", False),
        ("effect", True),
    ]
    assert [run.outcome for run in at.runs("six") + at.runs("seven")] == ["effect", "effect"]
    suppressed = events_of(journal, "duplicate_suppressed")
    assert [(line["effectKey"], line["reason"]) for line in suppressed] == [
        ("six:1", "already-settled"),
        ("seven:1", "already-settled"),
    ]


def test_a_retry_that_became_due_while_nobody_ran_runs_at_once(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """A retry whose time passed while the worker was away runs once, as soon as it is back (case 16)."""
    at = bench(kafka, cluster, names, tmp_path, retry={"delays_ms": [500]})
    with at.worker as worker:
        worker.start()
        cluster.produce(names.source, [event("k", 1, act="fail:1"), event("k", 2)])
        eventually(lambda: events_of(worker.journal(), "retry_scheduled"), 20, "the failure")
        worker.stop()
        due_ms = at.runs()[0].at_ms + 500
        eventually(lambda: time.time() * 1000 > due_ms, 5, "the due time")
        worker.start()
        eventually(worker.live, 30, "the partition")
        live_ms = time.time() * 1000
        at.wait_for_effects(2)
        at.wait_for_commits()
        worker.stop()
    runs = at.runs()
    assert [(run.sequence, run.attempt) for run in runs] == [(1, 1), (1, 2), (2, 1)]
    assert runs[1].at_ms - live_ms <= LATE_MS
    at.check_nothing_else()
