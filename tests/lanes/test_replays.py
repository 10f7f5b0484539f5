"""Replays: a held record runs again because a person wants it, as it was or with a corrected value."""

from __future__ import annotations

import pytest

from laneway.lanes.effect import EffectState
from laneway.lanes.envelope import EnvelopeRules
from laneway.lanes.record import Record
from laneway.lanes.verdict import ACK, Outcome, Wait
from tests.lanes.cases import LATER, POISON, UNKNOWN, situation
from tests.lanes.driver import always, value_of
from tests.lanes.operated import Operated
from tests.lanes.test_commands import picture


def test_a_replay_renews_the_retry_budget_and_attempts_go_on() -> None:
    """4.7: after a replay all delays stand open again, and the attempt numbers never restart (S17)."""
    driver, case = situation("attempts-exhausted")
    driver.handler = lambda r: LATER if r.effect_key == "a2" else ACK
    begin = driver.now_ms
    answer = driver.applied("replay", case)
    assert answer.outcome == "retry_wait"
    tries = [act.attempt for act in driver.acts if act.effect_key == "a2"]
    assert tries == [1, 2, 3, 4, 5, 6]
    assert driver.now_ms - begin == sum(driver.rules.delays_ms)
    again = driver.case("attempts-exhausted")
    assert again.case_id != case.case_id
    assert again.attempts == 6
    driver.check_at_rest()


def test_an_old_command_never_hits_a_new_case() -> None:
    """4.7: the case after a renewed exhaustion has an id of its own, so yesterday's skip is refused."""
    driver, case = situation("attempts-exhausted")
    driver.handler = lambda r: LATER if r.effect_key == "a2" else ACK
    driver.applied("replay", case)
    assert "is not open" in driver.refused("skip", case)
    assert driver.cases() == ["attempts-exhausted"]
    driver.check_at_rest()


def test_a_replay_that_fails_opens_the_next_case() -> None:
    """The answer names what the delivery came to and the case in which it ended."""
    driver, case = situation("unclassified-failure")
    driver.handler = lambda r: UNKNOWN if r.effect_key == "a2" else ACK
    answer = driver.applied("replay", case)
    following = driver.case("unclassified-failure")
    assert (answer.outcome, answer.next_case) == ("in_review", following.case_id)
    assert following.case_id != case.case_id
    lane = driver.lane("a")
    assert lane is not None
    assert lane.hold is not None
    assert lane.hold.case_id == following.case_id
    assert driver.effects() == ["a1"]
    driver.check_at_rest()


def test_a_replay_goes_on_through_the_retry_topic() -> None:
    """What a command began and a retry ended leaves the lane as any delivery would."""
    driver, case = situation("rejected")
    driver.handler = lambda r: LATER if (r.effect_key, r.attempt) == ("a2", 2) else ACK
    driver.applied("replay", case)
    assert driver.effects() == ["a1", "a2", "a3"]
    assert driver.cases() == []
    driver.check_at_rest()


def test_a_replay_over_a_success_reopens_the_effect() -> None:
    """4.7: the conflict check does not apply to a replay; a person has decided which payload is right."""
    driver, case = situation("effect-conflict")
    driver.handler = lambda r: LATER if (r.effect_key, r.attempt) == ("b1", 2) else ACK
    driver.applied("replay", case)
    effect = driver.effect("b1")
    assert effect is not None
    assert (effect.state, effect.lane, effect.offset) == (EffectState.SUCCEEDED, "ka", case.offset)
    assert driver.effects() == ["b1", "a1", "b1", "a3"]
    driver.produce("a", 2, effect="b1", payload={"of": "something else"})
    driver.rest()
    assert driver.cases() == [], "a copy of what was replayed is a duplicate"
    driver.check_at_rest()


def test_a_replay_is_refused_while_the_effect_is_open_elsewhere() -> None:
    """Two deliveries of one effect never run side by side: the other one has to end first."""
    driver = Operated(handler=lambda r: UNKNOWN if r.lane == "kb" else ACK)
    driver.produce("b", 1, effect="x")
    driver.rest()
    driver.produce("a", 1, effect="x", payload={"of": "something else"})
    driver.rest()
    theirs, ours = driver.case("unclassified-failure"), driver.case("effect-conflict")
    assert "open by offset 0" in driver.refused("replay", ours)
    driver.handler = always(ACK)
    driver.applied("discard", theirs)
    driver.applied("replay", ours)
    assert driver.effects() == ["x"]
    driver.check_at_rest()


def test_a_correction_runs_and_the_original_goes_to_the_dlq() -> None:
    """replay-with: the corrected value runs in its place; what it replaced is kept for people, once."""
    driver, case = situation("unclassified-failure")
    seen: list[bytes | None] = []

    def see(record: Record) -> Outcome:
        seen.append(record.value)
        return ACK

    driver.handler = see
    corrected = value_of("a", 2, payload={"of": "a correction"})
    driver.applied("replay-with", case, value=corrected)
    assert seen == [corrected, value_of("a", 3)]
    (letter,) = driver.dlq
    assert letter.value == value_of("a", 2)
    assert dict(letter.headers)["laneway-reason"] == b"replaced"
    driver.check_at_rest()


def test_a_correction_of_what_lies_in_the_dlq_writes_no_second_letter() -> None:
    """The original of a rejected record was dead-lettered when it was rejected."""
    driver, case = situation("rejected")
    assert len(driver.dlq) == 1
    driver.applied("replay-with", case, value=value_of("a", 2, payload={"of": "a correction"}))
    assert len(driver.dlq) == 1
    driver.check_at_rest()


@pytest.mark.parametrize(
    ("corrected", "named"),
    [
        (value_of("b", 2, effect="a2"), "another sequence key"),
        (value_of("a", 2, effect="other"), "another effect key"),
        (value_of("a", 3, effect="a2"), "another sequence"),
        (b"{", "cannot be read"),
        (b"", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_correction_must_be_the_same_effect_in_the_same_place(corrected: bytes, named: str) -> None:
    """replay-with may change the payload, never whose it is."""
    driver, case = situation("rejected")
    before = picture(driver)
    assert named in driver.refused("replay-with", case, value=corrected)
    assert picture(driver) == before
    driver.check_at_rest()


def test_a_correction_that_is_no_good_either_opens_its_own_case() -> None:
    """A corrected payload is validated like any; both the first and the second stay findable."""
    driver, case = situation("unclassified-failure")
    driver.handler = lambda r: POISON if r.effect_key == "a2" else ACK
    corrected = value_of("a", 2, payload={"of": "a correction"})
    answer = driver.applied("replay-with", case, value=corrected)
    following = driver.case("rejected")
    assert (answer.outcome, answer.next_case) == ("quarantined", following.case_id)
    assert following.record is not None
    assert following.record.value == corrected
    assert sorted(letter.value or b"" for letter in driver.dlq) == sorted([corrected, value_of("a", 2)])
    driver.check_at_rest()


def test_a_correction_of_an_unknown_version_is_rejected_unseen() -> None:
    """What no release understands is not run because an operator sent it."""
    driver, case = situation("rejected")
    answer = driver.applied("replay-with", case, value=value_of("a", 2, version=9))
    assert answer.outcome == "quarantined"
    assert "a2" not in driver.effects()
    driver.check_at_rest()


def test_a_replay_whose_dependency_is_down_waits_and_spends_nothing() -> None:
    """Unavailable holds for a replay as for any delivery: it rests, it does not spin."""
    driver, case = situation("rejected")
    down = Outcome(Wait(1000, "down"), "unavailable")
    driver.handler = always(down)
    acts = len(driver.acts)
    driver.command("replay", case)
    driver.poll()
    driver.work()
    driver.settle()
    driver.work()
    assert len(driver.acts) == acts + 1, "it is asked again before the time it named"
    driver.command("skip", case)
    driver.turn()
    driver.handler = always(ACK)
    driver.rest()
    assert driver.answer(0).outcome == "succeeded"
    assert driver.answer(1).event == "refused"
    attempts = {act.attempt for act in driver.acts[acts:] if act.effect_key == "a2"}
    assert attempts == {2}
    driver.check_at_rest()


@pytest.mark.parametrize("ends", [POISON, LATER, UNKNOWN])
def test_a_success_is_not_forgotten_over_a_replay_that_failed(ends: Outcome) -> None:
    """Another payload is replayed over a success, in vain: a copy of what succeeded never runs again.

    Found by the simulation (seed 347664): where nothing is ordered, such a copy was taken for a correction.
    """
    driver = Operated(envelope=EnvelopeRules(sequence_key=None, sequence=None))
    driver.produce("a", 1, payload={"pay": 1})
    driver.rest()
    driver.produce("a", 1, payload={"pay": 2})
    driver.rest()
    driver.handler = always(ends)
    driver.done("replay", driver.case("effect-conflict"))
    if driver.cases():
        driver.applied("discard", driver.case())
    driver.handler = always(ACK)
    driver.produce("a", 1, payload={"pay": 1}, message="again")
    driver.rest()
    assert driver.effects() == ["a1"], "it ran again"
    driver.produce("a", 1, payload={"pay": 3})
    driver.rest()
    assert driver.effects() == ["a1"]
    assert "effect-conflict" in driver.cases(), "a third payload is a person's to judge"
