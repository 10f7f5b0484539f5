"""Reopening: crashes, new owners, old runs, moved offsets; the same ids and the same end every time."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from laneway.lanes.failures import TemporaryFailure, Unavailable, classify
from laneway.lanes.follower import LostFollowersError
from laneway.lanes.forward import Forward
from laneway.lanes.record import Channel
from laneway.lanes.rules import Rules
from laneway.lanes.run import Run
from laneway.lanes.settlement import Settled
from laneway.lanes.verdict import ACK, Outcome, Reject, Retry
from laneway.lanes.view import PutParked
from tests.lanes.driver import Driver, Stored

LATER = Outcome(Retry("later"), "temporary-failure")
POISON = Outcome(Reject("poison"), "permanent-failure")
UNKNOWN = classify(KeyError(), ())


def a_bit_of_everything() -> Driver:
    """A source whose records lead to every kind of forward and of case."""
    answers = {"b1": LATER, "c1": POISON, "d1": UNKNOWN}
    driver = Driver(
        handler=lambda record: answers.get(record.effect_key, ACK) if record.attempt == 1 else ACK
    )
    driver.produce_many("a", 1, 3)
    for lane in "bcd":
        driver.produce_many(lane, 1, 2)
    driver.produce_raw(b"garbage")
    driver.produce("e", 1)
    driver.produce("e", 1, payload={"other": 1})
    return driver


@pytest.mark.parametrize("lose_unsynced", [False, True], ids=["killed", "power-lost"])
def test_case_ids_and_forward_ids_are_the_same_after_a_crash_and_a_replay(*, lose_unsynced: bool) -> None:
    """A second copy of a forward is recognised by its id, and a case never opens twice under two names."""
    calm = a_bit_of_everything()
    calm.rest()
    driver = a_bit_of_everything()
    for _ in range(3):
        driver.poll()
        driver.work()
        driver.write()
        driver.sync()
        driver.publish(clear=False)
        driver.poll()
        driver.work()
        driver.write()
        driver.crash(lose_unsynced=lose_unsynced)
        driver.now_ms += 777
    driver.rest()

    def ids(forwards: list[Forward]) -> set[str]:
        return {forward.forward_id for forward in forwards}

    assert len(driver.dlq) > len(calm.dlq), "copies were published"
    assert ids(driver.dlq) == ids(calm.dlq)
    assert ids(driver.review) == ids(calm.review)
    assert [case.case_id for case in driver.ledger.cases()] == [case.case_id for case in calm.ledger.cases()]
    driver.check_at_rest()
    calm.check_at_rest()


def test_what_was_handed_over_comes_back_marked_redelivered() -> None:
    """A dead owner's unacked deliveries are redelivered; what no handler can have seen is not (S21)."""
    driver = Driver()
    driver.produce_many("a", 1, 2)
    driver.poll()
    driver.hand_out()
    driver.produce("a", 3)
    driver.poll()
    driver.crash()
    driver.rest()
    assert [(act.sequence, act.redelivered) for act in driver.acts] == [(1, True), (2, True), (3, False)]


def test_a_retry_and_a_follower_are_marked_redelivered_too() -> None:
    """The mark goes by the position: of the retry, and of the source for a released follower."""
    driver = Driver(handler=lambda record: LATER if record.attempt == 1 and record.sequence == 1 else ACK)
    driver.produce_many("a", 1, 2)
    driver.rest(wait=False)
    driver.now_ms += 1000
    driver.poll()
    driver.hand_out()  # the retry
    driver.crash()
    driver.rest()
    assert [(act.sequence, act.attempt, act.redelivered) for act in driver.acts] == [
        (1, 1, False),
        (1, 2, True),
        (2, 1, True),
    ], "2 was handed out behind 1 in its first run"


def test_what_another_machine_may_have_handed_over_is_marked_in_every_channel() -> None:
    """Its disk is out of reach: what can be beyond its last cycle is marked, whatever that told of (S21)."""
    driver = Driver(
        Rules(hand_over_slack=1),
        handler=lambda record: LATER if record.attempt == 1 and record.sequence == 1 else ACK,
    )
    driver.produce_many("a", 1)
    driver.rest(wait=False)
    driver.now_ms += 1000
    driver.poll()
    driver.hand_out()  # the retry, which no cycle has told of
    driver.crash(lose_unsynced=True)
    driver.produce_many("a", 2, 3)
    driver.rest()
    assert [(act.sequence, act.attempt, act.redelivered) for act in driver.acts] == [
        (1, 1, False),
        (1, 2, True),
        (2, 1, True),
        (3, 1, False),
    ]


def _duplicates(driver: Driver) -> None:
    for _ in range(20):
        driver.produce("before", 1)


def _garbage(driver: Driver) -> None:
    for _ in range(20):
        driver.produce_raw(b"garbage")


def _parked(driver: Driver) -> None:
    driver.produce_many("gap", *range(2, 22))


def _holes(driver: Driver) -> None:
    driver.topics[Channel.SOURCE] += [None] * 50


@pytest.mark.parametrize("use_up", [_duplicates, _garbage, _parked, _holes])
@pytest.mark.parametrize("settled", [True, False], ids=["settled", "unsettled"])
def test_what_no_handler_gets_does_not_hide_what_one_had(
    use_up: Callable[[Driver], None], *, settled: bool
) -> None:
    """Offsets that lead to no hand-over, however many, stand between nothing and its mark (S21)."""
    driver = Driver(Rules(hand_over_slack=30))
    driver.produce_many("before", 1)
    driver.rest()
    use_up(driver)
    if settled:
        driver.rest()
        use_up(driver)
        driver.rest()
    driver.produce_many("b", 1)
    driver.poll()
    driver.work()
    driver.crash(lose_unsynced=True)
    driver.rest()
    marks = [act.redelivered for act in driver.acts if act.effect_key == "b1"]
    assert marks in ([False, True], [True, True]), "the first may be marked too, the second must be"


def test_only_so_many_are_marked_as_another_owner_can_have_read() -> None:
    """A backlog is not all redelivered: behind the slack a handler hears that it is the first (S21)."""
    driver = Driver(Rules(hand_over_slack=3))
    driver.produce_many("a", 1)
    driver.rest()
    driver.topics[Channel.SOURCE] += [None] * 20
    driver.crash(lose_unsynced=True)
    driver.produce_many("a", 2, 3, 4, 5)
    driver.rest()
    assert [act.redelivered for act in driver.acts] == [False, True, True, True, False]


def test_retries_are_marked_until_their_end_was_read() -> None:
    """Another owner can have handed over any retry that was there, and none that came later (S21)."""
    keys = [chr(ord("b") + number) for number in range(8)]
    driver = Driver(Rules(hand_over_slack=2), handler=lambda record: LATER if record.attempt == 1 else ACK)
    for key in keys:
        driver.produce_many(key, 1)
    driver.rest(wait=False)
    driver.crash(lose_unsynced=True)
    driver.poll()
    driver.produce_many("late", 1)
    driver.rest()
    marks = {act.effect_key: act.redelivered for act in driver.acts if act.attempt == 2}
    assert marks == {**{f"{key}1": True for key in keys}, "late1": False}


def test_where_another_machine_may_follow_nothing_runs_before_the_first_commit() -> None:
    """Else an owner that dies before it leaves no trace, and what its handlers had comes unmarked (S21)."""
    driver = Driver(Rules(hand_over_slack=10))
    driver.produce_many("a", 1)
    driver.poll()
    assert driver.hand_out() == []
    driver.settle()
    assert len(driver.hand_out()) == 1
    driver.crash(lose_unsynced=True)
    driver.rest()
    assert [(act.sequence, act.redelivered) for act in driver.acts] == [(1, True)]


def test_who_comes_back_after_another_owner_left_no_trace_marks_what_that_one_had() -> None:
    """The last cycle is its own, and yet somebody may have been there meanwhile and died early (S21)."""
    driver = Driver(Rules(hand_over_slack=10))
    driver.settle()
    driver.open(writer="elsewhere")
    driver.produce_many("a", 1)
    driver.poll()
    assert len(driver.hand_out()) == 1
    driver.ledger = driver.ledger.crash(lose_unsynced=True)
    driver.open(writer="writer-1")
    driver.rest()
    assert [(act.sequence, act.redelivered) for act in driver.acts] == [(1, True)]


def test_a_follower_that_was_never_seen_before_its_release_is_marked_when_it_comes_back() -> None:
    """Parked unseen, released, handed out, killed: now it is redelivered, before that it was not (S21)."""
    driver = Driver()
    driver.produce_many("a", 3, 2, 1)
    driver.poll()
    driver.work()
    driver.settle()
    (run,) = driver.hand_out()
    assert [(record.sequence, record.redelivered) for record in run.records] == [(1, False)]
    driver.step(run)
    driver.finish(run)
    driver.settle()
    (run,) = driver.hand_out()
    assert [(record.sequence, record.redelivered) for record in run.records] == [(2, False), (3, False)]
    driver.crash()
    driver.rest()
    assert [(act.sequence, act.redelivered) for act in driver.acts] == [(1, False), (2, True), (3, True)]


def test_a_run_of_an_older_ownership_is_refused() -> None:
    """Only the ownership that handed a run out may settle it (S22, case 12)."""
    driver = Driver()
    driver.produce("a", 1)
    driver.poll()
    (old,) = driver.hand_out()
    driver.step(old)
    driver.crash()
    driver.poll()
    (new,) = driver.hand_out()
    assert driver.board.settle(old, driver.now_ms) is False
    assert driver.board.pending == 0
    driver.step(new)
    driver.finish(new)
    driver.rest()
    driver.check_at_rest()


def test_a_run_with_another_epoch_is_refused_even_for_its_own_lane() -> None:
    """A forged or stale epoch changes nothing, and the real run still counts (S22)."""
    driver = Driver()
    driver.produce("a", 1)
    driver.poll()
    (run,) = driver.hand_out()
    run.epoch += 1
    assert driver.board.settle(run, driver.now_ms) is False
    run.epoch -= 1
    driver.step(run)
    driver.finish(run)
    driver.rest()
    assert driver.ends_of(0) == [(Settled.SUCCEEDED, "")]


def test_a_second_completion_is_refused() -> None:
    """A double ack is an error, and settles nothing (S22)."""
    driver = Driver()
    driver.produce("a", 1)
    driver.poll()
    (run,) = driver.hand_out()
    driver.step(run)
    driver.finish(run)
    assert driver.board.settle(run, driver.now_ms) is False
    assert driver.board.settle(Run("kb", [], driver.epoch), driver.now_ms) is False
    assert driver.board.pending == 1
    driver.rest()
    driver.check_at_rest()


def test_an_abandoned_run_blocks_nothing_and_counts_for_nothing() -> None:
    """A run that comes back after its ownership was over is let go of, unsettled."""
    driver = Driver()
    driver.produce("a", 1)
    driver.poll()
    (run,) = driver.hand_out()
    assert driver.board.running == 1
    driver.board.abandon(run)
    assert driver.board.running == 0
    assert driver.board.pending == 0


def test_a_stop_lets_nothing_further_start() -> None:
    """What a handler has in hand may finish; the rest of its run and all other lanes stay unstarted."""
    driver = Driver()
    driver.produce_many("a", 1, 2)
    driver.produce("b", 1)
    driver.poll()
    (run,) = driver.hand_out(1)
    driver.step(run)
    driver.board.stop()
    assert not driver.step(run)
    driver.finish(run)
    driver.settle()
    assert driver.effects() == ["a1"]
    assert driver.committed[Channel.SOURCE] == 1


@pytest.mark.parametrize("channel", [Channel.SOURCE, Channel.RETRY], ids=lambda channel: channel.name)
def test_a_position_that_is_settled_never_runs_again(channel: Channel) -> None:
    """Below the frontier or in the settled ranges above it: suppressed, on every channel (4.1 rule 1)."""
    driver = Driver(handler=lambda record: LATER if record.attempt == 1 and record.lane == "kb" else ACK)
    for sequence in (1, 2):
        driver.produce("a", sequence)
        driver.produce("b", sequence)
    driver.rest()
    before = len(driver.acts)
    driver.committed[channel] = 0
    driver.crash()
    driver.poll()
    assert driver.hand_out() == []
    assert driver.board.pending == len(driver.topics[channel])
    driver.rest()
    assert len(driver.acts) == before
    driver.check_at_rest()


def test_ranges_settled_above_the_frontier_travel_with_the_ledger() -> None:
    """One stuck record: what was settled above it is suppressed after a reopening, the stuck one runs."""
    driver = Driver()
    for lane in "abcd":
        driver.produce(lane, 1)
    driver.poll()
    for run in driver.hand_out():
        if run.lane != "kb":
            driver.step(run)
            driver.finish(run)
    driver.settle()
    assert driver.committed[Channel.SOURCE] == 1
    driver.crash(lose_unsynced=True)
    driver.rest()
    assert driver.effects() == ["a1", "c1", "d1", "b1"]
    assert driver.committed[Channel.SOURCE] == 4
    driver.check_at_rest()


def test_an_operator_who_sets_the_offset_back_repeats_no_effect() -> None:
    """The ledger suppresses what it has settled; the offset follows it forward again."""
    driver = Driver()
    driver.produce_many("a", 1, 2, 3)
    driver.rest()
    driver.committed[Channel.SOURCE] = 1
    driver.crash()
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3"]
    assert driver.committed[Channel.SOURCE] == 3


def test_an_operator_who_sets_the_offset_forward_skips_what_lies_between() -> None:
    """Reading starts where the operator said; the lane sees the hole as the gap that it is."""
    driver = Driver()
    driver.produce_many("a", 1, 2)
    driver.rest()
    driver.produce_many("a", 3, 4)
    driver.produce("b", 1)
    driver.committed[Channel.SOURCE] = 3
    driver.crash()
    driver.rest()
    assert driver.effects() == ["a1", "a2", "b1"]
    assert driver.cases() == ["sequence-gap"]
    assert driver.committed[Channel.SOURCE] == 5


def test_a_free_lane_with_parked_followers_goes_on_after_a_reopening() -> None:
    """Killed right after the retry succeeded: the followers are judged at once, before anything is polled."""
    driver = Driver(handler=lambda record: LATER if record.attempt == 1 and record.sequence == 1 else ACK)
    driver.produce_many("a", 1, 2, 3)
    driver.rest(wait=False)
    driver.now_ms += 1000
    driver.poll()
    (run,) = driver.hand_out()
    driver.step(run)
    driver.finish(run)
    driver.write()
    driver.crash()
    (run,) = driver.hand_out()
    assert [(record.sequence, record.parked) for record in run.records] == [(2, True), (3, True)]
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3"]
    driver.check_at_rest()


def test_parked_followers_go_before_a_source_record_of_their_lane() -> None:
    """After a reopening the next source record of a lane waits behind its parked followers."""
    driver = Driver(Rules(max_run=1))
    driver.produce_many("a", 3, 2)
    driver.rest()
    driver.produce("a", 1)
    driver.poll()
    driver.work()
    driver.write()
    driver.crash()
    driver.produce("a", 4)
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3", "a4"]
    driver.check_at_rest()


def test_released_followers_carry_no_offset_to_settle() -> None:
    """Their offsets were committed when they were parked; the frontier does not hear of them again."""
    driver = Driver()
    driver.produce_many("a", 2, 3)
    driver.rest()
    assert driver.committed[Channel.SOURCE] == 2
    driver.produce("a", 1)
    driver.poll()
    driver.work()
    driver.settle()
    frontier = driver.board.frontier(Channel.SOURCE)
    driver.work()
    assert driver.effects() == ["a1", "a2", "a3"]
    assert driver.board.frontier(Channel.SOURCE) == frontier == 3
    driver.rest()
    driver.check_at_rest()


def test_offsets_without_a_record_are_passed() -> None:
    """Markers and compacted offsets hold up no commit, at the end of the log too."""
    driver = Driver()
    log = driver.topics[Channel.SOURCE]
    log.append(None)
    driver.produce("a", 1)
    log += [None, None]
    driver.produce("a", 2)
    log.append(None)
    driver.rest()
    assert driver.committed[Channel.SOURCE] == len(log) == 6
    driver.check_at_rest()


def test_a_position_in_hand_that_is_read_again_is_dropped_without_a_trace() -> None:
    """A rewind of the client while a record runs makes no second delivery and settles nothing (case 14)."""
    driver = Driver()
    driver.produce_many("a", 1, 2)
    driver.poll()
    (run,) = driver.hand_out()
    driver.position[Channel.SOURCE] = 0
    driver.poll()
    assert driver.board.in_memory == 2
    assert driver.board.pending == 0
    driver.step(run)
    driver.finish(run)
    driver.rest()
    assert driver.effects() == ["a1", "a2"]
    driver.check_at_rest()


def test_a_forward_that_cannot_be_published_holds_its_offset_and_nothing_else() -> None:
    """The DLQ refuses: that offset is not committed past, other lanes go on, nothing is lost (case 21)."""
    driver = Driver(handler=lambda record: POISON if record.lane == "ka" else ACK)
    driver.produce("b", 1)
    driver.produce("a", 1)
    driver.produce("b", 2)
    driver.poll()
    driver.work()
    driver.write()
    driver.sync()
    driver.commit()
    assert driver.effects() == ["b1", "b2"]
    assert driver.committed[Channel.SOURCE] == 1
    driver.crash(lose_unsynced=True)
    driver.rest()
    assert len(driver.dlq) == 1
    assert driver.committed[Channel.SOURCE] == 3
    driver.check_at_rest()


def test_a_ledger_that_contradicts_itself_stops_the_partition_and_nobody_waits_for_a_run() -> None:
    """The lane counts followers that are not there: an error, and no other lane is left with a run out."""
    driver = Driver()
    driver.produce_many("a", 2, 1)
    driver.poll()
    driver.work()
    driver.settle()
    driver.work()
    driver.write()
    driver.ledger.apply([PutParked(("ka", 2, 0), None)], driver.board.meta(0), [])
    driver.sync()
    driver.produce("b", 1)
    driver.poll()
    with pytest.raises(LostFollowersError, match="lane 'a'"):
        driver.hand_out()
    assert driver.board.running == 0
    assert driver.effects() == ["a1"]


@pytest.mark.parametrize("signal", [Unavailable(400), TemporaryFailure()], ids=["unavailable", "temporary"])
def test_a_decoder_that_is_down_lets_a_released_follower_wait(signal: Exception) -> None:
    """A follower that cannot be read back now waits with its lane; nothing is refused (case 25)."""
    down = False

    def decode(value: bytes) -> object:
        if down:
            raise signal
        return json.loads(value)

    driver = Driver(decode=decode)
    driver.produce_many("a", 2, 1)
    driver.produce("b", 1)
    driver.poll()
    driver.work()
    driver.settle()
    down = True
    driver.work()
    driver.settle()
    assert driver.hand_out() == []
    assert driver.board.next_due_ms is not None
    down = False
    driver.rest()
    assert driver.effects() == ["b1", "a1", "a2"]
    assert driver.dlq == []
    driver.check_at_rest()


def test_a_kept_record_shows_no_content() -> None:
    """What a person sees of a record in a log is its place and names, never its bytes."""
    stored = Stored(b"secret-key", b"secret-value", (("h", b"secret-header"),))
    driver = Driver()
    driver.topics[Channel.SOURCE].append(stored)
    assert "secret" not in repr(driver._record(Channel.SOURCE, 0))
