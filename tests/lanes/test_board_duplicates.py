"""Duplicates: one effect for one effect key, whoever sends it twice and however it comes back."""

from __future__ import annotations

import pytest

from laneway.lanes.effect import EffectState
from laneway.lanes.envelope import EnvelopeRules
from laneway.lanes.record import Channel
from laneway.lanes.rules import Rules
from laneway.lanes.settlement import Settled
from laneway.lanes.verdict import ACK, Ack, Outcome, Reject, Retry
from tests.lanes.driver import Driver

LATER = Outcome(Retry("later"), "temporary-failure")
POISON = Outcome(Reject("poison"), "permanent-failure")
NO_KEY = EnvelopeRules(sequence_key=None, sequence=None)
SUPPRESSED = (Settled.DUPLICATE, "succeeded")


def test_a_redelivery_after_the_result_was_saved_leads_to_an_ack_and_no_second_result() -> None:
    """Killed between write and commit: the record comes again, does not run, is committed (S11)."""
    driver = Driver()
    driver.produce("a", 1)
    driver.poll()
    driver.work()
    driver.write()
    driver.crash()
    assert driver.committed[Channel.SOURCE] == 0
    driver.poll()
    cut = driver.board.cut(driver.now_ms)
    assert cut is not None
    assert [(done.how, done.reason) for done in cut.settlements] == [(Settled.DUPLICATE, "already-settled")]
    driver.rest()
    assert driver.effects() == ["a1"]
    assert driver.committed[Channel.SOURCE] == 1


def test_a_publisher_duplicate_is_one_effect_and_no_obstacle() -> None:
    """The same effect key at two offsets: one effect, and the lane goes on (S25, case 27)."""
    driver = Driver()
    driver.produce_many("a", 1, 1, 2, 2, 3)
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3"]
    assert [driver.ends_of(offset) for offset in (1, 3)] == [[SUPPRESSED]] * 2
    driver.check_at_rest()


def test_a_suppressed_duplicate_tells_where_the_result_lies() -> None:
    """The trace of a duplicate carries the result key of the success it found (S14)."""
    driver = Driver(handler=lambda _: Outcome(Ack("reports/a1.csv")))
    driver.produce_many("a", 1, 1)
    driver.poll()
    driver.work()
    cut = driver.board.cut(driver.now_ms)
    assert cut is not None
    assert [done.result_key for done in cut.settlements] == ["reports/a1.csv"] * 2


def test_two_message_ids_that_mean_one_effect_run_once() -> None:
    """Deduplication goes by the effect, not by the message id (S13)."""
    driver = Driver(envelope=NO_KEY)
    driver.produce(None, None, effect="invoice-7", message="m-1")
    driver.produce(None, None, effect="invoice-7", message="m-2")
    driver.rest()
    assert driver.effects() == ["invoice-7"]
    assert driver.ends_of(1) == [SUPPRESSED]


def test_one_message_id_may_have_several_effects() -> None:
    """Two effects of one message both run (S13)."""
    driver = Driver(envelope=NO_KEY)
    driver.produce(None, None, effect="letter", message="m-1")
    driver.produce(None, None, effect="invoice", message="m-1")
    driver.rest()
    assert driver.effects() == ["letter", "invoice"]


def test_a_payload_written_differently_is_still_a_duplicate() -> None:
    """White space and the order of keys make no other payload (S12)."""
    driver = Driver(envelope=NO_KEY)
    for payload in (b'{"x":1,"y":[1, 2]}', b'{ "y": [1,2],   "x": 1 }'):
        driver.produce_raw(b'{"messageId":"m","effectKey":"e","version":1,"payload":' + payload + b"}")
    driver.rest()
    assert driver.effects() == ["e"]
    assert driver.cases() == []


@pytest.mark.parametrize("crash", [False, True], ids=["in-memory", "reopened"])
def test_another_payload_for_a_finished_effect_in_turn_holds_the_lane(*, crash: bool) -> None:
    """In turn, with an effect that another payload finished: case `effect-conflict`, lane held (S12)."""
    driver = Driver()
    driver.produce("a", 1, effect="shared", payload={"cents": 5})
    driver.rest()
    if crash:
        driver.crash()
    driver.produce("a", 2, effect="shared", payload={"cents": 6})
    driver.produce("a", 3)
    driver.rest()
    assert driver.effects() == ["shared"]
    (case,) = driver.ledger.cases()
    assert (case.reason, case.holds, case.sequence) == ("effect-conflict", True, 2)
    assert case.record is not None, "the held record's bytes are in its case"
    lane = driver.lane("a")
    assert lane is not None
    assert lane.parked == 1
    effect = driver.effect("shared")
    assert effect is not None
    assert effect.state is EffectState.SUCCEEDED, "the effect belongs to the other delivery"
    driver.check_at_rest()


def test_another_payload_below_the_lane_is_a_case_that_holds_nothing() -> None:
    """A passed number with another payload: case `effect-conflict`, and the lane goes on."""
    driver = Driver()
    driver.produce_many("a", 1, 2)
    driver.produce("a", 1, payload={"corrected": True})
    driver.produce("a", 3)
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3"]
    (case,) = driver.ledger.cases()
    assert (case.reason, case.holds) == ("effect-conflict", False)
    driver.check_at_rest()


def test_a_passed_number_with_an_unknown_effect_is_stale() -> None:
    """A number the lane has passed, with an effect nobody knows: case `sequence-stale`, and no run."""
    driver = Driver()
    driver.produce_many("a", 1, 2)
    driver.produce("a", 1, effect="late")
    driver.produce("a", 3)
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3"]
    (case,) = driver.ledger.cases()
    assert (case.reason, case.holds, case.effect_key) == ("sequence-stale", False, "late")
    driver.check_at_rest()


def test_a_duplicate_in_turn_moves_the_lane_on() -> None:
    """The next number carries an effect that is done: nothing runs, `last` advances, its follower runs."""
    driver = Driver()
    driver.produce("b", 1, effect="shared", payload={})
    driver.produce("a", 1)
    driver.rest()
    driver.produce("a", 2, effect="shared", payload={})
    driver.produce("a", 3)
    driver.rest()
    assert driver.effects() == ["shared", "a1", "a3"]
    lane = driver.lane("a")
    assert lane is not None
    assert (lane.last, lane.hold) == (3, None)


def test_two_lanes_that_share_an_effect_never_run_at_once() -> None:
    """One effect key has one delivery at a time; the second lane finds it done."""
    driver = Driver()
    driver.produce("a", 1, effect="shared", payload={})
    driver.produce("b", 1, effect="shared", payload={})
    driver.poll()
    (run,) = driver.hand_out()
    driver.step(run)
    assert driver.hand_out() == []
    driver.finish(run)
    driver.rest()
    assert driver.effects() == ["shared"]
    assert driver.ends_of(1) == [SUPPRESSED]
    driver.check_at_rest()


def test_a_lane_that_waits_for_anothers_effect_wakes_when_that_run_is_given_back() -> None:
    """The first lane's run is taken back unstarted: the second may have the effect."""
    driver = Driver()
    driver.produce("a", 1, effect="shared", payload={})
    driver.produce("b", 1, effect="shared", payload={})
    driver.poll()
    (run,) = driver.hand_out()
    driver.finish(run)
    (run,) = driver.hand_out()
    assert run.records[0].lane in {"ka", "kb"}
    driver.step(run)
    driver.finish(run)
    driver.rest()
    assert driver.effects() == ["shared"]
    driver.check_at_rest()


def test_an_effect_that_waits_for_its_retry_in_one_lane_is_a_conflict_in_another() -> None:
    """Unfinished under another position: case `effect-conflict`, lane held; the retry itself goes on."""
    driver = Driver(handler=lambda record: LATER if record.attempt == 1 else ACK)
    driver.produce("a", 1, effect="shared", payload={})
    driver.rest(wait=False)
    driver.produce("b", 1, effect="shared", payload={})
    driver.rest()
    assert driver.effects() == ["shared"]
    (case,) = driver.ledger.cases()
    assert (case.reason, case.holds, case.lane) == ("effect-conflict", True, "kb")
    driver.check_at_rest()


def test_the_last_record_of_a_run_that_must_be_retried_can_be_retried() -> None:
    """What the records before it acked must not let go of the failed one's effect too early, or for ever."""
    driver = Driver(
        handler=lambda record: LATER if record.effect_key == "a2" and record.attempt == 1 else ACK
    )
    driver.produce_many("a", 1, 2)
    driver.rest()
    assert driver.effects() == ["a1", "a2"]
    driver.check_at_rest()


def test_without_a_sequence_key_a_changed_payload_after_a_quarantine_is_a_correction() -> None:
    """The corrected record runs; the same bytes again would be a duplicate of the refused one."""
    driver = Driver(
        envelope=NO_KEY, handler=lambda record: POISON if b"wrong" in (record.value or b"") else ACK
    )
    driver.produce(None, None, effect="e", payload={"is": "wrong"})
    driver.produce(None, None, effect="e", payload={"is": "wrong"})
    driver.produce(None, None, effect="e", payload={"is": "right"})
    driver.rest()
    assert driver.effects() == ["e"]
    assert driver.ends_of(1) == [(Settled.DUPLICATE, "quarantined")]
    assert len(driver.dlq) == 1
    driver.check_at_rest()


def test_with_a_sequence_key_a_changed_payload_after_a_quarantine_is_a_conflict() -> None:
    """In a lane somebody may depend on the refused record, so a person decides."""
    rules = Rules(pass_after_reject=True)
    driver = Driver(rules, handler=lambda record: POISON if b"wrong" in (record.value or b"") else ACK)
    driver.produce("a", 1, effect="e", payload={"is": "wrong"})
    driver.produce("a", 2, effect="e", payload={"is": "right"})
    driver.rest()
    assert driver.effects() == []
    assert driver.cases() == ["effect-conflict"]


def test_copies_of_a_record_that_waits_for_its_retry_wait_behind_it() -> None:
    """A copy of the held record is parked, and is a duplicate once the retry has succeeded (S25)."""
    for envelope in (EnvelopeRules(), NO_KEY):
        driver = Driver(envelope=envelope, handler=lambda record: LATER if record.attempt == 1 else ACK)
        keyed = envelope.sequence_key is not None
        for _ in range(3):
            driver.produce("a" if keyed else None, 1 if keyed else None, effect="e")
        driver.rest()
        assert driver.effects() == ["e"]
        assert [driver.ends_of(offset)[-1] for offset in (1, 2)] == [SUPPRESSED] * 2
        driver.check_at_rest()


def test_only_finished_effects_suppress() -> None:
    """An effect that failed and waits has not happened: its retry is no duplicate (case 28)."""
    driver = Driver(envelope=NO_KEY, handler=lambda record: LATER if record.attempt < 3 else ACK)
    driver.produce(None, None, effect="e")
    driver.rest()
    assert [act.verdict for act in driver.acts] == ["Retry", "Retry", "Ack"]


def test_two_copies_of_one_retry_run_once() -> None:
    """A retry that was published twice runs once; the other copy is dropped whatever the first one says."""
    for attempts in (2, 3):
        driver = Driver(handler=lambda record, n=attempts: LATER if record.attempt < n else ACK)  # type: ignore[misc]
        driver.produce("a", 1)
        driver.poll()
        driver.work()
        driver.write()
        driver.sync()
        driver.publish(clear=False)
        driver.crash()
        driver.rest()
        assert len(driver.topics[Channel.RETRY]) == attempts
        assert [act.attempt for act in driver.acts] == list(range(1, attempts + 1))
        driver.check_at_rest()


def test_old_retry_copies_are_dropped_by_the_ledgers_count() -> None:
    """Attempts are counted in the ledger: a copy of an earlier one neither runs nor resets the count."""
    driver = Driver(handler=lambda record: LATER)
    driver.produce("a", 1)
    driver.rest()
    copies = list(driver.topics[Channel.RETRY])
    driver.topics[Channel.RETRY] += copies * 2
    driver.rest()
    assert [act.attempt for act in driver.acts] == [1, 2, 3]
    assert driver.cases() == ["attempts-exhausted"]
    driver.check_at_rest()


def test_a_success_above_a_failure_is_kept_when_the_failure_comes_again() -> None:
    """Fail 5, succeed 6, kill: 5 comes again, 6 is suppressed (case 19)."""
    down = True
    driver = Driver(
        handler=lambda record: (
            Outcome(Retry("x"), "temporary-failure") if down and record.lane == "ka" else ACK
        )
    )
    driver.produce("a", 1)
    driver.produce("b", 1)
    driver.poll()
    runs = driver.hand_out()
    (other,) = (run for run in runs if run.lane == "kb")
    driver.step(other)
    driver.finish(other)
    driver.settle()
    assert driver.committed[Channel.SOURCE] == 0, "the lower one is unsettled"
    driver.crash()
    down = False
    driver.rest()
    assert driver.effects() == ["b1", "a1"]
    driver.check_at_rest()
