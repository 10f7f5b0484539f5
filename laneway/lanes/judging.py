"""Judging: what the record in front of a lane gets. The rules of admission, applied.

A lane is judged until something may run, until it has to wait, or until nothing is left. The order is fixed:
commands of operators, then parked followers of a free lane, then what was read. The tables in `admission` say
what is decided; here stands what is asked first, and what everybody has to wait for.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

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
from laneway.lanes.books import Books
from laneway.lanes.breaker import Breaker
from laneway.lanes.canonical import payload_hash
from laneway.lanes.case import Case
from laneway.lanes.command import Command, Letter, Repeat
from laneway.lanes.dead_letter import has_begun, refusal_of_letter
from laneway.lanes.effect import FINISHED, Effect, EffectState
from laneway.lanes.envelope import Envelope
from laneway.lanes.failures import HandlerSignal, read_again_ms
from laneway.lanes.follower import revive_all, revive_case, revive_letter
from laneway.lanes.forward import Home
from laneway.lanes.lane import Lane
from laneway.lanes.overlay import Known
from laneway.lanes.record import Channel, Record, is_lane_of_one
from laneway.lanes.redelivery import Redelivery
from laneway.lanes.rerun import (
    has_begun_again,
    next_command,
    refusal_of_payload,
    refusal_of_repeat,
)
from laneway.lanes.resolving import Resolving, pause_of, refusal, refusal_of_next, refusal_of_pause
from laneway.lanes.rules import Rules
from laneway.lanes.settling import Settling
from laneway.lanes.work import Work

# Named for every record: to look up an enum's member costs a dozen times what a global does (Python 3.11).
_SOURCE: Final = Channel.SOURCE
_RETRY: Final = Channel.RETRY
_NEXT: Final = Place.NEXT
_PARK: Final = Step.PARK
_OPEN_GAP: Final = Step.OPEN_GAP
_IN_TURN: Final = Step.JUDGE_IN_TURN
_RUN: Final = Action.RUN
_ARRIVAL: Final = Order.ARRIVAL


class Judging:
    """Judges the lanes of one board.

    Args:
        redelivery: what a former owner may have handed over.

    Attributes:
        room: how many deliveries may start yet, where that is bounded; None where it is not.
    """

    def __init__(
        self,
        home: Home,
        rules: Rules,
        envelope: Envelope,
        books: Books,
        settling: Settling,
        breaker: Breaker,
        redelivery: Redelivery,
    ) -> None:
        self._home = home
        self._rules = rules
        self._envelope = envelope
        self._books = books
        self._ledger = books.ledger
        self._lanes = books.lanes
        self._in_hand = books.in_hand
        self._settling = settling
        self._resolving = Resolving(home, rules, settling)
        self._breaker = breaker
        self._redelivery = redelivery
        self.room: int | None = None

    def judge(self, work: Work, known: Known, now_ms: int) -> list[Record]:
        """Judge a lane until something may run; nothing when it has to wait, or nothing is left.

        Args:
            known: the effects of what waits in front of the lane have been read, as far as a run goes.
        """
        is_read = True
        while True:
            if work.commands and (record := next_command(work.commands, work.state)) is not None:
                starts = self._judge_command(work, record, known, now_ms)
                if starts is None:
                    return []
                work.commands.remove(record)
                if starts:
                    self._in_hand.take(record.effect_key, work.lane)
                    return [record]
                # It may have put something in front.
                is_read = False
                continue
            if work.rest_until_ms > now_ms:
                return []
            parked = self._parked_come_first(work)
            if parked and work.barrier > self._lanes.committed:
                self._lanes.await_commit(work)
                return []
            records = (
                self._parked_of(work, now_ms) if parked else list(islice(work.waiting, self._rules.max_run))
            )
            if not records:
                return []
            if parked or not is_read:
                self._ledger.read_effects(records, known)
            is_read = False
            run, more = self._judge_each(work, records, known, parked, now_ms)
            if run or not more:
                return run

    def closed_by(self, record: Record, lane: Lane) -> Case | None:
        """The open case that this record's settlement closes: its command's, or that of the gap it heals."""
        command = record.command
        if command is None:
            return self._ledger.gap_healed_by(record, lane)
        return self._ledger.case(command.case_id) if command.case_id else None

    def switch(self, record: Record, command: Command, now_ms: int) -> None:
        """A command about the partition itself: it waits for nothing."""
        books = self._books
        paused = books.pause is not None
        if why := refusal_of_pause(command, "the partition", paused=paused):
            books.settle(self._resolving.refused(record, why, now_ms), None, None)
            return
        pause = None if paused else pause_of(command, now_ms)
        books.switch(self._resolving.switched(record, command, now_ms), pause)
        if paused:
            self._lanes.open_gate()
        else:
            self._lanes.halt()

    def refuse(self, record: Record, why: str, now_ms: int) -> None:
        """A record of the commands topic that is none."""
        self._books.settle(self._resolving.refused(record, why, now_ms), None, None)

    @staticmethod
    def _parked_come_first(work: Work) -> bool:
        """Before any source or retry record of a free lane: its parked followers."""
        return work.state.is_free and work.state.parked > 0

    def _judge_each(
        self, work: Work, records: list[Record], known: Known, parked: bool, now_ms: int
    ) -> tuple[list[Record], bool]:
        """Judge records until one may run, and gather what may run right behind it.

        Returns:
            The records to hand out; and, when there are none, whether to look at the lane again.
        """
        for at, record in enumerate(records):
            was_free = work.state.is_free
            starts = self._judge_first(work, record, known, now_ms)
            if starts is None:
                return [], False
            if not parked:
                work.waiting.popleft()
            if starts:
                self._in_hand.take(record.effect_key, work.lane)
                return [record, *self._followers(work, record, records[at + 1 :], known, parked)], True
            if work.state.is_free is not was_free:
                return [], True
        return [], True

    def _followers(
        self, work: Work, before: Record, records: list[Record], known: Known, parked: bool
    ) -> list[Record]:
        """The records that may ride behind another one of their lane, each if the one before it acks."""
        state = work.state
        if state.hold is not None or (state.parked and not parked) or self._breaker.is_open:
            return []
        in_hand, effect = self._in_hand, self._ledger.effect
        found = []
        for record in records:
            effect_key = record.effect_key
            if (
                record.channel is not _SOURCE
                or record.misfit
                or self._place(record, before.sequence, None) is not _NEXT
                or effect_key in in_hand
                or effect(effect_key, known) is not None
            ):
                break
            if not parked:
                work.waiting.popleft()
            in_hand.take(effect_key, work.lane)
            found.append(record)
            before = record
        return found

    def _judge_first(self, work: Work, record: Record, known: Known, now_ms: int) -> bool | None:
        """Judge the record at the head of a lane.

        Returns:
            True when it may run, False when it is settled, None when the lane has to wait.
        """
        books = self._books
        if record.effect_key in self._in_hand:
            self._in_hand.wait(record.effect_key, work)
            return None
        effect = self._ledger.effect(record.effect_key, known)
        record.prior = effect
        if record.channel is _RETRY:
            return self._judge_retry(work, record, effect, now_ms)
        last = self._last_known(work, record, effect, known)
        step = PLACES[self._place(record, last, self._rules.first_sequence), held(work.state)]
        if step is _PARK:
            healed = self._ledger.gap_healed_by(record, work.state) if work.state.pause else None
            books.settle(*self._settling.park(record, work.state, now_ms, healed), work)
            return False
        if step is _OPEN_GAP:
            books.settle(*self._settling.gap(record, work.state, now_ms), work)
            return False
        in_turn = step is _IN_TURN
        decision = self._decide(record, effect, in_turn)
        if decision.action is _RUN:
            return self._start(work, record, now_ms)
        healed = self._ledger.gap_healed_by(record, work.state) if in_turn else None
        if decision.action is Action.DUPLICATE:
            assert effect is not None
            done = self._settling.duplicate(
                record, effect, work.state, healed, in_turn=in_turn, now_ms=now_ms
            )
            sure = self._ledger.is_committed(record.effect_key) and healed is None
            books.settle(*done, work, barrier=not sure)
            return False
        holds = decision.action is Action.HOLD
        done = self._settling.conflict(
            record, decision.reason, work.state, healed, holds=holds, now_ms=now_ms
        )
        books.settle(*done, work)
        return False

    def _judge_retry(self, work: Work, record: Record, effect: Effect | None, now_ms: int) -> bool | None:
        """A retry runs only if it is the one that its lane waits for."""
        books, lane = self._books, work.state
        if not may_run_held(lane, record.effect_key, record.origin_offset, record.attempt):
            books.settle(self._settling.dropped(record, "stale-retry-copy"), None, work)
            return False
        if lane.pause is not None:
            # It cannot be parked (that is for followers), and must not keep those behind it from being.
            work.aside = [*(work.aside or ()), record]
            return False
        if effect is not None and effect.state is EffectState.RUNNING:
            done = self._settling.conflict(record, "outcome-unknown", lane, None, holds=True, now_ms=now_ms)
            books.settle(*done, work)
            return False
        return self._start(work, record, now_ms)

    def _last_known(self, work: Work, record: Record, effect: Effect | None, known: Known) -> int | None:
        """The last sequence that has run; in an increasing lane also what a former owner may have run.

        What stands behind an outcome that nobody knows is parked, and what is parked goes by its number. So
        one that came later, and would have been stale, must not go before what may have happened.
        """
        last = work.state.last
        if not (record.parked and self._rules.intents and self._rules.order is Order.INCREASING):
            return last
        if effect is not None and effect.state is EffectState.RUNNING:
            return last
        begun = [
            each.sequence
            for each in known.values()
            if each is not None and each.state is EffectState.RUNNING and each.lane == work.lane
        ]
        return max([*begun, *([] if last is None else [last])], default=None)

    def _place(self, record: Record, last: int | None, first_sequence: int | None) -> Place:
        """Where a record stands in its lane. Without a sequence key it has no number, only its arrival."""
        order = _ARRIVAL if record.sequence_key is None else self._rules.order
        return place(order, record.sequence, last, first_sequence)

    def _decide(self, record: Record, effect: Effect | None, in_turn: bool) -> Decision:
        if effect is not None and (effect.state in FINISHED or effect.run):
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
        if record.misfit:
            record.payload_hash = payload_hash(record.payload, record.value)
            closes = self.closed_by(record, work.state)
            self._books.settle(*self._settling.misfit(record, work.state, closes, now_ms), work)
            return False
        room = self.room
        if self._books.pause is not None or room == 0 or not self._breaker.lets(work.lane, now_ms):
            self._lanes.await_gate(work)
            return None
        if room is not None:
            self.room = room - 1
        return True

    def _parked_of(self, work: Work, now_ms: int) -> list[Record]:
        """The next followers of a lane; none when the pipeline's decoder cannot read them now."""
        found = self._ledger.parked(work.lane, work.cursor, self._rules.max_run)
        try:
            followers = revive_all(found, work.lane, self._envelope, self._home)
        except HandlerSignal as signal:
            self._lanes.rest(work, now_ms + read_again_ms(signal))
            return []
        for record in followers:
            record.redelivered = self._redelivery.had(Channel.SOURCE, record.offset)
        return followers

    # -- commands

    def _judge_command(self, work: Work, record: Record, known: Known, now_ms: int) -> bool | None:
        """Apply an operator's command, or refuse it; answers as `_judge_first` does.

        It waits until all that was settled before is durable: it was decided on what is.
        """
        command = record.command
        assert command is not None
        if work.barrier > self._lanes.committed:
            self._lanes.await_commit(work)
            return None
        if not command.rule.needs_case:
            return self._judge_caseless(work, record, command, known, now_ms)
        case = self._ledger.case(command.case_id)
        effect = None
        if case is not None and case.effect_key:
            if self._is_undecided(case.effect_key, work):
                return None
            record.effect_key = case.effect_key
            self._ledger.read_effects((record,), known)
            effect = self._ledger.effect(case.effect_key, known)
        why = refusal(command, case, work.state, effect)
        if not why and command.sequence is not None and command.action == "set-next":
            why = self._refusal_of_next(command.sequence, work)
        needs_bytes = command.rule.runs or (command.action == "mark-done" and effect is None)
        if not why and needs_bytes and case is not None and case.record is not None:
            try:
                why = revive_case(record, case, command.value, self._envelope, self._home)
            except HandlerSignal as signal:
                self._lanes.rest(work, now_ms + read_again_ms(signal))
                return None
        if why or case is None:
            self._books.settle(self._resolving.refused(record, why, now_ms), None, work)
            return False
        if command.rule.runs:
            return self._run_again(work, record, case, effect, now_ms)
        self._books.settle(*self._resolving.resolved(record, command, case, effect, work.state, now_ms), work)
        return False

    def _is_undecided(self, effect_key: str, work: Work) -> bool:
        """Whether an effect is in hand, or what is known of it could still be lost: then the lane waits."""
        if effect_key in self._in_hand:
            self._in_hand.wait(effect_key, work)
            return True
        if not self._ledger.is_committed(effect_key):
            self._lanes.await_commit(work)
            return True
        return False

    def _run_again(
        self, work: Work, record: Record, case: Case, effect: Effect | None, now_ms: int
    ) -> bool | None:
        """The held record is to run: as the next attempt, with its budget of retries renewed."""
        record.attempt = case.attempts + 1
        record.first_failed_ms = effect.first_failed_ms if effect is not None else 0
        record.prior = effect
        started = effect is not None and effect.state is EffectState.RUNNING
        if started and effect is not None and effect.attempt == record.attempt:
            # This very command has begun it before, and nobody knows how that ended.
            done = self._settling.conflict(
                record, "outcome-unknown", work.state, case, holds=True, now_ms=now_ms
            )
            self._books.settle(*done, work)
            return False
        if work.rest_until_ms > now_ms:
            return None  # what needs no handler is applied meanwhile, a replay waits like any delivery
        return self._start(work, record, now_ms)

    def _judge_caseless(
        self, work: Work, record: Record, command: Command, known: Known, now_ms: int
    ) -> bool | None:
        """A command about a lane, or about what it has done with; answers as `_judge_first` does."""
        if command.letter is not None:
            return self._judge_letter(work, record, command, command.letter, known, now_ms)
        if command.repeat is not None:
            return self._judge_repeat(work, record, command.repeat, known, now_ms)
        self._pause(work, record, command, now_ms)
        return False

    def _judge_letter(
        self, work: Work, record: Record, command: Command, letter: Letter, known: Known, now_ms: int
    ) -> bool | None:
        """A dead letter is to run again, as the next attempt; answers as `_judge_first` does."""
        if self._is_undecided(letter.effect_key, work):
            return None
        record.effect_key = letter.effect_key
        self._ledger.read_effects((record,), known)
        effect = self._ledger.effect(letter.effect_key, known)
        rules, why = self._rules, ""
        begun = has_begun(letter, effect)
        if not begun:
            why = refusal_of_letter(letter, work.lane, effect, work.state, rules.order, rules.max_replays)
        if not why and effect is not None:
            try:
                why = revive_letter(record, letter, effect, command.value, self._envelope, self._home)
            except HandlerSignal as signal:
                self._lanes.rest(work, now_ms + read_again_ms(signal))
                return None
        if why or effect is None:
            self._books.settle(self._resolving.refused(record, why, now_ms), None, work)
            return False
        record.attempt = letter.attempt + 1
        record.first_failed_ms = effect.first_failed_ms
        record.prior = effect
        return self._begin(work, record, now_ms, begun=begun)

    def _begin(self, work: Work, record: Record, now_ms: int, *, begun: bool) -> bool | None:
        """Start what a command asks for; where it has begun before, and nobody knows how it ended, a case."""
        if begun:
            # What the lane waits for by now keeps it: two holds of one lane would let each other go.
            holds = work.state.hold is None
            done = self._settling.conflict(
                record, "outcome-unknown", work.state, None, holds=holds, now_ms=now_ms
            )
            self._books.settle(*done, work)
            return False
        if work.rest_until_ms > now_ms:
            return None
        return self._start(work, record, now_ms)

    def _judge_repeat(
        self, work: Work, record: Record, repeat: Repeat, known: Known, now_ms: int
    ) -> bool | None:
        """An effect is to happen once more, as the next attempt; answers as `_judge_first` does."""
        before = None
        for key in filter(None, (repeat.behind, repeat.effect_key)):
            if self._is_undecided(key, work):
                return None
            record.effect_key = key
            self._ledger.read_effects((record,), known)
        if repeat.behind:
            before = self._ledger.effect(repeat.behind, known)
        effect = self._ledger.effect(repeat.effect_key, known)
        begun = has_begun_again(repeat, effect)
        why = "" if begun else refusal_of_repeat(repeat, work.lane, effect, before, work.state)
        if not why and effect is not None:
            try:
                why = revive_letter(record, repeat, effect, None, self._envelope, self._home)
            except HandlerSignal as signal:
                self._lanes.rest(work, now_ms + read_again_ms(signal))
                return None
            if not begun:
                why = why or refusal_of_payload(repeat, effect, record.payload_hash)
        if why or effect is None:
            self._books.settle(self._resolving.refused(record, why, now_ms), None, work)
            return False
        record.attempt = effect.attempt + (not begun)
        record.prior = effect
        return self._begin(work, record, now_ms, begun=begun)

    def _pause(self, work: Work, record: Record, command: Command, now_ms: int) -> None:
        """Pause or resume a lane."""
        books, lane = self._books, work.state
        if why := refusal_of_pause(command, "the lane", paused=lane.pause is not None):
            books.settle(self._resolving.refused(record, why, now_ms), None, work)
        elif command.action == "pause":
            books.settle(*self._resolving.paused(record, command, lane, now_ms), work)
        else:
            books.settle(*self._resolving.resumed(record, command, lane, now_ms), work)
            work.waiting.extendleft(reversed(work.aside or ()))
            work.aside = None

    def _refusal_of_next(self, sequence: int, work: Work) -> str:
        first = self._ledger.parked(work.lane, None, 1)
        return refusal_of_next(
            sequence, work.state, self._rules.first_sequence, first[0][0][1] if first else None
        )
