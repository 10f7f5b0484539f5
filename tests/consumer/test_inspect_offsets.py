"""A group's standing from what a cluster answers, and how its sources are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from laneway.consumer.inspection.offsets import NO_OWNER, read_note, sources_of, standings
from laneway.consumer.kafka.cluster import Committed, Group, Member, Partition, PartitionOffsets
from laneway.consumer.settings.load import load
from laneway.consumer.settings.model import Settings
from laneway.errors import RefusedError, TopicError

NOTE = '{"running":2,"waiting":5,"retries":1,"parked":7,"openCases":1,"blockedBy":"disk","movedMs":1000}'
EMPTY = Group("reminders", "empty", "classic", ())


@dataclass
class FakeGroup:
    """A cluster with one group: topics, commits, log ends, members. It knows no other group and lists none.

    Attributes:
        asked: the partitions that committed offsets were asked for.
    """

    counts: dict[str, int]
    commits: dict[Partition, Committed] = field(default_factory=dict)
    starts: dict[Partition, int] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)
    members: Group | None = EMPTY
    asked: list[Partition] = field(default_factory=list)

    def partition_counts(self, names: Sequence[str]) -> Mapping[str, int]:
        """Those it has."""
        return {name: self.counts[name] for name in names if name in self.counts}

    def all_partition_counts(self) -> Mapping[str, int]:
        """All it has."""
        return self.counts

    def group(self, group: str) -> Group | None:
        """Its one group."""
        assert group == "reminders"
        return self.members

    def committed(self, group: str, partitions: Sequence[Partition]) -> Mapping[Partition, Committed | None]:
        """What was committed."""
        assert group == "reminders"
        self.asked += partitions
        return {each: self.commits.get(each) for each in partitions}

    def offsets(self, group: str, partitions: Sequence[Partition]) -> tuple[PartitionOffsets, ...]:
        """Logs that start at 0, where nothing else was said."""
        found = []
        for place, at in self.committed(group, partitions).items():
            offset, metadata = (at.offset, at.metadata) if at else (None, "")
            log = self.starts.get(place, 0), self.ends.get(place, 0)
            found.append(PartitionOffsets(*place, offset, *log, metadata))
        return tuple(found)


def settings(*sources: str, **flags: object) -> Settings:
    """Settings for looking."""
    given = {"group": "reminders", "sources": list(sources) or None, **flags}
    return load(Path("/dev/null"), flags=given, env={}, inspect=True).settings


def member(*partitions: Partition) -> Group:
    """A group with one member that owns these."""
    return Group("reminders", "stable", "classic", (Member("m-1", "laneway", "10.0.0.1", None, partitions),))


COMPANIONS = {f"invoices.reminders.{kind}": 2 for kind in ("retry", "commands", "dlq", "review")}


def test_named_sources_are_taken_as_they_are() -> None:
    """Nothing is asked when the sources are configured."""
    assert sources_of(settings("a", "b"), FakeGroup({})) == ("a", "b")


def test_sources_are_found_by_their_companion_topics() -> None:
    """-g alone leads to the sources, also under templates of the team's own; no offsets are asked for."""
    cluster = FakeGroup({"invoices": 2, "orders": 1, "orders.audit.retry": 1, **COMPANIONS})
    assert sources_of(settings(), cluster) == ("invoices",)
    own = FakeGroup({"invoices": 2, "again_reminders_invoices_invoices": 2})
    template = {"topics.retry": "again_{group}_{source}_{source}"}
    assert sources_of(settings(**template), own) == ("invoices",)
    assert cluster.asked == own.asked == []


def test_a_companion_of_another_group_is_no_sign() -> None:
    """`x.late.reminders.retry` belongs to group `late.reminders` of x, unless a topic `x.late` exists."""
    cluster = FakeGroup({"x": 1, "x.late.reminders.retry": 1})
    with pytest.raises(RefusedError, match="no companion topics"):
        sources_of(settings(), cluster)


def test_sources_are_found_by_what_members_own() -> None:
    """A group that has not made its companions yet, or has others' names for them."""
    cluster = FakeGroup({"invoices": 2, "other": 1}, members=member(("invoices", 0)))
    assert sources_of(settings(), cluster) == ("invoices",)


def test_sources_are_found_by_committed_offsets() -> None:
    """The last resort: any group that ever committed can be looked at."""
    cluster = FakeGroup({"invoices": 2, "other": 1}, commits={("invoices", 1): Committed(3)})
    assert sources_of(settings(), cluster) == ("invoices",)


def test_a_row_carries_the_workers_own_counts() -> None:
    """Counts, cause and age come from the metadata of the commit; owner and lag from the cluster."""
    cluster = FakeGroup(
        {"invoices": 1},
        commits={("invoices", 0): Committed(4, NOTE)},
        ends={("invoices", 0): 10},
        members=member(("invoices", 0)),
    )
    (row,) = standings(settings(), cluster, ["invoices"], now_ms=61_000)
    assert row.note is not None
    assert (row.note.running, row.note.parked, row.blocked_by, row.age_ms) == (2, 7, "disk", 60_000)
    assert row.owner is not None
    assert row.offsets.lag == 6


def test_counts_in_memory_go_with_their_worker() -> None:
    """Without an owner nothing runs; what is parked stays, and lag says that nobody owns it, and what
    stopped the last owner beside it."""
    cluster = FakeGroup(
        {"invoices": 1}, commits={("invoices", 0): Committed(4, NOTE)}, ends={("invoices", 0): 10}
    )
    (row,) = standings(settings(), cluster, ["invoices"], now_ms=61_000)
    assert row.note is not None
    assert (row.note.running, row.note.waiting, row.note.parked) == (0, 0, 7)
    assert row.blocked_by == f"{NO_OWNER}; disk; 1 open case"
    cluster.ends = {("invoices", 0): 4}
    (row,) = standings(settings(), cluster, ["invoices"], now_ms=61_000)
    assert (row.blocked_by, row.age_ms) == ("", None)


def test_what_retention_took_unread_is_told() -> None:
    """A log that begins behind the committed offset says so, once nobody has the records in hand any more."""
    place = ("invoices", 0)
    cluster = FakeGroup({"invoices": 1}, commits={place: Committed(4, NOTE)}, ends={place: 10})
    cluster.starts[place] = 7
    (row,) = standings(settings(), cluster, ["invoices"], now_ms=61_000)
    assert row.blocked_by == f"offsets 4 to 6 were deleted unread; {NO_OWNER}; disk; 1 open case"
    # A worker that has them in hand still does what they say.
    cluster.members = member(place)
    cluster.commits[place] = Committed(4, '{"waiting":2}')
    (row,) = standings(settings(), cluster, ["invoices"], now_ms=61_000)
    assert row.blocked_by == ""
    cluster.commits[place] = Committed(4, '{"blockedBy":"paused by ann: a move"}')
    (row,) = standings(settings(), cluster, ["invoices"], now_ms=61_000)
    assert row.blocked_by == "offsets 4 to 6 were deleted unread; paused by ann: a move"
    cluster.starts[place] = 4
    (row,) = standings(settings(), cluster, ["invoices"], now_ms=61_000)
    assert "deleted" not in row.blocked_by


def test_open_cases_at_their_bound_are_said_once_behind_no_owner() -> None:
    """A worker that paused for its open cases has said their number; nothing is said twice."""
    note = '{"openCases":100,"blockedBy":"100 open cases (lanes.max_open_cases_per_partition)"}'
    cluster = FakeGroup(
        {"invoices": 1}, commits={("invoices", 0): Committed(4, note)}, ends={("invoices", 0): 10}
    )
    (row,) = standings(settings(), cluster, ["invoices"], now_ms=61_000)
    assert row.blocked_by == f"{NO_OWNER}; 100 open cases (lanes.max_open_cases_per_partition)"


def test_a_cluster_that_cannot_tell_members_hides_nothing() -> None:
    """On the embedded cluster owners are unknown, so the note is shown as it was written."""
    cluster = FakeGroup({"invoices": 1}, commits={("invoices", 0): Committed(4, NOTE)}, members=None)
    (row,) = standings(settings(), cluster, ["invoices"], now_ms=61_000)
    assert row.note is not None
    assert (row.note.running, row.blocked_by, row.owner) == (2, "disk", None)


@pytest.mark.parametrize("metadata", ["", "by hand", "[]", "null", '{"running":"many"}', '{"running":1'])
def test_metadata_of_others_is_no_note(metadata: str) -> None:
    """What another client wrote beside an offset is not counted, and breaks nothing."""
    assert read_note(metadata) is None


def test_companions_stand_behind_the_sources_and_share_their_owner() -> None:
    """The coordinator knows of sources only; retry and commands partitions live with theirs."""
    cluster = FakeGroup(
        {"invoices": 2, "invoices.reminders.retry": 2},
        commits={("invoices", 0): Committed(1)},
        members=member(("invoices", 1)),
    )
    rows = standings(settings(), cluster, ["invoices"], now_ms=0, companions=True)
    assert [(row.offsets.topic, row.offsets.partition, row.owner is not None) for row in rows] == [
        ("invoices", 0, False),
        ("invoices", 1, True),
        ("invoices.reminders.retry", 0, False),
        ("invoices.reminders.retry", 1, True),
    ]


def test_only_the_groups_own_partitions_are_asked_for() -> None:
    """Case 43: however many topics a cluster has, a look at one group asks for that group's."""
    many = {f"topic-{n}": 50 for n in range(1000)}
    cluster = FakeGroup({"invoices": 2, **COMPANIONS, **many}, commits={("invoices", 0): Committed(1)})
    standings(settings(), cluster, sources_of(settings(), cluster), now_ms=0)
    assert cluster.asked == [("invoices", 0), ("invoices", 1)]


def test_a_missing_source_and_an_unknown_group_are_refused() -> None:
    """Neither is shown as a group without lag."""
    with pytest.raises(TopicError, match="does not exist"):
        standings(settings(), FakeGroup({}), ["invoices"], now_ms=0)
    with pytest.raises(RefusedError, match="nobody knows this group"):
        standings(settings(), FakeGroup({"invoices": 1}), ["invoices"], now_ms=0)
