"""Pools as `pool_for` builds them, with handlers of every kind, and runs to put in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from laneway import Delivery, Pipeline
from laneway.consumer.running.pool import Pool, pool_for
from laneway.consumer.settings.model import LanesSettings, LedgerSettings, Settings
from laneway.lanes.record import Channel, Record
from laneway.lanes.run import Run

DEADLINE_S = 20.0
KINDS = ("def", "async", "batch", "async batch")

Handle = Callable[[Delivery[Any]], Any]


@dataclass(frozen=True)
class Owner:
    """The partition of a run."""

    topic: str = "invoices"
    partition: int = 3


def now_ms() -> int:
    """A clock that never jumps."""
    return time.monotonic_ns() // 1_000_000


def run_of(lane: str, records: int = 1) -> Run:
    """A run whose records carry the lane's name and count from 1."""
    made = []
    for number in range(1, records + 1):
        record = Record(Channel.SOURCE, number, None, b"{}")
        record.lane, record.sequence, record.effect_key = lane, number, f"{lane}:{number}"
        record.sequence_key, record.payload = lane, b"{}"
        made.append(record)
    return Run(lane, made, 1, Owner())


def settings(
    *, workers: int = 4, max_running: int = 64, timeout_ms: int = 60_000, review: bool = False
) -> Settings:
    """What a team would have written."""
    return Settings(
        group="reminders",
        sources=("invoices",),
        lanes=LanesSettings(workers=workers, max_running=max_running, handler_timeout_ms=timeout_ms),
        ledger=LedgerSettings.model_validate(
            {"replication": "changelog", "on_unknown_outcome": "review" if review else "run-again"}
        ),
    )


@dataclass
class Taken:
    """What batch handlers were given: a list of effect keys for each call."""

    batches: list[list[str]] = field(default_factory=list)


def pipeline_of(kind: str, handle: Handle, taken: Taken | None = None, **batch: Any) -> Pipeline[Any]:
    """A pipeline whose handler is of this kind, and does for each delivery what `handle` does.

    What `handle` raises is an answer of that delivery alone; in async ones it may answer with a coroutine.
    """
    pipeline: Pipeline[Any] = Pipeline()
    limits = {"max_size": 8, "max_wait_ms": 5, **batch}
    taken = taken or Taken()

    def answer(delivery: Delivery[Any]) -> Any:
        try:
            return handle(delivery)
        except Exception as error:  # noqa: BLE001 - a batch answers for each of its deliveries
            return error

    async def answered(delivery: Delivery[Any]) -> Any:
        found = answer(delivery)
        return await found if asyncio.iscoroutine(found) else found

    if kind == "def":
        pipeline.handler(handle)
    elif kind == "async":

        @pipeline.handler
        async def one(delivery: Delivery[Any]) -> Any:
            found = handle(delivery)
            return await found if asyncio.iscoroutine(found) else found

    elif kind == "batch":

        @pipeline.batch_handler(**limits)
        def many(deliveries: list[Delivery[Any]]) -> list[Any]:
            taken.batches.append([delivery.effect_key for delivery in deliveries])
            return [answer(delivery) for delivery in deliveries]

    else:

        @pipeline.batch_handler(**limits)
        async def many_async(deliveries: list[Delivery[Any]]) -> list[Any]:
            taken.batches.append([delivery.effect_key for delivery in deliveries])
            return [await answered(delivery) for delivery in deliveries]

    return pipeline


@contextmanager
def pool_of(
    pipeline: Pipeline[Any], given: Settings | None = None, clock: Callable[[], int] = now_ms
) -> Iterator[Pool]:
    """A pool that is stopped at the end; a handler that waits must have been let go by then."""
    pool = pool_for(pipeline.compile(), given or settings(), clock=clock)
    try:
        yield pool
    finally:
        assert pool.stop(DEADLINE_S)


def collect(pool: Pool, count: int) -> list[Run]:
    """The next `count` runs that end."""
    ended: list[Run] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(ended) < count:
        assert time.monotonic() < deadline, f"{len(ended)} of {count} runs ended"
        pool.wait(1.0)
        ended += pool.finished()
    return ended


def verdicts(run: Run) -> Sequence[str]:
    """The names of a run's verdicts."""
    return [type(outcome.verdict).__name__ for outcome in run.outcomes]
