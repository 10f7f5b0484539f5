"""Which pool runs a handler, and what the owner may ask of any of them.

    def                     consumer/workers.py          threads, a run at a time
    async def               running/loop.py              one event loop, many runs at once
    batch_handler           running/batch_threads.py     threads, a batch at a time
    async batch_handler     running/batch_loop.py        one event loop, many batches at once

Runs go in, the same runs with outcomes come out, each exactly once. Nothing below this knows a board, a
ledger, the journal or Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from laneway.consumer.running.batch_loop import BatchLoop
from laneway.consumer.running.batch_threads import BatchThreads
from laneway.consumer.running.batching import Batching
from laneway.consumer.running.loop import RunLoop
from laneway.consumer.settings.model import Settings
from laneway.consumer.workers import Workers
from laneway.lanes.run import Run
from laneway.lanes.verdict import Outcome, Retry, Review
from laneway.processing import Processor


class Pool(Protocol):
    """What the owner thread may ask. None of it waits for a handler but `wait` and `stop`."""

    def submit(self, runs: list[Run]) -> None:
        """Hand over runs of different lanes; they come back through `finished`, each exactly once."""
        ...

    def finished(self) -> list[Run]:
        """The runs that ended since the last call. Never blocks."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Return as soon as a run has finished, or after the timeout."""
        ...

    def recall(self) -> None:
        """Give back the runs that were told to stop and that no handler has begun."""
        ...

    def reclaim(self, now_ms: int) -> int:
        """Give what stands behind a slow run to others; returns how many runs that were."""
        ...

    def nudge(self) -> None:
        """End the owner's `wait`. From any thread."""
        ...

    @property
    def in_hand(self) -> int:
        """Runs that were submitted and have not come back."""
        ...

    @property
    def fed_s(self) -> float:
        """For how many seconds, about, handlers have work without the owner; 0 while fewer run than may."""
        ...

    @property
    def capacity(self) -> int:
        """How many records can be in handlers at once."""
        ...

    @property
    def busy(self) -> int:
        """How many handlers are under way."""
        ...

    def overdue(self, now_ms: int) -> list[Run]:
        """The runs whose record is in its handler longer than it may be."""
        ...

    def stop(self, timeout_s: float) -> bool:
        """Start no further record, wait for those that run; returns whether all of them ended."""
        ...


def pool_for(processor: Processor, settings: Settings, *, clock: Callable[[], int]) -> Pool:
    """Build the pool that a handler needs, with its threads."""
    lanes, handler = settings.lanes, processor.handler
    unknown = unknown_of(settings)
    timeout_ms = lanes.handler_timeout_ms
    if handler.batch is not None:
        batching = Batching(handler.batch, processor.prepare, timeout_ms=timeout_ms, clock=clock)
        if handler.is_async:
            return BatchLoop(
                processor.process_batch_async,
                batching,
                unknown,
                processor.failed,
                max_running=lanes.max_running,
                timeout_ms=timeout_ms,
                clock=clock,
            )
        return BatchThreads(
            processor.process_batch, batching, unknown, processor.failed, threads=lanes.workers
        )
    if handler.is_async:
        return RunLoop(
            processor.process_async,
            unknown,
            processor.failed,
            max_running=lanes.max_running,
            timeout_ms=timeout_ms,
            clock=clock,
        )
    return Workers(processor.process, threads=lanes.workers, timeout_ms=timeout_ms, clock=clock)


def unknown_of(settings: Settings) -> Outcome:
    """What it means when a handler was cut off, and nobody can say what has happened.

    With `run-again` the target honours the effect key, so the record comes again, as after a crash; it spends
    an attempt, so that one that never ends does not come for ever. With `review` a person decides.
    """
    if settings.ledger.on_unknown_outcome == "review":
        return Outcome(Review("outcome-unknown", ""), "outcome-unknown")
    return Outcome(Retry("handler-timeout"), "handler-timeout")
