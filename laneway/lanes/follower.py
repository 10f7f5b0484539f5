"""Kept bytes as records again: parked followers, the record of a case, a dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from laneway.errors import LanewayError
from laneway.lanes.canonical import payload_hash
from laneway.lanes.case import Case
from laneway.lanes.command import Letter, Repeat
from laneway.lanes.effect import Effect
from laneway.lanes.envelope import Envelope
from laneway.lanes.forward import Home, foreign
from laneway.lanes.lane import Parked, ParkedKey, Raw
from laneway.lanes.record import Channel, Record, is_lane_of_one, sequence_key_of


class LostFollowersError(LanewayError):
    """The ledger contradicts itself: the partition stops, nothing is lost."""


def revive_all(
    found: Sequence[tuple[ParkedKey, Parked]], lane: str, envelope: Envelope, home: Home
) -> list[Record]:
    """Read back the followers of a lane that counts some.

    Raises:
        LostFollowersError: there is none; running what comes next would break the order.
        TemporaryFailure, Unavailable: as raised by the pipeline's `decode`; read them again later.
    """
    if not found:
        raise LostFollowersError(
            "a lane counts parked records and the ledger has none",
            where=f"{home.topic}-{home.partition}, lane {lane[1:]!r}",
            mend="stop the group and report this; no record was lost or run",
        )
    return [revive(key, parked, envelope, home) for key, parked in found]


def revive(key: ParkedKey, parked: Parked, envelope: Envelope, home: Home) -> Record:
    """Read a follower back. Its identity is the stored one, whatever is configured by now.

    A fault that the envelope finds today is judged in turn: the follower's place in the lane is
    known, and rejecting it out of turn would let others pass.
    """
    lane, sequence, offset = key
    raw = parked.raw
    record = Record(Channel.SOURCE, offset, raw.key, raw.value, raw.headers, raw.timestamp_ms)
    envelope.read(record, home.topic, home.partition)
    record.misfit = record.misfit or record.fault
    record.fault = record.skip = ""
    record.message_id, record.effect_key = parked.message_id, parked.effect_key
    record.sequence_key = sequence_key_of(lane)
    record.sequence, record.lane, record.version = sequence, lane, parked.version
    record.parked = True
    return record


def revive_case(record: Record, case: Case, corrected: bytes | None, envelope: Envelope, home: Home) -> str:
    """Give a command's record the bytes and the identity of its case. Its own position stays.

    Args:
        corrected: a value to stand in the place of the published one.

    Returns:
        Why the corrected value cannot stand for it: it has to be the same effect at the same place; else "".

    Raises:
        TemporaryFailure, Unavailable: as raised by the pipeline's `decode`; read it again later.
    """
    raw = case.record
    assert raw is not None
    return _revive(record, raw, case, corrected, envelope, home)


def revive_letter(
    record: Record,
    letter: Letter | Repeat,
    effect: Effect,
    corrected: bytes | None,
    envelope: Envelope,
    home: Home,
) -> str:
    """Give a command's record the bytes that travelled with it, and the identity that the ledger has of it.

    The same as `revive_case` in all else.
    """
    raw = Raw(letter.key, letter.value, foreign(letter.headers), letter.timestamp_ms)
    return _revive(record, raw, _Identity(letter.effect_key, effect), corrected, envelope, home)


class _Known(Protocol):
    """What is known of a record whatever its bytes say."""

    @property
    def effect_key(self) -> str: ...
    @property
    def message_id(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def lane(self) -> str: ...
    @property
    def sequence(self) -> int: ...


class _Identity:
    """An effect, under its key."""

    def __init__(self, effect_key: str, effect: Effect) -> None:
        self.effect_key = effect_key
        self.message_id = effect.message_id
        self.offset = effect.offset
        self.lane = effect.lane
        self.sequence = effect.sequence


def _revive(
    record: Record, raw: Raw, known: _Known, corrected: bytes | None, envelope: Envelope, home: Home
) -> str:
    offset = record.offset
    record.key, record.headers, record.timestamp_ms = raw.key, raw.headers, raw.timestamp_ms
    record.value = raw.value if corrected is None else corrected
    record.misfit = ""
    # An id that is made of the position is that of the source position.
    record.offset = known.offset
    try:
        envelope.read(record, home.topic, home.partition)
    finally:
        record.offset = offset
        read = (record.lane, record.effect_key, record.sequence)
        record.origin_offset, record.lane, record.effect_key = known.offset, known.lane, known.effect_key
    fault, record.fault, record.skip = record.fault, "", ""
    if corrected is not None:
        if fault:
            return f"the corrected value cannot be read: {fault}"
        for name, said, wanted in zip(
            ("sequence key", "effect key", "sequence"),
            read,
            (known.lane, known.effect_key, known.sequence),
            strict=True,
        ):
            if said != wanted and not (name == "sequence" and is_lane_of_one(known.lane)):
                return f"the corrected value has another {name} than the record it is to stand for"
    record.misfit = record.misfit or fault
    record.message_id, record.sequence = known.message_id, known.sequence
    record.sequence_key = sequence_key_of(known.lane)
    record.payload_hash = payload_hash(record.payload, record.value)
    return ""
