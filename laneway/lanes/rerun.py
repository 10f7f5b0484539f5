"""The rerun: an effect that has happened is to happen once more, because somebody says so.

May it, and must it wait? A repeat is a delivery of its lane like any other: one at a time with the normal
flow, behind what waits for its retry, and it moves no number. It has a run number, and an effect happens once
for each. In one rerun the effects of a lane go in their order: each names the one before it, which has to
have succeeded in that rerun. Reads nothing, writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from laneway.lanes.canonical import RULE
from laneway.lanes.command import Command, Repeat
from laneway.lanes.effect import OPEN, Effect, EffectState
from laneway.lanes.lane import HoldKind, Lane
from laneway.lanes.record import Record


def waits_behind(command: Command | None, lane: Lane) -> bool:
    """Whether a repeat lets its lane go on first: what waits for its retry ends by itself."""
    is_repeat = command is not None and command.repeat is not None
    return is_repeat and lane.hold is not None and lane.hold.kind is HoldKind.RETRY


def next_command(commands: Iterable[Record], lane: Lane) -> Record | None:
    """The first one that need not wait; a repeat that waits for a retry is not in the way of the others."""
    return next((record for record in commands if not waits_behind(record.command, lane)), None)


def has_begun_again(repeat: Repeat, effect: Effect | None) -> bool:
    """Whether this very run of the effect has begun before, and nobody knows how it ended."""
    return (
        effect is not None
        and effect.state is EffectState.RUNNING
        and (effect.offset, effect.run) == (repeat.offset, repeat.run)
    )


def refusal_of_effect(repeat: Repeat, effect: Effect | None) -> str:
    """Why an effect may not be repeated, whatever its lane does; "" when it may."""
    name = f"effect {repeat.effect_key!r}"
    if effect is None:
        return f"the ledger knows nothing of {name}, so there is nothing to repeat"
    if effect.offset != repeat.offset:
        return f"{name} was made by offset {effect.offset}; the record of {repeat.offset} was a copy of it"
    if effect.state in OPEN:
        case = f" in case {effect.case_id}" if effect.case_id else ""
        return f"{name} is open{case}; that has to end first"
    if effect.run > repeat.run:
        return f"{name} was repeated since, in run {effect.run}"
    if effect.run == repeat.run:
        return f"{name} has ended run {repeat.run} already, as {effect.state.name.lower()}"
    if effect.state is not EffectState.SUCCEEDED:
        return f"{name} has not succeeded, it is {effect.state.name.lower()}: there is nothing to repeat"
    return ""


def refusal_of_repeat(
    repeat: Repeat, lane_id: str, effect: Effect | None, before: Effect | None, lane: Lane
) -> str:
    """Why a repeat may not run now, in plain words; "" when it may.

    Args:
        lane_id: the lane that its sender takes it for.
        before: the effect that has to have succeeded in this rerun; None where none is named, or known.
        lane: its lane.
    """
    if why := refusal_of_effect(repeat, effect):
        return why
    assert effect is not None, "asked before"
    if effect.lane != lane_id:
        return f"effect {repeat.effect_key!r} belongs to another key"
    if lane.pause is not None:
        return "the lane is paused, so nothing of it may run; resume it first"
    if lane.hold is not None:
        return f"case {lane.hold.case_id} of its key is open; that has to be decided first"
    if repeat.behind and not _has_succeeded(before, repeat.run):
        return f"effect {repeat.behind!r} of its key has not succeeded in run {repeat.run}"
    return ""


def refusal_of_payload(repeat: Repeat, effect: Effect, payload_hash: bytes) -> str:
    """Why these bytes may not stand for the effect; "" when they may.

    A person may have corrected the value that it succeeded with, and the topic has the one that was wrong.
    """
    if is_same_payload(effect, payload_hash):
        return ""
    return (
        f"effect {repeat.effect_key!r} has succeeded with another payload than its record has: with a "
        "corrected one, which nobody can send from here"
    )


def is_same_payload(effect: Effect, payload_hash: bytes) -> bool:
    """Whether an effect happened with this payload, as far as its hash can tell."""
    return effect.rule != RULE or effect.payload_hash in {b"", payload_hash}


def _has_succeeded(effect: Effect | None, run: int) -> bool:
    return effect is not None and effect.state is EffectState.SUCCEEDED and effect.run >= run
