"""What the ledger will make of a move of offsets, before anything is moved.

Two looks at the same records. The first finds who they are, so that of the ledger only what they touch has to
be kept: their effects, their lanes, the followers parked there, and the open cases. The second is a trial: a
real board over that part of the ledger reads them as a worker would, with every payload taken as done. So
what is said here is what the rules do, not an opinion of it. Memory follows the records that are looked at.

Back: positions that the ledger has settled are suppressed, whatever their effects. Forward: what was not
settled is passed over for good, and a lane that loses a number waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from laneway.consumer.kafka.cluster import Partition, Watermarks
from laneway.consumer.operations.reset import Move
from laneway.consumer.preview.preview import Read, batches_of, is_numbered
from laneway.consumer.preview.trial import Seen, Trial
from laneway.consumer.preview.window import shares
from laneway.consumer.rules import envelope_of, rules_of
from laneway.consumer.settings.model import Settings
from laneway.lanes.admission import Order, Place, place
from laneway.lanes.books import Cut
from laneway.lanes.case import Case
from laneway.lanes.forward import Home
from laneway.lanes.frontier import Seen as Fate
from laneway.lanes.frontier import reopened
from laneway.lanes.lane import Lane
from laneway.lanes.record import Channel, Record
from laneway.lanes.rules import Rules
from laneway.lanes.view import ChannelMark, Meta, PutCase
from laneway.pipeline import Pipeline
from laneway.store import codec
from laneway.store.memory import MemoryLedger
from laneway.store.port import ChangelogMark

KEPT: Final = 20
"""Names of each kind that are told."""


@dataclass(frozen=True, slots=True)
class Touched:
    """The records that a move is about, by name.

    Attributes:
        spans: what is looked at, by partition.
        unread: offsets that are not looked at, by partition.
    """

    spans: Mapping[Partition, Watermarks]
    unread: Mapping[Partition, int]
    effects: set[str]
    lanes: set[str]


class Part:
    """The part of a ledger that some records touch, folded from its entries."""

    prefixes: tuple[bytes, ...] = (codec.EFFECT, codec.LANE, codec.PARKED, codec.CASE, codec.META_KEY)

    def __init__(self, touched: Touched) -> None:
        self._wanted = {codec.effect_key(key) for key in touched.effects}
        self._wanted |= {codec.lane_key(lane) for lane in touched.lanes}
        self._parked = {codec.parked_prefix(lane) for lane in touched.lanes}
        self._entries: dict[bytes, bytes] = {}

    def take(self, key: bytes, value: bytes | None) -> None:
        """Fold one entry in; None removes."""
        kind = key[:1]
        if kind == codec.PARKED:
            if codec.prefix_of_parked(key) not in self._parked:
                return
        elif kind in {codec.EFFECT, codec.LANE} and key not in self._wanted:
            return
        self._entries.pop(key, None)
        if value is not None:
            self._entries[key] = value

    @property
    def meta(self) -> Meta | None:
        """What the last cycle says; None where there was none."""
        value = self._entries.get(codec.META_KEY)
        return None if value is None else codec.decode_meta(value)

    def lane(self, name: str) -> Lane:
        """One of the lanes."""
        value = self._entries.get(codec.lane_key(name))
        return Lane() if value is None else codec.decode_lane(value)

    def cases(self) -> Iterator[Case]:
        """The open cases."""
        for key, value in self._entries.items():
            if key[:1] == codec.CASE:
                yield codec.decode_case(value)

    def ledger(self) -> MemoryLedger:
        """The same as a ledger, to be tried on. A pause is left out: it says when, not what."""
        entries = dict(self._entries)
        if (meta := self.meta) is not None:
            entries[codec.META_KEY] = codec.encode(msgspec.structs.replace(meta, pause=None))
        ledger = MemoryLedger()
        ledger.apply_changes(list(entries.items()), ChangelogMark("", 0, 0))
        return ledger


@dataclass
class Foreseen:
    """What a move comes to in one partition.

    Attributes:
        frontier: what the ledger has settled all of below; None where there is no ledger.
        again: records that are read again, or for the first time although they lie below.
        suppressed: of those, the ones that run nothing: settled, or a duplicate.
        runs: of those, the ones that the handler would get.
        parked, reviewed, unreadable: of those, what became of the rest.
        lost: records that nothing has settled and that nobody will read any more; `gone` is a part of it.
        lost_at: the first of their offsets, as far as there is something to read at them.
        gone: positions that were deleted before anybody read them, so nobody knows what they held.
        gaps: by key, the lowest number that its lane would wait for in vain.
        gaps_now: how many of those lanes have a later record in the log already.
        closed, opened: cases that records which are read again would close and open.
        about: open cases whose record, or whose missing number, lies in what is moved over.
        unread: offsets that were not looked at.
    """

    frontier: int | None = None
    again: int = 0
    suppressed: int = 0
    runs: int = 0
    parked: int = 0
    reviewed: int = 0
    unreadable: int = 0
    lost: int = 0
    lost_at: list[int] = field(default_factory=list)
    gone: int = 0
    gaps: dict[str, int] = field(default_factory=dict)
    gaps_now: int = 0
    closed: list[str] = field(default_factory=list)
    opened: int = 0
    about: list[str] = field(default_factory=list)
    unread: int = 0

    @property
    def cases(self) -> int:
        """Cases that it touches in one way or another."""
        return len({*self.closed, *self.about}) + self.opened


def outdated(moves: Sequence[Move], parts: Mapping[Partition, Part]) -> Mapping[Partition, int]:
    """Ledgers that end below what a worker has committed, and below which nobody may go back: where they end.

    What happened since is known to another one. Read again with this one, it would happen twice.
    """
    found = {}
    for move in moves:
        part = parts.get(move.place)
        mark = None if part is None or part.meta is None else part.meta.marks.get(Channel.SOURCE)
        if mark is None or not move.by_worker or move.before is None:
            continue
        if move.after < move.before and mark.frontier < move.before:
            found[move.place] = mark.frontier
    return found


def touched(
    settings: Settings, moves: Sequence[Move], *, limit: int, timeout_s: float, read: Read = batches_of
) -> Touched:
    """The records between where the group is and where it goes; of a move forward those behind it too.

    Raises:
        IncompleteError: the deadline passed.
    """
    sizes = {move.place: _span(move).end - _span(move).start for move in moves}
    share = shares(sizes, limit)
    spans = {}
    for move in moves:
        start = _span(move).start
        spans[move.place] = Watermarks(start, start + share[move.place])
    unread = {place: size - share[place] for place, size in sizes.items()}
    found = Touched(spans, unread, set(), set())
    envelopes = {move.place[0]: envelope_of(settings, move.place[0], None) for move in moves}
    for (topic, number), records in read(settings, spans, timeout_s=timeout_s):
        for record in records:
            if not record.fault:
                envelopes[topic].read(record, topic, number)
            if not record.fault and not record.skip:
                found.effects.add(record.effect_key)
                found.lanes.add(record.lane)
    return found


def _span(move: Move) -> Watermarks:
    """What a look needs: back, what is read again; forward, what is passed over and what stands behind it."""
    if move.after <= move.origin:
        return Watermarks(move.after, move.origin)
    return Watermarks(move.origin, move.log.end)


def foreseen(
    settings: Settings,
    moves: Sequence[Move],
    found: Touched,
    parts: Mapping[Partition, Part],
    *,
    timeout_s: float,
    read: Read = batches_of,
) -> Mapping[Partition, Foreseen]:
    """What each move comes to.

    Args:
        parts: of each partition's ledger; absent where none was ever begun.

    Raises:
        IncompleteError: the deadline passed.
    """
    rules = rules_of(settings)
    looks = {
        move.place: _Look(settings, rules, move, parts.get(move.place) or Part(found), found)
        for move in moves
    }
    for at, records in read(settings, found.spans, timeout_s=timeout_s):
        looks[at].take(records)
    return {at: look.outcome() for at, look in looks.items()}


class _Look:
    """One partition: what is lost before the goal, and a trial of what is read from it on."""

    def __init__(self, settings: Settings, rules: Rules, move: Move, part: Part, found: Touched) -> None:
        topic, number = move.place
        meta = part.meta
        mark: ChannelMark | None = None if meta is None else meta.marks.get(Channel.SOURCE)
        self._rules = rules
        self._move = move
        self._part = part
        self._numbered = is_numbered(settings, topic)
        self._forward = move.after > move.origin
        # What a worker that starts here now would read; a record that this knows as settled is not lost.
        self._here = reopened(move.origin, mark)
        self._seen = Seen(1)
        self._missing: dict[str, set[int]] = {}
        self._result = Foreseen(
            frontier=None if mark is None else mark.frontier, unread=found.unread[move.place]
        )
        self._result.gone = self._result.lost = _gone(move, mark)
        self._trial = Trial(
            Home(settings.group, topic, number),
            rules,
            envelope_of(settings, topic, None),
            Pipeline(payload=bytes).compile_reading(),
            self._seen,
            start=move.after,
            is_numbered=self._numbered,
            clock=lambda: time.time_ns() // 1_000_000,
            ledger=part.ledger(),
            watch=self._watch,
        )

    def take(self, records: Sequence[Record]) -> None:
        """Records in the order of the log."""
        for record in records:
            self._trial.read(record)
        passed = [record for record in records if record.offset < self._move.after]
        for record in passed:
            self._pass_over(record)
        if len(passed) < len(records):
            self._trial.take(records[len(passed) :])

    def _pass_over(self, record: Record) -> None:
        if self._here.see(record.offset) is not Fate.NEW:
            return
        result = self._result
        result.lost += 1
        if len(result.lost_at) < KEPT:
            result.lost_at.append(record.offset)
        key = record.sequence_key
        if record.fault or record.skip or key is None or not self._numbered:
            return
        self._missing.setdefault(record.lane, set()).add(record.sequence)
        if self._rules.order is not Order.CONTIGUOUS:
            return
        last = self._part.lane(record.lane).last
        stands = place(self._rules.order, record.sequence, last, self._rules.first_sequence)
        is_first = last is None and self._rules.first_sequence is None
        if stands is not Place.BELOW and not is_first:
            result.gaps[key] = min(record.sequence, result.gaps.get(key, record.sequence))

    def _watch(self, cut: Cut) -> None:
        for done in cut.settlements:
            for entry in done.entries:
                if type(entry) is not PutCase:
                    continue
                case, result = entry.case, self._result
                if self._forward:
                    # What stands behind the goal is read either way; only what is lost before it counts.
                    is_gap = case is not None and case.reason == "sequence-gap"
                    result.gaps_now += is_gap and done.record.sequence_key in result.gaps
                elif case is None:
                    result.closed.append(entry.case_id)
                else:
                    result.opened += 1

    def outcome(self) -> Foreseen:
        """What it came to, once all was taken."""
        result, fates = self._result, self._seen.fates
        for case in self._part.cases():
            if self._is_about(case):
                result.about.append(case.case_id)
        if not self._forward:
            result.again = self._trial.records
            result.suppressed = fates.of("duplicate")
            result.runs = fates.of("effect")
            result.reviewed = fates.of("review")
            result.unreadable = self._seen.unreadable
            result.parked = len(list(self._trial.waiting()))
        return result

    def _is_about(self, case: Case) -> bool:
        move = self._move
        if case.reason == "sequence-gap":
            return case.sequence in self._missing.get(case.lane, ())
        low, high = sorted((move.after, move.origin))
        return low <= case.offset < high


def _gone(move: Move, mark: ChannelMark | None) -> int:
    """How many positions are not in the log any more, and not settled either."""
    known = [each for each in (move.before, None if mark is None else mark.frontier) if each is not None]
    low, high = max(known, default=move.log.start), move.log.start
    settled = () if mark is None else mark.settled
    return max(0, high - low - sum(max(0, min(end, high) - max(start, low)) for start, end in settled))
