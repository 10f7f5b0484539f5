"""The due-time heap: never early, never one delay behind another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laneway.lanes.due import DueHeap


def filled(dues: list[int], bound: int = 1000) -> DueHeap[int]:
    """A heap whose items are the indices of their due times."""
    heap: DueHeap[int] = DueHeap(bound)
    for index, due_ms in enumerate(dues):
        heap.push(due_ms, index)
    return heap


@given(
    dues=st.lists(st.integers(0, 50), max_size=40),
    nows=st.lists(st.integers(0, 60), max_size=10),
    limit=st.integers(1, 7),
)
def test_pops_in_due_order_and_never_early(dues: list[int], nows: list[int], limit: int) -> None:
    """Whatever is popped is due, was waiting longest, and ties leave in the order they came (case 18)."""
    heap = filled(dues)
    waiting = sorted(range(len(dues)), key=lambda index: (dues[index], index))
    for now_ms in nows:
        expected = [index for index in waiting if dues[index] <= now_ms][:limit]
        assert heap.pop_due(now_ms, limit) == expected
        waiting = [index for index in waiting if index not in expected]
        assert len(heap) == len(waiting)
        assert heap.next_due_ms == (dues[waiting[0]] if waiting else None)


@given(dues=st.lists(st.integers(0, 50), max_size=40), chosen=st.sets(st.integers(0, 40)))
def test_discard_takes_only_what_it_names(dues: list[int], chosen: set[int]) -> None:
    """Discarding some items gives them back in due order and leaves the order of the others alone."""
    heap = filled(dues)
    in_order = sorted(range(len(dues)), key=lambda index: (dues[index], index))
    assert heap.discard(lambda index: index in chosen) == [i for i in in_order if i in chosen]
    assert heap.pop_due(50, 1000) == [i for i in in_order if i not in chosen]


def test_mixed_delays_do_not_disturb_each_other() -> None:
    """A 4000 ms delay pushed first does not hold up the 1000 ms delays behind it (case 18)."""
    heap = filled([4000, 1000, 1000])
    assert heap.pop_due(999, 10) == []
    assert heap.pop_due(1000, 10) == [1, 2]
    assert heap.next_due_ms == 4000


def test_items_are_never_compared() -> None:
    """Two items that cannot be ordered may be due at the same millisecond."""
    heap: DueHeap[object] = DueHeap(10)
    one, two = object(), object()
    heap.push(5, one)
    heap.push(5, two)
    assert heap.pop_due(5, 10) == [one, two]


def test_is_full_at_its_bound_and_still_takes_what_was_polled() -> None:
    """At the bound the heap says so, and loses nothing that was handed out before it was heard."""
    heap = filled([1, 2], bound=2)
    assert heap.full
    heap.push(3, 2)
    assert heap.pop_due(3, 10) == [0, 1, 2]
    assert not heap.full


def test_clear_forgets_everything() -> None:
    """After a partition is lost nothing of it becomes due."""
    heap = filled([1, 2])
    heap.clear()
    assert (len(heap), heap.next_due_ms, heap.pop_due(10, 10)) == (0, None, [])
