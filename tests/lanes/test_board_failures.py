"""What becomes of a record that fails: retry, DLQ, a case, or nothing at all, and of its lane behind it."""

from __future__ import annotations

import msgspec
import pytest

from laneway.lanes.effect import EffectState
from laneway.lanes.envelope import Envelope, EnvelopeRules
from laneway.lanes.failures import NeedsReview, PermanentFailure, Unavailable, classify
from laneway.lanes.forward import ForwardKind
from laneway.lanes.record import Channel, Record
from laneway.lanes.rules import Rules
from laneway.lanes.settlement import Settled
from laneway.lanes.verdict import ACK, Outcome, Reject, Retry
from tests.lanes.driver import Driver, Stored, always, value_of

LATER = Outcome(Retry("later"), "temporary-failure")
POISON = Outcome(Reject("poison"), "permanent-failure", "app.Poison")
UNKNOWN = classify(KeyError("secret"), ())
NO_KEY = EnvelopeRules(sequence_key=None, sequence=None)


def own_headers(headers: tuple[tuple[str, bytes | None], ...]) -> dict[str, str]:
    """Our headers of a forward, as text."""
    return {name: (value or b"").decode() for name, value in headers if name.startswith("laneway-")}


def test_a_reject_goes_to_the_dlq_after_one_attempt_and_holds_its_lane() -> None:
    """`after_reject = "hold"`: one dead letter, one holding case, followers parked behind it (S9, S19)."""
    driver = Driver(handler=lambda record: POISON if record.effect_key == "a1" else ACK)
    driver.produce_many("a", 1, 2)
    driver.produce("b", 1)
    driver.rest()
    assert [(act.effect_key, act.verdict) for act in driver.acts] == [("a1", "Reject"), ("b1", "Ack")]
    assert len(driver.dlq) == 1
    (case,) = driver.ledger.cases()
    assert (case.reason, case.holds, case.attempts, case.cause) == ("rejected", True, 1, "app.Poison")
    assert case.actions == ("replay", "replay-with", "skip", "discard", "mark-done")
    lane = driver.lane("a")
    assert lane is not None
    assert lane.parked == 1
    driver.check_at_rest()


def test_a_lane_may_move_past_a_reject() -> None:
    """`after_reject = "pass"`: the dead letter is written, nothing is held, no case is opened."""
    driver = Driver(Rules(pass_after_reject=True), handler=lambda r: POISON if r.sequence == 1 else ACK)
    driver.produce_many("a", 1, 2)
    driver.rest()
    assert driver.effects() == ["a2"]
    assert driver.cases() == []
    (letter,) = driver.dlq
    assert (letter.key, letter.value) == (b"k", value_of("a", 1))
    effect = driver.effect("a1")
    assert effect is not None
    assert effect.state is EffectState.QUARANTINED
    driver.check_at_rest()


def test_a_lane_of_one_is_never_held_after_a_reject() -> None:
    """Without a sequence key nothing waits behind a dead letter, so there is no case."""
    driver = Driver(envelope=NO_KEY, handler=always(POISON))
    driver.produce(None, None, effect="e")
    driver.rest()
    assert driver.cases() == []
    assert len(driver.dlq) == 1
    driver.check_at_rest()


def test_exhausted_attempts_open_one_holding_case() -> None:
    """1 + two delays attempts, then one case with all a person needs, and no dead letter (S8, S17, S18)."""
    driver = Driver(handler=always(LATER))
    driver.produce_many("a", 1, 2)
    driver.rest()
    assert [(act.effect_key, act.attempt) for act in driver.acts] == [("a1", 1), ("a1", 2), ("a1", 3)]
    (case,) = driver.ledger.cases()
    assert (case.reason, case.attempts, case.effect_key, case.holds) == ("attempts-exhausted", 3, "a1", True)
    assert "a1" in case.required_check
    assert "replay" in case.actions
    assert driver.dlq == []
    effect = driver.effect("a1")
    assert effect is not None
    assert (effect.state, effect.attempt, effect.case_id) == (EffectState.IN_REVIEW, 3, case.case_id)
    driver.check_at_rest()


def test_attempts_are_neither_reset_nor_inflated_by_crashes() -> None:
    """A crash between a failure and its settlement repeats that attempt, not the count."""
    driver = Driver(handler=always(LATER))
    driver.produce("a", 1)
    for _ in range(6):
        driver.poll()
        driver.work()
        driver.crash()
        driver.turn()
        driver.crash()
        driver.now_ms += 5000
    driver.rest()
    assert sorted({act.attempt for act in driver.acts}) == [1, 2, 3]
    (case,) = driver.ledger.cases()
    assert case.attempts == 3
    driver.check_at_rest()


def test_the_ledger_says_why_and_when_a_retry_comes() -> None:
    """Attempt, reason of the last transition and time of the next admission are stored (S8)."""
    driver = Driver(handler=always(LATER))
    driver.produce("a", 1)
    driver.rest(wait=False)
    effect = driver.effect("a1")
    assert effect is not None
    assert (effect.state, effect.attempt, effect.reason) == (EffectState.RETRY_WAIT, 1, "later")
    assert effect.due_ms == driver.now_ms + 1000
    (retry,) = driver.topics[Channel.RETRY]
    assert retry is not None
    assert own_headers(retry.headers)["laneway-due-at"] == str(effect.due_ms)


def test_an_unknown_exception_is_a_case_and_never_a_retry() -> None:
    """Nobody can say what has happened: one attempt, case `unclassified-failure`, no message kept (S8)."""
    driver = Driver(handler=always(UNKNOWN))
    driver.produce("a", 1)
    driver.rest()
    (case,) = driver.ledger.cases()
    assert (case.reason, case.cause, case.attempts) == ("unclassified-failure", "builtins.KeyError", 1)
    assert case.fingerprint
    assert not driver.topics[Channel.RETRY]
    assert not driver.dlq
    assert b"secret" not in b"".join(forward.value or b"" for forward in driver.review)
    driver.check_at_rest()


def test_a_handler_that_asks_for_a_person_gets_its_own_question_asked() -> None:
    """`NeedsReview(required_check)`: the case carries the handler's words, the lane waits."""
    driver = Driver(handler=always(classify(NeedsReview("Is the customer alive?", "dunning-stop"), ())))
    driver.produce_many("a", 1, 2)
    driver.rest()
    (case,) = driver.ledger.cases()
    assert (case.reason, case.required_check) == ("review-requested", "Is the customer alive?")
    assert len(driver.acts) == 1


@pytest.mark.parametrize("hold", [False, True], ids=["reject", "hold"])
def test_an_unknown_contract_version_is_refused_in_turn_and_unseen(*, hold: bool) -> None:
    """An unknown version never reaches the handler: in its turn it goes to the DLQ, or to a case (S5)."""
    driver = Driver(Rules(hold_unknown_version=hold, pass_after_reject=not hold))
    driver.produce("a", 2, version=9)
    driver.rest()
    assert driver.cases() == ["sequence-gap"]
    assert driver.dlq == []
    driver.produce_many("a", 1, 3)
    driver.rest()
    assert driver.effects() == (["a1"] if hold else ["a1", "a3"])
    assert len(driver.dlq) == (0 if hold else 1)
    assert driver.cases() == (["unknown-contract-version"] if hold else [])
    reason = "unknown-contract-version"
    how = Settled.IN_REVIEW if hold else Settled.QUARANTINED
    assert driver.ends_of(0)[-1] == (how, reason)
    driver.check_at_rest()


def test_an_unreadable_record_goes_to_the_dlq_at_once_with_its_bytes() -> None:
    """Only a record without a usable envelope is decided out of turn, other lanes untouched (case 26)."""
    driver = Driver()
    garbage = [b"\xff\x00", b"", b"{}", b"[1]", b'"text"', b"{", value_of("a", 1)[:-1]]
    driver.produce("a", 1)
    driver.poll()
    (run,) = driver.hand_out()
    for value in garbage:
        driver.produce_raw(value, b"\x00key", (("trace", b"\xfe"), ("trace", None)))
    driver.poll()
    driver.settle()
    assert [letter.value for letter in driver.dlq] == garbage
    assert {letter.key for letter in driver.dlq} == {b"\x00key"}
    assert all(letter.headers[:2] == (("trace", b"\xfe"), ("trace", None)) for letter in driver.dlq)
    assert all(own_headers(letter.headers)["laneway-reason"] for letter in driver.dlq)
    assert len({letter.forward_id for letter in driver.dlq}) == len(garbage)
    driver.step(run)
    driver.finish(run)
    driver.rest()
    assert driver.effects() == ["a1"]
    driver.check_at_rest()


@pytest.mark.parametrize("tombstones", ["reject", "skip"])
def test_a_tombstone_is_refused_or_passed_over(tombstones: str) -> None:
    """A record without a value goes to the DLQ, or is passed over without a delivery; the lane goes on."""
    driver = Driver(envelope=msgspec.structs.replace(EnvelopeRules(), tombstones=tombstones))
    driver.produce("a", 1)
    driver.produce_raw(None)
    driver.produce("a", 2)
    driver.rest()
    assert driver.effects() == ["a1", "a2"]
    how = Settled.QUARANTINED if tombstones == "reject" else Settled.SKIPPED
    assert driver.ends_of(1) == [(how, "tombstone")]
    assert [letter.value for letter in driver.dlq] == ([None] if tombstones == "reject" else [])
    driver.check_at_rest()


def test_two_failing_records_both_reach_their_end() -> None:
    """Two lanes fail beside each other; both are retried, both finish, the commit covers both (case 17)."""
    driver = Driver(handler=lambda record: LATER if record.attempt < 3 else ACK)
    driver.produce("a", 1)
    driver.produce("b", 1)
    driver.rest()
    assert sorted(driver.effects()) == ["a1", "b1"]
    assert driver.committed[Channel.SOURCE] == 2
    driver.check_at_rest()


def test_a_released_follower_that_is_refused_has_no_offset_to_settle() -> None:
    """Its offset was committed when it was parked; its forwards hold up nothing."""
    driver = Driver(
        Rules(pass_after_reject=True),
        handler=lambda record: LATER if (record.sequence, record.attempt) == (1, 1) else POISON,
    )
    driver.produce_many("a", 1, 2)
    driver.rest(wait=False)
    driver.now_ms += 1000
    driver.poll()
    driver.work()
    driver.write()
    driver.sync()
    driver.work()
    driver.write()
    assert {f.kind: f.offset for f in driver.outbox.values() if f.kind is ForwardKind.DLQ} == {
        ForwardKind.DLQ: -1
    }
    driver.rest()
    assert len(driver.dlq) == 2
    driver.check_at_rest()


def test_a_retry_that_is_refused_settles_its_own_position() -> None:
    """A dead letter from a retry holds the retry's offset until it is published, not the source's."""
    driver = Driver(
        handler=lambda record: LATER if record.attempt == 1 else classify(PermanentFailure("no"), ())
    )
    driver.produce("a", 1)
    driver.rest()
    (letter,) = driver.dlq
    assert (letter.channel, letter.offset) == (Channel.RETRY, 0)
    assert own_headers(letter.headers)["laneway-attempt"] == "2"
    driver.check_at_rest()


def retry_record(driver: Driver) -> Stored:
    """The first retry that a driver has published."""
    stored = driver.topics[Channel.RETRY][0]
    assert stored is not None
    return stored


def changed(stored: Stored, **headers: bytes | None) -> Stored:
    """A retry record with some of our headers changed."""
    new = {f"laneway-{name.replace('_', '-')}": value for name, value in headers.items()}
    kept = tuple((name, new.pop(name, value)) for name, value in stored.headers)
    return stored._replace(headers=kept + tuple(new.items()))


@pytest.mark.parametrize(
    "change",
    [
        {"group": b"others"},
        {"origin_topic": b"other"},
        {"origin_partition": b"4"},
        {"format": b"2"},
        {"kind": b"dlq"},
        {"attempt": b"-1"},
        {"attempt": b"two"},
        {"attempt": None},
        {"due_at": b"1e9"},
        {"origin_offset": b"9" * 20},
        {"effect_key": b"\xff"},
        {"sequence": b""},
    ],
    ids=str,
)
def test_a_retry_record_that_is_not_ours_or_broken_is_refused(change: dict[str, bytes | None]) -> None:
    """Headers of another group, partition or format, or broken ones: DLQ, no lane is touched (case 24)."""
    driver = Driver(handler=lambda record: LATER if record.attempt == 1 else ACK)
    driver.produce_many("a", 1, 2)
    driver.rest(wait=False)
    driver.topics[Channel.RETRY].insert(0, changed(retry_record(driver), **change))
    driver.crash()
    driver.rest()
    assert driver.effects() == ["a1", "a2"]
    assert [own_headers(letter.headers)["laneway-reason"] for letter in driver.dlq] in (
        [["foreign-retry-record"], ["broken-retry-headers"]]
    )
    driver.check_at_rest()


def test_a_hostile_due_time_stalls_nothing() -> None:
    """A due time of the year 3000 is cut to the longest delay from now (design 4.4)."""
    driver = Driver(handler=lambda record: LATER if record.attempt == 1 else ACK)
    driver.produce("a", 1)
    driver.rest(wait=False)
    driver.topics[Channel.RETRY][0] = changed(retry_record(driver), due_at=b"32503680000000")
    driver.crash()
    driver.poll()
    due_ms = driver.board.next_due_ms
    assert due_ms is not None
    assert due_ms <= driver.now_ms + 4000
    driver.rest()
    assert driver.effects() == ["a1"]


def test_a_record_keeps_all_it_is_through_retry_and_dlq() -> None:
    """Key bytes, null value, binary identity and foreign headers survive every round trip (case 2)."""
    rules = EnvelopeRules(
        message_id="header:id",
        effect_key="header:effect",
        sequence_key="key",
        sequence="header:seq",
        version=None,
        payload="value",
        tombstones="deliver",
    )
    key = b"\x00\xff\x80key"
    headers = (("id", b"\xfe"), ("effect", b"b64:x"), ("seq", b"1"), ("twice", b"1"), ("twice", None))
    seen: list[tuple[object, ...]] = []

    def handler(record: Record) -> Outcome:
        identity = (record.message_id, record.effect_key, record.sequence_key, record.sequence, record.lane)
        foreign = tuple(header for header in record.headers if not header[0].startswith("laneway-"))
        seen.append((record.key, record.value, foreign, *identity, record.timestamp_ms, record.origin_offset))
        return LATER if record.attempt < 3 else POISON

    driver = Driver(envelope=rules, handler=handler)
    driver.produce_raw(None, key, headers)
    driver.rest()
    assert len(seen) == 3
    assert len(set(seen)) == 1
    (letter,) = driver.dlq
    assert (letter.key, letter.value, letter.headers[:5]) == (key, None, headers)
    driver.check_at_rest()


def test_twenty_rounds_leave_the_headers_as_many_and_as_long() -> None:
    """Headers of ours are replaced, never appended: twenty replays leave their bytes constant (case 22)."""
    sizes = set()
    driver = Driver(
        Rules(delays_ms=(1000,) * 40),
        handler=lambda record: LATER if record.attempt < 31 else POISON,
    )
    driver.produce("a", 1, headers=(("trace", b"abc"),))
    driver.rest()
    for stored in driver.topics[Channel.RETRY]:
        assert stored is not None
        attempt = int(own_headers(stored.headers)["laneway-attempt"])
        if attempt >= 10:
            sizes.add((len(stored.headers), sum(len(n) + len(v or b"") for n, v in stored.headers)))
    assert len(driver.topics[Channel.RETRY]) == 30
    assert len(sizes) == 1
    names = [name for name, _ in driver.dlq[0].headers]
    assert len(names) == len(set(names))


def test_a_fault_that_appears_on_a_retry_is_judged_in_turn() -> None:
    """The envelope rules changed meanwhile: the awaited retry is refused in turn, its lane is not stuck."""
    driver = Driver(Rules(pass_after_reject=True), handler=lambda r: LATER if r.attempt == 1 else ACK)
    driver.produce_many("a", 1, 2)
    driver.rest(wait=False)
    stored = retry_record(driver)
    driver.topics[Channel.RETRY][0] = stored._replace(value=b"{}")
    driver.crash()
    driver.rest()
    assert driver.effects() == ["a2"]
    assert len(driver.dlq) == 1
    driver.check_at_rest()


def test_a_fault_that_appears_on_a_parked_follower_is_judged_in_turn() -> None:
    """The envelope rules changed while it was parked: it keeps its place and is refused when it comes."""
    driver = Driver(Rules(pass_after_reject=True))
    driver.produce_many("a", 3, 2)
    driver.rest()
    driver.envelope = Envelope(EnvelopeRules(message_id="json:/moved"))
    driver.crash()
    value = msgspec.json.decode(value_of("a", 1)) | {"moved": "m"}
    driver.produce_raw(msgspec.json.encode(value))
    driver.rest()
    assert driver.effects() == ["a1"]
    reason = "missing-field: message_id at json:/moved"
    assert [driver.ends_of(offset)[-1] for offset in (1, 0)] == [(Settled.QUARANTINED, reason)] * 2
    assert [own_headers(letter.headers)["laneway-sequence"] for letter in driver.dlq] == ["2", "3"]
    driver.check_at_rest()


@pytest.mark.parametrize("waits", [False, True], ids=["a-retry", "an-unavailable-dependency"])
def test_a_clock_set_back_lengthens_no_wait(*, waits: bool) -> None:
    """An hour backwards while a record waits for its time: it runs when its delay is over, not an hour late.

    And not before: setting a clock back makes nothing due (case 18).
    """
    first = classify(Unavailable(1000), ()) if waits else LATER
    answers = [first, ACK]
    driver = Driver(handler=lambda _: answers.pop(0))
    driver.now_ms += 7_200_000
    driver.produce("a", 1)
    driver.rest(wait=False)
    driver.now_ms -= 3_600_000
    driver.rest(wait=False)
    driver.now_ms += 900
    driver.rest(wait=False)
    assert driver.effects() == []
    driver.now_ms += 100
    driver.rest(wait=False)
    assert driver.effects() == ["a1"]
