"""The canonical form: spelling does not count, every value does."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.lanes.canonical import HASH_BYTES, payload_hash

# Integers beyond 64 bits are in; fractions are not, because `json` may not keep them digit for digit.
scalars = st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.text(max_size=8)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def hash_of(text: str | bytes) -> bytes:
    """The hash of raw payload bytes."""
    return payload_hash(text.encode() if isinstance(text, str) else text, None)


def reversed_keys(tree: object) -> object:
    """The same value with every object written in the opposite order."""
    if isinstance(tree, dict):
        return {key: reversed_keys(inner) for key, inner in reversed(tree.items())}
    if isinstance(tree, list):
        return [reversed_keys(inner) for inner in tree]
    return tree


@given(tree=trees)
def test_key_order_white_space_and_escapes_do_not_count(tree: object) -> None:
    """A publisher's retry that writes the same value differently gives the same hash (S25)."""
    plain = hash_of(json.dumps(tree, separators=(",", ":"), ensure_ascii=False))
    assert hash_of(json.dumps(tree, indent=3, ensure_ascii=True)) == plain
    assert hash_of(json.dumps(reversed_keys(tree))) == plain


@given(one=trees, two=trees)
def test_another_value_is_another_hash(one: object, two: object) -> None:
    """Two payloads that differ anywhere are never taken for duplicates of each other."""
    # As JSON text, since Python takes True and 1 for equal.
    same = json.dumps(one, sort_keys=True) == json.dumps(two, sort_keys=True)
    assert (hash_of(json.dumps(one)) == hash_of(json.dumps(two))) is same


@given(
    raw=st.binary(max_size=60) | st.text('[]{}",:0123456789.eE-+truefalsn\\u ', max_size=30).map(str.encode)
)
def test_any_bytes_have_a_hash(raw: bytes) -> None:
    """Whatever the bytes are, hashing them gives 16 bytes and never an error."""
    assert len(payload_hash(raw, raw)) == HASH_BYTES


@pytest.mark.parametrize(
    "spellings",
    [
        ("[1.0]", "[1.00]", "[10e-1]", "[0.1E+1]"),
        ("[0.1]", "[1e-1]", "[0.10]"),
        ('["é"]', '["\\u00e9"]'),
        ('{"a":2}', '{"a":1,"a":2}'),
        ("[0]", "[-0]"),
        ("[1e400]", "[10e399]"),
    ],
)
def test_one_value_in_several_spellings(spellings: tuple[str, ...]) -> None:
    """Escapes, trailing zeros, exponents and repeated keys are spelling: one hash."""
    assert len({hash_of(spelling) for spelling in spellings}) == 1


def test_nothing_is_rounded_and_no_two_kinds_are_one() -> None:
    """Payloads that binary floats, 64 bits or a careless cast would make equal stay different."""
    different = [
        "[1]",
        "[1.0]",
        "[true]",
        '["1"]',
        "[null]",
        "[0.1]",
        "[0.1000000000000000000001]",
        "[9007199254740993]",
        "[9007199254740992]",
        "[9007199254740993.0]",
        "[9007199254740992.0]",
        "[18446744073709551616]",
        "[18446744073709551617]",
        "[100]",
        "[1e2]",
        "[1e400]",
        "[1e401]",
        "[1e-99999999999999999999]",
        "[0.0]",
        "[]",
        "{}",
        "",
    ]
    for one, two in combinations(different, 2):
        assert hash_of(one) != hash_of(two), (one, two)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b"9" * 10_000,
        b"0." + b"9" * 10_000,
        b"1e" + b"9" * 30,
        b'"\\ud800"',
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        b"{",
        b"",
        b"\x00\x01",
        b"[1] [2]",
        b"NaN",
    ],
    ids=range(12),
)
def test_what_is_no_json_is_hashed_as_it_is(raw: bytes) -> None:
    """Too deep, too long, torn or not JSON at all: the bytes count, one by one, and nothing raises."""
    assert len(hash_of(raw)) == HASH_BYTES
    assert hash_of(raw) == hash_of(raw)
    assert hash_of(raw) != hash_of(raw + b" ")


def test_the_forms_cannot_collide() -> None:
    """Nothing, null, bytes, JSON and decoded objects never give each other's hash."""
    hashes = [
        payload_hash(None, None),
        payload_hash(b"", b""),
        payload_hash(b"null", b"null"),
        payload_hash(None, b"x"),
        # Not JSON, and spelled like the inside of a JSON form.
        payload_hash(b"j[1]", None),
        payload_hash(b"[1]", None),
        payload_hash([1], b"[1]"),
    ]
    assert len(set(hashes)) == len(hashes)


@dataclass
class Invoice:
    """What a decoder might return."""

    number: str
    cents: int


class Opaque:
    """An object without a canonical form."""


class Hostile(dict[str, int]):
    """An object whose own code fails."""

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        raise RuntimeError("no")

    def items(self) -> object:  # type: ignore[override]
        raise RuntimeError("no")


def test_decoded_objects_are_hashed_by_their_content() -> None:
    """Two decoded objects with the same content are one payload, whatever bytes they came from."""
    assert payload_hash(Invoice("a", 1), b"x") == payload_hash(Invoice("a", 1), b"y")
    assert payload_hash(Invoice("a", 1), b"x") != payload_hash(Invoice("a", 2), b"x")
    assert payload_hash({"a": 1, "b": {2, 3}}, b"x") == payload_hash({"b": {3, 2}, "a": 1}, b"y")
    assert payload_hash([float("nan")], b"x") != payload_hash([None], b"x")


def test_objects_without_a_canonical_form_are_hashed_by_the_value() -> None:
    """An object nobody can write down is known by the bytes it was decoded from."""
    assert payload_hash(Opaque(), b"x") == payload_hash(Opaque(), b"x") == payload_hash(2**70, b"x")
    assert payload_hash(Opaque(), b"x") != payload_hash(Opaque(), b"y")
    nested: list[object] = []
    for _ in range(sys.getrecursionlimit() * 3):
        nested = [nested]
    assert payload_hash(nested, b"x") == payload_hash(Opaque(), b"x")
    assert len(payload_hash(Hostile(a=1), b"x")) == HASH_BYTES
