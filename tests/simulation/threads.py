"""The handlers' threads, which move when the scheduler says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from laneway.consumer.partition import Partition, State
from laneway.lanes.record import Record
from laneway.lanes.run import Run
from laneway.lanes.verdict import Ack, Outcome
from tests.invariants import Broken
from tests.outside import HandlerRun
from tests.simulation.process import Process


class Threads:
    """The handlers' threads: a twin of `workers.Workers` whose threads move when the scheduler says so.

    With `unknown` it is one of `RunLoop`: what is over its time is cancelled, and that is its outcome.
    """

    def __init__(
        self,
        process: Callable[[Record, str, int, int], Outcome],
        *,
        threads: int,
        timeout_ms: int,
        host: Process,
        unknown: Outcome | None = None,
    ) -> None:
        self._process = process
        self._timeout_ms = timeout_ms
        self._unknown = unknown
        self._host = host
        self._waiting: deque[Run] = deque()
        self._done: deque[Run] = deque()
        self._slots = [Slot() for _ in range(threads)]
        self.in_hand = 0
        self._stopping = False

    # -- the owner's side

    def submit(self, runs: list[Run]) -> None:
        """Hand over runs."""
        self.in_hand += len(runs)
        self._waiting.extend(runs)

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
        back = [run for run in self._waiting if run.stop]
        self._done.extend(back)
        self._waiting = deque(run for run in self._waiting if not run.stop)

    def reclaim(self, now_ms: int) -> int:
        """Nothing waits behind a thread here."""
        return 0

    def nudge(self) -> None:
        """Nobody sleeps here."""

    def overdue(self, now_ms: int) -> list[Run]:
        """Runs whose record takes too long."""
        steady_ms = self._host.world.clock.steady_ms
        return [
            slot.run
            for slot in self._slots
            if slot.run is not None and slot.act is not None and steady_ms - slot.began_ms > self._timeout_ms
        ]

    @property
    def capacity(self) -> int:
        """How many records can be in handlers at once."""
        return len(self._slots)

    @property
    def busy(self) -> int:
        """Handlers that are under way."""
        return sum(slot.act is not None for slot in self._slots)

    def stop(self, timeout_s: float) -> bool:
        """Start nothing more."""
        self._stopping = True
        return all(slot.act is None for slot in self._slots)

    # -- the scheduler's side

    def can_move(self) -> list[Slot]:
        """Threads that have something to do now."""
        if not self.in_hand:
            return []
        now_ms = self._host.world.clock.steady_ms
        waiting = bool(self._waiting)
        return [
            slot
            for slot in self._slots
            if (slot.act is not None and now_ms >= slot.until_ms)
            or (slot.act is None and (slot.run is not None or waiting))
        ]

    def next_ms(self) -> int | None:
        """When the first busy thread will have its answer."""
        return min((slot.until_ms for slot in self._slots if slot.act is not None), default=None)

    def move(self, slot: Any) -> None:
        """One thread goes on to its next act: begin a record, or end it, or take another run."""
        if slot.act is not None:
            self._answer(slot)
            return
        if slot.run is None:
            slot.run = self._waiting.popleft()
        run = slot.run
        over = bool(run.outcomes) and not isinstance(run.outcomes[-1].verdict, Ack)
        if over or run.stop or self._stopping or len(run.outcomes) == len(run.records):
            slot.run = None
            self._done.append(run)
        else:
            self._begin(slot, run)

    def _begin(self, slot: Slot, run: Run) -> None:
        world, clock = self._host.world, self._host.world.clock
        record = run.records[len(run.outcomes)]
        partition = run.owner
        assert isinstance(partition, Partition)
        if partition.state is State.CLOSED:
            raise Broken(7, f"{record} starts in a partition that has gone", partition=partition.partition)
        slot.act, duration_ms = world.watch.begins(self._host, partition, run, record)
        slot.began_ms = clock.steady_ms
        slot.until_ms = clock.steady_ms + duration_ms
        deadline_ms = clock.now_ms + self._timeout_ms
        slot.outcome = self._process(record, partition.topic, partition.partition, deadline_ms)
        slot.is_cut = self._unknown is not None and duration_ms > self._timeout_ms
        if slot.is_cut:
            slot.outcome, slot.until_ms = self._unknown, clock.steady_ms + self._timeout_ms

    def _answer(self, slot: Slot) -> None:
        act, outcome, run = slot.act, slot.outcome, slot.run
        assert act is not None
        assert outcome is not None
        assert run is not None
        run.outcomes.append(outcome)
        watch = self._host.world.watch
        if slot.is_cut:
            watch.cut_off(act)
        else:
            watch.ends(act, outcome)
        slot.act = slot.outcome = None


class Slot:
    """One thread."""

    __slots__ = ("act", "began_ms", "is_cut", "outcome", "run", "until_ms")

    def __init__(self) -> None:
        self.run: Run | None = None
        self.act: HandlerRun | None = None
        self.outcome: Outcome | None = None
        self.began_ms = 0
        self.until_ms = 0
        self.is_cut = False
