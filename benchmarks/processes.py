"""One group, one topic, more and more processes: where do more of them stop helping?

All of them work on a backlog. When each has begun, and a second later, what they handle together is counted
for a while; a backlog that runs dry meanwhile gives no figure. Each has a state directory of its own.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from benchmarks import load
from benchmarks.environments import own
from benchmarks.peers.work import Task
from benchmarks.plan import CONCURRENCY, KEYS
from benchmarks.supervise import Subject, SubjectFailedError, started
from tests.broker.cluster import Cluster

PARTITIONS: Final = 8
SETTLE_S = 1.0
START_S = 4.0
"""In which the first may be alone with the backlog."""
FASTER: Final = 2.5
"""Than one process: what the backlog must last for."""
JOIN_S: Final = 60.0


class Together(msgspec.Struct, frozen=True):
    """So many processes, in one window. `cpus`: that they had, all together."""

    processes: int
    per_second: float
    cpus: float


def measure_processes(
    cluster: Cluster,
    tag: str,
    *,
    counts: tuple[int, ...],
    rounds: int,
    window_s: float,
    about: float,
    say: Callable[[str], None],
) -> list[Together]:
    """All rounds, interleaved.

    Args:
        about: records a second that one process handles, roughly.

    Raises:
        SubjectFailedError: there is no figure.
    """
    topic = f"{tag}-processes"
    backlog = int(FASTER * about * (START_S + SETTLE_S + window_s))
    say(f"filling {topic}: {backlog:,} records")
    load.publish(cluster, topic, partitions=PARTITIONS, records=backlog, keys=KEYS)
    found = []
    for number in range(1, rounds + 1):
        for count in counts:
            group = f"{tag}-g{uuid.uuid4().hex[:8]}"
            one = _together(cluster.bootstrap, topic, group, backlog, count, window_s)
            load.remove(cluster, group)
            found.append(one)
            say(f"round {number}/{rounds}  {count} processes: {one.per_second:>10,.0f} records/s")
    return found


class _Ear:
    """Hears a process until its end."""

    def __init__(self, subject: Subject) -> None:
        self.has_begun = False
        self.failure: SubjectFailedError | None = None
        self.samples: list[tuple[float, float, float]] = []
        self._subject = subject
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                line: dict[str, Any] = self._subject.hear()
                self.has_begun = self.has_begun or "begun" in line
                if "sample" in line:
                    self.samples.append(line["sample"])
        except SubjectFailedError as error:
            self.failure = error

    def between(self, from_s: float, to_s: float) -> tuple[float, float]:
        """Records and CPU seconds for each second, of the samples in between."""
        inside = [sample for sample in self.samples if from_s <= sample[0] <= to_s]
        if len(inside) < 2:
            raise SubjectFailedError("processes: a worker said nothing for the whole window")
        (began_s, first, first_cpu_s), (ended_s, last, last_cpu_s) = inside[0], inside[-1]
        return (last - first) / (ended_s - began_s), (last_cpu_s - first_cpu_s) / (ended_s - began_s)


def _together(bootstrap: str, topic: str, group: str, backlog: int, count: int, window_s: float) -> Together:
    with TemporaryDirectory(prefix="laneway-bench-") as directory, ExitStack() as running:
        ears = []
        for number in range(count):
            own_directory = Path(directory, str(number))
            own_directory.mkdir()
            task = Task(
                "changelog",
                bootstrap,
                topic,
                group,
                backlog,
                1,
                "none",
                CONCURRENCY,
                JOIN_S + START_S + SETTLE_S + window_s,
                str(own_directory),
                samples=True,
            )
            ears.append(_Ear(running.enter_context(started(own("benchmarks.subject"), task))))
        deadline_s = time.monotonic() + JOIN_S
        while not all(ear.has_begun for ear in ears):
            failed = next((ear.failure for ear in ears if ear.failure is not None), None)
            if failed is not None:
                raise failed
            if time.monotonic() > deadline_s:
                raise SubjectFailedError(f"processes: not all {count} had work in time")
            time.sleep(0.02)
        time.sleep(SETTLE_S)
        from_s = time.monotonic()
        time.sleep(window_s)
        to_s = time.monotonic()
        if sum(ear.samples[-1][1] for ear in ears) >= backlog:
            raise SubjectFailedError("processes: the backlog ran dry; there is no figure")
        speeds = [ear.between(from_s, to_s) for ear in ears]
    return Together(count, sum(speed for speed, _ in speeds), sum(cpus for _, cpus in speeds))
