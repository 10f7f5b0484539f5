"""From a verdict to a settlement: entries, forwards, events and the lane after it, all in one value."""

from __future__ import annotations

import pytest

from laneway.lanes.admission import Order
from laneway.lanes.case import Case
from laneway.lanes.effect import Effect, EffectState, IllegalTransitionError
from laneway.lanes.forward import ForwardKind, Home
from laneway.lanes.lane import Hold, HoldKind, Lane
from laneway.lanes.record import Channel, Record, keyed_lane, lane_of_one
from laneway.lanes.rules import Rules
from laneway.lanes.settlement import Settled, Settlement
from laneway.lanes.settling import Settling
from laneway.lanes.verdict import Ack, Outcome, Reject, Retry, Review, Wait
from laneway.lanes.view import PutCase, PutEffect, PutLane, PutParked

HOME = Home("reminders", "invoices", 3)
NOW_MS = 5_000


def a_record(*, sequence_key: str | None = "a", attempt: int = 1, parked: bool = False) -> Record:
    """Number 5 of its lane."""
    record = Record(Channel.SOURCE, 7, b"k", b"v", (("h", b"1"),), 1234)
    record.message_id, record.effect_key, record.payload_hash = "m-1", "e-1", b"hash"
    record.sequence_key, record.sequence = sequence_key, 5
    record.lane = keyed_lane(sequence_key) if sequence_key is not None else lane_of_one("e-1")
    record.attempt, record.parked = attempt, parked
    return record


def settle(
    verdict: Ack | Retry | Reject | Review,
    *,
    record: Record | None = None,
    lane: Lane | None = None,
    rules: Rules | None = None,
    cause: str = "",
    held_case: Case | None = None,
) -> tuple[Settlement, Lane]:
    """Settle one verdict; by default of number 5 in a free lane that stands at 4."""
    return Settling(HOME, rules or Rules()).verdict(
        record or a_record(), Outcome(verdict, cause), lane or Lane(4), held_case, NOW_MS
    )


def effect_of(done: Settlement) -> Effect:
    """The one effect that a settlement records."""
    (effect,) = [entry.effect for entry in done.entries if isinstance(entry, PutEffect)]
    assert effect is not None
    return effect


def lane_of(done: Settlement) -> Lane | None:
    """The lane as a settlement records it."""
    (lane,) = [entry.lane for entry in done.entries if isinstance(entry, PutLane)]
    return lane


def test_a_success_stores_state_and_result_key_in_one_entry_and_moves_the_lane() -> None:
    """State and result key are saved in one consistent step, with the lane's number beside them (S6)."""
    done, after = settle(Ack("reports/e-1.csv"))
    effect = effect_of(done)
    assert (effect.state, effect.result_key, effect.offset) == (EffectState.SUCCEEDED, "reports/e-1.csv", 7)
    assert (effect.payload_hash, effect.attempt, effect.first_failed_ms) == (b"hash", 1, 0)
    assert lane_of(done) == after == Lane(5)
    assert (done.how, done.result_key, done.forwards) == (Settled.SUCCEEDED, "reports/e-1.csv", [])


@pytest.mark.parametrize(
    ("verdict", "state", "kinds"),
    [
        (Retry("later"), EffectState.RETRY_WAIT, [ForwardKind.RETRY]),
        (Reject("bad"), EffectState.QUARANTINED, [ForwardKind.DLQ, ForwardKind.REVIEW]),
        (Review("odd", ""), EffectState.IN_REVIEW, [ForwardKind.REVIEW]),
    ],
)
def test_a_failure_records_its_state_with_what_it_forwards(
    verdict: Retry | Reject | Review, state: EffectState, kinds: list[ForwardKind]
) -> None:
    """The attempt is recorded with the retry, the quarantine with the dead letter: one write (S4)."""
    done, after = settle(verdict)
    assert effect_of(done).state is state
    assert [forward.kind for forward in done.forwards] == kinds
    assert {forward.offset for forward in done.forwards} == {7}
    assert lane_of(done) == after
    assert after.last == 4
    assert after.hold is not None
    assert (after.hold.sequence, after.hold.offset, after.hold.effect_key) == (5, 7, "e-1")


@pytest.mark.parametrize(("attempt", "delay_ms"), [(1, 1000), (2, 4000)])
def test_a_retry_waits_its_fixed_delay_for_the_next_attempt(attempt: int, delay_ms: int) -> None:
    """Attempt n waits the n-th delay; the lane waits for attempt n + 1 and no other (S17)."""
    done, after = settle(Retry("later"), record=a_record(attempt=attempt))
    assert after.hold is not None
    assert (after.hold.kind, after.hold.attempt) == (HoldKind.RETRY, attempt + 1)
    assert after.hold.due_ms == effect_of(done).due_ms == NOW_MS + delay_ms


def test_without_delays_the_first_failure_is_the_last() -> None:
    """No delays: one attempt, then a case."""
    done, _ = settle(Retry("later"), rules=Rules(delays_ms=()))
    (case,) = [entry.case for entry in done.entries if isinstance(entry, PutCase) and entry.case]
    assert (case.reason, case.attempts) == ("attempts-exhausted", 1)


def test_a_case_keeps_the_held_records_bytes() -> None:
    """What a person decides on later is stored with the case (4.1)."""
    done, _ = settle(Review("odd", "Is it?"), cause="review-requested")
    (case,) = [entry.case for entry in done.entries if isinstance(entry, PutCase) and entry.case]
    assert case.record is not None
    assert (case.record.key, case.record.value, case.record.headers) == (b"k", b"v", (("h", b"1"),))
    assert (case.required_check, case.offset, case.lane, case.version) == ("Is it?", 7, "ka", 1)


def test_a_reason_that_is_no_rule_becomes_a_review_request() -> None:
    """A handler's own words never become a reason that the table of actions does not know."""
    done, _ = settle(Review("my own words", ""), cause="whatever")
    (case,) = [entry.case for entry in done.entries if isinstance(entry, PutCase) and entry.case]
    assert case.reason == "review-requested"
    assert case.actions


def test_a_released_follower_leaves_the_parking_lot_with_every_verdict() -> None:
    """Its entry is removed in the same write that settles it, and the counts go down by what it was."""
    size = a_record().size_bytes
    for verdict in (Ack(), Retry("x"), Reject("x"), Review("x", "")):
        done, after = settle(verdict, record=a_record(parked=True), lane=Lane(4, None, 2, 50 + size))
        assert [entry.key for entry in done.entries if isinstance(entry, PutParked)] == [("ka", 5, 7)]
        assert (after.parked, after.parked_bytes) == (1, 50)
        assert {forward.offset for forward in done.forwards} <= {-1}


def test_a_parked_record_keeps_its_identity_and_counts_what_is_stored() -> None:
    """Parking stores the bytes without our headers and counts exactly those."""
    record = a_record()
    record.headers += (("laneway-attempt", b"1"),)
    held = Lane(3, Hold(HoldKind.RETRY, "e-0", 4, 6, 2, "later", "", 1))
    done, after = Settling(HOME, Rules()).park(record, held, NOW_MS)
    (entry,) = [entry for entry in done.entries if isinstance(entry, PutParked)]
    assert entry.parked is not None
    assert entry.parked.raw.headers == (("h", b"1"),)
    assert (after.parked, after.parked_bytes) == (1, entry.parked.raw.size_bytes())
    assert (done.how, done.ends, done.reason) == (Settled.PARKED, False, "later")


@pytest.mark.parametrize(
    "verdict", [Ack(), Retry("x"), Reject("x"), Review("x", "")], ids=lambda v: type(v).__name__
)
def test_every_verdict_of_a_late_predecessor_closes_the_gap(verdict: Ack | Retry | Reject | Review) -> None:
    """The case closes as `predecessor-arrived` with whatever the predecessor came to."""
    gap = Case("gap-1", "sequence-gap", "", True, "ka", 5, "", "", 8, 0, "?", 1)
    held = Lane(4, Hold(HoldKind.GAP, "", 5, 8, 1, "sequence-gap", "gap-1", 1), 1, 10)
    done, after = settle(verdict, lane=held, held_case=gap)
    assert PutCase("gap-1", None) in done.entries
    assert ("review_resolved", "gap-1") in done.events
    assert after.hold is None or after.hold.case_id != "gap-1"
    assert (("lane_released", "sequence-gap") in done.events) is isinstance(verdict, Ack)


def test_a_lane_of_one_leaves_nothing_behind_but_its_effect() -> None:
    """No number to keep: a free lane of one is not stored, a held one is forgotten when it is done."""
    done, _ = settle(Ack(), record=a_record(sequence_key=None), lane=Lane())
    assert not [entry for entry in done.entries if isinstance(entry, PutLane)]
    held = Lane(None, Hold(HoldKind.RETRY, "e-1", 0, 7, 2, "later", "", 1))
    done, _ = settle(Ack(), record=a_record(sequence_key=None, attempt=2), lane=held)
    assert lane_of(done) is None


def test_a_lane_by_arrival_keeps_no_number() -> None:
    """With `arrival` the lane is forgotten as soon as nothing waits in it."""
    held = Lane(None, Hold(HoldKind.RETRY, "e-1", 0, 7, 2, "later", "", 1))
    done, _ = settle(Ack(), lane=held, rules=Rules(order=Order.ARRIVAL))
    assert lane_of(done) is None


def test_the_first_failure_is_remembered_through_all_attempts() -> None:
    """When it first failed stands in the effect, whatever the attempt."""
    record = a_record(attempt=2)
    record.first_failed_ms = 11
    record.prior = effect_of(settle(Retry("x"))[0])
    assert effect_of(settle(Retry("x"), record=record)[0]).first_failed_ms == 11
    assert effect_of(settle(Ack(), record=record)[0]).first_failed_ms == 11


def test_a_second_success_is_an_error_and_settles_nothing() -> None:
    """A succeeded effect never changes again; asking for it is a defect, not a log line (S3)."""
    record = a_record()
    record.prior = effect_of(settle(Ack())[0])
    with pytest.raises(IllegalTransitionError):
        settle(Ack(), record=record)


def test_unavailable_is_no_verdict() -> None:
    """Nothing was tried, so nothing can be settled."""
    with pytest.raises(AssertionError, match="settles nothing"):
        Settling(HOME, Rules()).verdict(a_record(), Outcome(Wait(1, "x")), Lane(4), None, NOW_MS)


@pytest.mark.parametrize("hold", [False, True])
def test_a_version_that_only_the_models_do_not_know_is_unknown_too(*, hold: bool) -> None:
    """`on_unknown_version` counts wherever the version was found to be unknown (S5)."""
    done, _ = settle(
        Reject("unknown-contract-version"),
        cause="unknown-contract-version",
        rules=Rules(hold_unknown_version=hold),
    )
    assert done.how is (Settled.IN_REVIEW if hold else Settled.QUARANTINED)
    kinds = {forward.kind for forward in done.forwards}
    assert (ForwardKind.DLQ in kinds) is not hold


def test_a_dead_letter_says_where_the_payload_did_not_fit() -> None:
    """Location and type of validation errors stand in the dead letter's `error-class`, never a value (S9)."""
    outcome = Outcome(Reject("invalid-payload"), "invalid-payload", detail="amount: int_parsing")
    done, _ = Settling(HOME, Rules()).verdict(a_record(), outcome, Lane(4), None, NOW_MS)
    (letter,) = [forward for forward in done.forwards if forward.kind is ForwardKind.DLQ]
    assert dict(letter.headers)["laneway-error-class"] == b"amount: int_parsing"


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(Retry("bank is down"), "temporary-failure", "laneway.TemporaryFailure"),
        Outcome(Reject("bank is down"), "permanent-failure"),
        Outcome(Review("bank is down", "Is it up?"), "review-requested"),
    ],
)
def test_a_case_keeps_the_authors_own_words(outcome: Outcome) -> None:
    """What the handler's author said stands in the case and in its news, for the person (S18)."""
    record = a_record(attempt=3)
    done, _ = Settling(HOME, Rules()).verdict(record, outcome, Lane(4), None, NOW_MS)
    (case,) = [entry.case for entry in done.entries if isinstance(entry, PutCase)]
    assert case is not None
    assert case.note == "bank is down"
    (news,) = [forward for forward in done.forwards if forward.kind is ForwardKind.REVIEW]
    assert b'"note":"bank is down"' in (news.value or b"")


def test_a_case_without_words_has_no_note() -> None:
    """The fixed word for saying nothing is not repeated as if somebody had said it."""
    outcome = Outcome(Reject("invalid-payload"), "invalid-payload", detail="amount: int_parsing")
    done, _ = Settling(HOME, Rules()).verdict(a_record(), outcome, Lane(4), None, NOW_MS)
    (case,) = [entry.case for entry in done.entries if isinstance(entry, PutCase)]
    assert case is not None
    assert case.note == ""
