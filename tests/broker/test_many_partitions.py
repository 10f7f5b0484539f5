"""Many partitions on one worker: each comes and goes within a bound, whoever else does."""

from __future__ import annotations

from pathlib import Path

from tests.broker import recording
from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

PARTITIONS = 64
HAND_OVER_S = 60


def test_sixty_four_partitions_move_within_a_bound(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """A second worker joins and the first one leaves: no partition waits for all the others (case 33).

    Each of them works at once, and there are no more rebalances than comings and goings.
    """
    cluster.create_topic(names.source, PARTITIONS)
    runs_dir = tmp_path / "runs"
    settings = settings_of(kafka.bootstrap, names, tmp_path / "state", ledger={"replication": "changelog"})
    create_companions(settings, tmp_path)
    environment = recording.environment(runs_dir)

    def worker(name: str) -> WorkerProcess:
        return WorkerProcess(
            recording.APP, settings, directory=tmp_path / name, name=name, environment=environment
        )

    def all_done(last: int) -> bool:
        wanted = {f"k{number}:{last}" for number in range(PARTITIONS)}
        done = {run.effect_key for run in recording.read_runs(runs_dir) if run.outcome == "effect"}
        assert wanted <= done, f"{len(wanted - done)} partitions have not worked"
        return True

    def publish(sequence: int) -> None:
        events = [recording.event(f"k{number}", sequence, partition=number) for number in range(PARTITIONS)]
        cluster.produce(names.source, events)

    with worker("one") as one, worker("two") as two:
        one.start()
        publish(1)
        eventually(lambda: all_done(1), HAND_OVER_S, "the first worker to take all partitions", poll_s=0.3)
        two.start()
        eventually(lambda: len(two.live()) == PARTITIONS // 2, HAND_OVER_S, "half of them to move")
        publish(2)
        eventually(lambda: all_done(2), HAND_OVER_S, "both halves to work", poll_s=0.3)
        one.stop()
        publish(3)
        eventually(lambda: all_done(3), HAND_OVER_S, "the second worker to have taken all", poll_s=0.3)
        assigned = [line for line in two.stderr().splitlines() if " assigned: " in line]
        two.stop()
    assert len(assigned) <= 4, "a rebalance led to another"
