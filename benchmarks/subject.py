"""Laneway in a process of its own: `python -m benchmarks.subject TASK`. A whole worker.

The payload is a pydantic model of four fields. `peers/work.py` has the protocol and the clock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel

from benchmarks import prefill
from benchmarks.peers.work import Clock, Task, blocking, millis, read_task, skip
from laneway import Delivery, Pipeline
from laneway.consumer import topics
from laneway.consumer.interpreter import tune_interpreter
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.settings.model import JournalSettings, LanesSettings, LedgerSettings, Settings
from laneway.consumer.start import build_worker
from laneway.errors import AppImportError

Effects = list[tuple[int, int, int, float]]
"""Of each record: its number, partition, offset, and when its handler was through."""
ASYNC_KEY: Final = "max_running"
"""The key of `[lanes]` that bounds async handlers, in releases that have them."""


class Reminder(BaseModel):
    """The payload: four fields."""

    invoice: str
    amount_cents: int
    currency: str
    is_final: bool


def main() -> None:
    """Work until the harness says that it is enough."""
    task = read_task()
    effects: Effects = []

    def write_trace() -> None:
        if task.trace:
            Path(task.trace).write_text(json.dumps(effects), encoding="ascii")

    clock = Clock(task, at_end=write_trace)
    pipeline = traced(effects, clock.done) if task.trace else handling(task.handler, clock.done)
    directory = Path(task.directory)
    settings = worker_settings(
        directory,
        bootstrap=task.bootstrap,
        group=task.group,
        sources=(task.topic,),
        replication="changelog" if task.subject == "compiled" else task.subject,
        journal=_level(task),
        workers=min(task.concurrency, 1024),
        running=task.concurrency if task.handler.startswith("async-") else None,
    )
    with Cluster(settings) as cluster:
        topics.create(settings, cluster)
        if task.ledger:
            prefill.adopt(Path(task.ledger), settings, cluster)
    worker = build_worker(settings, pipeline)
    tune_interpreter()
    worker.run()


def handling(handler: str, done: Callable[[], None]) -> Pipeline[Any]:
    """A pipeline whose handler is of that kind, and counts when it is through."""
    pipeline: Pipeline[Any] = Pipeline(payload=Reminder)
    if handler.startswith("async-"):
        return _awaiting(pipeline, millis(handler) / 1000, done)
    if handler == "none":
        return no_op(done)
    work = blocking(handler)

    @pipeline.handler
    def remind(delivery: Delivery[Reminder]) -> None:  # noqa: ARG001 - it only takes time
        work()
        done()

    return pipeline


def no_op(done: Callable[[], None]) -> Pipeline[Any]:
    """A pipeline that validates its payload and does nothing with it, but count."""
    pipeline: Pipeline[Any] = Pipeline(payload=Reminder)

    @pipeline.handler
    def remind(delivery: Delivery[Reminder]) -> None:  # noqa: ARG001 - that is what no-op means
        done()

    return pipeline


def traced(effects: Effects, done: Callable[[], None]) -> Pipeline[Any]:
    """A pipeline that notes when it handled what."""
    pipeline: Pipeline[Any] = Pipeline(payload=Reminder)

    @pipeline.handler
    def remind(delivery: Delivery[Reminder]) -> None:
        number = int(delivery.message_id[2:])
        effects.append((number, delivery.partition, delivery.offset, time.monotonic()))
        done()

    return pipeline


def _awaiting(pipeline: Pipeline[Any], seconds: float, done: Callable[[], None]) -> Pipeline[Any]:
    # Imported by the one kind of handler that needs an event loop.
    import asyncio  # noqa: PLC0415

    async def remind(delivery: Delivery[Reminder]) -> None:  # noqa: ARG001 - it only takes time
        await asyncio.sleep(seconds)
        done()

    try:
        pipeline.handler(remind)
    except AppImportError as error:
        skip(f"this release has no async handlers ({error.what})")
    return pipeline


def worker_settings(
    directory: Path,
    *,
    bootstrap: str,
    group: str,
    sources: tuple[str, ...],
    replication: str,
    journal: Literal["all", "exceptions", "off"] = "exceptions",
    workers: int = 16,
    running: int | None = None,
) -> Settings:
    """The defaults, but for what every start must write. State and journal go to `directory`.

    Args:
        running: async handlers at the same time, for releases that have such a key.
    """
    lanes = {"workers": 16, ASYNC_KEY: running} if running else {"workers": workers}
    return Settings(
        bootstrap=bootstrap,
        group=group,
        sources=sources,
        state_dir=directory / "state",
        lanes=LanesSettings.model_validate(lanes),
        ledger=LedgerSettings.model_validate({"replication": replication, "min_free": 64 * 2**20}),
        journal=JournalSettings(path=str(directory / "journal.ndjson"), level=journal),
    )


def _level(task: Task) -> Literal["all", "exceptions", "off"]:
    match task.journal:
        case "all" | "exceptions" | "off":
            return task.journal
    raise ValueError(task.journal)


if __name__ == "__main__":
    main()
