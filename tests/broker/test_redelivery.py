"""What another machine's owner had in its handlers comes back marked, whatever lies in front of it (S21)."""

from __future__ import annotations

from pathlib import Path

from tests.broker import recording
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.recording import Run, event, read_runs
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

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
