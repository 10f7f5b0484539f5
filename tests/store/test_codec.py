"""The bytes of a store: what goes in comes out, and whatever else is there is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from laneway.errors import LedgerFormatError, StateDirError
from laneway.lanes.case import Case
from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.forward import Forward, ForwardKind
from laneway.lanes.lane import Hold, HoldKind, Lane, Parked, Raw
from laneway.lanes.record import Channel
from laneway.lanes.view import ChannelMark, Meta
from laneway.store import codec
from tests.store.builders import IDENTITY, case, effect, forward, meta, parked

_text = st.text(max_size=20)
_bytes = st.binary(max_size=40)
_number = st.integers(0, 2**63 - 1)
_maybe_bytes = st.none() | _bytes
_headers = st.lists(st.tuples(_text, _maybe_bytes), max_size=4).map(tuple)
_raws = st.builds(Raw, _maybe_bytes, _maybe_bytes, _headers, st.integers(-(2**63), 2**63 - 1))
_effects = st.builds(
    Effect, st.sampled_from(EffectState), _text, _number, _text, _number, _number, _bytes, _number, _number,
    st.none() | _text, _text, _number, _number, _number, _text,
)  # fmt: skip
_holds = st.builds(
    Hold, st.sampled_from(HoldKind), _text, _number, _number, _number, _text, _text, _number, _number
)
_lanes = st.builds(Lane, st.none() | _number, st.none() | _holds, _number, _number)
_parked = st.builds(Parked, _text, _text, _number, _number, _raws)
_cases = st.builds(
    Case, _text, _text, _text, st.booleans(), _text, _number, _text, _text, st.integers(-1, 2**63 - 1),
    _number, _text, _number, _number, _text, st.none() | _raws,
)  # fmt: skip
_forwards = st.builds(
    Forward, st.sampled_from(ForwardKind), _text, _maybe_bytes, _maybe_bytes, _headers,
    st.sampled_from(Channel), st.integers(-1, 2**63 - 1), _text,
)  # fmt: skip
_marks = st.builds(ChannelMark, _number, st.lists(st.tuples(_number, _number), max_size=3).map(tuple))
_metas = st.builds(
    Meta, _text, _number, st.dictionaries(st.sampled_from(Channel), _marks), _number, _number, _number
)

Value = Effect | Lane | Parked | Case | Forward | Meta
Decode = Callable[[bytes], Value]

KINDS: list[tuple[Decode, Value]] = [
    (codec.decode_effect, effect()),
    (codec.decode_lane, Lane(4, Hold(HoldKind.CASE, "e", 5, 9, 1, "rejected", "c", 7), 2, 80)),
    (codec.decode_parked, parked()),
    (codec.decode_case, case()),
    (codec.decode_forward, forward()),
    (codec.decode_meta, meta()),
]
KIND_NAMES = [type(value).__name__ for _, value in KINDS]
DECODERS: dict[type[Value], Decode] = {type(value): decode for decode, value in KINDS}
every_kind = pytest.mark.parametrize(("decode", "value"), KINDS, ids=KIND_NAMES)


@given(st.one_of(_effects, _lanes, _parked, _cases, _forwards, _metas))
def test_every_value_comes_back(value: Value) -> None:
    """Every value of the rules survives the store unchanged, whatever text and bytes it carries."""
    assert DECODERS[type(value)](codec.encode(value)) == value


@every_kind
def test_truncated_values_are_refused(decode: Decode, value: Value) -> None:
    """A value cut short at any byte is a LedgerFormatError that names the cause and the next step."""
    data = codec.encode(value)
    for length in range(len(data)):
        with pytest.raises(LedgerFormatError, match=r"(?s)damaged or cut short.*next: "):
            decode(data[:length])
    with pytest.raises(LedgerFormatError):
        decode(data + b"\x00")


@given(st.sampled_from([decode for decode, _ in KINDS]), st.binary(max_size=60))
@example(codec.decode_parked, b"\x95\xa1a\xa1b\x01\x01\x94\xc0\xc0\xdd\xff\xff\xff\xff")
@example(codec.decode_effect, b"\xdd\xff\xff\xff\xff")
@example(codec.decode_meta, b"\x96\xa1w\x01\x81\x09\x91\x01\x00\x00\x00")
@example(codec.decode_lane, b"\x91" * 60)
@example(codec.decode_case, b"\x9f\xa1\xff")
def test_hostile_values_are_a_format_error_or_a_value(decode: Decode, body: bytes) -> None:
    """Bytes from anywhere give a typed value or a LedgerFormatError, never another exception."""
    for data in (body, b"\x01" + body):
        with suppress(LedgerFormatError):
            decode(data)


@every_kind
def test_flipped_bytes_never_escape_as_another_error(decode: Decode, value: Value) -> None:
    """A stored value with any one byte changed decodes to a typed value or is a LedgerFormatError."""
    data = codec.encode(value)
    for place in range(len(data)):
        for bits in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[place] ^= bits
            with suppress(LedgerFormatError):
                decode(bytes(changed))


@every_kind
def test_an_error_quotes_nothing_that_was_stored(decode: Decode, value: Value) -> None:
    """The error of a damaged value names fields and types, never its content."""
    data = codec.encode(value).replace(b"job-1", b"SECRE\xff"[:5])
    broken = data[:-1]
    with pytest.raises(LedgerFormatError) as caught:
        decode(broken)
    assert "SECRE" not in str(caught.value)


@every_kind
def test_a_value_of_a_newer_version_is_refused(decode: Decode, value: Value) -> None:
    """A value version this release does not know is refused with the advice to start the newer release."""
    with pytest.raises(LedgerFormatError, match=r"value version 2(?s:.*)start the release that wrote it"):
        decode(b"\x02" + codec.encode(value)[1:])


def test_a_field_appended_later_leaves_older_values_readable() -> None:
    """An array without the last, defaulted fields reads as their defaults; unknown fields are refused."""
    fields = msgspec.msgpack.decode(codec.encode(effect())[1:])
    older = b"\x01" + msgspec.msgpack.encode(fields[:12])
    assert codec.decode_effect(older) == effect()
    with pytest.raises(LedgerFormatError):
        codec.decode_effect(b"\x01" + msgspec.msgpack.encode([*fields, "new"]))


@given(_text, st.lists(st.tuples(_number, _number), min_size=2, max_size=6))
def test_parked_keys_sort_by_sequence_and_offset(lane: str, places: list[tuple[int, int]]) -> None:
    """The byte order of a lane's parked keys is the order of (sequence, offset)."""
    keys = sorted(codec.parked_key(lane, *place) for place in places)
    assert [codec.decode_parked_key(key) for key in keys] == [(lane, *place) for place in sorted(places)]


@given(_text, _text, st.tuples(_number, _number), st.tuples(_number, _number))
@example("a", "ab", (0, 0), (0, 0))
@example("", "\x00", (0, 0), (2**63 - 1, 2**63 - 1))
@example("k\x00", "k", (0, 0), (2**63 - 1, 0))
@example("k\U0010ffff", "k", (2**63 - 1, 2**63 - 1), (2**63 - 1, 0))
def test_no_lane_contains_another(
    lane: str, other: str, place: tuple[int, int], other_place: tuple[int, int]
) -> None:
    """A parked key lies in the range of its own lane only, and is skipped with its own lane only."""
    key, first, end = (
        codec.parked_key(lane, *place),
        codec.parked_prefix(other),
        codec.parked_prefix(other) + b"\xff",
    )
    assert (first <= key < end) == (lane == other)
    if lane != other:
        skip = codec.behind_lane(key)
        other_key = codec.parked_key(other, *other_place)
        assert (skip < other_key) == (key < other_key)


@given(_number, _text)
def test_index_keys_come_back(number: int, key: str) -> None:
    """Expiry and outbox keys give back what they were made of, and sort by time and age."""
    assert codec.decode_expiry_key(codec.expiry_key(number, key)) == (number, key)
    assert codec.decode_outbox_key(codec.outbox_key(number)) == number
    assert codec.expiry_key(number) <= codec.expiry_key(number, key)
    if number:
        assert codec.expiry_key(number - 1, key) < codec.expiry_key(number)
        assert codec.outbox_key(number - 1) < codec.outbox_key(number)


@given(st.sampled_from("comhplxe"), st.binary(max_size=40))
def test_hostile_keys_are_a_format_error(kind: str, rest: bytes) -> None:
    """Keys that no release wrote give a value of the right type or a LedgerFormatError, nothing else."""
    key = kind.encode() + rest
    decoders: list[Callable[[bytes], object]] = [
        codec.decode_parked_key,
        codec.decode_outbox_key,
        codec.decode_expiry_key,
        lambda data: codec.decode_handed_over(data, b"\x01" + rest),
    ]
    for decode in decoders:
        with suppress(LedgerFormatError):
            decode(key)


@given(st.sampled_from(Channel), _number)
def test_hand_over_marks_come_back(channel: Channel, offset: int) -> None:
    """A hand-over mark gives back its channel and offset."""
    data = codec.encode_handed_over(offset)
    assert codec.decode_handed_over(codec.handed_over_key(channel), data) == (channel, offset)


@pytest.mark.parametrize("number", [-1, 2**63])
def test_numbers_out_of_range_are_refused_before_they_are_stored(number: int) -> None:
    """A number that would break the order of keys is refused when the key is made."""
    with pytest.raises(LedgerFormatError, match=r"2\*\*63"):
        codec.parked_key("k", number, 0)


def test_markers_come_back_and_unknown_formats_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker of this format and of the one before is read; newer, older and broken ones are refused."""
    data = codec.encode_marker(IDENTITY)
    assert codec.decode_marker(data, "here") == IDENTITY
    with pytest.raises(StateDirError, match=r"(?s)here: it has format 2; .*start the release that wrote it"):
        codec.decode_marker(b'{"format":2,"whatever":[]}', "here")
    with pytest.raises(StateDirError):
        codec.decode_marker(b'{"format":0}', "here")
    for broken in (b"", b"{", b'{"format":"1"}', b'{"format":1}', b"\xff\x00", b"[]"):
        with pytest.raises(LedgerFormatError, match="here: the format marker cannot be read"):
            codec.decode_marker(broken, "here")
    monkeypatch.setattr(codec, "FORMAT", 2)
    assert codec.decode_marker(data, "here") == IDENTITY
    monkeypatch.setattr(codec, "FORMAT", 3)
    with pytest.raises(StateDirError, match=r"reads 2 to 3(?s:.*)a release in between"):
        codec.decode_marker(data, "here")


def test_the_layout_of_today_is_pinned() -> None:
    """Bytes written by format 1 stay readable: these were written by it, and must never need a change."""
    assert codec.decode_lane(bytes.fromhex("019407c00000")) == Lane(7)
    assert codec.parked_key("ka", 1, 2).hex() == "7000000002" + "6b61" + "00" * 7 + "01" + "00" * 7 + "02"
    old = (
        "019f03a56a6f622d3107ab6b637573746f6d65722d310101c41000ff00ff00ff00ff00ff00ff00ff00ff0101"
        "ab72656d696e646572732f31a0cd03e80000a0"
    )
    assert codec.decode_effect(bytes.fromhex(old)) == effect()
    # A shorter array of an older release reads as one with defaults; this is how the same is written today.
    assert codec.encode(effect()).hex() == "01dc0012" + old[4:] + "c000c0"
    old_meta = "0196a87772697465722d31018200920a92920c0e921415019202900163cd0fa0"
    assert codec.decode_meta(bytes.fromhex(old_meta)) == meta()
