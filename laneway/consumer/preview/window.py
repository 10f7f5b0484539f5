"""Which part of which partitions a preview reads: bounded by a number of offsets, shared fairly.

A key lives in one partition, so a whole partition says more than a slice of each; but a limit that the
first partition used up would say nothing of the others. Small partitions are read whole, the large ones share
what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from laneway.consumer.inspection.topics import Marks, extents
from laneway.consumer.kafka.cluster import Partition, Watermarks
from laneway.errors import UsageError

Begin = Literal["earliest", "latest"] | int
"""From the start of the log; the newest records; or from an instant, in epoch milliseconds."""


class Times(Marks, Protocol):
    """What is asked of a cluster."""

    def offsets_at(self, partitions: Sequence[Partition], at_ms: int) -> Mapping[Partition, int]:
        """The first offset that is not older; absent where there is none."""


@dataclass(frozen=True, slots=True)
class Window:
    """What is read of each partition, and the log around it."""

    spans: Mapping[Partition, Watermarks]
    logs: Mapping[Partition, Watermarks]

    @property
    def offsets(self) -> int:
        """How many offsets are read; markers of transactions and what compaction took hold no record."""
        return sum(span.end - span.start for span in self.spans.values())

    def begins_at_the_start(self, place: Partition) -> bool:
        """Whether nothing was ever in the partition before what is read."""
        return self.spans[place].start == 0

    @property
    def unread_behind(self) -> int:
        """Offsets between what is read and the ends of the logs."""
        return sum(self.logs[place].end - span.end for place, span in self.spans.items())


def window(
    cluster: Times, topics: Sequence[str], begin: Begin, *, limit: int, partition: int | None = None
) -> Window:
    """Choose what to read: at most `limit` offsets of these topics.

    Raises:
        TopicError: a topic does not exist.
        UsageError: no topic has this partition.
    """
    logs = {
        place: log
        for place, log in extents(cluster, topics).items()
        if partition is None or place[1] == partition
    }
    if not logs:
        raise UsageError(
            f"there is no partition {partition}",
            where=", ".join(topics),
            mend="`laneway offsets show` lists the partitions",
        )
    starts = {place: log.start for place, log in logs.items()}
    if isinstance(begin, int):
        found = cluster.offsets_at(list(logs), begin)
        starts = {place: max(log.start, found.get(place, log.end)) for place, log in logs.items()}
    sizes = shares({place: log.end - starts[place] for place, log in logs.items()}, limit)
    spans = {
        place: Watermarks(log.end - sizes[place], log.end)
        if begin == "latest"
        else Watermarks(starts[place], starts[place] + sizes[place])
        for place, log in logs.items()
    }
    return Window(spans, logs)


def shares(sizes: Mapping[Partition, int], limit: int) -> dict[Partition, int]:
    """How much of each partition is read, so that no more than `limit` is read of all."""
    found: dict[Partition, int] = {}
    left = limit
    for done, (place, size) in enumerate(sorted(sizes.items(), key=lambda entry: (entry[1], entry[0]))):
        found[place] = min(size, left // (len(sizes) - done))
        left -= found[place]
    return found
