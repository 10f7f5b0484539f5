"""`laneway dev` as somebody runs it: in a process and a directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

DEADLINE_S = 90.0


def environment() -> dict[str, str]:
    """Ours, without what would configure a worker."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}


def dev(*arguments: str | Path, cwd: Path, form: str = "json") -> tuple[int, dict[str, Any], str]:
    """Exit code, document (of JSON only) and standard error of `laneway dev ... -o FORM`."""
    done = subprocess.run(
        [sys.executable, "-m", "laneway.cli.main", "dev", *map(str, arguments), "-o", form],
        check=False,
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    document = json.loads(done.stdout or "{}") if form == "json" else {}
    return done.returncode, document, done.stderr


def rows(document: dict[str, Any]) -> dict[tuple[str, str | None], tuple[int, list[int]]]:
    """Count and line numbers by kind and reason."""
    return {(row["what"], row["reason"]): (row["count"], row["lines"]) for row in document["items"]}
