"""The blocks of README.md, as a reader copies them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    """All blocks of one kind, in order."""
    return [body for found, body in _BLOCK.findall(README) if found == kind]


def write_files(folder: Path) -> None:
    """Write every file that README shows, under the name that stands in its first line."""
    for body in [*blocks("python"), *blocks("toml")]:
        name = body.split("\n", 1)[0].removeprefix("# ")
        (folder / name).write_text(body, encoding="utf-8")
    (record,) = blocks("json")
    (folder / "records.ndjson").write_text(record, encoding="utf-8")


def commands() -> list[str]:
    """Every `laneway` line of the shell blocks, without its comment."""
    lines = [line.split("  #")[0].strip() for body in blocks("sh") for line in body.splitlines()]
    return [line for line in lines if line.startswith("laneway ")]
