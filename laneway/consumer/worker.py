"""The worker: one owner thread that drives a record along its route, turn by turn.

    take finished runs ─► poll and admit ─► judge and hand out ─► settle ─► look around ─► wait

Everything that decides is elsewhere; this is the order in which they are asked, how a partition
leaves, and how the process ends. The poll loop never waits for a handler.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from laneway.consumer.assignment.opening import LocalOpener, Opener
from laneway.consumer.assignment.ownership import Ownership
from laneway.consumer.assignment.restore import ChangelogOpener
from laneway.consumer.background import DaemonExecutor
from laneway.consumer.intake import Intake
from laneway.consumer.journal import Journal
from laneway.consumer.kafka import clients
from laneway.consumer.notices import Notices
from laneway.consumer.overdue import Overdue
from laneway.consumer.partition import Partition, State
from laneway.consumer.profile import NO_PROFILE, Profile, Stage
from laneway.consumer.rules import envelope_of, rules_of, temporary_of
from laneway.consumer.running.life import Life
from laneway.consumer.running.pool import pool_for
from laneway.consumer.settings.model import Settings
from laneway.consumer.settler import CrashPoint, Settler, no_crash
from laneway.consumer.settling.committer import Answer
from laneway.consumer.settling.replication import Changelog, Local, Replication
from laneway.consumer.shape import ShapeWatch
from laneway.consumer.topics import TopicNames
from laneway.consumer.watchdog import Watchdog
from laneway.errors import IncompleteError, LanewayError, LedgerError
from laneway.lanes.board import Board
from laneway.lanes.run import Run
from laneway.lanes.view import Opening
from laneway.pipeline import Pipeline
from laneway.store.files import free_bytes
from laneway.store.port import LedgerStore
from laneway.store.state_dir import StateDir

log = logging.getLogger("laneway")

IDLE_POLL_S: Final = 0.05
BUSY_WAIT_S: Final = 0.005
MIN_REST_S: Final = 0.001
MAX_REST_S: Final = 0.005
SMALL_TURN: Final = 256
"""A turn that has moved less than this rests, as long as the handlers have enough to do."""
REVOKE_SHARE: Final = 5
"""A revoke may spend this share (one fifth) of max.poll.interval on letting handlers finish."""
LOST_BUDGET_S: Final = 5.0
CLOSE_S: Final = 10.0
HOLD_S: Final = 5.0
INTENTS_PER_WORKER: Final = 2
EXPIRE_EVERY_MS: Final = 1000
DEFAULT_MAX_POLL_MS: Final = 300_000


class Worker:
    """One process of the group.

    Args:
        names: the companion topics by source, already checked.
        topic_ids: of sources and companions, "" where the cluster gives none.
        max_message_bytes: of the largest topic it writes to.
        drain_timeout_s: how long a stop waits for what runs.
        crash_point: for tests that end the process at a named step.
        profile: told what the owner does at each moment.
    """

    def __init__(
        self,
        settings: Settings,
        pipeline: Pipeline[object],
        *,
        names: dict[str, TopicNames],
        partitions: dict[str, int],
        state_dir: StateDir,
        journal: Journal,
        topic_ids: Mapping[str, str] | None = None,
        max_message_bytes: int | None = None,
        drain_timeout_s: float = 25.0,
        accept_empty_ledger: bool = False,
        crash_point: CrashPoint = no_crash,
        profile: Profile = NO_PROFILE,
    ) -> None:
        self._settings = settings
        self._profile = profile
        self._names = names
        self._state_dir = state_dir
        self._journal = journal
        self._notices = Notices()
        self._drain_timeout_s = drain_timeout_s
        self._writer = uuid.uuid4().hex
        self._stopping = False
        self._rules = rules_of(settings)
        self._envelopes = {
            source: envelope_of(settings, source, pipeline.decode) for source in settings.sources
        }
        lanes = settings.lanes
        self._workers = pool_for(pipeline.compile(temporary_of(settings)), settings, clock=steady_ms)
        self._life = Life(pipeline.life, self._workers)
        answers: deque[Answer] = deque()
        self._consumer = clients.new_consumer(
            settings,
            partition_eof=True,
            on_commit=lambda error, places: answers.append((error, places)),
        )
        # Two pools: opening many ledgers must not keep the live ones from their syncs, or their transactions.
        self._opener = DaemonExecutor(4, "laneway-open")
        opener: Opener
        if settings.ledger.replication == "changelog":
            # One thread: a transaction has one call at a time.
            self._executor = DaemonExecutor(1, "laneway-tx")
            opener = ChangelogOpener(settings, state_dir, accept_empty_ledger=accept_empty_ledger)
            self._replication: Replication = Changelog(
                settings,
                state_dir,
                self._consumer,
                lambda name, on_error: clients.new_transactional_producer(
                    settings, name, max_message_bytes=max_message_bytes, error_cb=on_error
                ),
                lambda: clients.new_reader(settings, committed=True),
                journal=journal,
                notices=self._notices,
                executor=self._executor,
                notice=self._workers.nudge,
            )
        else:
            self._executor = DaemonExecutor(4, "laneway-io")
            opener = LocalOpener(state_dir, writer=self._writer, accept_empty_ledger=accept_empty_ledger)
            self._replication = Local(
                self._consumer,
                answers,
                clients.new_producer(settings, max_message_bytes=max_message_bytes),
                journal=journal,
                notices=self._notices,
                executor=self._executor,
                notice=self._workers.nudge,
            )
        self._settler = Settler(
            self._replication.strategy,
            max_ms=settings.cycle.max_ms,
            max_records=settings.cycle.max_records,
            crash_point=crash_point,
            profile=profile,
        )
        self._ownership = Ownership(
            self._consumer,
            settings.group,
            names,
            partitions,
            opener,
            self._opener,
            self._build_board,
            self._leave,
            self._workers.nudge,
            incremental=settings.group_protocol == "consumer",
            start=settings.start,
        )
        self._intake = Intake(
            self._consumer,
            self._ownership,
            journal,
            self._envelopes,
            max_records=lanes.max_in_flight,
            max_bytes=lanes.max_in_flight_bytes,
            longest_delay_ms=max(self._rules.delays_ms, default=0),
            is_low_on_disk=lambda: free_bytes(state_dir.path) < settings.ledger.min_free_bytes,
            clock=wall_ms,
            profile=profile,
        )
        max_poll_ms = int(settings.kafka.get("max.poll.interval.ms", DEFAULT_MAX_POLL_MS))
        self._revoke_budget_s = max_poll_ms / REVOKE_SHARE / 1000
        self._expired_ms = 0
        self._overdue = Overdue(self._workers, journal, lanes.handler_timeout_ms, clock=steady_ms)
        self._watchdog = Watchdog()
        self._shape = ShapeWatch(settings, partitions, self._workers.nudge, ids=topic_ids or {})

    def request_stop(self) -> None:
        """Stop intake, finish what runs, settle, leave. From any thread or a signal handler.

        It only sets a flag: a signal handler that takes a lock can meet itself.
        """
        self._stopping = True

    def run(self) -> None:
        """Work until stopped.

        Raises:
            IncompleteError: stopped, and the drain deadline passed with work left.
            LanewayError: something ended a partition; the others were drained.
        """
        self._shape.start()
        self._watchdog.start()
        failure: LanewayError | None = None
        try:
            self._life.open(lambda: self._stopping)
            self._ownership.subscribe()
            while not self._stopping and failure is None:
                self._turn()
                self._watchdog.turned()
                failure = self._ownership.failure() or self._shape.failure or self._life.failure()
        except LanewayError as error:
            failure = error
        self._profile.stop()
        log.info("stopping: finishing what runs" if failure is None else "stopping on an error")
        drained = self._end(failure)
        if failure is not None:
            raise failure
        if not drained:
            raise self._incomplete()

    def _end(self, failure: LanewayError | None) -> bool:
        """Drain, leave the group, end every thread; returns whether nothing was left running."""
        self._shape.stop()
        self._watchdog.stop()
        if failure is not None:
            self._ownership.blame(failure)
        drained = False
        try:
            drained = self._drain(self._ownership.owned(), self._drain_timeout_s, to_the_end=True)
        except LanewayError as error:
            if failure is None:
                raise
            # The first failure says more: this one is mostly its consequence.
            log.warning("while stopping: %s", error)
        finally:
            self._notices.close()
            self._close()
        return drained

    def _incomplete(self) -> IncompleteError:
        passed = f"when the drain deadline of {self._drain_timeout_s:g} s passed"
        if self._ownership.lingering:
            return IncompleteError(
                f"handlers were still running {passed}",
                mend="their records come again, marked redelivered; raise --drain-timeout if that is normal",
            )
        what, mend = self._replication.left_over
        return IncompleteError(
            f"{what} {passed}",
            mend=mend,
        )

    # -- a turn

    def _turn(self) -> None:
        now_ms = wall_ms()
        self._ownership.advance()
        self._workers.reclaim(steady_ms())
        self._profile.enter(Stage.SETTLE)
        finished = self._take_finished(now_ms)
        self._profile.enter(Stage.REST)
        waiting = bool(self._workers.in_hand or not self._settler.idle)
        polled = self._intake.poll(0 if waiting or finished else self._idle_s(now_ms))
        self._profile.enter(Stage.JUDGE)
        handed = self._hand_out(wall_ms())
        self._profile.enter(Stage.REST)
        # Handlers that wait for their intents should not wait for a cycle's age besides; nor should reading.
        urgent = self._rules.intents and any(p.board and p.board.has_intents for p in self._ownership.live())
        urgent = urgent or (self._intake.is_full and not self._workers.in_hand)
        self._settler.advance(self._ownership.owned(), wall_ms(), urgent=urgent)
        self._profile.enter(Stage.REST)
        self._look_around(now_ms)
        rest_s = min(MAX_REST_S, self._workers.fed_s / 2)
        if rest_s > MIN_REST_S and 0 < polled + handed + finished < SMALL_TURN and not urgent:
            # A turn for every record that ends would fight the handlers for the interpreter.
            time.sleep(rest_s)
        elif not (polled or handed) and (self._workers.in_hand or not self._settler.idle):
            self._workers.wait(BUSY_WAIT_S)

    def _idle_s(self, now_ms: int) -> float:
        """How long a poll may block: never past a retry's time or a cycle's age."""
        wait_s = IDLE_POLL_S
        for partition in self._ownership.live():
            assert partition.board is not None
            if partition.board.pending:
                wait_s = min(wait_s, BUSY_WAIT_S)
            due_ms = partition.board.next_due_ms
            if due_ms is not None:
                wait_s = min(wait_s, max(0, due_ms - now_ms) / 1000)
        return wait_s

    def _take_finished(self, now_ms: int) -> int:
        runs = self._workers.finished()
        for run in runs:
            partition = run.owner
            assert isinstance(partition, Partition) and partition.board is not None
            gone = partition.state is State.CLOSED
            if not gone and partition.board.settle(run, now_ms):
                continue
            started = run.records[: len(run.outcomes)]
            self._journal.refused(partition, started, "old-epoch" if gone else "second-completion")
            if gone:
                partition.board.abandon(run)
        if self._ownership.lingering:
            self._ownership.tidy()
        return len(runs)

    def _hand_out(self, now_ms: int) -> int:
        """Judge what is ready, journal it, note the hand-over, and give it to the workers."""
        if self._is_behind():
            return 0
        all_runs: list[Run] = []
        try:
            self._judge_all(all_runs, now_ms)
            self._profile.enter(Stage.JOURNAL)
            if all_runs:
                # Before the handlers start: whoever reads the journal after a crash knows what was in hand.
                self._journal.flush()
        except BaseException:
            # A disk that is full: they never reach a handler, so nobody must wait for them.
            for run in all_runs:
                assert isinstance(run.owner, Partition) and run.owner.board is not None
                run.owner.board.abandon(run)
            raise
        self._profile.enter(Stage.HAND_OFF)
        self._workers.submit(all_runs)
        return len(all_runs)

    def _judge_all(self, all_runs: list[Run], now_ms: int) -> None:
        """Judge what is ready in every partition, and write down what is about to be handed over."""
        for partition in self._ownership.live():
            board, ledger = partition.board, partition.ledger
            assert board is not None and ledger is not None
            self._profile.enter(Stage.JUDGE)
            board.tick(now_ms)
            runs = board.next_runs(self._budget(), now_ms)
            if not runs:
                continue
            all_runs += runs
            self._profile.enter(Stage.JOURNAL)
            for run in runs:
                if run.records[0].parked:
                    self._journal.released(partition, run.records)
                self._journal.running(partition, run.records)
            self._profile.enter(Stage.LEDGER)
            ledger.note_handed_over(board.handed_over)

    def _budget(self) -> int:
        """How many records may be handed over now, roughly.

        Whatever has an intent when the process dies is asked about, so no more have one than can run soon.
        """
        if not self._rules.intents:
            return self._settings.lanes.max_in_flight
        out = sum(p.board.running for p in self._ownership.live() if p.board is not None)
        return max(0, INTENTS_PER_WORKER * self._workers.capacity - out)

    def _is_behind(self) -> bool:
        """More is settled than commits can follow: a coordinator or a disk that does not answer."""
        owed = sum(len(p.unacked) + (p.board.pending if p.board else 0) for p in self._ownership.live())
        return owed > 4 * max(self._settings.cycle.max_records, self._settings.lanes.max_in_flight)

    def _look_around(self, now_ms: int) -> None:
        if now_ms - self._expired_ms >= EXPIRE_EVERY_MS:
            self._expired_ms = now_ms
            for partition in self._ownership.live():
                if partition.ledger is None:
                    continue
                if self._state_dir.exists(partition.topic, partition.partition):
                    self._replication.expire(partition.ledger, now_ms - self._settings.ledger.retention_ms)
                else:
                    # Open files outlive their names: what is written now would be gone with the process.
                    partition.failure = LedgerError(
                        "the files of the ledger were removed while it was open",
                        where=f"{partition}, {self._state_dir.path}",
                        mend=self._replication.files_lost,
                    )
            self._overdue.report()
            self._notices.count(now_ms)

    # -- leaving

    def _leave(self, going: Sequence[Partition], lost: bool) -> None:
        """A rebalance takes partitions away. Runs inside poll, on the owner thread."""
        for partition in going:
            partition.lost = lost
        self._drain(going, LOST_BUDGET_S if lost else self._revoke_budget_s)

    def _drain(self, going: Sequence[Partition], budget_s: float, *, to_the_end: bool = False) -> bool:
        """Let what runs finish, and settle it; start nothing.

        Args:
            to_the_end: wait for what cannot be published now, too. A group that waits for this worker is
                not kept: the next owner does it again.

        Returns:
            Whether all of it ended, and Kafka was told.
        """
        going = [partition for partition in going if partition.state is not State.CLOSED]
        if not going:
            return not self._ownership.lingering
        for partition in going:
            if partition.board is not None:
                partition.state = State.DRAINING
                partition.board.stop()
        self._workers.recall()
        deadline = time.monotonic() + budget_s
        self._replication.drain(begins=True)
        while True:
            now_ms = wall_ms()
            self._take_finished(now_ms)
            self._settler.advance(self._ownership.owned(), now_ms, urgent=True)
            running = any(p.board is not None and p.board.running for p in going)
            if self._settler.is_cut_off and not all(partition.lost for partition in going):
                # Nobody polls here, so it does not join again; and the group may wait for this very answer.
                for partition in going:
                    partition.lost = True
                deadline = min(deadline, time.monotonic() + LOST_BUDGET_S)
            settled = self._settler.is_through_with(going, to_the_end=to_the_end)
            # What follows a rebalance asks the group for offsets, and would wait for our own transaction.
            late_s = time.monotonic() - deadline
            if not self._settler.holds_offsets or late_s > HOLD_S:
                if not running and settled:
                    break
                if late_s > 0:
                    break
            self._workers.wait(BUSY_WAIT_S)
        self._replication.drain(begins=False)
        self._let_go(going)
        return settled and not self._ownership.lingering

    def _let_go(self, going: Sequence[Partition]) -> None:
        failures = []
        for partition in going:
            if partition.board is not None:
                # The next owner does these again, unless it finds them committed after all.
                self._journal.refused(partition, partition.board.undecided(), "not-committed")
            try:
                self._ownership.let_go(partition)
            except LedgerError as error:  # the others are let go all the same
                failures.append(error)
        if failures:
            raise failures[0]

    def _close(self) -> None:
        """Leave the group and end every thread, each within a bound: brokers may be down."""
        leaving = threading.Thread(target=self._consumer.close, name="laneway-close", daemon=True)
        leaving.start()
        leaving.join(CLOSE_S)
        if leaving.is_alive():
            log.warning(
                "the group did not answer the goodbye within %g s; the session will time out", CLOSE_S
            )
        self._replication.close(CLOSE_S / 2)
        self._life.close(CLOSE_S / 2)
        self._workers.stop(0.1)
        for executor in (self._executor, self._opener):
            executor.shutdown()
        # A ledger that is just being opened or synced ends cleanly when it may.
        for executor in (self._executor, self._opener):
            executor.join(CLOSE_S / 10)
        self._ownership.close()
        self._journal.close()

    # -- ports

    def _build_board(self, partition: Partition, ledger: LedgerStore, opening: Opening) -> Board:
        return Board(
            partition.home,
            self._rules,
            self._envelopes[partition.topic],
            ledger,
            opening,
            epoch=partition.epoch,
            writer=self._writer,
            starts=partition.starts,
            owner=partition,
            topic_ids=self._state_dir.topic_ids(partition.topic),
        )


def wall_ms() -> int:
    """Epoch milliseconds, as other machines see them: for due times and for what people read."""
    return time.time_ns() // 1_000_000


_STEADY_BASE_MS: Final = wall_ms() - time.monotonic_ns() // 1_000_000


def steady_ms() -> int:
    """Epoch milliseconds that never jump: a corrected wall clock must not make handlers overdue."""
    return _STEADY_BASE_MS + time.monotonic_ns() // 1_000_000
