"""Intake: polls batches, turns messages into records, and keeps every buffer inside its bound.

The first room of the route. It knows Kafka's messages and pauses; what a record means is decided
behind `Board.admit`. A message is believed only if its partition is live at this moment: after a
rebalance inside the very poll that returned it, it is dropped and read again by whoever owns it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message, TopicPartition

from laneway.consumer.assignment.ownership import Ownership, resume
from laneway.consumer.journal import Journal
from laneway.consumer.kafka.errors import ErrorClass, classify, kafka_errors, to_laneway
from laneway.consumer.partition import Partition, State, reset_line
from laneway.consumer.profile import NO_PROFILE, Profile, Stage
from laneway.errors import RefusedError
from laneway.lanes.command_record import read_command
from laneway.lanes.envelope import Envelope
from laneway.lanes.failures import HandlerSignal, read_again_ms
from laneway.lanes.forward import read_retry
from laneway.lanes.record import Channel, Headers, Record

# Named for every record: to look up an enum's member costs a dozen times what a global does (Python 3.11).
_LIVE: Final = State.LIVE
_COMMANDS: Final = Channel.COMMANDS
_RETRY: Final = Channel.RETRY

log = logging.getLogger("laneway")

SATURATED_MS: Final = 500
"""How long a full worker just does not poll before it pauses its sources: a pause throws the
client's prefetched records away, so a short one would cost more than it saves."""

UNDECODABLE_HEADERS: Final = "undecodable-headers"


class Unread:
    """Records of a partition that wait for their decoder, and when to ask it again."""

    __slots__ = ("again_ms", "records")

    def __init__(self) -> None:
        self.records: deque[Record] = deque()
        self.again_ms = 0


_ENDING: Final = frozenset({ErrorClass.FATAL, ErrorClass.UNAUTHORISED, ErrorClass.MISSING})
"""Errors that no later poll mends: the worker ends and says so, it does not sit without partitions."""


class Intake:
    """Reads for all partitions of the process.

    Args:
        envelopes: by source topic.
        max_records, max_bytes: records of sources that the whole process may have in hand; and how many may
            be settled and not in a commit yet, before those count too.
        longest_delay_ms: a retry's due time is cut to this far from now.
        is_low_on_disk: asked once a second; sources pause while it says True.
        clock: epoch milliseconds.
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
        clock: Callable[[], int],
        profile: Profile = NO_PROFILE,
    ) -> None:
        self._profile = profile
        self._consumer = consumer
        self._ownership = ownership
        self._journal = journal
        self._envelopes = envelopes
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._longest_delay_ms = longest_delay_ms
        self._is_low_on_disk = is_low_on_disk
        self._clock = clock
        self._low_on_disk = False
        self._disk_asked_ms = 0
        self._full_since_ms: int | None = None
        self._ends: list[tuple[Partition, Channel, int]] = []
        self._unread: dict[Partition, Unread] = {}

    def poll(self, timeout_s: float) -> int:
        """Read one batch and put it in front of the lanes.

        Returns:
            How many records were admitted.

        Raises:
            LanewayError: the client is of no more use.
        """
        now_ms = self._clock()
        room = self._room(now_ms)
        self._apply_pauses(now_ms)
        if room <= 0 and self._full_since_ms is not None and now_ms - self._full_since_ms < SATURATED_MS:
            return 0
        self._profile.enter(Stage.POLL)
        with kafka_errors("poll"):
            # Never less than one: rebalances are served in here, and with the sources paused what
            # comes are retries, which have a bound of their own.
            messages = self._consumer.consume(max(1, room), timeout_s)
        # A rebalance in there may have taken a while, and a due time is judged from the present.
        now_ms = self._clock()
        admitted = 0
        self._profile.enter(Stage.DECODE)
        batches = self._sorted(messages, now_ms)
        self._read_again(batches, now_ms)
        for partition, records in batches.items():
            assert partition.board is not None
            self._profile.enter(Stage.JOURNAL)
            self._journal.received(partition, records)
            self._profile.enter(Stage.ADMIT)
            partition.board.admit(records, now_ms)
            admitted += len(records)
        self._profile.count(admitted)
        self._pass_ends()
        return admitted

    @property
    def is_full(self) -> bool:
        """Whether nothing could be read at the last poll, for want of room."""
        return self._full_since_ms is not None

    def _pass_ends(self) -> None:
        """Let frontiers pass what holds no record; after the records of the same poll, which lie below."""
        later = []
        for partition, channel, offset in self._ends:
            if partition in self._unread:
                later.append((partition, channel, offset))
            elif partition.state is State.LIVE and partition.board is not None:
                partition.board.reached(channel, offset)
        self._ends = later

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
            if partition.state is not _LIVE:
                continue
            record = record_of(message, channel)
            if channel is _COMMANDS:
                # No decoder is asked, so an operator is heard also while it is down.
                read_command(record, partition.home)
            elif partition in self._unread or not self._read(record, partition, now_ms):
                self._unread[partition].records.append(record)
                continue
            batch = batches.get(partition)
            if batch is None:
                batches[partition] = [record]
            else:
                batch.append(record)
        return batches

    def _read(self, record: Record, partition: Partition, now_ms: int) -> bool:
        """Find a record's identity; False when the decoder says that it cannot be done now.

        A schema registry that is down dead-letters nothing: the partition waits, the record is kept.
        """
        if record.fault:
            return True
        home = partition.home
        try:
            self._envelopes[home.topic].read(record, home.topic, home.partition)
        except HandlerSignal as signal:
            wait_ms = read_again_ms(signal)
            known = self._unread.setdefault(partition, Unread())
            known.again_ms = now_ms + wait_ms
            log.warning("%s: the decoder is not available; reading again in %d ms", partition, wait_ms)
            return False
        if record.channel is _RETRY:
            record.skip = ""
            read_retry(record, home, record.fault, latest_due_ms=now_ms + self._longest_delay_ms)
        return True

    def _read_again(self, batches: dict[Partition, list[Record]], now_ms: int) -> None:
        """Read what the decoder could not read before, in the order polled."""
        for partition, unread in list(self._unread.items()):
            if partition.state is not State.LIVE:
                del self._unread[partition]
                continue
            read: list[Record] = []
            while unread.records and now_ms >= unread.again_ms:
                if not self._read(unread.records[0], partition, now_ms):
                    break
                read.append(unread.records.popleft())
            if not unread.records:
                del self._unread[partition]
            if read:
                # Commands of the same poll, which asked no decoder, are there already.
                batches[partition] = read + batches.get(partition, [])

    def _on_error(self, message: Message, error: KafkaError) -> None:
        topic, number = message.topic(), message.partition()
        place = self._ownership.find(topic, number) if topic is not None and number is not None else None
        if error.code() == KafkaError._PARTITION_EOF:
            self._on_end(message, place)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET and place is not None:
            partition, channel = place
            by_hand = ""
            if channel is Channel.SOURCE:
                line = reset_line(partition.topic, partition.partition, "start")
                by_hand = f", then set the group's offset to the log's start on purpose: {line}"
            partition.failure = RefusedError(
                "the offset to read next is not in the log any more, so records may be gone unread",
                where=f"{topic}-{number}",
                mend=f"look at `laneway offsets show --all`{by_hand}",
            )
        elif classify(error) in _ENDING:
            raise to_laneway(error, f"{topic}-{number}" if topic else "poll")
        else:
            log.warning("kafka: %s (%s)", error.str(), error.name())

    def _on_end(self, message: Message, place: tuple[Partition, Channel] | None) -> None:
        offset = message.offset()
        if place is None or offset is None or place[0].state is not State.LIVE:
            return
        partition, channel = place
        if channel in partition.starts:
            self._ends.append((partition, channel, offset))

    # -- bounds

    def _room(self, now_ms: int) -> int:
        records = settled = size = 0
        for partition in self._ownership.live():
            assert partition.board is not None
            records += partition.board.in_memory
            settled += partition.board.pending
            size += partition.board.in_memory_bytes
        # As many again may be settled and wait for their commit, or handlers would run dry meanwhile. On this
        # bound stands what a next owner takes for redelivered: `rules.HAND_OVER_CUTS`.
        records += max(0, settled - self._max_records)
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
            if partition in self._unread:
                wanted = dict.fromkeys((Channel.SOURCE, Channel.RETRY), "the decoder is not available")
            elif self._low_on_disk:
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
                resume(self._consumer, position)
                loud = log.debug if partition.paused[channel] is _FULL else log.warning
                loud("%s: %s resumed", partition, channel.name.lower())


_FULL: Final = "as many records are in memory as lanes.max_in_flight allows"


def record_of(message: Message, channel: Channel) -> Record:
    """A message as a record whose identity nobody has read yet; with a fault when it cannot be shown."""
    kind, timestamp_ms = message.timestamp()
    offset = message.offset()
    assert offset is not None
    headers: Headers = ()
    fault = ""
    try:
        headers = tuple(message.headers() or ())  # type: ignore[arg-type]
    except (SystemError, UnicodeError):
        # Kafka lets a header's name be any bytes; the client cannot show such a record's headers at all.
        fault = UNDECODABLE_HEADERS
    record = Record(
        channel,
        offset,
        message.key(),
        message.value(),
        headers,
        0 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
    )
    record.fault = fault
    return record
