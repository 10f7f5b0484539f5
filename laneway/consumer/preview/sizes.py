"""The largest record that was seen, against everything that has to hold it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from laneway.consumer.preview.preview import Report
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import ENVELOPE_ROOM_BYTES, ClusterPort, Kind, topic_names
from laneway.errors import LanewayError


@dataclass(frozen=True, slots=True)
class Limit:
    """One of them.

    Attributes:
        needed_bytes: the largest record, with room for our headers where it travels on.
    """

    name: str
    bytes: int
    needed_bytes: int

    @property
    def fits(self) -> bool:
        """Whether the largest record goes in."""
        return self.needed_bytes <= self.bytes


def limits(settings: Settings, cluster: ClusterPort, report: Report) -> list[Limit]:
    """The limits that are known. Those of topics need the right to read their settings."""
    return [
        each
        for source, seen in report.seen.items()
        for each in _of(settings, cluster, source, seen.largest[0])
    ]


def _of(settings: Settings, cluster: ClusterPort, source: str, largest: int) -> Iterator[Limit]:
    names = topic_names(settings, source)
    forwards = [names.of(kind) for kind in (Kind.RETRY, Kind.DLQ)]
    try:
        found = cluster.topics([source, *forwards])
    except LanewayError:
        found = {}  # it may be read, and its settings not
    for name, topic in found.items():
        if topic.configs:
            room = 0 if name == source else ENVELOPE_ROOM_BYTES
            yield Limit(f"{name} max.message.bytes", topic.max_message_bytes, largest + room)
    yield Limit("lanes.max_in_flight_bytes", settings.lanes.max_in_flight_bytes, largest)
    yield Limit(
        "lanes.max_parked_bytes_per_partition", settings.lanes.max_parked_bytes_per_partition, largest
    )
