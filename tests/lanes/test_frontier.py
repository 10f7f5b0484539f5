"""The frontier: nothing unsettled is ever committed, and what is settled never runs again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.lanes.frontier import Frontier, Seen, UnseenOffsetError
from laneway.lanes.view import ChannelMark, Ranges


class NaiveFrontier:
    """The same promise, kept with plain sets over every offset there ever was."""

    def __init__(self, start: int, settled: Ranges) -> None:
        self.start = start
        self.loaded = {offset for first, end in settled for offset in range(first, end)}
        self.position = start
        self.unsettled: set[int] = set()
        self.skip_loaded()

    def skip_loaded(self) -> None:
        while self.position in self.loaded:
            self.position += 1

    def see(self, offset: int) -> Seen:
        if offset in self.unsettled:
            return Seen.STALE
        if offset < self.position:
            return Seen.SETTLED
        self.position = max(self.position, offset)
        if offset in self.loaded:
            self.skip_loaded()
            return Seen.SETTLED
        self.unsettled.add(offset)
        self.position = offset + 1
        self.skip_loaded()
        return Seen.NEW

    def frontier(self) -> int:
        return min(self.unsettled, default=self.position)

    def settled_above(self) -> set[int]:
        above = {o for o in range(self.frontier(), self.position) if o not in self.unsettled}
        return above | {o for o in self.loaded if o >= self.position}


@st.composite
def marks(draw: st.DrawFn) -> tuple[int, Ranges]:
    """A loaded frontier with sorted, disjoint, not touching ranges above it."""
    start = draw(st.integers(0, 20))
    ranges: list[tuple[int, int]] = []
    at = start
    for gap, length in draw(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=5)):
        ranges.append((at + gap, at + gap + length))
        at += gap + length
    return start, tuple(ranges)


def offsets_of(ranges: Ranges) -> set[int]:
    return {offset for first, end in ranges for offset in range(first, end)}


@given(mark=marks(), steps=st.lists(st.tuples(st.sampled_from("sssSx"), st.integers(0, 5)), max_size=80))
def test_agrees_with_a_naive_model(mark: tuple[int, Ranges], steps: list[tuple[str, int]]) -> None:
    """Any order of seeing, passing holes, hearing stale copies and settling gives what plain sets give."""
    real, naive = Frontier(*mark), NaiveFrontier(*mark)
    polled = mark[0]
    for step, number in steps:
        if step == "s":
            polled += number if number > 3 else 0  # else a hole: compaction took some away
            assert real.see(polled) is naive.see(polled)
            polled += 1
        elif step == "S":
            assert real.see(max(0, polled - number)) is naive.see(max(0, polled - number))
            polled = max(polled, naive.position)
        elif naive.unsettled:
            chosen = sorted(naive.unsettled)[number % len(naive.unsettled)]
            naive.unsettled.remove(chosen)
            real.settle(chosen)
        assert real.frontier == naive.frontier()
        assert real.position == naive.position
        assert real.unsettled == len(naive.unsettled)
        written = real.mark()
        assert written.frontier == naive.frontier()
        assert offsets_of(written.settled) == naive.settled_above()
        assert all(a[1] < b[0] for a, b in zip(written.settled, written.settled[1:], strict=False))


@given(mark=marks(), seen=st.integers(0, 40), done=st.sets(st.integers(0, 40)))
def test_a_reloaded_frontier_hands_out_exactly_what_was_not_settled(
    mark: tuple[int, Ranges], seen: int, done: set[int]
) -> None:
    """After a crash the records that come again are the unsettled ones and nothing else."""
    first = Frontier(*mark)
    start = mark[0]
    new = [offset for offset in range(start, start + seen) if first.see(offset) is Seen.NEW]
    for offset in new:
        if offset - start in done:
            first.settle(offset)
    unsettled = [offset for offset in new if offset - start not in done]
    written = first.mark()
    again = Frontier(written.frontier, written.settled)
    assert again.mark() == written
    # The commit may have been lost: Kafka hands out everything from the first start.
    assert [o for o in range(start, first.position) if again.see(o) is Seen.NEW] == unsettled


def test_a_mark_holds_the_frontier_below_a_failed_record() -> None:
    """Fail 5, settle 6: 5 comes again after a restart and 6 does not (case 19, case 9)."""
    frontier = Frontier(5)
    assert [frontier.see(5), frontier.see(6)] == [Seen.NEW, Seen.NEW]
    frontier.settle(6)
    assert frontier.mark() == ChannelMark(5, ((6, 7),))
    again = Frontier(5, ((6, 7),))
    assert [again.see(5), again.see(6)] == [Seen.NEW, Seen.SETTLED]
    again.settle(5)
    assert again.mark() == ChannelMark(7)


def test_one_stuck_record_costs_one_range_however_many_settle_above_it() -> None:
    """What completed above the frontier needs room for what did not, not for itself (case 10)."""
    frontier = Frontier(0)
    for offset in range(100_001):
        assert frontier.see(offset) is Seen.NEW
    for offset in range(1, 100_001):
        frontier.settle(offset)
    assert frontier.mark() == ChannelMark(0, ((1, 100_001),))
    assert len(frontier._order) <= 2 * frontier.unsettled + 1024


def test_unsettled_positions_that_compaction_took_away_do_not_block() -> None:
    """A position loaded as unsettled and gone from the log is passed with the next record."""
    frontier = Frontier(5, ((8, 10), (12, 13)))
    assert frontier.mark() == ChannelMark(5, ((8, 10), (12, 13)))
    assert frontier.see(9) is Seen.SETTLED
    assert frontier.frontier == 10
    assert frontier.see(20) is Seen.NEW
    assert frontier.mark() == ChannelMark(20)


def test_a_copy_of_a_record_in_hand_is_stale() -> None:
    """A prefetched copy that surfaces again while the first is in hand is told apart."""
    frontier = Frontier(0)
    frontier.see(0)
    frontier.see(1)
    assert frontier.see(0) is Seen.STALE
    frontier.settle(0)
    assert frontier.see(0) is Seen.SETTLED
    assert (frontier.frontier, frontier.unsettled) == (1, 1)


def test_the_frontier_never_passes_the_end_of_what_was_seen() -> None:
    """An idle partition stays where it is, however often its mark is written and loaded (case 11)."""
    frontier = Frontier(7)
    for _ in range(3):
        mark = frontier.mark()
        assert mark == ChannelMark(7)
        frontier = Frontier(mark.frontier, mark.settled)


@pytest.mark.parametrize("offset", [3, 4, 9])
def test_settling_what_is_not_in_hand_is_an_error(offset: int) -> None:
    """A second settlement, or one of an offset never handed out, is refused."""
    frontier = Frontier(4)
    frontier.see(4)
    frontier.settle(4)
    with pytest.raises(UnseenOffsetError, match=f"offset {offset}"):
        frontier.settle(offset)


def test_one_stuck_record_does_not_keep_what_settled_above_it() -> None:
    """Memory follows the unsettled offsets: a stuck record below 200,000 settled ones costs one range."""
    frontier = Frontier(0)
    frontier.see(0)
    for offset in range(1, 200_000):
        frontier.see(offset)
        frontier.settle(offset)
    assert frontier.mark() == ChannelMark(0, ((1, 200_000),))
    assert len(frontier._order) < 2_000
    frontier.settle(0)
    assert frontier.frontier == 200_000
