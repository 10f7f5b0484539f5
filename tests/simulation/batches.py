"""Batch handlers, and async ones, in the simulation: the real assembly of batches, moved by the scheduler.

What a batch handler does with each of its deliveries is decided by their fates, one after another as they
stand in the list; how it tells of one that did not succeed is drawn: with `BatchFailed`, with an answer for
it alone, or with a plain exception that leaves all outcomes unknown.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from zlib import crc32

import laneway
import laneway.consumer.running.pool as pool_module
from laneway.consumer.partition import Partition, State
from laneway.consumer.running.batching import Batch, Batching
from laneway.consumer.settings.model import Settings
from laneway.delivery import Delivery
from laneway.handlers import BatchLimits
from laneway.lanes.run import Run
from laneway.lanes.verdict import Outcome
from laneway.processing import Processor
from tests.invariants import Broken
from tests.outside import HandlerRun
from tests.simulation.process import Process
from tests.simulation.threads import Threads

if TYPE_CHECKING:
    from tests.simulation.watch import Watch

STYLES = ("answer", "answer", "failed", "failed", "failed", "plain")


@dataclass(slots=True, eq=False)
class Call:
    """One call of a batch handler, as the outside world sees it.

    Attributes:
        begun: what it came to, in order: run, place of the record in it, and the act outside.
        is_plain: it ended with an exception that says nothing of any of them.
    """

    process: Process
    where: dict[int, tuple[Partition, Run, int]]
    begun: list[tuple[Run, int, HandlerRun]] = field(default_factory=list)
    duration_ms: int = 0
    is_plain: bool = False


class Batches:
    """The threads, or the loop, of a batch handler: a twin of `BatchThreads` and `BatchLoop`.

    Args:
        cuts: a call over its time is cancelled, as on a loop; else it is overdue, as in a thread.
    """

    def __init__(
        self,
        processor: Processor,
        limits: BatchLimits,
        unknown: Outcome,
        *,
        threads: int,
        timeout_ms: int,
        cuts: bool,
        host: Process,
    ) -> None:
        self._processor = processor
        self._unknown = unknown
        self._timeout_ms = timeout_ms
        self._cuts = cuts
        self._host = host
        self._batching = Batching(
            limits, processor.prepare, timeout_ms=timeout_ms, clock=lambda: host.world.clock.steady_ms
        )
        self._done: deque[Run] = deque()
        self._slots = [BatchSlot() for _ in range(threads)]
        self.in_hand = 0
        self._stopping = False

    # -- the owner's side

    def submit(self, runs: list[Run]) -> None:
        """Hand over runs."""
        self.in_hand += len(runs)
        self._batching.put(runs)

    def finished(self) -> list[Run]:
        """The runs that ended."""
        runs = list(self._done)
        self._done.clear()
        self.in_hand -= len(runs)
        return runs

    def wait(self, timeout_s: float) -> None:
        """Let the world go on."""
        self._host.wait()

    @property
    def fed_s(self) -> float:
        """To rest costs nothing and brings nothing where the clock is a number."""
        return 0.0

    def recall(self) -> None:
        """Give back what was told to stop and not begun."""
        self._done.extend(self._batching.take_back(only_stopped=True))

    def reclaim(self, now_ms: int) -> int:
        """Nothing waits behind a thread here."""
        return 0

    def nudge(self) -> None:
        """Nobody sleeps here."""

    @property
    def capacity(self) -> int:
        """How many records can be in handlers at once."""
        return len(self._slots) * self._batching.limits.max_size

    @property
    def busy(self) -> int:
        """Batches that are under way."""
        return sum(slot.batch is not None for slot in self._slots)

    def overdue(self, now_ms: int) -> list[Run]:
        """Runs whose batch takes too long."""
        steady_ms = self._host.world.clock.steady_ms
        return [
            run
            for slot in self._slots
            if slot.batch is not None and steady_ms - slot.began_ms > self._timeout_ms
            for run, _ in slot.batch.runs
        ]

    def stop(self, timeout_s: float) -> bool:
        """Start nothing more."""
        self._stopping = True
        return not self.busy

    # -- the scheduler's side

    def can_move(self) -> list[BatchSlot]:
        """Slots that have something to do now."""
        now_ms = self._host.world.clock.steady_ms
        is_time = not self._stopping and self._batching.wait_ms() == 0
        return [
            slot for slot in self._slots if (now_ms >= slot.until_ms if slot.batch is not None else is_time)
        ]

    def next_ms(self) -> int | None:
        """When the first call will have its answers, or a batch begins that is not full."""
        times = [slot.until_ms for slot in self._slots if slot.batch is not None]
        wait_ms = self._batching.wait_ms()
        if wait_ms is not None and len(times) < len(self._slots):
            times.append(self._host.world.clock.steady_ms + wait_ms)
        return min(times, default=None)

    def move(self, slot: Any) -> None:
        """One slot begins a batch, or ends it."""
        if slot.batch is not None:
            self._answer(slot, slot.batch)
            return
        batch = self._batching.take()
        if batch is not None:
            self._begin(slot, batch)

    def _begin(self, slot: BatchSlot, batch: Batch) -> None:
        clock = self._host.world.clock
        where: dict[int, tuple[Partition, Run, int]] = {}
        for run, count in batch.runs:
            partition = run.owner
            assert isinstance(partition, Partition)
            if partition.state is State.CLOSED:
                raise Broken(
                    7, f"{run.lane} starts in a partition that has gone", partition=partition.partition
                )
            done = len(run.outcomes)
            for at in range(done, done + count):
                where[id(run.records[at])] = partition, run, at
        slot.batch, slot.call = batch, Call(self._host, where)
        slot.began_ms = slot.until_ms = clock.steady_ms
        slot.answers = []
        if batch.deliveries:
            watch = self._host.world.watch
            watch.call = slot.call
            slot.answers = self._process(batch)
            duration_ms = slot.call.duration_ms
            if self._cuts and duration_ms > self._timeout_ms:
                slot.answers = [self._unknown] * len(batch.deliveries)
                slot.call.is_plain = True
                duration_ms = self._timeout_ms
            slot.until_ms += duration_ms

    def _process(self, batch: Batch) -> list[Outcome | None]:
        if not self._processor.handler.is_async:
            return self._processor.process_batch(batch.deliveries, self._unknown)
        answers: list[Outcome | None] = at_once(
            self._processor.process_batch_async(batch.deliveries, self._unknown)
        )
        return answers

    def _answer(self, slot: BatchSlot, batch: Batch) -> None:
        call, watch = slot.call, self._host.world.watch
        assert call is not None
        over, going_on = batch.end(slot.answers)
        for run, at, act in call.begun:
            outcome = run.outcomes[at] if at < len(run.outcomes) else None
            watch.ends_in_batch(act, outcome, is_known=not call.is_plain)
        if self._stopping:
            over += going_on
        else:
            self._batching.put(going_on)
        self._done.extend(over)
        slot.batch = slot.call = None


class BatchSlot:
    """A thread, or a task."""

    __slots__ = ("answers", "batch", "began_ms", "call", "until_ms")

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.call: Call | None = None
        self.answers: list[Outcome | None] = []
        self.began_ms = 0
        self.until_ms = 0


def at_once(coroutine: Any) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


def handle_batch(watch: Watch, deliveries: list[Delivery[Any]]) -> list[Any]:
    """What the batch handler does: one after another, as a handler with a loop would."""
    call = watch.call
    answers: list[Any] = []
    lanes = [call.where[id(delivery._record)][1] for delivery in deliveries]
    for number, delivery in enumerate(deliveries):
        partition, run, at = call.where[id(delivery._record)]
        if lanes[:number].count(run):
            # It has the next of a lane in hand, so it is through with the one before.
            watch.steps_on(call.begun[-1][2])
        act, duration_ms = watch.begins(call.process, partition, run, delivery._record)
        call.begun.append((run, at, act))
        call.duration_ms = max(call.duration_ms, duration_ms)
        try:
            answers.append(watch.answer(delivery))
        except Exception as error:
            style = STYLES[crc32(f"{delivery.effect_key} {delivery.attempt}".encode()) % len(STYLES)]
            if style == "answer" and len(set(lanes)) == len(lanes):
                answers.append(error)
            elif style == "plain" and not isinstance(error, laneway.Unavailable):
                call.is_plain = True
                raise
            else:
                raise laneway.BatchFailed(number, error) from None
    return answers


def pool_of(processor: Processor, settings: Settings, host: Process) -> Threads | Batches:
    """The twin of what `pool_for` builds."""
    lanes, config = settings.lanes, host.world.plan.config
    unknown = pool_module.unknown_of(settings)
    timeout_ms, is_async = lanes.handler_timeout_ms, processor.handler.is_async
    threads = lanes.max_running if is_async else lanes.workers
    if processor.handler.batch is None:
        if not is_async:
            return Threads(processor.process, threads=threads, timeout_ms=timeout_ms, host=host)
        return Threads(
            lambda *given: at_once(processor.process_async(*given)),
            threads=threads,
            timeout_ms=timeout_ms,
            host=host,
            unknown=unknown,
        )
    limits = BatchLimits(config.batch_size, config.batch_wait_ms, config.per_lane)
    return Batches(
        processor, limits, unknown, threads=threads, timeout_ms=timeout_ms, cuts=is_async, host=host
    )
