"""Static membership: a worker that is back within its session goes on where it was."""

from __future__ import annotations

import time
from pathlib import Path

from tests.broker import recording
from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

PARTITIONS = 4
SESSION_MS = 45_000
BACK_S = 20.0


def test_a_static_member_is_back_before_its_session_ends(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """Killed in mid-work and started again under its name: no session has to time out, nothing is lost.

    The other member keeps its partitions all the while, and what the dead one had in hand comes back marked
    (S21). The open transaction of the dead one is fenced off by its own name.
    """
    cluster.create_topic(names.source, PARTITIONS)
    runs_dir = tmp_path / "runs"

    def worker(name: str) -> WorkerProcess:
        settings = settings_of(
            kafka.bootstrap,
            names,
            tmp_path / f"state-{name}",
            instance_id=name,
            ledger={"replication": "changelog"},
            kafka={"session.timeout.ms": SESSION_MS},
        )
        create_companions(settings, tmp_path)
        environment = recording.environment(runs_dir)
        return WorkerProcess(
            recording.APP, settings, directory=tmp_path / name, name=name, environment=environment
        )

    def publish(sequence: int, work_ms: int) -> None:
        events = [recording.event(f"k{n}", sequence, partition=n, work_ms=work_ms) for n in range(PARTITIONS)]
        cluster.produce(names.source, events)

    def all_done(last: int) -> bool:
        done = {run.effect_key for run in recording.read_runs(runs_dir) if run.outcome == "effect"}
        assert {f"k{n}:{s}" for n in range(PARTITIONS) for s in range(1, last + 1)} <= done
        return True

    def assignments(of: WorkerProcess) -> int:
        return sum(" assigned: " in line for line in of.stderr().splitlines())

    with worker("one") as one, worker("two") as two:
        one.start()
        two.start()
        eventually(lambda: len(one.live()) == len(two.live()) == PARTITIONS // 2, 60, "both to be live")
        before = assignments(two)
        publish(1, 0)
        eventually(lambda: all_done(1), 30, "the first records")
        publish(2, 1500)
        eventually(lambda: any(line["sequence"] == 2 for line in one.journal()), 30, "work in hand")
        one.kill()
        killed_s = time.monotonic()
        one.start()
        eventually(lambda: all_done(2), BACK_S, "the static member to have done what it had in hand")
        assert time.monotonic() - killed_s < SESSION_MS / 1000 / 2
        assert assignments(two) == before, "the other member was told to give its partitions back"
        publish(3, 0)
        eventually(lambda: all_done(3), 30, "the last records")
        one.stop()
        two.stop()
    again = [run for run in recording.read_runs(runs_dir) if run.sequence == 2 and run.redelivered]
    assert again, "nothing came back marked"
