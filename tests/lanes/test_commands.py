"""Operator commands: what each may do to each kind of case, what it changes, and what it leaves alone."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest

from laneway.lanes.case import REASONS, Case
from laneway.lanes.command import ACTIONS
from laneway.lanes.effect import EffectState
from laneway.lanes.verdict import ACK
from tests.lanes.cases import LATER, POISON, SITUATIONS, UNKNOWN, situation
from tests.lanes.driver import always, value_of
from tests.lanes.operated import Operated

WITH_CASE = [name for name, rule in ACTIONS.items() if rule.needs_case]
PERMITTED = [
    (reason, holds, action)
    for reason, holds in SITUATIONS
    for action in (REASONS[reason].holding if holds else REASONS[reason].loose)
]
FORBIDDEN = [
    (reason, holds, action)
    for (reason, holds), action in product(SITUATIONS, WITH_CASE)
    if (reason, holds, action) not in PERMITTED
]

# What the case's effect is afterwards, by hand from the protocol; "" is: as it was.
UNTOUCHED = {"effect-conflict": "succeeded", "sequence-stale": "", "sequence-gap": ""}
FOLLOWERS = {"sequence-gap": ["a3", "a4"], "outcome-unknown": ["a2", "a3"]}
DISCARDED = {"rejected": "quarantined", **UNTOUCHED}


def members_of(action: str, case: Case, driver: Operated) -> dict[str, Any]:
    """What a command needs besides its case."""
    if action == "set-next":
        return {"sequence": case.sequence + 1}
    if action == "mark-done":
        return {"result_key": "found/it"}
    if action == "replay-with":
        payload = {"of": "a correction"}
        return {"value": value_of("a", case.sequence, effect=case.effect_key, payload=payload)}
    return {}


def picture(driver: Operated) -> dict[str, object]:
    """All that the ledger says, except how far it was read."""
    state = driver.ledger._state
    return {
        "effects": dict(state.effects),
        "lanes": dict(state.lanes),
        "parked": {lane: dict(followers) for lane, followers in state.parked.items()},
        "cases": dict(state.cases),
    }


def test_every_reason_has_its_situation() -> None:
    """No cell of the table of reasons and actions goes untested."""
    cells = {(reason, True) for reason, rule in REASONS.items() if rule.holding}
    cells |= {(reason, False) for reason, rule in REASONS.items() if rule.loose}
    assert set(SITUATIONS) == cells


@pytest.mark.parametrize(("reason", "holds", "action"), PERMITTED)
def test_a_permitted_action_ends_its_case(reason: str, holds: bool, action: str) -> None:
    """What a case permits is applied: one answer, news of the case, the lane goes on in order (S18)."""
    driver, case = situation(reason, holds=holds)
    before, acts = picture(driver), len(driver.acts)
    answer = driver.applied(action, case, **members_of(action, case, driver))
    assert (answer.command_id, answer.action, answer.actor, answer.said) == ("c0", action, "ann", "because")
    assert (answer.case_id, answer.lane, answer.next_case) == (case.case_id, case.lane, "")
    assert driver.cases() == []
    (news,) = driver.news()
    assert (news.case_id, news.resolution, news.command_id) == (case.case_id, action, "c0")
    new = driver.acts[acts:]
    runs = ACTIONS[action].runs
    assert answer.outcome == ("succeeded" if runs else "")
    if runs:
        assert (new[0].effect_key, new[0].attempt) == (case.effect_key, case.attempts + 1)
    followers = FOLLOWERS.get(reason, ["a3"]) if holds else []
    assert [act.effect_key for act in new[runs:]] == followers
    expected = _expected_effect(reason, action)
    if case.effect_key:
        effect = driver.effect(case.effect_key)
        assert (effect.state.name.lower() if effect is not None else "") == expected
        if action == "mark-done" and reason not in UNTOUCHED:
            assert effect is not None
            assert effect.result_key == "found/it"
    if not holds:
        assert picture(driver)["lanes"] == before["lanes"]
    driver.check_at_rest()


def _expected_effect(reason: str, action: str) -> str:
    if ACTIONS[action].runs:
        return "succeeded"
    if action == "mark-done":
        return "succeeded"
    return DISCARDED.get(reason, "discarded")


@pytest.mark.parametrize(("reason", "holds", "action"), FORBIDDEN)
def test_a_forbidden_action_changes_nothing(reason: str, holds: bool, action: str) -> None:
    """What a case does not permit is refused with what it does permit, and changes nothing."""
    driver, case = situation(reason, holds=holds)
    before, acts = picture(driver), list(driver.acts)
    why = driver.refused(action, case, **members_of(action, case, driver))
    assert f"{action} is not permitted" in why
    assert all(name in why for name in case.actions)
    assert picture(driver) == before
    assert driver.acts == acts
    assert driver.news() == []
    driver.check_at_rest()


@pytest.mark.parametrize(("reason", "holds"), SITUATIONS)
def test_the_same_command_twice_is_applied_once(reason: str, holds: bool) -> None:
    """A copy of a command meets a closed case: refused, and nothing changes (compare-and-set)."""
    driver, case = situation(reason, holds=holds)
    action = case.actions[0]
    members = members_of(action, case, driver)
    first, second = driver.command(action, case, **members), driver.command(action, case, **members)
    driver.rest()
    assert driver.answer(first).event == "applied"
    assert driver.answer(second).event == "refused"
    assert "is not open" in driver.answer(second).why
    assert len(driver.news()) == 1
    driver.check_at_rest()


def test_a_case_at_another_version_or_of_another_lane_refuses() -> None:
    """A command compares what its sender saw: version and lane must be those of the open case."""
    driver, case = situation("rejected")
    before = picture(driver)
    assert "at version 1, not 2" in driver.refused("skip", case, version=2)
    assert "another lane" in driver.refused("skip", case, lane="b")
    assert "is not open" in driver.refused("skip", msgspec.structs.replace(case, case_id="no-such-case"))
    assert picture(driver) == before
    driver.check_at_rest()


def test_a_command_waits_for_the_delivery_in_flight() -> None:
    """4.7: a lane that is in a handler's hands is left alone until the verdict is durable."""
    driver = Operated()
    driver.produce_many("a", 1, 2)
    driver.poll()
    (run,) = driver.hand_out()
    driver.step(run)
    driver.command("pause", lane="a")
    driver.poll()
    assert driver.hand_out() == []
    driver.settle()
    assert driver.answers() == []
    assert not driver.step(run), "what would start behind it stays behind the command"
    driver.finish(run)
    driver.rest()
    assert driver.answers()[0].event == "applied"
    lane = driver.lane("a")
    assert lane is not None
    assert lane.last == 1
    assert lane.pause is not None


def test_a_command_is_judged_on_what_is_durable() -> None:
    """4.7: the case that it names was opened by a settlement nobody can lose any more."""
    driver = Operated(handler=always(POISON))
    driver.produce("a", 1)
    driver.poll()
    driver.work()
    (done,) = driver.board._books._settled
    (opened,) = (e.case for e in done.entries if hasattr(e, "case"))
    driver.command("skip", opened)
    driver.poll()
    assert driver.hand_out() == []
    assert driver.board.pending == 1, "the command was judged before the case is durable"
    driver.settle()
    driver.rest()
    assert driver.answer(0).event == "applied"


@pytest.mark.parametrize(
    ("sequence", "why"), [(2, "never goes back"), (1, "never goes back"), (4, "passed over")]
)
def test_set_next_stays_between_what_is_awaited_and_what_is_parked(sequence: int, why: str) -> None:
    """4.7: not below the lane's next, not beyond the first parked record."""
    driver, case = situation("sequence-gap")
    before = picture(driver)
    assert why in driver.refused("set-next", case, sequence=sequence)
    assert picture(driver) == before
    driver.check_at_rest()


def test_set_next_leaves_the_smaller_gap_open() -> None:
    """A lane that is told to wait for 5 of 2..6 opens the gap of 5."""
    driver = Operated()
    driver.produce_many("a", 1, 7)
    driver.rest()
    driver.applied("set-next", driver.case(), sequence=5)
    assert driver.case().sequence == 5
    driver.produce_many("a", 5, 6)
    driver.rest()
    assert driver.effects() == ["a1", "a5", "a6", "a7"]
    driver.check_at_rest()


def test_a_late_predecessor_of_a_skipped_gap_never_runs() -> None:
    """Case 6: 1,2,4,5 arrive, 3 is skipped with a reason, 4 and 5 run; a late 3 is a loose case."""
    driver = Operated()
    driver.produce_many("a", 1, 2, 4, 5)
    driver.rest()
    driver.applied("skip", driver.case("sequence-gap"))
    assert driver.effects() == ["a1", "a2", "a4", "a5"]
    driver.produce_many("a", 3, 6)
    driver.rest()
    late = driver.case("sequence-stale")
    assert not late.holds
    assert driver.effects() == ["a1", "a2", "a4", "a5", "a6"]
    assert "not permitted" in driver.refused("replay", late)
    driver.applied("discard", late)
    driver.check_at_rest()


@pytest.mark.parametrize(("reason", "holds"), [s for s in SITUATIONS if s[0] not in ("sequence-gap",)])
def test_a_copy_of_what_was_marked_done_is_a_duplicate(reason: str, holds: bool) -> None:
    """mark-done keeps the payload's hash, so later copies are suppressed and open nothing."""
    driver, case = situation(reason, holds=holds)
    if reason == "effect-conflict":
        return  # there the success of the other payload stands, and a copy contradicts it again
    driver.applied("mark-done", case)
    acts = len(driver.acts)
    raw = case.record
    assert raw is not None
    driver.produce_raw(raw.value)
    driver.rest()
    assert driver.cases() == []
    assert len(driver.acts) == acts
    assert driver.ends[-1].reason == "succeeded"
    driver.check_at_rest()


@pytest.mark.parametrize("reason", ["outcome-unknown", "unclassified-failure", "attempts-exhausted"])
def test_a_copy_of_what_was_discarded_is_a_duplicate(reason: str) -> None:
    """A decision holds for the copies, too: nobody is asked twice about the same bytes."""
    driver, case = situation(reason)
    driver.applied("discard", case)
    raw = case.record
    assert raw is not None
    driver.produce_raw(raw.value)
    driver.rest()
    assert driver.cases() == []
    assert driver.ends[-1].reason == "discarded"
    driver.check_at_rest()


def test_a_decision_about_one_delivery_leaves_anothers_effect_alone() -> None:
    """4.7: an effect becomes discarded only if it is this position's and unfinished."""
    driver = Operated(handler=lambda r: LATER if r.effect_key == "x" else ACK)
    driver.produce("b", 1, effect="x")
    driver.turn()
    driver.produce("a", 1, effect="x", payload={"of": "something else"})
    driver.turn()
    driver.turn()
    conflict = driver.case("effect-conflict")
    driver.command("discard", conflict)
    driver.turn()
    driver.turn()
    effect = driver.effect("x")
    assert effect is not None
    assert effect.state is EffectState.RETRY_WAIT
    driver.handler = always(ACK)
    driver.rest()
    assert driver.effects() == ["x"]
    driver.check_at_rest()


@pytest.mark.parametrize("action", ["mark-done", "discard"])
def test_a_loose_case_is_decided_beside_a_hold_for_the_same_effect(action: str) -> None:
    """What the lane waits for is another record: the decision about this delivery ends its effect."""
    driver, case = situation("outcome-unknown", holds=False)
    driver.produce("a", 4, effect="a1", payload={"of": "something else"})
    driver.rest()
    assert driver.cases() == ["effect-conflict", "outcome-unknown"]
    driver.applied(action, case)
    effect = driver.effect("a1")
    assert effect is not None
    assert effect.state is (EffectState.SUCCEEDED if action == "mark-done" else EffectState.DISCARDED)
    driver.applied("skip", driver.case("effect-conflict"))
    driver.check_at_rest()


def test_a_command_waits_for_a_decision_about_its_effect_in_another_lane() -> None:
    """Two decisions about one effect: the second one is judged when the first one is durable."""
    driver = Operated(handler=lambda r: UNKNOWN if r.lane == "kb" else ACK)
    driver.produce("b", 1, effect="x")
    driver.rest()
    driver.produce("a", 1, effect="x", payload={"of": "something else"})
    driver.rest()
    theirs, ours = driver.case("unclassified-failure"), driver.case("effect-conflict")
    driver.handler = always(ACK)
    driver.command("discard", theirs)
    driver.command("replay", ours)
    driver.poll()
    assert driver.hand_out() == []
    assert driver.board.pending == 1
    driver.settle()
    assert len(driver.hand_out()) == 1
    driver.rest()
    assert driver.effects() == ["x"]
    driver.check_at_rest()


def test_two_cases_of_one_lane_are_decided_apart() -> None:
    """A loose case beside the holding one moves nothing."""
    driver, case = situation("rejected")
    driver.produce("a", 1, effect="late")
    driver.rest()
    driver.applied("mark-done", driver.case("sequence-stale"))
    lane = driver.lane("a")
    assert lane is not None
    assert lane.hold is not None
    assert lane.hold.case_id == case.case_id
    assert driver.effects() == ["a1"]
    driver.applied("skip", case)
    assert driver.effects() == ["a1", "a3"]
    driver.check_at_rest()


def test_commands_of_one_lane_are_applied_in_order() -> None:
    """Each sees what the one before it has done."""
    driver = Operated()
    driver.produce_many("a", 1, 3, 6)
    driver.rest()
    first = driver.case()
    driver.command("skip", first)
    driver.rest()
    second = driver.case()
    assert second.sequence == 4
    driver.command("set-next", second, sequence=5)
    driver.command("skip", second)
    driver.rest()
    assert [answer.event for answer in driver.answers()] == ["applied", "applied", "refused"]
    assert driver.case().sequence == 5
    driver.check_at_rest()
