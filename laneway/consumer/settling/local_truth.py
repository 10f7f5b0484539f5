"""`replication = "local"`: the truth is the ledger, Kafka follows.

    1 write    entries, meta and the forwards as an outbox: one unsynced batch per ledger
    2 sync     the write-ahead logs reach the disk, off the owner thread; from here it happened
    3 tell     the journal says what was saved
    4 publish  forwards of the outbox, acks=all; one that fails stays, and holds its offset
    5 commit   offsets up to what is durable and published
    6 ack      the journal says what the broker was told; published forwards leave the outbox

A crash before 2 may lose the cycle: nobody was told, the records come again. A crash after 2
loses nothing: reopening sends the outbox again, and what the ledger has settled is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from itertools import chain
from typing import Protocol

from laneway.consumer.journal import Journal
from laneway.consumer.notices import Notices
from laneway.consumer.partition import NOTE_EVERY_MS, Partition, State, Unpublished
from laneway.consumer.settler import Cycle, PartCycle, Step
from laneway.errors import LedgerError
from laneway.lanes.forward import Forward, ForwardKind, stub
from laneway.lanes.record import Channel
from laneway.lanes.settlement import Settlement

log = logging.getLogger("laneway")

PUBLISH_WAIT_MS = 200
RESEND_AFTER_MS = 1000


class Refusal:
    """Why a forward was not published.

    Attributes:
        too_large: no later attempt can succeed with these bytes.
    """

    __slots__ = ("text", "too_large")

    def __init__(self, text: str, *, too_large: bool) -> None:
        self.text = text
        self.too_large = too_large


class Token:
    """Names a forward on its way, so that its delivery report finds back."""

    __slots__ = ("key", "partition")

    def __init__(self, partition: Partition, key: bytes) -> None:
        self.partition = partition
        self.key = key


class PublisherPort(Protocol):
    """Sends forwards; the broker's answer comes as a report."""

    def send(self, topic: str, partition: int | None, forward: Forward, token: Token) -> Refusal | None:
        """Hand a forward to the client; a refusal at once means that no report will come."""
        ...

    def reports(self) -> list[tuple[Token, Refusal | None]]:
        """Delivery reports since the last call. Never blocks."""
        ...


class CommitterPort(Protocol):
    """Commits offsets of the group, one commit at a time.

    A rebalance in progress is "not committed", never an error.
    """

    def begin(self, offsets: Sequence[tuple[str, int, int, str]]) -> None:
        """Send (topic, partition, offset, metadata). Never blocks."""
        ...

    def answer(self) -> set[tuple[str, int]] | None:
        """The topic partitions that were committed; None while there is no answer yet."""
        ...


class LocalTruth:
    """The steps of `local`, over ports.

    Args:
        executor: runs syncs off the owner thread.
        notice: called from its threads when one is done, to wake the owner.
    """

    def __init__(
        self,
        *,
        publisher: PublisherPort,
        committer: CommitterPort,
        journal: Journal,
        notices: Notices,
        executor: Executor,
        notice: Callable[[], None],
    ) -> None:
        self._publisher = publisher
        self._committer = committer
        self._journal = journal
        self._notices = notices
        self._executor = executor
        self._notice = notice
        self._syncing: list[tuple[PartCycle, Future[None]]] | None = None
        self._is_committing = False
        self._asked: list[tuple[Partition, Channel, int]] = []

    @property
    def steps(self) -> Sequence[tuple[str, Step]]:
        """In the order that makes a crash between any two of them harmless."""
        return (
            ("written", self._write),
            ("synced", self._sync),
            ("told", self._tell),
            ("published", self._publish),
            ("committed", self._commit_offsets),
            ("acked", self._ack),
        )

    def is_ready(self, _: int, /) -> bool:
        """At any time."""
        return True

    @property
    def holds_offsets(self) -> bool:
        """Never: a commit stands by itself."""
        return False

    @property
    def is_cut_off(self) -> bool:
        """Never: the ledger is here."""
        return False

    def takes(self, _: Partition, /) -> bool:
        """All of them: what a partition that was lost has settled is true, it is only not told to Kafka."""
        return True

    # 1
    def _write(self, cycle: Cycle) -> bool:
        for part in list(cycle.parts):
            partition, cut = part.partition, part.cut
            assert partition.ledger is not None and partition.board is not None
            if cut is None:
                continue
            forwards = [forward for done in cut.settlements for forward in done.forwards]
            try:
                keys = partition.ledger.apply(
                    chain.from_iterable(done.entries for done in cut.settlements),
                    cut.meta,
                    forwards,
                    partition.published,
                )
            except LedgerError as error:
                self._fail(cycle, part, error)
                continue
            partition.published = []
            for key, forward in zip(keys, forwards, strict=True):
                partition.outbox[key] = Unpublished(forward)
            partition.unacked.extend(cut.settlements)
        return True

    # 2
    def _sync(self, cycle: Cycle) -> bool:
        if self._syncing is None:
            self._syncing = []
            for part in cycle.parts:
                if part.cut is not None and part.partition.ledger is not None:
                    future = self._executor.submit(part.partition.ledger.sync)
                    future.add_done_callback(lambda _: self._notice())
                    self._syncing.append((part, future))
        if not all(future.done() for _, future in self._syncing):
            return False
        for part, future in self._syncing:
            if part.partition.state is State.CLOSED:
                # It left meanwhile. Closing its ledger has synced it; a sync that came later was refused.
                continue
            error = future.exception()
            if error is None:
                assert part.cut is not None and part.partition.board is not None
                part.partition.board.committed(part.cut)
                for channel, mark in part.cut.meta.marks.items():
                    part.partition.durable[channel] = mark.frontier
            elif isinstance(error, LedgerError):
                self._fail(cycle, part, error)
            else:
                raise error
        self._syncing = None
        return True

    # 3
    def _tell(self, cycle: Cycle) -> bool:
        for part in cycle.parts:
            if part.cut is not None:
                self._journal.settled(part.partition, part.cut.settlements)
                self._notices.tell(part.partition, part.cut.settlements, cycle.now_ms)
        self._journal.flush()
        return True

    # 4
    def _publish(self, cycle: Cycle) -> bool:
        now_ms = cycle.now_ms
        self._take_reports(now_ms)
        waits = False
        for part in cycle.parts:
            if not part.partition.lost:
                waits |= self._send_outbox(part.partition, now_ms)
        # A broker that refuses writes must not hold up other lanes: what is late stays in the outbox.
        return not waits or now_ms - cycle.since_ms >= PUBLISH_WAIT_MS

    # 5
    def _commit_offsets(self, cycle: Cycle) -> bool:
        if not self._is_committing:
            offsets = []
            for part in cycle.parts:
                if not part.partition.lost:
                    offsets += self._offsets_of(part.partition, cycle.now_ms)
            if not offsets:
                return True
            self._committer.begin(offsets)
            self._is_committing = True
        committed = self._committer.answer()
        if committed is None:
            return False
        for partition, channel, offset in self._asked:
            if (partition.topic_of(channel), partition.partition) in committed:
                if partition.committed.get(channel) != offset and channel is Channel.SOURCE:
                    partition.moved_ms = cycle.now_ms
                partition.committed[channel] = offset
        self._asked = []
        self._is_committing = False
        return True

    # 6
    def _ack(self, cycle: Cycle) -> bool:
        for part in cycle.parts:
            partition = part.partition
            if partition.lost:
                continue
            current = all(
                partition.committed.get(channel) == partition.committable(channel)
                for channel in partition.durable
            )
            if current and partition.unacked:
                owed = {entry.forward.forward_id for entry in partition.outbox.values()}
                ready = [
                    done
                    for done in partition.unacked
                    if not any(forward.forward_id in owed for forward in done.forwards)
                ]
                self._journal.acked(partition, ready)
                partition.unacked = (
                    [] if len(ready) == len(partition.unacked) else _without(partition.unacked, ready)
                )
            if partition.published and partition.board is not None and partition.ledger is not None:
                # Unsynced: losing this only sends a forward again, with the same id.
                try:
                    partition.ledger.clear_outbox(partition.published)
                    partition.published = []
                except LedgerError as error:
                    partition.failure = error
        self._journal.flush()
        return True

    def _send_outbox(self, partition: Partition, now_ms: int) -> bool:
        """Send what may be sent; whether a report is still to come that is worth waiting for."""
        waiting = False
        # News of one case must arrive in order, so a later one waits behind an earlier.
        behind: set[str] = set()
        flying = _Flying(partition.outbox.values())
        for key, entry in partition.outbox.items():
            order_key = entry.forward.order_key
            in_order = not order_key or order_key not in behind
            if order_key:
                behind.add(order_key)
            if entry.in_flight:
                waiting = True
            elif in_order and now_ms >= entry.retry_at_ms and flying.takes(entry):
                topic, number = partition.target_of(entry.forward)
                refusal = self._publisher.send(topic, number, entry.forward, Token(partition, key))
                if refusal is None:
                    entry.in_flight = waiting = True
                else:
                    self._refused(partition, entry, refusal, now_ms)
        return waiting

    def _take_reports(self, now_ms: int) -> None:
        for token, refusal in self._publisher.reports():
            entry = token.partition.outbox.get(token.key)
            if entry is None:
                continue
            entry.in_flight = False
            if refusal is None:
                del token.partition.outbox[token.key]
                token.partition.published.append(token.key)
            else:
                self._refused(token.partition, entry, refusal, now_ms)

    def _refused(self, partition: Partition, entry: Unpublished, refusal: Refusal, now_ms: int) -> None:
        forward = entry.forward
        if refusal.too_large and not entry.alone:
            # A batch was refused, which says nothing of each forward in it.
            entry.alone = True
            return
        if refusal.too_large and forward.kind is ForwardKind.DLQ and not entry.stubbed:
            # One oversized dead letter must not hold its partition: position and hash are enough to find it.
            entry.forward = stub(forward)
            entry.stubbed = True
            log.warning(
                "%s: dead letter of offset %d is too large, sent as a stub", partition, forward.offset
            )
            return
        entry.retry_at_ms = now_ms + RESEND_AFTER_MS
        topic, _ = partition.target_of(forward)
        log.warning(
            "%s: cannot publish to %s yet (%s); offset %d is held, other lanes go on",
            partition,
            topic,
            refusal.text,
            forward.offset,
        )

    def _offsets_of(self, partition: Partition, now_ms: int) -> list[tuple[str, int, int, str]]:
        offsets = []
        note = partition.note()
        stale = note != partition.committed_note and now_ms - partition.noted_ms >= NOTE_EVERY_MS
        for channel in partition.durable:
            offset = partition.committable(channel)
            before = partition.committed.get(channel)
            # The ledger may be ahead of an offset that an operator has set back; it is never behind.
            if before is not None and offset < before:
                continue
            source = channel is Channel.SOURCE
            if offset != before or (source and stale):
                shown = note if source else ""
                offsets.append((partition.topic_of(channel), partition.partition, offset, shown))
                self._asked.append((partition, channel, offset))
                if source:
                    partition.committed_note, partition.noted_ms = note, now_ms
        return offsets

    def _fail(self, cycle: Cycle, part: PartCycle, error: LedgerError) -> None:
        part.partition.failure = error
        cycle.parts.remove(part)


class _Flying:
    """Which forwards of one outbox may be sent now: one that travels alone shares its topic with none."""

    __slots__ = ("_alone", "_any")

    def __init__(self, outbox: Iterable[Unpublished]) -> None:
        flying = [entry for entry in outbox if entry.in_flight]
        self._any = {entry.forward.kind for entry in flying}
        self._alone = {entry.forward.kind for entry in flying if entry.alone}

    def takes(self, entry: Unpublished) -> bool:
        """Whether it may go; asked in the outbox's order, and a yes counts it as sent."""
        kind = entry.forward.kind
        if kind in self._alone:
            return False
        if entry.alone:
            # Later ones wait too, or its turn would never come.
            self._alone.add(kind)
            if kind in self._any:
                return False
        self._any.add(kind)
        return True


def _without(settlements: list[Settlement], gone: list[Settlement]) -> list[Settlement]:
    left = {id(done) for done in gone}
    return [done for done in settlements if id(done) not in left]
