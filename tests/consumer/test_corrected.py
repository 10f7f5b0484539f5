"""A corrected value beside the record of its case: what differs, and whether it may stand for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laneway.consumer.operations.corrected import differences, refusal
from laneway.consumer.settings.load import load
from laneway.lanes.forward import ReviewNews
from laneway.lanes.lane import Raw

SETTINGS = load(Path("/dev/null"), flags={"group": "g"}, env={}, inspect=True).settings
BODY = {
    "messageId": "m",
    "effectKey": "e",
    "sequenceKey": "k",
    "sequence": 2,
    "version": 1,
    "payload": {"amount": 1},
}


def value(**changes: Any) -> bytes:
    """A record's value with some members changed; None takes one away."""
    return json.dumps({name: each for name, each in {**BODY, **changes}.items() if each is not None}).encode()


def news() -> ReviewNews:
    """The case of that record."""
    return ReviewNews(
        1,
        "opened",
        "c",
        "rejected",
        "",
        "g",
        "t",
        0,
        7,
        "k",
        2,
        "e",
        "m",
        1,
        "?",
        ("replay-with",),
        True,
        1,
        1,
    )


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({"a": 1}, {"a": 2}, ["~ /a"]),
        ({"a": 1}, {"a": True}, ["~ /a"]),
        ({"a": 1}, {"a": 1.0}, ["~ /a"]),
        ({"a": None}, {}, ["- /a"]),
        ({}, {"a": None}, ["+ /a"]),
        ({"a": {"b/c": 1, "d~": 2}}, {"a": {"b/c": 2, "d~": 3}}, ["~ /a/b~1c", "~ /a/d~0"]),
        ({"a": [1, 2, 3]}, {"a": [1, 4]}, ["~ /a/1", "- /a/2"]),
        ({"a": [1]}, {"a": {"0": 1}}, ["~ /a"]),
        ({"a": 10**30}, {"a": 10**30 + 1}, ["~ /a"]),
        ({"a": 1}, 5, ["~ "]),
    ],
)
def test_differences_are_told_by_their_paths(old: object, new: object, told: list[str]) -> None:
    """Each member that is new, gone or another is named once by its JSON pointer; order does not count."""
    found = differences(json.dumps(old).encode(), json.dumps(new).encode())
    assert found is not None
    assert [f"{each.sign} {each.pointer}" for each in found] == told


@pytest.mark.parametrize(
    ("old", "new"), [(b"\xff", b"{}"), (b"{}", b"{"), (None, b"{}"), (b"{}", b"[" * 100_000)]
)
def test_what_is_no_json_is_not_compared(old: bytes | None, new: bytes) -> None:
    """Anything else is said not to be comparable, and is no crash."""
    assert differences(old, new) is None


def test_the_same_effect_at_the_same_place_may_stand_for_it() -> None:
    """Another payload and message id are a correction."""
    original = Raw(b"k", value(payload="broken"), (), 1)
    assert refusal(SETTINGS, news(), original, value(messageId="m2")) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sequence": 3}, "another sequence"),
        ({"sequenceKey": "other"}, "another sequence key"),
        ({"effectKey": "other"}, "another effect key"),
        ({"payload": None}, "cannot be read: missing-field"),
        ({"sequence": "x"}, "cannot be read"),
    ],
)
def test_another_record_may_not(changes: dict[str, Any], why: str) -> None:
    """What the envelope cannot read, or reads as another effect or place, is refused before it is sent."""
    original = Raw(b"k", value(), (), 1)
    assert why in refusal(SETTINGS, news(), original, value(**changes))
