"""`on_unknown_outcome = "review"`: nothing starts that the ledger does not know of, nothing runs blindly."""

from __future__ import annotations

import pytest

from laneway.lanes.admission import Order
from laneway.lanes.effect import EffectState
from laneway.lanes.failures import Unavailable, classify
from laneway.lanes.rules import Rules
from laneway.lanes.verdict import ACK
from tests.lanes.cases import LATER, UNKNOWN, situation
from tests.lanes.driver import always
from tests.lanes.operated import Operated

REVIEW = Rules(intents=True, delays_ms=(1000,))
DOWN = classify(Unavailable(1000), ())


def state(driver: Operated, effect_key: str) -> str:
    """What the ledger says of an effect, in a word."""
    effect = driver.effect(effect_key)
    return effect.state.name.lower() if effect is not None else ""


def intend(driver: Operated) -> None:
    """Judge what may start, and make its intent durable."""
    assert driver.hand_out() == [], "a handler starts before its intent is durable"
    driver.settle()


def test_a_handler_starts_only_when_its_intent_is_durable() -> None:
    """4.3: the ledger knows of every effect that may have happened, before it may."""
    driver = Operated(REVIEW)
    driver.produce("a", 1)
    driver.poll()
    assert driver.hand_out() == []
    assert driver.write()
    assert driver.hand_out() == [], "written is not durable"
    driver.sync()
    assert state(driver, "a1") == "running"
    assert len(driver.hand_out()) == 1


def test_each_run_waits_for_the_cycle_of_its_own_intent() -> None:
    """With two cycles under way, the first one that is durable starts only what it carried."""
    driver = Operated(REVIEW)
    driver.produce("a", 1)
    driver.poll()
    driver.hand_out()
    first = driver.board.cut(driver.now_ms)
    driver.produce("b", 1)
    driver.poll()
    driver.hand_out()
    second = driver.board.cut(driver.now_ms)
    assert first is not None
    assert second is not None
    driver.board.committed(first)
    assert [run.lane for run in driver.board.next_runs(10, driver.now_ms)] == ["ka"]
    driver.board.committed(second)
    assert [run.lane for run in driver.board.next_runs(10, driver.now_ms)] == ["kb"]


@pytest.mark.parametrize("started", [False, True])
def test_an_intent_without_an_outcome_is_never_run_blindly(started: bool) -> None:
    """4.3: a crash between intent and outcome opens one case, whether the handler was reached or not (S7)."""
    driver = Operated(REVIEW)
    driver.produce("a", 1)
    driver.produce("b", 1)
    driver.poll()
    intend(driver)
    if started:
        for run in driver.hand_out():
            driver.step(run)
    driver.crash()
    acts = len(driver.acts)
    driver.rest()
    assert driver.cases() == ["outcome-unknown"] * 2
    assert len(driver.acts) == acts
    case = driver.ledger.cases()[0]
    assert case.actions == ("mark-done", "run-again", "discard")
    assert case.effect_key in case.required_check
    driver.check_at_rest()


def test_an_intent_that_was_not_durable_is_no_intent() -> None:
    """The power failed before the cycle was synced: nothing has started, so nobody is asked."""
    driver = Operated(REVIEW)
    driver.produce("a", 1)
    driver.poll()
    driver.hand_out()
    driver.write()
    driver.crash(lose_unsynced=True)
    driver.rest()
    assert driver.effects() == ["a1"]
    assert driver.cases() == []
    driver.check_at_rest()


def test_what_came_later_does_not_go_before_what_may_have_happened() -> None:
    """Parked records of an increasing lane go by number; a stale one stays stale through a crash (S7)."""
    driver = Operated(Rules(intents=True, order=Order.INCREASING))
    driver.produce_many("a", 1, 5, 7)
    driver.poll()
    intend(driver)
    for run in driver.hand_out():
        driver.step(run)
    driver.produce_many("a", 2)
    driver.crash()
    driver.rest()
    assert driver.cases() == ["outcome-unknown"]
    done = driver.effects()
    driver.applied("discard", driver.case("outcome-unknown"))
    assert driver.effects() == done, "2 ran although 5 and 7 may have"
    assert sorted(driver.cases()) == ["outcome-unknown", "sequence-stale"]


def test_a_retry_is_not_run_blindly_either() -> None:
    """The second attempt has its own intent; its crash asks about that attempt."""
    driver = Operated(REVIEW, handler=always(LATER))
    driver.produce_many("a", 1, 2)
    for _ in range(3):
        driver.turn()
    driver.now_ms += 1000
    driver.poll()
    intend(driver)
    (run,) = driver.hand_out()
    driver.handler = always(ACK)
    driver.step(run)
    driver.crash()
    driver.rest()
    case = driver.case("outcome-unknown")
    assert (case.attempts, case.holds) == (2, True)
    driver.applied("mark-done", case)
    assert driver.effects() == ["a1", "a2"]
    driver.check_at_rest()


def test_a_parked_follower_is_not_run_blindly_either() -> None:
    """A follower that was released and begun is asked about in its turn."""
    driver, case = situation("sequence-gap")
    driver.rules = REVIEW
    driver.crash()
    driver.rest()
    driver.command("skip", case)
    while not (runs := driver.hand_out()):
        driver.turn()
    driver.step(runs[0])
    driver.crash()
    driver.rest()
    unknown = driver.case("outcome-unknown")
    assert unknown.effect_key == "a3"
    driver.applied("mark-done", unknown)
    # Of one run nobody can know how far it came: each of it is a question, in its turn.
    driver.applied("run-again", driver.case("outcome-unknown"))
    assert driver.effects() == ["a1", "a3", "a4"]
    driver.check_at_rest()


def test_a_crash_in_a_replay_opens_the_question_and_closes_the_case() -> None:
    """4.7: the replay's case goes with what became of the replay, which is that nobody knows."""
    driver, case = situation("rejected")
    driver.rules = REVIEW
    driver.crash()
    driver.rest()
    driver.command("replay", case)
    driver.poll()
    intend(driver)
    (run,) = driver.hand_out()
    driver.step(run)
    driver.crash()
    acts = len(driver.acts)
    driver.rest()
    unknown = driver.case("outcome-unknown")
    assert (unknown.attempts, unknown.holds) == (2, True)
    (answer,) = driver.answers()
    assert (answer.outcome, answer.next_case) == ("in_review", unknown.case_id)
    assert len(driver.acts) == acts
    driver.applied("run-again", unknown)
    assert [act.attempt for act in driver.acts if act.effect_key == "a2"] == [1, 2, 3]
    driver.check_at_rest()


def test_what_did_not_start_of_a_run_is_withdrawn() -> None:
    """A run that stops at its first failure leaves no question about those behind it."""
    driver = Operated(REVIEW, handler=lambda r: UNKNOWN if r.effect_key == "a2" else ACK)
    driver.produce_many("a", 1, 2, 3, 4)
    driver.rest()
    assert [state(driver, f"a{n}") for n in (1, 2, 3, 4)] == ["succeeded", "in_review", "", ""]
    driver.crash()
    driver.rest()
    assert driver.cases() == ["unclassified-failure"]
    driver.applied("skip", driver.case())
    assert driver.effects() == ["a1", "a3", "a4"]
    driver.check_at_rest()


def test_a_handler_that_finds_its_dependency_down_has_not_begun() -> None:
    """Unavailable says that nothing was tried: the effect is what it was, and a crash asks nobody."""
    driver = Operated(REVIEW, handler=always(DOWN))
    driver.produce("a", 1)
    for _ in range(4):
        driver.turn()
    assert state(driver, "a1") == ""
    driver.crash()
    driver.handler = always(ACK)
    driver.rest()
    assert driver.effects() == ["a1"]
    assert driver.cases() == []
    driver.check_at_rest()


def test_a_retry_that_finds_its_dependency_down_is_a_retry_again() -> None:
    """Withdrawing an intent gives the effect back as it was, with its attempt and its reason."""
    driver = Operated(REVIEW, handler=always(LATER))
    driver.produce("a", 1)
    for _ in range(3):
        driver.turn()
    before = driver.effect("a1")
    driver.handler = always(DOWN)
    driver.now_ms += 1000
    for _ in range(4):
        driver.turn()
    assert driver.effect("a1") == before
    driver.handler = always(ACK)
    driver.rest()
    assert driver.effects() == ["a1"]
    driver.check_at_rest()


def test_stopping_gives_back_what_waits_for_its_intent() -> None:
    """A worker that leaves withdraws what no handler has seen: the next owner runs it and asks nobody."""
    driver = Operated(REVIEW)
    driver.produce_many("a", 1, 2)
    driver.produce("b", 1)
    driver.poll()
    intend(driver)
    driver.board.stop(driver.now_ms)
    assert driver.hand_out() == []
    driver.settle()
    assert [state(driver, key) for key in ("a1", "a2", "b1")] == ["", "", ""]
    driver.crash()
    driver.rest()
    assert sorted(driver.effects()) == ["a1", "a2", "b1"]
    assert driver.cases() == []
    driver.check_at_rest()


@pytest.mark.parametrize("action", ["mark-done", "run-again", "discard"])
def test_a_person_ends_an_unknown_outcome(action: str) -> None:
    """4.3: it happened, it did not and shall, or it shall not; in each case the lane goes on in order."""
    driver, case = situation("outcome-unknown")
    acts = len(driver.acts)
    driver.applied(action, case)
    ran = [act.effect_key for act in driver.acts[acts:]]
    assert ran == (["a1", "a2", "a3"] if action == "run-again" else ["a2", "a3"])
    effect = driver.effect("a1")
    assert effect is not None
    assert effect.state is (EffectState.DISCARDED if action == "discard" else EffectState.SUCCEEDED)
    driver.crash()
    driver.rest()
    assert driver.cases() == []
    driver.check_at_rest()


def test_no_effect_runs_twice_whatever_crashes() -> None:
    """4.3, invariant 3: with `review` a second run never comes about without a person."""
    for crash_after in range(1, 12):
        driver = Operated(REVIEW)
        driver.produce_many("a", 1, 2)
        driver.produce("b", 1)
        for number in range(60):
            driver.poll(1)
            for run in driver.hand_out():
                driver.step(run)
                if number % crash_after == 0:
                    break
                driver.finish(run)
            if number % crash_after == 0:
                driver.crash(lose_unsynced=number % 2 == 0)
            else:
                driver.settle()
        driver.rest()
        assert len(driver.effects()) == len(set(driver.effects()))
        assert set(driver.cases()) <= {"outcome-unknown"}
        while driver.cases():
            driver.applied("mark-done", driver.ledger.cases()[0])
        driver.check_at_rest()


def test_no_more_have_intents_than_may_start_soon_and_everything_else_is_judged() -> None:
    """A crash asks about few; a follower of a held lane and a duplicate wait for no handler's room."""
    driver = Operated(REVIEW)
    driver.produce("a", 1)
    driver.turn()
    driver.rest()
    driver.produce("held", 2)
    for lane in "bcdef":
        driver.produce(lane, 1)
    driver.produce("a", 1)
    driver.produce("held", 3)
    driver.poll()
    assert driver.hand_out(budget=2) == []
    driver.settle()
    assert [state(driver, f"{lane}1") for lane in "bcdef"] == ["running"] * 2 + [""] * 3
    held = driver.lane("held")
    assert held is not None
    assert held.parked == 2
    started = driver.hand_out(budget=0)
    assert [run.lane for run in started] == ["kb", "kc"]
    for run in started:
        driver.step(run)
        driver.finish(run)
    driver.rest()
    assert [state(driver, f"{lane}1") for lane in "bcdef"] == ["succeeded"] * 5
