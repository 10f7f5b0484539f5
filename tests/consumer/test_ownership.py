"""Ownership: whose ledger is open when, across assignments. Over a fake group and a fake opener."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, TopicPartition

import laneway.consumer.assignment.ownership as ownership_module
from laneway.consumer.assignment.opening import Opened
from laneway.consumer.assignment.ownership import KEEP_OPEN_S, Ownership
from laneway.consumer.partition import Partition, State
from laneway.consumer.topics import TopicNames
from laneway.errors import LedgerError, LedgerFormatError
from laneway.lanes.board import Board
from laneway.lanes.record import Channel
from laneway.lanes.view import Opening
from laneway.store.memory import MemoryLedger
from laneway.store.port import LedgerStore

NAMES = TopicNames("s", retry="s.r", commands="s.c", dlq="s.d", review="s.v", ledger="s.l")
COMMITTED = {("s", 0): 7, ("s.c", 0): 3}


class Group:
    """A consumer whose group gives and takes when the test says so. Every log holds offsets 2 to 9."""

    def __init__(self) -> None:
        self.assigned: dict[tuple[str, int], int] = {}
        self.paused: set[tuple[str, int]] = set()
        self.hooks: dict[str, Callable[..., None]] = {}

    def subscribe(self, _: list[str], **hooks: Callable[..., None]) -> None:
        self.hooks = hooks

    def assign(self, positions: list[TopicPartition]) -> None:
        self.assigned = {(tp.topic, tp.partition): tp.offset for tp in positions}

    def incremental_assign(self, positions: list[TopicPartition]) -> None:
        self.assigned |= {(tp.topic, tp.partition): tp.offset for tp in positions}

    def unassign(self) -> None:
        self.assigned = {}

    def incremental_unassign(self, positions: list[TopicPartition]) -> None:
        for tp in positions:
            del self.assigned[tp.topic, tp.partition]

    def pause(self, positions: list[TopicPartition]) -> None:
        self.paused |= {(tp.topic, tp.partition) for tp in positions}

    def resume(self, positions: list[TopicPartition]) -> None:
        self.paused -= {(tp.topic, tp.partition) for tp in positions}

    def committed(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return [
            TopicPartition(tp.topic, tp.partition, COMMITTED.get((tp.topic, tp.partition), -1001))
            for tp in asked
        ]

    def get_watermark_offsets(self, _: TopicPartition, timeout: float) -> tuple[int, int]:
        return 2, 10


class Ledger(MemoryLedger):
    """One that tells whether it is open, and may refuse to close."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = True
        self.refuses = False

    def close(self) -> None:
        self.is_open = False
        if self.refuses:
            raise LedgerError("the disk refused")
        super().close()


class Opener:
    """Opens at once, and remembers what it was handed."""

    def __init__(self, *, keeps_open: bool = True) -> None:
        self.keeps_open = keeps_open
        self.opened: list[tuple[Partition, LedgerStore | None]] = []
        self.damaged: list[Partition] = []

    def has_ledger(self, _: str, __: int) -> bool:
        return False

    def open(self, partition: Partition, kept: LedgerStore | None) -> Opened:
        self.opened.append((partition, kept))
        return kept or Ledger(), Opening(None, {}, (), ())

    def is_store_of(self, partition: Partition, where: str) -> bool:
        return where == f"store of {partition}"

    def found_damaged(self, partition: Partition, _: LedgerFormatError) -> None:
        self.damaged.append(partition)


class AtOnce:
    """An executor without threads."""

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*args))
        return future


class Process:
    """The owner thread around an ownership, as far as it matters here."""

    def __init__(self, opener: Opener, *, incremental: bool = False) -> None:
        self.group = Group()
        self.opener = opener
        self.running = 0
        self.ownership = Ownership(
            cast("Consumer", self.group),
            "g",
            {"s": NAMES},
            {"s": 4},
            opener,
            cast("Executor", AtOnce()),
            self._board,
            self._leave,
            lambda: None,
            incremental=incremental,
            start="earliest",
        )
        self.ownership.subscribe()

    def assign(self, *numbers: int) -> None:
        """The group gives these, and they go live."""
        self.group.hooks["on_assign"](None, [TopicPartition("s", number) for number in numbers])
        self.ownership.advance()

    def revoke(self, *numbers: int, how: str = "on_revoke") -> None:
        """The group takes these."""
        self.group.hooks[how](None, [TopicPartition("s", number) for number in numbers])

    def ledger(self, number: int = 0) -> Ledger:
        """The ledger that a live partition has."""
        found = next(p.ledger for p in self.ownership.live() if p.partition == number)
        return cast("Ledger", found)

    def _board(self, *_: object) -> Board:
        return cast("Board", SimpleNamespace(running=self.running, in_memory=0))

    def _leave(self, going: Sequence[Partition], lost: bool) -> None:
        for partition in going:
            partition.lost = lost
            self.ownership.let_go(partition)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Monotonic seconds, in a list of one."""
    clock = [100.0]
    time = SimpleNamespace(monotonic=lambda: clock[0], time_ns=lambda: 0, sleep=lambda _: None)
    monkeypatch.setattr(ownership_module, "time", time)
    return iter([clock])


def test_the_three_channels_live_together() -> None:
    """Commands are read from their committed offset, retries without one from the beginning of their log."""
    process = Process(Opener())
    process.assign(0)
    assert process.group.assigned == {("s", 0): 7, ("s.r", 0): 2, ("s.c", 0): 3}
    assert not process.group.paused
    (partition,) = process.ownership.live()
    assert partition.durable == {Channel.SOURCE: 7, Channel.RETRY: 2, Channel.COMMANDS: 3}


def test_a_ledger_stays_open_across_an_eager_rebalance() -> None:
    """Revoked and given back at once: the same open ledger is handed to the opener, in a new ownership."""
    process = Process(Opener())
    process.assign(0, 1)
    kept, other = process.ledger(0), process.ledger(1)
    process.revoke(0, 1)
    assert kept.is_open
    process.assign(0)

    assert process.ledger(0) is kept
    assert not other.is_open, "what went elsewhere was let go of at once"
    (first, _), (_, _), (second, handed) = process.opener.opened
    assert handed is kept
    assert (first.state, second.state) == (State.CLOSED, State.LIVE)
    assert second.epoch > first.epoch


def test_a_ledger_is_not_kept_for_long(now: Iterator[list[float]]) -> None:
    """Another process of this machine may have the partition, and waits for the lock."""
    clock = next(now)
    process = Process(Opener())
    process.assign(0)
    ledger = process.ledger()
    process.revoke(0)
    clock[0] += KEEP_OPEN_S
    process.ownership.advance()
    assert ledger.is_open
    clock[0] += 0.1
    process.ownership.advance()
    assert not ledger.is_open


@pytest.mark.parametrize(
    ("opener", "incremental", "how"),
    [
        (Opener(keeps_open=False), False, "on_revoke"),
        (Opener(), True, "on_revoke"),
        (Opener(), False, "on_lost"),
    ],
    ids=["local", "taken-one-by-one", "lost"],
)
def test_a_ledger_that_will_not_come_back_is_closed(opener: Opener, incremental: bool, how: str) -> None:
    """The lock of a local ledger is its fence; what the group takes by itself, or has lost, stays away."""
    process = Process(opener, incremental=incremental)
    process.assign(0)
    ledger = process.ledger()
    process.revoke(0, how=how)
    assert not ledger.is_open


def test_a_process_that_leaves_keeps_nothing() -> None:
    """A stop lets go of the ledgers at once, of those in between as well."""
    process = Process(Opener())
    process.assign(0, 1)
    stopped, between = process.ledger(0), process.ledger(1)
    process.revoke(1)
    for partition in process.ownership.owned():
        process.ownership.let_go(partition)
    assert not stopped.is_open
    assert between.is_open
    process.ownership.close()
    assert not between.is_open


def test_a_kept_ledger_that_cannot_be_closed_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It follows its changelog, so what it has not taken is read again: a warning is enough."""
    process = Process(Opener())
    process.assign(0)
    process.ledger().refuses = True
    process.revoke(0)
    process.assign(1)
    assert [p.partition for p in process.ownership.live()] == [1]
    assert "the disk refused" in caplog.text


def test_a_partition_waits_for_the_handler_of_its_last_ownership(now: Iterator[list[float]]) -> None:
    """Never two handlers for one lane in a process, whatever became of the store meanwhile."""
    clock = next(now)
    process = Process(Opener())
    process.running = 1
    process.assign(0)
    (first,) = process.ownership.live()
    process.revoke(0)
    process.assign(0)
    assert process.ownership.live() == []
    assert len(process.opener.opened) == 1

    cast("Any", first.board).running = 0
    process.ownership.tidy()
    clock[0] += 1
    process.ownership.advance()
    process.ownership.advance()
    assert len(process.ownership.live()) == 1


def test_a_damaged_store_is_told_to_the_opener() -> None:
    """What ends the worker was one partition's store: that one is not opened again as it is, and no other."""
    process = Process(Opener())
    process.assign(0, 1)
    damaged = process.ownership.owned()[1]
    process.ownership.blame(LedgerError("the disk refused", where="store of s-0"))
    process.ownership.blame(LedgerFormatError("the store is damaged", where="store of s-1"))
    process.revoke(0, 1)
    assert process.opener.damaged == [damaged]
