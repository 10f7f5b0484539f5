"""What a preview has seen: counts by fixed words, and the first positions of each.

Everything here is bounded: positions and examples to a few of each kind, kinds to a hundred, keys and
effects to one short entry for each record that was read. Names of records are kept, never their content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from laneway.lanes.admission import Order, Place, place

MAX_KINDS: Final = 100
FURTHER: Final = "(further ones)"

Where = tuple[str, int, int]
"""Topic, partition, offset."""


def written(where: Where) -> str:
    """A position as people copy it, `invoices/3@17`."""
    return f"{where[0]}/{where[1]}@{where[2]}"


@dataclass(slots=True)
class Count:
    """How often something was seen, and where first."""

    records: int = 0
    first: list[Where] = field(default_factory=list)


class Tally:
    """Counts by name. At the bound of names further ones are counted together.

    Args:
        keep: how many of the lowest positions are kept for each name.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._counts: dict[tuple[str, str], Count] = {}

    def note(self, kind: str, name: str, where: Where) -> None:
        """One more."""
        entry = (kind, name)
        count = self._counts.get(entry)
        if count is None:
            if len(self._counts) >= MAX_KINDS:
                entry = (kind, FURTHER)
            count = self._counts.setdefault(entry, Count())
        count.records += 1
        first = count.first
        if len(first) < self._keep or where < first[-1]:
            first.append(where)
            first.sort()
            del first[self._keep :]

    def __iter__(self) -> Iterator[tuple[str, str, Count]]:
        """Kind, name and count, in the order first noted."""
        for (kind, name), count in self._counts.items():
            yield kind, name, count

    def of(self, kind: str, name: str | None = None) -> int:
        """How many of a kind, or of one name of it."""
        return sum(
            count.records
            for (other, which), count in self._counts.items()
            if other == kind and name in {None, which}
        )


@dataclass(frozen=True, slots=True, order=True)
class Example:
    """One record that a person may want to look at.

    Attributes:
        about: what is wrong with it, in words that name no content.
    """

    where: Where
    what: str
    key: str | None = None
    sequence: int | None = None
    effect_key: str = ""
    about: str = ""


class Examples:
    """The first few of each kind."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._kept: dict[str, list[Example]] = {}

    def note(self, example: Example) -> None:
        """Keep it, if it is one of the first of its kind."""
        kept = self._kept.get(example.what)
        if kept is None:
            if len(self._kept) >= MAX_KINDS:
                return
            kept = self._kept[example.what] = []
        if len(kept) < self._keep or example.where < kept[-1].where:
            kept.append(example)
            kept.sort(key=lambda each: each.where)
            del kept[self._keep :]

    def __iter__(self) -> Iterator[Example]:
        for kept in self._kept.values():
            yield from kept


class Numbers:
    """The numbers of one key as they lie in one partition, whatever order is configured.

    Attributes:
        first, last: the number it began with, and the highest.
        jumped: numbers that were not there when a higher one came.
        late: records that came behind a higher number, with an effect that was new.
    """

    __slots__ = ("first", "jumped", "last", "late", "records")

    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.records = 1
        self.jumped = 0
        self.late = 0

    def then(self, sequence: int, *, is_new: bool) -> None:
        """The next record of the key; a copy of an earlier effect says nothing of the order."""
        self.records += 1
        if not is_new:
            return
        # The rule of contiguous lanes, applied to a lane that nothing ever holds.
        where = place(Order.CONTIGUOUS, sequence, self.last, None)
        if where is Place.BELOW:
            self.late += 1
            return
        self.jumped += sequence - self.last - 1
        self.last = sequence

    @property
    def missing(self) -> int:
        """How many numbers between the first and the last did not come."""
        return max(0, self.jumped - self.late)


class Placement:
    """Which partition a name was seen in, and the names that were seen in more than one."""

    def __init__(self) -> None:
        self._partition_of: dict[str, int] = {}
        self.split: dict[str, set[int]] = {}

    def note(self, name: str, partition: int) -> bool:
        """Note it; whether this shows that it is in more than one partition, once for each name."""
        at = self._partition_of.setdefault(name, partition)
        if at == partition:
            return False
        known = self.split.get(name)
        if known is None:
            self.split[name] = {at, partition}
            return True
        known.add(partition)
        return False

    def __contains__(self, name: str) -> bool:
        return name in self._partition_of

    def __len__(self) -> int:
        return len(self._partition_of)
