"""The envelope: a business identity that outlives any position, and garbage that harms nobody."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.errors import ConfigError
from laneway.lanes.envelope import (
    MAX_TEXT_BYTES,
    Envelope,
    EnvelopeRules,
    key_text,
)
from laneway.lanes.failures import Unavailable
from laneway.lanes.pointer import MAX_INTEGER
from laneway.lanes.record import Channel, Headers, Record, keyed_lane, lane_of_one

USUAL = EnvelopeRules()
# The same members one level down: these rules take the long way.
DEEP = EnvelopeRules(
    message_id="json:/m/messageId",
    effect_key="json:/m/effectKey",
    sequence_key="json:/m/sequenceKey",
    sequence="json:/m/sequence",
    version="json:/m/version",
    payload="json:/m/payload",
)
OUTSIDE = EnvelopeRules(
    message_id="header:id",
    effect_key="header:id",
    sequence_key="key",
    sequence="header:seq",
    version=None,
    payload="value",
)
GOOD: dict[str, object] = {
    "messageId": "m-1",
    "effectKey": "e-1",
    "sequenceKey": "k-1",
    "sequence": 7,
    "version": 1,
    "payload": {"cents": 5},
}


def value_of(**changes: object) -> bytes:
    """A good value with some members changed; `...` leaves one out."""
    members = {name: value for name, value in (GOOD | changes).items() if value is not ...}
    return json.dumps(members, ensure_ascii=False).encode()


def read(
    value: bytes | None,
    rules: EnvelopeRules = USUAL,
    *,
    key: bytes | None = None,
    headers: Headers = (),
    decode: Any = None,
) -> Record:
    """A record as the envelope leaves it, at invoices/3/42."""
    record = Record(Channel.SOURCE, 42, key, value, headers)
    Envelope(rules, decode).read(record, "invoices", 3)
    return record


def identity(record: Record) -> tuple[object, ...]:
    """All that an envelope fills in."""
    return (
        record.message_id,
        record.effect_key,
        record.sequence_key,
        record.sequence,
        record.version,
        record.payload,
        record.lane,
        record.misfit,
        record.skip,
    )


NOBODY = identity(Record(Channel.SOURCE, 0, None, None))


def test_a_record_is_known_by_what_it_says_and_not_by_its_position() -> None:
    """Two deliveries at different positions have one identity: the job is not the delivery (S1, S25)."""
    first, again = read(value_of()), Record(Channel.SOURCE, 99, None, value_of())
    Envelope(USUAL).read(again, "invoices", 0)
    assert identity(first) == identity(again)
    assert identity(first)[:5] == ("m-1", "e-1", "k-1", 7, 1)
    assert (first.lane, first.fault) == (keyed_lane("k-1"), "")


def test_message_id_and_effect_key_are_independent() -> None:
    """One message may have several effects, and two messages may mean one (S13)."""
    one, two = read(value_of(effectKey="a")), read(value_of(effectKey="b"))
    assert (one.message_id == two.message_id, one.effect_key == two.effect_key) == (True, False)
    one, two = read(value_of(messageId="x")), read(value_of(messageId="y"))
    assert (one.message_id == two.message_id, one.effect_key == two.effect_key) == (False, True)


def test_the_payload_is_exactly_its_bytes() -> None:
    """A payload is cut out of the value as it stands, spelling and all, by the short way and the long."""
    raw = '{ "b":1.0,"a" : [1e400, "\\u00e9é"] }'
    flat = value_of().replace(b'{"cents": 5}', raw.encode())
    assert read(flat).payload == raw.encode()
    assert read(b'{"m": ' + flat + b"}", DEEP).payload == raw.encode()
    whole = msgspec.structs.replace(USUAL, payload="value")
    assert read(flat, whole).payload == flat


def test_one_lane_for_one_sequence_key_whatever_the_record_key() -> None:
    """Records of one entity with different record keys share a lane (case 5)."""
    lanes = {read(value_of(), key=key).lane for key in (None, b"a", b"b")}
    assert lanes == {keyed_lane("k-1")}


def test_a_null_key_is_a_fault_where_it_is_needed_and_nothing_elsewhere() -> None:
    """A required sequence key that is missing is told; without one there is no lane to miss (case 4)."""
    by_key = msgspec.structs.replace(USUAL, sequence_key="key")
    assert read(value_of(), by_key, key=None).fault == "missing-field: sequence_key at key"
    assert read(value_of(), by_key, key=b"k").lane == keyed_lane("k")
    unordered = msgspec.structs.replace(USUAL, sequence_key=None)
    record = read(value_of(sequenceKey=..., sequence=...), unordered)
    assert (record.fault, record.sequence_key, record.lane) == ("", None, lane_of_one("e-1"))


def test_lanes_by_arrival_need_no_numbers() -> None:
    """With a sequence key and order by arrival a sequence is neither asked for nor read."""
    arrival = msgspec.structs.replace(USUAL, sequence=None, needs_sequence=False)
    assert identity(read(value_of(sequence=...), arrival))[2:4] == ("k-1", 0)


def test_positions_as_ids_stay_those_of_the_source() -> None:
    """An id by position names the source position, also for a copy read from the retry topic."""
    rules = msgspec.structs.replace(USUAL, message_id="position", effect_key="position")
    assert read(value_of(), rules).effect_key == "invoices/3/42"
    retry = Record(Channel.RETRY, 5, None, value_of())
    retry.origin_offset = 42
    Envelope(rules).read(retry, "invoices", 3)
    assert retry.message_id == "invoices/3/42"


def test_an_unknown_version_is_known_for_what_it_is() -> None:
    """A record of another contract version keeps lane and sequence, for it is rejected in its turn (S5)."""
    for payload in ({"cents": 5}, ...):
        record = read(value_of(version=2, payload=payload))
        assert (record.misfit, record.fault) == ("unknown-contract-version", "")
        assert (record.lane, record.sequence, record.version) == (keyed_lane("k-1"), 7, 2)
    assert read(value_of(version=2), msgspec.structs.replace(USUAL, accepts=(1, 2))).misfit == ""
    unchecked = msgspec.structs.replace(USUAL, version=None)
    assert (read(value_of(version="?"), unchecked).fault, read(value_of(), unchecked).version) == ("", 0)


# --- garbage -----------------------------------------------------------------------------------

GARBAGE: dict[str, tuple[bytes, str]] = {
    "not UTF-8": (b"\xff\xfe\x00", "undecodable-json"),
    "one broken byte that no field needs": (value_of()[:-1] + b', "x": "\xff"}', "undecodable-json"),
    "not JSON": (b"hello", "undecodable-json"),
    "torn JSON": (value_of()[:-1], "undecodable-json"),
    "two values": (value_of() + b"{}", "undecodable-json"),
    "empty value": (b"", "undecodable-json"),
    "byte order mark": (b"\xef\xbb\xbf" + value_of(), "undecodable-json"),
    "5 MiB that are no JSON": (b"x" * (5 << 20), "undecodable-json"),
    "100,000 open brackets": (b"[" * 100_000, "undecodable-json"),
    "100,000 nested arrays": (
        value_of().replace(b'{"cents": 5}', b"[" * 100_000 + b"]" * 100_000),
        "undecodable-json",
    ),
    "half a surrogate pair": (value_of().replace(b"e-1", b"\\ud800"), "undecodable-json"),
    "an array": (b"[1, 2]", "missing-field: message_id at json:/messageId"),
    "a string": (b'"hello"', "missing-field: message_id at json:/messageId"),
    "null": (b"null", "missing-field: message_id at json:/messageId"),
    "another object": (b'{"a": 1}', "missing-field: message_id at json:/messageId"),
    "no effect key": (value_of(effectKey=...), "missing-field: effect_key at json:/effectKey"),
    "effect key null": (value_of(effectKey=None), "mistyped-field: effect_key at json:/effectKey is null"),
    "effect key 5": (value_of(effectKey=5), "mistyped-field: effect_key at json:/effectKey is a number"),
    "effect key []": (value_of(effectKey=[]), "mistyped-field: effect_key at json:/effectKey is an array"),
    "effect key {}": (value_of(effectKey={}), "mistyped-field: effect_key at json:/effectKey is an object"),
    "sequence key of 0 bytes": (value_of(sequenceKey=""), "empty-field: sequence_key at json:/sequenceKey"),
    "sequence key of 10 kB": (
        value_of(sequenceKey="k" * 10_000),
        "oversized-field: sequence_key at json:/sequenceKey",
    ),
    "missing sequence": (value_of(sequence=...), "missing-field: sequence at json:/sequence"),
    "negative sequence": (value_of(sequence=-1), "out-of-range-field: sequence at json:/sequence"),
    "sequence 2**63": (value_of(sequence=2**63), "out-of-range-field: sequence at json:/sequence"),
    "sequence of 10,000 digits": (
        value_of().replace(b": 7", b": " + b"7" * 10_000),
        "out-of-range-field: sequence at json:/sequence",
    ),
    "float sequence": (
        value_of(sequence=7.0),
        "mistyped-field: sequence at json:/sequence is a number with a fraction or exponent",
    ),
    "exponent sequence": (
        value_of().replace(b": 7", b": 7e0"),
        "mistyped-field: sequence at json:/sequence is a number with a fraction or exponent",
    ),
    "string sequence": (value_of(sequence="7"), "mistyped-field: sequence at json:/sequence is a string"),
    "boolean sequence": (value_of(sequence=True), "mistyped-field: sequence at json:/sequence is a boolean"),
    "string version": (value_of(version="1"), "mistyped-field: version at json:/version is a string"),
    "no version": (value_of(version=...), "missing-field: version at json:/version"),
    "no payload": (value_of(payload=...), "missing-field: payload at json:/payload"),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_named_by_a_fixed_word_and_a_place(kind: str) -> None:
    """Each kind of garbage gives its word, field and place, no identity and never an error (case 26)."""
    value, fault = GARBAGE[kind]
    record = read(value)
    assert record.fault == fault
    assert identity(record) == NOBODY
    assert record.value == value


@pytest.mark.parametrize("kind", [kind for kind, (_, fault) in GARBAGE.items() if " at json:/" in fault])
def test_garbage_below_the_first_level_is_named_alike(kind: str) -> None:
    """The long way and the short way refuse the same records in the same words (case 26)."""
    value, fault = GARBAGE[kind]
    record = read(b'{"m": ' + value + b"}", DEEP)
    assert record.fault == fault.replace("json:/", "json:/m/")
    assert identity(record) == NOBODY


@pytest.mark.parametrize("word", ["reject", "skip", "deliver"])
def test_a_null_value_is_what_the_rules_make_of_it(word: str) -> None:
    """A tombstone is rejected, passed over, or delivered by its key and headers without a payload."""
    rules = msgspec.convert(msgspec.structs.asdict(OUTSIDE) | {"tombstones": word}, EnvelopeRules)
    record = read(None, rules, key=b"k", headers=(("id", b"e"), ("seq", b"3")))
    assert record.payload is None
    expected = {
        "reject": ("tombstone", "", ""),
        "skip": ("", "tombstone", ""),
        "deliver": ("", "", keyed_lane("k")),
    }
    assert (record.fault, record.skip, record.lane) == expected[word]


def test_a_delivered_tombstone_needs_its_identity_outside_the_value() -> None:
    """What stands in a value that is not there is missing, like anything else."""
    rules = msgspec.structs.replace(USUAL, tombstones="deliver")
    assert read(None, rules).fault == "missing-field: message_id at json:/messageId"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"12", 12),
        (b"007", 7),
        (b"0" * 100 + b"9", 9),
        (b"9223372036854775807", MAX_INTEGER),
        (b"9223372036854775808", "out-of-range-field: sequence at header:seq"),
        (b"9" * 5000, "out-of-range-field: sequence at header:seq"),
        (b"", "empty-field: sequence at header:seq"),
        (None, "missing-field: sequence at header:seq"),
        (b"-1", "mistyped-field: sequence at header:seq is not decimal digits"),
        (b"+1", "mistyped-field: sequence at header:seq is not decimal digits"),
        (b" 1", "mistyped-field: sequence at header:seq is not decimal digits"),
        (b"1_0", "mistyped-field: sequence at header:seq is not decimal digits"),
        ("٣".encode(), "mistyped-field: sequence at header:seq is not decimal digits"),
        (b"\xff", "mistyped-field: sequence at header:seq is not decimal digits"),
    ],
)
def test_numbers_outside_the_value_are_decimal_digits(raw: bytes | None, expected: int | str) -> None:
    """A sequence in a header is ASCII digits and nothing that Python would also take for a number."""
    record = read(b"", OUTSIDE, key=b"k", headers=(("id", b"e"), ("seq", raw)))
    assert (record.sequence if isinstance(expected, int) else record.fault) == expected


def test_the_last_of_repeated_headers_and_members_wins() -> None:
    """Repeated names are no error: the last one counts, by the short way and the long."""
    headers: Headers = (("id", b"a"), ("seq", b"1"), ("id", b"b"), ("other", b"\xff"))
    assert read(b"", OUTSIDE, key=b"k", headers=headers).effect_key == "b"
    twice = value_of()[:-1] + b', "effectKey": "e-2"}'
    assert read(twice).effect_key == "e-2"
    assert read(b'{"m": {}, "m": ' + twice + b"}", DEEP).effect_key == "e-2"
    assert read(value_of(sequence="x")[:-1] + b', "sequence": 8}').sequence == 8


def test_headers_of_ours_mean_nothing_on_a_source_topic() -> None:
    """A publisher that sets laneway- headers changes nothing of the record's identity."""
    forged: Headers = (("laneway-effect-key", b"x"), ("laneway-sequence", b"9"), ("laneway-attempt", b"7"))
    record = read(value_of(), headers=forged)
    assert identity(record) == identity(read(value_of()))
    assert record.attempt == 1


@pytest.mark.parametrize("text", ["a\x00b\n\x1b[31m", "\u202e", "é" * 2048, "k" * 4096, "𝄞" * 1024])
def test_texts_may_hold_any_character_up_to_the_bound(text: str) -> None:
    """Control characters and 4,096 bytes of UTF-8 are an ordinary key; one byte more is not."""
    assert read(value_of(sequenceKey=text)).lane == keyed_lane(text)
    longest = text + "x" * (MAX_TEXT_BYTES - len(text.encode()))
    assert read(value_of(sequenceKey=longest)).sequence_key == longest
    fault = "oversized-field: sequence_key at json:/sequenceKey"
    assert read(value_of(sequenceKey=longest + "x")).fault == fault


@given(one=st.binary(max_size=12), two=st.binary(max_size=12))
def test_no_two_keys_are_taken_for_one(one: bytes, two: bytes) -> None:
    """Keys that differ in bytes differ as text, be they UTF-8 or not."""
    assert (key_text(one) == key_text(two)) is (one == two)
    assert key_text(key_text(one).encode()) != key_text(one) or not key_text(one).startswith("b64:")


def test_broken_bytes_and_look_alikes_become_base64() -> None:
    """Bytes that are no UTF-8, and text that could be taken for such, are written as b64:."""
    assert key_text(b"plain \xc3\xa9") == "plain é"
    assert key_text(b"\xff") == "b64:/w=="
    assert key_text(b"b64:/w==") == "b64:YjY0Oi93PT0="
    assert read(b"", OUTSIDE, key=b"\xff", headers=(("id", b"\xfe"), ("seq", b"1"))).fault == ""


# --- anything at all ---------------------------------------------------------------------------

members = st.sampled_from(["messageId", "effectKey", "sequenceKey", "sequence", "version", "payload", "m"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(members, inner, max_size=7),
    max_leaves=10,
)
values = st.none() | st.binary(max_size=80) | anything.map(lambda tree: json.dumps(tree).encode())
all_rules = st.builds(
    EnvelopeRules,
    message_id=st.sampled_from(["json:/messageId", "header:id", "key", "position", "json:/m/0/payload"]),
    effect_key=st.sampled_from(["json:/effectKey", "json:/messageId", "position", "json:/", "json:/payload"]),
    sequence_key=st.sampled_from([None, "json:/sequenceKey", "key", "json:/m/sequenceKey"]),
    sequence=st.sampled_from(["json:/sequence", "header:seq", "key"]),
    version=st.sampled_from([None, "json:/version", "header:v"]),
    payload=st.sampled_from(["json:/payload", "value", "json:/m"]),
    tombstones=st.sampled_from(["reject", "deliver", "skip"]),
    needs_sequence=st.booleans(),
)


@given(
    rules=all_rules,
    value=values,
    key=st.none() | st.binary(max_size=8),
    headers=st.lists(
        st.tuples(st.sampled_from(["id", "seq", "v", "x"]), st.none() | st.binary(max_size=8)), max_size=4
    ),
    decoded=st.booleans(),
)
def test_whatever_comes_has_an_identity_or_one_reason(
    rules: EnvelopeRules,
    value: bytes | None,
    key: bytes | None,
    headers: list[tuple[str, bytes | None]],
    decoded: bool,
) -> None:
    """No bytes anywhere raise: a record ends with ids and a lane, or a fault, or a skip (case 26)."""
    record = read(value, rules, key=key, headers=tuple(headers), decode=json.loads if decoded else None)
    if record.fault or record.skip:
        blank = Record(Channel.SOURCE, 42, key, value)
        blank.skip = record.skip
        assert identity(record) == identity(blank)
        assert not (record.fault and record.skip)
    else:
        assert record.message_id
        assert record.effect_key
        assert record.lane[1:] == (record.sequence_key or record.effect_key)
        assert 0 <= record.sequence <= MAX_INTEGER


@given(changes=st.dictionaries(members, anything, max_size=3), positional=st.booleans())
def test_the_short_way_and_the_long_way_agree(changes: dict[str, object], positional: bool) -> None:
    """What is read in one pass is what reading step by step finds, payload bytes included."""
    short, long = USUAL, DEEP
    if positional:  # the value is read in one pass, the rest beside it
        short, long = (msgspec.structs.replace(rules, message_id="position") for rules in (short, long))
    value = json.dumps(GOOD | changes).encode()
    flat, deep = read(value, short), read(b'{"m":' + value + b"}", long)
    assert identity(flat) == identity(deep)
    assert flat.fault == deep.fault.replace("json:/m/", "json:/")


# --- rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "rule"),
    [
        ("message_id", ""),
        ("message_id", "value"),
        ("message_id", "json:"),
        ("message_id", "json:messageId"),
        ("effect_key", "json:/a~2"),
        ("effect_key", "json:/a~"),
        ("effect_key", "header:"),
        ("effect_key", "Key"),
        ("sequence_key", "position"),
        ("sequence", "position"),
        ("sequence", None),
        ("version", "value"),
        ("payload", "key"),
        ("payload", "header:p"),
        ("payload", "position"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_at_the_start(field: str, rule: str | None) -> None:
    """A bad place is a configuration error that names its key, before any record is read."""
    rules = msgspec.structs.replace(USUAL, **{field: rule})
    with pytest.raises(ConfigError, match=f"envelope.{field}"):
        Envelope(rules)


# --- decode ------------------------------------------------------------------------------------


def test_pointers_walk_what_decode_returns() -> None:
    """With a decoder the identity is read from its object, and the payload is a Python object."""
    record = read(b"...", decode=lambda _: GOOD)
    assert identity(record)[:5] == ("m-1", "e-1", "k-1", 7, 1)
    assert record.payload is GOOD["payload"]
    whole = msgspec.structs.replace(USUAL, payload="value")
    assert read(b"...", whole, decode=lambda _: GOOD).payload is GOOD


class HostileMapping(Mapping[str, object]):
    """A decoded object whose own code fails."""

    def __getitem__(self, name: str) -> object:
        raise RuntimeError(name)

    def __iter__(self) -> Any:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError


@pytest.mark.parametrize(
    ("decoded", "fault"),
    [
        (None, "missing-field: message_id at json:/messageId"),
        (HostileMapping(), "undecodable-value"),
        (
            GOOD | {"messageId": "\ud800"},
            "mistyped-field: message_id at json:/messageId has half a surrogate pair",
        ),
        (GOOD | {"messageId": b"m"}, "mistyped-field: message_id at json:/messageId is of no JSON type"),
        (GOOD | {"sequence": True}, "mistyped-field: sequence at json:/sequence is a boolean"),
        (GOOD | {"sequence": 2**63}, "out-of-range-field: sequence at json:/sequence"),
        (
            GOOD | {"version": 1.0},
            "mistyped-field: version at json:/version is a number with a fraction or exponent",
        ),
    ],
)
def test_decoded_garbage_is_named_like_any_other(decoded: object, fault: str) -> None:
    """What a decoder returns is held to the same types and bounds as JSON (case 26)."""
    assert read(b"...", decode=lambda _: decoded).fault == fault


@pytest.mark.parametrize("error", [ValueError("secret"), RecursionError(), KeyError("x"), EOFError()])
def test_a_decoder_that_fails_has_met_undecodable_bytes(error: Exception) -> None:
    """Whatever a decoder raises about a value is a fault without its message (case 26)."""

    def decode(_: bytes) -> object:
        raise error

    assert read(b"...", decode=decode).fault == "undecodable-value"


def test_a_decoder_whose_registry_is_down_says_nothing_against_the_record() -> None:
    """Unavailable from a decoder passes through, for an outage must not dead-letter anything."""

    def decode(_: bytes) -> object:
        raise Unavailable(500, "registry")

    with pytest.raises(Unavailable):
        read(b"...", decode=decode)
