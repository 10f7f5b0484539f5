"""The dead letter again: may it run, and does it still stand in the order of its key?

Asked twice, with the same words: by who previews a replay, with a ledger that may be a moment old, and by the
lane's owner, whose answer counts. Reads nothing, writes nothing.

A rejected record is over: its lane has moved past it, or a case holds the lane, and then that case decides.
So a replay is a delivery out of turn that a person answers for. It is *in order* while nothing of its key
came after it; else who wants it has to say so.
"""

from __future__ import annotations

from laneway.lanes.admission import Order
from laneway.lanes.command import Letter
from laneway.lanes.effect import OPEN, Effect, EffectState
from laneway.lanes.lane import Lane
from laneway.lanes.record import is_lane_of_one


def refusal_of_letter(
    letter: Letter, lane_id: str, effect: Effect | None, lane: Lane, order: Order, max_replays: int
) -> str:
    """Why a dead letter may not run now, in plain words; "" when it may.

    Args:
        lane_id: the lane that its sender takes it for.
        effect: what the ledger knows of its effect.
        lane: its lane.
    """
    return _refusal_of_effect(letter, lane_id, effect, max_replays) or _refusal_of_lane(
        letter, lane_id, effect, lane, order
    )


def is_over(letter: Letter, effect: Effect | None) -> bool:
    """Whether nothing is left to replay: its effect happened, was given up, or was refused again since."""
    if effect is None or effect.state in OPEN:
        return False
    return effect.state is not EffectState.QUARANTINED or _is_superseded(letter, effect)


def comes_late(lane_id: str, sequence: int, lane: Lane, order: Order) -> str:
    """Why a replay of this number would be out of order, in plain words; "" while it is in order."""
    if is_lane_of_one(lane_id):
        return ""
    if order is Order.ARRIVAL:
        return "its key has no numbers, so later records of it may have run"
    if lane.last is None or lane.last == sequence:
        return ""
    return f"its key has moved on to sequence {lane.last}, and this one is {sequence}"


def has_begun(letter: Letter, effect: Effect | None) -> bool:
    """Whether the very delivery that a letter asks for has begun before, and nobody knows how it ended."""
    return (
        effect is not None
        and effect.state is EffectState.RUNNING
        and (effect.offset, effect.attempt) == (letter.offset, letter.attempt + 1)
    )


def _refusal_of_effect(letter: Letter, lane_id: str, effect: Effect | None, max_replays: int) -> str:
    name = f"effect {letter.effect_key!r}"
    if effect is None:
        return f"the ledger knows nothing of {name}, so nobody can tell whether it has happened"
    if effect.lane != lane_id:
        return f"{name} belongs to another key"
    if effect.state is EffectState.SUCCEEDED:
        return f"{name} has succeeded, by offset {effect.offset}: nothing is left to replay"
    if effect.state is EffectState.DISCARDED:
        return f"{name} was given up by an operator ({effect.reason})"
    if effect.state in OPEN:
        case = f" in case {effect.case_id}" if effect.case_id else ""
        return f"{name} is open by offset {effect.offset}{case}; that has to end first"
    if _is_superseded(letter, effect):
        return (
            f"{name} was refused again since, by offset {effect.offset}, attempt {effect.attempt}: "
            "that is the dead letter to replay"
        )
    count = effect.replay.count if effect.replay is not None else 0
    if count >= max_replays:
        return f"{name} was replayed {count} times and refused each time (lanes.max_replays = {max_replays})"
    return ""


def _refusal_of_lane(letter: Letter, lane_id: str, effect: Effect | None, lane: Lane, order: Order) -> str:
    hold = lane.hold
    if hold is not None:
        if hold.case_id:
            return f"case {hold.case_id} of its key is open; that has to be decided first"
        return f"its key waits for a retry of effect {hold.effect_key!r}; that has to end first"
    if lane.pause is not None:
        return "the lane is paused, so nothing of it may run; resume it first"
    assert effect is not None, "asked before"
    late = comes_late(lane_id, effect.sequence, lane, order)
    if late and not letter.out_of_order:
        return f"it would run out of order: {late}"
    return ""


def _is_superseded(letter: Letter, effect: Effect) -> bool:
    return (effect.offset, effect.attempt) != (letter.offset, letter.attempt)
