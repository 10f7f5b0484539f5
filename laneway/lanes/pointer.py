"""Documents and pointers: finding what stands at a place in a record's value.

A document is opened only as far as pointers lead, and what they find in JSON is its exact bytes.
What an envelope makes of it, which field it is and whether it may be missing, is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from laneway.lanes.failures import TemporaryFailure, Unavailable

MAX_INTEGER: Final = 2**63 - 1
"""The largest sequence and contract version."""

MAX_DIGITS: Final = len(str(MAX_INTEGER))
_BAD_ESCAPE: Final = re.compile("~(?![01])")
# RFC 6901: digits without leading zeros; "-" names the member after the last, which is none.
_INDEX: Final = re.compile("0|[1-9][0-9]{0,17}")


class UnreadableError(Exception):
    """Ends the reading of one record; `fault` is all that is told of it."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.fault = fault


def pointer_tokens(pointer: str) -> tuple[str, ...]:
    """The reference tokens of an RFC 6901 pointer below the root.

    Raises:
        ValueError: it does not start with "/", or has a "~" that is neither "~0" nor "~1".
    """
    if not pointer.startswith("/"):
        raise ValueError('a JSON pointer (RFC 6901) starts with "/"')
    if _BAD_ESCAPE.search(pointer):
        raise ValueError('in a JSON pointer (RFC 6901) "~" is written "~0", and "/" in a name "~1"')
    # In this order: "~01" is the name "~1".
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/"))


class Kind(Enum):
    """What stands at a place where neither a text nor an integer does."""

    MISSING = "missing"
    NULL = "null"
    BOOLEAN = "a boolean"
    NUMBER = "a number with a fraction or exponent"
    ARRAY = "an array"
    OBJECT = "an object"
    OTHER = "of no JSON type"


MISSING: Final = Kind.MISSING
# By the first byte of a value, after strings; what is left is a number.
_KINDS: Final = {
    ord("n"): Kind.NULL,
    ord("t"): Kind.BOOLEAN,
    ord("f"): Kind.BOOLEAN,
    ord("["): Kind.ARRAY,
    ord("{"): Kind.OBJECT,
}
_QUOTE, _BRACE, _BRACKET = b'"{['

_Level = Mapping[str, msgspec.Raw] | Sequence[msgspec.Raw]
_decode_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_array: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
UNDECODABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


class Document:
    """A JSON value. It is opened only as far as pointers lead; what they find is its exact bytes."""

    __slots__ = ("_levels", "_value")

    def __init__(self, value: bytes | None) -> None:
        self._value = value
        self._levels: dict[tuple[str, ...], _Level] = {}

    def whole(self) -> object:
        """The whole value."""
        return self._value

    def find(self, tokens: tuple[str, ...]) -> object:
        """What stands there, or MISSING.

        Raises:
            UnreadableError: the value is not what it has to be for any pointer.
        """
        if self._value is None:
            return MISSING
        level = self._levels.get(())
        if level is None:
            level = self._levels[()] = _open_root(self._value)
        raw = b""
        for depth, token in enumerate(tokens, 1):
            if depth > 1:
                level = self._levels.get(tokens[: depth - 1])
                if level is None:
                    level = self._levels[tokens[: depth - 1]] = _open(raw)
            found = _step(level, token)
            if not isinstance(found, msgspec.Raw):
                return MISSING
            raw = bytes(found)
        return raw

    def leaf(self, tokens: tuple[str, ...]) -> str | int | Kind:
        """The text or integer that stands there, or what does instead."""
        raw = self.find(tokens)
        if not isinstance(raw, bytes):
            return MISSING
        if raw[0] == _QUOTE:
            try:
                return _decode_text(raw)
            except UNDECODABLE:
                raise UnreadableError("undecodable-json") from None
        return _KINDS.get(raw[0]) or _json_number(raw)


class Decoded(Document):
    """What a pipeline's `decode` makes of the value. Its code is foreign, and may fail in any way."""

    __slots__ = ("_decode", "_object")

    def __init__(self, value: bytes | None, decode: Callable[[bytes], object]) -> None:
        super().__init__(value)
        self._decode = decode
        self._object: object = MISSING

    def whole(self) -> object:
        """The decoded object."""
        if self._object is MISSING and self._value is not None:
            try:
                self._object = self._decode(self._value)
            except (TemporaryFailure, Unavailable):
                raise
            except Exception:  # noqa: BLE001 - whatever it is, these bytes have no object
                raise UnreadableError("undecodable-value") from None
        return self._object

    def find(self, tokens: tuple[str, ...]) -> object:
        """What stands there, or MISSING."""
        found = self.whole()
        try:
            for token in tokens:
                found = _step(found, token)
        except Exception:  # noqa: BLE001 - an object that cannot be walked was not decoded
            raise UnreadableError("undecodable-value") from None
        return found

    def leaf(self, tokens: tuple[str, ...]) -> str | int | Kind:
        """The text or integer that stands there, or what does instead."""
        found = self.find(tokens)
        if isinstance(found, Kind):
            return found
        return _python_leaf(found)


def _open_root(value: bytes) -> _Level:
    if not is_utf8(value):
        raise UnreadableError("undecodable-json")
    try:
        return _decode_object(value)
    except msgspec.ValidationError:
        pass  # JSON so far, but no object
    except UNDECODABLE:
        raise UnreadableError("undecodable-json") from None
    try:
        return _open(bytes(_decode_raw(value)))
    except UNDECODABLE:
        raise UnreadableError("undecodable-json") from None


def _open(raw: bytes) -> _Level:
    """The members of one JSON value; a scalar has none."""
    try:
        if raw[0] == _BRACE:
            return _decode_object(raw)
        return _decode_array(raw) if raw[0] == _BRACKET else ()
    except UNDECODABLE:
        raise UnreadableError("undecodable-json") from None


def _step(container: object, token: str) -> object:
    """One step of a pointer: by name into a mapping, by index into a sequence."""
    if isinstance(container, Mapping):
        found: object = container.get(token, MISSING)
        return found
    if (
        isinstance(container, Sequence)
        and not isinstance(container, str | bytes | bytearray)
        and _INDEX.fullmatch(token)
        and int(token) < len(container)
    ):
        member: object = container[int(token)]
        return member
    return MISSING


def _python_leaf(found: object) -> str | int | Kind:
    match found:
        case None:
            return Kind.NULL
        case bool():
            return Kind.BOOLEAN
        case str() | int():
            return found
        case float():
            return Kind.NUMBER
        case Mapping():
            return Kind.OBJECT
        case list() | tuple():
            return Kind.ARRAY
        case _:
            return Kind.OTHER


def _json_number(raw: bytes) -> int | Kind:
    digits = raw.removeprefix(b"-")
    if not digits.isdigit():
        return Kind.NUMBER
    # An integer may have a million digits: what is out of range anyway is not worth converting.
    number = int(digits) if len(digits) <= MAX_DIGITS else MAX_INTEGER + 1
    return number if digits is raw or not number else -1


def is_utf8(value: bytes) -> bool:
    # msgspec passes over what it does not decode, broken bytes included.
    if value.isascii():
        return True
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
