"""How far a group is: its offsets, the worker's own counts beside them, and who owns what.

Boundary: asks a cluster through a small port, answers with values; prints nothing. Nothing here
lists groups, and of topics only the group's own are looked at, once they are known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from laneway.consumer.kafka.cluster import Committed, Group, Member, Partition, PartitionOffsets
from laneway.consumer.partition import CommitNote, read_reset
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import Kind, TopicNames, topic_names
from laneway.errors import RefusedError, TopicError

NO_OWNER: Final = "no member owns it"
DELETED_UNREAD: Final = "were deleted unread"

_decode_note = msgspec.json.Decoder(CommitNote).decode


class GroupPort(Protocol):
    """What is asked of a cluster."""

    def partition_counts(self, names: Sequence[str]) -> Mapping[str, int]:
        """Those of the topics that exist, with their partitions."""

    def all_partition_counts(self) -> Mapping[str, int]:
        """Every topic that is not Kafka's own."""

    def group(self, group: str) -> Group | None:
        """State and members; None where the cluster cannot tell."""

    def committed(self, group: str, partitions: Sequence[Partition]) -> Mapping[Partition, Committed | None]:
        """Committed offsets with their metadata."""

    def offsets(self, group: str, partitions: Sequence[Partition]) -> tuple[PartitionOffsets, ...]:
        """Committed, start and end, read in the order that keeps lag ≥ 0."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One partition of the group.

    Attributes:
        note: the worker's counts as of its last commit; None where it wrote none that we can read.
        owner: None when no member owns it, or the cluster cannot tell.
        age_ms: how long the committed offset has not moved, while there is lag; None when unknown.
    """

    offsets: PartitionOffsets
    note: CommitNote | None
    owner: Member | None
    blocked_by: str
    age_ms: int | None


def sources_of(settings: Settings, cluster: GroupPort) -> tuple[str, ...]:
    """The group's source topics: those configured, else those its companion topics, its members, or its
    committed offsets speak of.

    Raises:
        RefusedError: nothing speaks of this group.
    """
    if settings.sources:
        return settings.sources
    counts = cluster.all_partition_counts()
    companions = _companions(settings, counts)
    members = cluster.group(settings.group)
    assigned = {topic for member in members.members for topic, _ in member.partitions} if members else set()
    names = [topic_names(settings, source) for source in companions]
    ours = {each.of(kind) for each in names for kind in Kind}
    found = sorted({*companions, *(assigned & counts.keys())} - ours)
    if not found:
        everywhere = [(topic, number) for topic, count in counts.items() for number in range(count)]
        committed = cluster.committed(settings.group, everywhere)
        found = sorted({topic for (topic, _), at in committed.items() if at is not None})
    if not found:
        raise RefusedError(
            "no source topic of this group is to be found: it has no companion topics, no members and "
            "no committed offsets here",
            where=f"group {settings.group}",
            mend="check -b and -g, or name the topic with --source TOPIC",
        )
    return tuple(found)


def companions_of(settings: Settings, cluster: GroupPort) -> tuple[TopicNames, ...]:
    """The companion topics of every source of the group."""
    return tuple(topic_names(settings, source) for source in sources_of(settings, cluster))


def standings(
    settings: Settings, cluster: GroupPort, sources: Sequence[str], now_ms: int, *, companions: bool = False
) -> list[Standing]:
    """Where the group stands on each partition of its sources.

    Args:
        companions: the retry and commands partitions too, as far as they exist.

    Raises:
        TopicError: a source does not exist.
        RefusedError: nobody knows the group.
    """
    names = [topic_names(settings, source) for source in sources]
    source_of = {source: source for source in sources}
    if companions:
        source_of |= {each.of(kind): each.source for each in names for kind in (Kind.RETRY, Kind.COMMANDS)}
    counts = cluster.partition_counts(list(source_of))
    for source in sources:
        if source not in counts:
            raise TopicError("the source topic does not exist", where=source, mend="check -b and --source")
    group = cluster.group(settings.group)
    places = [(topic, number) for topic, count in counts.items() for number in range(count)]
    offsets = cluster.offsets(settings.group, places)
    if group is not None and not group.members and all(each.committed is None for each in offsets):
        raise RefusedError(
            f"nobody knows this group: it has no members and committed nothing for {', '.join(sources)}",
            where=f"group {settings.group}",
            mend="check -b and -g; a group appears when its first worker starts",
        )
    owners = group.owners() if group is not None else {}
    order = {topic: index for index, topic in enumerate(source_of)}
    found = []
    for each in sorted(offsets, key=lambda each: (order[each.topic], each.partition)):
        # The coordinator knows of sources only; the others always live with theirs.
        owner = owners.get((source_of[each.topic], each.partition))
        found.append(_standing(each, owner, now_ms, tells=group is not None))
    return found


def _standing(offsets: PartitionOffsets, owner: Member | None, now_ms: int, *, tells: bool) -> Standing:
    note = read_note(offsets.metadata)
    blocked_by = note.blocked_by if note is not None else ""
    if (reset := read_reset(offsets.metadata)) is not None:
        blocked_by = f"offset set by {reset.reset_by}: {reset.reason}"
    if tells and owner is None:
        blocked_by = _unowned(note, blocked_by) if offsets.lag else ""
        if note is not None:
            # What lay in the memory of a worker went with it; what is parked stays.
            note = msgspec.structs.replace(note, running=0, waiting=0)
    committed, in_hand = offsets.committed, note.waiting if note is not None else 0
    if committed is not None and committed < offsets.start and not in_hand:
        gone = f"offsets {committed} to {offsets.start - 1} {DELETED_UNREAD}"
        blocked_by = "; ".join(filter(None, (gone, blocked_by)))
    known = note is not None and note.moved_ms > 0 and offsets.lag > 0
    age_ms = max(0, now_ms - note.moved_ms) if known and note is not None else None
    return Standing(offsets, note, owner, blocked_by, age_ms)


def _unowned(note: CommitNote | None, blocked_by: str) -> str:
    """Why nothing moves: a new owner would still meet what stopped the last one."""
    reasons = [NO_OWNER, blocked_by]
    if note is not None and note.open_cases and "open cases" not in blocked_by:
        reasons.append(f"{note.open_cases} open case{'s' if note.open_cases > 1 else ''}")
    return "; ".join(filter(None, reasons))


def read_note(metadata: str) -> CommitNote | None:
    """The counts in the metadata of a commit; None when something else wrote it, or nobody did."""
    if not metadata or read_reset(metadata) is not None:
        return None
    try:
        return _decode_note(metadata)
    except msgspec.DecodeError:
        return None


def _companions(settings: Settings, counts: Mapping[str, int]) -> list[str]:
    """Sources whose retry or review topic exists beside them."""
    found = set()
    for template in (settings.topics.retry, settings.topics.review):
        before, mark, after = template.replace("{group}", settings.group).partition("{source}")
        if not mark:
            continue
        pattern = re.compile(re.escape(before) + "(.+)" + re.escape(after).replace(r"\{source\}", r"\1"))
        for topic in counts:
            fits = pattern.fullmatch(topic)
            # The group's name may end in another's: only a topic that is there is a source.
            if fits is not None and fits[1] in counts:
                found.add(fits[1])
    return sorted(found)
