"""Opening a ledger that follows its changelog: wherever it was before, it is brought up to date here.

    look      the changelog topic as the cluster has it now, and where its log ends
    fit       the ledger stored on this machine, if it belongs to that changelog; else it is moved aside
    restore   what was committed since then, up to that end

The end is taken as a client that reads uncommitted sees it: what an owner before us has begun lies below
it, and is waited for until it is committed or aborted. Reading is up to the end when the reader's
position is; records may be missing there (compaction, aborted transactions, their markers), so the
client's word that a partition ends counts as much as a record.

The changelog is the truth, so little is refused here that `LocalOpener` must refuse: a changelog of which a
part is gone, or that a worker of the group has gone beyond without writing it, tells less than was known;
and lanes would wait for ever for retries that were deleted unread. Nobody would notice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from laneway.consumer.assignment.opening import Opened, frontier, refuse_gone_unread, refuse_lost_retries
from laneway.consumer.assignment.progress import RestoreProgress
from laneway.consumer.kafka import clients
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.kafka.errors import ErrorClass, classify, kafka_errors, position, to_laneway
from laneway.consumer.partition import Partition, State
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import TopicInfo, topic_names
from laneway.errors import (
    ChangelogFormatError,
    LanewayError,
    LedgerError,
    LedgerFormatError,
    RefusedError,
    TopicError,
)
from laneway.lanes.record import Channel
from laneway.lanes.view import Meta, Opening
from laneway.store.port import Change, ChangelogMark, LedgerStore
from laneway.store.state_dir import StateDir

log = logging.getLogger("laneway")

BATCH: Final = 2000
POLL_S: Final = 0.05
"""Of one read. The client waits for a whole batch, so this is also what the last one costs."""
BESIDE_WORK_SHARE: Final = 0.125
"""Of the time, for all restores together, while other partitions have work: they share one interpreter."""
BULK: Final = 100_000
"""From so many offsets on the write-ahead log is spared, for a flush at the end."""
TELL_EVERY_S: Final = 2.0
WAITING_EVERY_S: Final = 5.0
NEVER_CURRENT_MS: Final = 0
NO_PROGRESS_S: Final = 300.0
ASK_TIMEOUT_S: Final = 10.0
ASK_AGAIN_S: Final = 0.1

_PASSING: Final = frozenset({ErrorClass.UNREACHABLE, ErrorClass.RETRIABLE})
_ACCEPT: Final = "or, if effects may be repeated and lanes may begin anew, start with --accept-empty-ledger"
_T = TypeVar("_T")


class AbandonedError(LanewayError):
    """The partition left while its ledger was being opened: nobody waits for it any more."""


class _TooSlowError(LanewayError):
    """A restore took so long that compaction may have removed deletions which it had not read yet."""


class Changelog(msgspec.Struct, frozen=True):
    """The changelog of one partition as it is when a restore begins.

    Attributes:
        start, end: of its log; the end counts what is not committed yet.
        tombstones_ms: how long compaction leaves a tombstone.
        looked_ms: epoch ms just before the end was asked for.
    """

    topic: str
    number: int
    topic_id: str
    start: int
    end: int
    tombstones_ms: int
    looked_ms: int

    def __str__(self) -> str:
        return position(self.topic, self.number)


class ChangelogOpener:
    """Opens ledgers that follow their changelog. Each call runs on a thread of its own, beside others.

    Args:
        accept_empty_ledger: go on although a part of the changelog is gone.
        describe: a changelog topic as the cluster has it now.
        no_progress_s: how long a restore may stand still.
    """

    keeps_open = True

    def __init__(
        self,
        settings: Settings,
        state_dir: StateDir,
        *,
        accept_empty_ledger: bool,
        describe: Callable[[str], TopicInfo] | None = None,
        no_progress_s: float = NO_PROGRESS_S,
    ) -> None:
        self._settings = settings
        self._state_dir = state_dir
        self._accept_empty_ledger = accept_empty_ledger
        self._describe = describe or self._described
        self._no_progress_s = no_progress_s
        self._restoring: set[Partition] = set()

    def has_ledger(self, topic: str, number: int) -> bool:
        """Whether anything was ever written to its changelog."""
        place = TopicPartition(topic_names(self._settings, topic).ledger, number)
        return self._ends(place, wanted=lambda: None)[1] > 0

    def open(self, partition: Partition, kept: LedgerStore | None) -> Opened:
        """Bring the ledger up to date with its changelog; see `Opener.open`."""
        ledger = kept
        try:
            changelog = self._look(partition)
            if changelog.end == 0:
                self._refuse_empty(partition, changelog)
            self._restoring.add(partition)
            try:
                ledger, mark = self._fitting(partition, ledger, changelog)
                opening = self._restore(partition, ledger, changelog, mark)
            except _TooSlowError as error:
                changelog = self._look(partition)
                ledger = self._anew(partition, ledger, changelog, error.what)
                opening = self._restore(partition, ledger, changelog, None)
            except ChangelogFormatError as error:
                raise ChangelogFormatError(error.what, where=str(changelog), mend=error.mend) from error
            except LedgerFormatError as error:
                # What is written into a damaged store is as good as lost; the changelog has it all.
                ledger = self._anew(partition, ledger, changelog, f"it is damaged: {error.what}")
                opening = self._restore(partition, ledger, changelog, None)
            finally:
                self._restoring.discard(partition)
            if opening.meta is None:
                self._refuse_empty(partition, changelog)
            else:
                self._refuse_made_anew(partition, opening.meta, changelog)
                refuse_gone_unread(partition, opening.meta)
            if opening.meta is not None and not self._accept_empty_ledger:
                _refuse_left_behind(partition, opening.meta, changelog)
                refuse_lost_retries(partition, opening.meta)
        except BaseException:
            if ledger is not None:
                with suppress(LedgerError):
                    ledger.close()
            raise
        self._tell_passed_over(partition, opening)
        return ledger, opening

    def is_store_of(self, partition: Partition, where: str) -> bool:
        """Whether it is the path of its store."""
        return where == str(self._state_dir.store_path(partition.topic, partition.partition))

    def found_damaged(self, partition: Partition, error: LedgerFormatError) -> None:
        """Out of the way with it: an opening sees only the damage that it meets, not that of every block."""
        self._move_aside(partition, partition.names.ledger, f"it is damaged: {error.what}")

    # -- look

    def _look(self, partition: Partition) -> Changelog:
        name, number = partition.names.ledger, partition.partition
        looked_ms = time.time_ns() // 1_000_000
        start, end = self._ends(TopicPartition(name, number), wanted=lambda: _require_wanted(partition))
        topic = self._describe(name)
        return Changelog(name, number, topic.topic_id, start, end, topic.delete_retention_ms, looked_ms)

    def _ends(self, place: TopicPartition, wanted: Callable[[], None]) -> tuple[int, int]:
        with self._reading(committed=False) as reader:
            return self._ask(
                lambda: reader.get_watermark_offsets(place, timeout=ASK_TIMEOUT_S),
                position(place.topic, place.partition),
                wanted,
            )

    def _described(self, name: str) -> TopicInfo:
        with Cluster(self._settings) as cluster:
            found = cluster.topics([name]).get(name)
        if found is None:
            raise TopicError("the topic is not there", where=name, mend="run `laneway topics check`")
        return found

    def _ask(self, question: Callable[[], _T], where: str, wanted: Callable[[], None]) -> _T:
        deadline = time.monotonic() + self._no_progress_s
        with kafka_errors(where):
            while True:
                wanted()
                try:
                    return question()
                except KafkaException as exception:
                    if classify(exception.args[0]) not in _PASSING or time.monotonic() > deadline:
                        raise
                time.sleep(ASK_AGAIN_S)

    @contextmanager
    def _reading(self, *, committed: bool) -> Iterator[Consumer]:
        reader = clients.new_reader(self._settings, committed=committed)
        try:
            yield reader
        finally:
            reader.close()

    # -- fit

    def _fitting(
        self, partition: Partition, ledger: LedgerStore | None, changelog: Changelog
    ) -> tuple[LedgerStore, ChangelogMark | None]:
        """The ledger of this machine and how far it goes; a new one in its place when it does not fit."""
        topic, number = partition.topic, partition.partition
        if ledger is not None and not self._state_dir.exists(topic, number):
            # Its files were removed while it was open.
            with suppress(LedgerError):
                ledger.close()
            ledger = None
        if ledger is None:
            ledger = self._state_dir.open_store(topic, number)
        try:
            mark = ledger.changelog_mark()
            # Read as a whole here, where damage is still cheap.
            is_new = mark is None and ledger.opening().meta is None
            why = "" if is_new else _misfit(mark, changelog)
            if is_new or why:
                self._refuse_truncated(partition, changelog)
            if why:
                return self._anew(partition, ledger, changelog, why), None
        except BaseException:
            with suppress(LedgerError):
                ledger.close()
            raise
        return ledger, mark

    def _anew(
        self, partition: Partition, ledger: LedgerStore | None, changelog: Changelog, why: str
    ) -> LedgerStore:
        """Move a ledger aside that cannot be used, and begin it again from the start of the changelog."""
        self._refuse_truncated(partition, changelog)
        if ledger is not None:
            with suppress(LedgerError):
                ledger.close()
        self._move_aside(partition, str(changelog), why)
        return self._state_dir.open_store(partition.topic, partition.partition)

    def _move_aside(self, partition: Partition, changelog: str, why: str) -> None:
        aside = self._state_dir.move_aside(partition.topic, partition.partition, why)
        log.warning(
            "%s: the stored ledger is moved aside to %s and rebuilt from %s: %s",
            partition,
            aside,
            changelog,
            why,
        )

    def _refuse_truncated(self, partition: Partition, changelog: Changelog) -> None:
        # Compaction removes records and leaves the start of the log where it is.
        if changelog.start == 0 or self._accept_empty_ledger:
            return
        raise RefusedError(
            f"the first {changelog.start} offsets of the changelog were deleted, and no ledger in this state "
            f"directory holds what they said: without it nobody knows which effects have happened",
            where=f"{changelog}, {self._state_dir.path}",
            mend=f"run {partition} on the machine (or volume) that has its ledger; {_ACCEPT}",
        )

    def _refuse_empty(self, partition: Partition, changelog: Changelog) -> None:
        """A worker commits offsets and writes its changelog in one transaction: both are there, or none."""
        committed = partition.committed[Channel.SOURCE]
        due = partition.is_worker_commit or (partition.reset is not None and partition.reset.after_worker)
        if committed is None or not due or self._accept_empty_ledger:
            return
        raise RefusedError(
            f"a worker of the group has committed offset {committed} of {partition}, and the changelog of "
            "its ledger is empty: it was made anew, or the ledger was kept on one machine before",
            where=str(changelog),
            mend=f"find out what became of it, and restore it; {_ACCEPT}",
        )

    def _refuse_made_anew(self, partition: Partition, meta: Meta, changelog: Changelog) -> None:
        """Refuse marks about other records: what stands at their offsets now would be taken for settled."""
        names, now = (partition.topic, partition.names.retry), self._state_dir.topic_ids(partition.topic)
        for name, was, is_now in zip(names, meta.topic_ids, now, strict=True):
            if was and is_now and was != is_now:
                raise RefusedError(
                    f"the topic {name} was deleted and made anew since this changelog was begun, so the "
                    "offsets that it tells to be settled belong to records that are gone",
                    where=str(changelog),
                    mend="find out what the old topic still held; then begin a new group (effects that this "
                    "one knows may run again)",
                )

    def _tell_passed_over(self, partition: Partition, opening: Opening) -> None:
        start = partition.starts[Channel.SOURCE]
        if opening.meta is not None and start > frontier(opening.meta, Channel.SOURCE):
            log.warning(
                "%s: offsets %d to %d are passed over, as %s",
                partition,
                frontier(opening.meta, Channel.SOURCE),
                start,
                partition.told_by(),
            )

    # -- restore

    def _restore(
        self, partition: Partition, ledger: LedgerStore, changelog: Changelog, mark: ChangelogMark | None
    ) -> Opening:
        """Apply what was committed from `mark` on, or from the start, up to the end."""
        at = changelog.start if mark is None else mark.next_offset
        # From the start, what was read is true only once all is read: a tombstone further on may be old, and
        # gone when somebody reads on. So a restore that is cut off here begins anew.
        current_ms = NEVER_CURRENT_MS if mark is None else mark.current_ms
        now_s = time.monotonic()
        progress = RestoreProgress(at, changelog.end, at, now_s, now_s)
        partition.restore = progress
        bulk = changelog.end - at >= BULK
        if bulk:
            ledger.begin_restore()
        busy_s = time.thread_time()
        for changes in self._read(partition, changelog, progress):
            ledger.apply_changes(changes, ChangelogMark(changelog.topic_id, progress.position, current_ms))
            # By what it has cost, not by its entries: those cost more on a slower machine.
            spent_s = time.thread_time() - busy_s
            if partition.opens_beside_work:
                time.sleep(spent_s * (len(self._restoring) / BESIDE_WORK_SHARE - 1))
            busy_s += spent_s
        if bulk:
            ledger.end_restore()
        self._require_in_time(changelog)
        done = ChangelogMark(changelog.topic_id, progress.position, changelog.looked_ms)
        ledger.apply_changes((), done)
        partition.changelog_next = progress.position
        if progress.seen_s - progress.began_s > TELL_EVERY_S:
            log.info("%s: restored, %s", partition, progress)
        return ledger.opening()

    def _require_in_time(self, changelog: Changelog) -> None:
        """A ledger may be as old as half of what tombstones stay; the other half is for bringing it up."""
        took_ms = time.time_ns() // 1_000_000 - changelog.looked_ms
        if took_ms >= changelog.tombstones_ms // 2:
            raise _TooSlowError(
                f"its last restore took {took_ms / 1000:.0f} s, and what was deleted meanwhile may be "
                f"forgotten (delete.retention.ms is {changelog.tombstones_ms})",
                where=str(changelog),
                mend="raise delete.retention.ms of the topic, or give the worker more of its machine",
            )

    def _read(
        self, partition: Partition, changelog: Changelog, progress: RestoreProgress
    ) -> Iterator[list[Change]]:
        """Committed entries in batches, until the position is at the end; `progress` goes before each."""
        if progress.position >= progress.target:
            return
        told_s = waiting_s = moved_s = progress.began_s
        place = TopicPartition(changelog.topic, changelog.number, progress.position)
        with self._reading(committed=True) as reader:
            with kafka_errors(str(changelog)):
                reader.assign([place])
            at_end = False
            while progress.position < progress.target:
                _require_wanted(partition)
                with kafka_errors(str(changelog)):
                    messages = reader.consume(BATCH, POLL_S)
                changes, reached, ends = self._sorted(messages, changelog)
                now_s = time.monotonic()
                at_end = ends or (at_end and not changes)
                if reached > progress.position:
                    progress.position, progress.seen_s = reached, now_s
                    progress.entries += len(changes)
                    moved_s = waiting_s = now_s
                    if changes:
                        yield changes
                    now_s = time.monotonic()
                elif now_s - moved_s > self._no_progress_s:
                    raise self._stuck(changelog, progress, at_end=at_end)
                elif at_end and now_s - waiting_s > WAITING_EVERY_S:
                    waiting_s = now_s
                    log.warning(
                        "%s: a transaction in %s from offset %d on is still open after %.0f s; waiting for "
                        "it to be committed or aborted",
                        partition,
                        changelog,
                        progress.position,
                        now_s - moved_s,
                    )
                if now_s - told_s > TELL_EVERY_S and not at_end:
                    told_s = now_s
                    log.info("%s: restoring %s", partition, progress)

    def _sorted(self, messages: list[Message], changelog: Changelog) -> tuple[list[Change], int, bool]:
        """(entries, the position behind them, whether the end of what can be read now was met)."""
        changes: list[Change] = []
        reached, ends = -1, False
        last: Message | None = None
        for message in messages:
            error = message.error()
            if error is None:
                changes.append((message.key() or b"", message.value()))
                last = message
            elif error.code() == KafkaError._PARTITION_EOF:
                reached, ends = max(reached, message.offset() or 0), True
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise RefusedError(
                    "the changelog was cut off, or made anew, while it was read",
                    where=str(changelog),
                    mend="find out who did that, then start again: what is missing is told then",
                )
            elif classify(error) not in _PASSING:
                raise to_laneway(error, str(changelog))
        if last is not None:
            offset = last.offset()
            assert offset is not None
            reached = max(reached, offset + 1)
        return changes, reached, ends

    def _stuck(self, changelog: Changelog, progress: RestoreProgress, *, at_end: bool) -> LanewayError:
        where = position(changelog.topic, changelog.number, progress.position)
        if at_end:
            return LanewayError(
                f"a transaction from here on has been open for {self._no_progress_s:g} s, and the ledger is "
                f"complete only behind it, at offset {progress.target}",
                where=where,
                mend="find the producer that hangs and end it; or abort its transaction: "
                "`kafka-transactions.sh find-hanging`, then `abort`, for this topic and partition",
            )
        return LanewayError(
            f"the changelog could not be read any further for {self._no_progress_s:g} s",
            where=where,
            mend="check that the brokers of this partition are up and reachable from here, then start again",
        )


def _require_wanted(partition: Partition) -> None:
    if partition.state is State.CLOSED:
        raise AbandonedError("the partition left before its ledger was restored", where=str(partition))


def _refuse_left_behind(partition: Partition, meta: Meta, changelog: Changelog) -> None:
    """Refuse a changelog that ends below what a worker has committed: a transaction holds both."""
    knows, committed = frontier(meta, Channel.SOURCE), partition.committed[Channel.SOURCE]
    if committed is None or committed <= knows or not partition.is_worker_commit:
        return
    raise RefusedError(
        f"a worker of the group has committed offset {committed} of {partition}, and its changelog tells of "
        f"offsets below {knows} only: the ledger was kept on one machine meanwhile, or the changelog was "
        "put back from a copy",
        where=str(changelog),
        mend=f"find out what became of the rest: run on in the mode that has it; {_ACCEPT}",
    )


def _misfit(mark: ChangelogMark | None, changelog: Changelog) -> str:
    """Why a stored ledger cannot be brought up to date from this changelog; "" when it can."""
    if mark is None:
        return "it never followed a changelog"
    if mark.topic_id and changelog.topic_id and mark.topic_id != changelog.topic_id:
        return f"it follows another topic of that name (id {mark.topic_id}, now {changelog.topic_id})"
    if mark.next_offset > changelog.end:
        return f"it holds offsets below {mark.next_offset}, and the changelog ends at {changelog.end}"
    if mark.next_offset < changelog.start:
        return f"it holds offsets below {mark.next_offset}, and the changelog begins at {changelog.start}"
    if mark.current_ms == NEVER_CURRENT_MS:
        return "its last restore was not finished"
    age_ms = changelog.looked_ms - mark.current_ms
    if mark.next_offset < changelog.end and age_ms > changelog.tombstones_ms // 2:
        return (
            f"it was last up to date {age_ms / 3_600_000:.1f} hours ago, and what was deleted since then "
            f"may be forgotten (delete.retention.ms is {changelog.tombstones_ms})"
        )
    return ""
