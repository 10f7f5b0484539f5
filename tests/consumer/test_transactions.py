"""What the transactional producer's answers mean, and what is never sent: over a producer with behaviour."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from laneway.consumer.settling import transactions
from laneway.consumer.settling.transactions import Answer, Fate, Membership, Transactions, fate_of
from laneway.errors import KafkaClientError, RefusedError, UnreachableError
from tests.consumer.fake_transactions import failed


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (failed(KafkaError.ILLEGAL_GENERATION, abort=True), Fate.ABORT),
        (failed(KafkaError.STALE_MEMBER_EPOCH, abort=True), Fate.ABORT),
        (failed(KafkaError.UNKNOWN_MEMBER_ID, abort=True), Fate.ABORT),
        (failed(KafkaError.FENCED_INSTANCE_ID, abort=True), Fate.ABORT),
        (failed(KafkaError.MSG_SIZE_TOO_LARGE, abort=True), Fate.ABORT),
        (failed(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, abort=True), Fate.ABORT),
        (failed(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, retriable=True), Fate.RETRY),
        (failed(KafkaError.CONCURRENT_TRANSACTIONS, retriable=True), Fate.RETRY),
        (failed(KafkaError._TIMED_OUT, retriable=True), Fate.RENEW),
        (failed(KafkaError._TRANSPORT, retriable=True), Fate.RENEW),
        (failed(KafkaError._MSG_TIMED_OUT, abort=True), Fate.RENEW),
        (failed(KafkaError._FENCED, fatal=True), Fate.RENEW),
        (failed(KafkaError.INVALID_PRODUCER_EPOCH, abort=True), Fate.RENEW),
        (failed(KafkaError.INVALID_TXN_STATE, fatal=True), Fate.RENEW),
        (failed(KafkaError._STATE), Fate.RENEW),
    ],
)
def test_each_error_has_one_meaning(error: KafkaError, fate: Fate) -> None:
    """A refusal is aborted, "not now" is asked again, and what nobody answered costs the producer."""
    assert fate_of(error) is fate


class Now(Executor):
    """Calls happen as they are asked for."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asks the future
            future.set_exception(error)
        return future


class FakeProducer:
    """A producer whose next calls raise what they are told."""

    def __init__(self, on_error: Callable[[KafkaError], None]) -> None:
        self.on_error = on_error
        self.raises: dict[str, list[KafkaError]] = {}
        self.calls: list[str] = []
        self.left = 0
        self.told: list[KafkaError] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.raises.get(name):
            raise KafkaException(self.raises[name].pop(0))

    def init_transactions(self, _: float) -> None:
        """Take the id."""
        self._call("init")

    def begin_transaction(self) -> None:
        """Begin."""
        self._call("begin")

    def produce(self, *_: Any, **__: Any) -> None:
        """Take a record."""
        self._call("produce")

    def flush(self, _: float) -> int:
        """What is left."""
        self._call("flush")
        return self.left

    def poll(self, _: float) -> int:
        """Tell of broken connections."""
        for error in self.told:
            self.on_error(error)
        self.told = []
        return 0

    def send_offsets_to_transaction(self, *_: Any) -> None:
        """Let them join."""
        self._call("send_offsets")

    def commit_transaction(self, _: float) -> None:
        """Commit."""
        self._call("commit")

    def abort_transaction(self, _: float) -> None:
        """Abort."""
        self._call("abort")

    def purge(self) -> None:
        """Forget what is on its way."""
        self._call("purge")


class FakeReader:
    """A reader that gets these answers, one for each read."""

    def __init__(self, reads: list[list[Any]]) -> None:
        self.reads = reads
        self.is_closed = False

    def assign(self, places: list[TopicPartition]) -> None:
        """Begin there."""
        assert [(each.topic, each.partition, each.offset) for each in places] == [("ledger", 3, 7)]

    def consume(self, _: int, __: float) -> list[Any]:
        """The next answer."""
        return self.reads.pop(0) if self.reads else []

    def close(self) -> None:
        """Over."""
        self.is_closed = True


class Read:
    """A message, or the news that a partition ends."""

    def __init__(self, offset: int, code: int | None = None) -> None:
        self._offset = offset
        self._error = None if code is None else KafkaError(code)

    def error(self) -> KafkaError | None:
        """None for a record."""
        return self._error

    def offset(self) -> int:
        """Where."""
        return self._offset

    def topic(self) -> str:
        """Where."""
        return "ledger"

    def partition(self) -> int:
        """Where."""
        return 3


class Client:
    """The real port over producers and a reader with behaviour."""

    def __init__(self, reads: list[list[Any]] | None = None) -> None:
        self.producers: list[FakeProducer] = []
        self.at_first: dict[str, list[KafkaError]] = {}
        self.reader = FakeReader(reads or [])
        self.port = Transactions(
            "laneway-reminders-1",
            self._new_producer,
            lambda: cast("Consumer", self.reader),
            prefix="laneway-reminders-",
            executor=Now(),
            notice=lambda: None,
        )

    def _new_producer(self, on_error: Callable[[KafkaError], None]) -> Producer:
        producer = FakeProducer(on_error)
        producer.raises, self.at_first = self.at_first, {}
        self.producers.append(producer)
        return cast("Producer", producer)

    def ask(self, call: Callable[[], None]) -> Answer:
        """Begin a call and take its answer."""
        call()
        answer = self.port.answer()
        assert answer is not None
        return answer


def test_a_new_producer_takes_the_place_of_the_old_one() -> None:
    """What the old one had on its way is given up, and one that only needs more time is asked again."""
    client = Client()
    client.at_first = {"init": [failed(KafkaError._TIMED_OUT, retriable=True)]}
    assert client.ask(client.port.renew).fate is Fate.RETRY
    assert client.ask(client.port.renew).fate is Fate.DONE
    assert [each.calls for each in client.producers] == [["init", "init"]]
    assert client.ask(client.port.renew).fate is Fate.DONE
    assert [each.calls for each in client.producers] == [["init", "init", "purge"], ["init"]]


def test_a_fenced_beginning_is_tried_with_another_producer() -> None:
    """Somebody else took the id in the same moment; a producer that was fenced is of no more use."""
    client = Client()
    client.at_first = {"init": [failed(KafkaError._FENCED, fatal=True)]}
    assert client.ask(client.port.renew).fate is Fate.RENEW
    assert client.ask(client.port.renew).fate is Fate.DONE
    assert len(client.producers) == 2


def test_missing_rights_are_said_with_the_command_that_grants_them() -> None:
    """A worker that may not settle ends with exit 3 and the ACL it needs, before it has run anything."""
    client = Client()
    client.at_first = {"init": [failed(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, fatal=True)]}
    with pytest.raises(UnreachableError) as raised:
        client.ask(client.port.renew)
    assert raised.value.exit_code == 3
    assert "--operation Write --operation Describe --transactional-id laneway-reminders-" in raised.value.mend


def test_a_beginning_that_no_later_try_mends_ends_the_worker() -> None:
    """A timeout that the brokers do not allow is said, not tried for ever."""
    client = Client()
    client.at_first = {"init": [failed(KafkaError.INVALID_TRANSACTION_TIMEOUT, fatal=True)]}
    with pytest.raises(KafkaClientError, match="laneway-reminders-1"):
        client.ask(client.port.renew)


def test_a_record_refused_at_once_is_reported_like_one_refused_later() -> None:
    """Whoever waits for its report gets it; the state of the transaction is nobody's report."""
    client = Client()
    client.ask(client.port.renew)
    client.port.begin()
    [producer] = client.producers
    reports: list[KafkaError | None] = []

    def report(error: KafkaError | None, _: object) -> None:
        reports.append(error)

    too_large = failed(KafkaError.MSG_SIZE_TOO_LARGE)
    in_error = failed(KafkaError._STATE)
    producer.raises = {"produce": [too_large, in_error]}
    assert client.port.produce("dlq", 0, b"k", b"v", (), report).fate is Fate.DONE
    assert client.port.produce("dlq", 0, b"k", b"v", (), report).fate is Fate.RENEW
    assert [error.code() for error in reports if error] == [KafkaError.MSG_SIZE_TOO_LARGE]


@pytest.mark.parametrize(
    ("code", "text", "is_suspect"),
    [
        (KafkaError._TRANSPORT, "broker/1: Disconnected (after 31ms in state UP)", True),
        (KafkaError._TRANSPORT, "broker/1: Connect to x failed: refused (after 0ms in state CONNECT)", False),
        (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down", False),
    ],
)
def test_a_connection_that_broke_makes_the_producer_suspect(code: int, text: str, is_suspect: bool) -> None:
    """Its client repeats what it had sent, without a word: an end may come twice. Shows case 36."""
    client = Client()
    client.ask(client.port.renew)
    client.port.begin()
    client.producers[0].told = [KafkaError(code, text)]
    assert client.ask(client.port.commit).fate is Fate.DONE
    assert client.port.is_suspect is is_suspect
    client.ask(client.port.renew)
    assert not client.port.is_suspect


END = KafkaError._PARTITION_EOF


@pytest.mark.parametrize(
    ("reads", "fate"),
    [
        ([[], [Read(7)]], Fate.DONE),
        ([[Read(9)]], Fate.ABORT),
        ([[Read(9, END)]], Fate.ABORT),
        ([[Read(7, END)], [], [Read(7)]], Fate.DONE),
        ([[Read(7, END)], [Read(8, END)]], Fate.ABORT),
        ([[Read(0, KafkaError._TRANSPORT)], [Read(7)]], Fate.DONE),
        ([[Read(7, END)]], Fate.RETRY),
    ],
    ids=["there", "passed", "ended-behind", "ended-before-then-there", "ended-twice", "broken", "hidden"],
)
def test_what_was_committed_is_read_back(reads: list[list[Any]], fate: Fate) -> None:
    """There, or passed over by whoever reads what is committed; behind an open one nobody can see it yet."""
    client = Client(reads)
    assert client.ask(lambda: client.port.read_back("ledger", 3, 7)).fate is fate
    assert client.reader.is_closed


def test_a_changelog_that_lost_its_end_is_not_read_as_an_answer() -> None:
    """The position is not in the log any more: the worker ends, and its next start restores what there is."""
    client = Client([[Read(7, KafkaError._AUTO_OFFSET_RESET)]])
    with pytest.raises(RefusedError, match=r"cut off, or made anew(.|\n)*start again"):
        client.ask(lambda: client.port.read_back("ledger", 3, 7))


class Member:
    """A consumer that knows who it is in its group."""

    def __init__(self, member: str | None, generation: int) -> None:
        self._member = member
        self._generation = generation

    def memberid(self) -> str | None:
        """Its id."""
        return self._member

    def consumer_group_metadata(self) -> bytes:
        """As confluent-kafka packs it."""
        name = (self._member or "").encode()
        return b"CGMDv2:" + struct.pack("=i", self._generation) + b"group\0" + name + b"\0\1"


@pytest.mark.parametrize(
    ("member", "generation", "may"),
    [("a", 4, True), (None, -1, False), ("", 4, False), ("a", -1, False), ("a", 0, True)],
)
def test_only_a_member_has_a_membership(member: str | None, generation: int, may: bool) -> None:
    """Kafka does not fence offsets of somebody who names no member, or no generation in an empty group."""
    membership = Membership(cast("Consumer", Member(member, generation)))
    assert (membership.metadata() is not None) is may


class Slow(FakeProducer):
    """A producer whose end takes until somebody allows it, as that of one whose brokers have died."""

    may_end = threading.Event()

    def __del__(self) -> None:
        self.may_end.wait(30)


def test_a_producer_whose_end_takes_for_ever_keeps_nobody() -> None:
    """Its own threads are waited for when it goes; the next one has the id meanwhile (case 38)."""
    made: list[Callable[[KafkaError], None]] = []

    def new_producer(on_error: Callable[[KafkaError], None]) -> Producer:
        made.append(on_error)
        return cast("Producer", Slow(on_error))

    port = Transactions(
        "id", new_producer, lambda: cast("Consumer", None), prefix="", executor=Now(), notice=lambda: None
    )
    try:
        for _ in range(2):
            port.renew()
            assert port.answer() == Answer(Fate.DONE)
        assert len(made) == 2
        assert not Slow.may_end.is_set()
    finally:
        Slow.may_end.set()


class Never(Executor):
    """Takes calls that do not come back.

    Args:
        calls: what it was given.
    """

    def __init__(self, calls: list[Callable[..., Any]]) -> None:
        self._calls = calls

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Note it."""
        self._calls.append(fn)
        return Future()


def without_client(executor: Executor, on_stuck: Callable[[], None] | None = None) -> Transactions:
    """One that has nobody to ask."""
    return Transactions(
        "id",
        lambda _: cast("Producer", None),
        lambda: cast("Consumer", None),
        prefix="",
        executor=executor,
        notice=lambda: None,
        on_stuck=on_stuck,
    )


def test_a_client_that_ignores_its_timeouts_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that does not come back ends the worker with a word, and nothing is lost (case 38)."""

    port = without_client(Never([]))
    port.renew()
    assert port.answer() is None
    monkeypatch.setattr(transactions, "HUNG_S", 0.0)
    with pytest.raises(KafkaClientError, match="nothing is lost"):
        port.answer()


def test_a_producer_that_hangs_is_replaced_and_its_outcome_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that never comes back is buried with its producer: a new one fences it (case 38)."""
    calls: list[Callable[..., Any]] = []
    stuck: list[str] = []
    port = without_client(Never(calls), on_stuck=lambda: stuck.append("one more thread"))
    port._producer, port._is_ready = cast("Producer", object()), True
    port.commit()
    assert port.answer() is None
    monkeypatch.setattr(transactions, "HUNG_S", -1.0)
    assert port.answer() == Answer(Fate.RENEW)
    assert stuck == ["one more thread"]
    assert vars(port)["_producer"] is None, "nothing is asked of it any more"
    port.renew()
    assert len(calls) == 2


def test_a_reader_that_hangs_costs_no_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a client of its own: the question is to be put again, and the transaction under way goes on."""
    stuck: list[str] = []
    port = without_client(Never([]), on_stuck=lambda: stuck.append("one more thread"))
    port._producer, port._is_ready = cast("Producer", object()), True
    port.read_back("ledger", 0, 7)
    monkeypatch.setattr(transactions, "HUNG_S", -1.0)
    assert port.answer() == Answer(Fate.RETRY)
    assert stuck == ["one more thread"]
    assert vars(port)["_producer"] is not None


def test_behind_a_renewal_that_hangs_another_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker ends with the reason, and while it drains it may try once more, with another client."""
    calls: list[Callable[..., Any]] = []
    port = without_client(Never(calls), on_stuck=lambda: None)
    port.renew()
    monkeypatch.setattr(transactions, "HUNG_S", -1.0)
    with pytest.raises(KafkaClientError, match="nothing is lost"):
        port.answer()
    port.renew()
    assert len(calls) == 2


def test_a_process_that_was_stopped_calls_no_call_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has not asked for a while, frozen or suspended, gives the call its time once more."""
    now_s = [100.0]
    monkeypatch.setattr(transactions, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    port = without_client(Never([]), on_stuck=lambda: None)
    port._producer, port._is_ready = cast("Producer", object()), True
    port.commit()
    now_s[0] += 600
    assert port.answer() is None
    answers = []
    for _ in range(30):
        now_s[0] += 1
        answers.append(port.answer())
        if answers[-1] is not None:
            break
    assert answers[-1] == Answer(Fate.RENEW)
    assert len(answers) > transactions.HUNG_S
