"""Dead letters again: what a replay may do, what it changes, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from laneway.lanes.admission import Order
from laneway.lanes.effect import EffectState
from laneway.lanes.envelope import EnvelopeRules
from laneway.lanes.forward import Forward
from laneway.lanes.record import Channel, Record
from laneway.lanes.rules import Rules
from laneway.lanes.verdict import ACK, Outcome
from tests.lanes.cases import LATER, POISON, UNKNOWN
from tests.lanes.driver import always, value_of
from tests.lanes.operated import Operated, own_headers
from tests.lanes.test_commands import picture

PASS = Rules(pass_after_reject=True)


def second(outcome: Outcome) -> Callable[[Record], Outcome]:
    """A handler that does this with the second record of lane "a"."""
    return lambda record: outcome if record.effect_key == "a2" else ACK


def passed(rules: Rules = PASS, *numbers: int, **named: Any) -> tuple[Operated, Forward]:
    """A lane that has moved past a rejected second record; the handlers are well again."""
    driver = Operated(rules, handler=second(POISON), **named)
    driver.produce_many("a", *(numbers or (1, 2)))
    driver.rest()
    driver.check_at_rest()
    driver.handler = always(ACK)
    (letter,) = driver.dlq
    return driver, letter


def test_a_replay_runs_in_its_lane_while_nothing_came_after_it() -> None:
    """The rejected effect is reopened and recorded once; what follows runs behind it, in order."""
    driver, letter = passed()
    answer = driver.replayed(letter)
    assert (answer.event, answer.outcome, answer.next_case) == ("applied", "succeeded", "")
    assert (answer.letter, answer.replays) == (letter.forward_id, 1)
    assert (answer.actor, answer.said) == ("ann", "because")
    driver.produce("a", 3)
    driver.rest()
    assert driver.effects() == ["a1", "a2", "a3"]
    effect = driver.effect("a2")
    assert effect is not None
    assert (effect.state, effect.offset, effect.attempt) == (EffectState.SUCCEEDED, 1, 2)
    driver.produce("a", 2)
    driver.rest()
    assert driver.cases() == [], "a copy of what was replayed is a duplicate"
    driver.check_at_rest()


def test_the_same_letter_twice_runs_once() -> None:
    """Whoever types a replay twice, or is killed and types it again, has it applied once (case 29)."""
    driver, letter = passed()
    first, again = driver.replay(letter), driver.replay(letter)
    driver.rest()
    assert (driver.answer(first).event, driver.answer(again).event) == ("applied", "refused")
    assert "has succeeded" in driver.answer(again).why
    assert [act.attempt for act in driver.acts if act.effect_key == "a2"] == [1, 2]
    driver.check_at_rest()


def test_a_refused_replay_goes_back_where_it_lay() -> None:
    """Refused again, it is a new dead letter with its lineage; its lane goes on; the old letter is over."""
    driver, letter = passed(PASS, 1, 2, 3)
    driver.handler = second(POISON)
    answer = driver.replayed(letter, out_of_order=True)
    assert (answer.outcome, answer.next_case) == ("quarantined", "")
    own = own_headers(driver.dlq[-1])
    assert (own["replay-of"], own["replay-count"], own["attempt"]) == (letter.forward_id, "1", "2")
    assert driver.dlq[-1].forward_id != letter.forward_id
    lane = driver.lane("a")
    assert lane is not None
    assert (lane.last, lane.hold) == (3, None)
    why = driver.replayed(letter, out_of_order=True).why
    assert "refused again since, by offset 1, attempt 2" in why
    driver.produce("a", 4)
    driver.rest()
    assert driver.effects() == ["a1", "a3", "a4"]
    driver.check_at_rest()


def test_replays_are_bounded_and_counted_through_retries_and_cases() -> None:
    """A loop ends: the count survives retries, cases and crashes, and has a bound (case 29)."""
    driver, letter = passed(Rules(pass_after_reject=True, max_replays=2, delays_ms=(1000,)))
    ends = iter((LATER, UNKNOWN, POISON, POISON))
    driver.handler = lambda record: next(ends) if record.effect_key == "a2" else ACK
    answer = driver.replayed(letter)
    assert answer.outcome == "retry_wait"
    driver.crash()
    driver.applied("replay", driver.case("unclassified-failure"))
    assert driver.cases() == [], "what came from the DLQ goes back there, and holds nothing"
    once = driver.dlq[-1]
    assert (own_headers(once)["replay-count"], own_headers(once)["replay-of"]) == ("1", letter.forward_id)
    driver.replayed(once)
    twice = driver.dlq[-1]
    assert (own_headers(twice)["replay-count"], own_headers(twice)["replay-of"]) == ("2", once.forward_id)
    before = picture(driver)
    assert "was replayed 2 times" in driver.replayed(twice).why
    assert picture(driver) == before
    driver.check_at_rest()


def test_twenty_replays_leave_the_size_of_the_headers_as_it_is() -> None:
    """Lineage is replaced, not appended: letters do not grow with their replays (cases 22, 29)."""
    driver, _ = passed(Rules(pass_after_reject=True, max_replays=20))
    driver.handler = second(POISON)
    for _ in range(20):
        driver.replayed(driver.dlq[-1])
    headers = [dict(letter.headers) for letter in driver.dlq]
    assert headers[-1]["laneway-replay-count"] == b"20"
    assert [len(h) for h in headers[1:]] == [len(headers[1])] * 20
    # Two digits each of attempt and count.
    assert (
        sum(len(v or b"") for v in headers[-1].values())
        <= sum(len(v or b"") for v in headers[1].values()) + 2
    )
    driver.check_at_rest()


def test_out_of_order_it_needs_a_word_for_it() -> None:
    """What came after it has run: refused, with where its key stands, unless its sender says that it may."""
    driver, letter = passed(PASS, 1, 2, 3)
    before = picture(driver)
    why = driver.replayed(letter).why
    assert "out of order" in why
    assert "moved on to sequence 3, and this one is 2" in why
    assert picture(driver) == before
    assert driver.replayed(letter, out_of_order=True).outcome == "succeeded"
    assert driver.effects() == ["a1", "a3", "a2"]
    lane = driver.lane("a")
    assert lane is not None
    assert lane.last == 3, "a lane never goes back"
    driver.produce_many("a", 3, 4)
    driver.rest()
    assert driver.effects() == ["a1", "a3", "a2", "a4"]
    assert driver.cases() == []
    driver.check_at_rest()


def test_a_late_replay_that_fails_otherwise_holds_its_key_until_somebody_decides() -> None:
    """Retries and cases of a late replay are those of any delivery, and its lane never goes back either."""
    driver, letter = passed(Rules(pass_after_reject=True, delays_ms=(1000,)), 1, 2, 3)
    driver.handler = second(LATER)
    driver.replayed(letter, out_of_order=True)
    case = driver.case("attempts-exhausted")
    assert case.attempts == 3, "its budget of retries is a new one"
    driver.produce("a", 4)
    driver.rest()
    driver.applied("skip", case)
    lane = driver.lane("a")
    assert lane is not None
    assert (lane.last, lane.hold) == (4, None)
    assert driver.effects() == ["a1", "a3", "a4"]
    driver.check_at_rest()


@pytest.mark.parametrize("order", [Order.INCREASING, Order.CONTIGUOUS])
def test_numbers_tell_whether_it_is_late(order: Order) -> None:
    """Contiguous or with holes: it is late once a higher number has run, and not before."""
    driver, letter = passed(Rules(pass_after_reject=True, order=order))
    assert driver.replayed(letter).outcome == "succeeded"
    driver, letter = passed(Rules(pass_after_reject=True, order=order), 1, 2, 3)
    assert "out of order" in driver.replayed(letter).why


def test_without_numbers_nobody_can_tell() -> None:
    """By arrival the ledger keeps no number, so a replay always needs the word."""
    driver, letter = passed(Rules(pass_after_reject=True, order=Order.ARRIVAL))
    assert "no numbers" in driver.replayed(letter).why
    driver.late.add("a2")
    assert driver.replayed(letter, out_of_order=True).outcome == "succeeded"
    driver.check_at_rest()


def test_without_a_key_there_is_no_order() -> None:
    """A lane of one has nothing behind it: it is replayed as it is."""
    driver = Operated(envelope=EnvelopeRules(sequence_key=None, sequence=None), handler=always(POISON))
    driver.produce_raw(value_of(None, None, effect="x"))
    driver.rest()
    driver.handler = always(ACK)
    assert driver.replayed(driver.dlq[0]).outcome == "succeeded"
    assert driver.effects() == ["x"]
    driver.check_at_rest()


def test_an_open_case_is_named_and_decides() -> None:
    """While a case holds its lane a replay is refused with that case's name; its own, or another's."""
    driver, letter = passed(Rules(), 1, 2, 3)
    case = driver.case("rejected")
    assert f"case {case.case_id} of its key is open" in driver.replayed(letter).why
    driver.applied("skip", case)
    driver.produce("a", 5)
    driver.rest()
    gap = driver.case("sequence-gap")
    assert f"case {gap.case_id} of its key is open" in driver.replayed(letter, out_of_order=True).why
    driver.produce("a", 4)
    driver.rest()
    assert driver.replayed(letter, out_of_order=True).outcome == "succeeded"
    assert driver.effects() == ["a1", "a3", "a4", "a5", "a2"]
    driver.check_at_rest()


def test_a_lane_that_waits_for_a_retry_comes_first() -> None:
    """One delivery of a lane at a time: while another record waits for its retry, the replay is refused."""
    driver, letter = passed(Rules(pass_after_reject=True, delays_ms=(10_000,)), 1, 2)
    driver.handler = lambda record: LATER if record.effect_key == "a3" and record.attempt == 1 else ACK
    driver.produce("a", 3)
    driver.rest(wait=False)
    offset = driver.replay(letter, out_of_order=True)
    driver.rest(wait=False)
    assert "waits for a retry of effect 'a3'" in driver.answer(offset).why
    driver.rest()
    driver.check_at_rest()


def test_a_paused_lane_is_resumed_first() -> None:
    """Nothing of a paused lane runs, a dead letter neither."""
    driver, letter = passed()
    driver.applied("pause", lane="a")
    assert "paused" in driver.replayed(letter).why
    driver.applied("resume", lane="a")
    assert driver.replayed(letter).outcome == "succeeded"
    driver.check_at_rest()


def test_what_the_ledger_does_not_know_is_not_run() -> None:
    """An effect that it never heard of may have happened: refused, as are lies about lane and delivery."""
    driver, letter = passed()
    before = picture(driver)
    assert "knows nothing of effect 'zz'" in driver.replayed(letter, effect_key="zz").why
    assert "refused again since" in driver.replayed(letter, attempt=7).why
    assert "refused again since" in driver.replayed(letter, offset=0).why
    assert picture(driver) == before
    other = driver.replay(letter)
    stored = driver.topics[Channel.COMMANDS][other]
    assert stored is not None
    driver.command_raw((stored.value or b"").replace(b'"lane":"ka"', b'"lane":"kb"'))
    driver.rest()
    assert "belongs to another key" in driver.answer(other + 1).why
    assert driver.effects() == ["a1", "a2"]
    driver.check_at_rest()


def test_a_corrected_letter_is_the_same_effect_in_the_same_place() -> None:
    """A corrected value runs in the place of its own; it may not be another effect."""
    driver, letter = passed()
    wrong = value_of("a", 2, effect="other")
    assert "another effect key" in driver.replayed(letter, value=wrong).why
    seen: list[bytes | None] = []

    def see(record: Record) -> Outcome:
        seen.append(record.value)
        return ACK

    driver.handler = see
    corrected = value_of("a", 2, payload={"of": "a correction"})
    assert driver.replayed(letter, value=corrected).outcome == "succeeded"
    assert seen == [corrected]
    driver.check_at_rest()


def test_a_crash_in_a_replay_is_an_unknown_outcome_where_those_are_reviewed() -> None:
    """on_unknown_outcome = "review": a replay that has begun and not ended is asked about, not run."""
    rules = Rules(pass_after_reject=True, intents=True, max_run=1)
    driver, letter = passed(rules, 1, 2, 3)
    driver.replay(letter, out_of_order=True)
    driver.poll()
    driver.hand_out()
    driver.settle()
    (run,) = driver.hand_out()
    driver.step(run)
    driver.crash()
    driver.rest()
    case = driver.case("outcome-unknown")
    effect = driver.effect("a2")
    assert effect is not None
    assert effect.replay is not None
    assert (effect.replay.count, case.attempts) == (1, 2)
    driver.applied("mark-done", case)
    lane = driver.lane("a")
    assert lane is not None
    assert lane.last == 3
    driver.check_at_rest()


def test_a_crash_before_the_handler_starts_the_replay_anew() -> None:
    """A command whose run is not settled comes again, and is counted once."""
    driver, letter = passed()
    driver.replay(letter)
    driver.poll()
    (run,) = driver.hand_out()
    driver.step(run)
    driver.crash()
    driver.rest()
    effect = driver.effect("a2")
    assert effect is not None
    assert effect.replay is not None
    assert (effect.state, effect.attempt, effect.replay.count) == (EffectState.SUCCEEDED, 2, 1)
    driver.check_at_rest()
