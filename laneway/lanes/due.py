"""What waits for its time: records in hand until their delay is over.

A heap by due time, so a long delay never stands in front of a short one. Which clock it is and who
asks is the caller's business: time comes in as a number.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class DueHeap(Generic[T]):
    """Items by due time; those due at the same millisecond in the order they were pushed.

    Args:
        bound: how many may wait. At it the heap is `full`, and its owner stops feeding it (the retry
            partition pauses). It refuses nothing: what a poll has handed out already must go somewhere,
            so the overshoot is at most one poll. Leave it out for items that are bounded elsewhere.
    """

    __slots__ = ("_bound", "_heap", "_pushes")

    def __init__(self, bound: int = sys.maxsize) -> None:
        self._bound = bound
        # The number of the push keeps the order of ties, and items from being compared.
        self._heap: list[tuple[int, int, T]] = []
        self._pushes = count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def full(self) -> bool:
        """True at the bound: nothing more should be polled for it."""
        return len(self._heap) >= self._bound

    @property
    def next_due_ms(self) -> int | None:
        """The earliest due time in epoch milliseconds; None when nothing waits."""
        return self._heap[0][0] if self._heap else None

    def push(self, due_ms: int, item: T) -> None:
        """Let an item wait until `due_ms`, in epoch milliseconds."""
        heapq.heappush(self._heap, (due_ms, next(self._pushes), item))

    def bring_forward(self, by_ms: int) -> None:
        """Let all items be due so much earlier: the clock that they were told by was set back. Costs O(n)."""
        self._heap = [(due_ms - by_ms, number, item) for due_ms, number, item in self._heap]

    def pop_due(self, now_ms: int, limit: int) -> list[T]:
        """Take up to `limit` items whose time has come, the longest overdue first. Never one early."""
        heap = self._heap
        due: list[T] = []
        while heap and heap[0][0] <= now_ms and len(due) < limit:
            due.append(heapq.heappop(heap)[2])
        return due

    def discard(self, predicate: Callable[[T], bool]) -> list[T]:
        """Take out all items that the predicate names, in due order; the others keep their places.

        Costs O(n): it is for a lane that is told to stop waiting, not for every record.
        """
        kept: list[tuple[int, int, T]] = []
        gone: list[tuple[int, int, T]] = []
        for entry in self._heap:
            (gone if predicate(entry[2]) else kept).append(entry)
        heapq.heapify(kept)
        self._heap = kept
        gone.sort(key=lambda entry: entry[:2])
        return [item for _, _, item in gone]

    def clear(self) -> None:
        """Forget all items: the partition is lost, and they come again to whoever has it."""
        self._heap.clear()
