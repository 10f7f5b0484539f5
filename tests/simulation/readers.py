"""A consumer of the fake Kafka that reads by itself, beside the group: for restores and for looking back.

Boundary: it is assigned, it reads, it tells where a partition ends. It never joins and commits nothing.
"""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.simulation.broker import Log, Place
from tests.simulation.cluster import Cluster, FakeMessage, Host

_BEGINNING = -2
_END = -1
_INVALID = -1001


class FakeReader:
    """Reads what it is assigned.

    Args:
        committed: reads committed records as far as the last stable offset; else all, to the true end.
    """

    def __init__(self, cluster: Cluster, host: Host, *, committed: bool) -> None:
        self._cluster = cluster
        self._host = host
        self._committed = committed
        self._next: dict[Place, int] = {}
        self._told: dict[Place, int] = {}
        self._ended: dict[Place, int] = {}
        self._closed = False

    def assign(self, positions: list[TopicPartition]) -> None:
        """Read exactly these, from the offsets given."""
        self._open("assign")
        self._next, self._told, self._ended = {}, {}, {}
        for tp in positions:
            place, log = (tp.topic, tp.partition), self._cluster.log(tp.topic, tp.partition)
            offset = {_BEGINNING: log.start, _END: self._end(log)}.get(tp.offset, tp.offset)
            self._next[place] = max(0, offset)

    def unassign(self) -> None:
        """Let go of everything."""
        self._next = {}

    def incremental_assign(self, positions: list[TopicPartition]) -> None:
        """Read these too."""
        before = dict(self._next)
        self.assign(positions)
        self._next = {**before, **self._next}

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[FakeMessage]:
        """Some messages, and an event at each end; where there is nothing, the caller waits."""
        self._open("reader consume")
        self._cluster.coordinator.expire()
        found: list[FakeMessage] = []
        for place in self._next:
            self._read(place, num_messages - len(found), found)
        if not found:
            self._host.wait_beside(timeout)
        return found

    def poll(self, timeout: float = -1) -> FakeMessage | None:
        """One message or event."""
        found = self.consume(1, timeout)
        return found[0] if found else None

    def position(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """Behind the last message that was returned, which markers do not move."""
        return [
            TopicPartition(tp.topic, tp.partition, self._told.get((tp.topic, tp.partition), _INVALID))
            for tp in places
        ]

    def get_watermark_offsets(
        self, place: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """(start, end) of a log; the end as its kind of reader sees it."""
        self._open("watermarks")
        if not self._cluster.is_calm and self._cluster.random.random() < 0.05:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self._cluster.coordinator.expire()
        log = self._cluster.log(place.topic, place.partition)
        return log.start, self._end(log)

    def close(self) -> None:
        """Nothing is left behind."""
        self._closed = True

    def _open(self, act: str) -> None:
        self._host.pulse(act)
        if self._closed:
            raise RuntimeError("Consumer closed")

    def _end(self, log: Log) -> int:
        return log.stable if self._committed else log.end

    def _read(self, place: Place, limit: int, found: list[FakeMessage]) -> None:
        log, position = self._cluster.log(*place), self._next[place]
        end = self._end(log)
        if position < log.start or position > log.end:
            found.append(FakeMessage(place, position, None, KafkaError._AUTO_OFFSET_RESET))
            return
        count = limit if self._cluster.is_calm else min(limit, self._cluster.random.choice((1, 3, 20)))
        while position < end and count > 0:
            stored = log.committed(position) if self._committed else log.records[position]
            if stored is not None:
                found.append(FakeMessage(place, position, stored))
                self._told[place] = position + 1
                count -= 1
            position += 1
        self._next[place] = position
        if position == end and self._ended.get(place) != end and len(found) < limit:
            self._ended[place] = end
            found.append(FakeMessage(place, end, None, KafkaError._PARTITION_EOF))
