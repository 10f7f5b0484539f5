"""What a test does to a cluster: topics, records, offsets. Synchronous, bound by deadlines, loud."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

# Public names, yet not re-exported for type checkers.
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic  # type: ignore[attr-defined]

T = TypeVar("T")
DEADLINE_S = 30.0
QUICK_TO_GIVE_UP: Mapping[str, int] = {
    "request.timeout.ms": 3000,
    "socket.timeout.ms": 5000,
    "topic.metadata.refresh.interval.ms": 1000,
}
"""For producers beside brokers that are frozen: those take a request and never answer it."""
NOT_YET = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
DeliveryCallback = Callable[[KafkaError | None, Message], None]


class ClusterError(Exception):
    """The cluster refused, or did not do it in time."""


@dataclass(frozen=True)
class Outgoing:
    """One record to produce. No partition: the key decides, as the default partitioner does."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True)
class Position:
    """Where a produced record came to stand."""

    partition: int
    offset: int


class Cluster:
    """Talks to the cluster at `bootstrap`; every call opens what it needs and closes it again.

    Args:
        fails: its brokers may go away in the middle of a call, and even then each record is there once. Such
            a producer gets its id half a second after it was made.
    """

    def __init__(self, bootstrap: str, *, fails: bool = False) -> None:
        self.bootstrap = bootstrap
        self._fails = fails

    def create_topic(
        self,
        name: str,
        partitions: int,
        config: Mapping[str, str] | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Creates a topic, copied as the cluster says; returns once every partition of it has a leader."""
        admin = self._admin()
        deadline = time.monotonic() + deadline_s
        topic = NewTopic(name, num_partitions=partitions, replication_factor=-1, config=dict(config or {}))
        created = admin.create_topics([topic], operation_timeout=deadline_s, request_timeout=deadline_s)
        _result(created[name], deadline_s, f"create topic {name}")
        while not self._is_led(name, partitions):
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"topic {name}: no leader for all {partitions} partitions in {deadline_s:g} s"
                )
            time.sleep(0.01)

    def delete_topic(self, name: str, *, deadline_s: float = DEADLINE_S) -> None:
        """Deletes a topic."""
        admin = self._admin()
        deleted = admin.delete_topics([name], operation_timeout=deadline_s, request_timeout=deadline_s)
        _result(deleted[name], deadline_s, f"delete topic {name}")

    def grow_topic(self, name: str, partitions: int, *, deadline_s: float = DEADLINE_S) -> None:
        """Gives a topic more partitions."""
        admin = self._admin()
        request = [NewPartitions(name, partitions)]
        grown = admin.create_partitions(request, operation_timeout=deadline_s, request_timeout=deadline_s)
        _result(grown[name], deadline_s, f"grow topic {name}")

    def delete_group(self, group: str, *, deadline_s: float = DEADLINE_S) -> None:
        """Forgets a group without members, its offsets with it."""
        admin = self._admin()
        _result(admin.delete_consumer_groups([group])[group], deadline_s, f"delete group {group}")

    def topics(self) -> dict[str, int]:
        """Every topic that is not Kafka's own, with its number of partitions."""
        admin = self._admin()
        listed = admin.list_topics(timeout=DEADLINE_S).topics
        return {name: len(topic.partitions) for name, topic in listed.items() if not name.startswith("__")}

    def topic_config(self, name: str) -> dict[str, str]:
        """A topic's settings, the defaults included."""
        admin = self._admin()
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        described = admin.describe_configs([resource], request_timeout=DEADLINE_S)[resource]
        entries = _result(described, DEADLINE_S, f"describe topic {name}")
        return {key: entry.value for key, entry in entries.items()}

    def produce(
        self,
        topic: str,
        records: Iterable[Outgoing],
        *,
        compression: str = "none",
        deadline_s: float = DEADLINE_S,
    ) -> list[Position]:
        """Produces records in order and returns their positions, once all are acknowledged."""
        positions: list[Position | None] = []
        failures: list[KafkaError] = []
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": self._fails,
                "acks": "all",
                "max.in.flight.requests.per.connection": 1,
                "linger.ms": 5,
                "compression.type": compression,
                "message.max.bytes": 10 * 1024 * 1024,
                "message.timeout.ms": int(deadline_s * 1000),
                "log_level": 0,
                **(QUICK_TO_GIVE_UP if self._fails else {}),
            }
        )

        def place(index: int) -> DeliveryCallback:
            def on_delivery(error: KafkaError | None, message: Message) -> None:
                if error is not None:
                    failures.append(error)
                else:
                    positions[index] = position_of(message)

            return on_delivery

        deadline = time.monotonic() + deadline_s
        for record in records:
            positions.append(None)
            on_delivery = place(len(positions) - 1)
            while not _enqueue(producer, topic, record, on_delivery):  # its queue is full: let it drain
                if time.monotonic() > deadline:
                    raise ClusterError(f"produce to {topic}: queue full for {deadline_s:g} s")
                producer.poll(0.1)
            producer.poll(0)
        left = producer.flush(max(0.1, deadline - time.monotonic()))
        if failures or left:
            first = failures[0] if failures else "no answer in time"
            raise ClusterError(
                f"produce to {topic}: {len(failures)} failed, {left} unanswered; first: {first}"
            )
        return [position for position in positions if position is not None]

    def read_topic(
        self, topic: str, *, committed_only: bool = True, deadline_s: float = DEADLINE_S
    ) -> list[Message]:
        """Every record of every partition up to the end, sorted by partition and offset."""
        consumer = self._consumer(
            uuid.uuid4().hex,
            {
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed_only else "read_uncommitted",
                "fetch.wait.max.ms": 20,
                "fetch.message.max.bytes": 10 * 1024 * 1024,
            },
        )
        deadline = time.monotonic() + deadline_s
        messages: list[Message] = []
        try:
            # Asked by the same client: without a known leader it would look for the beginning half a second.
            open_partitions = set(_numbers_of(topic, consumer))
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in open_partitions])
            while open_partitions:
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"read {topic}: end not reached in {deadline_s:g} s: {open_partitions}"
                    )
                for message in consumer.consume(500, timeout=0.02):
                    error = message.error()
                    if error is None:
                        messages.append(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        open_partitions.discard(position_of(message).partition)
                    elif not error.retriable():
                        raise ClusterError(f"read {topic}: {error}")
        finally:
            consumer.close()
        return sorted(
            messages, key=lambda message: (position_of(message).partition, position_of(message).offset)
        )

    # Both ask through a consumer that never joins. The admin client's calls to a group's coordinator abort
    # the whole process when the broker goes away under them (librdkafka 3663, 4605, 5397).

    def committed(self, group: str, topic: str) -> dict[int, int | None]:
        """The group's committed offset of each partition of the topic; None where it never committed."""
        consumer = self._consumer(group, {"isolation.level": "read_committed"})
        try:
            partitions = [TopicPartition(topic, number) for number in _numbers_of(topic, consumer)]
            found = _answered(
                lambda: consumer.committed(partitions, timeout=DEADLINE_S), f"committed offsets of {group}"
            )
        finally:
            consumer.close()
        _raise_first_error(found, f"committed offsets of {group}")
        return {entry.partition: entry.offset if entry.offset >= 0 else None for entry in found}

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Sets committed offsets of a group that has no members."""
        partitions = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
        consumer = self._consumer(group, {})
        try:
            done = _answered(
                lambda: consumer.commit(offsets=partitions, asynchronous=False), f"commit offsets of {group}"
            )
        finally:
            consumer.close()
        _raise_first_error(done or [], f"commit offsets of {group}")

    def end_offsets(self, topic: str) -> dict[int, int]:
        """The high watermark of each partition: control records count, open transactions too."""
        return {number: end for number, (_, end) in self._watermarks(topic).items()}

    def stable_offsets(self, topic: str) -> dict[int, int]:
        """How far readers of committed records may read: short of the end while a transaction is open."""
        marks = self._watermarks(topic, {"isolation.level": "read_committed"})
        return {number: end for number, (_, end) in marks.items()}

    def start_offsets(self, topic: str) -> dict[int, int]:
        """The log start of each partition."""
        return {number: start for number, (start, _) in self._watermarks(topic).items()}

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Moves the log start of partitions up to the given offsets."""
        admin = self._admin()
        request = [TopicPartition(topic, number, offset) for number, offset in before.items()]
        for partition, future in admin.delete_records(request, request_timeout=DEADLINE_S).items():
            _result(future, DEADLINE_S, f"delete records of {partition}")

    def _watermarks(
        self, topic: str, config: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[int, tuple[int, int]]:
        consumer = self._consumer(uuid.uuid4().hex, {"isolation.level": "read_uncommitted", **config})
        try:
            marks = {}
            for number in _numbers_of(topic, consumer):
                place = TopicPartition(topic, number)
                found = _answered(
                    partial(consumer.get_watermark_offsets, place, timeout=DEADLINE_S),
                    f"watermarks of {topic} {number}",
                )
                if found is None:
                    raise ClusterError(f"watermarks of {topic} {number}: no answer in {DEADLINE_S:g} s")
                marks[number] = found
            return marks
        finally:
            consumer.close()

    def _partitions(self, topic: str) -> list[int]:
        return _numbers_of(topic, self._admin())

    def _is_led(self, topic: str, partitions: int) -> bool:
        admin = self._admin()
        found = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic]
        led = [part for part in found.partitions.values() if part.error is None and part.leader >= 0]
        return found.error is None and len(led) == partitions

    def _admin(self) -> AdminClient:
        # A new one for each call, so that none lives through a broker's restart. The caller keeps it in a
        # variable: a call dies with its client.
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def _consumer(self, group: str, config: Mapping[str, Any]) -> Consumer:
        settings = {"enable.auto.commit": False, "auto.offset.reset": "error", "log_level": 0, **config}
        return Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, **settings})


def _numbers_of(topic: str, client: AdminClient | Consumer) -> list[int]:
    found = client.list_topics(topic, timeout=DEADLINE_S).topics[topic]
    if found.error is not None:
        raise ClusterError(f"topic {topic}: {found.error}")
    return sorted(found.partitions)


def _enqueue(producer: Producer, topic: str, record: Outgoing, on_delivery: DeliveryCallback) -> bool:
    optional: dict[str, Any] = {}
    if record.partition is not None:
        optional["partition"] = record.partition
    if record.timestamp_ms is not None:
        optional["timestamp"] = record.timestamp_ms
    if record.headers:
        optional["headers"] = list(record.headers)
    try:
        producer.produce(topic, record.value, record.key, on_delivery=on_delivery, **optional)
    except BufferError:
        return False
    return True


def position_of(message: Message) -> Position:
    """The position of a record that came from a broker, or of an event about a partition."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None, "a message without a partition was never on a broker"
    assert offset is not None, "a message without an offset was never on a broker"
    return Position(partition, offset)


def _result(future: Future[Any], deadline_s: float, what: str) -> Any:
    try:
        return future.result(timeout=deadline_s)
    except (KafkaException, TimeoutError) as error:
        raise ClusterError(f"{what}: {error!r}") from error


def _raise_first_error(partitions: Iterable[TopicPartition], what: str) -> None:
    for partition in partitions:
        if partition.error is not None:
            raise ClusterError(f"{what}: {partition.topic} {partition.partition}: {partition.error}")


def _answered(question: Callable[[], T], what: str) -> T:
    """Ask again while a broker does not know yet what it leads: a group, which is made now, or a log."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return question()
        except KafkaException as error:
            if error.args[0].code() not in NOT_YET or time.monotonic() > deadline:
                raise ClusterError(f"{what}: {error!r}") from error
        time.sleep(0.05)
