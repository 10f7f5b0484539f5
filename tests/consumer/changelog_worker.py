"""Partitions with real boards, the real settler and the real steps of `changelog`, over a fake producer.

The ledgers are the twin in memory, and fail a test when they are given what is not committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from laneway.consumer.journal import Journal
from laneway.consumer.notices import Notices
from laneway.consumer.partition import Partition, State
from laneway.consumer.settler import Settler
from laneway.consumer.settling.changelog_truth import ChangelogTruth
from laneway.consumer.topics import TopicNames
from laneway.errors import LedgerError
from laneway.lanes.board import Board
from laneway.lanes.canonical import payload_hash
from laneway.lanes.envelope import Envelope, EnvelopeRules
from laneway.lanes.forward import Home
from laneway.lanes.record import Channel, Record, keyed_lane
from laneway.lanes.rules import Rules
from laneway.lanes.settlement import Settlement
from laneway.lanes.verdict import ACK, Outcome
from laneway.store import codec
from laneway.store.memory import MemoryLedger
from laneway.store.port import Change, ChangelogMark
from tests.consumer.fake_transactions import (
    FakeMembership,
    FakeTransactions,
)
from tests.lanes.driver import value_of

NAMES = TopicNames("invoices", "retry", "commands", "dlq", "review", "ledger")
RETENTION_MS = 1_000_000


class Told:
    """A journal that remembers what it was told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int, int]] = []

    def settled(self, place: Partition, settlements: Iterable[Settlement]) -> None:
        """Outcomes are true."""
        self.lines += [("saved", place.partition, done.record.offset) for done in settlements]

    def acked(self, place: Partition, settlements: Iterable[Settlement]) -> None:
        """The broker was told."""
        self.lines += [("acked", place.partition, done.record.offset) for done in settlements]

    def flush(self) -> None:
        """Nothing is kept back."""


class WatchedLedger(MemoryLedger):
    """A ledger that must never be ahead of the committed changelog."""

    def __init__(self, transactions: FakeTransactions, number: int) -> None:
        super().__init__()
        self._transactions = transactions
        self._number = number
        self.fails = False

    def apply_changes(self, changes: Any, mark: ChangelogMark) -> None:
        """Take what was committed, and nothing else."""
        log = self._transactions.logs["ledger", self._number]
        there = [(stored.key, stored.value) for stored in log]
        assert there[-len(changes) :] == list(changes), "the ledger is ahead of its changelog"
        assert mark.next_offset == log[-1].offset + 1
        if self.fails:
            raise LedgerError("the disk is full")
        super().apply_changes(changes, mark)


class Worker:
    """Some partitions, their boards and ledgers, and the real settler and strategy over a fake Kafka."""

    def __init__(self, *numbers: int, rules: Rules | None = None) -> None:
        self.kafka = FakeTransactions()
        self.journal = Told()
        self.now_ms = 10_000_000
        self.steps: list[str] = []
        self.rules = rules or Rules(pass_after_reject=True)
        self.envelope = Envelope(EnvelopeRules())
        truth = ChangelogTruth(
            transactions=self.kafka,
            membership=FakeMembership(self.kafka),
            journal=cast("Journal", self.journal),
            notices=Notices(),
            retention_ms=RETENTION_MS,
        )
        self.settler = Settler(truth, max_ms=1, max_records=10_000, crash_point=self.steps.append)
        self.partitions = {number: self._partition(number, epoch) for epoch, number in enumerate(numbers)}

    def _partition(self, number: int, epoch: int) -> Partition:
        starts = dict.fromkeys(Channel, 0)
        partition = Partition(
            Home("reminders", "invoices", number), NAMES, epoch, starts, dict.fromkeys(Channel)
        )
        ledger = WatchedLedger(self.kafka, number)
        partition.ledger = ledger
        partition.board = Board(
            partition.home,
            self.rules,
            self.envelope,
            ledger,
            ledger.opening(),
            epoch=epoch,
            writer="this start",
            starts=starts,
            owner=partition,
        )
        partition.state = State.LIVE
        return partition

    def ledger(self, number: int) -> WatchedLedger:
        """Of one partition."""
        ledger = self.partitions[number].ledger
        assert isinstance(ledger, WatchedLedger)
        return ledger

    def work(self, number: int, *records: tuple[str, int], outcome: Outcome = ACK, first: int = 0) -> None:
        """Handlers come to one outcome for records of a partition, from an offset on."""
        board = self.partitions[number].board
        assert board is not None
        read = []
        for offset, (lane, sequence) in enumerate(records, first):
            record = Record(Channel.SOURCE, offset, b"k", value_of(lane, sequence), (), 5)
            self.envelope.read(record, "invoices", number)
            read.append(record)
        board.admit(read, self.now_ms)
        for run in board.next_runs(10_000, self.now_ms):
            for record in run.records:
                record.payload_hash = payload_hash(record.payload, record.value)
                run.outcomes.append(outcome)
            assert board.settle(run, self.now_ms)

    def owned(self) -> list[Partition]:
        """Those that have not left."""
        return [each for each in self.partitions.values() if each.state is not State.CLOSED]

    def advance(self) -> None:
        """One turn."""
        self.now_ms += 20
        self.settler.advance(self.owned(), self.now_ms)

    def settle(self) -> None:
        """Turns until everything has come to rest."""
        for _ in range(2000):
            self.advance()
            if self.settler.is_through_with(self.owned(), to_the_end=True):
                return
        raise AssertionError(f"it never comes to rest: {self.kafka.calls[-20:]}")

    def changelog(self, number: int) -> list[Change]:
        """Committed entries of one partition."""
        return [(stored.key or b"", stored.value) for stored in self.kafka.logs["ledger", number]]

    def lasts(self, number: int, lane: str) -> list[int]:
        """The numbers that a lane has come to, one for each committed cycle, as the changelog tells."""
        key = codec.lane_key(keyed_lane(lane))
        found = [codec.decode_lane(value) for name, value in self.changelog(number) if name == key and value]
        return [lane.last for lane in found if lane.last is not None]

    def dead_letters(self, number: int = 0) -> list[bytes | None]:
        """Committed values of the DLQ."""
        return [stored.value for stored in self.kafka.logs["dlq", number]]
