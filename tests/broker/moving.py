"""A group that moves house: workers with disks of their own come, leave, die, freeze and lose their disks.

What happens, and to whom, is drawn from a seed; what may happen to a worker depends only on what has
happened to all before, so the same seed makes the same story. The story is kept, for a test that fails.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from tests.broker.journal_checks import Line, events_of
from tests.broker.recording import Run
from tests.broker.worker_process import WorkerProcess
from tests.waiting import eventually

HANDED_OVER_DEADLINE_S = 60.0
LEAVE_DEADLINE_S = 40.0
IN_HAND_DEADLINE_S = 5.0
CAUGHT_UNAWARES = 0.25
"""How often a worker is killed, or told to stop, at any moment of its life, and not in the middle of work."""


class Event(Enum):
    """What can happen to a worker; the number says how often, relative to the others."""

    JOIN = ("joins", 4)
    LEAVE = ("is told to stop", 2)
    KILL = ("is killed", 3)
    FREEZE = ("is frozen past its session, and goes on", 3)
    DELETE = ("loses its state directory", 3)


@dataclass
class Tenant:
    """One worker, started again and again under one name, with a state directory of its own."""

    worker: WorkerProcess
    state_dir: Path
    running: bool = False


@dataclass
class House:
    """The workers of one group, and what has happened to them so far.

    Attributes:
        runs_of: how often the handler has run in a process.
        partitions: of the source.
        killed: pids that ended by kill -9.
        frozen: pids that were stopped for longer than their session.
        story: every event in words.
    """

    tenants: Sequence[Tenant]
    partitions: int
    chance: random.Random
    runs_of: Callable[[int], int]
    killed: set[int] = field(default_factory=set)
    frozen: set[int] = field(default_factory=set)
    seen: Counter[Event] = field(default_factory=Counter)
    story: list[str] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def step(self, give_work: Callable[[], object]) -> None:
        """One event, mostly in the middle of the work of whom it hits."""
        self.check_alive()
        options = self._options()
        event, tenant = self.chance.choices(options, [each.value[1] for each, _ in options])[0]
        unawares = self.chance.random() < CAUGHT_UNAWARES and event is not Event.FREEZE
        if tenant.running and not unawares:
            self._await_partitions(tenant)
            before = self.runs_of(tenant.worker.pid)
            give_work()
            work_on(lambda: self.runs_of(tenant.worker.pid), before + 1, IN_HAND_DEADLINE_S)
        else:
            give_work()
        self._happen(event, tenant)

    def settle_down(self) -> None:
        """From here on everybody runs and nothing happens any more."""
        for tenant in self.tenants:
            if not tenant.running:
                self._happen(Event.JOIN, tenant)

    def leave(self) -> None:
        """All are told to stop, and do so in order."""
        for tenant in self.tenants:
            tenant.worker.terminate()
        for tenant in self.tenants:
            self._see_it_left(tenant)

    def check_alive(self) -> None:
        """Nobody has ended by himself."""
        for tenant in self.tenants:
            if tenant.running and not tenant.worker.running:
                said = "\n".join(tenant.worker.stderr().splitlines()[-40:])
                raise AssertionError(f"{tenant.worker.name} ended by itself:\n{said}\n{self.account()}")

    def account(self) -> str:
        """What has happened so far."""
        return "what had happened:\n" + "\n".join(self.story)

    def journals(self) -> dict[int, list[dict[str, Any]]]:
        """Each process's journal by pid."""
        return {pid: tenant.worker.journal(pid) for tenant in self.tenants for pid in tenant.worker.pids}

    def _options(self) -> list[tuple[Event, Tenant]]:
        running = [tenant for tenant in self.tenants if tenant.running]
        options: list[tuple[Event, Tenant]] = []
        for tenant in self.tenants:
            if not tenant.running:
                options.append((Event.JOIN, tenant))
                if tenant.state_dir.exists():
                    options.append((Event.DELETE, tenant))
            else:
                options.append((Event.KILL, tenant))
                if len(running) > 1:
                    options += [(Event.LEAVE, tenant), (Event.FREEZE, tenant)]
        return options

    def _happen(self, event: Event, tenant: Tenant) -> None:
        worker = tenant.worker
        self.seen[event] += 1
        if event is Event.JOIN:
            worker.start()
            tenant.running = True
        self._tell(f"{worker.name} (pid {worker.pids[-1] if worker.pids else '-'}) {event.value[0]}")
        if event is Event.LEAVE:
            worker.terminate()
            self._see_it_left(tenant)
        elif event is Event.KILL:
            worker.kill()
            self.killed.add(worker.pid)
            tenant.running = False
        elif event is Event.FREEZE:
            self._freeze(tenant)
        elif event is Event.DELETE:
            shutil.rmtree(tenant.state_dir)

    def _see_it_left(self, tenant: Tenant) -> None:
        """In order; one that had not joined yet may just end."""
        code = tenant.worker.wait(LEAVE_DEADLINE_S)
        said = tenant.worker.said()
        in_order = code == 0 or (code == -signal.SIGTERM and "joining group" not in said)
        assert in_order, f"{tenant.worker.name} ended with {code}:\n{said[-4000:]}\n{self.account()}"
        tenant.running = False

    def _await_partitions(self, tenant: Tenant) -> None:
        try:
            eventually(tenant.worker.live, HANDED_OVER_DEADLINE_S, f"partitions of {tenant.worker.name}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{tenant.worker.said()[-4000:]}\n{self.account()}") from error

    def _freeze(self, tenant: Tenant) -> None:
        """Past its session: the others have all partitions, and only then it may go on."""
        tenant.worker.pause()
        self.frozen.add(tenant.worker.pid)
        others = [each.worker for each in self.tenants if each.running and each is not tenant]
        try:
            eventually(
                lambda: len(set().union(*(each.live() for each in others))) == self.partitions,
                HANDED_OVER_DEADLINE_S,
                "the others to have all partitions of a frozen worker",
                poll_s=0.1,
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.account()}") from error
        finally:
            tenant.worker.resume()

    def _tell(self, what: str) -> None:
        self.story.append(f"{time.monotonic() - self._began:6.1f} s  {what}")


def check_second_runs(
    runs: Sequence[Run], killed: set[int], journal_of: Mapping[int, Sequence[Line]]
) -> Counter[str]:
    """All runs of an attempt but one were in vain: their process was killed or deposed, by its own journal.

    A deposed owner may run what its successor has run already, so the one in vain need not be the first.

    Returns:
        How many runs in vain each of the two explains.
    """
    refused, told = (
        Counter(
            (pid, line["effectKey"], line["attempt"])
            for pid, journal in journal_of.items()
            for line in events_of(journal, *events)
        )
        for events in (["completion_refused"], ["result_saved", "retry_scheduled", "quarantined"])
    )
    explained: Counter[str] = Counter()
    by_attempt: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        by_attempt[run.effect_key, run.attempt].append(run)
    for same in by_attempt.values():
        left = []
        for run in same if len(same) > 1 else ():
            ident = (run.pid, run.effect_key, run.attempt)
            if refused[ident]:
                refused[ident] -= 1
                explained["deposed"] += 1
            elif run.pid in killed and not told[ident]:
                explained["killed"] += 1
            else:
                left.append(run)
        assert len(left) <= 1, f"no kill and no deposed owner explains a second run: {left}, all: {same}"
    return explained


def check_no_false_gap(journal_of: Mapping[int, Sequence[Line]], parked: Mapping[str, Sequence[int]]) -> None:
    """Gaps were declared, and records parked behind them, only where the input has one.

    Args:
        parked: by sequence key behind a gap, the sequences that wait.
    """
    for pid, journal in journal_of.items():
        for line in events_of(journal, "gap_detected"):
            waiting = parked.get(line["sequenceKey"], ())
            assert line["sequence"] in waiting, f"a false gap, by pid {pid}: {line}"


def check_reasons(journal_of: Mapping[int, Sequence[Line]], allowed: set[str]) -> None:
    """Cases were opened for these reasons only."""
    for pid, journal in journal_of.items():
        for line in events_of(journal, "review_opened"):
            # A case id is its reason and a hash.
            assert line["reason"].rpartition("-")[0] in allowed, (
                f"pid {pid} opened a case that nothing deserves: {line}"
            )


def runs_in(directory: Path, pid: int | None = None) -> int:
    """How often handlers have run so far, in one process or in all."""
    pattern = "*.runs" if pid is None else f"{pid}.runs"
    return sum(path.read_bytes().count(b"\n") for path in directory.glob(pattern))


def work_on(done: Callable[[], int], target: int, deadline_s: float) -> None:
    """Return when so much is done, or when the time is over, whichever comes first."""
    deadline = time.monotonic() + deadline_s
    while done() < target and time.monotonic() < deadline:
        time.sleep(0.05)
