"""Async and batch handlers that record what they do, and the story that each kind is put through.

The story: building permits through two workers; one is killed in mid-run, comes back, and leaves in order
under load. `recording` says how runs are written down and read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laneway import BatchFailed, Delivery, Pipeline, TemporaryFailure
from tests.broker import recording
from tests.broker.changelog import check_stores, ledgers_of, read_changelog
from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.journal_checks import (
    check_contiguous,
    check_lane_order,
    check_once,
    check_saved_before_acked,
    check_second_runs,
    events_of,
)
from tests.broker.kafka import KafkaBroker
from tests.broker.permits import Workload, check_end, part_of, permits, workload
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

PARTITIONS = 4
EVENTS = 600
EFFECTS_BEFORE_A_KILL = 80
STEADY, LEAVER = "steady", "leaver"

in_async = Pipeline()
in_batches = Pipeline()
in_async_batches = Pipeline()
life: list[str] = []


@in_async.lifespan
async def opened() -> Any:
    """Something that handlers need."""
    life.append("open")
    yield
    life.clear()


@in_async.handler
async def one(delivery: Delivery[Any]) -> str:
    """Do what the headers say, see `recording.handle`; `hang` waits for ever at its first attempt."""
    assert life == ["open"], "a delivery outside the lifespan"
    headers = {name: (value or b"").decode() for name, value in delivery.headers}
    await asyncio.sleep(int(headers.get("work-ms", "0")) / 1000)
    if headers.get("act") == "hang" and delivery.attempt == 1:
        recording._write(delivery, "hanging")
        await asyncio.Event().wait()
    return _end(delivery, headers)


@in_batches.batch_handler(max_size=20, max_wait_ms=10, max_per_lane=3)
def many(deliveries: list[Delivery[Any]]) -> list[str]:
    """The same for each, one after another."""
    done: list[str] = []
    for number, delivery in enumerate(deliveries):
        headers = {name: (value or b"").decode() for name, value in delivery.headers}
        try:
            done.append(_end(delivery, headers))
        except TemporaryFailure as error:
            raise BatchFailed(number, error) from None
    return done


@in_async_batches.batch_handler(max_size=20, max_wait_ms=10)
async def together(deliveries: list[Delivery[Any]]) -> list[str | BaseException]:
    """The same for all of them at once: no two are of one lane."""
    return await asyncio.gather(*map(_later, deliveries), return_exceptions=True)


async def _later(delivery: Delivery[Any]) -> str:
    headers = {name: (value or b"").decode() for name, value in delivery.headers}
    await asyncio.sleep(int(headers.get("work-ms", "0")) / 1000)
    return _end(delivery, headers)


def _end(delivery: Delivery[Any], headers: dict[str, str]) -> str:
    if headers.get("act") == "fail:1" and delivery.attempt == 1:
        recording._write(delivery, "temporary")
        raise TemporaryFailure("told to")
    recording._write(delivery, "effect")
    return f"done/{delivery.effect_key}"


@dataclass(frozen=True)
class Story:
    """One source and one group, on two machines.

    Attributes:
        app: the handler, by its name in this module.
    """

    bootstrap: str
    cluster: Cluster
    names: Names
    protocol: str
    directory: Path
    app: str
    load: Workload

    def worker(self, name: str) -> WorkerProcess:
        """A worker on a machine of its own."""
        settings = settings_of(
            self.bootstrap,
            self.names,
            self.state_dir(name),
            self.protocol,
            lanes={"workers": 4, "max_running": 32},
            ledger={"replication": "changelog"},
            retry={"delays_ms": [200]},
        )
        if name == STEADY:
            create_companions(settings, self.directory)
        environment = recording.environment(self.directory / "runs")
        app = f"tests.broker.kinds:{self.app}"
        return WorkerProcess(app, settings, directory=self.directory, name=name, environment=environment)

    def state_dir(self, name: str) -> Path:
        """Where the ledgers of a machine are."""
        return self.directory / f"{name}-state"

    def runs(self) -> list[recording.Run]:
        """All runs so far."""
        return recording.read_runs(self.directory / "runs")

    def is_done(self) -> bool:
        """Every effect has happened and everything is committed."""
        effects = {run.effect_key for run in self.runs() if run.outcome == "effect"}
        assert len(effects) >= self.load.effects, f"{len(effects)} of {self.load.effects} effects"
        for topic in (self.names.source, f"{self.names.source}.{self.names.group}.retry"):
            committed = self.cluster.committed(self.names.group, topic)
            ends = self.cluster.end_offsets(topic)
            assert {number: committed[number] or 0 for number in ends} == ends, topic
        return True

    def check(self, journal_of: Mapping[int, list[dict[str, Any]]], killed: int) -> None:
        """Runs, journals, topics and ledgers say the same, and nothing was lost but to the kill."""
        load, runs = self.load, self.runs()
        check_lane_order(runs)
        check_contiguous(runs, load.last)
        check_second_runs(runs, [killed], journal_of)
        for pid, journal in journal_of.items():
            check_saved_before_acked(journal)
            if pid != killed:
                assert not events_of(journal, "completion_refused"), f"worker {pid} lost a completion"
        prefix = f"{self.names.source}.{self.names.group}."
        dead = check_once(self.cluster.read_topic(f"{prefix}dlq"))
        review = check_once(self.cluster.read_topic(f"{prefix}review"))
        entries = read_changelog(self.cluster, f"{prefix}ledger")
        keys, lanes = load.effect_keys, list(load.last)
        check_end(load, ledgers_of(entries, keys, lanes), dead, review)
        for name in (STEADY, LEAVER):
            assert check_stores(self.state_dir(name), self.names.source, entries, keys, lanes)


def tell_the_story(
    kafka: KafkaBroker, cluster: Cluster, names: Names, protocol: str, directory: Path, app: str
) -> None:
    """Permits through handlers of one kind: a kill, a return, an orderly leave; then all is counted."""
    load = workload(part_of(permits(), EVENTS), seed=7)
    cluster.create_topic(names.source, PARTITIONS)
    story = Story(kafka.bootstrap, cluster, names, protocol, directory, app, load)

    def has_half(worker: WorkerProcess) -> None:
        eventually(lambda: len(worker.live()) == PARTITIONS // 2, 40, "half of the partitions")

    def runs_of(pid: int) -> int:
        return sum(run.pid == pid for run in story.runs())

    share = len(load.records) // 2
    with story.worker(STEADY) as steady, story.worker(LEAVER) as leaver:
        for each in (steady.start(), leaver.start()):
            has_half(each)
        cluster.produce(names.source, load.records[:share])
        eventually(lambda: runs_of(leaver.pid) >= EFFECTS_BEFORE_A_KILL, 40, "work in hand")
        leaver.kill()
        killed = leaver.pid
        leaver.start()
        has_half(leaver)
        cluster.produce(names.source, load.records[share:])
        eventually(lambda: runs_of(leaver.pid), 40, "it to work again")
        leaver.stop()
        eventually(story.is_done, 60, "the end of all permits", poll_s=0.2)
        steady.stop()
        journal_of = {pid: each.journal(pid) for each in (steady, leaver) for pid in each.pids}
        for each in (steady, leaver):
            assert "Traceback" not in each.stderr(), each.stderr()
    story.check(journal_of, killed)
