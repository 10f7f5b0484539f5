"""The states of an effect: every pair of them is legal or an error, as written out by hand here (S3)."""

from __future__ import annotations

from itertools import product

import pytest

from laneway.lanes.effect import (
    FINISHED,
    OPEN,
    TRANSITIONS,
    Effect,
    EffectState,
    IllegalTransitionError,
    check_transition,
)

#                 to:  QUEUED RUNNING RETRY_WAIT SUCCEEDED QUARANTINED IN_REVIEW DISCARDED
EXPECTED = {
    "QUEUED":      ("-",   "yes",   "yes",     "yes",     "yes",      "yes",    "yes"),
    "RUNNING":     ("-",   "-",     "yes",     "yes",     "yes",      "yes",    "yes"),
    "RETRY_WAIT":  ("-",   "yes",   "yes",     "yes",     "yes",      "yes",    "yes"),
    "SUCCEEDED":   ("-",   "-",     "-",       "-",       "-",        "-",      "-"),
    "QUARANTINED": ("-",   "yes",   "yes",     "yes",     "yes",      "yes",    "yes"),
    "IN_REVIEW":   ("-",   "yes",   "yes",     "yes",     "yes",      "yes",    "yes"),
    "DISCARDED":   ("-",   "yes",   "yes",     "yes",     "yes",      "yes",    "-"),
}  # fmt: skip
COLUMNS = ("QUEUED", "RUNNING", "RETRY_WAIT", "SUCCEEDED", "QUARANTINED", "IN_REVIEW", "DISCARDED")


def an_effect(state: EffectState) -> Effect:
    """An effect in this state."""
    return Effect(state, "m", 10, "ka", 5, 1, b"hash", 1, 1, None, "", 1)


@pytest.mark.parametrize(
    ("before", "after"), list(product(EffectState, EffectState)), ids=lambda state: state.name
)
def test_a_transition_is_legal_or_an_error(before: EffectState, after: EffectState) -> None:
    """Each pair of states is a step of the table or raises, with the effect named (S3)."""
    legal = EXPECTED[before.name][COLUMNS.index(after.name)] == "yes"
    assert (after in TRANSITIONS[before]) is legal
    if legal:
        check_transition("job-7", an_effect(before), after)
    else:
        with pytest.raises(IllegalTransitionError, match="job-7") as caught:
            check_transition("job-7", an_effect(before), after)
        assert before.name.lower() in str(caught.value)


def test_no_state_is_missing() -> None:
    """The table and the expectations know every state."""
    assert set(TRANSITIONS) == set(EffectState)
    assert set(EXPECTED) == set(COLUMNS) == {state.name for state in EffectState}


@pytest.mark.parametrize("after", EffectState, ids=lambda state: state.name)
def test_an_absent_effect_is_queued(after: EffectState) -> None:
    """What the ledger does not know may take the steps of a queued effect, and no others."""
    if after in TRANSITIONS[EffectState.QUEUED]:
        check_transition("job-7", None, after)
    else:
        with pytest.raises(IllegalTransitionError):
            check_transition("job-7", None, after)


def test_open_and_finished_are_the_two_halves() -> None:
    """Every effect that was ever handed out is either open or finished, never both."""
    assert not OPEN & FINISHED
    assert set(EffectState) - {EffectState.QUEUED} == OPEN | FINISHED
    assert {state.name for state in OPEN} == {"RUNNING", "RETRY_WAIT", "IN_REVIEW"}
