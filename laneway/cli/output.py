"""What a command prints: one table object, as text, JSON or YAML.

Only data goes to standard output; sentences for the reader go to standard error through `say`.
Values come from topics and keys that strangers wrote, so no control character reaches a terminal.
JSON and YAML carry `schema`, a number that changes only when a field changes its meaning or goes.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import yaml
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

SCHEMA: Final = 1
_WIDE: Final = 1_000_000

Cell = str | int | float | bool | None | Sequence[str] | Sequence[int]


class Format(StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one kind, and perhaps lists that belong to them.

    Attributes:
        kind: names the document in JSON and YAML, `topics.plan`.
        columns: field names, `log_start`; text shows them as LOG-START.
        rows: one value per column; None is `-` in text and null elsewhere.
        lists: more lines under a title, such as ACLs.
        facts: single values about the whole, shown in JSON and YAML only.
        items: what JSON and YAML call the rows.
        tables: further rows of other kinds under a title.
    """

    kind: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    facts: Mapping[str, Cell] = field(default_factory=dict)
    items: str = "items"
    tables: Mapping[str, Table] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """The same as plain values for JSON and YAML."""
        tables = {name: table.plain_rows() for name, table in self.tables.items()}
        lists = {name: list(lines) for name, lines in self.lists.items()}
        facts = {name: _plain(cell) for name, cell in self.facts.items()}
        rows = {self.items: self.plain_rows(), **tables}
        return {"schema": SCHEMA, "kind": self.kind, **facts, **rows, **lists}

    def plain_rows(self) -> list[dict[str, object]]:
        """The rows as plain values by column."""
        return [dict(zip(self.columns, (_plain(cell) for cell in row), strict=True)) for row in self.rows]


def emit(table: Table, form: Format) -> None:
    """Write the table to standard output."""
    sys.stdout.write(render(table, form, terminal=sys.stdout.isatty()))
    sys.stdout.flush()


def render(table: Table, form: Format, *, terminal: bool = False) -> str:
    """The table as text of this format; the terminal's width only for a terminal, and there bold titles.

    With NO_COLOR in the environment (https://no-color.org) a terminal gets plain text too.
    """
    if form is Format.JSON:
        # ASCII only: bidirectional marks and C1 controls act on a terminal as well.
        return json.dumps(table.document(), indent=2, ensure_ascii=True).replace("\x7f", "\\u007f") + "\n"
    if form is Format.YAML:
        return str(yaml.safe_dump(table.document(), sort_keys=False, allow_unicode=False, width=_WIDE))
    return _text(table, terminal=terminal)


def say(sentence: str) -> None:
    """One sentence for the reader, on standard error."""
    sys.stderr.write("\n".join(escaped(line) for line in sentence.split("\n")) + "\n")
    sys.stderr.flush()


def escaped(text: str) -> str:
    """Text with everything that is not printable written as an escape, `\\x1b` or `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _plain(cell: Cell) -> object:
    if cell is None or isinstance(cell, str | int | float):
        return cell
    return list(cell)


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return escaped(cell)
    if isinstance(cell, int | float):
        return str(cell)
    return ",".join(escaped(str(item)) for item in cell) or "-"


def _text(table: Table, *, terminal: bool) -> str:
    target = io.StringIO()
    # Away from a terminal nothing is ever cut or folded: scripts read whole values.
    console = Console(
        file=target,
        force_terminal=terminal,
        width=None if terminal else _WIDE,
        highlight=False,
        markup=False,
        emoji=False,
    )
    bold = "bold" if terminal and not os.environ.get("NO_COLOR") else ""
    console.print(_grid(table, bold, terminal=terminal))
    for name, inner in table.tables.items():
        if inner.rows:
            console.print(_title(name, bold))
            console.print(_grid(inner, bold, terminal=terminal))
    for name, lines in table.lists.items():
        console.print(_title(name, bold))
        for line in lines:
            console.print(Text(escaped(line)), soft_wrap=True)
    return "\n".join(line.rstrip() for line in target.getvalue().splitlines()) + "\n"


def _title(name: str, style: str) -> Text:
    return Text(f"\n{name.replace('_', '-').upper()}", style=style)


def _grid(table: Table, style: str, *, terminal: bool) -> RichTable:
    grid = RichTable(box=None, pad_edge=False, header_style=style)
    for index, column in enumerate(table.columns):
        numeric = bool(table.rows) and all(_is_number(row[index]) for row in table.rows)
        grid.add_column(
            column.replace("_", "-").upper(),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=not terminal,
        )
    for row in table.rows:
        grid.add_row(*(Text(_shown(cell)) for cell in row))
    return grid


def _is_number(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))
