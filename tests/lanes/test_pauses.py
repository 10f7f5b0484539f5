"""Pauses: a lane or the whole partition starts nothing more, loses nothing, and goes on where it was."""

from __future__ import annotations

import pytest

from laneway.lanes.admission import Order
from laneway.lanes.effect import EffectState
from laneway.lanes.envelope import EnvelopeRules
from laneway.lanes.record import Channel, lane_of_one
from laneway.lanes.rules import Rules
from laneway.lanes.verdict import ACK
from tests.lanes.cases import LATER, POISON, situation
from tests.lanes.driver import always
from tests.lanes.operated import Operated

NO_KEY = EnvelopeRules(sequence_key=None, sequence=None)


def is_paused(driver: Operated, lane: str = "a") -> bool:
    """Whether the ledger has this lane paused."""
    stored = driver.lane(lane)
    return stored is not None and stored.pause is not None


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("order", list(Order))
def test_a_paused_lane_parks_and_goes_on_in_order(order: Order, crash: bool) -> None:
    """What comes is stored, its offsets are committed, other lanes live; resume runs all of it in order."""
    driver = Operated(Rules(order=order))
    driver.produce("a", 1)
    driver.rest()
    driver.applied("pause", lane="a")
    driver.produce_many("a", 2, 3)
    driver.produce("b", 1)
    driver.rest()
    if crash:
        driver.crash()
        driver.rest()
    assert driver.effects() == ["a1", "b1"]
    assert is_paused(driver)
    driver.check_at_rest()
    driver.applied("resume", lane="a")
    assert driver.effects() == ["a1", "b1", "a2", "a3"]
    assert not is_paused(driver)
    driver.check_at_rest()


def test_a_lane_may_be_paused_before_it_exists() -> None:
    """A key can be stopped before its first record comes; afterwards nothing is left of the pause."""
    driver = Operated()
    driver.applied("pause", lane="a")
    driver.applied("resume", lane="a")
    assert driver.lane("a") is None
    driver.applied("pause", lane="a")
    driver.produce_many("a", 1, 3)
    driver.rest()
    assert driver.effects() == []
    driver.applied("resume", lane="a")
    assert driver.effects() == ["a1"]
    assert driver.cases() == ["sequence-gap"], "whether something is missing shows when the lane goes on"
    driver.check_at_rest()


def test_a_lane_of_one_may_be_paused() -> None:
    """Without a sequence key an effect is paused by its own key, and the others go on."""
    driver = Operated(envelope=NO_KEY)
    driver.applied("pause", lane_id=lane_of_one("x"))
    driver.produce(None, None, effect="x")
    driver.produce(None, None, effect="y")
    driver.rest()
    assert driver.effects() == ["y"]
    driver.check_at_rest()
    driver.applied("resume", lane_id=lane_of_one("x"))
    assert driver.effects() == ["y", "x"]
    assert driver.ledger.lanes([lane_of_one("x")]) == [None]
    driver.check_at_rest()


def test_a_missing_predecessor_that_comes_meanwhile_heals_its_gap() -> None:
    """Nothing is missing from then on, so the case closes; the lane runs in order once it goes on."""
    driver, case = situation("sequence-gap")
    driver.applied("pause", lane="a")
    driver.produce("a", 2)
    driver.rest()
    assert driver.cases() == []
    assert [news.resolution for news in driver.news()] == ["predecessor-arrived"]
    assert driver.news()[0].case_id == case.case_id
    assert driver.effects() == ["a1"]
    driver.check_at_rest()
    driver.applied("resume", lane="a")
    assert driver.effects() == ["a1", "a2", "a3", "a4"]
    driver.check_at_rest()


@pytest.mark.parametrize("crash", [False, True])
def test_a_retry_that_comes_due_meanwhile_waits_and_then_runs(crash: bool) -> None:
    """The retry of a paused lane is neither run nor dropped, and keeps no follower from being parked."""
    driver = Operated(handler=lambda r: LATER if (r.effect_key, r.attempt) == ("a1", 1) else ACK)
    driver.produce("a", 1)
    driver.turn()
    driver.command("pause", lane="a")
    driver.turn()
    driver.produce("a", 2)
    driver.rest()
    driver.now_ms += 10_000
    driver.rest()
    if crash:
        driver.crash()
        driver.rest()
    driver.produce("a", 3)
    driver.rest()
    lane = driver.lane("a")
    assert lane is not None
    assert lane.parked == 2
    assert driver.effects() == []
    assert driver.committed[Channel.RETRY] == 0
    driver.applied("resume", lane="a")
    assert driver.effects() == ["a1", "a2", "a3"]
    assert [act.attempt for act in driver.acts] == [1, 2, 1, 1]
    driver.check_at_rest()


def test_a_held_and_paused_lane_is_decided_and_stays_paused() -> None:
    """Skip moves the lane past its case; its followers wait until the lane is resumed."""
    driver, case = situation("rejected")
    driver.applied("pause", lane="a")
    assert "resume it first" in driver.refused("replay", case)
    driver.applied("skip", case)
    assert driver.effects() == ["a1"]
    assert is_paused(driver)
    driver.check_at_rest()
    driver.applied("resume", lane="a")
    assert driver.effects() == ["a1", "a3"]
    driver.check_at_rest()


def test_duplicates_and_stale_records_of_a_paused_lane_settle() -> None:
    """What runs nothing needs no turn: a copy is suppressed, a late record opens its loose case."""
    driver = Operated()
    driver.produce("a", 1)
    driver.rest()
    driver.applied("pause", lane="a")
    driver.produce("a", 1)
    driver.produce("a", 1, effect="late")
    driver.rest()
    assert driver.cases() == ["sequence-stale"]
    driver.applied("mark-done", driver.case())
    assert driver.effects() == ["a1"]
    driver.check_at_rest()


def test_pauses_do_not_add_up() -> None:
    """Pausing what is paused, and resuming what is not, is refused: one resume is always enough."""
    driver = Operated()
    assert driver.refused("resume", lane="a") == "the lane is not paused"
    driver.applied("pause", lane="a")
    assert driver.refused("pause", lane="a") == "the lane is paused already"
    driver.applied("resume", lane="a")
    assert driver.refused("resume") == "the partition is not paused"
    driver.applied("pause")
    assert driver.refused("pause") == "the partition is paused already"
    driver.applied("resume")
    driver.check_at_rest()


def test_a_lane_is_paused_between_two_deliveries_of_a_run() -> None:
    """A pause waits for the delivery in flight, not for the hundreds handed out behind it."""
    driver = Operated()
    driver.produce_many("a", 1, 2, 3)
    driver.poll()
    (run,) = driver.hand_out()
    driver.step(run)
    driver.command("pause", lane="a")
    driver.poll()
    assert not driver.step(run)
    driver.finish(run)
    driver.rest()
    assert driver.effects() == ["a1"]
    assert is_paused(driver)
    driver.applied("resume", lane="a")
    assert driver.effects() == ["a1", "a2", "a3"]
    driver.check_at_rest()


@pytest.mark.parametrize("crash", [False, True])
def test_a_paused_partition_starts_nothing_and_says_why(crash: bool) -> None:
    """Source and retry are not read, records in memory wait, running deliveries end; commands are read."""
    driver = Operated(handler=lambda r: LATER if (r.effect_key, r.attempt) == ("b1", 1) else ACK)
    driver.produce_many("a", 1, 2)
    driver.produce("b", 1)
    driver.poll()
    runs = driver.hand_out()
    for run in runs:
        driver.step(run)
    driver.command("pause", actor="bob", reason="the target is being moved")
    driver.poll()
    for run in runs:
        assert not driver.step(run)
        driver.finish(run)
    driver.produce("c", 1)
    driver.now_ms += 10_000
    driver.rest(wait=False)
    if crash:
        driver.crash()
        driver.rest(wait=False)
    assert driver.effects() == ["a1"]
    assert set(driver.board.blocked().values()) == {"paused by bob: the target is being moved"}
    assert set(driver.board.blocked()) == {Channel.SOURCE, Channel.RETRY}
    driver.applied("resume")
    assert driver.effects()[:1] == ["a1"]
    assert sorted(driver.effects()) == ["a1", "a2", "b1", "c1"]
    driver.check_at_rest()


def test_cases_are_decided_while_the_partition_is_paused() -> None:
    """What runs nothing is applied at once; a replay stays queued until the partition goes on."""
    driver, case = situation("rejected")
    driver.produce("b", 5)
    driver.rest()
    driver.applied("pause")
    driver.applied("skip", driver.case("sequence-gap"))
    replay = driver.command("replay", case)
    driver.rest()
    assert [answer.offset for answer in driver.answers()] == [0, 1]
    driver.crash()
    driver.rest()
    driver.applied("resume")
    assert driver.answer(replay).outcome == "succeeded"
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3"]
    driver.check_at_rest()


def test_a_paused_lane_holds_nobody_elses_effect() -> None:
    """A follower that waits in a paused lane has not begun: another lane may have its effect."""
    driver = Operated()
    driver.applied("pause", lane="a")
    driver.produce("a", 1, effect="x", payload={"of": "x"})
    driver.produce("b", 1, effect="x", payload={"of": "x"})
    driver.rest()
    effect = driver.effect("x")
    assert effect is not None
    assert (effect.state, effect.lane) == (EffectState.SUCCEEDED, "kb")
    driver.applied("resume", lane="a")
    assert [act.lane for act in driver.acts] == ["kb"]
    driver.check_at_rest()


def test_the_partition_and_a_lane_are_paused_apart() -> None:
    """Resuming the partition leaves a paused lane paused."""
    driver = Operated(handler=always(ACK))
    driver.applied("pause", lane="a")
    driver.applied("pause")
    driver.produce("a", 1)
    driver.produce("b", 1)
    driver.applied("resume")
    assert driver.effects() == ["b1"]
    driver.applied("resume", lane="a")
    assert driver.effects() == ["b1", "a1"]
    driver.check_at_rest()


def test_a_poison_record_of_a_paused_lane_waits_for_its_turn() -> None:
    """Not even a record that is refused unseen is judged out of turn."""
    driver = Operated(handler=always(POISON))
    driver.applied("pause", lane="a")
    driver.produce("a", 1, version=9)
    driver.rest()
    assert driver.cases() == []
    driver.applied("resume", lane="a")
    assert driver.cases() == ["rejected"]
    driver.check_at_rest()
