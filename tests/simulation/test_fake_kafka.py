"""The fake Kafka keeps to what a real one does with transactions; the histories are worth no more than that.

The real one's behaviour is shown by the tests under `tests/broker`.
"""

from __future__ import annotations

from random import Random

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.simulation.broker import Group, Transaction
from tests.simulation.clients import FakeConsumer
from tests.simulation.cluster import Cluster, FakeGroupMetadata
from tests.simulation.producers import FakeTransactionalProducer
from tests.simulation.readers import FakeReader

TIMEOUT_MS = 1000


class Host:
    """A process that never dies."""

    ident = 1
    is_dead = False

    def pulse(self, act: str) -> None:
        """It lives."""

    def serving(self, callback: object) -> None:
        """Nothing is served."""

    def note(self, text: str, partition: int) -> None:
        """Nothing is kept."""

    def wait_beside(self, timeout_s: float) -> None:
        """Nobody waits."""


class Stage:
    """A calm cluster with a group of one member, and what its coordinator has decided."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.decided: list[Transaction] = []
        self.expired: list[Transaction] = []
        self.group = Group("consumer", 1, lambda *_: None)
        self.cluster = Cluster(
            self.group, Random(1), lambda: self.now_ms, self.decided.append, self.expired.append
        )
        self.cluster.is_calm = True
        self.member = self.group.join(1)

    def producer(self, name: str = "id") -> FakeTransactionalProducer:
        """One that has taken its transactional id."""
        found = FakeTransactionalProducer(
            self.cluster, Host(), name, TIMEOUT_MS, 1, lambda *_: False, error_cb=None
        )
        found.init_transactions()
        return found

    def opened(self, value: bytes, name: str = "id") -> FakeTransactionalProducer:
        """A producer with an open transaction of one delivered record."""
        producer = self.producer(name)
        producer.begin_transaction()
        producer.produce("t", value, b"k", 0)
        assert producer.flush() == 0
        return producer

    def metadata(self) -> FakeGroupMetadata:
        """The member as it stands now."""
        return FakeGroupMetadata(self.member, self.member.generation)

    def read(self, *, committed: bool) -> list[bytes | None]:
        """All values that a reader sees."""
        reader = FakeReader(self.cluster, Host(), committed=committed)
        reader.assign([TopicPartition("t", 0, 0)])
        return [message.value() for message in reader.consume(100, 0) if message.error() is None]


def code_of(error: pytest.ExceptionInfo[KafkaException]) -> int:
    """The code of what a client raised."""
    found: int = error.value.args[0].code()
    return found


def test_an_open_transaction_is_seen_by_uncommitted_readers_only() -> None:
    """The last stable offset stays where the first open transaction begins; the high watermark goes on."""
    stage = Stage()
    producer = stage.opened(b"a")
    log = stage.cluster.log("t", 0)
    assert (log.stable, log.end) == (0, 1)
    assert (stage.read(committed=True), stage.read(committed=False)) == ([], [b"a"])
    producer.commit_transaction()
    assert stage.read(committed=True) == []  # decided, and the log has not heard of it
    stage.cluster.coordinator.mark_all()
    assert stage.read(committed=True) == [b"a"]
    assert (log.stable, log.end) == (2, 2)  # the marker takes an offset


def test_an_aborted_transaction_is_never_seen_as_committed() -> None:
    """Its records stay in the log and are skipped."""
    stage = Stage()
    stage.opened(b"a").abort_transaction()
    stage.cluster.coordinator.mark_all()
    assert (stage.read(committed=True), stage.read(committed=False)) == ([], [b"a"])
    assert stage.decided == []


def test_the_end_of_a_partition_passes_a_trailing_marker() -> None:
    """A reader's position stays behind its last message; the end that it is told lies behind the marker."""
    stage = Stage()
    stage.opened(b"a").commit_transaction()
    stage.cluster.coordinator.mark_all()
    reader = FakeReader(stage.cluster, Host(), committed=True)
    reader.assign([TopicPartition("t", 0, 0)])
    message, end = reader.consume(10, 0)
    error = end.error()
    assert error is not None
    assert (message.offset(), error.code(), end.offset()) == (0, KafkaError._PARTITION_EOF, 2)
    assert reader.position([TopicPartition("t", 0)])[0].offset == 1


def test_a_newer_producer_fences_the_older_and_aborts_what_it_left() -> None:
    """Whoever takes the transactional id ends the transaction of the one before, who can do nothing more."""
    stage = Stage()
    old = stage.opened(b"a")
    new = stage.producer()
    with pytest.raises(KafkaException) as error:
        old.commit_transaction()
    assert code_of(error) == KafkaError._FENCED
    assert error.value.args[0].fatal()
    new.begin_transaction()
    new.produce("t", b"b", b"k", 0)
    new.commit_transaction()
    stage.cluster.coordinator.mark_all()
    assert stage.read(committed=True) == [b"b"]


def test_offsets_become_true_with_their_transaction_and_are_unstable_until_the_group_heard_of_it() -> None:
    """A member that asks for them meanwhile gets no answer."""
    stage = Stage()
    producer = stage.opened(b"a")
    producer.send_offsets_to_transaction([TopicPartition("s", 0, 7)], stage.metadata())
    assert stage.group.committed == {}
    assert stage.cluster.coordinator.unstable(("s", 0))
    producer.commit_transaction()
    assert stage.cluster.coordinator.unstable(("s", 0))
    stage.cluster.coordinator.mark_all()
    assert not stage.cluster.coordinator.unstable(("s", 0))
    assert stage.group.committed == {("s", 0): 7}


@pytest.mark.parametrize("reason", ["generation", "member"])
def test_offsets_of_an_old_membership_leave_nothing_but_an_abort(reason: str) -> None:
    """The group looks at member and generation of the metadata, not at the producer."""
    stage = Stage()
    producer = stage.opened(b"a")
    metadata = stage.metadata()
    if reason == "member":
        stage.group.leave(1)
        expected = KafkaError.UNKNOWN_MEMBER_ID
    else:
        metadata = metadata._replace(generation=metadata.generation - 1)
        expected = KafkaError.ILLEGAL_GENERATION
    with pytest.raises(KafkaException) as error:
        producer.send_offsets_to_transaction([TopicPartition("s", 0, 7)], metadata)
    assert code_of(error) == expected
    assert error.value.args[0].txn_requires_abort()
    with pytest.raises(KafkaException):
        producer.commit_transaction()
    producer.abort_transaction()
    assert stage.decided == []


def test_whoever_names_no_member_is_not_fenced() -> None:
    """As a broker has it: offsets without a member join any transaction."""
    stage = Stage()
    producer = stage.opened(b"a")
    producer.send_offsets_to_transaction([TopicPartition("s", 0, 7)], FakeGroupMetadata(None, -1))
    producer.commit_transaction()
    assert stage.group.committed == {("s", 0): 7}


def test_a_hanging_transaction_is_aborted_and_its_producer_fenced() -> None:
    """The coordinator ends what is open for longer than its timeout."""
    stage = Stage()
    producer = stage.opened(b"a")
    stage.now_ms = TIMEOUT_MS + 1
    with pytest.raises(KafkaException) as error:
        producer.commit_transaction()
    assert code_of(error) == KafkaError._FENCED
    assert len(stage.expired) == 1
    assert stage.cluster.log("t", 0).stable == stage.cluster.log("t", 0).end


def test_a_late_end_hits_the_next_transaction_of_the_same_producer_and_not_that_of_a_newer() -> None:
    """An end names its producer, not its transaction (librdkafka 5456; case 36)."""
    stage = Stage()
    producer = stage.opened(b"a")
    producer.abort_transaction()
    stage.cluster.late_ends = [("id", 0, True), ("id", 0, True)]
    producer.begin_transaction()
    producer.produce("t", b"b", b"k", 0)
    producer.flush()
    stage.cluster.land_late_end()
    assert len(stage.decided) == 1
    stage.opened(b"c")
    stage.cluster.land_late_end()
    assert len(stage.decided) == 1


def test_compaction_keeps_the_last_committed_value_and_what_is_open() -> None:
    """It works below the last stable offset; a tombstone stays for its time after the pass that met it."""
    stage = Stage()
    for value in (b"a", b"b"):
        stage.opened(value).commit_transaction()
        stage.cluster.coordinator.mark_all()
    producer = stage.producer()
    producer.begin_transaction()
    producer.produce("t", None, b"gone", 0)
    producer.commit_transaction()
    stage.cluster.coordinator.mark_all()
    stage.opened(b"c", "other")
    log = stage.cluster.log("t", 0)
    log.compact_changes(5000, 100)
    assert stage.read(committed=True) == [b"b", None]
    log.compact_changes(5100, 100)
    assert stage.read(committed=True) == [b"b", None]
    log.compact_changes(5101, 100)
    assert stage.read(committed=True) == [b"b"]
    assert stage.read(committed=False)[-1] == b"c"


def test_a_member_that_was_expelled_names_no_member_while_it_hears_of_it() -> None:
    """Its metadata fences nothing in that moment, and `memberid` says so."""
    stage = Stage()
    seen: list[tuple[str, FakeGroupMetadata]] = []

    class Serving(Host):
        def serving(self, callback: object) -> None:
            seen.append((consumer.memberid(), consumer.consumer_group_metadata()))

    consumer = FakeConsumer(stage.cluster, Serving(), "s", lambda *_: None)
    consumer.subscribe(["s"], on_assign=lambda *_: None, on_lost=lambda *_: None)
    stage.group.leave(2)
    consumer.consume(1, 0)
    seen.clear()
    stage.group.leave(1)
    consumer.consume(1, 0)
    assert seen == [("", FakeGroupMetadata(None, -1))]
    assert consumer.memberid()
