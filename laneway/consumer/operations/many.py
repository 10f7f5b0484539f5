"""Many commands, one after the other: no faster than asked, never more than a few without an answer.

Memory follows the window, not the number of cases. Whoever is killed in the middle runs it again: a case
takes one command, and what was resolved meanwhile is not asked for any more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from laneway.consumer.operations.commands import Commands
from laneway.lanes.command import Command
from laneway.lanes.forward import CommandAnswer

WINDOW: Final = 200
"""Commands without an answer, at most."""

KEPT: Final = 100
"""Answers that a person should look at and that are kept, at most."""

_TOLD_S: Final = 2.0


@dataclass
class Tally:
    """How far it came.

    Attributes:
        ended_in_case: applied ones whose delivery ended in a new case.
        outcomes: how many deliveries came to what.
        notable: the first answers that are refusals, or name a new case.
        stopped: so many ended in a new case that no more were sent.
    """

    sent: int = 0
    applied: int = 0
    refused: int = 0
    ended_in_case: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    notable: list[CommandAnswer] = field(default_factory=list)
    stopped: bool = False

    @property
    def unanswered(self) -> int:
        """Queued, and nobody has answered yet."""
        return self.sent - self.applied - self.refused

    def take(self, answer: CommandAnswer) -> None:
        """Count an answer."""
        if answer.why:
            self.refused += 1
        else:
            self.applied += 1
            self.ended_in_case += bool(answer.next_case)
            if answer.outcome:
                self.outcomes[answer.outcome] += 1
        if (answer.why or answer.next_case) and len(self.notable) < KEPT:
            self.notable.append(answer)


def send_all(
    commands: Commands,
    wanted: Iterable[Command],
    *,
    rate: float,
    wait_s: float,
    most_cases: int | None = None,
    told: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Send them all and hear their answers; stop when none has come for `wait_s`.

    Args:
        rate: at most so many a second.
        most_cases: send no more once so many have ended in a new case: a bad release is not a thousand of
            them, and nothing else bounds those that people ask for.
        told: hears of the progress every few seconds.

    Raises:
        UnreachableError: the brokers do not answer, or do not let us.
    """
    tally = Tally()
    source = iter(wanted)
    began_s = told_s = heard_s = time.monotonic()
    more = True
    while more or commands.sent:
        now_s = time.monotonic()
        due = int((now_s - began_s) * rate) + 1 - tally.sent
        batch = list(islice(source, max(0, min(due, WINDOW - len(commands.sent))))) if more else []
        if batch:
            if not commands.sent:
                heard_s = now_s
            commands.send(batch)
            tally.sent += len(batch)
        elif due > 0 and len(commands.sent) < WINDOW:
            more = False
        if not commands.sent and more:
            time.sleep(min(1 / rate, _TOLD_S))
            continue
        for answer in commands.heard(min(0.1, 1 / rate)):
            tally.take(answer)
            heard_s = time.monotonic()
        if more and most_cases is not None and tally.ended_in_case >= most_cases:
            more, tally.stopped = False, True
        if commands.sent and time.monotonic() - heard_s > wait_s:
            break
        if time.monotonic() - told_s >= _TOLD_S:
            told_s = time.monotonic()
            told(tally)
    return tally
