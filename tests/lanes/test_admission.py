"""The admission tables, cell by cell, against the same tables written out by hand here.

The words of the expectations are those of the protocol, not of the code: a changed cell fails.
"""

from __future__ import annotations

from itertools import product

import pytest

from laneway.lanes.admission import (
    IN_TURN,
    IN_TURN_OF_ONE,
    PASSED,
    PLACES,
    Decision,
    Held,
    Order,
    Place,
    Standing,
    held,
    may_run_held,
    next_sequence,
    place,
    standing,
)
from laneway.lanes.case import REASONS
from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.lane import Hold, HoldKind, Lane

EXPECTED_STEPS = {
    #                FREE             FOR_PREDECESSOR   FOR_DECISION    PAUSED
    "BELOW":  ("judge passed",  "judge passed",   "judge passed", "judge passed"),
    "NEXT":   ("judge in turn", "judge in turn",  "park",         "park"),
    "BEYOND": ("open gap",      "park",           "park",         "park"),
}  # fmt: skip

EXPECTED_DECISIONS = {
    #                     in turn                    in turn, lane of one       passed
    "UNKNOWN":           ("run",                    "run",                    "case sequence-stale"),
    "FINISHED_SAME":     ("duplicate",              "duplicate",              "duplicate"),
    "FINISHED_OTHER":    ("hold effect-conflict",   "hold effect-conflict",   "case effect-conflict"),
    "QUARANTINED_OTHER": ("hold effect-conflict",   "run",                    "case effect-conflict"),
    "OWN_INTENT":        ("hold outcome-unknown",   "hold outcome-unknown",   "case outcome-unknown"),
    "OWN_OPEN":          ("hold effect-conflict",   "hold effect-conflict",   "case sequence-stale"),
    "FOREIGN_OPEN":      ("hold effect-conflict",   "hold effect-conflict",   "case sequence-stale"),
}  # fmt: skip


def words(decision: Decision) -> str:
    """A decision in the words of the expectations."""
    return f"{decision.action.name.lower()} {decision.reason}".strip()


@pytest.mark.parametrize(("where", "waits"), PLACES, ids=lambda part: part.name)
def test_a_place_and_a_hold_give_this_step(where: Place, waits: Held) -> None:
    """Every cell of place and hold answers as the protocol says (S16)."""
    column = ("FREE", "FOR_PREDECESSOR", "FOR_DECISION", "PAUSED").index(waits.name)
    step = PLACES[where, waits].name.lower().replace("_", " ")
    assert step == EXPECTED_STEPS[where.name][column]


@pytest.mark.parametrize("known", IN_TURN, ids=lambda part: part.name)
def test_an_effect_in_turn_gives_this_decision(known: Standing) -> None:
    """Every cell of the judgement in turn answers as the protocol says (S12)."""
    assert words(IN_TURN[known]) == EXPECTED_DECISIONS[known.name][0]


@pytest.mark.parametrize("known", IN_TURN_OF_ONE, ids=lambda part: part.name)
def test_an_effect_without_a_sequence_key_gives_this_decision(known: Standing) -> None:
    """Every cell for a record without a sequence key; only a correction after a quarantine differs."""
    assert words(IN_TURN_OF_ONE[known]) == EXPECTED_DECISIONS[known.name][1]


@pytest.mark.parametrize("known", PASSED, ids=lambda part: part.name)
def test_an_effect_that_the_lane_has_passed_gives_this_decision(known: Standing) -> None:
    """Every cell for a number the lane has passed; none of them holds the lane."""
    assert words(PASSED[known]) == EXPECTED_DECISIONS[known.name][2]


def test_no_combination_is_missing() -> None:
    """The tables answer for every combination, and the expectations know every one of them."""
    assert set(PLACES) == set(product(Place, Held))
    assert set(EXPECTED_STEPS) == {where.name for where in Place}
    for table in (IN_TURN, IN_TURN_OF_ONE, PASSED):
        assert set(table) == set(Standing)
    assert set(EXPECTED_DECISIONS) == {known.name for known in Standing}


def test_every_reason_of_a_decision_has_a_rule_for_the_person_who_gets_it() -> None:
    """No decision opens a case for which nobody could say what to check (S18)."""
    for table, holds in ((IN_TURN, True), (IN_TURN_OF_ONE, True), (PASSED, False)):
        for decision in table.values():
            if decision.reason:
                rule = REASONS[decision.reason]
                assert rule.required_check
                assert rule.holding if holds else rule.loose


@pytest.mark.parametrize(
    ("order", "last", "first", "sequence", "expected"),
    [
        (Order.CONTIGUOUS, None, 1, 0, Place.BELOW),
        (Order.CONTIGUOUS, None, 1, 1, Place.NEXT),
        (Order.CONTIGUOUS, None, 1, 2, Place.BEYOND),
        (Order.CONTIGUOUS, None, None, 77, Place.NEXT),
        (Order.CONTIGUOUS, None, 0, 0, Place.NEXT),
        (Order.CONTIGUOUS, 4, 1, 4, Place.BELOW),
        (Order.CONTIGUOUS, 4, 1, 5, Place.NEXT),
        (Order.CONTIGUOUS, 4, None, 6, Place.BEYOND),
        (Order.INCREASING, None, 1, 0, Place.NEXT),
        (Order.INCREASING, None, 1, 9, Place.NEXT),
        (Order.INCREASING, 4, 1, 4, Place.BELOW),
        (Order.INCREASING, 4, 1, 3, Place.BELOW),
        (Order.INCREASING, 4, 1, 9, Place.NEXT),
        (Order.ARRIVAL, 4, 1, 0, Place.NEXT),
        (Order.ARRIVAL, None, 1, 0, Place.NEXT),
    ],
)
def test_a_number_has_this_place(
    order: Order, last: int | None, first: int | None, sequence: int, expected: Place
) -> None:
    """`contiguous` knows gaps, `increasing` only backwards, `arrival` neither."""
    assert place(order, sequence, last, first) is expected


def test_a_lane_waits_for_the_number_after_its_last() -> None:
    """The next sequence is the one after `last`, or the configured first one, or any."""
    assert next_sequence(6, 1) == 7
    assert next_sequence(None, 3) == 3
    assert next_sequence(None, None) is None


def hold(kind: HoldKind, *, effect_key: str = "e", attempt: int = 2) -> Lane:
    """A held lane."""
    return Lane(4, Hold(kind, effect_key, 5, 10, attempt, "reason", "", 1))


def test_a_gap_waits_for_its_predecessor_and_all_else_for_a_decision() -> None:
    """Only a gap can be healed by a record from the source."""
    assert held(Lane(4)) is Held.FREE
    assert held(hold(HoldKind.GAP)) is Held.FOR_PREDECESSOR
    assert held(hold(HoldKind.RETRY)) is Held.FOR_DECISION
    assert held(hold(HoldKind.CASE)) is Held.FOR_DECISION


@pytest.mark.parametrize(
    ("lane", "effect_key", "offset", "attempt", "expected"),
    [
        (hold(HoldKind.RETRY), "e", 10, 2, True),
        (hold(HoldKind.RETRY), "e", 10, 1, False),
        (hold(HoldKind.RETRY), "e", 10, 3, False),
        (hold(HoldKind.RETRY), "e", 9, 2, False),
        (hold(HoldKind.RETRY), "other", 10, 2, False),
        (hold(HoldKind.CASE), "e", 10, 2, False),
        (hold(HoldKind.GAP), "e", 10, 2, False),
        (Lane(4), "e", 10, 2, False),
    ],
)
def test_only_the_awaited_attempt_runs(
    lane: Lane, effect_key: str, offset: int, attempt: int, *, expected: bool
) -> None:
    """A held record runs by its own retry with the lane's current attempt, by nothing else.

    Found by the simulation (seed 447930): a copy of an older record of the same effect was taken for it.
    """
    assert may_run_held(lane, effect_key, offset, attempt) is expected


OWN, OTHER = 10, 11
EXPECTED_STANDINGS = {
    # state                     own position         another position
    EffectState.QUEUED:      ("UNKNOWN",           "UNKNOWN"),
    EffectState.RUNNING:     ("OWN_INTENT",        "FOREIGN_OPEN"),
    EffectState.RETRY_WAIT:  ("OWN_OPEN",          "FOREIGN_OPEN"),
    EffectState.IN_REVIEW:   ("OWN_OPEN",          "FOREIGN_OPEN"),
    EffectState.SUCCEEDED:   ("FINISHED_OTHER",    "FINISHED_OTHER"),
    EffectState.DISCARDED:   ("FINISHED_OTHER",    "FINISHED_OTHER"),
    EffectState.QUARANTINED: ("QUARANTINED_OTHER", "QUARANTINED_OTHER"),
}  # fmt: skip


@pytest.mark.parametrize("state", EffectState, ids=lambda state: state.name)
def test_what_the_ledger_knows_of_an_effect_stands_like_this(state: EffectState) -> None:
    """State, position and payload place an effect; the payload counts only once it is finished (S13)."""
    effect = Effect(state, "m", OWN, "ka", 5, 1, b"one", 1, 1, None, "", 1)
    other = tuple(standing(effect, offset, b"two").name for offset in (OWN, OTHER))
    assert other == EXPECTED_STANDINGS[state]
    same = {standing(effect, offset, b"one").name for offset in (OWN, OTHER)}
    finished = state.name in {"SUCCEEDED", "DISCARDED", "QUARANTINED"}
    assert same == ({"FINISHED_SAME"} if finished else set(EXPECTED_STANDINGS[state]))


def test_an_absent_effect_is_unknown() -> None:
    """What the ledger never heard of has not happened."""
    assert standing(None, OWN, b"one") is Standing.UNKNOWN
