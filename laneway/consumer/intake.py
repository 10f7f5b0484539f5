"""Intake: polls batches, turns messages into records, and keeps every buffer inside its bound.

The first room of the route. It knows Kafka's messages and pauses; what a record means is decided
behind `Board.admit`. A message is believed only if its partition is live at this moment: after a
rebalance inside the very poll that returned it, it is dropped and read again by whoever owns it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message, TopicPartition

from laneway.consumer.journal import Journal
from laneway.consumer.kafka_errors import ErrorClass, classify, kafka_errors, to_laneway
from laneway.consumer.ownership import Ownership
from laneway.consumer.partition import Partition, State
from laneway.errors import RefusedError
from laneway.lanes.envelope import Envelope
from laneway.lanes.forward import read_retry
from laneway.lanes.record import Channel, Record

log = logging.getLogger("laneway")

SATURATED_MS: Final = 500
"""How long a full worker just does not poll before it pauses its sources: a pause throws the
client's prefetched records away, so a short one would cost more than it saves."""


class Intake:
    """Reads for all partitions of the process.

    Args:
        envelopes: by source topic.
        max_records, max_bytes: records of sources held in memory by the whole process.
        longest_delay_ms: a retry's due time is cut to this far from now.
        is_low_on_disk: asked once a second; sources pause while it says True.
    """

    def __init__(
        self,
        consumer: Consumer,
        ownership: Ownership,
        journal: Journal,
        envelopes: Mapping[str, Envelope],
        *,
        max_records: int,
        max_bytes: int,
        longest_delay_ms: int,
        is_low_on_disk: Callable[[], bool],
    ) -> None:
        self._consumer = consumer
        self._ownership = ownership
        self._journal = journal
        self._envelopes = envelopes
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._longest_delay_ms = longest_delay_ms
        self._is_low_on_disk = is_low_on_disk
        self._low_on_disk = False
        self._disk_asked_ms = 0
        self._full_since_ms: int | None = None
        self._ends: list[tuple[Partition, Channel, int]] = []

    def poll(self, timeout_s: float, now_ms: int) -> int:
        """Read one batch and put it in front of the lanes.

        Returns:
            How many records were admitted.

        Raises:
            LanewayError: the client is of no more use.
        """
        room = self._room(now_ms)
        self._apply_pauses(now_ms)
        if room <= 0 and self._full_since_ms is not None and now_ms - self._full_since_ms < SATURATED_MS:
            return 0
        with kafka_errors("poll"):
            # Never less than one: rebalances are served in here, and with the sources paused what
            # comes are retries, which have a bound of their own.
            messages = self._consumer.consume(max(1, room), timeout_s)
        admitted = 0
        for partition, records in self._sorted(messages, now_ms).items():
            assert partition.board is not None
            self._journal.received(partition, records)
            partition.board.admit(records, now_ms)
            admitted += len(records)
        # After the records of the same poll: they lie below the end.
        for partition, channel, offset in self._ends:
            assert partition.board is not None
            partition.board.reached(channel, offset)
        self._ends.clear()
        return admitted

    def _sorted(self, messages: Sequence[Message], now_ms: int) -> dict[Partition, list[Record]]:
        """Messages as records, by partition, in the order polled."""
        batches: dict[Partition, list[Record]] = {}
        find = self._ownership.find
        for message in messages:
            error = message.error()
            if error is not None:
                self._on_error(message, error)
                continue
            topic, number = message.topic(), message.partition()
            place = find(topic, number)
            if place is None:
                continue
            partition, channel = place
            if partition.state is not State.LIVE:
                continue
            record = self._record(message, partition, channel, now_ms)
            batch = batches.get(partition)
            if batch is None:
                batches[partition] = [record]
            else:
                batch.append(record)
        return batches

    def _record(self, message: Message, partition: Partition, channel: Channel, now_ms: int) -> Record:
        kind, timestamp_ms = message.timestamp()
        offset = message.offset()
        assert offset is not None
        record = Record(
            channel,
            offset,
            message.key(),
            message.value(),
            tuple(message.headers() or ()),  # type: ignore[arg-type]
            0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        )
        home = partition.home
        self._envelopes[home.topic].read(record, home.topic, home.partition)
        if channel is Channel.RETRY:
            record.skip = ""
            read_retry(record, home, record.fault, latest_due_ms=now_ms + self._longest_delay_ms)
        return record

    def _on_error(self, message: Message, error: KafkaError) -> None:
        topic, number = message.topic(), message.partition()
        place = self._ownership.find(topic, number) if topic is not None and number is not None else None
        if error.code() == KafkaError._PARTITION_EOF:
            self._on_end(message, place)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET and place is not None:
            place[0].failure = RefusedError(
                "the committed offset is not in the log any more, so records may be gone unread",
                where=f"{topic}-{number}",
                mend="look at `laneway offsets show`, then set the group's offset on purpose",
            )
        elif error.fatal() or classify(error) in {ErrorClass.UNAUTHORISED, ErrorClass.MISSING}:
            raise to_laneway(error, f"{topic}-{number}" if topic else "poll")
        else:
            log.warning("kafka: %s (%s)", error.str(), error.name())

    def _on_end(self, message: Message, place: tuple[Partition, Channel] | None) -> None:
        offset = message.offset()
        if place is None or offset is None or place[0].state is not State.LIVE:
            return
        partition, channel = place
        if channel is not Channel.COMMANDS:
            self._ends.append((partition, channel, offset))

    # -- bounds

    def _room(self, now_ms: int) -> int:
        records = size = 0
        for partition in self._ownership.live():
            assert partition.board is not None
            records += partition.board.in_memory + partition.board.pending
            size += partition.board.in_memory_bytes
        room = 0 if size >= self._max_bytes else self._max_records - records
        if room > 0:
            self._full_since_ms = None
        elif self._full_since_ms is None:
            self._full_since_ms = now_ms
        return room

    def _apply_pauses(self, now_ms: int) -> None:
        if now_ms - self._disk_asked_ms >= 1000:
            self._disk_asked_ms = now_ms
            self._low_on_disk = self._is_low_on_disk()
        full = self._full_since_ms is not None and now_ms - self._full_since_ms >= SATURATED_MS
        for partition in self._ownership.live():
            assert partition.board is not None
            wanted = partition.board.blocked()
            if self._low_on_disk:
                wanted[Channel.SOURCE] = "the disk of state_dir is nearly full"
            elif full:
                wanted.setdefault(Channel.SOURCE, _FULL)
            if wanted.keys() != partition.paused.keys():
                self._change(partition, wanted)
            partition.paused = wanted

    def _change(self, partition: Partition, wanted: dict[Channel, str]) -> None:
        for channel in (Channel.SOURCE, Channel.RETRY):
            position = [TopicPartition(partition.topic_of(channel), partition.partition)]
            if channel in wanted and channel not in partition.paused:
                self._consumer.pause(position)
                loud = log.debug if wanted[channel] is _FULL else log.warning
                loud("%s: %s paused: %s", partition, channel.name.lower(), wanted[channel])
            elif channel in partition.paused and channel not in wanted:
                self._consumer.resume(position)
                loud = log.debug if partition.paused[channel] is _FULL else log.warning
                loud("%s: %s resumed", partition, channel.name.lower())


_FULL: Final = "as many records are in memory as lanes.max_in_flight allows"
