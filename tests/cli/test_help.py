"""Every command explains itself."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer

from laneway.cli import offsets
from laneway.cli.commands import app
from laneway.cli.main import main


def commands(group: typer.Typer, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words that call each command which does something."""
    for command in group.registered_commands:
        assert command.callback is not None
        yield (*path, command.name or command.callback.__name__)
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance, (*path, str(inner.name)))


ALL = list(commands(app))


def test_the_columns_that_offsets_show_explains_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads what a column means finds it in the table."""
    assert main(["offsets", "show", "--help"]) == 0
    said = capsys.readouterr().out.partition("Options:")[0]
    explained = set(re.findall(r"\b[A-Z]{2}[A-Z-]+\b", said)) - {"OPTIONS"}
    columns = {column.title.replace("_", "-").upper() for column in offsets._COLUMNS if column.heading != ""}
    assert {"COMMITTED", "BLOCKED-BY"} <= explained <= columns


def test_the_commands_are_found() -> None:
    """The list below is not empty by mistake."""
    assert ("review", "show") in ALL


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_a_command_has_help_and_an_example_of_itself(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """--help says what the command does and shows one real line of it."""
    assert main([*path, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Example: laneway {' '.join(path)}" in out
    said = out.partition("[OPTIONS]")[2].partition("Options:")[0]
    assert len(said.split()) > 5


def test_a_worker_loads_nothing_of_what_people_ask_with() -> None:
    """`laneway run` is there without the modules of the other commands: sooner, and with less memory."""
    program = "import sys; from laneway.cli.main import main; main(['run', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("laneway.cli.")}
    assert "laneway.cli.run" in loaded
    others = {f"laneway.cli.{path[0]}" for path in ALL} - {"laneway.cli.run"}
    assert "laneway.cli.review" in others
    assert not loaded & {*others, "laneway.cli.commands"}
