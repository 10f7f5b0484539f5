"""The envelope: who a record is, read from its headers, key, value or position by configured rules.

What may live here: the rules, reading them, and the fixed words for what cannot be read. It never
validates a payload (the worker does), never decides a record's fate (the board does), and says of a
broken record only which field, where and how; never a word of its content.

    undecodable-json                            the value is not JSON in UTF-8, or nested too deep
    undecodable-value                           the pipeline's `decode` failed, or its object did
    tombstone                                   no value, and tombstones are rejected
    missing-field: FIELD at PLACE               not there; a pointer that meets no container
    empty-field: FIELD at PLACE                 a text of 0 bytes
    oversized-field: FIELD at PLACE             a text of more than 4,096 UTF-8 bytes
    mistyped-field: FIELD at PLACE is a number  also: is null, is a boolean, is not decimal digits ...
    out-of-range-field: FIELD at PLACE          an integer below 0 or beyond 2**63 - 1

Texts may hold any character, control characters too. Of repeated headers or JSON keys the last wins.
Headers that start with `laneway-` mean nothing here: on a source topic they are foreign.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Final, Literal, Protocol, cast

import msgspec

from laneway.errors import ConfigError
from laneway.lanes.pointer import (
    MAX_DIGITS,
    MAX_INTEGER,
    MISSING,
    UNDECODABLE,
    Decoded,
    Document,
    Kind,
    UnreadableError,
    is_utf8,
    pointer_tokens,
)
from laneway.lanes.record import Record, keyed_lane, lane_of_one

MAX_TEXT_BYTES: Final = 4096
"""The longest id or key, in UTF-8 bytes."""

UNKNOWN_VERSION: Final = "unknown-contract-version"

_BASE64: Final = "b64:"
_PLACES: Final = (
    'write "header:NAME", "key" or "json:/pointer"; ids also "position", the payload also "value"'
)


class EnvelopeRules(msgspec.Struct, frozen=True):
    """Where one source's records carry their identity.

    A place is "header:NAME", "key" or "json:/pointer" (RFC 6901, below the root).

    Attributes:
        message_id, effect_key: a place, or "position".
        sequence_key: None for no order: every record is a lane of its own effect.
        sequence: read only with a sequence key and `needs_sequence`.
        version: None for no check of the contract version.
        payload: "json:/pointer", or "value" for the whole of it.
        accepts: the contract versions the handler understands.
        tombstones: what becomes of a record without a value. To "deliver" one, all that is read must
            stand in its headers or key; its payload is None.
        needs_sequence: False when lanes go by arrival and need no numbers.
    """

    message_id: str = "json:/messageId"
    effect_key: str = "json:/effectKey"
    sequence_key: str | None = "json:/sequenceKey"
    sequence: str | None = "json:/sequence"
    version: str | None = "json:/version"
    payload: str = "json:/payload"
    accepts: tuple[int, ...] = (1,)
    tombstones: Literal["reject", "deliver", "skip"] = "reject"
    needs_sequence: bool = True


class Envelope:
    """Reads the identity of one source's records. Built once; it keeps nothing between records.

    Args:
        decode: the pipeline's own decoder of values; pointers then walk the mappings and sequences of
            what it returns. Without one, values are JSON.

    Raises:
        ConfigError: a rule that cannot be read.
    """

    __slots__ = (
        "_accepts",
        "_decode",
        "_effect_key",
        "_flat",
        "_message_id",
        "_payload",
        "_sequence",
        "_sequence_key",
        "_tombstones",
        "_version",
    )

    def __init__(self, rules: EnvelopeRules, decode: Callable[[bytes], object] | None = None) -> None:
        ordered = rules.sequence_key is not None and rules.needs_sequence
        if ordered and rules.sequence is None:
            raise ConfigError(
                "a sequence key without a sequence",
                where="envelope.sequence",
                mend='name the place of the sequence, or set lanes.order = "arrival"',
            )
        self._message_id = _field("message_id", rules.message_id, "header", "key", "position")
        self._effect_key = _field("effect_key", rules.effect_key, "header", "key", "position")
        self._sequence_key = (
            None
            if rules.sequence_key is None
            else _field("sequence_key", rules.sequence_key, "header", "key")
        )
        self._sequence = (
            None
            if rules.sequence is None or not ordered
            else _field("sequence", rules.sequence, "header", "key")
        )
        self._version = None if rules.version is None else _field("version", rules.version, "header", "key")
        self._payload = None if rules.payload == "value" else _field("payload", rules.payload)
        self._accepts = frozenset(rules.accepts)
        self._tombstones = rules.tombstones
        self._decode = decode
        texts = (self._message_id, self._effect_key, self._sequence_key)
        integers = (self._sequence, self._version)
        self._flat = None if decode else _flat_reader(texts, integers, self._payload)

    def read(self, record: Record, topic: str, partition: int) -> None:
        """Fill in who the record is.

        Sets message_id, effect_key, sequence_key, sequence, version, payload and lane; or only `fault`;
        or only `skip`. With `misfit` all of them are set, but the payload may be None. A payload is the
        raw JSON exactly as it stands in the value, the whole value, or what `decode` made.

        Args:
            topic, partition: of the source, also when the record was read from a retry topic.

        Raises:
            TemporaryFailure, Unavailable: only as raised by `decode`, and they say nothing against the
                record: whatever `decode` asks is down, and the record must be read again later.
        """
        if record.value is None and self._tombstones != "deliver":
            if self._tombstones == "skip":
                record.skip = "tombstone"
            else:
                record.fault = "tombstone"
            return
        try:
            document: Document
            if self._decode is not None:
                document = Decoded(record.value, self._decode)
            elif (found := self._flat_of(record.value)) is None or self._flat is None:
                document = Document(record.value)
            elif self._flat.complete:
                self._take(record, found)
                return
            else:
                document = _Flattened(record.value, found, self._flat.names)
            self._read(record, document, topic, partition)
        except UnreadableError as unreadable:
            record.fault = unreadable.fault

    def _flat_of(self, value: bytes | None) -> _Found | None:
        """The usual shape, in one pass of C code; None for whatever that does not like the look of.

        Why it does not is found out by the long way, which also knows what to forgive.
        """
        if self._flat is None or value is None:
            return None
        try:
            found = self._flat.decode(value)
        except UNDECODABLE:
            return None
        return found if is_utf8(value) else None

    def _take(self, record: Record, found: _Found) -> None:
        """Every field stands in the value, and in it as it should."""
        record.message_id = found.message_id
        record.effect_key = effect_key = found.effect_key
        if self._sequence_key is None:
            record.lane = lane_of_one(effect_key)
        else:
            record.sequence_key = sequence_key = found.sequence_key
            record.lane = keyed_lane(sequence_key)
            if self._sequence is not None:
                record.sequence = found.sequence
        if self._version is not None:
            record.version = version = found.version
            if version not in self._accepts:
                record.misfit = UNKNOWN_VERSION
        record.payload = record.value if self._payload is None else bytes(found.payload)

    def _read(self, record: Record, document: Document, topic: str, partition: int) -> None:
        """Every place, every shape, and the reason when there is none.

        Raises:
            UnreadableError: nothing of the record was changed.
        """
        message_id = _text(self._message_id, record, document, topic, partition)
        effect_key = _text(self._effect_key, record, document, topic, partition)
        sequence_key = None
        sequence = version = 0
        misfit = ""
        payload: object = None
        if self._sequence_key is not None:
            sequence_key = _text(self._sequence_key, record, document, topic, partition)
        if self._sequence is not None:
            sequence = _integer(self._sequence, record, document)
        if self._version is not None:
            version = _integer(self._version, record, document)
            misfit = "" if version in self._accepts else UNKNOWN_VERSION
        if record.value is not None:
            payload = document.whole() if self._payload is None else document.find(self._payload.tokens)
            if payload is MISSING:
                # Another version of the contract may have it elsewhere; nobody is going to read it here.
                if not misfit or self._payload is None:
                    raise _unreadable("missing-field", self._payload)
                payload = None
        record.message_id, record.effect_key = message_id, effect_key
        record.sequence_key, record.sequence, record.version = sequence_key, sequence, version
        record.lane = lane_of_one(effect_key) if sequence_key is None else keyed_lane(sequence_key)
        record.misfit, record.payload = misfit, payload


def key_text(raw: bytes) -> str:
    """Bytes as text, so that no two differ in bytes and agree in text.

    UTF-8 is taken as it is. Other bytes, and text that could be taken for them, become "b64:" and
    their base64.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = ""
    else:
        if not text.startswith(_BASE64):
            return text
    return _BASE64 + base64.b64encode(raw).decode()


# --- rules -------------------------------------------------------------------------------------


class _Field(msgspec.Struct, frozen=True):
    """One field and where it is read: `header` by name, `key`, `json` by tokens, or `position`."""

    name: str
    place: str
    kind: Literal["header", "key", "json", "position"]
    header: str = ""
    tokens: tuple[str, ...] = ()


def _field(name: str, rule: str, *others: Literal["header", "key", "position"]) -> _Field:
    kind, colon, rest = rule.partition(":")
    if kind == "json" and colon:
        try:
            return _Field(name, rule, "json", tokens=pointer_tokens(rest))
        except ValueError as error:
            raise ConfigError(f"{rule!r}: {error}", where=f"envelope.{name}") from None
    if kind == "header" and kind in others and rest:
        return _Field(name, rule, "header", header=rest)
    if rule == "key" and rule in others:
        return _Field(name, rule, "key")
    if rule == "position" and rule in others:
        return _Field(name, rule, "position")
    raise ConfigError(f"{rule!r} is no place to read it from", where=f"envelope.{name}", mend=_PLACES)


# --- one record --------------------------------------------------------------------------------


def _unreadable(word: str, field: _Field | None, how: str = "") -> UnreadableError:
    return UnreadableError(word if field is None else f"{word}: {field.name} at {field.place}{how}")


def _outside(field: _Field, record: Record) -> bytes | None:
    """The bytes of a header or the key; of a repeated header the last."""
    if field.kind == "key":
        return record.key
    for name, value in reversed(record.headers):
        if name == field.header:
            return value
    return None


def _text(field: _Field, record: Record, document: Document, topic: str, partition: int) -> str:
    if field.kind == "position":
        # A topic name has no "/", so no two positions agree. A retry keeps the position it came from.
        return f"{topic}/{partition}/{record.origin_offset}"
    if field.kind == "json":
        text = document.leaf(field.tokens)
    else:
        raw = _outside(field, record)
        text = MISSING if raw is None else key_text(raw)
    if text is MISSING:
        raise _unreadable("missing-field", field)
    if not isinstance(text, str):
        what = text.value if isinstance(text, Kind) else "a number"
        raise _unreadable("mistyped-field", field, f" is {what}")
    if not text:
        raise _unreadable("empty-field", field)
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise _unreadable("mistyped-field", field, " has half a surrogate pair") from None
    if size > MAX_TEXT_BYTES:
        raise _unreadable("oversized-field", field)
    return text


def _integer(field: _Field, record: Record, document: Document) -> int:
    if field.kind == "json":
        number = document.leaf(field.tokens)
    else:
        raw = _outside(field, record)
        number = MISSING if raw is None else _decimal(field, raw)
    if number is MISSING:
        raise _unreadable("missing-field", field)
    if not isinstance(number, int):
        what = number.value if isinstance(number, Kind) else "a string"
        raise _unreadable("mistyped-field", field, f" is {what}")
    if not 0 <= number <= MAX_INTEGER:
        raise _unreadable("out-of-range-field", field)
    return int(number)


def _decimal(field: _Field, raw: bytes) -> int:
    if not raw:
        raise _unreadable("empty-field", field)
    # `bytes.isdigit` knows ASCII only; `int` would also take signs, spaces and underscores.
    if not raw.isdigit():
        raise _unreadable("mistyped-field", field, " is not decimal digits")
    digits = raw.lstrip(b"0")
    return int(digits or b"0") if len(digits) <= MAX_DIGITS else MAX_INTEGER + 1


# --- the usual case ----------------------------------------------------------------------------


class _Found(Protocol):
    """What a flat reader finds; a field that is not read from the value is absent."""

    message_id: str
    effect_key: str
    sequence_key: str
    sequence: int
    version: int
    payload: msgspec.Raw


class _FlatReader(msgspec.Struct, frozen=True):
    """A decoder made for one set of rules, for members of the one JSON object that a value is.

    Attributes:
        names: the attribute of `_Found` that holds a member of the object.
        complete: whether all fields are read from the value.
    """

    decode: Callable[[bytes], _Found]
    names: dict[str, str]
    complete: bool


class _Flattened(Document):
    """A value that a flat reader has opened."""

    __slots__ = ("_found", "_names")

    def __init__(self, value: bytes | None, found: _Found, names: dict[str, str]) -> None:
        super().__init__(value)
        self._found = found
        self._names = names

    def find(self, tokens: tuple[str, ...]) -> object:
        """The exact bytes; only the payload is looked for in this way."""
        raw: msgspec.Raw = getattr(self._found, self._names[tokens[0]])
        return bytes(raw)

    def leaf(self, tokens: tuple[str, ...]) -> str | int | Kind:
        """The text or integer; the decoder has let nothing else pass."""
        leaf: str | int = getattr(self._found, self._names[tokens[0]])
        return leaf


# msgspec does not take these in the name of a struct's member.
_NO_MEMBER_NAME: Final = re.compile(r'[\\"\x00-\x1f]')
# No character has more than four bytes, so a text this short needs no counting.
_FlatText = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT_BYTES // 4)]
_FlatInteger = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]


def _flat_reader(
    texts: Sequence[_Field | None], integers: Sequence[_Field | None], payload: _Field | None
) -> _FlatReader | None:
    """A reader for these rules; None when they lead deeper, or it would have nothing to read.

    It accepts less than the long way does (texts up to a length that needs no counting), and never
    anything else.
    """
    typed: list[tuple[_Field | None, object]] = [
        *((text, _FlatText) for text in texts),
        *((integer, _FlatInteger) for integer in integers),
        (payload, msgspec.Raw),
    ]
    members: dict[str, tuple[str, object]] = {}
    shared: dict[str, object] = {}
    for field, kind in typed:
        if field is None or field.kind != "json":
            continue
        if len(field.tokens) != 1 or _NO_MEMBER_NAME.search(field.tokens[0]):
            return None
        name, same = members.setdefault(field.tokens[0], (field.name, kind))
        if same is not kind:
            return None  # one member cannot be read in two ways at once
        if name != field.name:
            shared[field.name] = property(attrgetter(name))
    if not members:
        return None
    made = msgspec.defstruct(
        "Found",
        [(name, kind, msgspec.field(name=member)) for member, (name, kind) in members.items()],
        namespace=shared,
        gc=False,
    )
    return _FlatReader(
        decode=cast("Callable[[bytes], _Found]", msgspec.json.Decoder(made).decode),
        names={member: name for member, (name, _) in members.items()},
        complete=all(field is None or field.kind == "json" for field, _ in typed),
    )
