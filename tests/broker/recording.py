"""A pipeline whose effect is a line in a file, so that a test sees every run of it, whoever was killed.

`laneway run tests.broker.recording:pipeline` with `environment(directory)` writes runs; `read_runs` reads
them back. What the handler does is told by the record's own headers, see `handle`. Each process
appends to its own file, each run by one write: what stands there has happened.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from laneway import Delivery, NeedsReview, PermanentFailure, Pipeline, TemporaryFailure
from tests.broker.cluster import Outgoing
from tests.broker.kafka import REPOSITORY

APP = "tests.broker.recording:pipeline"
HANG_S = 60.0
_DIRECTORY = "RECORDING_DIRECTORY"

pipeline = Pipeline()


@dataclass(frozen=True)
class Run:
    """One run of the handler.

    Attributes:
        outcome: "effect" (it happened), "temporary", "rejected", "review", or "hanging" (it began to).
        at_ms: when it was over; epoch milliseconds.
    """

    effect_key: str
    sequence_key: str | None
    sequence: int
    partition: int
    offset: int
    attempt: int
    redelivered: bool
    outcome: str
    at_ms: int
    pid: int


@pipeline.handler
def handle(delivery: Delivery[Any]) -> str:
    """Do what the headers say, and write down that it was done.

    `act`: `fail:N` fails temporarily up to attempt N; `reject`, `review`; `hang` does not come back from
    the first delivery. `work-ms`: how long the work takes. `emit`: a topic that gets the effect key.
    """
    told = {"act", "work-ms", "emit"}
    headers = {name: (value or b"").decode() for name, value in delivery.headers if name in told}
    act, _, number = headers.get("act", "").partition(":")
    if "work-ms" in headers:
        time.sleep(int(headers["work-ms"]) / 1000)
    if act == "fail" and delivery.attempt <= int(number):
        _write(delivery, "temporary")
        raise TemporaryFailure("told to")
    if act == "reject":
        _write(delivery, "rejected")
        raise PermanentFailure("told to")
    if act == "review":
        _write(delivery, "review")
        raise NeedsReview("is it right?")
    if act == "hang" and not delivery.redelivered:
        _write(delivery, "hanging")
        time.sleep(HANG_S)
    if "emit" in headers:
        delivery.emit(headers["emit"], (delivery.sequence_key or "").encode(), delivery.effect_key.encode())
    _write(delivery, "effect")
    return f"done/{delivery.effect_key}"


def environment(directory: Path, *others: Path) -> dict[str, str]:
    """What a worker process needs to find this pipeline, and where it writes."""
    directory.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, (str(REPOSITORY), *map(str, others), os.environ.get("PYTHONPATH"))))
    return {_DIRECTORY: str(directory), "PYTHONPATH": path}


def read_runs(directory: Path) -> list[Run]:
    """All runs of all processes, by time."""
    runs = [
        Run(**json.loads(line))
        for path in directory.glob("*.runs")
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]
    # Stable: of one process and millisecond, in the order written.
    return sorted(runs, key=lambda run: run.at_ms)


def event(
    sequence_key: str,
    sequence: int,
    *,
    act: str = "",
    work_ms: int = 0,
    partition: int | None = None,
    payload: Mapping[str, Any] | None = None,
) -> Outgoing:
    """A record for this pipeline. Key, ids and payload follow from sequence key and sequence."""
    value = {
        "messageId": f"{sequence_key}/{sequence}",
        "effectKey": f"{sequence_key}:{sequence}",
        "sequenceKey": sequence_key,
        "sequence": sequence,
        "version": 1,
        "payload": payload or {"number": sequence},
    }
    return Outgoing(json.dumps(value).encode(), sequence_key.encode(), headers(act, work_ms), partition)


def headers(act: str = "", work_ms: int = 0) -> Sequence[tuple[str, bytes | None]]:
    """The headers that tell the handler what to do."""
    told = (("act", act), ("work-ms", str(work_ms) if work_ms else ""))
    return [(name, text.encode()) for name, text in told if text]


def _write(delivery: Delivery[Any], outcome: str) -> None:
    run = Run(
        delivery.effect_key,
        delivery.sequence_key,
        delivery.sequence or 0,
        delivery.partition,
        delivery.offset,
        delivery.attempt,
        delivery.redelivered,
        outcome,
        time.time_ns() // 1_000_000,
        os.getpid(),
    )
    os.write(_file(), json.dumps(run.__dict__).encode() + b"\n")


@cache
def _file() -> int:
    path = Path(os.environ[_DIRECTORY]) / f"{os.getpid()}.runs"
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
