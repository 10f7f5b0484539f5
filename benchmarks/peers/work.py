"""What every measured process has in common: its task, its handler, its clock. Standard library only.

A process is started with its task as JSON. It tells the harness, in lines that begin with `PREFIX`:

    begun      the warm-up is over
    sample     every tenth of a second, when the task asks for it: when, records handled so far, CPU seconds
    handled    the last handler has returned; `committed_s` too when it commits and waits for the answer
    ended      after its standard input has closed, which is when the harness found all committed
    skipped    it cannot do this, and why

The clock runs from the moment the first `warm` records are handled, so that joining the group, filling
queues and a JVM's first seconds are outside for everybody. All times are of the monotonic clock, which on
one machine is the same for all processes.
"""

from __future__ import annotations

import json
import os
import resource
import select
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, NoReturn

PREFIX: Final = "@bench "
SAMPLE_EVERY_S: Final = 0.1
LATE: Final = 3
"""Exit code when the deadline passed."""

_LINES: Final = threading.Lock()


@dataclass(frozen=True)
class Task:
    """What one process has to do.

    Attributes:
        records: in the topic, all of which are handled; the first `warm` of them are not counted.
        handler: `none`, `sleep-MS` (blocks a thread), `async-MS` (awaits) or `cpu-MS` (computes).
        concurrency: handlers at the same time, where a subject has such a thing.
        directory: for its files; whoever started it removes it.
        journal: level of the journal; Laneway only.
        samples: say every tenth of a second how far it is; Laneway only.
        trace: a file for the time of every effect; Laneway only, "" writes none.
        ledger: a store that is laid under the ledger before the start; Laneway only, "" begins empty.
    """

    subject: str
    bootstrap: str
    topic: str
    group: str
    records: int
    warm: int
    handler: str
    concurrency: int
    deadline_s: float
    directory: str
    journal: str = "exceptions"
    samples: bool = False
    trace: str = ""
    ledger: str = ""


class Clock:
    """Counts handled records and says when they are all done. `done` may be called from any thread.

    Args:
        at_end: called once, before `ended` is said.
        commits: False for a subject that has nothing to commit: what is handled is through.
    """

    def __init__(self, task: Task, at_end: Callable[[], None] | None = None, *, commits: bool = True) -> None:
        self._commits = commits
        self._records = task.records
        self._warm = task.warm
        self._calls = count(1)
        self._number = 0
        self._began_s = 0.0
        self._began_cpu_s = 0.0
        self._at_end = at_end
        self._deadline_s = task.deadline_s
        threading.Thread(target=self._await_end, daemon=True).start()
        if task.samples:
            threading.Thread(target=self._sample, daemon=True).start()

    def done(self) -> None:
        """One handler has returned."""
        self._number = number = next(self._calls)
        if number == self._warm:
            self.begin()
        elif number == self._records:
            self.handled(committed=not self._commits)

    def begin(self) -> None:
        """The warm-up is over."""
        self._began_s, self._began_cpu_s = time.monotonic(), time.process_time()
        say(begun=self._began_s)

    def handled(self, *, committed: bool = False) -> None:
        """All is handled; and committed, by an answer that the subject has waited for."""
        now_s = time.monotonic()
        say(handled={"began_s": self._began_s, "last_s": now_s, "committed_s": now_s if committed else None})

    def _sample(self) -> None:
        while True:
            say(sample=[time.monotonic(), self._number, time.process_time()])
            time.sleep(SAMPLE_EVERY_S)

    def _await_end(self) -> None:
        code = LATE
        try:
            if not select.select([sys.stdin], [], [], self._deadline_s)[0]:
                print("the time is over", file=sys.stderr, flush=True)
                return
            cpu_s = time.process_time() - self._began_cpu_s
            if self._at_end is not None:
                self._at_end()
            say(ended={"cpu_s": cpu_s, "peak_mib": peak_mib()})
            code = 0
        finally:
            # Also when nobody hears it any more: it would stay for ever. Groups, topics and files of a run
            # are its own, so nothing is gained by leaving in order.
            os._exit(code)


def say(**line: Any) -> None:
    """Tell the harness."""
    with _LINES:
        sys.stdout.write(PREFIX + json.dumps(line) + "\n")
        sys.stdout.flush()


def skip(why: str) -> NoReturn:
    """Tell the harness that this cannot be measured here."""
    say(skipped=why)
    os._exit(0)


def read_task() -> Task:
    """The task of this process."""
    return Task(**json.loads(sys.argv[1]))


def millis(handler: str) -> float:
    """The milliseconds in a handler's name."""
    return float(handler.partition("-")[2] or 0)


def blocking(handler: str) -> Callable[[], None]:
    """The handler, for whoever calls it on a thread."""
    seconds = millis(handler) / 1000
    if handler == "none":
        return lambda: None
    if handler.startswith("sleep-"):
        return lambda: time.sleep(seconds)
    if handler.startswith("cpu-"):

        def compute() -> None:
            # CPU time of this thread: one that waits for its turn does not get off lightly.
            until_s = time.thread_time() + seconds
            while time.thread_time() < until_s:
                pass

        return compute
    skip(f"it has no handlers of the kind {handler}")


def peak_mib() -> float:
    """The most memory that this process was resident with."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def stay() -> None:
    """Wait for the end that the harness decides."""
    threading.Event().wait()
