"""Settling: one truth, one follower, as a plain list of steps over a cycle.

A cycle is a value: what each partition settled since the last one, its forwards, its offsets.
The strategy names the truth: `local_truth` has the ledger first and Kafka after it,
`changelog_truth` a Kafka transaction first and the ledger after it. The settler only walks the
strategy's steps, one cycle at a time, and never waits: a step that needs the disk or the broker
says "not yet" and is asked again, so the owner goes on reading meanwhile.

Nothing here imports Kafka or RocksDB; the simulation drives the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Protocol

from laneway.consumer.partition import Partition, State
from laneway.consumer.profile import NO_PROFILE, OF_STEP, Profile, Stage
from laneway.lanes.board import Cut
from laneway.lanes.view import Meta


class PartCycle:
    """One partition's share of a cycle.

    Attributes:
        cut: None when only old debts to Kafka are paid.
        meta: where the partition stands once the cycle is durable.
    """

    __slots__ = ("cut", "meta", "partition")

    def __init__(self, partition: Partition, cut: Cut | None, meta: Meta) -> None:
        self.partition = partition
        self.cut = cut
        self.meta = meta


class Cycle:
    """What becomes durable together.

    Attributes:
        parts: shares of the partitions; one whose ledger fails is taken out.
        now_ms: the time, as the settler was last told.
        since_ms: when the step now running began.
    """

    __slots__ = ("now_ms", "number", "parts", "since_ms")

    def __init__(self, number: int, parts: list[PartCycle], now_ms: int) -> None:
        self.number = number
        self.parts = parts
        self.now_ms = now_ms
        self.since_ms = now_ms


class Again(Enum):
    """The third answer of a step: nothing of the cycle counts yet, it begins anew with what is left of it."""

    FROM_THE_START = "from the start"


class Step(Protocol):
    """One act of a cycle. Returns False when it has to be called again before the next may start."""

    def __call__(self, cycle: Cycle) -> bool | Again:
        """Do, or go on doing, this step."""
        ...


class Strategy(Protocol):
    """Which steps make a cycle durable, in which order."""

    @property
    def steps(self) -> Sequence[tuple[str, Step]]:
        """Named steps. The name is also the crash point right behind the step."""
        ...

    def is_ready(self, now_ms: int, /) -> bool:
        """Whether a cycle may begin. Asked again and again while none is under way."""
        ...

    @property
    def holds_offsets(self) -> bool:
        """Whether the group keeps everybody waiting for offsets until this thread has gone on."""
        ...

    @property
    def is_cut_off(self) -> bool:
        """Whether the group went on without this worker: nothing is settled before it has joined again."""
        ...

    def takes(self, partition: Partition, /) -> bool:
        """Whether a partition that is still open takes part in cycles."""
        ...


CrashPoint = Callable[[str], None]
"""Called with the name of each step that is done; tests arm it to end the process there."""


def no_crash(_: str) -> None:
    """The crash point of every real run."""


class Settler:
    """Walks cycles through a strategy.

    Args:
        max_ms: age at which settlements are cut into a cycle.
        max_records: their number at which they are cut at once.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        max_ms: int,
        max_records: int,
        crash_point: CrashPoint = no_crash,
        profile: Profile = NO_PROFILE,
    ) -> None:
        self._profile = profile
        self._strategy = strategy
        self._steps = strategy.steps
        self._max_ms = max_ms
        self._max_records = max_records
        self._crash_point = crash_point
        self._cycle: Cycle | None = None
        self._step = 0
        self._number = 0
        self._cut_ms = 0

    def advance(self, partitions: Iterable[Partition], now_ms: int, *, urgent: bool = False) -> None:
        """Walk on as far as the steps go without waiting; begin a cycle when one is due.

        Args:
            urgent: do not wait for the cycle's age; a partition is leaving.
        """
        if self._cycle is None and self._strategy.is_ready(now_ms):
            self._begin(partitions, now_ms, urgent)
        while self._cycle is not None:
            name, step = self._steps[self._step]
            # A partition that left in mid-cycle owes nothing more; its ledger may be closed.
            self._cycle.parts = [p for p in self._cycle.parts if p.partition.state is not State.CLOSED]
            self._cycle.now_ms = now_ms
            self._profile.enter(OF_STEP.get(name, Stage.REST))
            answer = step(self._cycle)
            if not answer:
                return
            if answer is Again.FROM_THE_START:
                self._step = 0
                self._cycle.since_ms = now_ms
                continue
            self._crash_point(name)
            self._step += 1
            self._cycle.since_ms = now_ms
            if self._step == len(self._steps):
                self._cycle = None

    @property
    def idle(self) -> bool:
        """Whether no cycle is under way."""
        return self._cycle is None

    def owes(self, partition: Partition) -> bool:
        """Whether waiting a little longer would make more of this partition durable, or known to Kafka."""
        if partition.board is None or partition.failure is not None or not self._strategy.takes(partition):
            return False
        return bool(partition.board.pending) or (not partition.lost and partition.is_behind())

    def is_through_with(self, partitions: Sequence[Partition], *, to_the_end: bool) -> bool:
        """Whether no cycle has anything of these partitions under way, and they owe nothing more.

        Args:
            to_the_end: what is held back because nobody takes it counts, too.
        """
        under_way = [] if self._cycle is None else [part.partition for part in self._cycle.parts]
        busy = any(p in under_way and self._strategy.takes(p) for p in partitions)
        held_back = to_the_end and any(
            p.board is not None and p.failure is None and p.board.held_back for p in partitions
        )
        return not (busy or held_back or any(map(self.owes, partitions)))

    @property
    def holds_offsets(self) -> bool:
        """Whether nobody can ask the group for its offsets before `advance` was called again."""
        return self._strategy.holds_offsets

    @property
    def is_cut_off(self) -> bool:
        """Whether nothing can be settled before this worker has joined its group again."""
        return self._strategy.is_cut_off

    def _begin(self, partitions: Iterable[Partition], now_ms: int, urgent: bool) -> None:
        owned = [
            p
            for p in partitions
            if p.board is not None and p.state is not State.CLOSED and self._strategy.takes(p)
        ]
        pending = sum(p.board.pending for p in owned if p.board is not None)
        old = now_ms - self._cut_ms >= self._max_ms or now_ms < self._cut_ms
        if not (urgent or old or pending >= self._max_records):
            return
        parts = []
        self._profile.enter(Stage.CUT)
        for partition in owned:
            if partition.board is None or partition.failure is not None:
                continue
            cut = partition.board.cut(now_ms)
            owes = partition.is_behind() or (not urgent and partition.is_note_stale(now_ms))
            if cut is not None or (owes and not partition.lost):
                # With nothing to cut it is what the cycle before has made of it, and stays so in this one.
                meta = partition.board.meta(now_ms) if cut is None else cut.meta
                parts.append(PartCycle(partition, cut, meta))
        self._cut_ms = now_ms
        if parts:
            self._number += 1
            self._cycle = Cycle(self._number, parts, now_ms)
            self._step = 0
            self._crash_point("cut")
