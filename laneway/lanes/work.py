"""A lane in memory: what waits in front of it, what is out with a handler, what must commit first.

Beside it the effect keys that have work in hand anywhere on the board: one effect key never has
two deliveries at once, whatever lanes its records stand in.
"""

from __future__ import annotations

from collections import deque

from laneway.lanes.lane import Lane
from laneway.lanes.record import Record
from laneway.lanes.run import Run


class Work:
    """A lane with something in memory. It lives from its first record to its last commit.

    Attributes:
        waiting: records not judged yet, in the order they came.
        barrier: the cycle that must be committed before a delivery of this lane may start.
        touched: the last cycle that a settlement of this lane belongs to.
        cursor: the last follower read back and settled; what follows it is still parked.
        rest_until_ms: a dependency was unavailable; nothing starts before.
        ready: whether it stands in the queue of lanes to be judged.
    """

    __slots__ = ("barrier", "cursor", "lane", "ready", "rest_until_ms", "run", "state", "touched", "waiting")

    def __init__(self, lane: str, state: Lane) -> None:
        self.lane = lane
        self.state = state
        self.waiting: deque[Record] = deque()
        self.run: Run | None = None
        self.barrier = 0
        self.touched = 0
        self.cursor: tuple[int, int] | None = None
        self.rest_until_ms = 0
        self.ready = False


class EffectsInHand:
    """Which lane has work in hand for an effect key, and which lanes wait for that to end."""

    __slots__ = ("_lane_of", "_waiting")

    def __init__(self) -> None:
        self._lane_of: dict[str, str] = {}
        self._waiting: dict[str, list[Work]] = {}

    def __contains__(self, effect_key: str) -> bool:
        return effect_key in self._lane_of

    def held_by(self, effect_key: str, lane: str) -> bool:
        """Whether this lane has the effect in hand."""
        return self._lane_of.get(effect_key) == lane

    def take(self, effect_key: str, lane: str) -> None:
        """A delivery of this effect is about to start."""
        self._lane_of[effect_key] = lane

    def wait(self, effect_key: str, work: Work) -> None:
        """Note a lane whose next record needs the effect to be settled first."""
        self._waiting.setdefault(effect_key, []).append(work)

    def release(self, effect_key: str) -> list[Work]:
        """The effect is settled, or was never started: the lanes that may look again."""
        self._lane_of.pop(effect_key, None)
        return self._waiting.pop(effect_key, [])
