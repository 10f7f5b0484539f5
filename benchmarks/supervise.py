"""Runs one subject in a process of its own, and ends it when its time is over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from benchmarks.subject import Measured, Task

_GRACE_S = 30.0
_REPOSITORY = Path(__file__).resolve().parents[1]


class SubjectFailedError(Exception):
    """A subject ended without a figure."""


def measure(task: Task) -> Measured:
    """Start the subject, wait for it, and read what it took.

    Raises:
        SubjectFailedError: it failed, or did not end in time (it is dead by then).
    """
    # Settings of the shell must not reach the subject: what is measured stands in the task.
    env = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.subject", msgspec.json.encode(task).decode()],
            cwd=_REPOSITORY,
            env=env,
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
