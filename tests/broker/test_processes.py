"""`laneway run --processes N`: one command for several workers, which begin and end together."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.recording import APP, environment, event, read_runs
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

PARTITIONS = 4
KEYS = 40


@pytest.fixture
def parent(kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path) -> WorkerProcess:
    """A parent of two workers, not started yet, and a source with partitions for both."""
    cluster.create_topic(names.source, PARTITIONS)
    settings = settings_of(
        kafka.bootstrap, names, tmp_path / "state", ledger={"replication": "changelog"}, instance_id="house"
    )
    create_companions(settings, tmp_path)
    return WorkerProcess(
        APP,
        settings,
        directory=tmp_path,
        arguments=("--processes", "2", "--journal", "-"),
        environment=environment(tmp_path / "runs"),
    )


def started(parent: WorkerProcess, cluster: Cluster, names: Names, tmp_path: Path) -> set[int]:
    """The processes that work below a parent, once all of them have had something to do."""
    parent.start()
    eventually(lambda: {"[1]", "[2]"} <= live_workers(parent), 60, "partitions at both workers")
    eventually(lambda: len(parent.live()) == PARTITIONS, 60, "all partitions")
    events = [event(f"k{number}", 1, partition=number % PARTITIONS) for number in range(KEYS)]
    cluster.produce(names.source, events)

    def done() -> set[int]:
        runs = [run for run in read_runs(tmp_path / "runs") if run.outcome == "effect"]
        assert {run.effect_key for run in runs} == {f"k{number}:1" for number in range(KEYS)}
        return {run.pid for run in runs}

    return eventually(done, 60, "every effect")


def test_two_workers_share_the_work_and_end_in_order(
    parent: WorkerProcess, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """Two processes share the partitions; SIGTERM to their parent settles all, and the exit code is 0."""
    with parent:
        pids = started(parent, cluster, names, tmp_path)
        assert len(pids) == 2
        assert parent.pid not in pids
        parent.stop()
    assert cluster.committed(names.group, names.source) == cluster.stable_offsets(names.source)
    journal = [json.loads(line) for line in parent.said().splitlines() if line.startswith("{")]
    settled = [line["effectKey"] for line in journal if line["event"] == "result_saved"]
    assert sorted(settled) == sorted(f"k{number}:1" for number in range(KEYS)), "each line is whole"


def test_a_worker_that_is_killed_ends_the_others_in_order(
    parent: WorkerProcess, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """Whoever restarts a service must see that a part of it has died: which, how, and exit code 1."""
    with parent:
        killed, *_ = started(parent, cluster, names, tmp_path)
        os.kill(killed, signal.SIGKILL)
        assert parent.wait(60) == 1
    assert f"(process {killed}) ended by itself, with signal 9" in parent.said()


def test_a_stop_while_the_others_end_is_no_second_signal(
    parent: WorkerProcess, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """What is told to stop as one has died is not ended at once by the SIGTERM that follows: it settles."""
    with parent:
        pids = started(parent, cluster, names, tmp_path)
        events = [event(f"slow{number}", 1, work_ms=3000, partition=number) for number in range(PARTITIONS)]
        cluster.produce(names.source, events)
        eventually(lambda: parent.said().count('"event":"running"') >= KEYS + PARTITIONS, 30, "all in hand")
        killed, other = pids
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: "ended by itself" in parent.said(), 30, "the others to be told")
        parent.terminate()
        assert parent.wait(60) == 1
    ended = {run.pid for run in read_runs(tmp_path / "runs") if run.effect_key.startswith("slow")}
    assert other in ended
    assert "ended at once" not in parent.said()


def test_workers_end_with_a_parent_that_is_killed(
    parent: WorkerProcess, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """No worker goes on below nobody: a restarted service would have it beside its own."""
    with parent:
        pids = started(parent, cluster, names, tmp_path)
        parent.kill()
        eventually(lambda: not any(map(is_alive, pids)), 30, "the end of both workers")


def test_what_is_wrong_for_all_is_said_once(parent: WorkerProcess) -> None:
    """A configuration that no worker can use ends the command before any is started."""
    parent.arguments = ("--processes", "2", "-X", "lanes.wrong=1")
    with parent:
        parent.start()
        assert parent.wait() == 2
    assert parent.said().count("lanes.wrong") == 1


def live_workers(parent: WorkerProcess) -> set[str]:
    """The workers, by their number, that have a partition now or had one."""
    return {line.split()[0] for line in parent.said().splitlines() if "live from offset" in line}


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
