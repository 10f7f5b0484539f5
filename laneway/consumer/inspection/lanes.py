"""Lanes as a ledger has them, folded from its entries: those that do not move, or all about one key.

The entries come from a store or from a changelog, in the order they were written; a later one replaces an
earlier. What is kept follows the lanes that are asked about, not the size of the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from laneway.errors import RefusedError
from laneway.lanes.case import Case
from laneway.lanes.effect import Effect
from laneway.lanes.lane import HoldKind, Lane, Pause
from laneway.lanes.record import keyed_lane, lane_of_one
from laneway.store import codec

MAX_LANES: Final = 100_000
"""Lanes of one ledger that do not move and are kept."""

MAX_EFFECTS: Final = 1_000
"""Effects of a lane that are kept, those of the highest offsets."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A parked record without its bytes."""

    effect_key: str
    parked_ms: int
    size_bytes: int


def states_of(lane: Lane) -> list[str]:
    """What keeps a lane from moving, in fixed words: held, paused, parked; nothing when it is free."""
    found = []
    if lane.hold is not None:
        found.append("held")
    if lane.pause is not None:
        found.append("paused")
    if lane.parked:
        found.append("parked")
    return found


def since_ms_of(lane: Lane) -> int | None:
    """Since when it does not move; None when it does."""
    since = [each.since_ms for each in (lane.hold, lane.pause) if each is not None]
    return min(since, default=None)


class StandingLanes:
    """The lanes of one ledger that do not move, by their ledger name.

    Attributes:
        pause: of the whole partition.
    """

    prefixes: tuple[bytes, ...] = (codec.LANE, codec.META_KEY)

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}
        self.pause: Pause | None = None

    def take(self, key: bytes, value: bytes | None) -> None:
        """Fold one entry in; None removes.

        Raises:
            LedgerFormatError: it is none that this release reads.
            RefusedError: there are more than memory is meant for.
        """
        if key == codec.META_KEY:
            self.pause = None if value is None else codec.decode_meta(value).pause
        elif key[:1] == codec.LANE:
            name = codec.decode_key(key)
            lane = None if value is None else codec.decode_lane(value)
            if lane is None or not states_of(lane):
                self.lanes.pop(name, None)
                return
            self.lanes[name] = lane
            if len(self.lanes) > MAX_LANES:
                raise RefusedError(f"more than {MAX_LANES} lanes of one partition do not move")


class KeyStory:
    """All that one ledger knows of one key: as a sequence key, and as the effect key of a lane of one.

    Attributes:
        lanes: by ledger name; absent when the ledger keeps none.
        parked: by ledger name of the lane: sequence and offset.
        pause: of the whole partition.
    """

    prefixes: tuple[bytes, ...] = (codec.LANE, codec.PARKED, codec.CASE, codec.EFFECT, codec.META_KEY)

    def __init__(self, key: str) -> None:
        names = (keyed_lane(key), lane_of_one(key))
        self._lane_keys = {codec.lane_key(name): name for name in names}
        self._parked_prefixes = {codec.parked_prefix(name) for name in names}
        self._bytes = [name.encode() for name in names]
        self._names = frozenset(names)
        self.lanes: dict[str, Lane] = {}
        self.parked: dict[tuple[str, int, int], Waiting] = {}
        self.cases: dict[str, Case] = {}
        self.effects: dict[str, Effect] = {}
        self.pause: Pause | None = None

    @property
    def known(self) -> Sequence[str]:
        """The lanes of this key that the ledger knows anything of."""
        names = {*self.lanes, *(effect.lane for effect in self.effects.values())}
        names |= {lane for lane, _, _ in self.parked} | {case.lane for case in self.cases.values()}
        return sorted(names, reverse=True)

    def take(self, key: bytes, value: bytes | None) -> None:
        """Fold one entry in; None removes.

        Raises:
            LedgerFormatError: it is none that this release reads.
        """
        kind = key[:1]
        if kind == codec.EFFECT:
            self._take_effect(key, value)
        elif key == codec.META_KEY:
            self.pause = None if value is None else codec.decode_meta(value).pause
        elif kind == codec.LANE:
            if (name := self._lane_keys.get(key)) is not None:
                self.lanes.pop(name, None)
                if value is not None:
                    self.lanes[name] = codec.decode_lane(value)
        elif kind == codec.PARKED:
            if codec.prefix_of_parked(key) in self._parked_prefixes:
                self._take_parked(key, value)
        elif kind == codec.CASE:
            self._take_case(key, value)

    def _take_parked(self, key: bytes, value: bytes | None) -> None:
        place = codec.decode_parked_key(key)
        if value is None:
            self.parked.pop(place, None)
            return
        parked = codec.decode_parked(value)
        self.parked[place] = Waiting(parked.effect_key, parked.parked_ms, parked.raw.size_bytes())

    def _take_case(self, key: bytes, value: bytes | None) -> None:
        name = codec.decode_key(key)
        self.cases.pop(name, None)
        if value is not None and self._speaks_of_it(value):
            case = codec.decode_case(value)
            if case.lane in self._names:
                self.cases[name] = case

    def _take_effect(self, key: bytes, value: bytes | None) -> None:
        if value is None or not self._speaks_of_it(value):
            if self.effects:
                self.effects.pop(codec.decode_key(key), None)
            return
        effect = codec.decode_effect(value)
        if effect.lane not in self._names:
            return
        self.effects[codec.decode_key(key)] = effect
        if len(self.effects) > 2 * MAX_EFFECTS:
            kept = sorted(self.effects.items(), key=lambda each: each[1].offset)[-MAX_EFFECTS:]
            self.effects = dict(kept)

    def _speaks_of_it(self, value: bytes) -> bool:
        """Cheaper than decoding: a lane's name stands in the value as it is."""
        return any(name in value for name in self._bytes)


def what_it_waits_for(lane: Lane) -> str:
    """The kind of its hold in a fixed word: gap, retry or case; "" when nothing holds it."""
    if lane.hold is None:
        return ""
    return {HoldKind.GAP: "gap", HoldKind.RETRY: "retry", HoldKind.CASE: "case"}[lane.hold.kind]


class OneLane:
    """One lane as one ledger has it; None where it has none."""

    prefixes: tuple[bytes, ...] = (codec.LANE,)

    def __init__(self, name: str) -> None:
        self._key = codec.lane_key(name)
        self.lane: Lane | None = None

    def take(self, key: bytes, value: bytes | None) -> None:
        """Fold one entry in; None removes.

        Raises:
            LedgerFormatError: it is none that this release reads.
        """
        if key == self._key:
            self.lane = None if value is None else codec.decode_lane(value)
