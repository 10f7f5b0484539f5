"""Outages: topics that refuse writes, a broker that freezes, dies or stays away. Nothing is lost.

The broker is this test's own, so that it may be stopped. Effects are lines in files (`recording`), so that
each run of a handler is seen, whatever happened to Kafka around it.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

# Public names, yet not re-exported for type checkers.
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from tests.broker import recording
from tests.broker.cluster import Cluster, ClusterError, Outgoing
from tests.broker.conftest import Names
from tests.broker.journal_checks import by_forward_id, check_saved_before_acked, events_of, header
from tests.broker.kafka import KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually


@dataclass(frozen=True)
class Group:
    """One source of two partitions, its group, and one worker."""

    cluster: Cluster
    names: Names
    directory: Path
    worker: WorkerProcess

    def topic(self, kind: str) -> str:
        """A companion topic."""
        return f"{self.names.source}.{self.names.group}.{kind}"

    def send(self, records: Sequence[Outgoing]) -> None:
        """Produces to the source."""
        self.cluster.produce(self.names.source, records)

    def effects(self) -> Counter[str]:
        """How often each effect happened."""
        runs = recording.read_runs(self.directory / "runs")
        return Counter(run.effect_key for run in runs if run.outcome == "effect")

    def await_effects(self, keys: set[str], deadline_s: float = 30) -> None:
        """Until all of these have happened."""
        eventually(lambda: keys <= self.effects().keys(), deadline_s, "the effects", poll_s=0.1)

    def committed(self) -> dict[int, int | None]:
        """The group's offsets of the source."""
        return self.cluster.committed(self.names.group, self.names.source)

    def await_end(self, deadline_s: float = 60) -> None:
        """Until all is committed, the retries too."""

        def has_ended() -> bool:
            for topic in (self.names.source, self.topic("retry")):
                try:
                    committed = self.cluster.committed(self.names.group, topic)
                except ClusterError:
                    return False  # a broker that is just back does not know its groups yet
                ends = self.cluster.end_offsets(topic)
                if any((committed[number] or 0) != end for number, end in ends.items()):
                    return False
            return True

        eventually(has_ended, deadline_s, "lag to be zero", poll_s=0.3)


@contextmanager
def group_of(broker: KafkaBroker, names: Names, directory: Path, **tables: Any) -> Iterator[Group]:
    """Its topics are made, its worker is ready to start and ends with the block."""
    cluster = Cluster(broker.bootstrap, fails=True)
    cluster.create_topic(names.source, 2)
    settings = settings_of(broker.bootstrap, names, directory / "state", **tables)
    create_companions(settings, directory)
    environment = recording.environment(directory / "runs")
    worker = WorkerProcess(recording.APP, settings, directory=directory, environment=environment)
    with worker:
        yield Group(cluster, names, directory, worker)


def alter(cluster: Cluster, topic: str, config: Mapping[str, str]) -> None:
    """Sets a topic's settings, as an operator does."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in config.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(timeout=20)
    eventually(lambda: config.items() <= cluster.topic_config(topic).items(), 20, f"{topic} to have {config}")


@pytest.mark.parametrize("killed", [False, True], ids=["stays", "killed"])
def test_topics_that_refuse_writes_hold_their_offsets_only(
    kafka: KafkaBroker, names: Names, tmp_path: Path, killed: bool
) -> None:
    """Retry and DLQ refuse: those offsets are held, other lanes live, and all arrives later, once (case 21).

    It holds whether the worker waits the outage out, or is killed in it and comes back when it is over.
    """
    # A compacted topic refuses what has no key.
    refused = ("retry", "dlq")
    with group_of(kafka, names, tmp_path) as group:
        group.worker.start()
        eventually(lambda: len(group.worker.live()) == 2, 30, "the worker to be live", poll_s=0.1)
        for kind in refused:
            alter(group.cluster, group.topic(kind), {"cleanup.policy": "compact"})
        group.send(
            [
                recording.event("before", 1, partition=0),
                Outgoing(b"garbage", partition=0),
                replace(recording.event("temporary", 1, act="fail:1", partition=1), key=None),
                *[recording.event(f"good-{number}", 1, partition=number % 2) for number in range(20)],
            ]
        )
        group.await_effects({f"good-{number}:1" for number in range(20)} | {"before:1"})
        eventually(lambda: group.worker.stderr().count("cannot publish to") > 2, 20, "two refusals and more")
        group.send([recording.event("later", 1, partition=0), recording.event("later-1", 1, partition=1)])
        group.await_effects({"later:1", "later-1:1"})
        assert group.committed() == {0: 1, 1: 0}, "held at what is not published"
        if killed:
            group.worker.kill()
        for kind in ("retry", "dlq"):
            assert group.cluster.read_topic(group.topic(kind)) == []
        for kind in refused:
            alter(group.cluster, group.topic(kind), {"cleanup.policy": "delete"})
        if killed:
            group.worker.start()
        group.await_effects({"temporary:1"})
        group.await_end()
        group.worker.stop()
        assert set(group.effects().values()) == {1}
        letters = by_forward_id(group.cluster.read_topic(group.topic("dlq"))).values()
        assert [letter.value() for letter in letters] == [b"garbage"]
        retries = by_forward_id(group.cluster.read_topic(group.topic("retry"))).values()
        assert [header(retry, "effect-key") for retry in retries] == ["temporary:1"]


def test_a_broker_that_freezes_is_waited_for(own_kafka: KafkaBroker, names: Names, tmp_path: Path) -> None:
    """The broker answers nothing for longer than a session: the worker recovers, each effect once."""
    with group_of(own_kafka, names, tmp_path) as group:
        group.send(numbered(1, 100))
        group.worker.start()
        group.await_effects({"lane-0:10"})
        own_kafka.pause()
        try:
            time.sleep(5)  # the outage itself, longer than the session timeout of 3 s
        finally:
            own_kafka.resume()
        group.send(numbered(101, 120))
        group.await_end()
        group.worker.stop()
        check_each_once(group, 120)


def test_a_broker_that_restarts_in_mid_run_is_survived(
    own_kafka: KafkaBroker, names: Names, tmp_path: Path
) -> None:
    """The broker dies by kill -9 and comes back: the worker recovers, each effect once, in few words."""
    with group_of(own_kafka, names, tmp_path) as group:
        group.send(numbered(1, 100))
        group.worker.start()
        group.await_effects({"lane-0:10"})
        own_kafka.kill()
        own_kafka.restart()
        group.send(numbered(101, 120))
        group.await_end(90)
        group.worker.stop()
        check_each_once(group, 120)
        assert len(group.worker.stderr().splitlines()) < 60, group.worker.stderr()


def test_a_stop_with_the_broker_down_is_bounded(own_kafka: KafkaBroker, names: Names, tmp_path: Path) -> None:
    """SIGTERM while nobody answers: it ends in time, says what it owes, loses nothing (case 38)."""
    with group_of(own_kafka, names, tmp_path) as group:
        group.worker.arguments = ("--drain-timeout", "3")
        group.send(numbered(1, 20))
        group.worker.start()
        group.await_effects({"lane-0:1"})
        own_kafka.kill()
        try:
            done = len(group.effects())
            eventually(lambda: len(group.effects()) > done or done == 40, 20, "work to go on meanwhile")
            began = time.monotonic()
            group.worker.terminate()
            code = group.worker.wait(40)
            took_s = time.monotonic() - began
        finally:
            own_kafka.restart()
        assert took_s < 25
        assert "Traceback" not in group.worker.stderr()
        assert code == 5, "offsets were still owed when the drain deadline passed"
        assert "drain deadline" in group.worker.stderr()
        group.worker.arguments = ()
        group.worker.start()
        group.await_end()
        group.worker.stop()
        check_each_once(group, 20)


def test_a_dead_letter_too_large_for_its_topic_becomes_a_stub(
    kafka: KafkaBroker, names: Names, tmp_path: Path
) -> None:
    """The DLQ takes less than it did: position and hash arrive instead, nothing stops (case 22)."""
    with group_of(kafka, names, tmp_path) as group:
        group.worker.start()
        eventually(lambda: len(group.worker.live()) == 2, 30, "the worker to be live", poll_s=0.1)
        alter(group.cluster, group.topic("dlq"), {"max.message.bytes": "3000"})
        big = random.Random(1).randbytes(20_000)  # nothing that compression could make fit
        group.send([Outgoing(big, b"k", [("trace", b"1")], 0), recording.event("next", 1, partition=0)])
        group.await_effects({"next:1"})
        group.await_end()
        group.worker.stop()
        [letter] = group.cluster.read_topic(group.topic("dlq"))
        assert (letter.key(), letter.value()) == (b"k", None)
        assert header(letter, "stub") == "value-too-large"
        assert header(letter, "payload-sha256") == hashlib.sha256(big).hexdigest()
        assert (header(letter, "origin-topic"), header(letter, "origin-offset")) == (names.source, "0")
        assert ("trace", b"1") in (letter.headers() or [])


def test_small_dead_letters_are_no_stubs_because_they_travel_together(
    kafka: KafkaBroker, names: Names, tmp_path: Path
) -> None:
    """A batch that is refused as too large does not condemn its letters: each that fits arrives whole."""
    with group_of(kafka, names, tmp_path, kafka={"linger.ms": 200}) as group:
        group.worker.start()
        eventually(lambda: len(group.worker.live()) == 2, 30, "the worker to be live", poll_s=0.1)
        alter(group.cluster, group.topic("dlq"), {"max.message.bytes": "3000"})
        values = [random.Random(number).randbytes(1000) for number in range(6)]
        values.insert(3, random.Random(6).randbytes(20_000))
        group.send([Outgoing(value, partition=0) for value in values])
        group.await_end()
        group.worker.stop()
        letters = {
            header(letter, "origin-offset"): letter.value()
            for letter in group.cluster.read_topic(group.topic("dlq"))
        }
        expected = {str(offset): value if len(value) < 3000 else None for offset, value in enumerate(values)}
        assert letters == expected


def numbered(first: int, last: int) -> list[Outgoing]:
    """Two lanes of slow work, one in each partition."""
    return [
        recording.event(f"lane-{lane}", number, work_ms=20, partition=lane)
        for number in range(first, last + 1)
        for lane in range(2)
    ]


def check_each_once(group: Group, last: int) -> None:
    """Every effect of both lanes happened once, in order, and the journal tells it in order."""
    assert group.effects() == {f"lane-{lane}:{n}": 1 for lane in range(2) for n in range(1, last + 1)}
    for pid in group.worker.pids:
        check_saved_before_acked(group.worker.journal(pid))
    runs = recording.read_runs(group.directory / "runs")
    for lane in ("lane-0", "lane-1"):
        assert [run.sequence for run in runs if run.sequence_key == lane] == list(range(1, last + 1))
    saved = [line["effectKey"] for line in events_of(group.worker.journal(), "result_saved")]
    assert len(saved) == len(set(saved)) == 2 * last
