"""Reading stored records for a person: from offset to offset, once, within a deadline, in bounded memory.

A reader never joins the group and never commits. What it reads ends where the log ended when it was
asked, however much is written meanwhile, and not before: what an open transaction hides may be followed by
what is committed, so its end is waited for. Records are handed on one at a time; none is kept here.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message, TopicPartition

from laneway.consumer.kafka.clients import client_config
from laneway.consumer.kafka.cluster import Partition, Watermarks
from laneway.consumer.kafka.errors import ErrorClass, classify, kafka_errors, position, to_laneway
from laneway.consumer.settings.model import Settings
from laneway.errors import IncompleteError, LanewayError, TopicError
from laneway.lanes.forward import PREFIX
from laneway.lanes.record import Headers

BUFFER_KBYTES: Final = 16 * 1024
"""What the client may hold ahead of the reader; one record larger than this still comes."""

BACKOFF_MS: Final = 10
"""How soon the client fetches again after its buffer was full; its own second would be most of the time."""

COPIES_REMEMBERED: Final = 100_000
POLL_S: Final = 0.2

# Others mean that it goes on by itself, or show up as the deadline passing.
_HOPELESS: Final = frozenset({ErrorClass.UNAUTHORISED, ErrorClass.MISSING, ErrorClass.FATAL})


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record as it lies in a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    def own_headers(self) -> dict[str, str]:
        """The headers that Laneway writes, without prefix; one that is not UTF-8 is left out."""
        own = {}
        for name, content in self.headers:
            if name.startswith(PREFIX) and content is not None:
                with suppress(UnicodeDecodeError):
                    own[name.removeprefix(PREFIX)] = content.decode()
        return own


class Marks(Protocol):
    """What locating records needs of a cluster."""

    def partition_counts(self, names: list[str]) -> Mapping[str, int]:
        """Those of the topics that exist, with their partitions."""

    def watermarks(self, partitions: list[Partition]) -> Mapping[Partition, Watermarks]:
        """Log start and log end."""


def extents(cluster: Marks, topics: Iterable[str]) -> Mapping[Partition, Watermarks]:
    """Where the logs of these topics start and end now.

    Raises:
        TopicError: one of them does not exist.
    """
    wanted = list(topics)
    counts = cluster.partition_counts(wanted)
    for topic in wanted:
        if topic not in counts:
            raise TopicError(
                "the topic does not exist",
                where=topic,
                mend="check -b, -g and --source; `laneway topics check` says what is missing",
            )
    return cluster.watermarks([(topic, number) for topic in wanted for number in range(counts[topic])])


def read(
    settings: Settings, spans: Mapping[Partition, Watermarks], *, timeout_s: float
) -> Iterator[StoredRecord]:
    """The records of each partition from span.start up to, not including, span.end.

    In order inside a partition. An offset that no longer exists is passed over.

    Raises:
        IncompleteError: the deadline passed before every end was reached.
        UnreachableError: the cluster went away, or does not let us read.
    """
    for place, offset, message in messages(settings, spans, timeout_s=timeout_s):
        yield _stored(place, offset, message)


def messages(
    settings: Settings, spans: Mapping[Partition, Watermarks], *, timeout_s: float, at_once: int = 1
) -> Iterator[tuple[Partition, int, Message]]:
    """What `read` reads, as the client gives it.

    Args:
        at_once: how many it may hand over in one go, beyond its buffer. Small records come faster so.
    """
    unread = {place: span for place, span in spans.items() if span.start < span.end}
    if not unread:
        return
    config = {
        **client_config(settings),
        # Named because the client insists on one; it neither joins nor commits.
        "group.id": settings.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # Retention may take the start away while we read.
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 50,
        "fetch.queue.backoff.ms": BACKOFF_MS,
        "queued.min.messages": 1000,
        "queued.max.messages.kbytes": BUFFER_KBYTES,
        "log_level": 0,
    }
    with kafka_errors(settings.bootstrap):
        consumer = Consumer(config)
        try:
            consumer.assign([TopicPartition(*place, span.start) for place, span in unread.items()])
            reading = _Reading(consumer, settings, unread, timeout_s, at_once)
            while unread:
                yield from reading.next_messages()
        finally:
            consumer.close()


class _Reading:
    """Polls until every partition was read to its end; partitions that were leave `unread`."""

    def __init__(
        self,
        consumer: Consumer,
        settings: Settings,
        unread: dict[Partition, Watermarks],
        timeout_s: float,
        at_once: int,
    ) -> None:
        self._consumer = consumer
        self._settings = settings
        self._unread = unread
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._at_once = at_once
        self._trouble: LanewayError | None = None
        self._hidden_from: dict[Partition, int] = {}

    def next_messages(self) -> Iterator[tuple[Partition, int, Message]]:
        """Those of one poll that lie before the end of their partition.

        Raises:
            IncompleteError: the deadline passed before every end was reached.
            UnreachableError: the cluster went away, or does not let us read.
        """
        for message in self._consumer.consume(self._at_once, POLL_S):
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                self._trouble = to_laneway(error, self._settings.bootstrap)
                if classify(error) in _HOPELESS:
                    raise self._trouble
                continue
            place, offset = _place_of(message)
            span = self._unread.get(place)
            if span is None:
                continue
            if error is not None:
                # The end of what is committed. Behind it may stand an open transaction.
                self._hidden_from[place] = offset
            elif offset < span.end:
                self._trouble = None
                if self._hidden_from:
                    self._hidden_from.pop(place, None)
                yield place, offset, message
            # The end may hold no record: markers of transactions, a compacted or aborted tail.
            if (offset if error is not None else offset + 1) >= span.end:
                del self._unread[place]
                # It may be written to all the time; what lies behind the end is not even fetched.
                self._consumer.pause([TopicPartition(*place)])
        if self._unread and time.monotonic() > self._deadline_s:
            raise self._trouble or self._late()

    def _late(self) -> IncompleteError:
        place, span = next(iter(self._unread.items()))
        hidden_from = self._hidden_from.get(place)
        why = "" if hidden_from is None else f"; at {hidden_from} an open transaction hides what follows"
        return IncompleteError(
            f"{len(self._unread)} partitions were not read to their end within {self._timeout_s:g} s{why}",
            where=position(*place, span.end),
            mend="give a longer --timeout",
        )


def stored(message: Message) -> StoredRecord:
    """A message of a consumer as the record that it is."""
    return _stored(*_place_of(message), message)


def _place_of(message: Message) -> tuple[Partition, int]:
    topic, number, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and number is not None and offset is not None, "it came from a partition"
    return (topic, number), offset


def _stored(place: Partition, offset: int, message: Message) -> StoredRecord:
    kind, timestamp_ms = message.timestamp()
    return StoredRecord(
        *place,
        offset,
        0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        message.key(),
        message.value(),
        tuple(message.headers() or ()),  # type: ignore[arg-type]
    )


class Recent:
    """The last names that were noted; at the bound the oldest is forgotten.

    Copies of a forward come after a crash or a lost answer, so they lie close together.
    """

    def __init__(self, bound: int = COPIES_REMEMBERED) -> None:
        self._bound = bound
        self._names: OrderedDict[tuple[object, ...], None] = OrderedDict()

    def note(self, *name: object) -> bool:
        """Remember a name; whether it is new."""
        new = name not in self._names
        self._names[name] = None
        if len(self._names) > self._bound:
            self._names.popitem(last=False)
        return new

    def __contains__(self, name: tuple[object, ...]) -> bool:
        return name in self._names
