"""Many commands: no faster than asked, few without an answer, and an end when nobody answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

import msgspec
import pytest

from laneway.consumer.operations.commands import Commands
from laneway.consumer.operations.many import KEPT, WINDOW, Tally, send_all
from laneway.lanes.command import COMMAND_FORMAT, Command
from laneway.lanes.forward import CommandAnswer


class Owner:
    """Stands for the topics and the owner: answers the oldest command after `lag` more questions.

    Attributes:
        most_waiting: the most commands that were without an answer at any time.
        dies_after: answers nothing beyond so many.
    """

    def __init__(
        self, *, refuses: int = 0, dies_after: int | None = None, at_once: int = 50, next_case: str = ""
    ) -> None:
        self._next_case = next_case
        self.sent: dict[str, int | None] = {}
        self.got: list[Command] = []
        self.most_waiting = 0
        self._refuses = refuses
        self._left = dies_after
        self._at_once = at_once

    def send(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self.sent[command.command_id] = len(self.got)
            self.got.append(command)
        self.most_waiting = max(self.most_waiting, len(self.sent))

    def heard(self, timeout_s: float) -> list[CommandAnswer]:
        waiting = list(self.sent)[: self._at_once if self._left is None else min(self._left, self._at_once)]
        if not waiting:
            time.sleep(timeout_s)
        if self._left is not None:
            self._left -= len(waiting)
        return [self._answer(command_id) for command_id in waiting]

    def _answer(self, command_id: str) -> CommandAnswer:
        del self.sent[command_id]
        refused = self._refuses > 0
        self._refuses -= refused
        event, why = ("refused", "no") if refused else ("applied", "")
        answer = CommandAnswer(1, event, command_id, "skip", "a", "r", "c", "k", "g", "t", 0, 0, 1, why)
        return msgspec.structs.replace(answer, next_case=self._next_case)


def commands(count: int) -> list[Command]:
    """So many commands."""
    return [
        Command(COMMAND_FORMAT, f"c{n}", "skip", "a", "r", "g", "t", 0, "k", "case") for n in range(count)
    ]


def through(
    owner: Owner, count: int, *, rate: float = 1e9, wait_s: float = 0.2, most_cases: int | None = None
) -> Tally:
    """Send so many through it."""
    return send_all(cast("Commands", owner), commands(count), rate=rate, wait_s=wait_s, most_cases=most_cases)


def test_all_are_sent_once_in_order_and_counted() -> None:
    """Every command is sent once, in order; applied and refused add up; the window is never passed."""
    owner = Owner(refuses=KEPT + 7)
    tally = through(owner, 5 * WINDOW)
    assert [each.command_id for each in owner.got] == [f"c{n}" for n in range(5 * WINDOW)]
    assert (tally.applied, tally.refused, tally.unanswered) == (5 * WINDOW - KEPT - 7, KEPT + 7, 0)
    assert owner.most_waiting == WINDOW
    assert len(tally.notable) == KEPT


def test_it_ends_when_nobody_answers() -> None:
    """An owner that falls silent: no more is queued than the window, and what has no answer is counted."""
    owner = Owner(dies_after=30)
    tally = through(owner, 10 * WINDOW)
    assert (tally.applied, tally.unanswered) == (30, WINDOW)
    assert len(owner.got) == 30 + WINDOW


def test_it_is_no_faster_than_asked() -> None:
    """Thirty at a hundred a second take no less than the time between the first and the last."""
    began_s = time.monotonic()
    assert through(Owner(), 30, rate=100).applied == 30
    assert time.monotonic() - began_s >= 0.28


def test_it_stops_when_they_end_in_cases() -> None:
    """A handler that is broken for all: no more than asked for and what is on its way become cases."""
    owner = Owner(next_case="case", at_once=10)
    tally = through(owner, 10 * WINDOW, most_cases=100)
    assert tally.stopped
    assert (tally.ended_in_case, tally.unanswered) == (tally.sent, 0)
    assert tally.sent <= 100 + WINDOW
    assert not through(Owner(next_case="case"), 99, most_cases=100).stopped
    assert through(Owner(), 10 * WINDOW, most_cases=100).sent == 10 * WINDOW


@pytest.mark.parametrize("count", [0, 1])
def test_none_and_one(count: int) -> None:
    """An empty list ends at once, one command is sent and answered."""
    assert through(Owner(), count).applied == count


def test_a_new_case_is_told() -> None:
    """A delivery that ended in a new case counts as applied, and is among those to look at."""
    tally = Tally(sent=1)
    answer = CommandAnswer(1, "applied", "c", "replay", "a", "r", "c", "k", "g", "t", 0, 0, 1)
    tally.take(msgspec.structs.replace(answer, outcome="in_review", next_case="c2"))
    assert (tally.applied, tally.ended_in_case, tally.unanswered) == (1, 1, 0)
    assert [each.next_case for each in tally.notable] == ["c2"]
