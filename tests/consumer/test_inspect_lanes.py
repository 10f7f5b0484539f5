"""Folds over the entries of a ledger: the last word counts, and memory follows what is asked about."""

from __future__ import annotations

import msgspec
import pytest

from laneway.consumer.inspection import lanes as inspect_lanes
from laneway.consumer.inspection.lanes import KeyStory, OneLane, StandingLanes
from laneway.errors import RefusedError
from laneway.lanes.effect import Effect
from laneway.lanes.lane import Lane, Pause
from laneway.store import codec
from tests.store.builders import case, effect, meta, parked

PAUSE = Pause("ann", "because", 5)


def of_lane(name: str, value: Lane | None) -> tuple[bytes, bytes | None]:
    """A lane's entry, or its tombstone."""
    return codec.lane_key(name), None if value is None else codec.encode(value)


def of_effect(key: str, value: Effect | None) -> tuple[bytes, bytes | None]:
    """An effect's entry, or its tombstone."""
    return codec.effect_key(key), None if value is None else codec.encode(value)


def test_a_lane_that_moves_again_is_forgotten() -> None:
    """Paused, then free, or removed: only what stands at the end is kept."""
    fold = StandingLanes()
    for name in ("ka", "kb", "kc"):
        fold.take(*of_lane(name, Lane(1, pause=PAUSE)))
    fold.take(*of_lane("ka", Lane(1)))
    fold.take(*of_lane("kb", None))
    fold.take(codec.META_KEY, codec.encode(msgspec.structs.replace(meta(1), pause=PAUSE)))
    assert (list(fold.lanes), fold.pause) == (["kc"], PAUSE)
    fold.take(codec.META_KEY, codec.encode(meta(2)))
    assert fold.pause is None


def test_lanes_that_stand_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than memory is meant for is a refusal, not a process that grows."""
    monkeypatch.setattr(inspect_lanes, "MAX_LANES", 10)
    fold = StandingLanes()
    for number in range(10):
        fold.take(*of_lane(f"k{number}", Lane(1, pause=PAUSE)))
    with pytest.raises(RefusedError, match="more than 10 lanes"):
        fold.take(*of_lane("k10", Lane(1, pause=PAUSE)))


def test_a_story_takes_its_own_key_only() -> None:
    """A key that begins with another's, or is named in another's values, is not it."""
    story = KeyStory("a")
    for key in ("a", "ab", "b"):
        story.take(*of_lane(f"k{key}", Lane(1)))
        story.take(codec.parked_key(f"k{key}", 3, 30), codec.encode(parked()))
        story.take(*of_effect(key, msgspec.structs.replace(effect(), lane=f"k{key}", message_id="ka")))
        case_of = msgspec.structs.replace(case(f"case-{key}"), lane=f"k{key}", note="ka")
        story.take(codec.case_key(f"case-{key}"), codec.encode(case_of))
    assert list(story.lanes) == ["ka"]
    assert list(story.parked) == [("ka", 3, 30)]
    assert list(story.effects) == ["a"]
    assert list(story.cases) == ["case-a"]
    assert story.known == ["ka"]


def test_a_story_forgets_what_was_removed() -> None:
    """Tombstones take away lane, parked record, effect and case."""
    story = KeyStory("a")
    story.take(*of_lane("ka", Lane(1)))
    story.take(codec.parked_key("ka", 3, 30), codec.encode(parked()))
    story.take(*of_effect("e", msgspec.structs.replace(effect(), lane="ka")))
    story.take(codec.case_key("c"), codec.encode(msgspec.structs.replace(case("c"), lane="ka")))
    story.take(*of_lane("ka", None))
    story.take(codec.parked_key("ka", 3, 30), None)
    story.take(*of_effect("e", None))
    story.take(codec.case_key("c"), None)
    assert story.known == []


def test_a_long_story_keeps_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a key with many effects those of the highest offsets are kept, in bounded memory."""
    monkeypatch.setattr(inspect_lanes, "MAX_EFFECTS", 5)
    story = KeyStory("a")
    for number in range(100):
        story.take(*of_effect(f"e{number}", msgspec.structs.replace(effect(offset=number), lane="ka")))
        assert len(story.effects) <= 10
    kept = sorted(each.offset for each in story.effects.values())
    assert kept[-5:] == [95, 96, 97, 98, 99]


def test_one_lane() -> None:
    """The last word about one lane, whatever its neighbours are."""
    fold = OneLane("ka")
    seen = []
    for name, lane in (("kab", Lane(9)), ("ka", Lane(1)), ("ka", Lane(2)), ("ka", None)):
        fold.take(*of_lane(name, lane))
        seen.append(fold.lane)
    assert seen == [None, Lane(1), Lane(2), None]
