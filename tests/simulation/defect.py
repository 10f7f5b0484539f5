"""One rule switched off: what a planted defect is, and how it is planted for a while.

The defects themselves are in `defects` and `changelog_defects`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import getattr_static

from tests.simulation.planting import Change


@dataclass(frozen=True, slots=True)
class Defect:
    """One rule switched off.

    Attributes:
        name: for the command line and the table.
        rule: where the rule stands.
        what: the defect in one sentence.
        changes: made anew for each planting.
        within: seeds in which it is caught at the latest.
        breaks: the invariants that may notice it first.
        start: the seed to begin with; later for the rare ones, to be quick.
        changelog: it is a rule of `changelog`, so only histories of that are looked at, and counted.
    """

    name: str
    rule: str
    what: str
    changes: Callable[[], Sequence[Change]]
    within: int
    breaks: frozenset[int]
    start: int = 0
    changelog: bool = False


@contextmanager
def planted(defect: Defect) -> Iterator[None]:
    """Switch a rule off for a while."""
    undo: list[Change] = []
    try:
        for owner, name, value in defect.changes():
            if isinstance(owner, dict):
                undo.append((owner, name, owner[name]))
                owner[name] = value
            else:
                # As it stands there: a static method must not come back as a plain one.
                undo.append((owner, name, getattr_static(owner, name)))
                setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(undo):
            if isinstance(owner, dict):
                owner[name] = value
            else:
                setattr(owner, name, value)
