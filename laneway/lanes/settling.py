"""From a decision or a verdict to a settlement: which entries, which forwards, which lane next.

Everything a delivery changes is decided here and returned as one value, so that it becomes
durable in one write or not at all. Reads nothing, writes nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from laneway.lanes.admission import Order, next_sequence
from laneway.lanes.canonical import RULE, payload_hash
from laneway.lanes.case import Case, case_id, required_check
from laneway.lanes.effect import Effect, EffectState, check_transition
from laneway.lanes.forward import Forwarder, Home, raw_of, with_raw
from laneway.lanes.lane import NEW_LANE, Hold, HoldKind, Lane, Parked
from laneway.lanes.record import Channel, Record, effect_of, is_lane_of_one, replay_of, run_of
from laneway.lanes.rules import Rules
from laneway.lanes.settlement import Settled, Settlement
from laneway.lanes.verdict import Ack, Outcome, Reject, Retry, Review
from laneway.lanes.view import PutCase, PutEffect, PutLane, PutParked

# Named for every record: to look up an enum's member costs a dozen times what a global does (Python 3.11).
_SUCCEEDED: Final = EffectState.SUCCEEDED
_SAVED: Final = Settled.SUCCEEDED
_ARRIVAL: Final = Order.ARRIVAL


class Settling:
    """Makes the settlements of one source partition.

    Each method returns the settlement and the lane as it stands after it.
    """

    def __init__(self, home: Home, rules: Rules) -> None:
        self._home = home
        self._rules = rules
        self._forward = Forwarder(home)

    def verdict(
        self, record: Record, outcome: Outcome, lane: Lane, closes: Case | None, now_ms: int
    ) -> tuple[Settlement, Lane]:
        """The end of a delivery that a handler, or the validation before it, has judged.

        Args:
            closes: the open case that ends with it: of the gap that this record heals, or the one whose
                record a command has run.
        """
        verdict = outcome.verdict
        if outcome.cause == "unknown-contract-version" and self._rules.hold_unknown_version:
            verdict = Review(outcome.cause, "")
        match verdict:
            case Ack():
                done, after = self._succeeded(record, verdict.result_key, lane, now_ms)
                for number, emitted in enumerate(outcome.emitted):
                    done.forwards.append(self._forward.emitted(record, number, emitted))
            case Retry() if record.attempt - _base(record, lane) <= len(self._rules.delays_ms):
                done, after = self._retry(record, verdict, lane, now_ms)
            case Retry():
                exhausted = msgspec.structs.replace(outcome, verdict=Review(verdict.reason, ""))
                done, after = self._review(record, exhausted, "attempts-exhausted", lane, now_ms)
            case Reject():
                done, after = self._reject(record, verdict, outcome, lane, now_ms)
            case Review():
                reason = outcome.cause if outcome.cause in _REVIEW_REASONS else "review-requested"
                done, after = self._review(record, outcome, reason, lane, now_ms)
            case _:
                raise AssertionError(f"{type(verdict).__name__} settles nothing")
        if record.command is not None:
            self._answer(done, record, closes, now_ms)
            if record.command.letter is not None:
                done.events.append(("letter_replayed", record.command.letter.forward_id))
        return self._closing(done, record, lane, after, closes, now_ms), after

    def misfit(self, record: Record, lane: Lane, closes: Case | None, now_ms: int) -> tuple[Settlement, Lane]:
        """The turn of a record that can be placed but not read: no handler sees it."""
        return self.verdict(record, Outcome(Reject(record.misfit), record.misfit), lane, closes, now_ms)

    def unusable(self, record: Record, now_ms: int) -> Settlement:
        """A record without a usable envelope: DLQ at once, out of turn, no effect to remember."""
        done = Settlement(record, Settled.QUARANTINED, [], record.fault)
        done.forwards.append(
            self._forward.dead_letter(
                record, attempt=1, reason=record.fault, error_class="", case_id="", now_ms=now_ms
            )
        )
        return done

    def duplicate(
        self,
        record: Record,
        effect: Effect,
        lane: Lane,
        closes: Case | None,
        *,
        in_turn: bool,
        now_ms: int,
    ) -> tuple[Settlement, Lane]:
        """The effect is finished with the same payload: nothing runs, and in turn `last` advances."""
        done = Settlement(record, Settled.DUPLICATE, [], effect.state.name.lower(), effect.result_key)
        after = self.moved_past(done, record, lane) if in_turn else self._leave(done, record, lane)
        return self._closing(done, record, lane, after, closes, now_ms), after

    def dropped(self, record: Record, reason: str) -> Settlement:
        """A copy that may not run and changes nothing."""
        how = Settled.SKIPPED if record.skip else Settled.DUPLICATE
        return Settlement(record, how, [], reason)

    def park(
        self, record: Record, lane: Lane, now_ms: int, closes: Case | None = None
    ) -> tuple[Settlement, Lane]:
        """Store a follower of a held lane, so that its offset may be committed.

        Args:
            closes: the case of the gap that this record heals, on a lane that an operator has paused: its
                turn comes when the lane goes on, so nothing is missing from now on.
        """
        reason = "paused" if lane.pause is not None else lane.hold.reason if lane.hold is not None else ""
        done = Settlement(record, Settled.PARKED, [], reason)
        done.ends = False
        freed = lane if closes is None else msgspec.structs.replace(lane, hold=None)
        after = self._put_parked(done, record, freed, now_ms)
        done.entries.append(PutLane(record.lane, after))
        return self._closing(done, record, lane, after, closes, now_ms), after

    def gap(self, record: Record, lane: Lane, now_ms: int) -> tuple[Settlement, Lane]:
        """The first record beyond a gap: hold the lane, open the case, park the record."""
        missing = next_sequence(lane.last, self._rules.first_sequence)
        assert missing is not None, "a lane that adopts any sequence has no gap"
        ident = self._case_id("sequence-gap", record.lane, str(missing))
        # A follower that was parked already stays where it is; only the lane learns of the gap.
        how = Settled.SKIPPED if record.parked else Settled.PARKED
        done = Settlement(record, how, [], "sequence-gap")
        done.ends = False
        done.events.append(("gap_detected", f"missing {missing}"))
        self._open(
            done,
            Case(
                case_id=ident,
                reason="sequence-gap",
                cause="",
                holds=True,
                lane=record.lane,
                sequence=missing,
                effect_key="",
                message_id="",
                offset=record.origin_offset,
                attempts=0,
                required_check=required_check(
                    "sequence-gap", effect_key="", sequence=missing, lane=record.lane[1:]
                ),
                opened_ms=now_ms,
            ),
            now_ms,
        )
        hold = Hold(HoldKind.GAP, "", missing, record.origin_offset, 1, "sequence-gap", ident, now_ms)
        after = msgspec.structs.replace(lane, hold=hold)
        if not record.parked:
            after = self._put_parked(done, record, after, now_ms)
        done.entries.append(PutLane(record.lane, after))
        return done, after

    def conflict(
        self, record: Record, reason: str, lane: Lane, closes: Case | None, *, holds: bool, now_ms: int
    ) -> tuple[Settlement, Lane]:
        """A record that contradicts the ledger: a case, which holds the lane only in turn.

        The effect in the ledger stays as it is, for it belongs to another delivery; only an intent of this
        very one, whose outcome nobody knows, goes into review.
        """
        done = Settlement(record, Settled.IN_REVIEW, [], reason)
        opened = self._delivery_case(
            record, reason, reason, Outcome(Review(reason, ""), reason), holds, now_ms
        )
        self._open(done, opened, now_ms)
        if reason == "outcome-unknown":
            self._put_effect(done, record, EffectState.IN_REVIEW, reason, now_ms, ident=opened.case_id)
        if record.command is not None:
            self._answer(done, record, closes, now_ms)
        after = self._hold(done, record, lane, opened, now_ms) if holds else self._leave(done, record, lane)
        return self._closing(done, record, lane, after, closes, now_ms), after

    # -- the verdicts

    def acked(self, record: Record, result_key: str | None, now_ms: int) -> Settlement:
        """The first Ack of an effect, from the source and in turn; its lane is moved with the last of them.

        What `verdict` says of such a record, without its questions: see `moved_past`.
        """
        if not record.payload_hash:
            record.payload_hash = payload_hash(record.payload, record.value)
        effect = Effect(
            _SUCCEEDED,
            record.message_id,
            record.origin_offset,
            record.lane,
            record.sequence,
            record.version,
            record.payload_hash,
            RULE,
            record.attempt,
            result_key,
            "",
            now_ms,
            record.first_failed_ms,
        )
        return Settlement(record, _SAVED, [PutEffect(record.effect_key, effect)], "", result_key)

    def _succeeded(
        self, record: Record, result_key: str | None, lane: Lane, now_ms: int
    ) -> tuple[Settlement, Lane]:
        run = run_of(record)
        done = Settlement(record, Settled.SUCCEEDED, [], f"run {run}" if run else "", result_key)
        self._put_effect(done, record, EffectState.SUCCEEDED, "", now_ms, result_key=result_key)
        return done, self.moved_past(done, record, lane)

    def _retry(self, record: Record, verdict: Retry, lane: Lane, now_ms: int) -> tuple[Settlement, Lane]:
        base = _base(record, lane)
        due_ms = now_ms + self._rules.delays_ms[record.attempt - base - 1]
        done = Settlement(record, Settled.RETRY_WAIT, [], verdict.reason)
        self._put_effect(done, record, EffectState.RETRY_WAIT, verdict.reason, now_ms, due_ms=due_ms)
        attempt = record.attempt + 1
        done.forwards.append(
            self._forward.retry(record, attempt=attempt, due_ms=due_ms, reason=verdict.reason, now_ms=now_ms)
        )
        hold = Hold(
            HoldKind.RETRY,
            record.effect_key,
            record.sequence,
            record.origin_offset,
            attempt,
            verdict.reason,
            "",
            lane.hold.since_ms if lane.hold is not None else now_ms,
            due_ms,
            base,
        )
        after = self._unpark(done, record, msgspec.structs.replace(lane, hold=hold))
        done.entries.append(PutLane(record.lane, after))
        if lane.hold is None:
            done.events.append(("lane_held", "retry"))
        return done, after

    def _reject(
        self, record: Record, verdict: Reject, outcome: Outcome, lane: Lane, now_ms: int
    ) -> tuple[Settlement, Lane]:
        done = Settlement(record, Settled.QUARANTINED, [], verdict.reason)
        # What is replayed or repeated holds nothing when it is refused: its lane had moved past it, and goes
        # on.
        came_back = replay_of(record) is not None or run_of(record) > 0
        holds = not (self._rules.pass_after_reject or came_back or is_lane_of_one(record.lane))
        opened = (
            self._delivery_case(record, "rejected", outcome.cause, outcome, holds=True, now_ms=now_ms)
            if holds
            else None
        )
        ident = opened.case_id if opened is not None else ""
        self._put_effect(done, record, EffectState.QUARANTINED, verdict.reason, now_ms, ident=ident)
        done.forwards.append(
            self._forward.dead_letter(
                record,
                attempt=record.attempt,
                reason=verdict.reason,
                error_class=outcome.error_class or outcome.detail,
                case_id=ident,
                now_ms=now_ms,
                fingerprint=outcome.fingerprint,
            )
        )
        if opened is None:
            return done, self.moved_past(done, record, lane)
        self._open(done, opened, now_ms)
        return done, self._hold(done, record, lane, opened, now_ms)

    def _review(
        self, record: Record, outcome: Outcome, reason: str, lane: Lane, now_ms: int
    ) -> tuple[Settlement, Lane]:
        done = Settlement(record, Settled.IN_REVIEW, [], reason)
        opened = self._delivery_case(record, reason, outcome.cause, outcome, holds=True, now_ms=now_ms)
        self._put_effect(done, record, EffectState.IN_REVIEW, reason, now_ms, ident=opened.case_id)
        self._open(done, opened, now_ms)
        return done, self._hold(done, record, lane, opened, now_ms)

    # -- the pieces

    def _put_effect(
        self,
        done: Settlement,
        record: Record,
        state: EffectState,
        reason: str,
        now_ms: int,
        *,
        result_key: str | None = None,
        due_ms: int = 0,
        ident: str = "",
    ) -> None:
        # Who commands a replay has looked: what the ledger says of the effect is not in the way any more.
        check_transition(record.effect_key, None if record.command else record.prior, state)
        if not record.payload_hash:
            # No handler came to take it, and copies must be known by it whatever a person decides.
            record.payload_hash = payload_hash(record.payload, record.value)
        failed_ms = record.first_failed_ms or (0 if state is EffectState.SUCCEEDED else now_ms)
        effect = effect_of(
            record,
            state,
            now_ms,
            failed_ms,
            reason=reason,
            result_key=result_key,
            due_ms=due_ms,
            case_id=ident,
        )
        done.entries.append(PutEffect(record.effect_key, effect))

    def moved_past(self, done: Settlement, record: Record, lane: Lane) -> Lane:
        """The record is done in order: the lane is free, and `last` is its sequence."""
        numbered = record.sequence_key is not None and self._rules.order is not _ARRIVAL
        parked, parked_bytes = lane.parked, lane.parked_bytes
        if record.parked:
            parked, parked_bytes = parked - 1, parked_bytes - record.size_bytes
            done.entries.append(PutParked(_parked_key(record), None))
        if numbered:
            # A replayed dead letter may be one that the lane has passed: it never goes back.
            last = record.sequence if lane.last is None else max(lane.last, record.sequence)
            after = Lane(last, None, parked, parked_bytes, lane.pause)
            done.entries.append(PutLane(record.lane, after))
        elif parked or lane.pause is not None:
            after = Lane(None, None, parked, parked_bytes, lane.pause)
            done.entries.append(PutLane(record.lane, after))
        else:
            after = NEW_LANE
            if lane != NEW_LANE:
                done.entries.append(PutLane(record.lane, None))
        return after

    def _leave(self, done: Settlement, record: Record, lane: Lane) -> Lane:
        """The record goes and the lane stays where it was."""
        if not record.parked:
            return lane
        after = self._unpark(done, record, lane)
        done.entries.append(PutLane(record.lane, after))
        return after

    def _hold(self, done: Settlement, record: Record, lane: Lane, opened: Case, now_ms: int) -> Lane:
        """One holding case for the lane; the record's bytes are in the case, no longer parked."""
        hold = Hold(
            HoldKind.CASE,
            record.effect_key,
            record.sequence,
            record.origin_offset,
            record.attempt,
            opened.reason,
            opened.case_id,
            now_ms,
        )
        after = self._unpark(done, record, msgspec.structs.replace(lane, hold=hold))
        done.entries.append(PutLane(record.lane, after))
        done.events.append(("lane_held", opened.reason))
        return after

    def _put_parked(self, done: Settlement, record: Record, lane: Lane, now_ms: int) -> Lane:
        raw = raw_of(record)
        stored = Parked(record.message_id, record.effect_key, record.version, now_ms, raw)
        done.entries.append(PutParked(_parked_key(record), stored))
        return msgspec.structs.replace(
            lane, parked=lane.parked + 1, parked_bytes=lane.parked_bytes + raw.size_bytes()
        )

    def _unpark(self, done: Settlement, record: Record, lane: Lane) -> Lane:
        if not record.parked:
            return lane
        done.entries.append(PutParked(_parked_key(record), None))
        return msgspec.structs.replace(
            lane, parked=lane.parked - 1, parked_bytes=lane.parked_bytes - record.size_bytes
        )

    def _delivery_case(
        self, record: Record, reason: str, cause: str, outcome: Outcome, holds: bool, now_ms: int
    ) -> Case:
        verdict = outcome.verdict
        asked = verdict.required_check if isinstance(verdict, Review) else ""
        return Case(
            case_id=self._case_id(reason, record.lane, f"{record.origin_offset}/{record.attempt}"),
            reason=reason,
            cause=outcome.error_class or outcome.detail or cause,
            note=_own_words(outcome),
            holds=holds,
            lane=record.lane,
            sequence=record.sequence,
            effect_key=record.effect_key,
            message_id=record.message_id,
            offset=record.origin_offset,
            attempts=record.attempt,
            required_check=asked
            or required_check(
                reason, effect_key=record.effect_key, sequence=record.sequence, lane=record.lane[1:]
            ),
            opened_ms=now_ms,
            fingerprint=outcome.fingerprint,
            record=raw_of(record),
        )

    def _case_id(self, reason: str, lane: str, about: str) -> str:
        return case_id(reason, self._home.topic, self._home.partition, lane, about)

    def _open(self, done: Settlement, case: Case, now_ms: int) -> None:
        done.entries.append(PutCase(case.case_id, case))
        done.events.append(("review_opened", case.case_id))
        done.forwards.append(
            self._forward.news(case, done.record, event="opened", resolution=None, now_ms=now_ms)
        )
        if case.reason == "sequence-gap":
            done.events.append(("lane_held", case.reason))

    def _closing(
        self, done: Settlement, record: Record, lane: Lane, after: Lane, closes: Case | None, now_ms: int
    ) -> Settlement:
        """The same settlement, with the case that it closes and the hold that it ends."""
        if closes is not None:
            command = record.command
            how = command.action if command is not None else "predecessor-arrived"
            self.close(done, closes, record, how, now_ms)
        if lane.hold is not None and after.hold is None:
            done.events.append(("lane_released", lane.hold.reason))
        return done

    def _answer(self, done: Settlement, record: Record, closes: Case | None, now_ms: int) -> None:
        """Tell who sent the command what its delivery came to, and keep what a corrected value replaced."""
        command = record.command
        opened = next((e.case_id for e in done.entries if type(e) is PutCase and e.case is not None), "")
        done.forwards.append(
            self._forward.answer(
                record, why="", outcome=done.how.name.lower(), next_case=opened, now_ms=now_ms
            )
        )
        replaced = closes.record if closes is not None else None
        if command is None or command.action != "replay-with" or replaced is None or closes is None:
            return
        if closes.reason != "rejected":  # that one lies in the DLQ already
            done.forwards.append(
                self._forward.dead_letter(
                    with_raw(record, replaced),
                    attempt=closes.attempts,
                    reason="replaced",
                    error_class=closes.cause,
                    case_id=closes.case_id,
                    now_ms=now_ms,
                )
            )

    def close(self, done: Settlement, case: Case, record: Record, resolution: str, now_ms: int) -> None:
        """Add to a settlement that a case is resolved by it."""
        done.entries.append(PutCase(case.case_id, None))
        done.events.append(("review_resolved", case.case_id))
        done.forwards.append(
            self._forward.news(case, record, event="resolved", resolution=resolution, now_ms=now_ms)
        )


_REVIEW_REASONS = frozenset(
    {"unclassified-failure", "unknown-contract-version", "review-requested", "outcome-unknown"}
)


def _parked_key(record: Record) -> tuple[str, int, int]:
    return (record.lane, record.sequence, record.origin_offset)


def _base(record: Record, lane: Lane) -> int:
    """Attempts that do not count against the retry budget: an accepted replay renews it."""
    if record.command is not None:
        return record.attempt - 1
    hold = lane.hold
    return hold.base if record.channel is Channel.RETRY and hold is not None else 0


def _own_words(outcome: Outcome) -> str:
    """What the handler's author said, unless it is only the fixed word for saying nothing."""
    verdict = outcome.verdict
    if isinstance(verdict, Retry | Reject | Review) and verdict.reason != outcome.cause:
        return verdict.reason
    return ""
