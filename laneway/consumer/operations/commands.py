"""Commands of an operator: put on the commands topic, and answered on the review topic.

A command is queued once the broker has it, whether a worker lives or not; whoever owns the partition then
applies or refuses it, once. Nothing here decides what is permitted, and nothing waits without a bound.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Self

import msgspec
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from laneway.consumer.inspection.cases import answer_of, is_answer
from laneway.consumer.inspection.topics import extents, read, stored
from laneway.consumer.kafka.clients import producer_config, reader_config
from laneway.consumer.kafka.cluster import Cluster, Watermarks
from laneway.consumer.kafka.errors import ErrorClass, classify, kafka_errors, position, to_laneway
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import topic_names
from laneway.errors import LanewayError, RefusedError
from laneway.lanes.command import COMMAND_FORMAT, Command, packed
from laneway.lanes.forward import CommandAnswer, ReviewNews
from laneway.lanes.record import keyed_lane, lane_of_one

SEND_MS: Final = 15_000
"""How long the brokers may take to accept a command."""

AT_ONCE: Final = 100
POLL_S: Final = 0.1
_MAX_MESSAGE_BYTES: Final = 1_000_000_000
_UNSURE: Final = (
    "the command may be queued or not; run it again: a case takes the first one, and refuses what comes after"
)
_decode = msgspec.json.Decoder(Command).decode


def new_command_id() -> str:
    """The name of a command and of its answer; never given twice."""
    return f"command-{secrets.token_hex(8)}"


def lane_of(news: ReviewNews) -> str:
    """The lane of a case, as the ledger names it."""
    return lane_of_one(news.effect_key) if news.sequence_key is None else keyed_lane(news.sequence_key)


def about_case(
    news: ReviewNews,
    action: str,
    actor: str,
    reason: str,
    *,
    sequence: int | None = None,
    result_key: str | None = None,
    value: bytes | None = None,
) -> Command:
    """A command for a case as it was seen: when it has changed since, its owner refuses."""
    return Command(
        format=COMMAND_FORMAT,
        command_id=new_command_id(),
        action=action,
        actor=actor,
        reason=reason,
        group=news.group,
        topic=news.topic,
        partition=news.partition,
        lane=lane_of(news),
        case_id=news.case_id,
        version=news.version,
        sequence=sequence,
        result_key=result_key,
        value=value,
    )


class Commands:
    """Sends commands and hears their answers. Use as a context manager, from one thread.

    Args:
        sources: whose owners are commanded.

    Attributes:
        sent: where each command lies that has no answer yet, by its id; None until the broker has it.
    """

    def __init__(self, settings: Settings, cluster: Cluster, sources: Iterable[str]) -> None:
        self._settings = settings
        names = {source: topic_names(settings, source) for source in sources}
        self._topics = {source: each.commands for source, each in names.items()}
        # Before anything is sent: whatever lies below is the answer to something else.
        ends = extents(cluster, dict.fromkeys(each.review for each in names.values()))
        extents(cluster, self._topics.values())  # refuses a topic that is missing
        self.sent: dict[str, int | None] = {}
        self._at: dict[tuple[str, int, int], str] = {}
        self._trouble: LanewayError | None = None
        with kafka_errors(settings.bootstrap):
            # The topic judges how large a command may be, not the client.
            config = producer_config(settings, max_message_bytes=_MAX_MESSAGE_BYTES)
            config.pop("delivery.timeout.ms", None)
            self._producer = Producer({**config, "message.timeout.ms": SEND_MS, "log_level": 0})
            self._reader = Consumer({**reader_config(settings, committed=True), "log_level": 0})
            self._reader.assign([TopicPartition(*place, span.end) for place, span in ends.items()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the cluster; what is queued stays queued."""
        self._producer.flush(0)
        self._reader.close()

    def topic_of(self, command: Command) -> str:
        """Where it goes."""
        return self._topics[command.topic]

    def send(self, commands: Sequence[Command]) -> None:
        """Queue commands; on return the brokers have them.

        Raises:
            UnreachableError: they do not answer, or do not let us; a command may be queued or not.
            RefusedError: one is larger than its topic takes.
        """
        for command in commands:
            self.sent[command.command_id] = None
            value, headers = packed(command)
            with kafka_errors(self.topic_of(command), _UNSURE):
                self._producer.produce(
                    self.topic_of(command),
                    value,
                    headers=list(headers),
                    key=(command.case_id or command.command_id).encode(),
                    partition=command.partition,
                    on_delivery=partial(self._delivered, command),
                )
        left = self._producer.flush(SEND_MS / 1000 + 1)
        if self._trouble is not None:
            raise self._trouble
        assert not left, "a message outlived its own timeout"

    def answers(self, timeout_s: float) -> Iterator[CommandAnswer]:
        """Answers to what was sent, as they come, until all are in or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while self.sent and (left_s := deadline_s - time.monotonic()) > 0:
            yield from self.heard(min(POLL_S, left_s))

    def heard(self, timeout_s: float) -> list[CommandAnswer]:
        """Answers to what was sent that come within this time; the first ones end the wait."""
        found = []
        with kafka_errors(self._settings.bootstrap):
            for message in self._reader.consume(AT_ONCE, timeout_s):
                if (error := message.error()) is not None:
                    self._judge(error)
                elif (answer := self._answer_in(message)) is not None:
                    found.append(answer)
        return found

    def _answer_in(self, message: Message) -> CommandAnswer | None:
        record = stored(message)
        answer = answer_of(record, self._settings.group) if is_answer(record) else None
        if answer is None:
            return None
        # What its owner could not read has no id to answer to, but a place.
        place = (answer.topic, answer.partition, answer.offset)
        command_id = answer.command_id if answer.command_id in self.sent else self._at.get(place, "")
        if command_id not in self.sent:
            return None
        del self.sent[command_id]
        self._at.pop(place, None)
        return msgspec.structs.replace(answer, command_id=command_id)

    def _judge(self, error: KafkaError) -> None:
        hopeless = {ErrorClass.UNAUTHORISED, ErrorClass.MISSING, ErrorClass.FATAL}
        if error.code() != KafkaError._PARTITION_EOF and classify(error) in hopeless:
            raise to_laneway(error, self._settings.bootstrap)

    def _delivered(self, command: Command, error: KafkaError | None, message: Message) -> None:
        topic = self.topic_of(command)
        if error is None:
            offset = message.offset()
            assert offset is not None, "it has been delivered"
            self.sent[command.command_id] = offset
            self._at[command.topic, command.partition, offset] = command.command_id
            return
        self.sent.pop(command.command_id, None)
        where = position(topic, command.partition)
        if classify(error) is ErrorClass.TOO_LARGE:
            self._trouble = RefusedError(
                "the command is larger than its topic takes",
                where=where,
                mend="raise max.message.bytes of the topic",
            )
        else:
            self._trouble = to_laneway(error, where, _UNSURE)


def queued(
    settings: Settings,
    cluster: Cluster,
    sources: Iterable[str],
    *,
    timeout_s: float,
    wanted: Callable[[Command], bool] = lambda _: True,
) -> Mapping[str, tuple[Command, int]]:
    """Commands that nobody has applied or refused yet, by their id, with their offset.

    Raises:
        IncompleteError: the deadline passed.
    """
    names = {topic_names(settings, source).commands: source for source in sources}
    spans = extents(cluster, names)
    committed = cluster.committed(settings.group, list(spans))
    unread = {}
    for place, span in spans.items():
        at = committed[place]
        unread[place] = span if at is None else Watermarks(max(span.start, at.offset), span.end)
    found: dict[str, tuple[Command, int]] = {}
    for record in read(settings, unread, timeout_s=timeout_s):
        try:
            command = _decode(record.value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # its owner refuses it, nobody waits for it
        if command.group == settings.group and wanted(command):
            # The bytes may be many, and are nobody's business here.
            letter = command.letter
            bare = (
                None if letter is None else msgspec.structs.replace(letter, key=None, value=None, headers=())
            )
            repeat = command.repeat
            if repeat is not None:
                repeat = msgspec.structs.replace(repeat, key=None, value=None, headers=())
            kept = msgspec.structs.replace(command, value=None, letter=bare, repeat=repeat)
            found[command.command_id] = (kept, record.offset)
    return found
