"""Gaps: a missing number opens one case, its successors wait, and a late one heals it."""

from __future__ import annotations

import msgspec

from laneway.lanes.record import Channel
from laneway.lanes.rules import Rules
from laneway.lanes.settlement import Settled
from laneway.lanes.verdict import ACK, Outcome, Reject, Retry
from tests.lanes.driver import Driver

LATER = Outcome(Retry("later"), "temporary-failure")
POISON = Outcome(Reject("poison"), "permanent-failure")


def events(driver: Driver) -> list[tuple[str, str]]:
    """News of cases, as (event, resolution)."""
    news = [msgspec.json.decode(forward.value or b"") for forward in driver.review]
    return [(item["event"], item["resolution"] or item["reason"]) for item in news]


def test_a_gap_opens_one_case_and_its_followers_are_parked_behind_it() -> None:
    """1, 2, 4, 5 arrive: one case `sequence-gap` for 3, no retry of it, 4 and 5 parked (S16, case 6)."""
    driver = Driver()
    driver.produce_many("a", 1, 2, 4, 5)
    driver.rest()
    assert driver.effects() == ["a1", "a2"]
    (case,) = driver.ledger.cases()
    assert (case.reason, case.sequence, case.holds, case.attempts) == ("sequence-gap", 3, True, 0)
    assert "3" in case.required_check
    assert events(driver) == [("opened", "sequence-gap")]
    lane = driver.lane("a")
    assert lane is not None
    assert (lane.last, lane.parked) == (2, 2)
    assert driver.committed[Channel.SOURCE] == 4
    driver.check_at_rest()


def test_a_late_predecessor_closes_the_gap_and_the_followers_run_in_order() -> None:
    """3 arrives late: it runs, the case closes as `predecessor-arrived`, then 4 and 5 run (case 6)."""
    driver = Driver()
    driver.produce_many("a", 1, 2, 4, 5)
    driver.rest()
    driver.produce("a", 3)
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3", "a4", "a5"]
    assert driver.cases() == []
    assert events(driver) == [("opened", "sequence-gap"), ("resolved", "predecessor-arrived")]
    driver.check_at_rest()


def test_a_second_copy_of_the_late_predecessor_never_runs() -> None:
    """Once the gap is closed, another 3 is a duplicate like any other (case 6)."""
    driver = Driver()
    driver.produce_many("a", 1, 2, 4, 3, 3)
    driver.rest()
    driver.produce("a", 3)
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3", "a4"]
    assert driver.ends_of(5) == [(Settled.DUPLICATE, "succeeded")]


def test_gaps_of_one_lane_are_met_one_after_another() -> None:
    """1, 3, 5, 7: the second gap opens only when the first has healed, each with a case of its own."""
    driver = Driver()
    driver.produce_many("a", 1, 3, 5, 7)
    driver.rest()
    missing = []
    for late in (2, 4, 6):
        (case,) = driver.ledger.cases()
        missing.append(case.sequence)
        driver.produce("a", late)
        driver.rest()
    assert missing == [2, 4, 6]
    assert driver.effects() == [f"a{n}" for n in range(1, 8)]
    assert driver.cases() == []
    assert len({forward.key for forward in driver.review}) == 3
    driver.check_at_rest()


def test_a_gap_before_the_first_number() -> None:
    """A new lane starts with `first_sequence`; a later first record is a gap, and heals in order."""
    driver = Driver()
    driver.produce_many("a", 3, 2, 1)
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3"]
    assert driver.cases() == []


def test_a_predecessor_that_fails_keeps_the_lane_held_but_closes_the_gap() -> None:
    """The late 2 arrives and must be retried: the gap is over, the lane waits for the retry instead."""
    driver = Driver(handler=lambda record: LATER if record.attempt == 1 and record.sequence == 2 else ACK)
    driver.produce_many("a", 1, 3, 2)
    driver.rest(wait=False)
    assert driver.cases() == []
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3"]
    driver.check_at_rest()


def test_a_predecessor_that_is_refused_holds_the_lane_with_one_case() -> None:
    """The late 2 is poison: the gap case closes and one case `rejected` holds the lane in its place."""
    driver = Driver(handler=lambda record: POISON if record.sequence == 2 else ACK)
    driver.produce_many("a", 1, 3, 2)
    driver.rest()
    assert driver.effects() == ["a1"]
    assert driver.cases() == ["rejected"]
    assert driver.board.open_cases == 1
    driver.check_at_rest()


def test_a_predecessor_whose_effect_is_done_already_heals_the_gap_unrun() -> None:
    """The late 2 carries an effect that another lane has finished: `last` advances without a run."""
    driver = Driver()
    driver.produce("b", 1, effect="shared", payload={})
    driver.produce_many("a", 1, 3)
    driver.rest()
    driver.produce("a", 2, effect="shared", payload={})
    driver.rest()
    assert driver.effects() == ["shared", "a1", "a3"]
    assert driver.cases() == []
    driver.check_at_rest()


def test_no_gap_is_seen_while_the_predecessor_waits_in_memory_or_in_a_retry() -> None:
    """A follower of a record that runs, waits or is retried is never a gap (invariant 5)."""
    driver = Driver(Rules(max_run=1), handler=lambda record: LATER if record.attempt == 1 else ACK)
    driver.produce_many("a", *range(1, 6))
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3", "a4", "a5"]
    assert driver.review == []


def test_copies_of_parked_followers_do_not_overwrite_each_other() -> None:
    """Two records with one number behind a gap are both kept, the first runs and the other is a duplicate."""
    driver = Driver()
    driver.produce_many("a", 3, 3, 2)
    driver.rest()
    lane = driver.lane("a")
    assert lane is not None
    assert lane.parked == 3
    driver.produce("a", 1)
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3"]
    assert driver.ends_of(1)[-1] == (Settled.DUPLICATE, "succeeded")
    driver.check_at_rest()


def test_an_unreadable_record_is_no_predecessor() -> None:
    """A record without a usable envelope has no place in a lane: the next number is a gap, and says so."""
    driver = Driver()
    driver.produce("a", 1)
    driver.produce_raw(b'{"messageId":"m","effectKey":"a2","sequenceKey":"a","sequence":"two"}')
    driver.produce("a", 3)
    driver.rest()
    assert driver.effects() == ["a1"]
    assert driver.cases() == ["sequence-gap"]
    assert len(driver.dlq) == 1
    driver.check_at_rest()
