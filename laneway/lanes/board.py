"""The board: which lane, which rule, which run. The heart of the rules.

One board per source partition and ownership. It is told what was polled and what handlers
said; it answers with runs to hand out and settlements to make durable. It reads the ledger
through `LedgerView`, keeps what is not yet committed itself, and never writes.

    admit ──► lanes in memory ──► next_runs ──► (handlers) ──► settle ──► cut ──► committed
                   ▲              (`judging`)                    │      (`books`)
                   └──────── retries when due, rest of a run ◄───┘

Bounds: `in_memory` and `in_memory_bytes` are held down by the caller; retries waiting, parked
followers and open cases by `blocked`, which names the channel to pause and why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from laneway.lanes.books import ALREADY_SETTLED, Books, Cut
from laneway.lanes.breaker import Breaker
from laneway.lanes.due import DueHeap
from laneway.lanes.envelope import Envelope
from laneway.lanes.forward import Home
from laneway.lanes.frontier import Seen
from laneway.lanes.intents import Intents
from laneway.lanes.judging import Judging
from laneway.lanes.overlay import Known
from laneway.lanes.record import Channel, Record
from laneway.lanes.redelivery import Redelivery
from laneway.lanes.rules import Rules
from laneway.lanes.run import Run
from laneway.lanes.settlement import HANDLED, Settled, Settlement
from laneway.lanes.settling import Settling
from laneway.lanes.verdict import Ack, Outcome, Wait
from laneway.lanes.view import LedgerView, Meta, Opening
from laneway.lanes.work import Work

# Named for every record: to look up an enum's member costs a dozen times what a global does (Python 3.11).
_NEW: Final = Seen.NEW
_COMMANDS: Final = Channel.COMMANDS
_SOURCE: Final = Channel.SOURCE

__all__ = ["Board", "Cut"]


class Board:
    """The lanes of one source partition under one ownership.

    Args:
        epoch: of this ownership; stamped on every run.
        writer, topic_ids: this start of the process, and what it reads, for the meta entry.
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
        topic_ids: tuple[str, str] = ("", ""),
    ) -> None:
        self._rules = rules
        self._settling = Settling(home, rules)
        self._epoch = epoch
        self._owner = owner
        self._redelivery = Redelivery(opening, rules.hand_over_slack)
        books = Books(
            view,
            opening,
            writer=writer,
            topic_ids=topic_ids,
            starts=starts,
            max_parked_per_lane=rules.max_parked_per_lane,
            moved_past=self._settling.moved_past,
        )
        self._books = books
        self._lanes = books.lanes
        self._ledger = books.ledger
        self._breaker = Breaker(rules.breaker_lanes)
        self._judging = Judging(home, rules, envelope, books, self._settling, self._breaker, self._redelivery)
        self._intents = Intents(books) if rules.intents else None
        # Where another machine may be the next owner: what handlers get before anything tells of this one
        # would come to them unmarked.
        self._is_unheard_of = opening.meta is None and rules.hand_over_slack > 0
        self._retries: DueHeap[Record] = DueHeap(rules.max_retries_waiting)
        self._now_ms = 0
        for work in self._lanes.of(opening.lanes_with_parked):
            books.watch_bound(work.lane, work.state)
            self._lanes.wake(work)

    # -- what comes in

    def admit(self, records: Sequence[Record], now_ms: int) -> None:
        """Take records as they were polled, each channel in its own order."""
        self._look_at_clock(now_ms)
        books, redelivered = self._books, self._redelivery.may_have_been
        arrived = []
        for record in records:
            seen = books.frontiers[record.channel].see(record.offset)
            if seen is not _NEW:
                if seen is Seen.SETTLED:
                    record.redelivered = self._redelivery.had(record.channel, record.offset)
                    books.already_settled(Settlement(record, Settled.DUPLICATE, [], ALREADY_SETTLED))
                continue
            record.redelivered = redelivered(record.channel, record.offset)
            if record.due_ms > now_ms:
                # Waiting for their time they have a bound of their own, so that many retries do not
                # starve the source.
                self._retries.push(record.due_ms, record)
                continue
            books.count(record)
            if record.channel is _COMMANDS:
                self._command(record, now_ms)
            elif record.skip:
                books.settle(self._settling.dropped(record, record.skip), None, None)
            elif record.fault:
                books.settle(self._settling.unusable(record, now_ms), None, None)
            else:
                arrived.append(record)
        self._lanes.enter(arrived)

    def _command(self, record: Record, now_ms: int) -> None:
        command = record.command
        if command is None:
            self._judging.refuse(record, f"this is no command: {record.fault}", now_ms)
        elif command.lane:
            self._lanes.command(record)
        else:
            self._judging.switch(record, command, now_ms)

    def reached(self, channel: Channel, position: int) -> None:
        """The end of a channel was read: nothing lies between its last record and `position`."""
        self._redelivery.reached(channel)
        if self._books.frontiers[channel].reach(position):
            self._books.moved = True

    def tick(self, now_ms: int) -> None:
        """Let in what has become due: retries, lanes that rested, and a try at what is unavailable."""
        self._look_at_clock(now_ms)
        due = self._retries.pop_due(now_ms, self._rules.max_retries_waiting)
        for record in due:
            self._books.count(record)
        self._lanes.enter(due)
        self._lanes.tick(now_ms)
        if self._breaker.is_open and self._breaker.may_probe(now_ms):
            self._lanes.open_gate()

    def _look_at_clock(self, now_ms: int) -> None:
        """A clock that was set back must not make what waits in memory wait as much longer."""
        if now_ms < self._now_ms:
            self._retries.bring_forward(self._now_ms - now_ms)
            self._lanes.bring_forward(self._now_ms - now_ms)
        self._now_ms = now_ms

    @property
    def next_due_ms(self) -> int | None:
        """When `tick` will next have something to do; None when nothing waits for time."""
        waiting = (self._retries.next_due_ms, self._lanes.next_due_ms, self._breaker.next_due_ms)
        return min((due_ms for due_ms in waiting if due_ms is not None), default=None)

    def blocked(self) -> dict[Channel, str]:
        """Channels that must not be read now, and why. Retries and commands outlive any bound."""
        found = {}
        ledger, rules, pause = self._ledger, self._rules, self._books.pause
        if self._retries.full:
            found[Channel.RETRY] = f"{len(self._retries)} retries wait (retry.max_waiting_per_partition)"
        if pause is not None:
            why = f"paused by {pause.actor}: {pause.reason}"
            found[Channel.SOURCE] = found[Channel.RETRY] = why
        elif self._breaker.is_open and self._lanes.may_start:
            # With nothing left in memory that could try it, what is read next must.
            found[Channel.SOURCE] = (
                f"a dependency is unavailable to many lanes{self._why}; one at a time tries it"
            )
        elif ledger.open_cases >= rules.max_open_cases:
            found[Channel.SOURCE] = f"{ledger.open_cases} open cases (lanes.max_open_cases_per_partition)"
        elif ledger.parked_bytes >= rules.max_parked_bytes:
            found[Channel.SOURCE] = f"{ledger.parked_bytes} bytes (lanes.max_parked_bytes_per_partition)"
        elif self._books.full_lanes:
            found[Channel.SOURCE] = (
                f"a lane parks {rules.max_parked_per_lane} or more (lanes.max_parked_per_lane)"
            )
        return found

    # -- what goes to the handlers

    def next_runs(self, budget: int, now_ms: int) -> list[Run]:
        """Judge the lanes that are ready; return what handlers may start.

        Args:
            budget: records to hand out at most, roughly; lanes beyond it stay ready.
        """
        runs: list[Run] = []
        if self._is_unheard_of:
            return runs
        if self._intents is not None:
            # What needs no handler is judged all the same, however few may start.
            self._judging.room = budget
            self._lanes.open_gate(max(0, budget))
            budget = self._rules.max_judged
        try:
            self._fill(runs, budget, now_ms)
        except BaseException:
            for run in runs:  # they never reach a handler, so nobody must wait for them
                self.abandon(run)
            raise
        if self._intents is not None:
            for run in runs:
                self._intents.note(run, now_ms)
            runs = self._intents.take_started()
        handed_over = self._books.handed_over
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
                records = self._judging.judge(work, known, now_ms)
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
        acked = self._settle_acks(work, run, now_ms)
        for record, outcome in zip(run.records[acked:], run.outcomes[acked:], strict=False):
            if isinstance(outcome.verdict, Wait):
                rest.insert(0, record)
                self._wait(work, outcome.verdict, now_ms)
                break
            if self._breaker.is_counting and not _is_unread(outcome) and self._breaker.answered():
                self._lanes.open_gate()
            closes = self._judging.closed_by(record, work.state)
            settlement, after = self._settling.verdict(record, outcome, work.state, closes, now_ms)
            plain = isinstance(outcome.verdict, Ack) and closes is None
            self._books.settle(settlement, after, work, barrier=not plain)
        else:
            if run.outcomes:
                self._lanes.answered(work.lane)
        self._give_back(work, rest)
        self._breaker.came_back(work.lane)
        self._lanes.wake(work)
        return True

    def _settle_acks(self, work: Work, run: Run, now_ms: int) -> int:
        """Settle the Acks that a run begins with, as long as they say nothing but that: almost all are so.

        Returns:
            How many. What else a verdict may lead to is the business of `settle`.
        """
        lane = work.state
        if lane.hold is not None or self._breaker.is_counting:
            return 0
        settlements = []
        for record, outcome in zip(run.records, run.outcomes, strict=False):
            verdict = outcome.verdict
            if type(verdict) is not Ack or outcome.emitted:
                break
            if record.prior is not None or record.parked or record.channel is not _SOURCE:
                break
            done = self._settling.acked(record, verdict.result_key, now_ms)
            done.lane_before = lane
            settlements.append(done)
        if settlements:
            last = settlements[-1]
            after = self._settling.moved_past(last, last.record, lane)
            last.lane_before = None
            self._books.settle_acks(settlements, after, work)
        return len(settlements)

    def _wait(self, work: Work, wait: Wait, now_ms: int) -> None:
        until_ms = now_ms + wait.retry_after_ms
        self._lanes.rest(work, until_ms)
        self._breaker.unavailable(work.lane, until_ms, now_ms, wait.reason)

    def _give_back(self, work: Work, rest: Sequence[Record]) -> None:
        """Records that no handler has finished stand in front of their lane again."""
        for record in rest:
            self._books.release_effect(record.effect_key)
            if self._intents is not None:
                self._intents.withdraw(record, work)
        for record in reversed(rest):
            if record.channel is _COMMANDS:
                work.commands = deque((record, *(work.commands or ())))
            elif not record.parked:
                work.waiting.appendleft(record)

    def abandon(self, run: Run) -> None:
        """A run came back after this ownership was over: nothing of it counts any more."""
        work = self._lanes.get(run.lane)
        if work is not None and work.run is run:
            work.run = None
            self._breaker.came_back(work.lane)

    def stop(self, now_ms: int = 0) -> None:
        """Let nothing further start; what a handler has in hand may finish."""
        if self._intents is not None:
            for run in self._intents.take_waiting():
                self.settle(run, now_ms)
        self._lanes.stop()

    # -- what becomes durable

    def cut(self, now_ms: int) -> Cut | None:
        """Take what happened since the last cut, with the frontiers it leads to."""
        return self._books.cut(now_ms)

    def meta(self, now_ms: int) -> Meta:
        """Where the partition stands now, settlements not yet cut included."""
        return self._books.meta(now_ms)

    def committed(self, cut: Cut) -> None:
        """A cut is durable: what waited for it may go on, what the ledger now knows is forgotten."""
        self._books.committed(cut)
        self._is_unheard_of = False
        if self._intents is not None:
            self._intents.committed(cut.number)

    def hold_back(self, cut: Cut, settlement: Settlement, now_ms: int) -> Cut:
        """The cut without a settlement whose forward was refused, and without all that hang on it."""
        return self._books.hold_back(cut, settlement, now_ms)

    def undecided(self) -> list[Record]:
        """Records whose handler came to an end that is not known to be durable."""
        return [done.record for done in self._books.undecided() if done.how in HANDLED]

    # -- what people and the owner ask

    @property
    def in_memory(self) -> int:
        """Records in memory that are not settled, or held back; of retries only those that are due."""
        return self._books.in_memory + self._books.held_back

    @property
    def waits_for(self) -> str:
        """What is said of lanes that a dependency is unavailable to; "" when there is none."""
        unanswered = self._lanes.unanswered
        if not unanswered:
            return ""
        lanes = "1 lane waits" if unanswered == 1 else f"{unanswered} lanes wait"
        return f"{lanes} for a dependency that is unavailable{self._why}"

    @property
    def _why(self) -> str:
        reason = self._breaker.reason
        return f" ({reason})" if reason not in ("", "unavailable") else ""

    @property
    def in_memory_bytes(self) -> int:
        """Their bytes, and those of what is settled and not known to be durable."""
        return self._books.in_memory_bytes + self._books.undecided_bytes

    @property
    def handed_over(self) -> dict[Channel, int]:
        """By channel, the highest offset that handlers may have seen."""
        return self._books.handed_over

    @property
    def pending(self) -> int:
        """Settlements and intents that no cut has taken yet."""
        return self._books.pending

    @property
    def has_intents(self) -> bool:
        """Whether handlers wait for a cut to be made and committed."""
        return self._books.has_intents

    @property
    def held_back(self) -> int:
        """Settlements that wait because something of theirs cannot be published."""
        return self._books.held_back

    @property
    def running(self) -> int:
        """Runs that are out with handlers, or about to be."""
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
        return self._books.frontiers[channel].frontier


def _is_unread(outcome: Outcome) -> bool:
    """Whether the payload was refused before any handler saw it, which says nothing of what it needs."""
    return outcome.cause == "invalid-payload"
