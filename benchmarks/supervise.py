"""Runs one subject in a process of its own, and ends it when its time is over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.subject import Measured, Task

_GRACE_S = 30.0
REPOSITORY: Final = Path(__file__).resolve().parents[1]


class SubjectFailedError(Exception):
    """A subject ended without a figure."""


def subject_environment() -> dict[str, str]:
    """Without settings of the shell: what is measured stands in the task."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}


def measure(task: Task) -> Measured:
    """Start the subject, wait for it, and read what it took.

    Raises:
        SubjectFailedError: it failed, or did not end in time (it is dead by then).
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.subject", msgspec.json.encode(task).decode()],
            cwd=REPOSITORY,
            env=subject_environment(),
            capture_output=True,
            text=True,
            timeout=task.deadline_s + _GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SubjectFailedError(f"{task.subject}: did not end {_GRACE_S:g} s after its deadline") from None
    if ended.returncode != 0:
        raise SubjectFailedError(f"{task.subject} {task.journal}: {ended.stderr.strip()[-2000:]}")
    return msgspec.json.decode(ended.stdout, type=Measured)
