"""The worker of the restore benchmark, in a process of its own: `python -m benchmarks.restore_worker JSON`.

It prints JSON lines until its standard input ends: samples of what it handled and of its memory, and, for
each partition that goes live, when its restore began and ended. What they mean is `restore`'s business.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from benchmarks.subject import no_op, worker_settings
from laneway.consumer.interpreter import tune_interpreter
from laneway.consumer.partition import Partition
from laneway.consumer.start import build_worker

SAMPLE_EVERY_S: Final = 0.1
LATE: Final = 3
"""Exit code when the deadline passed."""


class Sample(msgspec.Struct, frozen=True, tag=True):
    """At a moment of the monotonic clock: calls of the handler and CPU seconds so far, and memory."""

    at_s: float
    handled: int
    cpu_s: float
    resident_mib: float


class Live(msgspec.Struct, frozen=True, tag=True):
    """A partition went live; from `began_s` on its ledger was read from `entries` of the changelog."""

    at_s: float
    topic: str
    began_s: float
    entries: int


Line = Sample | Live


class Task(msgspec.Struct, frozen=True):
    """What the process has to do. `deadline_s`: after which it ends by itself, from its start."""

    bootstrap: str
    group: str
    sources: tuple[str, ...]
    deadline_s: float


class _Going(logging.Handler):
    """Hears of partitions that go live from the worker's own log line, whose arguments are values."""

    def __init__(self, tell: Callable[[Line], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        partition = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if not isinstance(partition, Partition) or not record.msg.startswith("%s: live "):
            return
        progress = partition.restore
        assert progress is not None
        self._tell(Live(time.monotonic(), partition.topic, progress.began_s, progress.entries))


def resident_mib() -> float:
    """Of this process, shared pages included."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    """Work until standard input ends."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    deadline = time.monotonic() + task.deadline_s
    encoder, lock = msgspec.json.Encoder(), threading.Lock()

    def tell(line: Line) -> None:
        data = encoder.encode(line) + b"\n"
        with lock:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    calls = count(1)
    handled = 0

    def count_call() -> None:
        nonlocal handled
        handled = next(calls)

    logging.getLogger("laneway").setLevel(logging.INFO)
    logging.getLogger("laneway").addHandler(_Going(tell))
    with TemporaryDirectory(prefix="laneway-bench-") as directory:
        settings = worker_settings(
            Path(directory),
            bootstrap=task.bootstrap,
            group=task.group,
            sources=task.sources,
            replication="changelog",
        )
        worker = build_worker(settings, no_op(count_call))

        def sample() -> None:
            while True:
                if time.monotonic() > deadline:
                    os._exit(LATE)
                tell(Sample(time.monotonic(), handled, time.process_time(), resident_mib()))
                time.sleep(SAMPLE_EVERY_S)

        def stop() -> None:
            sys.stdin.buffer.read()
            worker.request_stop()

        for target in (sample, stop):
            threading.Thread(target=target, daemon=True).start()
        tune_interpreter()
        worker.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
