"""Lists that are printed again and again, and what only a terminal gets."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from laneway.cli.output import Format, Table, render
from tests.cli.command import run
from tests.waiting import eventually

CLEAR = b"\x1b[H\x1b[2J"
WATCHED = [("offsets", "show"), ("lanes", "list"), ("review", "list"), ("retry", "list"), ("dlq", "list")]

# A list whose rows are counted, so that one printing can be told from the next.
COUNTING = """
import itertools, signal, sys
# Where tests run in the background their children would ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
from laneway.cli import options
from laneway.cli.commands import app
from laneway.cli.main import leave, main
from laneway.cli.output import Format, Table

numbers = itertools.count(1)

@app.command()
def count(watch: options.Watch = None, fails_at: int = 0, output: options.Output = Format.TABLE) -> None:
    def look() -> Table:
        number = next(numbers)
        if number == fails_at:
            from laneway.errors import UnreachableError
            raise UnreachableError("gone")
        return Table("counted", ("number",), [(number,)])
    options.show(look, output, watch)

leave(main(sys.argv[1:]))
"""


def counting(*arguments: str, stdout: int) -> subprocess.Popen[bytes]:
    """A process that watches; it ends with its test."""
    command = [sys.executable, "-c", COUNTING, "count", *arguments]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE)


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """What comes until this has come."""
    found = b""

    def has_come() -> bool:
        nonlocal found
        found += os.read(descriptor, 4096)
        return wanted in found

    eventually(has_come, 60, f"{wanted!r} on standard output")
    return found


def test_a_pipe_gets_one_table_after_the_other_until_ctrl_c() -> None:
    """Nothing is cleared where nobody looks; Ctrl+C is the way out of a watch, so it ends with 0."""
    reading, writing = os.pipe()
    with counting("--watch", "0.1", stdout=writing) as child:
        os.close(writing)
        try:
            said = read_until(reading, b"NUMBER\n     3\n")
            child.send_signal(signal.SIGINT)
            assert child.wait(30) == 0
        finally:
            child.kill()
            os.close(reading)
        assert said.startswith(b"NUMBER\n     1\nNUMBER\n     2\n")
        assert b"\x1b" not in said
        assert child.stderr is not None
        assert child.stderr.read() == b""


def test_a_terminal_is_cleared_for_each_table() -> None:
    """Only there, and titles are bold only there."""
    ours, theirs = pty.openpty()
    with counting("--watch", "0.1", stdout=theirs) as child:
        os.close(theirs)
        try:
            said = read_until(ours, b"3\r\n")
            child.send_signal(signal.SIGINT)
            assert child.wait(30) == 0
        finally:
            child.kill()
            os.close(ours)
    assert said.startswith(CLEAR)
    assert said.count(CLEAR) >= 3


def test_a_look_that_fails_ends_it() -> None:
    """What stood there a moment ago must not pass for what is: the error's own exit code."""
    with counting("--watch", "0.1", "--fails-at", "2", stdout=subprocess.PIPE) as child:
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (3, b"NUMBER\n     1\n")
    assert err == b"laneway: gone\n"


@pytest.mark.parametrize("path", WATCHED, ids=" ".join)
def test_every_list_can_be_watched(path: tuple[str, ...], tmp_path: Path) -> None:
    """--watch takes seconds, and none too few to let the cluster breathe."""
    said = run(tmp_path, *path, "-b", "127.0.0.1:1", "-g", "g", "--watch", "0")
    assert said.code == 2
    assert "--watch" in said.err


@pytest.mark.parametrize(
    ("terminal", "no_color", "is_bold"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_styles_are_for_terminals_that_want_them(
    terminal: bool, no_color: str, is_bold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe never gets an escape sequence, and with NO_COLOR a terminal gets none either."""
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    table = Table("t", ("name",), [("a",)], lists={"more": ["x"]})
    assert ("\x1b[" in render(table, Format.TABLE, terminal=terminal)) is is_bold


@pytest.mark.parametrize(
    ("shell", "words", "found"),
    [
        ("bash", {"COMP_WORDS": "laneway of", "COMP_CWORD": "1"}, "offsets"),
        ("bash", {"COMP_WORDS": "laneway offsets show -o ", "COMP_CWORD": "4"}, "table\njson\nyaml"),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "laneway review "}, '"resolve"'),
        ("fish", {"_TYPER_COMPLETE_ARGS": "laneway dlq ", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}, "list"),
    ],
)
def test_a_shell_completes(shell: str, words: dict[str, str], found: str) -> None:
    """Commands and values, in the three shells; --show-completion prints what they source."""
    laneway = [sys.executable, str(Path(sys.executable).with_name("laneway"))]
    environment = {**os.environ, **words, "_LANEWAY_COMPLETE": f"complete_{shell}"}
    said = subprocess.run(laneway, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    assert found in said.stdout
