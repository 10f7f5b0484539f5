"""The installed `laneway` command as a shell runs it: a process of its own, nothing of ours around it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Said:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def items(self) -> list[dict[str, Any]]:
        """The rows of a JSON document."""
        found: list[dict[str, Any]] = json.loads(self.out)["items"]
        return found


def run(directory: Path, *arguments: str) -> Said:
    """Run it in a directory, without settings from the environment and without a terminal."""
    laneway = str(Path(sys.executable).with_name("laneway"))
    done = subprocess.run(
        [sys.executable, laneway, *arguments],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())
