"""Lanes in memory: what waits in front of one, what is out with a handler, what must commit first.

`Work` is one of them, `Lanes` the queue of all that may have something to judge, with those that
wait for a commit or for time. `EffectsInHand` knows the effect keys that are being worked on: one
effect key never has two deliveries at once, whatever lanes its records stand in. Nothing here judges.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice

from laneway.lanes.due import DueHeap
from laneway.lanes.lane import NEW_LANE, Lane
from laneway.lanes.record import Record
from laneway.lanes.run import Run


class Work:
    """A lane with something in memory. It lives from its first record to its last commit.

    Attributes:
        waiting: records not judged yet, in the order they came.
        barrier: the cycle that must be committed before a delivery of this lane may start.
        touched: the last cycle that a settlement of this lane belongs to.
        cursor: the last follower that is settled while the ledger still has it; what follows it
            is still parked. None when the ledger can be believed.
        rest_until_ms: a dependency was unavailable; nothing starts before.
        ready: whether it stands in the queue of lanes to be judged.
        commands: what operators want done to it, in the order they came; None for nothing.
        aside: retries whose time came while the lane was paused.
    """

    __slots__ = (
        "aside",
        "barrier",
        "commands",
        "cursor",
        "lane",
        "ready",
        "rest_until_ms",
        "run",
        "state",
        "touched",
        "waiting",
    )

    def __init__(self, lane: str, state: Lane) -> None:
        self.lane = lane
        self.state = state
        self.waiting: deque[Record] = deque()
        self.run: Run | None = None
        self.barrier = 0
        self.touched = 0
        self.cursor: tuple[int, int] | None = None
        self.rest_until_ms = 0
        self.ready = False
        self.commands: deque[Record] | None = None
        self.aside: list[Record] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it waits in memory and nothing is out."""
        return self.run is None and not (self.waiting or self.ready or self.commands or self.aside)


class Lanes:
    """All lanes of a board that have something in memory, and the order in which to look at them.

    Args:
        read: stored lanes by id, in the order asked.

    Attributes:
        committed: the last cycle that is durable.
    """

    __slots__ = (
        "_behind_commit",
        "_behind_gate",
        "_here",
        "_read",
        "_ready",
        "_resting",
        "_unanswered",
        "committed",
    )

    def __init__(self, read: Callable[[Sequence[str]], Sequence[Lane | None]]) -> None:
        self._read = read
        self._here: dict[str, Work] = {}
        self._ready: deque[Work] = deque()
        self._behind_commit: dict[str, Work] = {}
        self._behind_gate: dict[str, Work] = {}
        self._resting: DueHeap[Work] = DueHeap()
        self._unanswered: set[str] = set()
        self.committed = 0

    def __len__(self) -> int:
        return len(self._here)

    def get(self, lane: str) -> Work | None:
        """A lane that is in memory."""
        return self._here.get(lane)

    def of(self, lanes: Sequence[str]) -> list[Work]:
        """These lanes, in the order asked; those not in memory are read at once."""
        here = self._here
        missing = list({lane for lane in lanes if lane not in here})
        if missing:
            for lane, state in zip(missing, self._read(missing), strict=True):
                here[lane] = Work(lane, state if state is not None else NEW_LANE)
        return [here[lane] for lane in lanes]

    def enter(self, records: Sequence[Record]) -> None:
        """Put records in front of their lanes."""
        if not records:
            return
        for record, work in zip(records, self.of([r.lane for r in records]), strict=True):
            work.waiting.append(record)
            if not work.ready and work.run is None:
                work.ready = True
                self._ready.append(work)

    def command(self, record: Record) -> None:
        """Put an operator's command in front of its lane."""
        work = self.of([record.lane])[0]
        if work.commands is None:
            work.commands = deque()
        work.commands.append(record)
        if work.run is not None:
            # It waits for the delivery in flight, not for those that would start after it.
            work.run.stop = True
        self.wake(work)

    def wake(self, work: Work) -> None:
        """Look at this lane again; while it has a run out there is nothing to see."""
        if not work.ready and work.run is None:
            work.ready = True
            self._ready.append(work)

    @property
    def has_ready(self) -> bool:
        """Whether a lane waits to be judged."""
        return bool(self._ready)

    def take_ready(self, limit: int) -> list[Work]:
        """The lanes to judge next, longest waiting first; one that has a run out is passed over."""
        ready = self._ready
        taken = [ready.popleft() for _ in range(min(len(ready), limit))]
        for work in taken:
            work.ready = False
        return [work for work in taken if work.run is None]

    def rest(self, work: Work, until_ms: int) -> None:
        """Start nothing of this lane before that time."""
        work.rest_until_ms = until_ms
        self._resting.push(until_ms, work)
        self._unanswered.add(work.lane)

    def tick(self, now_ms: int) -> None:
        """Wake the lanes that have rested."""
        for work in self._resting.pop_due(now_ms, len(self._resting)):
            if work.rest_until_ms <= now_ms:
                # Over for good: a clock that is set back must not make it rest with nobody to wake it.
                work.rest_until_ms = 0
            self.wake(work)

    def bring_forward(self, by_ms: int) -> None:
        """Let all that rest do so for so much less: the clock was set back."""
        for work in self._resting.pop_due(sys.maxsize, len(self._resting)):
            self.rest(work, work.rest_until_ms - by_ms)

    @property
    def next_due_ms(self) -> int | None:
        """When the first lane has rested; None when none rests."""
        return self._resting.next_due_ms

    def answered(self, lane: str) -> None:
        """What this lane has rested for is there."""
        self._unanswered.discard(lane)

    @property
    def unanswered(self) -> int:
        """How many lanes rest, or ask now whether what they rested for is there."""
        return len(self._unanswered)

    def await_commit(self, work: Work) -> None:
        """Look at this lane again after the next commit."""
        self._behind_commit[work.lane] = work

    def await_gate(self, work: Work) -> None:
        """Look at this lane again when lanes may start again: nothing starts now, whatever its turn."""
        self._behind_gate[work.lane] = work

    def open_gate(self, limit: int | None = None) -> None:
        """Wake what waited until something may start, longest waiting first; at most so many lanes."""
        gate = self._behind_gate
        woken = list(gate) if limit is None else list(islice(gate, limit))
        for lane in woken:
            self.wake(gate.pop(lane))

    def commit(self, cycle: int) -> None:
        """A cycle is durable: wake what waited for one."""
        self.committed = max(self.committed, cycle)
        waiting, self._behind_commit = self._behind_commit, {}
        for work in waiting.values():
            self.wake(work)

    def let_go(self, work: Work) -> None:
        """An idle lane costs no memory once all it did is committed."""
        free_with_parked = work.state.is_free and work.state.parked
        # The lane may have been let go before and be back as another object by now.
        here = self._here.get(work.lane) is work
        if here and work.is_empty and work.touched <= self.committed and not free_with_parked:
            del self._here[work.lane]
            self._unanswered.discard(work.lane)

    @property
    def may_start(self) -> bool:
        """Whether any lane has something to start, now or when what it waits for has come."""
        waits = self._ready or self._behind_gate or self._behind_commit or len(self._resting)
        return bool(waits) or self.running > 0

    @property
    def running(self) -> int:
        """Lanes with a run out."""
        return sum(1 for work in self._here.values() if work.run is not None)

    def stop(self) -> None:
        """Let nothing further start; what a handler has in hand may finish."""
        self._ready.clear()
        self.halt()

    def halt(self) -> None:
        """Let no run go on behind what a handler has in hand; the rest comes back unstarted."""
        for work in self._here.values():
            if work.run is not None:
                work.run.stop = True


class EffectsInHand:
    """Which lane has work in hand for an effect key, and which lanes wait for that to end."""

    __slots__ = ("_kept", "_lane_of", "_waiting")

    def __init__(self) -> None:
        self._lane_of: dict[str, str] = {}
        self._waiting: dict[str, dict[str, Work]] = {}
        self._kept: deque[tuple[int, str]] = deque()

    def __len__(self) -> int:
        return len(self._lane_of)

    def __contains__(self, effect_key: str) -> bool:
        return effect_key in self._lane_of

    def held_by(self, effect_key: str, lane: str) -> bool:
        """Whether this lane has the effect in hand."""
        return self._lane_of.get(effect_key) == lane

    def take(self, effect_key: str, lane: str) -> None:
        """A delivery of this effect is about to start."""
        self._lane_of[effect_key] = lane

    def wait(self, effect_key: str, work: Work) -> None:
        """Note a lane whose next record needs the effect to be settled first."""
        self._waiting.setdefault(effect_key, {})[work.lane] = work

    def release(self, effect_key: str) -> list[Work]:
        """The effect is settled, or was never started: the lanes that may look again."""
        self._lane_of.pop(effect_key, None)
        if effect_key not in self._waiting:
            return []
        return list(self._waiting.pop(effect_key).values())

    def release_all(self, effect_keys: Iterable[str], lane: str) -> list[Work]:
        """Release those that this lane has in hand: the lanes that may look again."""
        lane_of, waiting = self._lane_of, self._waiting
        woken: list[Work] = []
        for effect_key in effect_keys:
            if lane_of.get(effect_key) == lane:
                del lane_of[effect_key]
                if effect_key in waiting:
                    woken += waiting.pop(effect_key).values()
        return woken

    def keep(self, effect_key: str, cycle: int) -> None:
        """The effect is settled, but stays in hand until that cycle is durable."""
        self._kept.append((cycle, effect_key))

    def keep_longer(self, effect_keys: Collection[str]) -> None:
        """These do not become durable with their cycle; they are kept again when it is known with which."""
        self._kept = deque(kept for kept in self._kept if kept[1] not in effect_keys)

    def commit(self, cycle: int) -> list[Work]:
        """Release what was kept for this cycle; returns the lanes that may look again."""
        woken = []
        while self._kept and self._kept[0][0] <= cycle:
            woken += self.release(self._kept.popleft()[1])
        return woken
