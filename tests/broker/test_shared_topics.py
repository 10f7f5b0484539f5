"""Lanes, keys, groups and bounds on real topics: who shares what with whom, and who must not notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.broker import recording
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.journal_checks import check_contiguous, check_lane_order, events_of, second_runs
from tests.broker.kafka import KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually


@dataclass(frozen=True)
class Place:
    """A cluster and a directory of this test's own."""

    bootstrap: str
    cluster: Cluster
    names: Names
    directory: Path

    def worker(self, names: Names | None = None, **tables: Any) -> WorkerProcess:
        """A worker with its companion topics; the sources must exist."""
        names = names or self.names
        directory = self.directory / names.group
        settings = settings_of(self.bootstrap, names, directory / "state", **tables)
        create_companions(settings, directory)
        environment = recording.environment(directory / "runs")
        return WorkerProcess(recording.APP, settings, directory=directory, environment=environment)

    def runs(self, names: Names | None = None) -> list[recording.Run]:
        """All runs of a group's handler."""
        return recording.read_runs(self.directory / (names or self.names).group / "runs")

    def send(self, records: Sequence[Outgoing], topic: str = "") -> None:
        """Produces to a source."""
        self.cluster.produce(topic or self.names.source, records)

    def await_end(self, group: str = "", topic: str = "") -> None:
        """Until a source is committed to its end."""
        group, topic = group or self.names.group, topic or self.names.source
        eventually(
            lambda: self.cluster.committed(group, topic) == self.cluster.end_offsets(topic),
            60,
            f"{topic} to be committed to its end",
            poll_s=0.2,
        )


@pytest.fixture
def place(kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path) -> Place:
    """No topic exists yet."""
    return Place(kafka.bootstrap, cluster, names, tmp_path)


def test_one_key_that_always_fails_holds_nobody_else(place: Place) -> None:
    """1,000 records of 5 keys, one always fails: 800 effects, one held lane, all committed (case 3)."""
    place.cluster.create_topic(place.names.source, 1)
    place.send(
        [
            recording.event(f"key-{key}", number, act="fail:99" if key == 4 else "")
            for number in range(1, 201)
            for key in range(5)
        ]
    )
    with place.worker(retry={"delays_ms": [300, 600]}) as worker:
        worker.start()
        place.await_end()
        eventually(lambda: events_of(worker.journal(), "review_opened"), 20, "the case of the bad lane")
        worker.stop()
    effects = [run for run in place.runs() if run.outcome == "effect"]
    check_lane_order(effects)
    check_contiguous(effects, {f"key-{key}": 200 for key in range(4)})
    assert len(effects) == 800
    bad = [(run.sequence, run.attempt) for run in place.runs() if run.sequence_key == "key-4"]
    assert bad == [(1, 1), (1, 2), (1, 3)], "only the first of the bad lane ever ran, three times"
    parked = {line["sequence"] for line in events_of(worker.journal(), "parked", "gap_detected")}
    assert parked == set(range(2, 201)), "its followers wait behind it, and none of them is a gap"
    assert [line["reason"] for line in events_of(worker.journal(), "gap_detected")] == []
    assert len(place.cluster.read_topic(f"{place.names.source}.{place.names.group}.review")) == 1


def test_a_lane_goes_by_sequence_key_whatever_the_record_key(place: Place) -> None:
    """One partition, another record key each time, one entity: in order, one at a time (case 5)."""
    place.cluster.create_topic(place.names.source, 1)
    place.send([replace(recording.event("entity", n, work_ms=5), key=b"%d" % n) for n in range(1, 61)])
    with place.worker() as worker:
        worker.start()
        place.await_end()
        worker.stop()
    assert [run.sequence for run in place.runs()] == list(range(1, 61))


def test_two_sources_may_share_a_key(place: Place) -> None:
    """The same sequence key in two topics is two lanes, each counting from its own 1 (case 8)."""
    second = f"{place.names.source}-b"
    for topic in (place.names.source, second):
        place.cluster.create_topic(topic, 1)
    envelope = {"envelope": {"effect_key": "position"}}
    with place.worker(sources=[place.names.source, second], source={second: envelope}) as worker:
        place.send([recording.event("shared", n) for n in range(1, 11)])
        place.send([recording.event("shared", n) for n in range(1, 21)], second)
        worker.start()
        place.await_end()
        place.await_end(topic=second)
        worker.stop()
    saved = events_of(worker.journal(), "result_saved")
    for topic, count in ((place.names.source, 10), (second, 20)):
        assert [line["sequence"] for line in saved if line["topic"] == topic] == list(range(1, count + 1))
    assert not events_of(worker.journal(), "gap_detected", "duplicate_suppressed", "parked")


def test_pauses_lose_no_position(place: Place) -> None:
    """Bounds so small that intake pauses and resumes over and over: none skipped, none twice (case 14)."""
    place.cluster.create_topic(place.names.source, 2)
    lanes = [f"lane-{lane}" for lane in range(6)]
    records: list[Outgoing] = []
    for wave in range(2):
        # As many slow ones as may be in flight: nothing gets in for longer than it takes to pause.
        records += [recording.event(f"slow-{wave}-{n}", 1, work_ms=650, partition=n % 2) for n in range(6)]
        records += [
            recording.event(lane, n, partition=lanes.index(lane) % 2)
            for n in range(wave * 15 + 1, wave * 15 + 16)
            for lane in lanes
        ]
    bounds = {"max_in_flight": 3, "workers": 3}
    with place.worker(lanes=bounds, retry={"max_waiting_per_partition": 1}) as worker:
        place.send(records)
        worker.start()
        place.await_end()
        worker.stop()
    runs = place.runs()
    assert Counter(run.effect_key for run in runs) == {
        **{f"slow-{wave}-{n}:1": 1 for wave in range(2) for n in range(6)},
        **{f"{lane}:{n}": 1 for lane in lanes for n in range(1, 31)},
    }
    check_lane_order(runs)
    assert not second_runs(runs)
    received = Counter(
        (line["partition"], line["offset"]) for line in events_of(worker.journal(), "received")
    )
    assert set(received.values()) == {1}, "a record was read again"


def test_two_groups_on_one_topic_do_not_meet(place: Place) -> None:
    """One group's retries and dead letters never reach the other, which runs every record once (case 24)."""
    place.cluster.create_topic(place.names.source, 1)
    other = Names(place.names.source, f"{place.names.group}-other")
    records = [recording.event("k", n, act="fail:1" if n % 3 == 0 else "") for n in range(1, 10)]
    with place.worker() as one, place.worker(other) as two:
        place.send([*records, Outgoing(b"garbage")])
        one.start()
        two.start()
        for names in (place.names, other):
            place.await_end(names.group)
            place.await_end(names.group, f"{names.source}.{names.group}.retry")
        one.stop()
        two.stop()
    for names in (place.names, other):
        effects = Counter(run.effect_key for run in place.runs(names) if run.outcome == "effect")
        assert effects == {f"k:{n}": 1 for n in range(1, 10)}
        failed = [run.effect_key for run in place.runs(names) if run.outcome == "temporary"]
        assert failed == ["k:3", "k:6", "k:9"], "each group had its own three failures"
        assert len(place.cluster.read_topic(f"{names.source}.{names.group}.retry")) == 3
        assert len(place.cluster.read_topic(f"{names.source}.{names.group}.dlq")) == 1
