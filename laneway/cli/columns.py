"""One description of what a command shows: a column list that makes the text table and the document.

People get ages and instants in words and only the columns they need; scripts get every field as a
number with its unit in the name. Both come from the same list, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from laneway.cli.output import Cell, Format, Table

T = TypeVar("T")

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"))
_LAST_INSTANT_MS = 253_402_300_799_999


# Without slots: a frozen class with them cannot be built as Column[Row](...).
@dataclass(frozen=True)
class Column(Generic[T]):
    """One field of a row.

    Attributes:
        name: of the field in JSON and YAML.
        of: its value there.
        heading: what text calls it; "" leaves it out there, None takes `name`.
        text: its value in text, where that differs.
    """

    name: str
    of: Callable[[T], Cell]
    heading: str | None = None
    text: Callable[[T], Cell] | None = None

    @property
    def title(self) -> str:
        """What text calls it."""
        return self.heading or self.name

    def shown(self, row: T) -> Cell:
        """Its value in text."""
        return (self.text or self.of)(row)


def listed(
    kind: str,
    columns: Sequence[Column[T]],
    rows: Sequence[T],
    form: Format,
    facts: Mapping[str, Cell] | None = None,
) -> Table:
    """Many things, one a line."""
    if form is Format.TABLE:
        seen = [column for column in columns if column.heading != ""]
        lines = [[column.shown(row) for column in seen] for row in rows]
        return Table(kind, tuple(column.title for column in seen), lines)
    names = tuple(column.name for column in columns)
    return Table(kind, names, [[column.of(row) for column in columns] for row in rows], facts=facts or {})


def detailed(
    kind: str,
    columns: Sequence[Column[T]],
    rows: Sequence[T],
    form: Format,
    facts: Mapping[str, Cell] | None = None,
) -> Table:
    """One thing, or the few that answer to one name, with every field; in text a field a line."""
    if form is not Format.TABLE:
        return listed(kind, columns, rows, form, facts)
    lines: list[Sequence[Cell]] = []
    for row in rows:
        if lines:
            lines.append(("", ""))
        lines += [
            (column.title.replace("_", "-"), column.shown(row)) for column in columns if column.heading != ""
        ]
    return Table(kind, ("field", "value"), lines)


def counted(count: int, noun: str) -> str:
    """A number with its noun, `1 key` and `2 keys`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def verb(count: int, one: str, many: str) -> str:
    """The form that agrees with a number: `1 fits` and `2 fit`."""
    return one if count == 1 else many


def age_text(age_ms: int | None) -> str | None:
    """A span in its two largest units, `3m12s`; less than a second is `0s`."""
    if age_ms is None:
        return None
    left = max(0, age_ms)
    for index, (unit_ms, name) in enumerate(_UNITS):
        if left >= unit_ms:
            text = f"{left // unit_ms}{name}"
            if index + 1 < len(_UNITS):
                smaller_ms, smaller = _UNITS[index + 1]
                text += f"{left % unit_ms // smaller_ms:02d}{smaller}"
            return text
    return "0s"


def instant_text(at_ms: int | None) -> str | None:
    """A point in time in UTC, to the second; None for none, and for what no calendar has."""
    if not at_ms or not 0 < at_ms <= _LAST_INSTANT_MS:
        return None
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
