"""Delivery: what a handler gets, one hand-over of a record.

It shows a record and takes what the handler emits; it decides nothing and knows no pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

from laneway.emitting import emitted_of
from laneway.lanes.record import Headers, Record, run_of
from laneway.lanes.verdict import Emitted

T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Delivery(Generic[T]):
    """One hand-over of a record to the handler. Valid while the handler runs; do not keep it.

    Position is that of the record in its source topic, on a retry too. Times are aware, in UTC.

    Attributes:
        payload: the validated payload; None for a tombstone that is delivered.
        topic: the source topic.
        partition: its partition.
        deadline_ms: epoch milliseconds at which this delivery is overdue.
        emitted: what `emit` has taken so far.
    """

    __slots__ = ("_record", "deadline_ms", "emitted", "partition", "payload", "topic")

    def __init__(self, payload: T, record: Record, topic: str, partition: int, deadline_ms: int) -> None:
        self.payload = payload
        self._record = record
        self.topic = topic
        self.partition = partition
        self.deadline_ms = deadline_ms
        self.emitted: tuple[Emitted, ...] = ()

    def emit(
        self,
        topic: str,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Publish a record together with the success of this delivery; nothing is sent otherwise.

        It leaves when the outcome is settled, in the order of the lane, to the partition of its key (as the
        Java client partitions). With `replication = "changelog"` it is part of the settling transaction, so a
        reader with `isolation.level=read_committed` sees it exactly once. With `local` it is sent at least
        once; a second copy has the same `laneway-forward-id` header.

        Raises:
            TypeError: the topic is no text, or key, value or a header are no bytes.
            ValueError: a topic name that Kafka does not allow, or a header name that is ours (`laneway-`).
        """
        self.emitted = (*self.emitted, emitted_of(topic, key, value, headers))

    @property
    def message_id(self) -> str:
        """The publisher's name for this message; not unique per effect."""
        return self._record.message_id

    @property
    def effect_key(self) -> str:
        """The idempotency key: the same on every delivery that means the same effect."""
        return self._record.effect_key

    @property
    def sequence_key(self) -> str | None:
        """The business key whose records run in order, or None when nothing is ordered."""
        return self._record.sequence_key

    @property
    def sequence(self) -> int | None:
        """The number inside the sequence key, or None without a sequence key."""
        return None if self._record.sequence_key is None else self._record.sequence

    @property
    def version(self) -> int:
        """The contract version."""
        return self._record.version

    @property
    def attempt(self) -> int:
        """1 on the first delivery; counts on with every retry, across restarts."""
        return self._record.attempt

    @property
    def run(self) -> int:
        """0 in the normal flow; in a deliberate repeat (`laneway rerun`) the number of that rerun.

        A target that knows the effect key refuses the repeat as a duplicate, unless it gets this number too.
        """
        return run_of(self._record)

    @property
    def redelivered(self) -> bool:
        """True when an earlier owner may have handed this record to a handler before."""
        return self._record.redelivered

    @property
    def deadline(self) -> datetime:
        """When this delivery counts as overdue: its start plus `handler_timeout_ms`."""
        return _EPOCH + timedelta(milliseconds=self.deadline_ms)

    @property
    def offset(self) -> int:
        """Offset in the source topic."""
        return self._record.origin_offset

    @property
    def timestamp(self) -> datetime | None:
        """Kafka's timestamp of the record; None when it has none or no calendar can show it."""
        if self._record.timestamp_ms <= 0:
            return None
        try:
            return _EPOCH + timedelta(milliseconds=self._record.timestamp_ms)
        except OverflowError:
            return None

    @property
    def key(self) -> bytes | None:
        """The record key as it was published."""
        return self._record.key

    @property
    def value(self) -> bytes | None:
        """The record value as it was published."""
        return self._record.value

    @property
    def headers(self) -> Headers:
        """(name, value) pairs in their order; a name may occur more than once."""
        return self._record.headers

    def __repr__(self) -> str:
        # A repr ends in logs: identity and position, never payload, value or headers.
        record = self._record
        return (
            f"Delivery({self.topic}[{self.partition}]@{record.origin_offset} "
            f"effect_key={record.effect_key!r} sequence_key={record.sequence_key!r} "
            f"sequence={self.sequence} attempt={record.attempt})"
        )
