"""README.md, done as printed: what needs no Kafka. The rest is tests/broker/test_readme_kafka.py."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.demo.command import dev
from tests.readme import README, ROOT, commands, write_files

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples" / "README.md"]
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def test_the_first_handler_runs_over_the_record_that_is_shown(tmp_path: Path) -> None:
    """The handler, the configuration and the record of README end in one effect, by the command shown."""
    write_files(tmp_path)
    assert "laneway dev ./reminders.py:pipeline records.ndjson" in commands()
    code, document, told = dev("./reminders.py:pipeline", "records.ndjson", cwd=tmp_path)
    assert code == 0, told
    assert [(row["what"], row["count"]) for row in document["items"]] == [("effects", 1)]


@pytest.mark.parametrize("command", commands())
def test_every_command_shown_exists(command: str) -> None:
    """Each laneway command of README's shell blocks answers --help."""
    words = command.split()[1:]
    name = words[: 2 if len(words) > 1 and words[1].isalpha() and words[0] not in {"dev", "run"} else 1]
    run = subprocess.run(
        [sys.executable, "-m", "laneway.cli.main", *name, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "Example: laneway" in " ".join(run.stdout.split())


def test_every_link_leads_somewhere() -> None:
    """No page links to a file that is not there."""
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in _LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []


def test_the_two_commands_of_a_fresh_machine_are_named() -> None:
    """`make demo` and `make test` stand in README."""
    assert "make demo" in README
    assert "make test" in README
