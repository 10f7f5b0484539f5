"""The handler of the story: it writes one report per effect, and misbehaves where the record asks for it.

The effect is a file at a path that follows from the effect key, so that writing it again changes
nothing. Beside it every run leaves a line in `runs.ndjson`: that is how a second run shows.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel

from laneway.cli.child import read_journal
from laneway.lanes.failures import TemporaryFailure
from laneway.pipeline import Delivery, Pipeline

RUNS: Final = Path("runs.ndjson")
REPORTS: Final = Path("reports")
GO_ON: Final = Path("go-on")
_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.02


class Task(BaseModel):
    """What a record of the story asks for.

    Attributes:
        text: stands in the report.
        act: `fail-once`: the first attempt fails temporarily. `die-once`: the first delivery kills its
            own process behind the effect. `wait`: goes on when the file `go-on` is there. `slow`: takes
            a fifth of a second.
        after_acks: begins only when the journal tells of so many acks.
    """

    text: str
    act: Literal["write", "fail-once", "die-once", "wait", "slow"] = "write"
    after_acks: int = 0


pipeline: Pipeline[Task] = Pipeline(payload=Task)


@pipeline.handler
def report(delivery: Delivery[Task]) -> str:
    """Write the report of this effect."""
    task = delivery.payload
    if task.act == "fail-once" and delivery.attempt == 1:
        raise TemporaryFailure("archive-not-reachable")
    if task.after_acks:
        _until(lambda: _acks() >= task.after_acks)
    _note_run(delivery)
    if task.act == "wait":
        _until(GO_ON.exists)
    elif task.act == "slow":
        time.sleep(0.2)
    result_key = _write(delivery.effect_key, task.text)
    if task.act == "die-once" and not delivery.redelivered:
        os.kill(os.getpid(), signal.SIGKILL)
    return result_key


def report_path(effect_key: str) -> Path:
    """Where the report of an effect lies; the same for every run of it."""
    return REPORTS / f"{effect_key.replace(':', '-')}.txt"


def _write(effect_key: str, text: str) -> str:
    path = report_path(effect_key)
    REPORTS.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(f"{effect_key}: {text}\n", encoding="utf-8")
    unfinished.replace(path)
    return str(path)


def _note_run(delivery: Delivery[Task]) -> None:
    line = {
        "effectKey": delivery.effect_key,
        "sequenceKey": delivery.sequence_key,
        "sequence": delivery.sequence,
        "attempt": delivery.attempt,
        "redelivered": delivery.redelivered,
        "pid": os.getpid(),
        "atMs": time.time_ns() // 1_000_000,
    }
    # One append by one write: lines of several threads and processes do not mix.
    with RUNS.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def _acks() -> int:
    journals = Path().glob("journal-*.ndjson")
    return sum(line["event"] == "ack_sent" for path in journals for line in read_journal(path))


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
