"""The books of one partition: what is settled and not yet durable, and all that waits for it.

Judging and settling both end here. A settlement moves its lane, the frontier and the counts at once; it is
cut into a cycle later, and forgotten when that cycle is durable. What cannot be published is held back: it
waits, with all that came after it in its lane or effect, and the frontier is told as if it had not happened.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from laneway.lanes.effect import Effect
from laneway.lanes.frontier import Frontier, reopened, without
from laneway.lanes.lane import Lane, Pause
from laneway.lanes.overlay import Overlay
from laneway.lanes.record import Channel, Record
from laneway.lanes.settlement import Settlement
from laneway.lanes.view import ChannelMark, Entry, LedgerView, Meta, Opening, PutCase, PutEffect, PutParked
from laneway.lanes.work import EffectsInHand, Lanes, Work

ALREADY_SETTLED: Final = "already-settled"
_HELD_BACK: Final = sys.maxsize
"""The cycle of what is in none: no commit reaches it."""
HELD_BACK_MS: Final = 1000
LONGEST_HELD_BACK_MS: Final = 30_000


class Cut(msgspec.Struct, frozen=True):
    """What one partition brings to a cycle.

    Attributes:
        intents: effects whose handlers may start once this is durable, and those that never started.
    """

    number: int
    settlements: list[Settlement]
    meta: Meta
    intents: list[Entry]

    def entries(self) -> Iterator[Entry]:
        """All that goes into the ledger, in order."""
        yield from self.intents
        for done in self.settlements:
            yield from done.entries


class Books:
    """Settlements on their way to the ledger. One for each board.

    Args:
        writer: this start of the process, for the meta entry.
        topic_ids: of the source topic and its retry topic, for the meta entry too.
        starts: by channel, the offset reading starts at when the ledger knows none.
        max_parked_per_lane: the bound that `full_lanes` watches.
        moved_past: adds the lane's entry to a settlement; see `Settling.moved_past`.

    Attributes:
        lanes, in_hand, ledger: the lanes in memory, the effects being worked on, and the ledger with what is
            not committed laid over it.
        full_lanes: lanes at the bound of what may be parked.
        handed_over: by channel, the highest offset that handlers may have seen.
        pause: set while an operator lets nothing of the partition start.
        moved: a frontier moved without a settlement, or an intent was noted, or the ledger is new.
    """

    def __init__(
        self,
        view: LedgerView,
        opening: Opening,
        *,
        writer: str,
        topic_ids: tuple[str, str] = ("", ""),
        starts: dict[Channel, int],
        max_parked_per_lane: int,
        moved_past: Callable[[Settlement, Record, Lane], Lane],
    ) -> None:
        meta = opening.meta
        marks = meta.marks if meta is not None else {}
        self.ledger = Overlay(view, opening)
        self.lanes = Lanes(self.ledger.lanes)
        self.in_hand = EffectsInHand()
        self.full_lanes: set[str] = set()
        self.in_memory = 0
        self.in_memory_bytes = 0
        self._settled_bytes = 0
        self._under_way_bytes = 0
        self.handed_over: dict[Channel, int] = dict(meta.handed_over) if meta is not None else {}
        self.pause: Pause | None = meta.pause if meta is not None else None
        # A new ledger says in its first cycle where it begins: then a worker's offsets never stand alone.
        self.moved = meta is None
        self.cycle = 1
        self.frontiers: dict[Channel, Frontier] = {
            channel: reopened(start, marks.get(channel)) for channel, start in starts.items()
        }
        self._writer = writer
        self._topic_ids = topic_ids
        self._max_parked_per_lane = max_parked_per_lane
        self._moved_past = moved_past
        self._settled: list[Settlement] = []
        self._intents: list[Entry] = []
        self._held_back: list[Settlement] = []
        self._under_way: list[Settlement] = []
        self._again_ms = 0
        self._wait_ms = HELD_BACK_MS
        self._refused = 0
        self._numbered = 0

    # -- what happened

    def settle(
        self, settlement: Settlement, after: Lane | None, work: Work | None, *, barrier: bool = True
    ) -> None:
        """Book a settlement: lane, counters, frontier, and what must wait for its commit.

        Args:
            after: the lane as it stands then; None when it did not change.
            barrier: nothing of the lane may start before this is durable.
        """
        record = settlement.record
        self._append(settlement)
        self.ledger.book(settlement.entries, self.cycle)
        if work is not None:
            work.touched = self.cycle
            if barrier:
                work.barrier = self.cycle
                # No follower is read back before that cycle is durable, and then the ledger is right.
                work.cursor = None
            elif record.parked and settlement.ends:
                work.cursor = (record.sequence, record.origin_offset)
            if after is not None:
                if after.parked != work.state.parked:
                    self.ledger.book_parked(work.state, after)
                    self.watch_bound(work.lane, after)
                work.state = after
            if self.in_hand.held_by(record.effect_key, work.lane):
                if barrier:
                    self.in_hand.keep(record.effect_key, self.cycle)
                else:
                    self.release_effect(record.effect_key)
        if not record.parked:
            self.frontiers[record.channel].settle(record.offset)
            self.in_memory -= 1
            self.in_memory_bytes -= record.size_bytes
            self._settled_bytes += record.size_bytes

    def settle_acks(self, settlements: list[Settlement], after: Lane, work: Work) -> None:
        """Book settlements of consecutive records of a free lane: `settle` for each, without barriers.

        Args:
            after: the lane as it stands behind the last of them.
        """
        numbered = self._numbered
        settle = self.frontiers[settlements[0].record.channel].settle
        size = 0
        for settlement in settlements:
            numbered += 1
            settlement.number = numbered
            record = settlement.record
            settle(record.offset)
            size += record.size_bytes
        self._numbered = numbered
        self._settled += settlements
        self.ledger.book([entry for done in settlements for entry in done.entries], self.cycle)
        for woken in self.in_hand.release_all([done.record.effect_key for done in settlements], work.lane):
            self.lanes.wake(woken)
        self.in_memory -= len(settlements)
        self.in_memory_bytes -= size
        self._settled_bytes += size
        work.touched = self.cycle
        work.state = after

    def already_settled(self, settlement: Settlement) -> None:
        """A position that the ledger knows came again; nothing changes but the journal."""
        self._append(settlement)

    def switch(self, settlement: Settlement, pause: Pause | None) -> None:
        """Book a command that pauses the partition, or lets it go on."""
        settlement.switched = (self.pause,)
        self.pause = pause
        self.settle(settlement, None, None)

    def _append(self, settlement: Settlement) -> None:
        self._numbered += 1
        settlement.number = self._numbered
        self._settled.append(settlement)

    def intend(self, effect_key: str, effect: Effect | None, work: Work) -> None:
        """Note that a handler is about to start, or (with the effect as it was) that it did not."""
        entry = PutEffect(effect_key, effect)
        self._intents.append(entry)
        self.ledger.book((entry,), self.cycle)
        work.touched = self.cycle

    def count(self, record: Record) -> None:
        """A record came into memory; its settlement takes it out."""
        self.in_memory += 1
        self.in_memory_bytes += record.size_bytes

    def watch_bound(self, lane: str, after: Lane) -> None:
        """Note whether a lane is at the bound of what may be parked."""
        if after.parked >= self._max_parked_per_lane:
            self.full_lanes.add(lane)
        else:
            self.full_lanes.discard(lane)

    def release_effect(self, effect_key: str) -> None:
        """An effect is in nobody's hand any more."""
        for work in self.in_hand.release(effect_key):
            self.lanes.wake(work)

    # -- what becomes durable

    @property
    def pending(self) -> int:
        """Settlements and intents that no cut has taken yet."""
        return len(self._settled) + len(self._intents)

    @property
    def has_intents(self) -> bool:
        """Whether handlers wait for a cut to be made and committed."""
        return bool(self._intents)

    @property
    def held_back(self) -> int:
        """Settlements that wait because something cannot be published."""
        return len(self._held_back)

    @property
    def undecided_bytes(self) -> int:
        """The size of the records that are settled and not known to be durable, those held back included."""
        held = sum(done.record.size_bytes for done in self._held_back) if self._held_back else 0
        return self._settled_bytes + self._under_way_bytes + held

    def cut(self, now_ms: int) -> Cut | None:
        """Take what happened since the last cut, with the frontiers it leads to."""
        is_due = bool(self._held_back) and not self._again_ms - self._wait_ms <= now_ms < self._again_ms
        if not (self._settled or self._intents or self.moved or is_due):
            return None
        self.moved = False
        settlements = self._settled
        self._settled = []
        self._under_way_bytes, self._settled_bytes = self._settled_bytes, 0
        if is_due:
            self._under_way_bytes += sum(done.record.size_bytes for done in self._held_back)
            settlements = self._held_back + settlements
            self._book_later(self._held_back, self.cycle)
            self._held_back = []
        elif self._held_back:
            settlements, behind = _apart(settlements, self._held_back)
            self._tell_lanes(settlements, behind)
            self._hold(behind)
        else:
            self._wait_ms = HELD_BACK_MS
        cut = Cut(self.cycle, settlements, self.meta(now_ms), self._intents)
        self._under_way = settlements
        self._intents = []
        self.cycle += 1
        return cut

    def hold_back(self, cut: Cut, settlement: Settlement, now_ms: int) -> Cut:
        """The cut without a settlement that cannot become durable now, and without all that hang on it.

        Its forward was refused. Later settlements of its lane or of its effect key stay behind it; they all
        come again in a later cut, and count as in hand until then.
        """
        first = next(at for at, done in enumerate(cut.settlements) if done is settlement)
        kept, behind = _apart(cut.settlements[first + 1 :], [settlement])
        held = [settlement, *behind]
        self._under_way = cut.settlements[:first] + kept
        self._tell_lanes(self._under_way, held)
        self._hold(held)
        if cut.number != self._refused:
            # Once for each cut: ten lanes that are refused together are one refusal.
            self._refused = cut.number
            self._again_ms = now_ms + self._wait_ms
            self._wait_ms = min(2 * self._wait_ms, LONGEST_HELD_BACK_MS)
        meta = cut.meta
        cases, parked, parked_bytes = _counts(held)
        rest = msgspec.structs.replace(
            meta,
            marks={channel: _without(mark, channel, held) for channel, mark in meta.marks.items()},
            open_cases=meta.open_cases - cases,
            parked=meta.parked - parked,
            parked_bytes=meta.parked_bytes - parked_bytes,
            pause=_pause_without(meta.pause, held),
        )
        return msgspec.structs.replace(cut, settlements=self._under_way, meta=rest)

    def meta(self, now_ms: int) -> Meta:
        """Where the partition stands now, settlements not yet cut included and those held back not."""
        cases, parked, parked_bytes = _counts(self._held_back)
        return Meta(
            writer=self._writer,
            cycle=self.cycle,
            marks={c: _without(f.mark(), c, self._held_back) for c, f in self.frontiers.items()},
            open_cases=self.ledger.open_cases - cases,
            parked_bytes=self.ledger.parked_bytes - parked_bytes,
            written_ms=now_ms,
            parked=self.ledger.parked_records - parked,
            handed_over=dict(self.handed_over),
            pause=_pause_without(self.pause, self._held_back),
            topic_ids=self._topic_ids,
        )

    def undecided(self) -> list[Settlement]:
        """What is settled and not known to be durable, in the order it was made."""
        return sorted(self._under_way + self._held_back + self._settled, key=lambda done: done.number)

    def committed(self, cut: Cut) -> None:
        """A cut is durable: what waited for it may go on, what the ledger now knows is forgotten."""
        self._under_way = []
        self._under_way_bytes = 0
        self.lanes.commit(cut.number)
        for work in self.in_hand.commit(cut.number):
            self.lanes.wake(work)
        self.ledger.forget(cut.entries(), cut.number)
        for lane in dict.fromkeys(settlement.record.lane for settlement in cut.settlements):
            work_done = self.lanes.get(lane)
            if work_done is not None:
                self.lanes.let_go(work_done)

    def _tell_lanes(self, go: list[Settlement], stay: list[Settlement]) -> None:
        """Give the last that goes of each lane the lane's entry, where that stands with one that stays."""
        lanes = {done.record.lane for done in stay}
        for done in reversed(go):
            lane = done.record.lane
            if lane in lanes:
                lanes.remove(lane)
                if done.lane_before is not None:
                    self._moved_past(done, done.record, done.lane_before)
                    done.lane_before = None
            if not lanes:
                break

    def _hold(self, settlements: list[Settlement]) -> None:
        # In the order they were made, whichever was refused first: the last one of a lane counts.
        self._held_back = sorted((*self._held_back, *settlements), key=lambda done: done.number)
        self.in_hand.keep_longer({done.record.effect_key for done in settlements})
        self._book_later(settlements, _HELD_BACK)

    def _book_later(self, settlements: Iterable[Settlement], cycle: int) -> None:
        """What hangs on these becomes durable with another cycle than it was booked for."""
        for done in settlements:
            record = done.record
            self.ledger.book_later(done.entries, cycle)
            work = self.lanes.get(record.lane)
            if work is not None:
                work.touched = work.barrier = cycle
                work.cursor = None
            if cycle != _HELD_BACK and self.in_hand.held_by(record.effect_key, record.lane):
                self.in_hand.keep(record.effect_key, cycle)


def _without(mark: ChannelMark, channel: Channel, settlements: Iterable[Settlement]) -> ChannelMark:
    """The mark as if these had not happened. On a follower no position hangs: its was settled before."""
    return without(
        mark,
        (
            done.record.offset
            for done in settlements
            if done.record.channel is channel and not done.record.parked and done.reason != ALREADY_SETTLED
        ),
    )


def _apart(
    settlements: Iterable[Settlement], behind: Iterable[Settlement]
) -> tuple[list[Settlement], list[Settlement]]:
    """Those that may go before `behind`, and those that share a lane or an effect with it, in order."""
    taken = {name for done in behind for name in _names(done)}
    go: list[Settlement] = []
    stay: list[Settlement] = []
    for done in settlements:
        names = _names(done)
        if taken.isdisjoint(names):
            go.append(done)
        else:
            stay.append(done)
            taken.update(names)
    return go, stay


def _names(done: Settlement) -> list[tuple[str, str]]:
    """What a settlement has in common with those that must not become durable without it."""
    if done.switched is not None:
        return [("partition", "")]
    record = done.record
    return [(k, name) for k, name in (("lane", record.lane), ("effect", record.effect_key)) if name]


def _pause_without(pause: Pause | None, held: Iterable[Settlement]) -> Pause | None:
    """The pause of the partition as if these had not happened."""
    return next((done.switched[0] for done in held if done.switched is not None), pause)


def _counts(settlements: Iterable[Settlement]) -> tuple[int, int, int]:
    """What settlements add to the open cases, the parked records and their bytes."""
    cases = parked = size = 0
    for done in settlements:
        for entry in done.entries:
            if type(entry) is PutCase:
                cases += 1 if entry.case is not None else -1
            elif type(entry) is PutParked:
                added = entry.parked is not None
                parked += 1 if added else -1
                size += entry.parked.raw.size_bytes() if entry.parked is not None else -done.record.size_bytes
    return cases, parked, size
