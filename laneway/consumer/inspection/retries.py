"""What waits for its retry: the records of the retry topics between the committed offset and the end.

A retry's offset is committed once it has run, or was found stale; so what lies below it is over. Of one
record several attempts may lie above it, after a crash also a copy of one: the latest attempt counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from laneway.consumer.inspection.topics import StoredRecord, read
from laneway.consumer.kafka.cluster import Committed, Partition, Watermarks
from laneway.consumer.settings.model import Settings
from laneway.lanes.forward import FORMAT


class Port(Protocol):
    """What is asked of a cluster."""

    def partition_counts(self, names: Sequence[str]) -> Mapping[str, int]:
        """Those of the topics that exist, with their partitions."""

    def committed(self, group: str, partitions: Sequence[Partition]) -> Mapping[Partition, Committed | None]:
        """Committed offsets."""

    def watermarks(self, partitions: Sequence[Partition]) -> Mapping[Partition, Watermarks]:
        """Log start and log end."""


@dataclass(frozen=True, slots=True)
class WaitingRetry:
    """One record that comes again. What its headers do not say is None."""

    record: StoredRecord
    forward_id: str
    due_ms: int
    attempt: int
    reason: str | None
    effect_key: str | None
    message_id: str | None
    sequence_key: str | None
    sequence: int | None
    first_failed_ms: int | None
    origin_topic: str
    origin_partition: int
    origin_offset: int


def waiting(settings: Settings, cluster: Port, topics: Sequence[str], *, timeout_s: float) -> WaitingList:
    """What waits now, the one that is due first at the beginning.

    Raises:
        IncompleteError: the deadline passed.
    """
    counts = cluster.partition_counts(topics)
    places = [(topic, number) for topic, count in counts.items() for number in range(count)]
    # Committed first: what is committed meanwhile is then shown once more, and nothing is left out.
    committed = cluster.committed(settings.group, places)
    spans = {}
    for place, mark in cluster.watermarks(places).items():
        at = committed[place]
        spans[place] = Watermarks(mark.start if at is None else max(mark.start, at.offset), mark.end)
    return fold(read(settings, spans, timeout_s=timeout_s), settings.group)


@dataclass(frozen=True, slots=True)
class WaitingList:
    """The fold, and how many records were no retries of this group."""

    retries: Sequence[WaitingRetry]
    strangers: int


def fold(records: Iterable[StoredRecord], group: str) -> WaitingList:
    """The latest attempt of each record; copies are told by their forward id."""
    latest: dict[tuple[str, int, int], WaitingRetry] = {}
    strangers = 0
    for record in records:
        retry = _retry_of(record, group)
        if retry is None:
            strangers += 1
            continue
        origin = (retry.origin_topic, retry.origin_partition, retry.origin_offset)
        known = latest.get(origin)
        if known is None or retry.attempt > known.attempt:
            latest[origin] = retry
    return WaitingList(sorted(latest.values(), key=lambda retry: (retry.due_ms, retry.forward_id)), strangers)


def _retry_of(record: StoredRecord, group: str) -> WaitingRetry | None:
    own = record.own_headers()
    if own.get("group") != group or own.get("kind") != "retry" or own.get("format") != FORMAT:
        return None
    due_ms, attempt = _number(own, "due-at"), _number(own, "attempt")
    partition, offset = _number(own, "origin-partition"), _number(own, "origin-offset")
    if due_ms is None or attempt is None or partition is None or offset is None:
        return None
    return WaitingRetry(
        record,
        own.get("forward-id", ""),
        due_ms,
        attempt,
        own.get("reason"),
        own.get("effect-key"),
        own.get("message-id"),
        own.get("sequence-key"),
        _number(own, "sequence"),
        _number(own, "first-failed-at"),
        own.get("origin-topic", ""),
        partition,
        offset,
    )


def _number(own: Mapping[str, str], name: str) -> int | None:
    text = own.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None
