"""`replication = "changelog"`: the truth is a Kafka transaction, the ledger follows.

    1 begun      what an earlier try left open is undone; then a transaction begins, and takes the forwards,
                 the changelog entries, and one meta entry per partition behind them
    2 sent       every record is delivered; one that was refused aborts the transaction
    3 offsets    the membership of the group is asked last, the epochs are checked after it, and the
                 offsets of all three channels join under it, in every transaction: fencing hangs on that
    4 committed  from here it happened; an answer that never came is read back, never guessed
    5 told       the journal says what was saved
    6 applied    each ledger takes the very bytes that were committed, unsynced
    7 acked      the journal says what the broker was told

A crash before 4 loses the cycle: nobody saw it, the records come again. A crash after 4 loses nothing:
the next opening restores the ledger from the changelog. A cycle that is aborted goes again whole and in
order, in a new transaction, without what has left this process meanwhile.

Nothing here calls Kafka: `transactions` does.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from confluent_kafka import KafkaError

from laneway.consumer.journal import Journal
from laneway.consumer.kafka.errors import ErrorClass, by_code, to_laneway
from laneway.consumer.notices import Notices
from laneway.consumer.partition import Partition, State
from laneway.consumer.settler import Again, Cycle, PartCycle, Step
from laneway.consumer.settling.attempt import Attempt, Forwarded, Misfits, Records, Share
from laneway.consumer.settling.questions import Questions
from laneway.consumer.settling.transactions import Answer, Fate, MembershipPort, Offsets
from laneway.errors import KafkaClientError, LanewayError, RefusedError
from laneway.lanes.record import Channel
from laneway.lanes.view import PutEffect
from laneway.store.port import Change, ChangelogMark

log = logging.getLogger("laneway")

AGAIN_MS: Final = 100
"""How long a cycle waits before it goes again, at first; doubled each time, as far as the next."""
LONGEST_AGAIN_MS: Final = 2_000
FLUSH_LIMIT_MS: Final = 15_000
SAY_EVERY_MS: Final = 10_000
EXPIRE_EVERY_MS: Final = 1_000
EXPIRE_AT_ONCE: Final = 1_000
MOST_FENCED: Final = 10
FENCED_MS: Final = 60_000
_ENDING: Final = frozenset({ErrorClass.TOO_LARGE, ErrorClass.MISSING, ErrorClass.UNAUTHORISED})
"""What no later try mends when it befalls the changelog itself."""
_CUT_OFF: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
    }
)
"""The group has gone on without this worker."""


class TransactionPort(Records, Protocol):
    """One transactional producer, and what it takes to replace it; see `transactions.Transactions`."""

    @property
    def is_suspect(self) -> bool: ...

    def begin(self) -> Answer: ...

    def renew(self) -> None: ...

    def flush(self) -> None: ...

    def send_offsets(self, offsets: Offsets, metadata: object) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def read_back(self, topic: str, partition: int, offset: int) -> None: ...

    def answer(self) -> Answer | None: ...


class ChangelogTruth:
    """The steps of `changelog`, over ports. Belongs to the owner thread.

    Args:
        retention_ms: how long finished effects are remembered.
    """

    def __init__(
        self,
        *,
        transactions: TransactionPort,
        membership: MembershipPort,
        journal: Journal,
        notices: Notices,
        retention_ms: int,
    ) -> None:
        self._transactions = transactions
        self._membership = membership
        self._journal = journal
        self._retention_ms = retention_ms
        self._notices = notices
        self._attempt: Attempt | None = None
        # What has to be done before a transaction may begin; at first there is no producer at all.
        self._undo: Fate | None = Fate.RENEW
        self._questions = Questions(transactions.answer)
        self._in_doubt = False
        self._holds_offsets = False
        self._is_cut_off = False
        self._again_ms = 0
        self._wait_ms = AGAIN_MS
        self._said_ms = 0
        self._fenced_ms: deque[int] = deque(maxlen=MOST_FENCED)
        # When a partition last had nothing past its retention.
        self._unexpired_ms: dict[Partition, int] = {}
        self._misfits = Misfits()

    @property
    def steps(self) -> Sequence[tuple[str, Step]]:
        """In the order that makes a crash between any two of them harmless."""
        return (
            ("begun", self._begin),
            ("sent", self._send),
            ("offsets", self._send_offsets),
            ("committed", self._commit),
            ("told", self._tell),
            ("applied", self._apply),
            ("acked", self._ack),
        )

    def is_ready(self, now_ms: int, /) -> bool:
        """Whether there is a producer, and nothing of an earlier transaction is open.

        Raises:
            LanewayError: the cluster does not let this worker settle in transactions.
        """
        self._is_cut_off = False
        return self._undone(now_ms)

    @property
    def holds_offsets(self) -> bool:
        """From the moment they are sent until the transaction ends; the broker's patience is long."""
        return self._holds_offsets

    @property
    def is_cut_off(self) -> bool:
        """As the last transaction found it, when it came to the offsets."""
        return self._is_cut_off

    def takes(self, partition: Partition, /) -> bool:
        """Not what was lost: somebody else may be its owner."""
        return not partition.lost

    # 1
    def _begin(self, cycle: Cycle) -> bool | Again:
        if not self._undone(cycle.now_ms) or self._waits(cycle.now_ms):
            return False
        if self._attempt is None:
            cycle.parts = [part for part in cycle.parts if self.takes(part.partition)]
            if not cycle.parts:
                return True
            answer = self._transactions.begin()
            if answer.fate is not Fate.DONE:
                return self._again(cycle, answer._replace(fate=Fate.RENEW))
            self._attempt = self._gathered(cycle)
        # A full queue is emptied by the next step, which then goes on here.
        self._attempt.produce(self._transactions)
        return True

    # 2
    def _send(self, cycle: Cycle) -> bool | Again:
        attempt = self._attempt
        if attempt is None:
            return True
        answer = self._questions.ask(("flush", attempt), self._transactions.flush)
        if answer is None:
            return False
        if answer.fate is Fate.RETRY and cycle.now_ms - cycle.since_ms < FLUSH_LIMIT_MS:
            return False
        if answer.fate is not Fate.DONE:
            return self._again(cycle, answer._replace(fate=Fate.RENEW))
        if self._take_out_refused(cycle, attempt):
            return Again.FROM_THE_START
        if attempt.flaw is not None:
            # A record that ran out of time may still be on its way: this producer is of no more use.
            late = by_code(attempt.flaw) is ErrorClass.UNREACHABLE
            return self._again(cycle, Answer(Fate.RENEW if late else Fate.ABORT, attempt.flaw))
        if attempt.has_more:
            attempt.produce(self._transactions)
            return False
        self._refuse_made_anew(attempt)
        return True

    # 3
    def _send_offsets(self, cycle: Cycle) -> bool | Again:
        attempt = self._attempt
        if attempt is None:
            return True
        if self._questions.is_open(("offsets", attempt)):
            answer = self._questions.answer()
        else:
            metadata = self._membership.metadata()
            self._is_cut_off = metadata is None
            if metadata is None:
                return self._again(cycle, Answer(Fate.ABORT))
            if self._epochs_changed(attempt):
                # Not a failure: what is left goes at once.
                self._attempt, self._undo = None, Fate.ABORT
                return Again.FROM_THE_START
            offsets = [place for share in attempt.shares for place in share.offsets()]
            self._holds_offsets = True
            answer = self._questions.ask(
                ("offsets", attempt), lambda: self._transactions.send_offsets(offsets, metadata)
            )
        if answer is None or answer.fate is Fate.DONE:
            return answer is not None
        if answer.fate is Fate.RETRY and cycle.now_ms - cycle.since_ms < LONGEST_AGAIN_MS:
            return False
        self._is_cut_off = answer.error is not None and answer.error.code() in _CUT_OFF
        return self._again(cycle, answer)

    # 4
    def _commit(self, cycle: Cycle) -> bool | Again:
        attempt = self._attempt
        if attempt is None:
            return True
        if not self._in_doubt:
            answer = self._questions.ask(("commit", attempt), self._transactions.commit)
            if answer is None or answer.fate is Fate.DONE:
                return answer is not None
            log.warning(
                "the end of a transaction is not known (%s); asking the changelog before anything goes on",
                answer.text,
            )
            self._in_doubt = True
            self._undo = Fate.RENEW
        # No commit of the old producer lands any more once the new one has its id.
        if not self._undone(cycle.now_ms):
            return False
        witness = attempt.witness(cycle.parts)
        if witness is None:
            # Nothing of it is left with us.
            return self._again(cycle, Answer(Fate.DONE))
        partition = witness.part.partition
        answer = self._questions.ask(
            ("read back", witness),
            lambda: self._transactions.read_back(
                partition.names.ledger, partition.partition, witness.meta_offset
            ),
        )
        if answer is None or answer.fate is Fate.RETRY:
            return False
        if answer.fate is Fate.DONE:
            log.info("the transaction in doubt is committed")
            self._in_doubt = False
            return True
        if answer.fate is not Fate.ABORT:
            self._undo = Fate.RENEW
            return False
        log.info("the transaction in doubt is not committed; it goes again")
        return self._again(cycle, Answer(Fate.DONE))

    # 5
    def _tell(self, cycle: Cycle) -> bool | Again:
        self._wait_ms, self._holds_offsets = AGAIN_MS, False
        for part in cycle.parts:
            if part.cut is not None:
                self._journal.settled(part.partition, part.cut.settlements)
                self._notices.tell(part.partition, part.cut.settlements, cycle.now_ms)
        self._journal.flush()
        return True

    # 6
    def _apply(self, cycle: Cycle) -> bool | Again:
        attempt, self._attempt = self._attempt, None
        for share in attempt.shares if attempt is not None else ():
            part = share.part
            if part not in cycle.parts:
                # It left after the commit: whoever opens its ledger next finds all of it in the changelog.
                continue
            try:
                self._take(share, cycle.now_ms)
            except LanewayError as error:
                part.partition.failure = error
                cycle.parts.remove(part)
        self._misfits = Misfits()
        return True

    # 7
    def _ack(self, cycle: Cycle) -> bool | Again:
        for part in cycle.parts:
            if part.cut is not None:
                self._journal.acked(part.partition, part.cut.settlements)
            part.partition.unacked = []
        self._journal.flush()
        return True

    # -- begun

    def _gathered(self, cycle: Cycle) -> Attempt:
        attempt = Attempt()
        for part in list(cycle.parts):
            try:
                changes = self._changes(part, cycle.now_ms)
            except LanewayError as error:
                part.partition.failure = error
                cycle.parts.remove(part)
                continue
            if part.cut is not None:
                # What is not committed yet counts against the bound on what may be owed.
                part.partition.unacked = part.cut.settlements
            attempt.add(part, changes, self._misfits)
        return attempt

    def _changes(self, part: PartCycle, now_ms: int) -> list[Change]:
        partition, cut = part.partition, part.cut
        assert partition.ledger is not None
        entries = [] if cut is None else list(cut.entries())
        return partition.ledger.changes(entries, part.meta, self._expired(partition, entries, now_ms))

    def _expired(self, partition: Partition, entries: Sequence[object], now_ms: int) -> list[str]:
        """Effects past retention. Asked now, with no other cycle on its way that could write one of them.

        What the board has settled and not cut yet stands behind these tombstones in the changelog.
        """
        assert partition.ledger is not None
        if 0 <= now_ms - self._unexpired_ms.get(partition, 0) < EXPIRE_EVERY_MS:
            return []
        # More than a cycle can bring, so that they cannot pile up.
        limit = max(EXPIRE_AT_ONCE, 2 * len(entries))
        expired = partition.ledger.expired(now_ms - self._retention_ms, limit)
        if not expired:
            self._unexpired_ms = {
                p: ms for p, ms in self._unexpired_ms.items() if p.state is not State.CLOSED
            }
            self._unexpired_ms[partition] = now_ms
        touched = {entry.effect_key for entry in entries if type(entry) is PutEffect}
        return [key for key in expired if key not in touched]

    # -- sent

    def _take_out_refused(self, cycle: Cycle, attempt: Attempt) -> bool:
        """Find a way past what was refused. True when the cycle has to go again for that."""
        refused = attempt.refused()
        for entry in refused:
            assert entry.error is not None
            if not self._misfits.fits_another_way(entry):
                self._hold_back(entry, entry.error, cycle.now_ms)
        if refused:
            # What came too late may still come.
            late = any(by_code(e.error) is ErrorClass.UNREACHABLE for e in refused if e.error is not None)
            self._attempt, self._undo = None, Fate.RENEW if late else Fate.ABORT
        return bool(refused)

    @staticmethod
    def _refuse_made_anew(attempt: Attempt) -> None:
        """End before a changelog that is not the one that was restored gets its first commit.

        With one it would be taken for the whole of what is known by the next owner.
        """
        for share in attempt.shares:
            partition = share.part.partition
            mark = None if partition.ledger is None else partition.ledger.changelog_mark()
            if mark is not None and 0 <= share.meta_offset < mark.next_offset:
                raise RefusedError(
                    f"the changelog ends at offset {share.meta_offset} now, and the ledger here knows what "
                    f"it said below {mark.next_offset}: it was made anew, or cut off, under this worker",
                    where=f"{partition.names.ledger}[{partition.partition}]",
                    mend="keep this state directory, and find out who did that; nothing was committed to it",
                )

    @staticmethod
    def _hold_back(entry: Forwarded, error: KafkaError, now_ms: int) -> None:
        part, forward = entry.part, entry.forward
        assert part.cut is not None and part.partition.board is not None
        if not any(done is entry.settlement for done in part.cut.settlements):
            return  # it went with one before it
        part.cut = part.partition.board.hold_back(part.cut, entry.settlement, now_ms)
        part.meta = part.cut.meta
        topic, _ = part.partition.target_of(forward)
        part.partition.refused_topic = topic
        log.warning(
            "%s: cannot publish to %s yet (%s); offset %d is held, other lanes go on",
            part.partition,
            topic,
            error.str(),
            entry.settlement.record.offset,
        )

    # -- offsets

    @staticmethod
    def _epochs_changed(attempt: Attempt) -> bool:
        """Whether a partition of this transaction is not ours any more, in the epoch it began in."""
        return any(
            share.part.partition.state is State.CLOSED or share.part.partition.lost
            for share in attempt.shares
        )

    # -- applied

    def _take(self, share: Share, now_ms: int) -> None:
        """The transaction is committed: ledger, board and partition learn of it."""
        partition, cut = share.part.partition, share.part.cut
        assert partition.ledger is not None and partition.board is not None
        before = partition.ledger.changelog_mark()
        topic_id = "" if before is None else before.topic_id
        partition.ledger.apply_changes(share.changes, ChangelogMark(topic_id, share.meta_offset + 1, now_ms))
        if cut is not None:
            partition.board.committed(cut)
        for channel, offset in share.settled.items():
            if channel is Channel.SOURCE and partition.committed.get(channel) != offset:
                partition.moved_ms = now_ms
            partition.committed[channel] = partition.durable[channel] = offset
        partition.committed_note, partition.noted_ms = share.note, now_ms

    # -- when it does not go on

    def _again(self, cycle: Cycle, answer: Answer) -> Again:
        """Give a transaction up; the cycle goes again, whole and in order, in another one."""
        self._attempt, self._in_doubt = None, False
        if answer.fate is Fate.DONE:
            return Again.FROM_THE_START
        error = answer.error
        if error is not None:
            if by_code(error) in _ENDING:
                raise to_laneway(error, "the transaction that settles", "run `laneway topics check`")
            self._count_fenced(error, cycle.now_ms)
            self._say(f"a transaction was given up ({answer.text}); its cycle goes again", cycle.now_ms)
        self._undo = Fate.RENEW if answer.fate is Fate.RENEW else Fate.ABORT
        self._rest(cycle.now_ms)
        return Again.FROM_THE_START

    def _count_fenced(self, error: KafkaError, now_ms: int) -> None:
        """A transaction that took too long is fenced once in a while; workers of one name, all the time."""
        if by_code(error) is not ErrorClass.FENCED:
            return
        self._fenced_ms.append(now_ms)
        if len(self._fenced_ms) == MOST_FENCED and now_ms - self._fenced_ms[0] <= FENCED_MS:
            raise KafkaClientError(
                f"{MOST_FENCED} transactions were fenced within a minute: another worker has the same name",
                where=f"instance_id or state_dir: {error.str()}",
                mend="give each worker an instance_id of its own, or none; and never copy a state directory",
            )

    def _undone(self, now_ms: int) -> bool:
        """Bring the producer to where a transaction may begin: abort, or take a new one."""
        if self._undo is None and self._attempt is None and self._transactions.is_suspect:
            self._undo = Fate.RENEW
        while self._undo is not None:
            aborts = self._undo is Fate.ABORT
            name = "abort" if aborts else "renew"
            if not (aborts or self._questions.is_open((name, None))) and self._waits(now_ms):
                return False
            answer = self._questions.ask(
                (name, None), self._transactions.abort if aborts else self._transactions.renew
            )
            if answer is None:
                return False
            if answer.fate is Fate.DONE:
                # An abort too may have been sent twice, and the second would end the next transaction.
                self._undo = Fate.RENEW if aborts and self._transactions.is_suspect else None
                self._holds_offsets = False
            else:
                self._undo = Fate.RENEW
                if not aborts:
                    self._say(f"no transaction can begin yet ({answer.text})", now_ms)
                    self._rest(now_ms)
                    return False
        return True

    def _rest(self, now_ms: int) -> None:
        self._again_ms = now_ms + self._wait_ms
        self._wait_ms = min(2 * self._wait_ms, LONGEST_AGAIN_MS)

    def _waits(self, now_ms: int) -> bool:
        # A clock that was set back must not make it wait as much longer.
        return self._again_ms - LONGEST_AGAIN_MS <= now_ms < self._again_ms

    def _say(self, text: str, now_ms: int) -> None:
        if not 0 <= now_ms - self._said_ms < SAY_EVERY_MS:
            self._said_ms = now_ms
            log.warning("%s", text)
