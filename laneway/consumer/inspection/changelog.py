"""The ledgers as their changelog tells them, from any machine and beside the workers that own them.

What is committed counts; a worker's store may be a moment behind it, never ahead. The key of an entry is
compared as bytes, and only the last value of a wanted one is kept and decoded: memory follows the number of
partitions, not the length of the changelog.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from laneway.consumer.inspection.topics import messages
from laneway.consumer.kafka.cluster import Partition, Watermarks
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import topic_names
from laneway.errors import TopicError, UsageError
from laneway.store import codec

AT_ONCE: Final = 32
"""Entries handed over in one go. Each may be as large as a parked record."""

TAIL: Final = 1_000
"""Offsets before the end that are read first for the last meta entry; then many times as many."""

_GROWTH: Final = 32
_PROGRESS_S: Final = 2.0
_ASKED_CLOCK: Final = 0xFFF
"""The clock is read once for this many entries and one."""


class Port(Protocol):
    """What is asked of a cluster."""

    def partition_counts(self, names: Sequence[str]) -> Mapping[str, int]:
        """Those of the topics that exist, with their partitions."""

    def watermarks(self, partitions: Sequence[Partition]) -> Mapping[Partition, Watermarks]:
        """Log start and log end."""


@dataclass(frozen=True, slots=True)
class Changelogs:
    """What was committed, in partitions of ledger topics, when it was asked.

    Attributes:
        spans: by partition of the ledger topic.
        source: the source topic of each ledger topic.
    """

    spans: Mapping[Partition, Watermarks]
    source: Mapping[str, str]
    as_of_ms: int

    @property
    def topics(self) -> list[str]:
        """The ledger topics, each once."""
        return list(dict.fromkeys(topic for topic, _ in self.spans))

    def ledger_of(self, place: Partition) -> Partition:
        """The source partition whose ledger this one tells."""
        return self.source[place[0]], place[1]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long reading came. `entries` counts what was read, `share` goes from 0 to 1."""

    share: float
    entries: int
    left_s: float


Told = Callable[[Progress], None]


def changelogs(
    settings: Settings, cluster: Port, sources: Sequence[str], partitions: Sequence[int] = ()
) -> Changelogs:
    """Where the changelogs of these sources end now.

    Args:
        partitions: only these; all of them when it is empty.

    Raises:
        TopicError: a source has no ledger topic.
        UsageError: no source has a partition of that number.
    """
    source = {topic_names(settings, name).ledger: name for name in sources}
    counts = cluster.partition_counts(list(source))
    for topic, name in source.items():
        if topic not in counts:
            raise TopicError(
                f"source {name} of group {settings.group} has no ledger topic",
                where=f"{settings.bootstrap}, topic {topic}",
                mend='with replication = "local" ask on the machine of its workers, with --state-dir; else '
                "check -b, -g and --source",
            )
    beyond = [number for number in partitions if number >= max(counts.values(), default=0)]
    if beyond:
        raise UsageError(f"there is no partition {beyond[0]}", where="--partition", mend="check the number")
    as_of_ms = time.time_ns() // 1_000_000
    wanted = [
        (topic, number)
        for topic in source
        for number in range(counts[topic])
        if not partitions or number in partitions
    ]
    marks = cluster.watermarks(wanted)
    return Changelogs({place: marks[place] for place in wanted}, source, as_of_ms)


def entries(
    settings: Settings, found: Changelogs, *, timeout_s: float, told: Told = lambda _: None
) -> Iterator[tuple[Partition, bytes | None, bytes | None]]:
    """All entries with their ledger partition, in the order of each; None for a value is a tombstone.

    Raises:
        IncompleteError: the deadline passed before every end was reached.
    """
    return _told(settings, found.spans, timeout_s, told)


def effect_values(
    settings: Settings,
    found: Changelogs,
    effect_key: str,
    *,
    timeout_s: float,
    told: Told = lambda _: None,
) -> Mapping[Partition, bytes]:
    """The stored bytes of an effect by ledger partition; those that do not know it, or no more, are absent.

    Which partition an effect key belongs to only its records say, so all are read, and to their end.

    Raises:
        IncompleteError: the deadline passed before every end was reached.
    """
    values: dict[Partition, bytes] = {}
    wanted = codec.effect_key(effect_key)
    for place, key, value in _told(settings, found.spans, timeout_s, told):
        if key == wanted:
            if value is None:
                values.pop(place, None)
            else:
                values[place] = value
    return values


def meta_values(settings: Settings, found: Changelogs, *, timeout_s: float) -> Mapping[Partition, bytes]:
    """The stored bytes of the last meta entry by ledger partition; absent where no cycle was committed.

    Every cycle ends with one, so it stands close to the end.

    Raises:
        IncompleteError: the deadline passed.
    """
    deadline_s = time.monotonic() + timeout_s
    values: dict[Partition, bytes] = {}
    unread = {place: span for place, span in found.spans.items() if span.start < span.end}
    width = TAIL
    while unread:
        tails = {
            place: Watermarks(max(span.start, span.end - width), span.end) for place, span in unread.items()
        }
        left_s = max(0.0, deadline_s - time.monotonic())
        for place, _, message in messages(settings, tails, timeout_s=left_s, at_once=AT_ONCE):
            value = message.value()
            if message.key() == codec.META_KEY and value is not None:
                values[place] = value
        unread = {
            place: Watermarks(span.start, tails[place].start)
            for place, span in unread.items()
            if place not in values and tails[place].start > span.start
        }
        width *= _GROWTH
    return values


def _told(
    settings: Settings, spans: Mapping[Partition, Watermarks], timeout_s: float, told: Told
) -> Iterator[tuple[Partition, bytes | None, bytes | None]]:
    """All entries, with word of the progress every few seconds."""
    total = sum(max(0, span.end - span.start) for span in spans.values())
    reached = {place: span.start for place, span in spans.items()}
    began_s = told_s = time.monotonic()
    read = messages(settings, spans, timeout_s=timeout_s, at_once=AT_ONCE)
    for entries, (place, offset, message) in enumerate(read, 1):
        reached[place] = offset
        if not entries & _ASKED_CLOCK and (now_s := time.monotonic()) - told_s >= _PROGRESS_S:
            told_s = now_s
            share = sum(reached[place] - span.start for place, span in spans.items()) / total
            # A compacted log has more offsets than entries; what is left is judged by both alike.
            left_s = (now_s - began_s) * (1 - share) / share if share else 0.0
            told(Progress(share, entries, left_s))
        yield place, message.key(), message.value()
