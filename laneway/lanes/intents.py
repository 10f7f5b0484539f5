"""Intents: a handler starts only when the ledger knows that it may have (`on_unknown_outcome = "review"`).

A run that was judged waits here until the cycle with its intents is durable. So whatever process comes
after a crash finds each effect that may have happened, and no person is asked about one that cannot have.
"""

from __future__ import annotations

from collections import deque

from laneway.lanes.books import Books
from laneway.lanes.effect import EffectState, check_transition
from laneway.lanes.record import Record, effect_of
from laneway.lanes.run import Run
from laneway.lanes.work import Work


class Intents:
    """The runs of one board that wait for their intents to be durable, and those that may start."""

    __slots__ = ("_books", "_may_start", "_waiting")

    def __init__(self, books: Books) -> None:
        self._books = books
        self._waiting: deque[tuple[int, Run]] = deque()
        self._may_start: list[Run] = []

    def note(self, run: Run, now_ms: int) -> None:
        """Write down that these effects may be about to happen."""
        work = self._books.lanes.get(run.lane)
        assert work is not None
        for record in run.records:
            check_transition(record.effect_key, None if record.command else record.prior, EffectState.RUNNING)
            effect = effect_of(record, EffectState.RUNNING, now_ms, record.first_failed_ms)
            self._books.intend(record.effect_key, effect, work)
        self._waiting.append((self._books.cycle, run))

    def withdraw(self, record: Record, work: Work) -> None:
        """The handler never started: the effect is what it was before."""
        self._books.intend(record.effect_key, record.prior, work)

    def committed(self, cycle: int) -> None:
        """A cycle is durable: the runs whose intents it carried may start."""
        while self._waiting and self._waiting[0][0] <= cycle:
            self._may_start.append(self._waiting.popleft()[1])

    def take_started(self) -> list[Run]:
        """The runs that may start now; from here on they are the handlers'."""
        runs, self._may_start = self._may_start, []
        return runs

    def take_waiting(self) -> list[Run]:
        """The runs that no handler will get any more."""
        runs = self.take_started() + [run for _, run in self._waiting]
        self._waiting.clear()
        return runs
