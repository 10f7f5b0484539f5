"""Pointers: any path by RFC 6901, in JSON and in whatever a pipeline's decoder returns."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.lanes.envelope import Envelope, EnvelopeRules
from laneway.lanes.pointer import pointer_tokens
from laneway.lanes.record import Channel, Record


def read(value: bytes, pointer: str, decode: Callable[[bytes], object] | None = None) -> Record:
    """A record whose effect key stands where a pointer leads."""
    record = Record(Channel.SOURCE, 42, None, value)
    rules = EnvelopeRules("position", f"json:{pointer}", None, None, None, "value")
    Envelope(rules, decode).read(record, "invoices", 3)
    return record


@given(tokens=st.lists(st.text(max_size=6), min_size=1, max_size=4))
def test_pointers_name_any_path(tokens: list[str]) -> None:
    """Whatever the names on the way are, a pointer written by RFC 6901 leads to what stands there."""
    pointer = "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)
    assert pointer_tokens(pointer) == tuple(tokens)
    tree: object = "found"
    for token in reversed(tokens):
        tree = {token: tree}
    assert read(json.dumps(tree, ensure_ascii=True).encode("utf-8"), pointer).effect_key == "found"


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("/a/0", "zero"),
        ("/a/1/b", "one"),
        ("/a/-", None),
        ("/a/2", None),
        ("/a/01", None),
        ("/a/+0", None),
        ("/a/٠", None),
        ("/a/999999999999999999999", None),
        ("/o/0", "name"),
        ("/s/0", None),
        ("/a~1b", "slash"),
        ("/~01", "tilde"),
        ("/", "empty"),
        ("/ ", "space"),
        ('/q"\\', "quote"),
    ],
)
@pytest.mark.parametrize("decode", [None, json.loads])
def test_pointers_follow_rfc_6901(
    pointer: str, found: str | None, decode: Callable[[bytes], object] | None
) -> None:
    """Indices, escapes and odd names are read as the standard says, in JSON and in decoded objects."""
    tree = {
        "a": ["zero", {"b": "one"}],
        "o": {"0": "name"},
        "s": "text",
        "a/b": "slash",
        "~1": "tilde",
        "": "empty",
        " ": "space",
        'q"\\': "quote",
    }
    record = read(json.dumps(tree).encode(), pointer, decode)
    expected = (found, "") if found else ("", f"missing-field: effect_key at json:{pointer}")
    assert (record.effect_key, record.fault) == expected
