"""Runs one subject in a process of its own, hears what it says, and ends it.

The process says when its last handler has returned; whether all is committed is asked of the group's
coordinator from here, every 2 ms and only from then on, unless the subject commits by itself and waits
for the answer. Its standard input is closed when that is so: it says what it used, and ends.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, TopicPartition

from benchmarks.environments import REPOSITORY, Command
from benchmarks.peers.work import PREFIX, Task

ASK_EVERY_S: Final = 0.002
_GRACE_S: Final = 30.0


class Measured(msgspec.Struct, frozen=True, tag=True):
    """What it took, from the end of the warm-up on.

    Attributes:
        records: that were counted.
        handled_s: until the last handler had returned.
        elapsed_s: until all was committed; the figures of the tables come from this.
        cpu_s: of the whole process, its client's threads included, over the same span.
        peak_mib: the most memory it was resident with, from its start.
    """

    records: int
    handled_s: float
    elapsed_s: float
    cpu_s: float
    peak_mib: float

    @property
    def per_second(self) -> float:
        """Records per second of wall time."""
        return self.records / self.elapsed_s


class Skipped(msgspec.Struct, frozen=True, tag=True):
    """It was not measured, and why."""

    why: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It was begun, and gave no figure: something is wrong with it, or with the measurement."""

    why: str


class SubjectFailedError(Exception):
    """A subject ended without a figure."""


class Handled(msgspec.Struct, frozen=True):
    """What a subject says when its last handler has returned."""

    began_s: float
    last_s: float
    committed_s: float | None


def subject_environment() -> dict[str, str]:
    """Without settings of the shell: what is measured stands in the task."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}


class Subject:
    """A running subject."""

    def __init__(self, task: Task, process: subprocess.Popen[bytes]) -> None:
        self._task = task
        self._process = process
        self._deadline_s = time.monotonic() + task.deadline_s + _GRACE_S
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._complaints = b""
        for target in (self._read, self._read_complaints):
            threading.Thread(target=target, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        prefix = PREFIX.encode()
        for line in self._process.stdout:
            if line.startswith(prefix):
                self._lines.put(msgspec.json.decode(line[len(prefix) :]))
        self._lines.put(None)

    def _read_complaints(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._complaints = (self._complaints + line)[-2000:]

    def hear(self) -> dict[str, Any]:
        """The next line that it says.

        Raises:
            SubjectFailedError: it ended, or the time is over.
        """
        name = f"{self._task.subject} handler={self._task.handler}"
        try:
            line = self._lines.get(timeout=max(0.1, self._deadline_s - time.monotonic()))
        except queue.Empty:
            raise SubjectFailedError(
                f"{name}: said nothing until {_GRACE_S:g} s after its deadline"
            ) from None
        if line is None:
            self._process.wait(_GRACE_S)
            raise SubjectFailedError(f"{name}: {self._complaints.decode(errors='replace').strip()}")
        return line

    def end(self) -> dict[str, Any]:
        """Close its input; returns what it used."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        while "ended" not in (line := self.hear()):
            pass
        ended: dict[str, Any] = line["ended"]
        return ended


@contextmanager
def started(command: Command, task: Task) -> Iterator[Subject]:
    """A subject's process; dead at the end."""
    process = subprocess.Popen(
        [*command, msgspec.json.encode(asdict(task)).decode()],
        cwd=REPOSITORY,
        env=subject_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield Subject(task, process)
    finally:
        process.kill()
        process.wait()


def measure(command: Command, task: Task, ends: Mapping[int, int]) -> Measured | Skipped:
    """Start a subject, wait until all it handled is committed, and read what it took.

    Args:
        ends: by partition, the offset behind its last record.

    Raises:
        SubjectFailedError: it failed, or did not end in time (it is dead by then).
    """
    with started(command, task) as subject:
        while "handled" not in (line := subject.hear()):
            if "skipped" in line:
                return Skipped(line["skipped"])
        handled = msgspec.convert(line["handled"], Handled)
        committed_s = handled.committed_s or _committed_s(task, ends)
        ended = subject.end()
    return Measured(
        task.records - task.warm,
        handled.last_s - handled.began_s,
        committed_s - handled.began_s,
        ended["cpu_s"],
        ended["peak_mib"],
    )


def _committed_s(task: Task, ends: Mapping[int, int]) -> float:
    """When the group had committed everything."""
    asker = Consumer({"bootstrap.servers": task.bootstrap, "group.id": task.group, "log_level": 0})
    wanted = [TopicPartition(task.topic, number) for number in ends]
    deadline_s = time.monotonic() + task.deadline_s
    try:
        while True:
            answers = asker.committed(wanted, timeout=5.0)
            now_s = time.monotonic()
            if all(answer.offset == ends[answer.partition] for answer in answers if ends[answer.partition]):
                return now_s
            if now_s > deadline_s:
                raise SubjectFailedError(
                    f"{task.subject}: the time is over and not every offset is committed"
                )
            time.sleep(ASK_EVERY_S)
    finally:
        asker.close()
