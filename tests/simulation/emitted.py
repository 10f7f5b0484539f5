"""What handlers emit, and what must hold of it (invariant 6): it is there with the success that it tells of.

A third of all effects emit two records in each of their runs, also in those that fail after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from zlib import crc32

from laneway.lanes.effect import EffectState
from laneway.lanes.forward import Forward, ForwardKind
from laneway.lanes.view import Entry, Meta, PutEffect
from laneway.pipeline import Delivery
from tests.invariants import Broken, headers_of
from tests.simulation.setup import EMITTED

if TYPE_CHECKING:
    from tests.simulation.world import World

NUMBERS = (b"0", b"1")
SHARE = 3


class Emissions:
    """Knows who emits, and compares."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._emits: dict[tuple[int, str], bool] = {}
        self._order: dict[str, int] = {}
        self._count = 0
        self._last: dict[tuple[int, bytes | None], int] = {}

    def emit(self, partition: int, delivery: Delivery[object]) -> None:
        """A handler says what it wants published, and goes on."""
        if self._does(partition, delivery.effect_key):
            for number in NUMBERS:
                delivery.emit(EMITTED, (delivery.sequence_key or delivery.effect_key).encode(), number)

    def check(self, partition: int, entries: Iterable[Entry | Meta], forwards: Iterable[Forward]) -> None:
        """A cycle is about to be true: it has what its successes emitted, once and in order, and no more."""
        due = [
            (entry.effect.offset, number)
            for entry in entries
            if isinstance(entry, PutEffect)
            and entry.effect is not None
            and entry.effect.state is EffectState.SUCCEEDED
            and entry.effect.reason != "mark-done"
            and self._does(partition, entry.effect_key)
            for number in NUMBERS
        ]
        emitted = [forward for forward in forwards if forward.kind is ForwardKind.EMITTED]
        found = [(int(headers_of(forward)["origin-offset"]), forward.value or b"") for forward in emitted]
        if sorted(found) != sorted(due):
            raise Broken(6, f"{due} should be emitted, and {found} is", partition=partition)
        for forward in emitted:
            self._count += 1
            self._order[forward.forward_id] = self._count

    def landed(self, partition: int, forward: Forward) -> None:
        """The first copy stands in its topic: behind all that its lane has emitted before."""
        lane, at = (partition, forward.key), self._order[forward.forward_id]
        if at < self._last.get(lane, 0):
            raise Broken(6, f"{forward.key!r} emits out of its order", partition=partition)
        self._last[lane] = at

    def _does(self, partition: int, effect_key: str) -> bool:
        key = (partition, effect_key)
        found = self._emits.get(key)
        if found is None:
            name = f"{self._world.plan.seed} {partition} {effect_key}"
            found = self._emits[key] = crc32(name.encode()) % SHARE == 0
        return found
