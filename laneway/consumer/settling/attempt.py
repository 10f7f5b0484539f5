"""One transaction as a value: its records in order, and what was said of each.

    forwards, partition by partition, in the order of their settlements
    changelog entries, partition by partition, the meta entry last

An attempt belongs to one transaction and is thrown away with it: reports of an earlier one find their own.
Nothing here calls Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import KafkaError, Message

from laneway.consumer.kafka.errors import ErrorClass, by_code
from laneway.consumer.settler import PartCycle
from laneway.consumer.settling.transactions import Answer, Fate, Offsets, Report, is_own_fault
from laneway.lanes.forward import Forward, ForwardKind, stub
from laneway.lanes.record import Channel
from laneway.lanes.settlement import Settlement
from laneway.store.port import Change

log = logging.getLogger("laneway")


@dataclass(slots=True, eq=False)
class Share:
    """What one partition brings.

    Attributes:
        changes: entries of the changelog, the meta entry last. That one goes with every transaction: so no
            offset of a worker is ever committed beside an empty changelog, and any end can be read back.
        meta_offset: where the meta entry stands in the changelog; -1 until that is known.
        settled, note: what the group is told: offsets by channel, and the note beside the source's.
    """

    part: PartCycle
    changes: list[Change]
    meta_offset: int = -1
    meta_error: KafkaError | None = None
    note: str = ""
    settled: dict[Channel, int] = field(default_factory=dict)

    def on_meta(self, error: KafkaError | None, message: Message | None) -> None:
        """The report of the meta entry."""
        self.meta_error = error
        offset = message.offset() if error is None and message is not None else None
        self.meta_offset = -1 if offset is None else offset

    def offsets(self) -> Offsets:
        """Where each channel stands once this is committed; none goes back."""
        partition, marks = self.part.partition, self.part.meta.marks
        self.note = partition.note()
        for channel, durable in partition.durable.items():
            mark = marks.get(channel)
            settled = durable if mark is None else mark.frontier
            # The ledger may be behind what an operator has set; it is never told to go back.
            self.settled[channel] = max(settled, partition.committed.get(channel) or 0)
        return [
            (
                partition.topic_of(channel),
                partition.partition,
                offset,
                self.note if channel is Channel.SOURCE else "",
            )
            for channel, offset in self.settled.items()
        ]


@dataclass(slots=True, eq=False)
class Forwarded:
    """A forward on its way."""

    part: PartCycle
    settlement: Settlement
    forward: Forward
    error: KafkaError | None = None

    def on_report(self, error: KafkaError | None, _: Message | None) -> None:
        """What became of it."""
        self.error = error


class Misfits:
    """Forwards that were refused as too large while one cycle was tried, and how else they may go."""

    def __init__(self) -> None:
        self._alone: set[str] = set()
        self._stubs: dict[str, Forward] = {}

    def is_alone(self, forward: Forward) -> bool:
        """Whether it travels in no batch with others any more."""
        return forward.forward_id in self._alone

    def as_sent(self, forward: Forward) -> Forward:
        """The forward, or the stub that goes in its place."""
        return self._stubs.get(forward.forward_id, forward)

    def fits_another_way(self, entry: Forwarded) -> bool:
        """Whether one that was refused may go by itself, or as a stub, the next time."""
        forward = entry.forward
        if entry.error is None or by_code(entry.error) is not ErrorClass.TOO_LARGE:
            return False
        if forward.forward_id not in self._alone:
            # A batch was refused, which says nothing of each forward in it.
            self._alone.add(forward.forward_id)
            return True
        if forward.kind is not ForwardKind.DLQ or forward.forward_id in self._stubs:
            return False
        # One oversized dead letter must not hold its lane: position and hash are enough to find it.
        self._stubs[forward.forward_id] = stub(forward)
        log.warning(
            "%s: dead letter of offset %d is too large, sent as a stub",
            entry.part.partition,
            entry.settlement.record.offset,
        )
        return True


class Records(Protocol):
    """Takes records; see `transactions.Transactions`."""

    def produce(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        report: Report | None = None,
    ) -> Answer:
        """One record."""
        ...

    def produce_entries(
        self, topic: str, partition: int, changes: Sequence[Change], first: int, end: int
    ) -> tuple[int, Answer]:
        """Some of the changes; which is the next, and why it did not go."""
        ...


class Attempt:
    """One transaction on its way.

    Attributes:
        flaw: what makes it impossible to commit; None as far as is known.
    """

    __slots__ = ("_at", "_entry", "_forwarded", "_records", "_share", "flaw", "shares")

    def __init__(self) -> None:
        self.shares: list[Share] = []
        self.flaw: KafkaError | None = None
        self._forwarded: list[Forwarded] = []
        # What goes first. None among them: what stands before must be delivered before the next.
        self._records: list[Forwarded | None] = []
        self._at = 0
        # And the changelog entries behind: the share they belong to, and the next of it.
        self._share = 0
        self._entry = 0

    def add(self, part: PartCycle, changes: list[Change], misfits: Misfits) -> None:
        """Take a partition's part of the cycle."""
        self.shares.append(Share(part, changes))
        for done in part.cut.settlements if part.cut is not None else ():
            for forward in done.forwards:
                entry = Forwarded(part, done, misfits.as_sent(forward))
                self._forwarded.append(entry)
                self._records += (None, entry, None) if misfits.is_alone(forward) else (entry,)

    def produce(self, transactions: Records) -> None:
        """Hand over as many as go now: to one that travels alone, to a full queue, or all of them."""
        if self._produce_forwards(transactions.produce):
            self._produce_entries(transactions)

    @property
    def has_more(self) -> bool:
        """Whether some are still to be handed over."""
        return self._share < len(self.shares)

    def _produce_forwards(self, produce: Callable[..., Answer]) -> bool:
        """Whether the entries may follow."""
        first = self._at
        while self._at < len(self._records):
            entry = self._records[self._at]
            if entry is not None:
                if not self._went(produce(*_record(entry))):
                    return False
            elif self._at > first:
                self._at += 1
                return False
            self._at += 1
        return True

    def _produce_entries(self, transactions: Records) -> None:
        while self._share < len(self.shares):
            share = self.shares[self._share]
            topic, number = share.part.partition.names.ledger, share.part.partition.partition
            last = len(share.changes) - 1
            if self._entry < last:
                # Without a report each: those cost more than all the rest of a record.
                self._entry, answer = transactions.produce_entries(
                    topic, number, share.changes, self._entry, last
                )
                if not self._went(answer):
                    return
            key, value = share.changes[last]
            if not self._went(transactions.produce(topic, number, key, value, None, share.on_meta)):
                return
            self._share, self._entry = self._share + 1, 0

    def _went(self, answer: Answer) -> bool:
        if answer.fate not in (Fate.DONE, Fate.RETRY):
            self.flaw = answer.error
        return answer.fate is Fate.DONE

    def refused(self) -> list[Forwarded]:
        """Forwards that their topics do not take, when all have been reported. Sets `flaw` besides.

        One that timed out while the changelog was not written either says nothing of its topic: then it is
        the cluster that is away, and it makes no sense to hold anybody back.
        """
        errors = [share.meta_error for share in self.shares if share.meta_error is not None]
        failed = [(entry, entry.error) for entry in self._forwarded if entry.error is not None]
        if self.flaw is None:
            own = [error for error in errors if is_own_fault(error)]
            self.flaw = next(iter((*own, *errors, *(error for _, error in failed))), None)
        return [
            entry
            for entry, error in failed
            if is_own_fault(error) and not (errors and by_code(error) is ErrorClass.UNREACHABLE)
        ]

    def witness(self, here: list[PartCycle]) -> Share | None:
        """A partition that is still ours, whose meta entry tells whether this was committed.

        Ours, because then nobody else can have written one behind it, for compaction to keep.
        """
        return next((s for s in self.shares if s.part in here and not s.part.partition.lost), None)


def _record(entry: Forwarded) -> tuple[Any, ...]:
    forward = entry.forward
    topic, number = entry.part.partition.target_of(forward)
    partition = -1 if number is None else number
    return (topic, partition, forward.key, forward.value, forward.headers, entry.on_report)
