"""The one table object: text for people, JSON and YAML for scripts, nothing that touches a terminal."""

from __future__ import annotations

import json

import pytest
import yaml

from laneway.cli.output import Format, Table, render

HOSTILE = "k\x1b[2Jey\r\n\x00\x9b31m\u202eevil\x7f"
TABLE = Table("keys", ("lane_key", "lag", "open"), [(HOSTILE, None, True), ("[red]b[/red]", 7, False)])


@pytest.mark.parametrize("form", list(Format))
def test_control_characters_of_a_key_never_reach_the_terminal(form: Format) -> None:
    """Escape sequences, C1 controls and bidirectional marks of a stranger's key come out escaped."""
    text = render(TABLE, form)
    assert all(char.isprintable() or char == "\n" for char in text)
    tame = Table("keys", TABLE.columns, [("a", None, True), ("b", 7, False)])
    assert text.count("\n") == render(tame, form).count("\n")


def test_scripts_get_the_key_back_whole() -> None:
    """Escaping in JSON and YAML loses nothing."""
    assert json.loads(render(TABLE, Format.JSON))["items"][0]["lane_key"] == HOSTILE
    assert yaml.safe_load(render(TABLE, Format.YAML))["items"][0]["lane_key"] == HOSTILE


def test_absent_is_a_dash_in_text_and_null_in_json() -> None:
    """What is not known is never shown as 0."""
    first = render(TABLE, Format.TABLE).splitlines()[1].split()
    assert first[-2:] == ["-", "yes"]
    assert json.loads(render(TABLE, Format.JSON))["items"][0]["lag"] is None


def test_markup_in_values_is_text() -> None:
    """A key that looks like rich's markup is printed as it is."""
    assert "[red]b[/red]" in render(TABLE, Format.TABLE)


def test_nothing_is_cut_and_nothing_coloured_away_from_a_terminal() -> None:
    """A pipe gets whole values on one line and no escape codes; headings are upper case."""
    long = "x" * 5000
    text = render(Table("k", ("a_b", "c"), [(long, long)]), Format.TABLE)
    assert text.splitlines()[1] == f"{long}  {long}"
    assert text.splitlines()[0].split() == ["A-B", "C"]
    assert "\x1b" not in text
    assert "\x1b[" in render(Table("k", ("a",), [("v",)]), Format.TABLE, terminal=True)
