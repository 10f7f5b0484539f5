"""Admission: the tables that decide what a record in front of its lane gets.

Two questions, two tables. *Where does it stand in the lane?* `PLACES` answers with a step.
*What does the ledger know of its effect?* `IN_TURN` and `PASSED` answer with a decision. The
tables are data, each cell has a generated test, and no other code decides. They are asked with numbers: the
hash of any other Enum is a call in Python, and every record asks.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import Final

import msgspec

from laneway.lanes.effect import FINISHED, Effect, EffectState
from laneway.lanes.lane import HoldKind, Lane


class Order(Enum):
    """What the numbers of a lane mean."""

    CONTIGUOUS = "contiguous"
    INCREASING = "increasing"
    ARRIVAL = "arrival"


class Place(IntEnum):
    """A record's sequence beside the lane's `last`."""

    BELOW = auto()
    NEXT = auto()
    BEYOND = auto()


class Held(IntEnum):
    """What the lane waits for, as far as admission cares."""

    FREE = auto()
    FOR_PREDECESSOR = auto()
    FOR_DECISION = auto()
    PAUSED = auto()


class Step(Enum):
    """What `PLACES` answers."""

    JUDGE_IN_TURN = auto()
    JUDGE_PASSED = auto()
    OPEN_GAP = auto()
    PARK = auto()


PLACES: dict[tuple[Place, Held], Step] = {
    # The lane has passed this number; held or not, nothing waits for it.
    (Place.BELOW, Held.FREE): Step.JUDGE_PASSED,
    (Place.BELOW, Held.FOR_PREDECESSOR): Step.JUDGE_PASSED,
    (Place.BELOW, Held.FOR_DECISION): Step.JUDGE_PASSED,
    (Place.BELOW, Held.PAUSED): Step.JUDGE_PASSED,
    (Place.NEXT, Held.FREE): Step.JUDGE_IN_TURN,
    # The missing predecessor itself: the gap heals.
    (Place.NEXT, Held.FOR_PREDECESSOR): Step.JUDGE_IN_TURN,
    # A copy of the held record; the held one runs by its retry or by a command only.
    (Place.NEXT, Held.FOR_DECISION): Step.PARK,
    (Place.NEXT, Held.PAUSED): Step.PARK,
    (Place.BEYOND, Held.FREE): Step.OPEN_GAP,
    (Place.BEYOND, Held.FOR_PREDECESSOR): Step.PARK,
    # A follower of a waiting record is never a gap.
    (Place.BEYOND, Held.FOR_DECISION): Step.PARK,
    # Judged when the lane goes on: whether there is a gap shows then.
    (Place.BEYOND, Held.PAUSED): Step.PARK,
}


class Standing(IntEnum):
    """What the ledger knows of the record's effect."""

    UNKNOWN = auto()
    FINISHED_SAME = auto()
    FINISHED_OTHER = auto()
    QUARANTINED_OTHER = auto()
    OWN_INTENT = auto()
    OWN_OPEN = auto()
    FOREIGN_OPEN = auto()


class Action(Enum):
    """What happens to the record."""

    RUN = auto()
    DUPLICATE = auto()
    HOLD = auto()
    CASE = auto()


class Decision(msgspec.Struct, frozen=True):
    """An action, and for HOLD and CASE the reason of the case it opens."""

    action: Action
    reason: str = ""


_RUN = Decision(Action.RUN)
_DUPLICATE = Decision(Action.DUPLICATE)

IN_TURN: dict[Standing, Decision] = {
    Standing.UNKNOWN: _RUN,
    Standing.FINISHED_SAME: _DUPLICATE,
    Standing.FINISHED_OTHER: Decision(Action.HOLD, "effect-conflict"),
    Standing.QUARANTINED_OTHER: Decision(Action.HOLD, "effect-conflict"),
    Standing.OWN_INTENT: Decision(Action.HOLD, "outcome-unknown"),
    Standing.OWN_OPEN: Decision(Action.HOLD, "effect-conflict"),
    Standing.FOREIGN_OPEN: Decision(Action.HOLD, "effect-conflict"),
}

# Without a sequence key nothing follows, so a changed payload after a quarantine is a correction.
IN_TURN_OF_ONE: dict[Standing, Decision] = {**IN_TURN, Standing.QUARANTINED_OTHER: _RUN}

PASSED: dict[Standing, Decision] = {
    Standing.UNKNOWN: Decision(Action.CASE, "sequence-stale"),
    Standing.FINISHED_SAME: _DUPLICATE,
    Standing.FINISHED_OTHER: Decision(Action.CASE, "effect-conflict"),
    Standing.QUARANTINED_OTHER: Decision(Action.CASE, "effect-conflict"),
    Standing.OWN_INTENT: Decision(Action.CASE, "outcome-unknown"),
    Standing.OWN_OPEN: Decision(Action.CASE, "sequence-stale"),
    Standing.FOREIGN_OPEN: Decision(Action.CASE, "sequence-stale"),
}


# Named for every record: to look up an enum's member costs a dozen times what a global does (Python 3.11).
_ARRIVAL: Final = Order.ARRIVAL
_INCREASING: Final = Order.INCREASING
_BELOW: Final = Place.BELOW
_NEXT: Final = Place.NEXT
_FREE: Final = Held.FREE
_UNKNOWN: Final = Standing.UNKNOWN


def next_sequence(last: int | None, first_sequence: int | None) -> int | None:
    """The sequence a contiguous lane waits for; None when any first one will do."""
    return last + 1 if last is not None else first_sequence


def place(order: Order, sequence: int, last: int | None, first_sequence: int | None) -> Place:
    """Where a sequence stands beside the lane's `last`.

    Args:
        first_sequence: what a new lane starts with; None adopts the first one seen.
    """
    if order is _ARRIVAL:
        return _NEXT
    if order is _INCREASING:
        return _BELOW if last is not None and sequence <= last else _NEXT
    expected = next_sequence(last, first_sequence)
    if expected is None or sequence == expected:
        return _NEXT
    return _BELOW if sequence < expected else Place.BEYOND


def held(lane: Lane) -> Held:
    """What the lane waits for, as far as admission cares."""
    if lane.pause is not None:
        return Held.PAUSED
    if lane.hold is None:
        return _FREE
    return Held.FOR_PREDECESSOR if lane.hold.kind is HoldKind.GAP else Held.FOR_DECISION


def standing(effect: Effect | None, origin_offset: int, payload_hash: bytes) -> Standing:
    """What the ledger knows of an effect, seen from one record.

    Args:
        payload_hash: needed only when the effect is finished, or repeated; else ignored.
    """
    if effect is None or effect.state is EffectState.QUEUED:
        return _UNKNOWN
    # What is repeated on purpose has happened, whatever the repeat came to: a copy of it changes nothing.
    repeated = effect.run > 0 and effect.offset != origin_offset
    if effect.state in FINISHED or repeated:
        if payload_hash in (effect.payload_hash, effect.succeeded):
            return Standing.FINISHED_SAME
        corrigible = not repeated and effect.succeeded is None
        quarantined = effect.state is EffectState.QUARANTINED and corrigible
        return Standing.QUARANTINED_OTHER if quarantined else Standing.FINISHED_OTHER
    if effect.offset != origin_offset:
        return Standing.FOREIGN_OPEN
    return Standing.OWN_INTENT if effect.state is EffectState.RUNNING else Standing.OWN_OPEN


def may_run_held(lane: Lane, effect_key: str, offset: int, attempt: int) -> bool:
    """Whether a retry copy is the one delivery that the held lane waits for.

    The attempt is counted in the ledger, so an older copy, or a second one, never runs. Nor does one of
    another record: retention may have forgotten its effect, which is then begun anew, and counted anew.

    Args:
        offset: of the record in its source topic.
    """
    hold = lane.hold
    return (
        hold is not None
        and hold.kind is HoldKind.RETRY
        and (hold.effect_key, hold.offset, hold.attempt) == (effect_key, offset, attempt)
    )
