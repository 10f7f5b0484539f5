"""Resolving: what an operator's command does to a case, a lane or the partition, when it runs nothing.

Two questions, in this order. *May it?* `refusal` compares the command with what the ledger knows now, so that
a decision made on yesterday's picture changes nothing. *What does it change?* `Resolving` answers with the
settlement and the lane after it, like any delivery's. A command that runs the held record is settled by that
run's verdict instead (`settling`). Reads nothing, writes nothing.
"""

from __future__ import annotations

import msgspec

from laneway.lanes.admission import Order, next_sequence
from laneway.lanes.canonical import RULE
from laneway.lanes.case import Case
from laneway.lanes.command import Command
from laneway.lanes.effect import OPEN, Effect, EffectState, check_transition
from laneway.lanes.forward import Forwarder, Home
from laneway.lanes.lane import NEW_LANE, Lane, Pause
from laneway.lanes.record import Record, is_lane_of_one
from laneway.lanes.rules import Rules
from laneway.lanes.settlement import Settled, Settlement
from laneway.lanes.settling import Settling
from laneway.lanes.view import PutEffect, PutLane


def refusal(command: Command, case: Case | None, lane: Lane, effect: Effect | None) -> str:
    """Why a command about a case may not be applied now, in plain words; "" when it may.

    Args:
        case: the open case of that id; None when none is open.
        effect: the case's effect.
    """
    if case is None:
        return f"case {command.case_id} is not open: it is resolved, or never was"
    if case.version != command.version:
        return f"case {command.case_id} has changed: it is at version {case.version}, not {command.version}"
    if case.lane != command.lane:
        return f"case {command.case_id} belongs to another lane"
    if command.action not in case.actions:
        permitted = ", ".join(case.actions)
        return f"{command.action} is not permitted for {case.reason}; permitted: {permitted}"
    if not command.rule.runs:
        return ""
    if lane.pause is not None:
        return "the lane is paused, so nothing of it may run; resume it first"
    if effect is not None and effect.state in OPEN and effect.offset != case.offset:
        return f"effect {case.effect_key!r} is open by offset {effect.offset}; that one has to end first"
    return ""


def refusal_of_pause(command: Command, what: str, *, paused: bool) -> str:
    """Why a lane, or the partition, is not paused, or not resumed; "" when it is."""
    if command.action == "pause" and paused:
        return f"{what} is paused already"
    if command.action == "resume" and not paused:
        return f"{what} is not paused"
    return ""


def refusal_of_next(sequence: int, lane: Lane, first_sequence: int | None, first_parked: int | None) -> str:
    """Why a lane may not be told to wait for this sequence; "" when it may.

    Args:
        first_parked: the lowest sequence that is parked behind the lane; None without any.
    """
    waits_for = next_sequence(lane.last, first_sequence)
    if waits_for is not None and sequence <= waits_for:
        return f"the lane waits for {waits_for}, and a lane never goes back"
    if first_parked is not None and sequence > first_parked:
        return f"sequence {first_parked} is parked and would be passed over; at most {first_parked}"
    return ""


class Resolving:
    """Makes the settlements of commands that run nothing. Each method returns the lane after it, too."""

    def __init__(self, home: Home, rules: Rules, settling: Settling) -> None:
        self._rules = rules
        self._settling = settling
        self._forward = Forwarder(home)

    def refused(self, record: Record, why: str, now_ms: int) -> Settlement:
        """The command changes nothing, and its sender hears why."""
        done = Settlement(record, Settled.SKIPPED, [], "command-refused")
        done.forwards.append(self._forward.answer(record, why=why, now_ms=now_ms))
        return done

    def resolved(
        self, record: Record, command: Command, case: Case, effect: Effect | None, lane: Lane, now_ms: int
    ) -> tuple[Settlement, Lane]:
        """Skip, discard, mark-done, set-next: the case closes, and a lane that it held moves on.

        Args:
            record: the command's, with the payload hash of the case's record where one is asked for.
        """
        done = self._applied(record, command.action, now_ms)
        changed = self._effect_after(record, command, case, effect, lane, now_ms)
        if changed is not None:
            done.entries.append(PutEffect(case.effect_key, changed))
        after = lane
        if case.holds:
            after = self._moved_past(case, command, lane)
            done.entries.append(PutLane(case.lane, None if after == NEW_LANE else after))
            assert lane.hold is not None
        self._settling.close(done, case, record, command.action, now_ms)
        if case.holds and lane.hold is not None:
            done.events.append(("lane_released", lane.hold.reason))
        return done, after

    def paused(self, record: Record, command: Command, lane: Lane, now_ms: int) -> tuple[Settlement, Lane]:
        """Nothing of the lane starts any more."""
        done = self._applied(record, command.action, now_ms)
        after = msgspec.structs.replace(lane, pause=pause_of(command, now_ms))
        done.entries.append(PutLane(record.lane, after))
        done.events.append(("lane_held", "paused"))
        return done, after

    def resumed(self, record: Record, command: Command, lane: Lane, now_ms: int) -> tuple[Settlement, Lane]:
        """The lane goes on where it was."""
        done = self._applied(record, command.action, now_ms)
        after = msgspec.structs.replace(lane, pause=None)
        done.entries.append(PutLane(record.lane, None if after == NEW_LANE else after))
        done.events.append(("lane_released", "paused"))
        return done, after

    def switched(self, record: Record, command: Command, now_ms: int) -> Settlement:
        """The whole partition was paused or resumed; that stands in the meta entry."""
        return self._applied(record, command.action, now_ms)

    def _applied(self, record: Record, action: str, now_ms: int) -> Settlement:
        done = Settlement(record, Settled.SKIPPED, [], action)
        done.forwards.append(self._forward.answer(record, why="", now_ms=now_ms))
        return done

    def _moved_past(self, case: Case, command: Command, lane: Lane) -> Lane:
        """The lane without its hold; its next number is the one behind the case, or the one asked for."""
        last = lane.last
        if not is_lane_of_one(case.lane) and self._rules.order is not Order.ARRIVAL:
            last = command.sequence - 1 if command.sequence is not None else case.sequence
            # The case of a replayed dead letter may be about a number that the lane has passed.
            last = last if lane.last is None else max(last, lane.last)
        return msgspec.structs.replace(lane, last=last, hold=None)

    @staticmethod
    def _effect_after(
        record: Record, command: Command, case: Case, effect: Effect | None, lane: Lane, now_ms: int
    ) -> Effect | None:
        """The effect as the command leaves it; None when it does not touch it.

        Only what this very position has begun is the operator's to end: another's success stays, and what
        the lane still waits for goes its own way.
        """
        if not case.effect_key or command.action == "set-next":
            return None
        is_done = command.action == "mark-done"
        target = EffectState.SUCCEEDED if is_done else EffectState.DISCARDED
        if effect is None:
            return _marked(record, command, case, now_ms) if is_done else None
        about = (case.effect_key, case.offset)
        hold = lane.hold
        awaited = not case.holds and hold is not None and (hold.effect_key, hold.offset) == about
        if effect.offset != case.offset or awaited:
            return None
        is_over = effect.state is EffectState.SUCCEEDED or (not is_done and effect.state not in OPEN)
        if is_over:
            return None
        check_transition(case.effect_key, effect, target)
        return msgspec.structs.replace(
            effect,
            state=target,
            result_key=command.result_key if is_done else None,
            reason=command.action,
            changed_ms=now_ms,
            due_ms=0,
            case_id="",
        )


def pause_of(command: Command, now_ms: int) -> Pause:
    """Who pauses, why, and since when."""
    return Pause(command.actor, command.reason, now_ms)


def _marked(record: Record, command: Command, case: Case, now_ms: int) -> Effect:
    """An effect that the ledger has never seen and a person has: later copies are duplicates."""
    return Effect(
        EffectState.SUCCEEDED,
        case.message_id,
        case.offset,
        case.lane,
        case.sequence,
        record.version,
        record.payload_hash,
        RULE,
        case.attempts,
        command.result_key,
        command.action,
        now_ms,
    )
