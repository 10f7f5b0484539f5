"""Which offsets of one channel of one partition are settled: what may be committed, what comes again.

Only offsets that were seen can be unsettled. So a position that compaction took away after it was
loaded as unsettled blocks nothing, and a hole of the log counts as settled once a later offset was
seen: what is not there will never come. The frontier takes the caller's word that offsets arrive in
log order; keeping out records of an older fetch position is the caller's business (`STALE` shows one
kind of them).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Final

from laneway.errors import LanewayError
from laneway.lanes.view import ChannelMark, Ranges

_NOTHING_LOADED: Final = sys.maxsize
# Below this length the order queue is not worth compacting.
_ORDER_SLACK: Final = 1024


class Seen(Enum):
    """What `Frontier.see` answers."""

    NEW = "new"
    SETTLED = "settled"
    STALE = "stale"


# Named for every record: to look up an enum's member costs a dozen times what a global does (Python 3.11).
_NEW: Final = Seen.NEW
_SETTLED: Final = Seen.SETTLED
_STALE: Final = Seen.STALE


class UnseenOffsetError(LanewayError):
    """An offset was settled that is not unsettled (never seen, or settled before): a defect in Laneway."""


class Frontier:
    """The settled and unsettled offsets of one channel of one partition.

    Each call costs O(1) amortised and memory follows the number of unsettled offsets, also when one
    record is stuck below millions of settled ones. Not thread-safe: the owner thread has it.

    Args:
        start: the frontier as loaded, or the first offset to expect; everything below it is settled.
        settled: what is settled above `start`: sorted, disjoint.
    """

    __slots__ = ("_loaded", "_loaded_at", "_order", "_position", "_unsettled")

    def __init__(self, start: int, settled: Ranges = ()) -> None:
        self._position = start
        self._unsettled: set[int] = set()
        # Unsettled offsets in log order, and among them settled ones not yet swept out.
        self._order: deque[int] = deque()
        self._loaded = deque(settled)
        self._loaded_at = _NOTHING_LOADED
        self._move(start)

    def see(self, offset: int) -> Seen:
        """Take note of a record in the order polled.

        Returns:
            NEW when it must be worked on and settled; SETTLED when that position already is; STALE when
            it is in hand at this moment, so that this copy must be dropped without settling anything.
        """
        if offset < self._position:
            return _STALE if offset in self._unsettled else _SETTLED
        if offset >= self._loaded_at:
            self._move(offset)
            if offset < self._position:
                return _SETTLED
        self._unsettled.add(offset)
        self._order.append(offset)
        self._position = offset + 1
        if self._position == self._loaded_at:
            self._move(self._position)
        return _NEW

    def reach(self, position: int) -> bool:
        """The reader stands at `position` and nothing lies between it and the last seen offset.

        So a commit can pass what holds no record: the markers of transactions, a compacted end.

        Returns:
            Whether the position moved.
        """
        if position <= self._position:
            return False
        self._move(position)
        return True

    def settle(self, offset: int) -> None:
        """Note that the outcome of a NEW offset is durable.

        Raises:
            UnseenOffsetError: the offset is not unsettled; always a defect in Laneway.
        """
        try:
            self._unsettled.remove(offset)
        except KeyError:
            raise UnseenOffsetError(
                "an offset was settled that is not in hand",
                where=f"offset {offset}",
                mend="report this with the journal of the partition; nothing was committed",
            ) from None
        # Each sweep removes at least half of the queue, so it is paid for by what was appended.
        if len(self._order) > 2 * len(self._unsettled) + _ORDER_SLACK:
            self._order = deque(seen for seen in self._order if seen in self._unsettled)

    @property
    def frontier(self) -> int:
        """The lowest unsettled offset; without one, the position."""
        order, unsettled = self._order, self._unsettled
        while order and order[0] not in unsettled:
            order.popleft()
        return order[0] if order else self._position

    @property
    def position(self) -> int:
        """The next offset to expect: behind the last seen and the loaded ranges that touch it."""
        return self._position

    @property
    def unsettled(self) -> int:
        """How many offsets are in hand."""
        return len(self._unsettled)

    def mark(self) -> ChannelMark:
        """The frontier and what is settled above it, as the ledger keeps it.

        Costs O(unsettled), and has at most one range more than there are unsettled and loaded ones.
        """
        frontier = self.frontier
        ranges: list[tuple[int, int]] = []
        behind = frontier
        for offset in self._order:
            if offset in self._unsettled:
                if offset > behind:
                    ranges.append((behind, offset))
                behind = offset + 1
        if self._order and self._position > behind:
            ranges.append((behind, self._position))
        # The position never touches a loaded range that is left: no two of these need to be joined.
        ranges.extend(self._loaded)
        return ChannelMark(frontier, tuple(ranges))

    def _move(self, position: int) -> None:
        """Go forward to `position` and on over the loaded ranges that it reaches."""
        while self._loaded and self._loaded[0][0] <= position:
            position = max(position, self._loaded.popleft()[1])
        self._loaded_at = self._loaded[0][0] if self._loaded else _NOTHING_LOADED
        self._position = position


def without(mark: ChannelMark, offsets: Iterable[int]) -> ChannelMark:
    """The mark as it would be if these settled offsets were not settled."""
    taken = sorted(offsets)
    if not taken:
        return mark
    frontier = min(mark.frontier, taken[0])
    ranges = []
    for first, end in ((frontier, mark.frontier), *mark.settled):
        begin = first
        for offset in taken:
            if begin <= offset < end:
                if offset > begin:
                    ranges.append((begin, offset))
                begin = offset + 1
        if end > begin:
            ranges.append((begin, end))
    return ChannelMark(frontier, tuple(ranges))


def reopened(start: int, mark: ChannelMark | None) -> Frontier:
    """Where a channel stands: as the ledger says, unless reading starts beyond that.

    An operator may have moved the group's offset forward; what lies between is theirs to answer for.
    """
    if mark is None or start > mark.frontier:
        above = mark.settled if mark is not None else ()
        return Frontier(start, tuple((max(first, start), end) for first, end in above if end > start))
    return Frontier(mark.frontier, mark.settled)
