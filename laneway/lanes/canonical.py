"""The canonical form of a payload: when two payloads say the same, and the hash that remembers it.

Two forms of one payload must give one hash, or a publisher's retry would look like a conflict; two
different payloads must not, or a correction would be dropped as a duplicate. So spelling is
ignored (order of keys, white space, escapes, how a fraction is written), and nothing is rounded.

Rule 1, one domain byte and then:
    j  JSON: sorted keys, the last of repeated keys, integers digit for digit, other numbers as their
       exact decimal. 1 and 1.0 are *different* payloads; 1.0, 1.00 and 10e-1 are one.
    o  what a pipeline's `decode` returned, as MessagePack with sorted keys
    b  anything else: the bytes as they are (not JSON, nested too deep, numbers of thousands of digits)
    n  nothing: a tombstone
A number in the stored effect says by which rule its hash was taken; a changed rule is a new number.
"""

from __future__ import annotations

import hashlib
from decimal import (
    MAX_EMAX,
    MIN_EMIN,
    Context,
    DecimalException,
    Inexact,
    InvalidOperation,
    Overflow,
    Underflow,
)
from typing import Final

import msgspec

RULE: Final = 1
"""The number of the rule above."""

HASH_BYTES: Final = 16

# Far beyond what a number in a payload needs, and small enough to be quick. What does not fit is
# trapped, never rounded.
_MAX_DIGITS: Final = 1000
_EXACT: Final = Context(
    prec=_MAX_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation, Overflow, Underflow, Inexact]
)


def _exact_decimal(text: str) -> msgspec.Raw:
    """One spelling for one value. It always has an exponent, and an integer never has."""
    if len(text) > _MAX_DIGITS:
        raise ValueError("number too long")
    return msgspec.Raw(format(_EXACT.create_decimal(text).normalize(_EXACT), "E").encode())


_decode: Final = msgspec.json.Decoder(float_hook=_exact_decimal).decode
_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_encode_object: Final = msgspec.msgpack.Encoder(order="deterministic").encode


def payload_hash(payload: object, value: bytes | None) -> bytes:
    """SHA-256 of the canonical form, cut to 16 bytes. Never raises.

    Args:
        payload: raw JSON (or any) bytes; None for a tombstone; or what a pipeline's `decode` returned.
        value: the record's value, hashed in place of a decoded object that has no canonical form.
    """
    if payload is None and value is None:
        form = b"n"
    elif isinstance(payload, bytes):
        form = _canonical_json(payload)
    else:
        form = _canonical_object(payload, value)
    return hashlib.sha256(form).digest()[:HASH_BYTES]


def _canonical_json(raw: bytes) -> bytes:
    try:
        return b"j" + _encode(_decode(raw))
    # All of these mean: no JSON that could be written in one way. OverflowError is a msgspec that
    # does not write integers beyond 64 bits.
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError, DecimalException):
        return b"b" + raw


def _canonical_object(payload: object, value: bytes | None) -> bytes:
    try:
        return b"o" + _encode_object(payload)
    except Exception:  # noqa: BLE001 - a foreign object's own code runs in there
        return b"b" + (value or b"")
