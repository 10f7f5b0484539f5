"""docs/operations/cases.md as a test reads it: its commands by reason and action, ready to be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from tests.broker.kafka import REPOSITORY

PAGE = REPOSITORY / "docs" / "operations" / "cases.md"

_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(r"^## (\S+)$", re.MULTILINE)


def sections() -> Mapping[str, str]:
    """The page in parts: "" is what comes before the first reason."""
    parts = _SECTION.split(PAGE.read_text(encoding="utf-8"))
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def lines_of(section: str) -> list[str]:
    """The command lines of a part, in order."""
    return [line.strip() for block in _BLOCK.findall(section) for line in block.splitlines() if line.strip()]


def action_of(line: str) -> str:
    """What a line of `review resolve` does."""
    words = shlex.split(line)
    return words[words.index("--action") + 1]


def commands() -> dict[tuple[str, str], str]:
    """The line for each reason and action."""
    return {
        (reason, action_of(line)): line
        for reason, text in sections().items()
        if reason
        for line in lines_of(text)
    }


def typed_line(
    line: str, *, bootstrap: str, group: str, case_id: str = "", file: Path | None = None
) -> list[str]:
    """The words of a line, with the names of the page replaced by those of a test; unasked."""
    names = {"localhost:9092": bootstrap, "reminders": group, "CASE": case_id, "corrected.json": str(file)}
    _, *words = shlex.split(line)
    looks = words[1] in ("list", "show", "explain")
    return [*(names.get(word, word) for word in words), *(() if looks else ("-y",))]
