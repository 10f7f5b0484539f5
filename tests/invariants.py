"""The promises, as code: what must hold at every moment and at the end of any run (design, section 8).

Written once, for whoever can show what the publishers sent, what the handlers did, and what ledger, offsets
and topics say: the simulation today, runs on a real broker as well. Nothing here starts, waits, reads a clock
or knows where the values come from. A broken promise leaves as `Broken`, with its number and its words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from laneway.lanes.case import Case
from laneway.lanes.effect import FINISHED, Effect, EffectState
from laneway.lanes.forward import Forward, ForwardKind
from laneway.lanes.lane import HoldKind, Lane, Parked
from laneway.lanes.record import Headers

WORDS = {
    1: "every input ends in exactly one documented place, or is not passed by the committed offset",
    2: "first effects of a lane happen strictly in order, one at a time",
    3: "one recorded effect per effect key; a second run only where the first one's outcome was lost",
    4: "a committed offset never passes an unsettled record and never goes back",
    5: "a gap is never declared over a record that is there; a free lane with parked records never rests",
    6: "forwards exist exactly when the ledger says so, once for each forward id",
    7: "an old epoch commits nothing after a new owner went live",
    8: "once faults have stopped, lag goes to zero and nothing stays paused, parked or held without reason",
    9: "what the ledger counts is what it holds",
    10: "no payload in the words for people",
    11: "a retry never runs before its time",
    12: "a record that a handler may have seen before comes marked redelivered",
    13: "attempts are exhausted only when all that were promised were made",
    14: "a dead letter is replayed once, at most as often as allowed, and says where it came from",
}


class Broken(AssertionError):  # noqa: N818 - a finding, not an error of its raiser
    """A promise does not hold.

    Args:
        number: of the invariant.
        what: one sentence on what was seen.
    """

    def __init__(self, number: int, what: str, *, partition: int = -1, lane: str = "") -> None:
        super().__init__(f"invariant {number} ({WORDS[number]}): {what}")
        self.number = number
        self.what = what
        self.partition = partition
        self.lane = lane


class LedgerState(Protocol):
    """What one partition's ledger holds, however it was read."""

    @property
    def effects(self) -> Mapping[str, Effect]:
        """By effect key."""
        ...

    @property
    def lanes(self) -> Mapping[str, Lane]:
        """By lane id."""
        ...

    @property
    def parked(self) -> Mapping[str, Mapping[tuple[int, int], Parked]]:
        """By lane id, then by (sequence, offset)."""
        ...

    @property
    def cases(self) -> Mapping[str, Case]:
        """Open ones, by case id."""
        ...


@dataclass(slots=True, eq=False)
class Published:
    """One source record as its publisher meant it, which is not asked of the code under test.

    Attributes:
        lane: as the ledger names it; "" when the record has no usable envelope.
        payload_hash: of the canonical payload.
        fault: it has no usable envelope.
        skipped: the configuration lets it pass without a delivery.
        gone: retention or compaction has taken it away.
    """

    partition: int
    offset: int
    lane: str
    sequence: int
    effect_key: str
    payload_hash: bytes
    value: bytes | None
    key: bytes | None
    fault: bool = False
    skipped: bool = False
    gone: bool = False


class Books:
    """All that was published, by place and by lane."""

    def __init__(self) -> None:
        self.by_place: dict[tuple[int, int], Published] = {}
        self._by_number: dict[tuple[int, str, int], list[Published]] = {}
        self._thinned: set[tuple[int, str]] = set()

    def add(self, record: Published) -> None:
        """A publisher's record is in its topic."""
        self.by_place[record.partition, record.offset] = record
        if record.lane:
            self._by_number.setdefault((record.partition, record.lane, record.sequence), []).append(record)

    def take_away(self, partition: int, offset: int) -> None:
        """The topic does not have it any more."""
        record = self.by_place.get((partition, offset))
        if record is not None:
            record.gone = True
            self._thinned.add((partition, record.lane))

    def of_number(self, partition: int, lane: str, sequence: int) -> list[Published]:
        """All records that claim this number of a lane."""
        return self._by_number.get((partition, lane, sequence), [])

    def is_thinned(self, partition: int, lane: str) -> bool:
        """Whether records of this lane were taken away, so that a second reading may differ."""
        return (partition, lane) in self._thinned


@dataclass(slots=True)
class Forwarded:
    """What has reached the companion topics of all partitions, and what was ever to reach them (invariant 6).

    Attributes:
        ids: by forward id, what its first copy was.
        acts: by what caused a forward, its id.
        dead: origin places of dead letters.
        is_replayed: whether a person has wanted the record of a place to run again; it may then be refused
            again, each time with an attempt of its own.
    """

    ids: dict[str, Forward] = field(default_factory=dict)
    acts: dict[tuple[object, ...], str] = field(default_factory=dict)
    dead: dict[tuple[int, int], str] = field(default_factory=dict)
    retries: set[tuple[int, int, int]] = field(default_factory=set)
    opened: set[str] = field(default_factory=set)
    resolved: set[str] = field(default_factory=set)
    is_replayed: Callable[[tuple[int, int]], bool] = lambda _: False
    refused_again: dict[tuple[object, ...], str] = field(default_factory=dict)

    def settled(self, partition: int, forward: Forward) -> None:
        """A settlement wants this forward: one act always has one id, also when it is done again."""
        if forward.kind is ForwardKind.EMITTED:
            return  # one act may emit many
        own = headers_of(forward)
        origin = own.get("origin-offset", "")
        again = "" if own.get("effect-key") else f"{forward.channel}:{forward.offset}"
        if own.get("kind") == "answer":
            return
        event = forward.value if forward.kind is ForwardKind.REVIEW else b""
        word = "" if event is None else event[:40].decode("utf-8", "replace")
        act = (partition, forward.kind, origin, own.get("attempt"), own.get("case-id"), word, again)
        if self.acts.setdefault(act, forward.forward_id) != forward.forward_id:
            raise Broken(6, f"one act has two forward ids: {forward.kind.name} of offset {origin}")

    @staticmethod
    def sent(partition: int, forward: Forward, outbox: Collection[str]) -> None:
        """A copy leaves for its topic.

        Args:
            outbox: forward ids that are durable in the ledger's outbox.
        """
        if forward.forward_id not in outbox:
            raise Broken(6, f"a {forward.kind.name} was sent before it was durable", partition=partition)

    def landed(self, partition: int, forward: Forward) -> None:
        """One copy stands in its topic."""
        own = headers_of(forward)
        ident = forward.forward_id
        first = self.ids.setdefault(ident, forward)
        if (first.key, first.headers) != (forward.key, forward.headers) and not _is_stub(forward):
            raise Broken(6, f"two copies of one forward id differ: {forward.kind.name}", partition=partition)
        if forward.kind is ForwardKind.EMITTED:
            return
        if forward.kind is ForwardKind.REVIEW:
            if SECRET in (forward.value or b""):
                raise Broken(10, f"a {own['kind']} record quotes a payload", partition=partition)
            if own["kind"] != "answer":
                self._news(forward, own["case-id"], partition)
            return
        place = (partition, int(own["origin-offset"]))
        if forward.kind is ForwardKind.DLQ:
            again = (*place, own["attempt"], own["reason"] == "replaced")
            first_dead = self.dead.setdefault(place, ident)
            if self.is_replayed(place):
                first_dead = self.refused_again.setdefault(again, ident)
            if first_dead != ident:
                raise Broken(6, f"offset {place[1]} has two dead letters", partition=partition)
        else:
            self.retries.add((*place, int(own["attempt"])))

    def _news(self, forward: Forward, case_id: str, partition: int) -> None:
        if b'"event":"opened"' in (forward.value or b""):
            self.opened.add(case_id)
        else:
            if case_id not in self.opened:
                raise Broken(6, f"case {case_id} is resolved before it is opened", partition=partition)
            self.resolved.add(case_id)


SECRET = b"s3cr3t"
"""Stands in every payload of a workload, and in nothing that people may read."""


def headers_of(forward: Forward) -> dict[str, str]:
    """Our own headers of a forward, without their prefix."""
    return _ours(forward.headers)


@lru_cache(maxsize=1000)
def _ours(headers: Headers) -> dict[str, str]:
    """Asked at every station of a forward, of whose headers all copies are equal."""
    return {
        name.removeprefix("laneway-"): (value or b"").decode()
        for name, value in headers
        if name.startswith("laneway-")
    }


def _is_stub(forward: Forward) -> bool:
    return any(name == "laneway-stub" for name, _ in forward.headers)


def check_explained(
    record: Published, ledger: LedgerState, forwarded: Forwarded, forgotten: Collection[tuple[int, str]]
) -> None:
    """A record that the committed offset has passed ended in a documented place (invariants 1 and 4)."""
    place = (record.partition, record.offset)
    if record.gone or record.skipped:
        return
    if record.fault:
        if place not in forwarded.dead:
            _lost(record, "it has no envelope and is not in the DLQ")
        return
    if (record.sequence, record.offset) in ledger.parked.get(record.lane, {}):
        return
    if any(case.offset == record.offset and case.record is not None for case in ledger.cases.values()):
        return
    if (record.partition, record.effect_key) in forgotten:
        return
    effect = ledger.effects.get(record.effect_key)
    if effect is None:
        _lost(record, "the ledger does not know its effect")
    else:
        _check_effect(record, effect, ledger, is_dead=place in forwarded.dead)


def _check_effect(record: Published, effect: Effect, ledger: LedgerState, *, is_dead: bool) -> None:
    """What the ledger knows of a record's effect explains the record."""
    if effect.offset == record.offset:
        if effect.state is EffectState.IN_REVIEW:
            _lost(record, "its effect is in review and no case is open")
        if effect.state is EffectState.RETRY_WAIT and not is_awaited(ledger, record.lane, effect):
            _lost(record, "its effect waits for a retry and its lane does not")
    elif effect.state not in FINISHED:
        _lost(record, f"its effect is {effect.state.name} by another record, which explains nothing")
    elif effect.payload_hash != record.payload_hash and not is_dead:
        _lost(record, "another payload of its effect is finished, and no case was opened")


def is_awaited(ledger: LedgerState, lane: str, effect: Effect) -> bool:
    """Whether a lane waits for the next attempt of this effect."""
    state = ledger.lanes.get(lane)
    hold = state.hold if state is not None else None
    return hold is not None and hold.kind is HoldKind.RETRY and hold.attempt == effect.attempt + 1


def _lost(record: Published, what: str) -> None:
    raise Broken(
        4,
        f"the commit passed offset {record.offset} ({record.lane!r} {record.sequence}, "
        f"effect {record.effect_key!r}): {what}",
        partition=record.partition,
        lane=record.lane,
    )


def check_gap(books: Books, partition: int, case: Case) -> None:
    """A gap is declared only over a number that is not there to be read (invariant 5)."""
    for record in books.of_number(partition, case.lane, case.sequence):
        if record.offset < case.offset and not record.gone and not record.skipped:
            raise Broken(
                5,
                f"gap over {case.sequence} of {case.lane!r}, which is at offset {record.offset}, "
                f"below offset {case.offset}",
                partition=partition,
                lane=case.lane,
            )


def check_retries(
    partition: int,
    ledger: LedgerState,
    owed: Collection[tuple[int, int]],
    waiting: Collection[tuple[int, int]],
) -> None:
    """A lane that waits for a retry has one coming: in the outbox, or at or above the committed retry offset.

    Args:
        owed: (origin offset, attempt) of the retries in the outbox.
        waiting: the same of the records from the committed offset on.
    """
    for lane, state in ledger.lanes.items():
        hold = state.hold
        if hold is None or hold.kind is not HoldKind.RETRY:
            continue
        wanted = (hold.offset, hold.attempt)
        if wanted not in owed and wanted not in waiting:
            what = f"attempt {hold.attempt} of offset {hold.offset}, which will never come"
            raise Broken(4, f"lane {lane!r} waits for {what}", partition=partition, lane=lane)


def check_counts(partition: int, ledger: LedgerState, counted: tuple[int, int, int]) -> None:
    """What meta and lanes count is what is there (invariant 9, as far as `local` has it).

    Args:
        counted: open cases, parked records, parked bytes, as the meta entry has them.
    """
    records = size = 0
    for lane in {*ledger.parked, *(lane for lane, state in ledger.lanes.items() if state.parked)}:
        followers = ledger.parked.get(lane, {})
        state = ledger.lanes.get(lane)
        here = (len(followers), sum(parked.raw.size_bytes() for parked in followers.values()))
        said = (state.parked, state.parked_bytes) if state is not None else (0, 0)
        if here != said:
            raise Broken(9, f"lane {lane!r} counts {said} and holds {here}", partition=partition, lane=lane)
        records += here[0]
        size += here[1]
    found = (len(ledger.cases), records, size)
    if found != counted:
        raise Broken(9, f"the meta entry counts {counted} and the ledger holds {found}", partition=partition)


def check_holds(
    partition: int, ledger: LedgerState, is_unread: Callable[[int], bool] = lambda _: False
) -> None:
    """At rest every held lane is held by a case that is open, and no free lane has parked records (5, 8).

    Args:
        is_unread: whether nobody can have read the record at an offset since the last owner: the source
            stands still below it for a good reason, or does not have it any more.
    """
    held_cases = set()
    for lane, state in ledger.lanes.items():
        hold = state.hold
        if hold is None:
            if state.parked:
                _rests(partition, lane, f"{state.parked} records are parked and nothing holds it")
        elif hold.kind is HoldKind.RETRY:
            _rests(partition, lane, f"it waits for attempt {hold.attempt} of offset {hold.offset}")
        elif hold.case_id not in ledger.cases:
            _rests(partition, lane, "it is held by a case that is not open")
        else:
            held_cases.add(hold.case_id)
    for case in ledger.cases.values():
        if case.holds and case.case_id not in held_cases:
            _rests(partition, case.lane, f"case {case.case_id} says it holds it, and it does not")
    _check_open_effects(partition, ledger, is_unread)


def _check_open_effects(partition: int, ledger: LedgerState, is_unread: Callable[[int], bool]) -> None:
    for key, effect in ledger.effects.items():
        parked = any(offset == effect.offset for _, offset in ledger.parked.get(effect.lane, ()))
        if effect.state is EffectState.RUNNING and (parked or is_unread(effect.offset)):
            continue  # an intent of before; its record is judged when the source, or its lane, goes on
        if effect.state in {EffectState.RETRY_WAIT, EffectState.RUNNING}:
            _rests(partition, effect.lane, f"effect {key!r} is still {effect.state.name}")
        if effect.state is EffectState.IN_REVIEW and effect.case_id not in ledger.cases:
            _rests(partition, effect.lane, f"effect {key!r} is in review by no case")


def _rests(partition: int, lane: str, what: str) -> None:
    raise Broken(8, f"lane {lane!r}: {what}", partition=partition, lane=lane)


def check_forwarded(
    partition: int, ledger: LedgerState, forwarded: Forwarded, faults: Iterable[Published]
) -> None:
    """At rest every dead letter and every news that the ledger knows of is there (invariant 6)."""
    dead = {offset for number, offset in forwarded.dead if number == partition}
    quarantined = {
        effect.offset for effect in ledger.effects.values() if effect.state is EffectState.QUARANTINED
    }
    for offset in quarantined - dead:
        raise Broken(6, f"offset {offset} is quarantined and not in the DLQ", partition=partition)
    for record in faults:
        if record.partition == partition and not record.gone and record.offset not in dead:
            raise Broken(
                6, f"offset {record.offset} has no envelope and is not in the DLQ", partition=partition
            )
    for case_id, case in ledger.cases.items():
        if case_id not in forwarded.opened:
            raise Broken(6, f"case {case_id} is open and unannounced", partition=partition, lane=case.lane)
        if case_id in forwarded.resolved:
            raise Broken(6, f"case {case_id} is open and said to be resolved", partition=partition)
        if SECRET.decode() in case.required_check + case.cause + case.reason:
            raise Broken(10, f"case {case_id} quotes a payload", partition=partition)
