"""Ownership: what happens when partitions come and go.

The group subscribes to the sources only; the retry and commands partitions are added here to each
source partition, so they always live together whatever the assignor did.

    assign   bump the epoch, note where reading starts, keep everything paused, return
    open     off the owner thread: the ledger, waiting while another process holds its lock
    live     build the board, take the outbox back, resume
    revoke   let what runs finish and settle, close the ledger, let go
    lost     the same, but nothing is published or committed any more
    linger   a handler is still running in a partition that has gone: its ledger stays open, and with
             it the lock, until the handler ends; in `local` mode that lock is the only fence
    keep     an eager rebalance takes everything and mostly gives it back: a ledger that follows its
             changelog stays open for that moment, and is brought up to date again before it goes live
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from laneway.consumer.assignment.opening import Opened, Opener
from laneway.consumer.kafka.errors import ErrorClass, classify, kafka_errors, to_laneway
from laneway.consumer.partition import Partition, State, Unpublished, read_reset, reset_line
from laneway.consumer.shape import other_count
from laneway.consumer.topics import TopicNames
from laneway.errors import LanewayError, LedgerError, LedgerFormatError, LedgerLockedError, RefusedError
from laneway.lanes.board import Board
from laneway.lanes.forward import Home
from laneway.lanes.record import Channel
from laneway.lanes.view import Opening
from laneway.store.port import LedgerStore

log = logging.getLogger("laneway")

ASK_TIMEOUT_S: Final = 10.0
ASK_FOR_S: Final = 30.0
ASK_AGAIN_S: Final = 0.05
WAKE_TIMEOUT_S: Final = 0.01
LOCK_POLL_S: Final = 0.05
LOCK_NOTICE_S: Final = 5.0
JOIN_NOTICE_S: Final = 5.0
KEEP_OPEN_S: Final = 5.0
"""How long a ledger stays open without an owner: another process on this machine may wait for its lock."""
AT_WORK_S: Final = 1.0
"""How long after its last record a process counts as busy, for restores to go easy on it."""

PASSING: Final = frozenset({ErrorClass.UNREACHABLE, ErrorClass.RETRIABLE, ErrorClass.MISSING})
"""What is asked again inside a rebalance, for a while: the topics were all there at the start."""

_T = TypeVar("_T")
BuildBoard = Callable[[Partition, LedgerStore, Opening], Board]
Leave = Callable[[Sequence[Partition], bool], None]
"""(partitions that leave, whether they are lost): drains them, before the callback returns."""


class Ownership:
    """The partitions of this process. Belongs to the owner thread, which the callbacks run on.

    Args:
        names: the companion topics by source.
        partitions: their number by source, as it was when the worker was built.
        opener: opens their ledgers, on a thread of the executor.
        incremental: the group protocol hands partitions over one by one.
        start: where a group without a commit begins: "earliest", "latest" or epoch ms.
    """

    def __init__(
        self,
        consumer: Consumer,
        group: str,
        names: dict[str, TopicNames],
        partitions: Mapping[str, int],
        opener: Opener,
        executor: Executor,
        build_board: BuildBoard,
        leave: Leave,
        notice: Callable[[], None],
        *,
        incremental: bool,
        start: str | int,
    ) -> None:
        self._consumer = consumer
        self._group = group
        self._names = names
        self._partitions = partitions
        self._opener = opener
        self._executor = executor
        self._build_board = build_board
        self._leave = leave
        self._notice = notice
        self._incremental = incremental
        self._start = start
        self._epoch = 0
        self._joining_since_s = 0.0
        self._worked_s = float("-inf")
        self._owned: dict[tuple[str, int], Partition] = {}
        self._places: dict[tuple[str, int], tuple[Partition, Channel]] = {}
        self._opening: dict[Partition, Future[Opened]] = {}
        self._locked: list[tuple[Partition, float]] = []
        self._lingering: list[Partition] = []
        self._kept: dict[tuple[str, int], tuple[LedgerStore, float]] = {}
        self._is_revoking = False
        self._failure: LanewayError | None = None

    # -- what the owner asks

    def subscribe(self) -> None:
        """Join the group."""
        log.info("joining group %s", self._group)
        self._joining_since_s = time.monotonic()
        with kafka_errors("subscribe"):
            self._consumer.subscribe(
                list(self._names),
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )

    def find(self, topic: str | None, number: int | None) -> tuple[Partition, Channel] | None:
        """Whose position this is now; None when nobody's here."""
        return self._places.get((topic, number))  # type: ignore[arg-type]

    def live(self) -> list[Partition]:
        """The partitions that read and run."""
        live = State.LIVE
        return [partition for partition in self._owned.values() if partition.state is live]

    def owned(self) -> list[Partition]:
        """All partitions assigned now, in whatever state."""
        return list(self._owned.values())

    @property
    def lingering(self) -> list[Partition]:
        """Partitions that have gone while a handler of theirs still runs."""
        return self._lingering

    def failure(self) -> LanewayError | None:
        """The first thing that stops a partition for good, or None."""
        if self._failure is not None:
            return self._failure
        for partition in self._owned.values():
            if partition.failure is not None:
                return partition.failure
        return None

    def advance(self) -> None:
        """Take partitions live whose ledgers have been opened; try again those that were locked."""
        self._try_locked_again()
        self._close_kept(lambda _, until_s: time.monotonic() > until_s)
        if self._joining_since_s and time.monotonic() - self._joining_since_s > JOIN_NOTICE_S:
            self._joining_since_s = 0.0
            log.info(
                "group %s has not assigned anything yet; a member that died may have to time out first "
                "(session.timeout.ms)",
                self._group,
            )
        is_beside_work = bool(self._opening) and self._is_at_work()
        for partition, future in list(self._opening.items()):
            partition.opens_beside_work = is_beside_work
            if not future.done():
                continue
            del self._opening[partition]
            error = future.exception()
            if partition.state is State.CLOSED:
                if error is None:
                    future.result()[0].close()
            elif isinstance(error, LedgerLockedError):
                self._locked.append((partition, time.monotonic() + LOCK_POLL_S))
            elif error is None:
                self._go_live(partition, *future.result())
            elif isinstance(error, LanewayError):
                partition.failure = error
            else:
                raise error

    def _is_at_work(self) -> bool:
        """Whether records are in hand, or just were: a busy partition has none between two batches."""
        now_s = time.monotonic()
        if any(p.board is not None and p.board.in_memory for p in self.live()):
            self._worked_s = now_s
        return now_s - self._worked_s < AT_WORK_S

    def let_go(self, partition: Partition) -> None:
        """A partition is over: close its ledger, unless a handler still runs in it."""
        partition.state = State.CLOSED
        if partition.board is not None and partition.board.running:
            self._lingering.append(partition)
        elif partition.ledger is not None:
            ledger, partition.ledger = partition.ledger, None
            if self._may_keep(partition):
                place = (partition.topic, partition.partition)
                self._kept[place] = (ledger, time.monotonic() + KEEP_OPEN_S)
            else:
                self._shut(partition, ledger)

    def close(self) -> None:
        """Close what is open without an owner. The process ends, and nobody asks `advance` any more."""
        self._close_kept(lambda _, __: True)
        for future in self._opening.values():
            if future.done() and future.exception() is None:
                with suppress(LedgerError):
                    future.result()[0].close()
        self._opening.clear()

    def blame(self, error: LanewayError) -> None:
        """What ends the worker may be the damaged store of one partition: then that one has failed by it."""
        if isinstance(error, LedgerFormatError):
            for partition in self._owned.values():
                if partition.failure is None and self._opener.is_store_of(partition, error.where):
                    partition.failure = error

    def _shut(self, partition: Partition, ledger: LedgerStore) -> None:
        try:
            ledger.close()
        finally:
            if isinstance(partition.failure, LedgerFormatError) and partition.board is not None:
                self._opener.found_damaged(partition, partition.failure)

    def _may_keep(self, partition: Partition) -> bool:
        """Whether the next assignment may have it again, of a group that takes all to give it anew."""
        is_given_anew = self._is_revoking and not self._incremental
        return is_given_anew and self._opener.keeps_open and partition.failure is None

    def _close_kept(self, is_over: Callable[[tuple[str, int], float], bool]) -> None:
        for place, (ledger, until_s) in list(self._kept.items()):
            if is_over(place, until_s):
                del self._kept[place]
                try:
                    ledger.close()
                except LedgerError as error:
                    # It follows its changelog: what it did not take is read again.
                    log.warning("while a ledger was closed: %s", error)

    def tidy(self) -> None:
        """Close the ledgers of partitions whose last handler has ended."""
        for partition in list(self._lingering):
            if partition.board is None or not partition.board.running:
                self._lingering.remove(partition)
                if partition.ledger is not None:
                    ledger, partition.ledger = partition.ledger, None
                    self._shut(partition, ledger)

    # -- callbacks; they run inside poll

    def _on_assign(self, _: Consumer, assigned: list[TopicPartition]) -> None:
        self._joining_since_s = 0.0
        sources = [(tp.topic, tp.partition) for tp in assigned if tp.topic in self._names]
        try:
            partitions = self._found(sources)
        except LanewayError as error:
            # The worker ends on it; the assignment is taken without positions so that it can leave.
            self._failure = error
            return
        self._close_kept(lambda place, _: place not in sources)
        union = [position for partition in partitions for position in _positions(partition)]
        with kafka_errors("assign"):
            if self._incremental:
                self._consumer.incremental_assign(union)
            else:
                self._consumer.assign(union)
            if union:
                self._consumer.pause(union)
        for partition in partitions:
            self._owned[partition.topic, partition.partition] = partition
            for channel in Channel:
                self._places[partition.topic_of(channel), partition.partition] = (partition, channel)
            self._start_opening(partition)
        log.info("assigned: %s", ", ".join(map(str, partitions)) or "nothing")

    def _on_revoke(self, _: Consumer, revoked: list[TopicPartition]) -> None:
        self._is_revoking = True
        try:
            self._give_up(revoked, lost=False)
        finally:
            self._is_revoking = False

    def _on_lost(self, _: Consumer, lost: list[TopicPartition]) -> None:
        log.warning("partitions were lost: the group went on without this worker")
        self._give_up(lost, lost=True)

    def _give_up(self, positions: Iterable[TopicPartition], *, lost: bool) -> None:
        going = [
            partition
            for tp in positions
            if (partition := self._owned.get((tp.topic, tp.partition))) is not None
        ]
        try:
            self._leave(going, lost)
        except LanewayError as error:
            self._failure = error
        for partition in going:
            del self._owned[partition.topic, partition.partition]
            for channel in Channel:
                self._places.pop((partition.topic_of(channel), partition.partition), None)
            if partition.state is not State.CLOSED:
                self.let_go(partition)
        union = [position for partition in going for position in _positions(partition)]
        with kafka_errors("revoke"):
            if self._incremental:
                self._consumer.incremental_unassign(union)
            else:
                self._consumer.unassign()
        log.info("%s: %s", "lost" if lost else "revoked", ", ".join(map(str, going)) or "nothing")

    # -- positions

    def _found(self, sources: Sequence[tuple[str, int]]) -> list[Partition]:
        """New ownerships, each with the offsets that its channels start at."""
        for source, number in sources:
            if number >= self._partitions[source]:
                raise other_count(source, self._partitions[source], number + 1)
        wanted = [
            TopicPartition(topic, number)
            for source, number in sources
            for topic in (source, self._names[source].retry, self._names[source].commands)
        ]
        committed = self._committed(wanted)
        found = []
        for source, number in sources:
            names = self._names[source]
            places = {
                Channel.SOURCE: (source, number),
                Channel.RETRY: (names.retry, number),
                Channel.COMMANDS: (names.commands, number),
            }
            own = {
                channel: committed[place].offset if place in committed else None
                for channel, place in places.items()
            }
            starts = {
                Channel.SOURCE: self._source_start(source, number, own[Channel.SOURCE]),
                Channel.RETRY: self._companion_start(names.retry, number, own[Channel.RETRY]),
                Channel.COMMANDS: self._companion_start(names.commands, number, own[Channel.COMMANDS]),
            }
            self._epoch += 1
            home = Home(self._group, source, number)
            partition = Partition(home, names, self._epoch, starts, own)
            notes = [committed[place].metadata for place in places.values() if place in committed]
            partition.reset = read_reset(notes[0] or "") if own[Channel.SOURCE] is not None else None
            partition.is_worker_commit = partition.reset is None and any(notes)
            found.append(partition)
        return found

    def _committed(self, wanted: list[TopicPartition]) -> dict[tuple[str, int], TopicPartition]:
        # While a transaction of the owner before is open the answer waits for it: see `_ask`.
        answers = self._ask(lambda: self._consumer.committed(wanted, timeout=ASK_TIMEOUT_S)) if wanted else []
        for answer in answers:
            if answer.error is not None:
                raise to_laneway(answer.error, f"{answer.topic}-{answer.partition}")
        return {(tp.topic, tp.partition): tp for tp in answers if tp.offset >= 0}

    def _source_start(self, topic: str, number: int, committed: int | None) -> int:
        low, high = self._watermarks(topic, number)
        if committed is None:
            return self._first_start(topic, number, low, high)
        if committed > high:
            raise RefusedError(
                f"the group has committed offset {committed} and the log ends at {high}: records are missing "
                "that the group has passed, or its offset was set beyond the end",
                where=f"{topic}-{number}",
                mend="find out whether the log was cut off; then set the group's offset to the log's end on "
                f"purpose: {reset_line(topic, number, 'end')}",
            )
        if committed < low:
            raise RefusedError(
                f"the group has committed offset {committed} and the log begins at {low}: "
                f"{low - committed} positions are gone unread",
                where=f"{topic}-{number}",
                mend="find out what they held; then set the group's offset to the log's start on purpose: "
                f"{reset_line(topic, number, 'start')}",
            )
        return committed

    def _first_start(self, topic: str, number: int, low: int, high: int) -> int:
        if self._start == "earliest" or self._opener.has_ledger(topic, number):
            # A group that has rested for long loses its offsets, not its ledger: what that knows is settled.
            return low
        if self._start == "latest":
            return high
        asked = [TopicPartition(topic, number, int(self._start))]
        answer = self._ask(lambda: self._consumer.offsets_for_times(asked, timeout=ASK_TIMEOUT_S))
        return answer[0].offset if answer[0].offset >= 0 else high

    def _companion_start(self, topic: str, number: int, committed: int | None) -> int:
        low, _ = self._watermarks(topic, number)
        # No position means the beginning: an old retry is recognised by its attempt, an old command by
        # its case.
        if committed is not None and committed < low:
            log.warning("%s-%d: retention took %d positions unread", topic, number, low - committed)
        return low if committed is None else max(committed, low)

    def _watermarks(self, topic: str, number: int) -> tuple[int, int]:
        asked = TopicPartition(topic, number)
        return self._ask(lambda: self._consumer.get_watermark_offsets(asked, timeout=ASK_TIMEOUT_S))

    def _ask(self, question: Callable[[], _T]) -> _T:
        """Ask the cluster inside a rebalance, again while it does not answer or says "not now"."""
        deadline = time.monotonic() + ASK_FOR_S
        with kafka_errors("assign"):
            while True:
                try:
                    return question()
                except KafkaException as exception:
                    # A broker that has just come back does not know our topics for a moment.
                    passes = classify(exception.args[0]) in PASSING
                    if not passes or time.monotonic() > deadline:
                        raise
                time.sleep(ASK_AGAIN_S)

    # -- opening, off the owner thread

    def _try_locked_again(self) -> None:
        waiting, self._locked = self._locked, []
        for partition, at_s in waiting:
            if time.monotonic() < at_s:
                self._locked.append((partition, at_s))
            elif partition.state is not State.CLOSED:
                self._tell_locked(partition)
                self._start_opening(partition)

    def _tell_locked(self, partition: Partition) -> None:
        waited_s = time.monotonic() - partition.assigned_s
        if waited_s > LOCK_NOTICE_S and not partition.told_locked:
            partition.told_locked = True
            log.warning("%s: another worker still holds the ledger; waiting, paused", partition)

    def _start_opening(self, partition: Partition) -> None:
        if any(gone.home == partition.home for gone in self._lingering):
            # Never two handlers for one lane, whatever became of the store meanwhile.
            self._locked.append((partition, time.monotonic() + LOCK_POLL_S))
            return
        kept, _ = self._kept.pop((partition.topic, partition.partition), (None, 0.0))
        future = self._executor.submit(self._opener.open, partition, kept)
        future.add_done_callback(lambda _: self._notice())
        self._opening[partition] = future

    def _go_live(self, partition: Partition, ledger: LedgerStore, opening: Opening) -> None:
        partition.ledger = ledger
        partition.board = self._build_board(partition, ledger, opening)
        marks = opening.meta.marks if opening.meta is not None else {}
        for channel, start in partition.starts.items():
            mark = marks.get(channel)
            partition.durable[channel] = start if mark is None else max(start, mark.frontier)
        partition.outbox = {key: Unpublished(forward) for key, forward in opening.outbox}
        partition.moved_ms = time.time_ns() // 1_000_000
        partition.state = State.LIVE
        live = [
            TopicPartition(partition.topic_of(channel), partition.partition) for channel in partition.starts
        ]
        with kafka_errors(str(partition)):
            resume(self._consumer, live)
        log.info("%s: live from offset %d", partition, partition.starts[Channel.SOURCE])
        if partition.reset is not None:
            log.info("%s: that offset is no worker's: %s", partition, partition.told_by())


def resume(consumer: Consumer, positions: Sequence[TopicPartition]) -> None:
    """Read on at once. The client by itself looks at resumed partitions up to a second later.

    Its thread for a broker sleeps while nothing may be fetched from there, and only what travels to or
    from that broker wakes it: so the broker is asked something. The answer does not matter.
    """
    consumer.resume(list(positions))
    for place in positions:
        with suppress(KafkaException):
            consumer.get_watermark_offsets(place, timeout=WAKE_TIMEOUT_S)


def _positions(partition: Partition) -> list[TopicPartition]:
    """The three that live together."""
    return [
        TopicPartition(partition.topic_of(channel), partition.partition, start)
        for channel, start in partition.starts.items()
    ]
