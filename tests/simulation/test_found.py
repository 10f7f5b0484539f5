"""What the simulation has found in the settling code, each as the smallest story that shows it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, cast

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaError

import laneway
from laneway.consumer.assignment.ownership import Ownership
from laneway.consumer.intake import Intake
from laneway.consumer.journal import Journal
from laneway.consumer.notices import Notices
from laneway.consumer.partition import Partition, State
from laneway.consumer.settler import Settler
from laneway.consumer.settling.local_truth import CommitterPort, LocalTruth, PublisherPort
from laneway.consumer.topics import TopicNames
from laneway.lanes.board import Board
from laneway.lanes.envelope import Envelope, EnvelopeRules
from laneway.lanes.forward import Forwarder, Home
from laneway.lanes.record import Channel, Record
from laneway.lanes.rules import Rules
from laneway.lanes.verdict import ACK, Outcome, Wait
from laneway.store.memory import MemoryLedger
from tests.lanes.driver import Driver, value_of
from tests.simulation.broker import Stored
from tests.simulation.cluster import FakeMessage
from tests.simulation.plan import make_plan
from tests.simulation.world import happen


class Queue:
    """An executor that gets to nothing by itself."""

    def __init__(self) -> None:
        self.calls: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Queue a call."""
        future: Future[Any] = Future()
        self.calls.append((future, call))
        return future

    def run(self) -> None:
        """Get to all of them."""
        for future, call in self.calls:
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asks the future
                future.set_exception(error)


class Nothing:
    """A producer and a group that are never asked for anything."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of a partition that has gone")

    def reports(self) -> list[Any]:
        """Nothing was sent."""
        return []


class Silence:
    """A journal without a reader."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def test_a_partition_may_leave_before_its_sync_has_begun() -> None:
    """A drain whose time is over closes the ledger; the sync that comes later concerns nobody (seed 40)."""
    partition = _partition()
    ledger = MemoryLedger()
    partition.ledger = ledger
    partition.board = _board(partition, ledger)
    partition.state = State.DRAINING
    garbage = Record(Channel.SOURCE, 0, b"k", b"\xff")
    garbage.fault = "undecodable"
    partition.board.admit([garbage], 0)
    queue = Queue()
    truth = LocalTruth(
        publisher=cast("PublisherPort", Nothing()),
        committer=cast("CommitterPort", Nothing()),
        journal=cast("Journal", Silence()),
        notices=Notices(),
        executor=cast("Executor", queue),
        notice=lambda: None,
    )
    settler = Settler(truth, max_ms=1, max_records=1)
    settler.advance([partition], 10, urgent=True)
    was_idle = settler.idle

    ledger.close()
    partition.state = State.CLOSED
    queue.run()
    settler.advance([], 20, urgent=True)

    assert (was_idle, settler.idle) == (False, True), (
        "the cycle waited for its sync, and then went to its end"
    )
    assert partition.failure is None


def test_a_due_time_is_judged_after_the_poll() -> None:
    """A retry made while the poll served a rebalance is not taken for one too far off (seed 17518)."""
    partition = _partition()
    ledger = MemoryLedger()
    partition.board = _board(partition, ledger)
    partition.state = State.LIVE
    clock = [1000]
    retry = Forwarder(partition.home).retry(
        _identified(Record(Channel.SOURCE, 7, b"k", b"{}")),
        attempt=2,
        due_ms=1900,
        reason="later",
        now_ms=1600,
    )

    class Rebalancing:
        def consume(self, limit: int, timeout_s: float) -> list[FakeMessage]:
            clock[0] = 1600
            return [FakeMessage(("retry", 0), 0, Stored(retry.key, retry.value, retry.headers, 5))]

    class OneLive:
        def live(self) -> list[Partition]:
            return [partition]

        def find(self, topic: str, number: int) -> tuple[Partition, Channel]:
            return partition, Channel.RETRY

    intake = Intake(
        cast("Consumer", Rebalancing()),
        cast("Ownership", OneLive()),
        cast("Journal", Silence()),
        {"invoices": Envelope(EnvelopeRules())},
        max_records=10,
        max_bytes=1000,
        longest_delay_ms=300,
        is_low_on_disk=lambda: False,
        clock=lambda: clock[0],
    )
    intake.poll(0)

    assert partition.board.next_due_ms == 1900


def test_a_clock_that_is_set_back_does_not_put_a_lane_to_rest_again() -> None:
    """A lane whose rest is over goes on, also when somebody sets the clock back after that (seed 27278)."""
    answers = [Outcome(Wait(700, "down"), "unavailable")]
    driver = Driver(handler=lambda _: answers.pop() if answers else ACK)
    driver.produce_many("a", 1)
    driver.turn()
    driver.now_ms += 700
    (run,) = driver.hand_out()
    driver.produce_many("a", 2)
    driver.poll()
    driver.now_ms -= 5000
    driver.step(run)
    driver.finish(run)

    driver.work()

    assert driver.effects() == ["a1", "a2"]


def test_a_command_that_comes_as_the_decoder_is_back_is_not_lost() -> None:
    """Commands ask no decoder: they stand beside what is read again in the same poll (seed 110)."""
    partition = _partition()
    partition.board = _board(partition, MemoryLedger())
    partition.state = State.LIVE
    clock = [1000]
    polls = [
        [FakeMessage(("invoices", 0), 0, Stored(b"k", value_of("a", 1), (), 5))],
        [
            FakeMessage(("commands", 0), 0, Stored(b"k", b"garbage", (), 5)),
            FakeMessage(("commands", 0), 1, None, KafkaError._PARTITION_EOF),
        ],
    ]
    downs = [laneway.Unavailable(300)]

    def decode(value: bytes) -> object:
        if downs:
            raise downs.pop()
        return msgspec.json.decode(value)

    class Polled:
        def consume(self, limit: int, timeout_s: float) -> list[FakeMessage]:
            return polls.pop(0)

        def pause(self, places: list[object]) -> None:
            """Nobody looks."""

    class OneLive:
        def live(self) -> list[Partition]:
            return [partition]

        def find(self, topic: str, number: int) -> tuple[Partition, Channel]:
            return partition, Channel.COMMANDS if topic == "commands" else Channel.SOURCE

    intake = Intake(
        cast("Consumer", Polled()),
        cast("Ownership", OneLive()),
        cast("Journal", Silence()),
        {"invoices": Envelope(EnvelopeRules(), decode)},
        max_records=10,
        max_bytes=1000,
        longest_delay_ms=300,
        is_low_on_disk=lambda: False,
        clock=lambda: clock[0],
    )
    intake.poll(0)
    clock[0] += 300
    intake.poll(0)

    assert partition.board.in_memory == 1, "the record of the source waits for a handler"
    cut = partition.board.cut(clock[0])
    assert cut is not None
    assert [done.reason for done in cut.settlements] == ["command-refused"]


def _identified(record: Record) -> Record:
    record.message_id = record.effect_key = "e"
    return record


def _partition() -> Partition:
    return Partition(
        Home("reminders", "invoices", 0),
        TopicNames("invoices", "retry", "commands", "dlq", "review"),
        1,
        dict.fromkeys(Channel, 0),
        dict.fromkeys(Channel),
    )


def _board(partition: Partition, ledger: MemoryLedger) -> Board:
    return Board(
        partition.home,
        Rules(),
        Envelope(EnvelopeRules()),
        ledger,
        ledger.opening(),
        epoch=1,
        writer="w",
        starts=partition.starts,
    )


@pytest.mark.parametrize("seed", [4441, 9098])
def test_histories_that_once_broke_a_promise_keep_it(seed: int) -> None:
    """An abort that was sent twice, and a restore that was cut off: docs/simulation.md tells them."""
    _, broken = happen(make_plan(seed))
    assert broken is None, str(broken)
