"""A takeover: how soon it comes, and that what the last owner had in its handlers comes back marked (S21)."""

from __future__ import annotations

import time
from pathlib import Path

from tests.broker import recording
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.recording import Run, event, read_runs
from tests.broker.worker_process import (
    SESSION_TIMEOUT_MS,
    WorkerProcess,
    create_companions,
    settings_of,
)
from tests.waiting import eventually

LATE_MS = 3_000
"""On two busy cores; what an idle machine does stands in docs/benchmarks.md."""
IN_FLIGHT = 10
MANY = 12 * IN_FLIGHT
"""More than a worker can have in hand beyond its last cycle."""


def test_a_takeover_marks_what_the_last_owner_had(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """Expired records, duplicates, parked followers and garbage use up offsets, and hide no hand-over."""
    cluster.create_topic(names.source, 1)
    settings = [
        settings_of(
            kafka.bootstrap,
            names,
            tmp_path / name,
            lanes={"workers": 2, "max_in_flight": IN_FLIGHT},
            ledger={"replication": "changelog"},
        )
        for name in "abc"
    ]
    create_companions(settings[0], tmp_path)
    cluster.produce(names.source, [event(f"old-{number}", 1) for number in range(MANY)])
    cluster.delete_records(names.source, {0: MANY})
    runs = tmp_path / "runs"

    def began(effect_key: str, worker: WorkerProcess) -> list[Run]:
        return [run for run in read_runs(runs) if run.effect_key == effect_key and run.pid in worker.pids]

    one, two, three = (
        WorkerProcess(
            recording.APP, each, directory=tmp_path, name=name, environment=recording.environment(runs)
        )
        for name, each in zip("abc", settings, strict=True)
    )
    with one, two, three:
        one.start()
        eventually(one.live, 60, "the first owner")
        cluster.produce(names.source, [event("behind-expired", 1, act="hang")])
        eventually(lambda: began("behind-expired:1", one), 30, "a handler of the first owner")
        one.kill()

        two.start()
        (again,) = eventually(lambda: began("behind-expired:1", two), 60, "the same at the second owner")
        assert again.redelivered
        # It keeps the lowest unsettled offset down while all that follows is settled above it.
        cluster.produce(names.source, [event("slow", 1, work_ms=120_000)])
        cluster.produce(names.source, [event("behind-expired", 1)] * MANY)
        cluster.produce(names.source, [event("gap", number) for number in range(2, 2 + MANY)])
        cluster.produce(names.source, [Outgoing(b"garbage", b"k")] * MANY)
        eventually(
            lambda: len(cluster.read_topic(f"{names.source}.{names.group}.dlq")) == MANY,
            60,
            "a commit behind all that",
            poll_s=0.3,
        )
        cluster.produce(names.source, [event("behind-all", 1, act="hang")])
        eventually(lambda: began("behind-all:1", two), 30, "a handler of the second owner")
        two.kill()

        three.start()
        (again,) = eventually(lambda: began("behind-all:1", three), 60, "the same at the third owner")
        assert again.redelivered


def test_a_takeover_takes_a_session_and_little_more(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """After a kill -9 the other worker handles the dead one's records as soon as the group lets it."""
    cluster.create_topic(names.source, 2)
    runs = tmp_path / "runs"
    one, two = (
        WorkerProcess(
            recording.APP,
            settings_of(kafka.bootstrap, names, tmp_path / name, ledger={"replication": "changelog"}),
            directory=tmp_path,
            name=name,
            environment=recording.environment(runs),
        )
        for name in "ab"
    )
    create_companions(
        settings_of(kafka.bootstrap, names, tmp_path / "a", ledger={"replication": "changelog"}), tmp_path
    )
    with one, two:
        one.start()
        two.start()
        eventually(lambda: len(one.live()) == len(two.live()) == 1, 60, "a partition for each")
        (place,) = one.live()
        partition = int(place.rpartition("-")[2])
        cluster.produce(names.source, [event("before", 1, partition=partition)])
        eventually(lambda: [run for run in read_runs(runs) if run.effect_key == "before:1"], 30, "a first")
        killed_ms = time.time_ns() // 1_000_000
        one.kill()
        cluster.produce(names.source, [event("after", 1, partition=partition)])
        (after,) = eventually(
            lambda: [run for run in read_runs(runs) if run.effect_key == "after:1"], 60, "a takeover"
        )
    late_ms = after.at_ms - killed_ms - SESSION_TIMEOUT_MS
    print(f"taken over {late_ms} ms after the session of {SESSION_TIMEOUT_MS} ms")
    assert late_ms < LATE_MS
