"""The page of the command line is what the command line says of itself."""

from __future__ import annotations

import shlex

import pytest
from typer.models import OptionInfo

from docs.build_cli import PAGE, Command, commands, page
from laneway.cli.main import main

ALL = list(commands())


def test_the_page_is_what_the_commands_say() -> None:
    """docs/cli.md is up to date; `python docs/build_cli.py` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_nothing_is_without_a_meaning() -> None:
    """Every command says what it does, every option and argument what it is for."""
    assert len(ALL) > 20
    assert [each.path for each in ALL if len(each.help.split()) < 5] == []
    found = [(each.path, parameter) for each in ALL for parameter in each.parameters()]
    assert [(path, parameter.name) for path, parameter in found if not parameter.info.help] == []


@pytest.mark.parametrize("command", ALL, ids=lambda command: " ".join(command.path))
def test_an_example_can_be_copied(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """It calls its own command, and with options that exist: --help behind it is reached."""
    words = shlex.split(command.example)
    assert tuple(words[: len(command.path)]) == command.path
    assert main([*words[1:], "--help"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ALL, ids=lambda command: " ".join(command.path))
def test_every_option_of_help_stands_on_the_page(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """What typer makes of a signature and what the page makes of it are the same options."""
    assert main([*command.path[1:], "--help"]) == 0
    out = capsys.readouterr().out
    section = page().partition(f"## {' '.join(command.path)}\n")[2].partition("\n## ")[0]
    shown = {
        word.strip(",")
        for line in out.partition("Options:")[2].splitlines()
        if line.startswith("  -")
        for word in line.split("  ")[1].split()
        if word.startswith("-")
    }
    written = {
        word.strip("`,|")
        for line in section.splitlines()
        if line.startswith("| `-")
        for word in line.split(" | ")[0].split()
        if word.startswith("`")
    }
    assert written == shown - {"--help"}
    assert [each for each in command.parameters() if isinstance(each.info, OptionInfo)]
