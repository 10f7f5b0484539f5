"""Batches on the event loop: as `RunLoop`, with a batch for a job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from laneway.consumer.running.batching import Batch, Batching
from laneway.consumer.running.loop import Job, LoopPool
from laneway.delivery import Delivery
from laneway.lanes.run import Run
from laneway.lanes.verdict import Outcome

ProcessBatchAsync = Callable[[list[Delivery[Any]], Outcome], Coroutine[Any, Any, list[Outcome | None]]]


class BatchJob(Job):
    """One batch."""

    __slots__ = ("batch",)

    def __init__(self, batch: Batch) -> None:
        super().__init__([run for run, _ in batch.runs])
        self.batch = batch

    def unbegun(self) -> Sequence[Run]:
        """See `Job`; with the runs that were over before any handler could see them."""
        over, _ = self.batch.end([None] * len(self.batch.deliveries))
        return over


class BatchLoop(LoopPool):
    """Batches for an async handler.

    Args:
        process: runs one batch.
        unknown: what it means when nobody can say what has happened.
        max_running: how many batches may be under way.
    """

    def __init__(
        self,
        process: ProcessBatchAsync,
        batching: Batching,
        unknown: Outcome,
        failed: Callable[[BaseException], Outcome],
        *,
        max_running: int,
        timeout_ms: int,
        clock: Callable[[], int],
    ) -> None:
        self._process = process
        self._batching = batching
        self._unknown = unknown
        self._failed = failed
        self._timer: asyncio.TimerHandle | None = None
        super().__init__(max_running=max_running, timeout_ms=timeout_ms, clock=clock)

    @property
    def capacity(self) -> int:
        """How many records can be in handlers at once."""
        return self._max_running * self._batching.limits.max_size

    def _put(self, runs: list[Run]) -> None:
        self._batching.put(runs)

    def _take_back(self, *, only_stopped: bool) -> list[Run]:
        return self._batching.take_back(only_stopped=only_stopped)

    def _is_waited_for(self) -> bool:
        return self._batching.is_ahead

    def _next(self) -> BatchJob | None:
        batch = self._batching.take()
        if batch is not None:
            return BatchJob(batch)
        wait_ms = self._batching.wait_ms()
        if wait_ms is not None and self._timer is None:
            self._timer = self.loop.call_later(wait_ms / 1000, self._start_late)
        return None

    def _start_late(self) -> None:
        self._timer = None
        self._start()

    async def _do(self, job: Job) -> None:
        assert isinstance(job, BatchJob)
        deliveries = job.batch.deliveries
        answers: list[Outcome | None] = []
        if deliveries:
            job.started_ms = self._clock()
            try:
                answers = await self._process(deliveries, self._unknown)
            except asyncio.CancelledError as error:
                answers = [self._unknown if job.is_cut else self._failed(error)] * len(deliveries)
            except BaseException as error:  # noqa: BLE001 - the loop lives on, whatever `process` broke
                answers = [self._failed(error)] * len(deliveries)
            self._answered(job)
        over, going_on = job.batch.end(answers)
        if going_on and not self._stopping:
            self._batching.put(going_on)
        else:
            over += going_on
        self._ended(job, over)
