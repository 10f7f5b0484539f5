"""Order: N+1 only after N, in runs, past retries and restarts; and no order where none was asked for."""

from __future__ import annotations

import pytest

from laneway.lanes.admission import Order
from laneway.lanes.envelope import EnvelopeRules
from laneway.lanes.record import Channel, Record
from laneway.lanes.rules import Rules
from laneway.lanes.settlement import Settled
from laneway.lanes.verdict import ACK, Outcome, Reject, Retry, Wait
from tests.lanes.driver import Driver, Handler

LATER = Outcome(Retry("later"), "temporary-failure")
DOWN = Outcome(Wait(700, "down"), "unavailable")
POISON = Outcome(Reject("poison"), "permanent-failure")
NO_KEY = EnvelopeRules(sequence_key=None, sequence=None)
ARRIVAL = EnvelopeRules(needs_sequence=False)


def answer(**outcomes: Outcome) -> Handler:
    """A handler that answers so on the first attempt of these effects, and acks all else."""
    return lambda record: outcomes.get(record.effect_key, ACK) if record.attempt == 1 else ACK


def test_records_of_a_lane_run_in_the_order_of_their_numbers() -> None:
    """N+1 runs only after N, and lanes do not wait for each other (S16)."""
    driver = Driver()
    for sequence in (1, 2, 3):
        driver.produce("a", sequence)
        driver.produce("b", sequence)
    driver.rest()
    assert [e for e in driver.effects() if e[0] == "a"] == ["a1", "a2", "a3"]
    assert [e for e in driver.effects() if e[0] == "b"] == ["b1", "b2", "b3"]
    driver.check_at_rest()


def test_consecutive_records_are_handed_over_together() -> None:
    """What may run without waiting runs as one run of at most `max_run` records."""
    driver = Driver(Rules(max_run=3))
    driver.produce_many("a", 1, 2, 3, 4)
    driver.poll()
    (run,) = driver.hand_out()
    assert [record.sequence for record in run.records] == [1, 2, 3]
    assert driver.hand_out() == [], "the lane has a run out"


def test_a_run_holds_consecutive_numbers_only() -> None:
    """A duplicate, a gap, another version or a known effect is judged by itself and ends a run."""
    for follower in (
        {"sequence": 1},
        {"sequence": 3},
        {"sequence": 2, "version": 9},
        {"sequence": 2, "effect": "a1"},
    ):
        driver = Driver()
        driver.produce("a", 1)
        driver.produce("a", **follower)
        driver.poll()
        (run,) = driver.hand_out()
        assert [record.sequence for record in run.records] == [1], follower


@pytest.mark.parametrize("outcome", [LATER, POISON, DOWN], ids=["retry", "reject", "unavailable"])
def test_a_run_stops_at_its_first_verdict_that_is_not_ack(outcome: Outcome) -> None:
    """The rest of a run is given back unstarted, waits behind its predecessor, and runs once."""
    first = iter([outcome])
    driver = Driver(
        Rules(pass_after_reject=True),
        handler=lambda record: next(first, ACK) if record.effect_key == "a2" else ACK,
    )
    driver.produce_many("a", 1, 2, 3, 4)
    driver.poll()
    (run,) = driver.hand_out()
    while driver.step(run):
        pass
    assert [act.effect_key for act in driver.acts] == ["a1", "a2"]
    driver.finish(run)
    driver.rest()
    done = ["a1", "a3", "a4"] if outcome is POISON else ["a1", "a2", "a3", "a4"]
    assert driver.effects() == done
    assert len(driver.acts) == (4 if outcome is POISON else 5)
    driver.check_at_rest()


def test_a_run_that_is_taken_back_early_goes_on_where_it_stopped() -> None:
    """A run reclaimed between two records keeps what it did and repeats nothing."""
    driver = Driver()
    driver.produce_many("a", 1, 2, 3)
    driver.poll()
    (run,) = driver.hand_out()
    driver.step(run)
    driver.finish(run)
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3"]


def test_records_that_come_while_a_run_is_out_wait_for_it() -> None:
    """A lane has one run out at a time."""
    driver = Driver()
    driver.produce("a", 1)
    driver.poll()
    driver.hand_out()
    driver.produce("a", 2)
    driver.poll()
    assert driver.hand_out() == []
    driver.rest()
    assert driver.effects() == ["a1", "a2"]


def test_a_follower_of_a_retry_waits_parked_and_is_not_a_gap() -> None:
    """While N waits for its retry, N+1 and later are parked and committed, and no case opens (case 1)."""
    driver = Driver(handler=answer(a1=LATER))
    driver.produce_many("a", 1, 2, 3, 4)
    driver.rest(wait=False)
    assert driver.effects() == []
    assert driver.cases() == []
    assert driver.committed[Channel.SOURCE] == 4
    lane = driver.lane("a")
    assert lane is not None
    assert lane.parked == 3
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3", "a4"]
    assert driver.review == []
    driver.check_at_rest()


ACTS = ("poll", "work", "write", "sync", "publish", "commit")


@pytest.mark.parametrize("lose_unsynced", [False, True], ids=["killed", "power-lost"])
@pytest.mark.parametrize("at", range(5 * len(ACTS)))
def test_followers_of_a_retry_keep_their_order_across_a_crash_at_any_step(
    at: int, *, lose_unsynced: bool
) -> None:
    """A crash at any step from first failure to last follower changes neither order nor end (case 1)."""
    driver = Driver(handler=answer(a2=LATER))
    driver.produce_many("a", 1, 2, 3, 4)
    for number in range(at + 1):
        act = ACTS[number % len(ACTS)]
        if act == "publish" and driver.pending is not None:
            driver.sync()
        if number % len(ACTS) == 0:
            driver.now_ms += 600
        getattr(driver, act)()
    driver.crash(lose_unsynced=lose_unsynced)
    driver.rest()
    assert list(dict.fromkeys(driver.effects())) == ["a1", "a2", "a3", "a4"]
    assert driver.cases() == []
    driver.check_at_rest()


def test_a_retry_runs_not_before_its_time() -> None:
    """The delays are fixed and counted from the failure: 1000, then 4000 ms (S17)."""
    times: list[tuple[int, int]] = []

    def handler(record: Record) -> Outcome:
        times.append((record.attempt, driver.now_ms))
        return LATER if record.attempt < 3 else ACK

    driver = Driver(handler=handler)
    driver.produce("a", 1)
    start_ms = driver.now_ms
    driver.rest(wait=False)
    driver.now_ms += 999
    driver.rest(wait=False)
    assert len(times) == 1, "one millisecond early"
    driver.rest()
    assert times == [(1, start_ms), (2, start_ms + 1000), (3, start_ms + 5000)]


def test_delays_of_different_length_do_not_disturb_each_other() -> None:
    """A short delay that was asked for later is over first, in another lane."""
    driver = Driver(handler=lambda record: LATER if record.attempt < 3 - (record.effect_key == "b1") else ACK)
    driver.produce("a", 1)
    driver.rest(wait=False)
    driver.now_ms += 1000
    driver.produce("b", 1)
    driver.rest(wait=False)
    driver.now_ms += 1000
    driver.rest(wait=False)
    assert driver.effects() == ["b1"]
    driver.rest()
    assert driver.effects() == ["b1", "a1"]


def test_increasing_knows_holes_but_never_goes_backwards() -> None:
    """`increasing`: 1, 4, 9 run; a late 2 is stale and gets a case that holds nothing."""
    driver = Driver(Rules(order=Order.INCREASING))
    driver.produce_many("a", 1, 4, 2, 9)
    driver.rest()
    assert driver.effects() == ["a1", "a4", "a9"]
    assert driver.cases() == ["sequence-stale"]
    driver.check_at_rest()


def test_increasing_takes_the_lowest_of_its_parked_followers_first() -> None:
    """Followers parked behind a retry leave in the order of their numbers, later arrivals included."""
    driver = Driver(Rules(order=Order.INCREASING), handler=answer(a1=LATER))
    driver.produce_many("a", 1, 7, 5)
    driver.rest()
    assert driver.effects() == ["a1", "a5", "a7"]


def test_a_follower_parked_below_one_that_was_released_is_still_found() -> None:
    """Increasing: 7 is released and fails; a late 5 parks below it and is judged when 7 is done, not lost."""
    driver = Driver(Rules(order=Order.INCREASING), handler=answer(a1=LATER, a7=LATER))
    driver.produce_many("a", 1, 7)
    driver.rest(wait=False)
    driver.now_ms += 1000
    driver.poll()
    driver.work()  # 1 succeeds, 7 is read back and fails
    driver.produce("b", 1, effect="shared", payload={})
    driver.poll()
    (busy,) = driver.hand_out()
    driver.produce("a", 5, effect="shared", payload={})
    driver.poll()
    driver.settle()
    driver.now_ms += 1000
    driver.poll()
    assert driver.hand_out() == [], "5 waits in memory, its effect is in hand, the retry of 7 behind it"
    driver.step(busy)
    driver.finish(busy)
    driver.rest()
    assert driver.effects() == ["a1", "shared", "a7"]
    assert driver.ends_of(3) == [(Settled.PARKED, "later"), (Settled.DUPLICATE, "succeeded")]
    driver.check_at_rest()


def test_arrival_orders_by_offset_and_needs_no_numbers() -> None:
    """`arrival`: a lane runs in log order whatever the numbers say, and waits for its retries."""
    driver = Driver(Rules(order=Order.ARRIVAL), ARRIVAL, answer(z=LATER))
    for effect in ("z", "y", "x"):
        driver.produce("a", None, effect=effect)
    driver.rest()
    assert driver.effects() == ["z", "y", "x"]
    assert driver.lane("a") is None, "nothing is kept of a lane without numbers"
    driver.check_at_rest()


def test_without_a_sequence_key_nothing_waits_for_another_record() -> None:
    """No sequence key: every effect is a lane of its own, one that fails holds nobody up (case 4)."""
    driver = Driver(envelope=NO_KEY, handler=answer(one=LATER))
    for effect in ("one", "two", "three"):
        driver.produce(None, None, effect=effect)
    driver.rest()
    assert driver.effects() == ["two", "three", "one"]
    assert driver.cases() == []
    driver.check_at_rest()


def test_the_lane_is_the_sequence_key_and_not_the_record_key() -> None:
    """One partition, different record keys, same entity: one lane (case 5)."""
    driver = Driver(handler=answer(a1=LATER))
    driver.produce("a", 1, key=b"x")
    driver.produce("a", 2, key=b"y")
    driver.rest()
    assert driver.effects() == ["a1", "a2"]


def test_a_new_lane_may_begin_anywhere_when_told_so() -> None:
    """`first_sequence = "any"` adopts the first number seen; from there on there are gaps again."""
    driver = Driver(Rules(first_sequence=None))
    driver.produce_many("a", 41, 42, 44)
    driver.rest()
    assert driver.effects() == ["a41", "a42"]
    assert driver.cases() == ["sequence-gap"]


def test_a_lane_starts_nothing_before_a_verdict_is_committed() -> None:
    """After an Ack the next delivery may start at once; after any other verdict it waits for the commit."""
    driver = Driver(Rules(pass_after_reject=True, max_run=1), handler=answer(a2=POISON))
    driver.produce_many("a", 1, 2, 3)
    driver.poll()
    for expected in ("a1", "a2"):
        (run,) = driver.hand_out()
        assert run.records[0].effect_key == expected
        driver.step(run)
        driver.finish(run)
    assert driver.hand_out() == [], "the reject is not durable yet"
    driver.write()
    assert driver.hand_out() == [], "written is not durable"
    driver.sync()
    (run,) = driver.hand_out()
    assert run.records[0].effect_key == "a3"


def test_a_lane_waits_for_the_commit_of_the_effect_that_its_duplicate_found() -> None:
    """A duplicate of an effect that could still be lost in a crash starts nothing behind it."""
    driver = Driver(Rules(max_run=1))
    driver.produce("a", 1, effect="shared", payload={})
    driver.produce("b", 1, effect="shared", payload={})
    driver.produce("b", 2)
    driver.poll()
    (run,) = driver.hand_out()
    driver.step(run)
    driver.finish(run)
    assert driver.hand_out() == []
    driver.settle()
    (run,) = driver.hand_out()
    assert run.records[0].effect_key == "b2"


def test_a_parked_follower_starts_only_after_its_parking_is_committed() -> None:
    """A park is a verdict too: nothing of that lane runs before the ledger has it."""
    driver = Driver()
    driver.produce_many("a", 2, 1)
    driver.poll()
    assert driver.hand_out() == []
    driver.settle()
    (run,) = driver.hand_out()
    assert [record.sequence for record in run.records] == [1]
    driver.step(run)
    driver.finish(run)
    assert driver.hand_out() == [], "the gap is closed in memory only"
    driver.settle()
    (run,) = driver.hand_out()
    assert [record.sequence for record in run.records] == [2]


def test_an_unavailable_dependency_costs_no_attempt_and_the_lane_waits_in_place() -> None:
    """`Unavailable`: the record stays in its place, unsettled, and runs again at the time asked (case 25)."""
    down = True
    driver = Driver(handler=lambda record: DOWN if down and record.effect_key == "a1" else ACK)
    driver.produce_many("a", 1, 2)
    driver.produce("b", 1)
    driver.rest(wait=False)
    driver.now_ms += 699
    driver.rest(wait=False)
    assert driver.effects() == ["b1"]
    assert driver.committed[Channel.SOURCE] == 0, "nothing of it is settled"
    assert driver.effect("a1") is None
    down = False
    driver.rest()
    assert driver.effects() == ["b1", "a1", "a2"]
    assert [act.attempt for act in driver.acts] == [1] * 4
    assert driver.dlq == driver.review == []
    driver.check_at_rest()


def test_an_unavailable_dependency_meets_a_parked_follower() -> None:
    """A released follower that found its dependency down is read back again, in its place."""
    seen: list[str] = []

    def handler(record: Record) -> Outcome:
        seen.append(record.effect_key)
        if record.effect_key == "a1" and record.attempt == 1:
            return LATER
        return DOWN if record.effect_key == "a2" and seen.count("a2") == 1 else ACK

    driver = Driver(handler=handler)
    driver.produce_many("a", 1, 2, 3)
    driver.rest()
    assert seen == ["a1", "a1", "a2", "a2", "a3"]
    driver.check_at_rest()


def test_a_failure_in_one_lane_leaves_the_others_alone() -> None:
    """One key always fails; the others finish, and the frontier passes the bad lane's followers (case 3)."""
    driver = Driver(handler=lambda record: LATER if record.lane == "kbad" else ACK)
    for sequence in range(1, 21):
        for lane in ("bad", "b", "c", "d", "e"):
            driver.produce(lane, sequence)
    driver.rest()
    assert len(driver.effects()) == 80
    assert driver.cases() == ["attempts-exhausted"]
    assert driver.committed[Channel.SOURCE] == 100
    assert [how for how, _ in driver.ends_of(5)] == [Settled.PARKED]
    driver.check_at_rest()
