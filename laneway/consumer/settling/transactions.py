"""The transactional producer of the process: the one place that calls it, and what its answers mean.

Calls that may block run on a thread of their own, one at a time: they are begun here and their answer
is taken later, so the owner thread goes on reading. What an answer means for a cycle is
`changelog_truth`'s business; here it is only put into one of four classes (`Fate`).

Nothing is asked twice of one producer when the first answer was lost: the request may still be on its way.
An end of a transaction names its producer, not the transaction, so one that is late would end the next
(librdkafka 5423). Only a new producer of the same transactional id is safe from it: once its
`init_transactions` has returned, the coordinator refuses whatever the one before has sent.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple, ParamSpec, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from laneway.consumer.kafka.errors import (
    ErrorClass,
    by_code,
    classify,
    kafka_errors,
    position,
    said_by_client,
    to_laneway,
)
from laneway.errors import KafkaClientError, LanewayError, RefusedError, UnreachableError
from laneway.store.port import Change

log = logging.getLogger("laneway")

INIT_S: Final = 5.0
FLUSH_S: Final = 1.0
OFFSETS_S: Final = 8.0
COMMIT_S: Final = 10.0
ABORT_S: Final = 5.0
HUNG_S: Final = 25.0
"""Far beyond the timeout of any call. A client that ignores those is of no more use: seen of a commit whose
broker was killed before it answered, with librdkafka 2.16."""
ASLEEP_S: Final = 5.0
"""Who has not asked for so long was stopped itself, and the call with it."""
READ_POLL_S: Final = 0.2
READ_POLLS: Final = 10
_PASSES: Final = frozenset({ErrorClass.UNREACHABLE, ErrorClass.RETRIABLE, ErrorClass.FENCED})
_OF_RECORDS: Final = frozenset({ErrorClass.TOO_LARGE, ErrorClass.MISSING, ErrorClass.REFUSED_CONFIG})
_BROKEN: Final = frozenset({KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._SSL})
_STATE, _UP = "in state ", "in state UP"
_MAGIC: Final = b"CGMDv2:"
_GENERATION: Final = struct.Struct("=i")
_NOT_ITS_OWN: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE})

_P = ParamSpec("_P")
Offsets = Sequence[tuple[str, int, int, str]]
Report = Callable[[KafkaError | None, Message | None], None]
"""Hears of the end of a record. No message comes with one that the client refused at once."""


class Fate(Enum):
    """What an answer means.

    DONE: it happened.
    RETRY: not now, and nothing of it happened; the same call may be put again.
    ABORT: the transaction can only be aborted. To `read_back`: it is not there.
    RENEW: nobody knows what happened, or the producer is of no more use. Only a new one can go on.
    """

    DONE = "done"
    RETRY = "retry"
    ABORT = "abort"
    RENEW = "renew"


class Answer(NamedTuple):
    """The end of a call. `error` is the client's, where it gave one."""

    fate: Fate
    error: KafkaError | None = None

    @property
    def text(self) -> str:
        """For a log line."""
        return "" if self.error is None else f"{self.error.str()} ({self.error.name()})"


def fate_of(error: KafkaError) -> Fate:
    """What a failed call of the transactional producer leaves behind."""
    if error.fatal() or classify(error) in {ErrorClass.UNREACHABLE, ErrorClass.FENCED, ErrorClass.FATAL}:
        return Fate.RENEW
    if error.txn_requires_abort():
        return Fate.ABORT
    return Fate.RETRY if error.retriable() else Fate.RENEW


def is_own_fault(error: KafkaError) -> bool:
    """Whether a record failed by itself, and not because the transaction around it did."""
    return not error.fatal() and error.code() not in _NOT_ITS_OWN


_DONE: Final = Answer(Fate.DONE)


class Transactions:
    """One producer at a time under one transactional id. Belongs to the owner thread.

    Args:
        new_producer: makes one; its argument is told of every error of a connection.
        new_reader: makes a client that reads what is committed, and tells where a partition ends.
        prefix: of the transactional ids of the whole group, for the message when rights are missing.
        executor: one thread, for the calls that block.
        notice: called from it when a call has ended, to wake the owner.
        on_stuck: called when a call will not end, before the next one: the executor needs another thread.

    Attributes:
        is_suspect: since the transaction began a connection broke, so the client may have sent a request
            twice without saying so. The next transaction wants a new producer.
    """

    def __init__(
        self,
        transactional_id: str,
        new_producer: Callable[[Callable[[KafkaError], None]], Producer],
        new_reader: Callable[[], Consumer],
        *,
        prefix: str,
        executor: Executor,
        notice: Callable[[], None],
        on_stuck: Callable[[], None] | None = None,
    ) -> None:
        self._prefix = prefix
        self._on_stuck = on_stuck
        self.transactional_id = transactional_id
        self.is_suspect = False
        self._new_producer = new_producer
        self._new_reader = new_reader
        self._executor = executor
        self._notice = notice
        self._producer: Producer | None = None
        self._is_beginning = False
        self._is_ready = False
        self._is_open = False
        self._is_reading = False
        self._call: Future[Answer] | None = None
        self._since_s = 0.0
        self._asked_s = 0.0

    # -- at once

    def begin(self) -> Answer:
        """Begin a transaction; the brokers hear of it with its first record."""
        assert self._producer is not None and self._is_ready
        self.is_suspect = False
        try:
            self._producer.begin_transaction()
        except KafkaException as exception:
            return _answer(exception)
        self._is_open = True
        return _DONE

    def produce(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        report: Report | None = None,
    ) -> Answer:
        """Hand a record to the client. RETRY: its queue is full, `flush` makes room.

        Args:
            partition: -1 leaves it to the key.
            report: hears of the record's end, from inside `flush`. Without one it is not reported: the
                transaction fails with it all the same.
        """
        producer = self._producer
        assert producer is not None
        try:
            if headers is not None:
                producer.produce(topic, value, key, partition, on_delivery=report, headers=list(headers))
            else:
                producer.produce(topic, value, key, partition, on_delivery=report)
        except BufferError:
            return Answer(Fate.RETRY)
        except KafkaException as exception:
            answer = _answer(exception)
            if report is None or answer.error is None or not _is_of_the_record(answer.error):
                return answer
            report(answer.error, None)
        return _DONE

    def produce_entries(
        self, topic: str, partition: int, changes: Sequence[Change], first: int, end: int
    ) -> tuple[int, Answer]:
        """Hand over changelog entries from `first` up to `end`, unreported; thousands of them in a cycle.

        Returns:
            The first that was not taken, `end` when all were, and why.
        """
        assert self._producer is not None
        produce = self._producer.produce
        for at in range(first, end):
            key, value = changes[at]
            try:
                produce(topic, value, key, partition)
            except BufferError:
                return at, Answer(Fate.RETRY)
            except KafkaException as exception:
                return at, _answer(exception)
        return end, _DONE

    # -- in the background, one at a time

    def renew(self) -> None:
        """Throw the producer away, if there is one, and take the transactional id with another.

        DONE means that nothing of the one before can land any more, and that what it left open is aborted.
        """
        self._is_ready = self._is_open = self.is_suspect = False
        self._begin_call(self._renewed)

    def flush(self) -> None:
        """Wait until every record is delivered or has failed. RETRY: some are still on their way."""
        self._begin_call(self._flushed)

    def send_offsets(self, offsets: Offsets, metadata: object) -> None:
        """Let (topic, partition, offset, note) join the transaction, under this membership of the group."""
        places = [TopicPartition(topic, number, offset, note) for topic, number, offset, note in offsets]
        self._begin_call(self._answered, lambda p: p.send_offsets_to_transaction(places, metadata, OFFSETS_S))

    def commit(self) -> None:
        """Commit. Any answer but DONE says nothing of what happened."""
        self._is_open = False
        self._begin_call(self._answered, lambda producer: producer.commit_transaction(COMMIT_S))

    def abort(self) -> None:
        """Abort."""
        self._is_open = False
        self._begin_call(self._answered, lambda producer: producer.abort_transaction(ABORT_S))

    def read_back(self, topic: str, partition: int, offset: int) -> None:
        """Whether a record whose transaction has ended is committed: DONE, it is; ABORT, it is not."""
        self._begin_call(self._found, topic, partition, offset)
        self._is_reading = True

    def answer(self) -> Answer | None:
        """Of the call that was begun last; None while it goes on.

        Raises:
            LanewayError: nothing can go on here.
        """
        assert self._call is not None, "no call was begun"
        if not self._call.done():
            return self._bury() if self._is_stuck() else None
        call, self._call = self._call, None
        return call.result()

    def _is_stuck(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._asked_s > ASLEEP_S:
            self._since_s = now_s
        self._asked_s = now_s
        return now_s - self._since_s > HUNG_S

    def _bury(self) -> Answer:
        """Leave a client where it hangs: the producer, whose successor makes sure that nothing of it lands.

        One that only reads back is a client of its own: the question is put again, to another.
        """
        self._call = None
        if self._on_stuck is None:
            raise self._hung()
        log.warning(
            "the Kafka client has not come back from a call for %g s, beyond every timeout it was given; it "
            "is replaced, and what became of its transaction is read back",
            HUNG_S,
        )
        self._on_stuck()
        if self._is_reading:
            return Answer(Fate.RETRY)
        was_ready = self._is_ready
        # Not dropped as others are: to purge it, or to end it, could hang as well.
        self._producer = None
        self._is_beginning = self._is_ready = self._is_open = False
        if not was_ready:
            raise self._hung()
        return Answer(Fate.RENEW)

    def close(self) -> None:
        """Abort what is open, unless a call hangs. Waits for nothing: the executor's thread is joined."""
        if self._call is None and self._is_open:
            self.abort()

    # -- on the thread

    def _begin_call(self, call: Callable[_P, Answer], *args: _P.args, **kwargs: _P.kwargs) -> None:
        assert self._call is None, "one call at a time"
        self._since_s = self._asked_s = time.monotonic()
        self._is_reading = False
        self._call = self._executor.submit(call, *args, **kwargs)
        self._call.add_done_callback(lambda _: self._notice())

    def _answered(self, call: Callable[[Producer], object]) -> Answer:
        producer = self._producer
        assert producer is not None
        try:
            call(producer)
            # Broken connections are told in here.
            producer.poll(0)
        except (KafkaException, SystemError) as exception:
            return _answer(exception)
        return _DONE

    def _flushed(self) -> Answer:
        assert self._producer is not None
        try:
            left = self._producer.flush(FLUSH_S)
        except (KafkaException, SystemError) as exception:
            return _answer(exception)
        return Answer(Fate.RETRY if left else Fate.DONE)

    def _renewed(self) -> Answer:
        if self._producer is None or not self._is_beginning:
            self._drop()
            self._producer = self._new_producer(self._on_error)
            self._is_beginning = True
        try:
            self._producer.init_transactions(INIT_S)
        except KafkaException as exception:
            error = _error_of(exception)
            if error.retriable():
                return Answer(Fate.RETRY, error)
            self._drop()
            if by_code(error) not in _PASSES:
                raise self._refused(error) from exception
            return Answer(Fate.RENEW, error)
        self._is_beginning = False
        self._is_ready = True
        return _DONE

    def _drop(self) -> None:
        if self._producer is not None:
            with suppress(KafkaException):
                self._producer.purge()
            # Its end waits for its own threads, however long: nobody must wait for that. Whatever it still
            # sends, the coordinator refuses.
            last = [self._producer]
            self._producer = None
            threading.Thread(target=last.clear, name="laneway-last", daemon=True).start()
        self._is_beginning = False

    def _hung(self) -> LanewayError:
        return KafkaClientError(
            f"the Kafka client has not come back from a call for {HUNG_S:g} s, beyond every timeout it was "
            "given; nothing more can be settled with it",
            where=f"transactional id {self.transactional_id}",
            mend="start again: the changelog decides what happened, nothing is lost; are the brokers well?",
        )

    def _found(self, topic: str, partition: int, offset: int) -> Answer:
        with kafka_errors(position(topic, partition, offset)):
            reader = self._new_reader()
            try:
                reader.assign([TopicPartition(topic, partition, offset)])
                for _ in range(READ_POLLS):
                    for message in reader.consume(10, READ_POLL_S):
                        answer = self._read(message, offset)
                        if answer is not None:
                            return answer
            finally:
                reader.close()
        # Behind a transaction of somebody else that is still open nobody can see.
        return Answer(Fate.RETRY)

    @staticmethod
    def _read(message: Message, offset: int) -> Answer | None:
        """What a record, or the end of the partition, says of the record at `offset`."""
        error, at = message.error(), message.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if classify(error) in _PASSES:
                return None
            where = position(message.topic() or "", message.partition(), offset)
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise RefusedError(
                    "the changelog has no such offset any more, so nobody can say what became of the "
                    "transaction that wrote there: it was cut off, or made anew, under this worker",
                    where=where,
                    mend="keep this state directory, find out who did that, and start again: the ledger "
                    "follows what is committed, or is refused with what it lacks",
                )
            raise to_laneway(error, where, "start again: the ledger is restored from what is committed")
        assert at is not None
        if error is None and at == offset:
            return _DONE
        # Reading went past it, and it was not shown: it was aborted.
        return Answer(Fate.ABORT) if at > offset else None

    def _on_error(self, error: KafkaError) -> None:
        # Called inside poll and flush. A connection that was refused has lost no request.
        text = error.str()
        if error.code() in _BROKEN and (_UP in text or _STATE not in text):
            self.is_suspect = True

    def _refused(self, error: KafkaError) -> LanewayError:
        where = f"transactional id {self.transactional_id}"
        if by_code(error) is not ErrorClass.UNAUTHORISED:
            return to_laneway(error, where)
        return UnreachableError(
            f"the cluster does not let this worker settle in transactions: {error.str()} ({error.name()})",
            where=where,
            mend="kafka-acls --add --allow-principal User:... --operation Write --operation Describe "
            f"--transactional-id {self._prefix} --resource-pattern-type prefixed",
        )


class MembershipPort(Protocol):
    """Who this worker is in its group."""

    def metadata(self) -> object | None:
        """As it stands now; None while it is no member."""
        ...


class Membership:
    """The worker's own place in its group, as a transaction names it. Belongs to the owner thread."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def metadata(self) -> object | None:
        """What stands now; None while this is no member.

        Kafka lets anybody who names no member put offsets into a transaction: that fences nothing, so it must
        never be sent. Seen on Kafka 4 with the classic protocol.
        """
        try:
            metadata: object = self._consumer.consumer_group_metadata()
            return metadata if self._consumer.memberid() and _generation_of(metadata) >= 0 else None
        except RuntimeError:
            return None  # the consumer was closed meanwhile


def _generation_of(metadata: object) -> int:
    """The generation in the client's bytes; 0 when they are of another make, and `memberid` has to do."""
    if not isinstance(metadata, bytes) or not metadata.startswith(_MAGIC):
        return 0
    generation: int = _GENERATION.unpack_from(metadata, len(_MAGIC))[0]
    return generation


def _is_of_the_record(error: KafkaError) -> bool:
    """Whether the client refused a record for what it is, not for the state of the transaction."""
    return by_code(error) in _OF_RECORDS and not (error.fatal() or error.txn_requires_abort())


def _error_of(exception: KafkaException) -> KafkaError:
    error: KafkaError = exception.args[0]
    return error


def _answer(exception: KafkaException | SystemError) -> Answer:
    error = _error_of(said_by_client(exception))
    return Answer(fate_of(error), error)
