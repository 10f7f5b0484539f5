"""Bounds: what stops the source, what never stops the retries, and that nothing is kept of idle lanes."""

from __future__ import annotations

import pytest

from laneway.lanes.envelope import EnvelopeRules
from laneway.lanes.failures import classify
from laneway.lanes.record import Channel
from laneway.lanes.rules import Rules
from laneway.lanes.verdict import ACK, Outcome, Retry
from tests.lanes.driver import Driver, always

LATER = Outcome(Retry("later"), "temporary-failure")
UNKNOWN = classify(KeyError(), ())
NO_KEY = EnvelopeRules(sequence_key=None, sequence=None)


def lane_filled_to(bound: Rules, *, followers: int) -> Driver:
    """A lane whose first record waits for its retry, with followers behind it."""
    driver = Driver(
        bound, handler=lambda record: LATER if record.attempt == 1 and record.sequence == 1 else ACK
    )
    driver.produce_many("a", *range(1, followers + 2))
    driver.rest(wait=False)
    return driver


@pytest.mark.parametrize("bound", [Rules(max_parked_per_lane=3), Rules(max_parked_bytes=300)])
@pytest.mark.parametrize("reopened", [False, True], ids=["same-owner", "reopened"])
def test_a_parking_bound_stops_the_source_and_never_the_retries(bound: Rules, *, reopened: bool) -> None:
    """At the bound the source pauses, also after a reopening; the retry still runs and frees the lane."""
    driver = lane_filled_to(bound, followers=3)
    if reopened:
        driver.crash()
    assert list(driver.board.blocked()) == [Channel.SOURCE]
    driver.produce("b", 1)
    driver.rest(wait=False)
    assert driver.effects() == [], "the source is paused"
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3", "a4", "b1"]
    assert driver.board.blocked() == {}
    driver.check_at_rest()


def test_below_the_parking_bound_nothing_is_paused() -> None:
    """One record below the bound everything is read."""
    assert lane_filled_to(Rules(max_parked_per_lane=3), followers=2).board.blocked() == {}


@pytest.mark.parametrize("reopened", [False, True], ids=["same-owner", "reopened"])
def test_too_many_open_cases_stop_the_source_and_what_was_taken_goes_on(*, reopened: bool) -> None:
    """A bad release is not a thousand cases; deliveries that were taken already still end."""
    driver = Driver(Rules(max_open_cases=2), NO_KEY, always(UNKNOWN))
    for number in range(6):
        driver.produce(None, None, effect=f"e{number}")
    driver.poll(3)
    driver.work()
    driver.settle()
    if reopened:
        driver.crash()
    assert list(driver.board.blocked()) == [Channel.SOURCE]
    assert driver.board.blocked()[Channel.SOURCE] == "3 open cases (lanes.max_open_cases_per_partition)"
    driver.rest()
    assert len(driver.cases()) == 3
    assert driver.committed[Channel.SOURCE] == 3


def test_a_retry_runs_while_open_cases_hold_the_source() -> None:
    """Retries outlive the bound of open cases."""
    driver = Driver(
        Rules(max_open_cases=1),
        NO_KEY,
        lambda r: UNKNOWN if r.effect_key == "bad" else LATER if r.attempt == 1 else ACK,
    )
    driver.produce(None, None, effect="slow")
    driver.produce(None, None, effect="bad")
    driver.rest()
    assert list(driver.board.blocked()) == [Channel.SOURCE]
    assert driver.effects() == ["slow"]


def test_waiting_retries_have_a_bound_of_their_own() -> None:
    """At `max_waiting` the retry partition pauses, not the source; waiting retries take no room in flight."""
    driver = Driver(Rules(max_retries_waiting=2), NO_KEY, lambda r: LATER if r.attempt == 1 else ACK)
    for number in range(4):
        driver.produce(None, None, effect=f"e{number}")
    driver.turn()
    driver.poll(2)
    assert driver.board.retries_waiting == 2
    assert driver.board.in_memory == 0
    assert list(driver.board.blocked()) == [Channel.RETRY]
    driver.produce(None, None, effect="e0")
    assert driver.poll() == 1, "the source is read on"
    driver.rest()
    assert sorted(driver.effects()) == ["e0", "e1", "e2", "e3"]
    driver.check_at_rest()


def test_what_is_in_memory_is_counted_from_poll_to_settlement_and_its_bytes_to_the_commit() -> None:
    """Until a commit that does not come through, a settled record is as large as before."""
    driver = Driver(handler=lambda record: LATER if record.attempt == 1 else ACK)
    driver.produce_many("a", 1, 2, 3)
    driver.produce_raw(b"garbage")
    driver.poll()
    size = sum(len(s.key or b"") + len(s.value or b"") for s in driver.topics[Channel.SOURCE] if s)
    assert (driver.board.in_memory, driver.board.in_memory_bytes) == (3, size)
    driver.work()
    assert (driver.board.in_memory, driver.board.in_memory_bytes) == (0, size), "settled"
    driver.write()
    assert (driver.board.in_memory, driver.board.in_memory_bytes) == (0, size), "under way"
    driver.rest()
    assert (driver.board.in_memory, driver.board.in_memory_bytes) == (0, 0)


def test_an_idle_lane_costs_no_memory() -> None:
    """Thousands of keys leave nothing in memory once they are committed, and what they did is still known."""
    driver = Driver()
    for number in range(2000):
        driver.produce(f"k{number}", 1)
    driver.rest()
    assert len(driver.board._books.lanes) == 0
    driver.check_at_rest()
    driver.produce("k7", 1)
    driver.produce("k7", 2)
    driver.rest()
    assert len(driver.effects()) == 2001
    driver.check_at_rest()


def test_a_lane_stays_in_memory_until_what_it_did_is_committed() -> None:
    """Before its commit only memory knows what a lane did, so it must not be forgotten."""
    driver = Driver()
    driver.produce("a", 1)
    driver.poll()
    driver.work()
    driver.write()
    assert len(driver.board._books.lanes) == 1
    driver.produce("a", 2)
    driver.poll()
    driver.work()
    assert driver.effects() == ["a1", "a2"]
    driver.rest()
    assert len(driver.board._books.lanes) == 0


def test_a_budget_leaves_the_other_lanes_ready() -> None:
    """Lanes beyond the budget of one hand-over stay in the queue and come with the next."""
    driver = Driver()
    for lane in "abcde":
        driver.produce(lane, 1)
    driver.poll()
    assert [run.lane for run in driver.hand_out(2)] == ["ka", "kb"]
    assert [run.lane for run in driver.hand_out(2)] == ["kc", "kd"]
    assert [run.lane for run in driver.hand_out(2)] == ["ke"]
