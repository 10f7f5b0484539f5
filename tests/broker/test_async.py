"""Async handlers on a real broker: the same promises as for any other, and what a timeout comes to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.broker import recording
from tests.broker.cluster import Cluster
from tests.broker.conftest import SOAK, Names
from tests.broker.journal_checks import check_lane_order, events_of
from tests.broker.kafka import KafkaBroker
from tests.broker.kinds import tell_the_story
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

TIMEOUT_MS = 400
ENDS = """
import asyncio
from laneway import Delivery, Pipeline

pipeline = Pipeline()
went_wrong = asyncio.Event()

async def renew():
    await went_wrong.wait()
    raise ConnectionError("hunter2")

@pipeline.lifespan
async def token():
    async with asyncio.TaskGroup() as group:
        group.create_task(renew())
        yield

@pipeline.handler
async def handle(delivery: Delivery[object]) -> None:
    went_wrong.set()
"""


@pytest.mark.parametrize("group_protocol", ["classic", "consumer"] if SOAK else ["consumer"], indirect=True)
def test_permits_through_async_handlers(
    kafka: KafkaBroker, cluster: Cluster, names: Names, group_protocol: str, tmp_path: Path
) -> None:
    """A kill and a leave in the middle: every permit comes to its end, once and in order (S11, S16, S25)."""
    tell_the_story(kafka, cluster, names, group_protocol, tmp_path, "in_async")


@pytest.mark.parametrize("unknown", ["run-again", "review"])
def test_an_async_handler_over_its_time_is_cancelled(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path, unknown: str
) -> None:
    """4.3, 4.6: it runs again after a delay, or a person is asked; its lane waits, in order; others go on."""
    runs_dir = tmp_path / "runs"
    cluster.create_topic(names.source, 1)
    settings = settings_of(
        kafka.bootstrap,
        names,
        tmp_path / "state",
        lanes={"handler_timeout_ms": TIMEOUT_MS},
        ledger={"replication": "changelog", "on_unknown_outcome": unknown},
        retry={"delays_ms": [300]},
    )
    create_companions(settings, tmp_path)
    hanging = [recording.event("hangs", number, act="hang" if number == 2 else "") for number in (1, 2, 3)]
    others = [recording.event(f"other-{number}", 1) for number in range(20)]

    def outcomes(key: str) -> list[tuple[int, int, str]]:
        runs = recording.read_runs(runs_dir)
        return [(run.sequence, run.attempt, run.outcome) for run in runs if run.sequence_key == key]

    environment = recording.environment(runs_dir)
    app = "tests.broker.kinds:in_async"
    with WorkerProcess(app, settings, directory=tmp_path, environment=environment) as worker:
        worker.start()
        eventually(lambda: len(worker.live()) == 1, 40, "the worker to be live")
        cluster.produce(names.source, hanging + others)
        eventually(lambda: all(outcomes(f"other-{number}") for number in range(20)), 30, "the others")
        if unknown == "run-again":
            expected = [(1, 1, "effect"), (2, 1, "hanging"), (2, 2, "effect"), (3, 1, "effect")]
            eventually(lambda: outcomes("hangs") == expected, 30, "the lane to go on")
            (line,) = events_of(worker.journal(), "retry_scheduled")
            assert (line["reason"], line["sequence"]) == ("handler-timeout", 2)
        else:
            review = f"{names.source}.{names.group}.review"
            eventually(lambda: cluster.read_topic(review), 30, "a case")
            (message,) = cluster.read_topic(review)
            case = json.loads(message.value() or b"")
            assert case["reason"] == "outcome-unknown"
            assert "Did effect hangs:2 happen" in case["requiredCheck"]
            assert outcomes("hangs") == [(1, 1, "effect"), (2, 1, "hanging")]
        worker.stop()
        assert "over lanes.handler_timeout_ms" not in worker.stderr(), "cancelled in time is not overdue"
    check_lane_order(recording.read_runs(runs_dir))


def test_a_lifespan_that_ends_in_the_middle_ends_the_worker(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """Its pools are closed, so the worker settles what ran and ends with 1; it says which class ended it."""
    cluster.create_topic(names.source, 1)
    settings = settings_of(kafka.bootstrap, names, tmp_path / "state")
    create_companions(settings, tmp_path)
    (tmp_path / "app.py").write_text(ENDS)
    cluster.produce(names.source, [recording.event("a", 1)])
    with WorkerProcess(tmp_path / "app.py:pipeline", settings, directory=tmp_path / "w") as worker:
        worker.start()
        assert worker.wait(60) == 1
        assert "the lifespan has ended" in worker.stderr()
        assert "ConnectionError" in worker.stderr()
        assert "hunter2" not in worker.stderr()
    assert cluster.committed(names.group, names.source) == {0: 1}
