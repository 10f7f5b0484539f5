"""Rounds over cases: each round runs every case once, so that a drift of the machine hits all of them."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Final

from benchmarks import load, prefill
from benchmarks.environments import UnavailableError
from benchmarks.peers.work import Task
from benchmarks.plan import LANEWAY, SUBJECTS, Case
from benchmarks.supervise import Failed, Measured, Skipped, SubjectFailedError, measure
from tests.broker.cluster import Cluster

WARM: Final = 4
"""One of so many records is not counted: the first ones."""
Say = Callable[[str], None]
Runs = dict[str, list[Measured | Skipped | Failed]]


class Ground:
    """Topics, filled, and large ledgers, filled, for the cases of a measurement. Close it to remove them."""

    def __init__(self, cluster: Cluster, tag: str, say: Say) -> None:
        self.cluster = cluster
        self.tag = tag
        self.value_bytes: dict[int, int] = {}
        self._say = say
        self._topics: dict[tuple[int, int, int], tuple[str, Mapping[int, int]]] = {}
        self._ledgers: dict[tuple[int, int], Path] = {}

    def topic(self, case: Case) -> tuple[str, Mapping[int, int]]:
        """Its topic and, by partition, where that ends."""
        keys, records, partitions = case.topic
        if case.topic not in self._topics:
            name = f"{self.tag}-{keys}-{records}-{partitions}"
            self._say(f"filling {name}: {records:,} records, {keys:,} keys")
            size = load.publish(self.cluster, name, partitions=partitions, records=records, keys=keys)
            self.value_bytes[keys] = round(size)
            self._topics[case.topic] = name, self.cluster.end_offsets(name)
        return self._topics[case.topic]

    def ledger(self, case: Case) -> str:
        """A store with that many effects; "" for none."""
        if not case.effects:
            return ""
        if (case.effects, case.keys) not in self._ledgers:
            place = Path(mkdtemp(prefix="laneway-bench-"))
            self._say(f"filling a ledger: {case.effects:,} effects")
            prefill.fill(place / "store", case.effects, case.keys)
            self._ledgers[case.effects, case.keys] = place
        return str(self._ledgers[case.effects, case.keys] / "store")

    def close(self) -> None:
        """Remove everything."""
        for place in self._ledgers.values():
            shutil.rmtree(place, ignore_errors=True)
        load.remove(self.cluster, self.tag)


def run(
    cases: list[Case], runs: Runs, ground: Ground, say: Say, deadline_s: float, keep: Callable[[], None]
) -> None:
    """All rounds. A subject that fails is not tried in the rounds to come.

    Args:
        runs: where they go, one by one.
        keep: called when a round is over.
    """
    runs.update({case.name: [] for case in cases})
    for number in range(1, max((case.rounds for case in cases), default=0) + 1):
        for case in cases:
            if number <= case.rounds and all(isinstance(each, Measured) for each in runs[case.name]):
                result = run_once(case, ground, deadline_s)
                runs[case.name].append(result)
                said = (
                    f"{result.per_second:>10,.0f} records/s"
                    if isinstance(result, Measured)
                    else f"{type(result).__name__.lower()}: {result.why}"
                )
                say(f"round {number}/{case.rounds}  {case.name:78}{said}")
        keep()


def run_once(case: Case, ground: Ground, deadline_s: float) -> Measured | Skipped | Failed:
    """One run: a fresh group and an empty ledger, unless the case has a large one."""
    try:
        command = SUBJECTS[case.subject].command()
    except UnavailableError as error:
        return Skipped(str(error))
    topic, ends = ground.topic(case)
    group = f"{ground.tag}-g{uuid.uuid4().hex[:8]}"
    # Beside the ledger, so that its tables can be linked.
    with TemporaryDirectory(prefix="laneway-bench-") as directory:
        task = Task(
            case.subject,
            ground.cluster.bootstrap,
            topic,
            group,
            case.records,
            max(1, case.records // WARM),
            case.handler,
            case.concurrency,
            deadline_s,
            directory,
            journal=case.journal,
            ledger=ground.ledger(case) if case.subject in LANEWAY else "",
        )
        try:
            return measure(command, task, ends)
        except SubjectFailedError as error:
            return Failed(str(error))
        finally:
            # The names of all that a subject made have these two in them, whatever stands around them.
            load.remove(ground.cluster, ground.tag, group)
