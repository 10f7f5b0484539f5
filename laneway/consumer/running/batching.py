"""How batches are put together from runs of many lanes, and how answers get back to them.

    put ─► waiting runs ─► take (when?) ─► Batch ─► handler ─► Batch.end ─► runs that are over
              ▲                                                    │
              └──────────────── runs that go on ◄──────────────────┘

A batch begins when `max_size` records wait, or when the first has waited `max_wait_ms`. It takes of each
run the next records in a row, at most `max_per_lane`; what stands behind them waits for their answers. So
with one record of a lane at a time every answer stands for itself, and the next starts only after an Ack.

With more of one lane in a batch, the answers of that lane count up to the first that is not Ack. Those
behind come again when their turn comes. Should one of them be answered as done, the order is broken at the
target and no machine can mend it: the one that failed becomes a case, whatever its answer, which holds the
lane.

Nothing here knows a thread but for one lock, held for as long as it takes to move runs.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from laneway.consumer.workers import RunOwner
from laneway.delivery import Delivery
from laneway.handlers import BatchLimits
from laneway.lanes.record import Record
from laneway.lanes.run import Run
from laneway.lanes.verdict import Ack, Outcome, Review

log = logging.getLogger("laneway")

Prepare = Callable[[Record, str, int, int], Delivery[Any] | Outcome]

OUT_OF_ORDER: Final = Outcome(
    Review(
        "answered out of order",
        "The handler answered that later records of this key were done, and that this one was not. "
        "Which of them happened at the target?",
    ),
    "unclassified-failure",
)


class Batch:
    """What one call of the handler gets.

    Attributes:
        deliveries: of all lanes, those of one lane one behind the other.
        runs: with how many deliveries each has in it, in their order.
        over: runs that ended before any handler saw them.
    """

    __slots__ = ("deliveries", "over", "runs")

    def __init__(self) -> None:
        self.deliveries: list[Delivery[Any]] = []
        self.runs: list[tuple[Run, int]] = []
        self.over: list[Run] = []

    def end(self, answers: Sequence[Outcome | None]) -> tuple[list[Run], list[Run]]:
        """Give each run its answers.

        Args:
            answers: one for each delivery, None where the handler never came to it.

        Returns:
            The runs that are over, and those that go on with their next record.
        """
        assert len(answers) == len(self.deliveries)
        over, going_on = self.over, []
        at = 0
        for run, count in self.runs:
            run.started_ms = 0
            took = _in_order(answers[at : at + count], run)
            at += count
            run.outcomes += took
            acked = len(took) == count and type(took[-1].verdict) is Ack
            if acked and not run.stop and len(run.outcomes) < len(run.records):
                going_on.append(run)
            else:
                over.append(run)
        return over, going_on


class Batching:
    """The runs that wait for a batch. From any thread.

    Args:
        prepare: validates one record; see `Processor.prepare`.
        timeout_ms: how long a batch may take; becomes the deadline of its deliveries.
        clock: epoch milliseconds that never jump.
    """

    def __init__(
        self, limits: BatchLimits, prepare: Prepare, *, timeout_ms: int, clock: Callable[[], int]
    ) -> None:
        self.limits = limits
        self.timeout_ms = timeout_ms
        self._prepare = prepare
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, Run]] = deque()
        self._records = 0

    def put(self, runs: Sequence[Run]) -> int:
        """Let these wait for a batch; returns how many batches are full now."""
        now_ms = self._clock()
        with self._lock:
            for run in runs:
                if run.stop:
                    # Told so when it was no longer in a batch and not yet here: nobody asks again.
                    self._waiting.appendleft((now_ms - self.limits.max_wait_ms, run))
                else:
                    self._waiting.append((now_ms, run))
                self._records += self._share(run)
            return self._records // self.limits.max_size

    @property
    def is_ahead(self) -> bool:
        """Whether a full batch waits. A look without the lock: it may be so no more."""
        return self._records >= self.limits.max_size

    def take(self) -> Batch | None:
        """The next batch, if it is time for one; it may be smaller than it could, and even empty."""
        now_ms = self._clock()
        parts: list[tuple[Run, int]] = []
        with self._lock:
            if self._wait_ms(now_ms) != 0:
                return None
            room = self.limits.max_size
            while self._waiting and room > 0:
                run = self._waiting.popleft()[1]
                share = self._share(run)
                self._records -= share
                parts.append((run, min(share, room)))
                room -= share
        return self._begin(parts, now_ms)

    def wait_ms(self) -> int | None:
        """How long until it is time for a batch; None when nothing waits."""
        with self._lock:
            return self._wait_ms(self._clock())

    def take_back(self, *, only_stopped: bool) -> list[Run]:
        """Take out the runs that were told to stop, or all."""
        with self._lock:
            kept: deque[tuple[int, Run]] = deque()
            back = []
            for since_ms, run in self._waiting:
                if run.stop or not only_stopped:
                    back.append(run)
                    self._records -= self._share(run)
                else:
                    kept.append((since_ms, run))
            self._waiting = kept
        return back

    def _wait_ms(self, now_ms: int) -> int | None:
        if not self._waiting:
            return None
        if self._records >= self.limits.max_size:
            return 0
        return max(0, self._waiting[0][0] + self.limits.max_wait_ms - now_ms)

    def _share(self, run: Run) -> int:
        return min(self.limits.max_per_lane, len(run.records) - len(run.outcomes))

    def _begin(self, parts: Sequence[tuple[Run, int]], now_ms: int) -> Batch:
        batch = Batch()
        deadline_ms = now_ms + self.timeout_ms
        for run, count in parts:
            owner = cast("RunOwner", run.owner)
            topic, partition = owner.topic, owner.partition
            done = len(run.outcomes)
            ready = 0
            for record in run.records[done : done + (0 if run.stop else count)]:
                delivery = self._prepare(record, topic, partition, deadline_ms)
                if isinstance(delivery, Outcome):
                    if ready == 0:
                        run.outcomes.append(delivery)
                    # Behind others its turn comes when they have their answers.
                    break
                batch.deliveries.append(delivery)
                ready += 1
            if ready:
                run.started_ms = now_ms
                batch.runs.append((run, ready))
            else:
                batch.over.append(run)
        return batch


def _in_order(answers: Sequence[Outcome | None], run: Run) -> list[Outcome]:
    """The answers of one lane that count: up to the first that is not Ack."""
    took: list[Outcome] = []
    for at, answer in enumerate(answers):
        if answer is None:
            break
        took.append(answer)
        if type(answer.verdict) is not Ack:
            if any(later is not None and type(later.verdict) is Ack for later in answers[at + 1 :]):
                log.error(
                    "%s: the batch handler answered that a record of a lane failed and a later one of the "
                    "same lane was done (offset %d); a person decides. next: stop at the first that fails, "
                    "with BatchFailed(index, cause), or leave max_per_lane at 1",
                    run.owner,
                    run.records[len(run.outcomes) + at].offset,
                )
                took[-1] = OUT_OF_ORDER
            break
    return took
