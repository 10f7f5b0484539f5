"""Where offsets go, and what is refused before anything is written: without a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from laneway.consumer.kafka.cluster import Committed, Group, Member, Partition, Watermarks
from laneway.consumer.operations import reset
from laneway.consumer.operations.reset import Goal, goal_of, planned
from laneway.consumer.partition import read_reset
from laneway.errors import LanewayError, RefusedError, UsageError

WORKER_NOTE = '{"movedMs":1}'


class FakeCluster:
    """A group at rest with one source of three partitions, and what was set in it."""

    def __init__(self) -> None:
        self.logs = {("s", 0): Watermarks(10, 100), ("s", 1): Watermarks(0, 50), ("s", 2): Watermarks(0, 0)}
        self.has: dict[Partition, Committed] = {
            ("s", 0): Committed(40, WORKER_NOTE),
            ("s", 1): Committed(7, ""),
        }
        self.state = "empty"
        self.members: tuple[Member, ...] = ()
        self.takes = True

    def partition_counts(self, names: Sequence[str]) -> Mapping[str, int]:
        """The source."""
        return {"s": 3}

    def watermarks(self, partitions: Sequence[Partition]) -> Mapping[Partition, Watermarks]:
        """Their logs."""
        return {place: self.logs[place] for place in partitions}

    def group(self, group: str) -> Group | None:
        """As the test says."""
        return Group(group, self.state, "classic", self.members)

    def committed(
        self, group: str, partitions: Sequence[Partition], *, settled: bool = False
    ) -> Mapping[Partition, Committed | None]:
        """What was set."""
        assert settled, "a transaction under way could change it"
        return {place: self.has.get(place) for place in partitions}

    def offsets_at(self, partitions: Sequence[Partition], at_ms: int) -> Mapping[Partition, int]:
        """One record a millisecond, as if all of the log were there."""
        return {place: at_ms for place in partitions if at_ms < self.logs[place].end}

    def commit(self, group: str, offsets: Mapping[Partition, Committed]) -> Mapping[Partition, str]:
        """Takes them, or says that it did."""
        if self.takes:
            self.has.update(offsets)
        return {}


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("start", Goal("start")),
        ("end", Goal("end")),
        ("17", Goal("offset", 17)),
        ("+3", Goal("by", 3)),
        ("-3", Goal("by", -3)),
        ("@1772344800000", Goal("time", 1_772_344_800_000)),
        ("@2026-03-01T06:00:00Z", Goal("time", 1_772_344_800_000)),
    ],
)
def test_a_place_in_a_log(text: str, goal: Goal) -> None:
    """Each way to name a place is understood."""
    assert goal_of(text) == goal


@pytest.mark.parametrize(
    "text", ["", "begin", "1.5", "--3", "@", "@now", "@earliest", "@2026-03-01T06:00:00"]
)
def test_what_is_no_place(text: str) -> None:
    """Anything else is a mistake of who typed it, a time without its zone too."""
    with pytest.raises(UsageError):
        goal_of(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yesterday", "write start, end, an offset, or @2026-11-30T19:00Z"),
        ("+3", "write start, end, an offset, or @2026-11-30T19:00Z"),
        ("@2026-03-01T06:00:00", "a time needs a zone: @2026-11-30T19:00Z"),
        ("2026-03-01T06:00Z", "a time is written @2026-11-30T19:00Z"),
    ],
)
def test_a_mistake_is_told_where_it_was_made(text: str, said: str) -> None:
    """The option that was given is named, and only what this command takes is offered."""
    with pytest.raises(UsageError) as refused:
        goal_of(text, "--from", relative=False)
    assert (refused.value.where, refused.value.mend) == ("--from", said)


@pytest.mark.parametrize(
    ("text", "partition", "after", "remark"),
    [
        ("start", 0, 10, ""),
        ("end", 0, 100, ""),
        ("10", 0, 10, ""),
        ("100", 0, 100, ""),
        ("+5", 0, 45, ""),
        ("-31", 0, 10, "9 is outside: the start of the log"),
        ("+61", 0, 100, "101 is outside: the end of the log"),
        ("@12", 0, 12, ""),
        ("@3", 0, 10, ""),
        ("@70", 1, 50, "nothing is that new: the end"),
        ("start", 2, 0, ""),
    ],
)
def test_where_it_comes_to(text: str, partition: int, after: int, remark: str) -> None:
    """A place is an offset inside the log of its partition; what lay outside is said."""
    [move] = planned(FakeCluster(), "g", ["s"], [partition], goal_of(text))
    assert (move.after, move.remark) == (after, remark)


@pytest.mark.parametrize(("text", "partition"), [("9", 0), ("101", 0), ("+1", 2)])
def test_what_is_refused(text: str, partition: int) -> None:
    """An offset outside its log, and counting from nothing, change nothing."""
    with pytest.raises(RefusedError):
        planned(FakeCluster(), "g", ["s"], [partition], goal_of(text))


def test_a_partition_that_is_not_there() -> None:
    """The number of a partition that does not exist is a mistake, not an empty success."""
    with pytest.raises(UsageError, match="no partition 3"):
        planned(FakeCluster(), "g", ["s"], [3], goal_of("start"))


def test_what_stands_beside_the_offset() -> None:
    """Who set it and why, and whether a worker's ledger belongs to it, also after the second time."""
    cluster = FakeCluster()
    for _ in range(2):
        moves = planned(cluster, "g", ["s"], [], goal_of("end"))
        written = reset.write(cluster, "g", moves, "ann", "x" * 600)
        assert all(written.is_set(move) for move in moves)
        notes = [read_reset(cluster.has["s", number].metadata) for number in range(3)]
        assert [note and note.after_worker for note in notes] == [True, False, False]
        assert notes[0] is not None
        assert (notes[0].reset_by, len(notes[0].reason)) == ("ann", reset.MAX_NOTE)
    assert read_reset(WORKER_NOTE) is None
    assert read_reset("of another client") is None


def test_whose_offset_it_is_that_is_moved() -> None:
    """A worker's own has a ledger that goes as far; one that was set by hand, or another client, has not."""
    cluster = FakeCluster()
    moves = planned(cluster, "g", ["s"], [], goal_of("end"))
    assert [move.by_worker for move in moves] == [True, False, False]
    reset.write(cluster, "g", moves, "ann", "why")
    assert not any(move.by_worker for move in planned(cluster, "g", ["s"], [], goal_of("start")))


def test_what_was_not_written_is_noticed() -> None:
    """Case 40: success is what was read back, whatever the answer to the write said."""
    cluster = FakeCluster()
    cluster.takes = False
    moves = planned(cluster, "g", ["s"], [0], goal_of("end"))
    written = reset.write(cluster, "g", moves, "ann", "why")
    assert not written.is_set(moves[0])
    assert written.now == {("s", 0): 40}


@pytest.mark.parametrize("state", ["stable", "preparing_rebalance", "completing_rebalance"])
def test_a_group_that_moves(state: str) -> None:
    """A group that is not at rest is left alone, also in the moment in which it shows no member."""
    cluster = FakeCluster()
    moves = planned(cluster, "g", ["s"], [0], goal_of("end"))
    cluster.state = state
    with pytest.raises(LanewayError, match=state):
        reset.write(cluster, "g", moves, "ann", "why")
    assert cluster.has["s", 0].offset == 40
