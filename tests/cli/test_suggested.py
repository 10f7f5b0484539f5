"""Lines to be pasted into a shell: they mean what they say, and act on no terminal."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from laneway.cli.suggested import asked, quoted

BASH = shutil.which("bash")
WORDS = ["plain", "two words", "it's", "$HOME `x`", "k\x1b[2J\r\nevil\u202e\x07", "\x1bc0\\'", "ключ", ""]


@pytest.mark.parametrize("word", WORDS, ids=ascii)
def test_a_quoted_word_is_printable_and_comes_back(word: str) -> None:
    """Nothing in the line is a control character, and a shell reads the word back."""
    line = quoted(word)
    assert line.isprintable()
    assert BASH is not None, "bash reads the lines"
    done = subprocess.run([BASH, "-c", f"printf %s {line}"], capture_output=True, check=True)
    assert done.stdout == word.encode()


def test_a_line_repeats_what_was_asked_and_keeps_secrets() -> None:
    """The next command goes to the same cluster and group; a password given with -X is not repeated."""
    words = asked(
        Path("a b.toml"), ["kafka.sasl.password=hunter2", "lanes.workers=2"], "h:1", "g", ["s", "t"]
    )
    assert words.line("review", "list") == (
        "laneway review list -b h:1 -g g -c 'a b.toml' --source s --source t "
        "-X 'kafka.sasl.password=***' -X lanes.workers=2"
    )


def test_each_permitted_action_has_a_line() -> None:
    """An action that takes something besides the case is shown with it."""
    lines = asked(None, None, None, "g", None).resolving("c", ("skip", "set-next", "replay-with"), 5)
    assert [line.partition(" --reason")[0] for line in lines] == [
        "laneway review resolve c --action skip",
        "laneway review resolve c --action set-next 5",
        "laneway review resolve c --action replay-with corrected.json",
    ]
