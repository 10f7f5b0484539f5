"""The board: which lane, which rule, which run. The heart of the rules.

One board per source partition and ownership. It is told what was polled and what handlers
said; it answers with runs to hand out and settlements to make durable. It reads the ledger
through `LedgerView`, keeps what is not yet committed itself, and never writes.

    admit ──► lanes in memory ──► next_runs ──► (handlers) ──► settle ──► cut ──► committed
                   ▲                                             │
                   └──────── retries when due, rest of a run ◄───┘

Bounds: `in_memory` and `in_memory_bytes` are held down by the caller; retries waiting, parked
followers and open cases by `blocked`, which names the channel to pause and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import msgspec

from laneway.lanes.admission import (
    IN_TURN,
    IN_TURN_OF_ONE,
    PASSED,
    PLACES,
    Action,
    Decision,
    Order,
    Place,
    Step,
    held,
    may_run_held,
    place,
    standing,
)
from laneway.lanes.canonical import payload_hash
from laneway.lanes.due import DueHeap
from laneway.lanes.effect import FINISHED, Effect
from laneway.lanes.envelope import Envelope
from laneway.lanes.failures import HandlerSignal, read_again_ms
from laneway.lanes.follower import revive_all
from laneway.lanes.forward import Home
from laneway.lanes.frontier import Seen, reopened
from laneway.lanes.lane import Lane
from laneway.lanes.overlay import Known, Overlay
from laneway.lanes.record import Channel, Record, is_lane_of_one
from laneway.lanes.run import Run
from laneway.lanes.settlement import Settled, Settlement
from laneway.lanes.settling import Rules, Settling
from laneway.lanes.verdict import Ack, Wait
from laneway.lanes.view import LedgerView, Meta, Opening
from laneway.lanes.work import EffectsInHand, Lanes, Work


class Cut(msgspec.Struct, frozen=True):
    """What one partition brings to a cycle."""

    number: int
    settlements: list[Settlement]
    meta: Meta


class Board:
    """The lanes of one source partition under one ownership.

    Args:
        epoch: of this ownership; stamped on every run.
        writer: this start of the process, for the meta entry.
        starts: by channel, the offset reading starts at when the ledger knows none.
        owner: handed through to the runs, opaque here.
    """

    def __init__(
        self,
        home: Home,
        rules: Rules,
        envelope: Envelope,
        view: LedgerView,
        opening: Opening,
        *,
        epoch: int,
        writer: str,
        starts: dict[Channel, int],
        owner: object = None,
    ) -> None:
        self._home = home
        self._rules = rules
        self._envelope = envelope
        self._ledger = Overlay(view, opening)
        self._settling = Settling(home, rules)
        self._epoch = epoch
        self._writer = writer
        self._owner = owner
        self._handed_before = dict(opening.handed_over)
        marks = opening.meta.marks if opening.meta is not None else {}
        self._frontiers = {channel: reopened(start, marks.get(channel)) for channel, start in starts.items()}
        self.in_memory = 0
        self.in_memory_bytes = 0
        self.handed_over: dict[Channel, int] = {}
        self._cycle = 1
        self._lanes = Lanes(self._ledger.lanes)
        self._retries: DueHeap[Record] = DueHeap(rules.max_retries_waiting)
        self._settled: list[Settlement] = []
        self._moved = False
        self._in_hand = EffectsInHand()
        self._full_lanes: set[str] = set()
        for work in self._lanes.of(opening.lanes_with_parked):
            self._watch_bound(work.lane, work.state)
            self._lanes.wake(work)

    # -- what comes in

    def admit(self, records: Sequence[Record], now_ms: int) -> None:
        """Take records as they were polled, each channel in its own order."""
        arrived = []
        for record in records:
            record.redelivered = record.offset <= self._handed_before.get(record.channel, -1)
            seen = self._frontiers[record.channel].see(record.offset)
            if seen is not Seen.NEW:
                if seen is Seen.SETTLED:
                    self._settled.append(Settlement(record, Settled.DUPLICATE, [], "already-settled"))
                continue
            if record.due_ms > now_ms:
                # Waiting for their time they have a bound of their own, so that many retries do not
                # starve the source.
                self._retries.push(record.due_ms, record)
                continue
            self._count(record)
            if record.skip:
                self._settle(self._settling.dropped(record, record.skip), None, None)
            elif record.fault:
                self._settle(self._settling.unusable(record, now_ms), None, None)
            else:
                arrived.append(record)
        self._lanes.enter(arrived)

    def reached(self, channel: Channel, position: int) -> None:
        """The end of a channel was read: nothing lies between its last record and `position`."""
        if self._frontiers[channel].reach(position):
            self._moved = True

    def tick(self, now_ms: int) -> None:
        """Let in what has become due: retries, and lanes that rested."""
        due = self._retries.pop_due(now_ms, self._rules.max_retries_waiting)
        for record in due:
            self._count(record)
        self._lanes.enter(due)
        self._lanes.tick(now_ms)

    @property
    def next_due_ms(self) -> int | None:
        """When `tick` will next have something to do; None when nothing waits for time."""
        due = [d for d in (self._retries.next_due_ms, self._lanes.next_due_ms) if d is not None]
        return min(due, default=None)

    def blocked(self) -> dict[Channel, str]:
        """Channels that must not be read now, and why. Retries and commands outlive any bound."""
        found = {}
        ledger, rules = self._ledger, self._rules
        if self._retries.full:
            found[Channel.RETRY] = f"{len(self._retries)} retries wait (retry.max_waiting_per_partition)"
        if ledger.open_cases >= rules.max_open_cases:
            found[Channel.SOURCE] = f"{ledger.open_cases} open cases (lanes.max_open_cases_per_partition)"
        elif ledger.parked_bytes >= rules.max_parked_bytes:
            found[Channel.SOURCE] = f"{ledger.parked_bytes} bytes (lanes.max_parked_bytes_per_partition)"
        elif self._full_lanes:
            found[Channel.SOURCE] = f"a lane parks {rules.max_parked_per_lane} (lanes.max_parked_per_lane)"
        return found

    # -- what goes to the handlers

    def next_runs(self, budget: int, now_ms: int) -> list[Run]:
        """Judge the lanes that are ready; return what handlers may start.

        Args:
            budget: records to hand out at most, roughly; lanes beyond it stay ready.
        """
        runs: list[Run] = []
        try:
            self._fill(runs, budget, now_ms)
        except BaseException:
            for run in runs:  # they never reach a handler, so nobody must wait for them
                self.abandon(run)
            raise
        handed_over = self.handed_over
        for run in runs:
            for record in run.records:
                if record.offset > handed_over.get(record.channel, -1):
                    handed_over[record.channel] = record.offset
        return runs

    def _fill(self, runs: list[Run], budget: int, now_ms: int) -> None:
        handed = 0
        while self._lanes.has_ready and handed < budget:
            batch = self._lanes.take_ready(budget - handed)
            known: Known = {}
            self._ledger.read_effects(
                (record for work in batch for record in islice(work.waiting, self._rules.max_run)), known
            )
            for work in batch:
                records = self._judge(work, known, now_ms)
                if records:
                    run = work.run = Run(work.lane, records, self._epoch, self._owner)
                    handed += len(records)
                    runs.append(run)
                else:
                    self._lanes.let_go(work)

    def settle(self, run: Run, now_ms: int) -> bool:
        """Take a run back: settle what was started, keep the rest for later.

        Returns:
            False when this run is not out: it was taken back before, or belongs to another epoch.
            Nothing changed then.
        """
        work = self._lanes.get(run.lane)
        if work is None or work.run is not run or run.epoch != self._epoch:
            return False
        work.run = None
        rest = run.unstarted()
        for record, outcome in zip(run.records, run.outcomes, strict=False):
            if isinstance(outcome.verdict, Wait):
                rest.insert(0, record)
                self._lanes.rest(work, now_ms + outcome.verdict.retry_after_ms)
                break
            healed = self._ledger.gap_healed_by(record, work.state)
            settlement, after = self._settling.verdict(record, outcome, work.state, healed, now_ms)
            plain = isinstance(outcome.verdict, Ack) and healed is None
            self._settle(settlement, after, work, barrier=not plain)
        for record in rest:
            self._release_effect(record.effect_key)
        work.waiting.extendleft(record for record in reversed(rest) if not record.parked)
        self._lanes.wake(work)
        return True

    def abandon(self, run: Run) -> None:
        """A run came back after this ownership was over: nothing of it counts any more."""
        work = self._lanes.get(run.lane)
        if work is not None and work.run is run:
            work.run = None

    # -- what becomes durable

    def cut(self, now_ms: int) -> Cut | None:
        """Take the settlements since the last cut, with the frontiers they lead to."""
        if not (self._settled or self._moved):
            return None
        self._moved = False
        cut = Cut(self._cycle, self._settled, self.meta(now_ms))
        self._settled = []
        self._cycle += 1
        return cut

    def meta(self, now_ms: int) -> Meta:
        """Where the partition stands now, settlements not yet cut included."""
        return Meta(
            writer=self._writer,
            cycle=self._cycle,
            marks={channel: frontier.mark() for channel, frontier in self._frontiers.items()},
            open_cases=self._ledger.open_cases,
            parked_bytes=self._ledger.parked_bytes,
            written_ms=now_ms,
            parked=self._ledger.parked_records,
        )

    def committed(self, cut: Cut) -> None:
        """A cut is durable: what waited for it may go on, what the ledger now knows is forgotten."""
        self._lanes.commit(cut.number)
        for work in self._in_hand.commit(cut.number):
            self._lanes.wake(work)
        for settlement in cut.settlements:
            self._ledger.forget(settlement, cut.number)
        for lane in dict.fromkeys(settlement.record.lane for settlement in cut.settlements):
            work_done = self._lanes.get(lane)
            if work_done is not None:
                self._lanes.let_go(work_done)

    @property
    def pending(self) -> int:
        """Settlements that no cut has taken yet."""
        return len(self._settled)

    @property
    def running(self) -> int:
        """Runs that are out with handlers."""
        return self._lanes.running

    @property
    def parked(self) -> int:
        """Followers stored in the ledger."""
        return self._ledger.parked_records

    @property
    def open_cases(self) -> int:
        """Cases a person has to decide."""
        return self._ledger.open_cases

    @property
    def retries_waiting(self) -> int:
        """Retries whose time has not come."""
        return len(self._retries)

    def frontier(self, channel: Channel) -> int:
        """The lowest unsettled offset of a channel, as far as it was read."""
        return self._frontiers[channel].frontier

    def stop(self) -> None:
        """Let nothing further start; what a handler has in hand may finish."""
        self._lanes.stop()

    # -- judging

    def _judge(self, work: Work, known: Known, now_ms: int) -> list[Record]:
        """Judge a lane until something may run, the lane has to wait, or nothing is left."""
        limit = self._rules.max_run
        while work.rest_until_ms <= now_ms:
            # Before any source or retry record of a free lane: its parked followers.
            parked = work.state.hold is None and work.state.parked > 0
            if parked and work.barrier > self._lanes.committed:
                self._lanes.await_commit(work)
                break
            records = self._parked_of(work, now_ms) if parked else list(islice(work.waiting, limit))
            if not records:
                break
            self._ledger.read_effects(records, known)
            run, more = self._judge_each(work, records, known, parked, now_ms)
            if run or not more:
                return run
        return []

    def _judge_each(
        self, work: Work, records: list[Record], known: Known, parked: bool, now_ms: int
    ) -> tuple[list[Record], bool]:
        """Judge records until one may run, and gather what may run right behind it.

        Returns:
            The records to hand out; and, when there are none, whether to look at the lane again.
        """
        run: list[Record] = []
        for record in records:
            if run:
                if not self._may_follow(work, record, run[-1], known, parked):
                    break
            else:
                was_free = work.state.hold is None
                starts = self._judge_first(work, record, known, now_ms)
                if starts is None:
                    return run, False
                if not starts:
                    if not parked:
                        work.waiting.popleft()
                    if (work.state.hold is None) is not was_free:
                        return run, True
                    continue
            if not parked:
                work.waiting.popleft()
            self._in_hand.take(record.effect_key, work.lane)
            run.append(record)
        return run, True

    def _may_follow(self, work: Work, record: Record, before: Record, known: Known, parked: bool) -> bool:
        """Whether a record may ride behind another one of its lane, if that one acks."""
        lane = work.state
        return (
            lane.hold is None
            and (parked or not lane.parked)
            and record.channel is Channel.SOURCE
            and not record.misfit
            and self._place(record, before.sequence, None) is Place.NEXT
            and record.effect_key not in self._in_hand
            and self._ledger.effect(record.effect_key, known) is None
        )

    def _judge_first(self, work: Work, record: Record, known: Known, now_ms: int) -> bool | None:
        """Judge the record at the head of a lane.

        Returns:
            True when it may run, False when it is settled, None when the lane has to wait.
        """
        if record.effect_key in self._in_hand:
            self._in_hand.wait(record.effect_key, work)
            return None
        effect = self._ledger.effect(record.effect_key, known)
        record.prior = effect
        if record.channel is Channel.RETRY:
            if not may_run_held(work.state, record.effect_key, record.attempt):
                self._settle(self._settling.dropped(record, "stale-retry-copy"), None, work)
                return False
            return self._start(work, record, now_ms)
        step = PLACES[self._place(record, work.state.last, self._rules.first_sequence), held(work.state)]
        if step is Step.PARK:
            self._settle(*self._settling.park(record, work.state, now_ms), work)
            return False
        if step is Step.OPEN_GAP:
            self._settle(*self._settling.gap(record, work.state, now_ms), work)
            return False
        in_turn = step is Step.JUDGE_IN_TURN
        decision = self._decide(record, effect, in_turn)
        if decision.action is Action.RUN:
            return self._start(work, record, now_ms)
        healed = self._ledger.gap_healed_by(record, work.state) if in_turn else None
        if decision.action is Action.DUPLICATE:
            assert effect is not None
            done = self._settling.duplicate(
                record, effect, work.state, healed, in_turn=in_turn, now_ms=now_ms
            )
            sure = self._ledger.is_committed(record.effect_key) and healed is None
            self._settle(*done, work, barrier=not sure)
            return False
        holds = decision.action is Action.HOLD
        done = self._settling.conflict(
            record, decision.reason, work.state, healed, holds=holds, now_ms=now_ms
        )
        self._settle(*done, work)
        return False

    def _place(self, record: Record, last: int | None, first_sequence: int | None) -> Place:
        """Where a record stands in its lane. Without a sequence key it has no number, only its arrival."""
        order = Order.ARRIVAL if record.sequence_key is None else self._rules.order
        return place(order, record.sequence, last, first_sequence)

    def _decide(self, record: Record, effect: Effect | None, in_turn: bool) -> Decision:
        if effect is not None and effect.state in FINISHED:
            record.payload_hash = payload_hash(record.payload, record.value)
        where = standing(effect, record.origin_offset, record.payload_hash)
        if not in_turn:
            return PASSED[where]
        return (IN_TURN_OF_ONE if is_lane_of_one(record.lane) else IN_TURN)[where]

    def _start(self, work: Work, record: Record, now_ms: int) -> bool | None:
        """A record whose turn has come: it runs, or it is refused unseen, or the lane waits."""
        if work.barrier > self._lanes.committed:
            self._lanes.await_commit(work)
            return None
        if not record.misfit:
            return True
        record.payload_hash = payload_hash(record.payload, record.value)
        healed = self._ledger.gap_healed_by(record, work.state)
        self._settle(*self._settling.misfit(record, work.state, healed, now_ms), work)
        return False

    # -- keeping the books

    def _settle(
        self, settlement: Settlement, after: Lane | None, work: Work | None, *, barrier: bool = True
    ) -> None:
        """Book a settlement: lane, counters, frontier, and what must wait for its commit."""
        record = settlement.record
        self._settled.append(settlement)
        self._ledger.book(settlement, self._cycle)
        if work is not None:
            work.touched = self._cycle
            if barrier:
                work.barrier = self._cycle
                # No follower is read back before that cycle is durable, and then the ledger is right.
                work.cursor = None
            elif record.parked and settlement.ends:
                work.cursor = (record.sequence, record.origin_offset)
            if after is not None:
                if after.parked != work.state.parked:
                    self._ledger.book_parked(work.state, after)
                    self._watch_bound(work.lane, after)
                work.state = after
            if self._in_hand.held_by(record.effect_key, work.lane):
                if barrier:
                    self._in_hand.keep(record.effect_key, self._cycle)
                else:
                    self._release_effect(record.effect_key)
        if not record.parked:
            self._frontiers[record.channel].settle(record.offset)
            self.in_memory -= 1
            self.in_memory_bytes -= record.size_bytes

    def _count(self, record: Record) -> None:
        self.in_memory += 1
        self.in_memory_bytes += record.size_bytes

    def _watch_bound(self, lane: str, after: Lane) -> None:
        if after.parked >= self._rules.max_parked_per_lane:
            self._full_lanes.add(lane)
        else:
            self._full_lanes.discard(lane)

    def _release_effect(self, effect_key: str) -> None:
        for work in self._in_hand.release(effect_key):
            self._lanes.wake(work)

    def _parked_of(self, work: Work, now_ms: int) -> list[Record]:
        """The next followers of a lane; none when the pipeline's decoder cannot read them now."""
        found = self._ledger.parked(work.lane, work.cursor, self._rules.max_run)
        try:
            followers = revive_all(found, work.lane, self._envelope, self._home)
        except HandlerSignal as signal:
            self._lanes.rest(work, now_ms + read_again_ms(signal))
            return []
        for record in followers:
            record.redelivered = record.offset <= self._handed_before.get(Channel.SOURCE, -1)
        return followers
