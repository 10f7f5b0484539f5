"""One list of columns makes the table and the document; times in words and in numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from laneway.cli import demo, offsets
from laneway.cli.columns import Column, age_text, counted, detailed, instant_text, listed, verb
from laneway.cli.output import Format, render
from laneway.cli.story.stage import Promise
from laneway.consumer.inspection.offsets import Standing
from laneway.consumer.kafka.cluster import PartitionOffsets
from laneway.consumer.partition import CommitNote


@dataclass(frozen=True, slots=True)
class Row:
    """Something to show."""

    name: str
    age_ms: int | None


COLUMNS = (
    Column[Row]("name", lambda row: row.name),
    Column[Row]("age_ms", lambda row: row.age_ms, "age", lambda row: age_text(row.age_ms)),
    Column[Row]("double_ms", lambda row: None if row.age_ms is None else 2 * row.age_ms, ""),
)
ROWS = [Row("a", 61_000), Row("b", None)]


def test_people_get_words_and_the_columns_they_need() -> None:
    """A column with an empty heading is not in the table; a time is an age."""
    text = render(listed("rows", COLUMNS, ROWS, Format.TABLE), Format.TABLE)
    assert [line.split() for line in text.splitlines()] == [["NAME", "AGE"], ["a", "1m01s"], ["b", "-"]]


def test_scripts_get_every_field_as_a_number() -> None:
    """The document has all columns under their names, and the facts of the whole."""
    document = json.loads(render(listed("rows", COLUMNS, ROWS, Format.JSON, {"group": "g"}), Format.JSON))
    assert document == {
        "schema": 1,
        "kind": "rows",
        "group": "g",
        "items": [
            {"name": "a", "age_ms": 61_000, "double_ms": 122_000},
            {"name": "b", "age_ms": None, "double_ms": None},
        ],
    }


def test_one_thing_stands_upright() -> None:
    """In text a field a line, several things apart; in a document the same items as a list."""
    text = render(detailed("row", COLUMNS, ROWS, Format.TABLE), Format.TABLE)
    lines = [line.split() for line in text.splitlines()]
    assert lines == [["FIELD", "VALUE"], ["name", "a"], ["age", "1m01s"], [], ["name", "b"], ["age", "-"]]
    assert detailed("row", COLUMNS, ROWS, Format.JSON) == listed("row", COLUMNS, ROWS, Format.JSON)


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [
        (None, None),
        (-5, "0s"),
        (999, "0s"),
        (1000, "1s"),
        (59_999, "59s"),
        (60_000, "1m00s"),
        (3_600_000 + 5 * 60_000, "1h05m"),
        (90_000_000, "1d01h"),
        (400 * 86_400_000, "400d00h"),
    ],
)
def test_an_age_in_its_two_largest_units(age_ms: int | None, text: str | None) -> None:
    """Short enough for a column, and never negative when two clocks disagree."""
    assert age_text(age_ms) == text


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [(None, None), (0, None), (-1, None), (10**18, None), (1_700_000_000_123, "2023-11-14T22:13:20Z")],
)
def test_an_instant_in_utc(at_ms: int | None, text: str | None) -> None:
    """A number from a stranger's header that no calendar has is shown as absent."""
    assert instant_text(at_ms) == text


def test_open_cases_stand_in_the_table_of_offsets() -> None:
    """A partition whose keys are held says so to a person, lag or not; scripts read open_cases."""
    note = CommitNote(parked=7, open_cases=3)
    row = Standing(PartitionOffsets("invoices", 0, 4, 0, 10, ""), note, None, "", None)
    shown = listed("offsets.show", offsets._COLUMNS, [row], Format.TABLE)
    cells = dict(zip(shown.columns, shown.rows[0], strict=True))
    assert (cells["parked"], cells["blocked_by"]) == (7, "3 open cases")
    assert listed("offsets.show", offsets._COLUMNS, [row], Format.JSON).columns.count("open_cases") == 1
    paused = replace(row, blocked_by="paused by ann: moving house")
    assert offsets._blocked_by(paused) == "paused by ann: moving house; 3 open cases"
    assert offsets._blocked_by(replace(row, blocked_by="no member owns it; 3 open cases")) == (
        "no member owns it; 3 open cases"
    )


def test_a_promise_is_told_behind_its_scenario() -> None:
    """The first column of the demo's table says which part of the story a promise belongs to."""
    promise = Promise("homework.tens", "a promise", "9", "9", True, "homework-tens")
    shown = listed("demo", demo._COLUMNS, [promise], Format.TABLE)
    assert (shown.columns[0], shown.rows[0][0]) == ("scenario", "homework-tens")


def test_a_number_agrees_with_its_noun() -> None:
    """One thing is told of as one."""
    assert [counted(count, "finding") for count in (0, 1, 2)] == ["0 findings", "1 finding", "2 findings"]
    assert [verb(count, "fits", "fit") for count in (0, 1, 2)] == ["fit", "fits", "fit"]
