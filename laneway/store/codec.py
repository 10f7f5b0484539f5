"""Every byte of a store: pure encode and decode pairs. No I/O, no RocksDB, no clock.

Keys. One keyspace, the first byte says what the entry is. Text is UTF-8, numbers are 8 bytes,
big-endian, so that byte order is number order.

    b"c" case_id                                   an open case
    b"e" effect_key                                an effect
    b"h" channel (1 byte)                          the highest offset handed to handlers
    b"l" lane                                      a lane
    b"mc"                                          how much of the changelog the store holds
    b"mf"                                          the format marker: JSON, readable by any release
    b"mm"                                          the meta entry of the last cycle
    b"o" counter                                   a forward in the outbox, oldest first
    b"p" length of lane (4 bytes) lane sequence offset    a parked record, lowest first in its lane
    b"x" changed_ms effect_key                     expiry index of finished effects; empty value

A lane carries its length in front, so "a" is no beginning of "ab" and no byte of a key (NUL, 0xff)
can make one lane's parked records fall among another's. The order of *lanes* among themselves
means nothing.

Values. One version byte, then the msgpack array of the struct in `laneway.lanes` (the mark of a
hand-over: 8 bytes). Two rules keep releases able to read each other:
a field is only ever appended, with a default, so that a shorter, older array still reads; anything
else is a new version byte, with a decoder for the old one, and raises FORMAT. Numbers of enums are
never given a second meaning.

The changelog of a partition holds entries of these very bytes, key and value, and a tombstone where
one is deleted: effects, lanes, parked records, cases, and the meta entry. What one store alone knows
never travels: b"h", b"mc", b"mf", b"o", b"x" (see `changes`).

Whatever does not fit is a LedgerFormatError, never a guess and never another exception.
"""

from __future__ import annotations

import struct
from typing import Final, TypeVar

import msgspec

from laneway.errors import LedgerFormatError, StateDirError
from laneway.lanes.case import Case
from laneway.lanes.effect import Effect
from laneway.lanes.forward import Forward
from laneway.lanes.lane import Lane, Parked, ParkedKey
from laneway.lanes.record import Channel
from laneway.lanes.view import Meta
from laneway.store.port import ChangelogMark, StoreIdentity

FORMAT: Final = 1
"""The format this release writes. It reads this one and the one before."""

VALUE_VERSION: Final = 1

CASE: Final = b"c"
EFFECT: Final = b"e"
HANDED_OVER: Final = b"h"
LANE: Final = b"l"
CHANGELOG_KEY: Final = b"mc"
MARKER_KEY: Final = b"mf"
META_KEY: Final = b"mm"
OUTBOX: Final = b"o"
PARKED: Final = b"p"
EXPIRY: Final = b"x"

_VERSION: Final = bytes([VALUE_VERSION])
_NUMBER: Final = struct.Struct(">Q")
_INDEX: Final = struct.Struct(">cQ")
_PLACE: Final = struct.Struct(">QQ")
_LENGTH: Final = struct.Struct(">I")
_NUMBER_END: Final = 2**63

_encode = msgspec.msgpack.Encoder().encode
_effect_decoder = msgspec.msgpack.Decoder(Effect)
_lane_decoder = msgspec.msgpack.Decoder(Lane)
_parked_decoder = msgspec.msgpack.Decoder(Parked)
_case_decoder = msgspec.msgpack.Decoder(Case)
_forward_decoder = msgspec.msgpack.Decoder(Forward)
_meta_decoder = msgspec.msgpack.Decoder(Meta)
_changelog_decoder = msgspec.msgpack.Decoder(ChangelogMark)

_DAMAGED = (
    "stop the workers of this partition and keep a copy of the store; restore it, or move it aside and "
    "start with --accept-empty-ledger once you know which effects may run again"
)
NEWER: Final = "start the release that wrote it, or one that is newer"

_T = TypeVar("_T")


def readable(number: int) -> bool:
    """True for a format that this release reads: its own and the one before."""
    return max(1, FORMAT - 1) <= number <= FORMAT


# --- keys -----------------------------------------------------------------------------------------


def end_of(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`, whose last byte is not 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def effect_key(key: str) -> bytes:
    """Key of an effect."""
    return EFFECT + key.encode()


def lane_key(lane: str) -> bytes:
    """Key of a lane."""
    return LANE + lane.encode()


def case_key(case_id: str) -> bytes:
    """Key of a case."""
    return CASE + case_id.encode()


def handed_over_key(channel: Channel) -> bytes:
    """Key of the hand-over mark of a channel."""
    return HANDED_OVER + bytes([channel])


def outbox_key(counter: int) -> bytes:
    """Key of a forward in the outbox."""
    return OUTBOX + _number(counter)


def decode_outbox_key(key: bytes) -> int:
    """The counter in an outbox key."""
    if len(key) != 9 or key[:1] != OUTBOX:
        raise _bad_key("outbox", key)
    counter: int = _NUMBER.unpack_from(key, 1)[0]
    return counter


def parked_prefix(lane: str) -> bytes:
    """What the keys of all followers of a lane begin with."""
    name = lane.encode()
    return PARKED + _LENGTH.pack(len(name)) + name


def parked_key(lane: str, sequence: int, offset: int) -> bytes:
    """Key of a follower."""
    return parked_prefix(lane) + _number(sequence) + _number(offset)


def prefix_of_parked(key: bytes) -> bytes:
    """What the parked keys of the same lane begin with."""
    return key[: -_PLACE.size]


def behind_lane(key: bytes) -> bytes:
    """A key behind all followers of the lane that the parked key belongs to, and before the next lane's."""
    return key[: -_PLACE.size] + b"\xff"


def decode_key(key: bytes) -> str:
    """The name behind the prefix of an effect's, a lane's or a case's key."""
    try:
        return key[1:].decode()
    except UnicodeDecodeError as error:
        raise _bad_key("ledger", key) from error


def decode_parked_key(key: bytes) -> ParkedKey:
    """(lane, sequence, offset) of a follower's key."""
    if len(key) < 5 + _PLACE.size or key[:1] != PARKED:
        raise _bad_key("parked", key)
    if _LENGTH.unpack_from(key, 1)[0] != len(key) - 5 - _PLACE.size:
        raise _bad_key("parked", key)
    sequence, offset = _PLACE.unpack_from(key, len(key) - _PLACE.size)
    return _text("parked", key[5 : -_PLACE.size]), sequence, offset


def expiry_key(changed_ms: int, key: str = "") -> bytes:
    """Key in the expiry index; without an effect key the first possible one of that time."""
    return EXPIRY + _number(changed_ms) + key.encode()


def expiry_of(effect_key: bytes, changed_ms: int) -> bytes:
    """Key in the expiry index of a finished effect that is stored under `effect_key`."""
    if not 0 <= changed_ms < _NUMBER_END:
        raise _no_number(changed_ms)
    return _INDEX.pack(EXPIRY, changed_ms) + effect_key[1:]


def decode_expiry_key(key: bytes) -> tuple[int, str]:
    """(changed_ms, effect key) of an index entry."""
    if len(key) < 9 or key[:1] != EXPIRY:
        raise _bad_key("expiry", key)
    return _NUMBER.unpack_from(key, 1)[0], _text("expiry", key[9:])


# --- values ---------------------------------------------------------------------------------------


def encode(value: Effect | Lane | Parked | Case | Forward | Meta | ChangelogMark) -> bytes:
    """The stored bytes of any value that has a struct."""
    return _VERSION + _encode(value)


def decode_effect(data: bytes) -> Effect:
    """The inverse of `encode` for an effect; so are the next six for their structs."""
    effect = _decode(_effect_decoder, data, "an effect")
    if not 0 <= effect.changed_ms < _NUMBER_END:  # the expiry index could not hold it
        raise _bad_value("an effect", "it changed at a time that no clock shows")
    return effect


def decode_lane(data: bytes) -> Lane:
    """A stored lane."""
    return _decode(_lane_decoder, data, "a lane")


def decode_parked(data: bytes) -> Parked:
    """A stored follower."""
    return _decode(_parked_decoder, data, "a parked record")


def decode_case(data: bytes) -> Case:
    """A stored case."""
    return _decode(_case_decoder, data, "a case")


def decode_forward(data: bytes) -> Forward:
    """A forward in the outbox."""
    return _decode(_forward_decoder, data, "a forward")


def decode_meta(data: bytes) -> Meta:
    """The meta entry."""
    return _decode(_meta_decoder, data, "the meta entry")


def decode_changelog_mark(data: bytes) -> ChangelogMark:
    """How much of the changelog a store holds."""
    return _decode(_changelog_decoder, data, "the changelog mark")


def encode_handed_over(offset: int) -> bytes:
    """The stored bytes of a hand-over mark."""
    return _VERSION + _number(offset)


def decode_handed_over(key: bytes, data: bytes) -> tuple[Channel, int]:
    """The channel and offset of a hand-over mark."""
    try:
        channel = Channel(key[1])
    except (IndexError, ValueError) as error:
        raise _bad_key("hand-over", key) from error
    body = _body(data, "a hand-over mark")
    if len(body) != _NUMBER.size:
        raise _bad_value("a hand-over mark", f"{len(body)} bytes instead of 8")
    return channel, _NUMBER.unpack(body)[0]


class _FormatOnly(msgspec.Struct, frozen=True):
    """The part of a marker that every release past and future has."""

    format: int


class _StoreMarker(_FormatOnly, frozen=True, omit_defaults=True):
    group: str
    topic: str
    partition: int
    topic_id: str = ""
    retry_id: str = ""


def encode_marker(identity: StoreIdentity) -> bytes:
    """The format marker of a store."""
    return msgspec.json.encode(_StoreMarker(FORMAT, *msgspec.structs.astuple(identity)))


def marker_format(data: bytes, where: str) -> int:
    """The format a marker names, once it is known that this release reads it.

    Raises:
        StateDirError: the format is unknown: nothing else in the marker may be believed.
        LedgerFormatError: it is no marker at all.
    """
    try:
        number = msgspec.json.decode(data, type=_FormatOnly).format
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerFormatError("the format marker cannot be read", where=where, mend=_DAMAGED) from error
    if not readable(number):
        raise StateDirError(
            f"it has format {number}; this release reads {max(1, FORMAT - 1)} to {FORMAT}",
            where=where,
            mend=NEWER if number > FORMAT else "start a release in between, once, to bring it forward",
        )
    return number


def decode_marker(data: bytes, where: str) -> StoreIdentity:
    """Whose store it is.

    Raises:
        StateDirError: the format is unknown.
        LedgerFormatError: it is no marker.
    """
    marker_format(data, where)
    try:
        marker = msgspec.json.decode(data, type=_StoreMarker)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerFormatError("the format marker cannot be read", where=where, mend=_DAMAGED) from error
    return StoreIdentity(marker.group, marker.topic, marker.partition, marker.topic_id, marker.retry_id)


# --- refusing -------------------------------------------------------------------------------------


def _body(data: bytes, what: str) -> bytes:
    if data[:1] == _VERSION:
        return data[1:]
    if not data:
        raise _bad_value(what, "it is empty")
    raise LedgerFormatError(
        f"{what} has value version {data[0]}, this release knows {VALUE_VERSION}: "
        "written by a newer release, or damaged",
        mend=NEWER if data[0] > VALUE_VERSION else _DAMAGED,
    )


def _decode(decoder: msgspec.msgpack.Decoder[_T], data: bytes, what: str) -> _T:
    try:
        # As in _body, whose call would be felt in a restore.
        return decoder.decode(data[1:] if data[:1] == _VERSION else _body(data, what))
    # MemoryError: a damaged length may ask for more than the machine has.
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError, MemoryError) as error:
        # msgspec names the field and the expected type, never the value.
        raise _bad_value(what, str(error) or type(error).__name__) from error


def _number(number: int) -> bytes:
    if not 0 <= number < _NUMBER_END:
        raise _no_number(number)
    return _NUMBER.pack(number)


def _text(what: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _bad_key(what, data) from error


def _no_number(number: int) -> LedgerFormatError:
    return LedgerFormatError(
        f"{number} is no sequence, offset, time or counter that the ledger can hold (0 to 2**63 - 1)",
        mend="report this: the rules must refuse such a record before it is stored",
    )


def _bad_key(what: str, key: bytes) -> LedgerFormatError:
    # The key itself is left out: business keys can be personal data.
    return LedgerFormatError(
        f"a key of {len(key)} bytes is no {what} key: damaged, or written by something else", mend=_DAMAGED
    )


def _bad_value(what: str, detail: str) -> LedgerFormatError:
    return LedgerFormatError(f"{what} cannot be read, it is damaged or cut short ({detail})", mend=_DAMAGED)
