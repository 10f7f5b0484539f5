"""The breaker: when many lanes find a dependency unavailable, one asks for all, and no attempt is spent."""

from __future__ import annotations

import pytest

from laneway.lanes.breaker import Breaker
from laneway.lanes.failures import Unavailable, classify, invalid_payload
from laneway.lanes.record import Channel, Record
from laneway.lanes.rules import Rules
from laneway.lanes.verdict import ACK, Outcome, Wait
from tests.lanes.cases import LATER, POISON, UNKNOWN
from tests.lanes.driver import always
from tests.lanes.operated import Operated

DOWN = classify(Unavailable(1000), ())
LANES = ("a", "b", "c", "d", "e", "f", "g")


def opened(*, at_ms: int = 100, until_ms: int = 200) -> Breaker:
    """A breaker that two lanes have opened."""
    breaker = Breaker(2)
    breaker.unavailable("a", until_ms, at_ms)
    breaker.unavailable("b", until_ms, at_ms)
    return breaker


def due_ms(breaker: Breaker) -> int | None:
    """When the next probe may start."""
    return breaker.next_due_ms


def test_it_takes_many_lanes_to_open_it() -> None:
    """One lane that says it ten times is one lane."""
    breaker = Breaker(2)
    for _ in range(10):
        breaker.unavailable("a", 200, 100)
    assert breaker.lets("b", 100)
    assert breaker.since_ms == 0
    breaker.unavailable("b", 200, 100)
    assert breaker.is_open


def test_an_answer_between_starts_the_count_again() -> None:
    """Only lanes with no other answer between them count together."""
    breaker = Breaker(2)
    breaker.unavailable("a", 200, 100)
    assert not breaker.answered()
    breaker.unavailable("b", 200, 100)
    assert not breaker.is_open


def test_one_probe_at_a_time_and_not_before_its_time() -> None:
    """While it is open one lane tries when the time has come; the others wait for what it hears."""
    breaker = opened()
    assert not breaker.lets("a", 150)
    assert due_ms(breaker) == 200
    assert breaker.lets("a", 200)
    assert not breaker.lets("b", 200)
    assert due_ms(breaker) is None
    breaker.unavailable("a", 300, 210)
    assert not breaker.lets("b", 250)
    assert breaker.lets("b", 300)
    assert breaker.answered()
    assert breaker.lets("a", 300)
    assert breaker.lets("b", 300)


def test_a_clock_set_back_does_not_stall_it() -> None:
    """Whoever asks at an earlier time than it last heard of may try at once."""
    breaker = opened(at_ms=10_000, until_ms=11_000)
    assert breaker.lets("a", 9_000)


def test_a_probe_that_is_given_up_does_not_stall_it() -> None:
    """A probe that came back without an answer leaves its place to another; a stranger does not."""
    breaker = opened()
    assert breaker.lets("a", 200)
    breaker.came_back("b")
    assert not breaker.lets("b", 200)
    breaker.came_back("a")
    assert breaker.lets("b", 200)


def an_outage(*, lanes: tuple[str, ...] = LANES) -> Operated:
    """Five lanes and more that have found the dependency down."""
    driver = Operated(handler=always(DOWN))
    for lane in lanes:
        driver.produce_many(lane, 1, 2)
    driver.turn()
    return driver


def test_an_outage_blocks_the_source_and_probes_once_a_time() -> None:
    """Case 25: the source is not read, one lane asks each time, no attempt is spent, nothing is lost."""
    driver = an_outage()
    assert Channel.SOURCE in driver.board.blocked()
    assert Channel.RETRY not in driver.board.blocked()
    driver.produce("z", 1)
    asked = len(driver.acts)
    for _ in range(60):
        driver.now_ms += 1000
        driver.turn()
        driver.turn()
    assert len(driver.acts) - asked == 60
    assert {act.attempt for act in driver.acts} == {1}
    assert (driver.dlq, driver.cases()) == ([], [])
    driver.handler = always(ACK)
    driver.rest()
    assert sorted(driver.effects()) == sorted([f"{lane}{n}" for lane in LANES for n in (1, 2)] + ["z1"])
    driver.check_at_rest()


@pytest.mark.parametrize(
    ("reason", "why"),
    [("the bank is down", " (the bank is down)"), ("unavailable", "")],
    ids=["told", "untold"],
)
def test_who_waits_for_a_dependency_is_told_in_words(reason: str, why: str) -> None:
    """A person reads how many lanes wait, and for what, in the handler's own words."""
    driver = Operated(handler=always(Outcome(Wait(1000, reason), "unavailable")))
    assert driver.board.waits_for == ""
    driver.produce("a", 1)
    driver.turn()
    assert driver.board.waits_for == f"1 lane waits for a dependency that is unavailable{why}"
    driver.now_ms += 1000
    (asks,) = driver.hand_out()
    assert driver.board.waits_for == f"1 lane waits for a dependency that is unavailable{why}"
    driver.step(asks)
    driver.finish(asks)
    driver.produce("b", 1)
    driver.turn()
    assert driver.board.waits_for == f"2 lanes wait for a dependency that is unavailable{why}"
    assert Channel.SOURCE not in driver.board.blocked()
    for lane in "cdefg":
        driver.produce(lane, 1)
    driver.turn()
    words = driver.board.blocked()[Channel.SOURCE]
    assert words == f"a dependency is unavailable to many lanes{why}; one at a time tries it"
    driver.handler = always(ACK)
    driver.rest()
    assert driver.board.waits_for == ""


@pytest.mark.parametrize("verdict", [ACK, LATER, POISON, UNKNOWN], ids=["ack", "retry", "reject", "unknown"])
def test_any_verdict_closes_it(verdict: Outcome) -> None:
    """Whatever a handler says of its record, the dependency was there to be asked."""
    driver = an_outage()
    probes = len(driver.acts)
    driver.handler = always(verdict)
    driver.now_ms += 1000
    (probe,) = driver.hand_out()
    driver.step(probe)
    driver.finish(probe)
    assert Channel.SOURCE not in driver.board.blocked()
    assert len(driver.hand_out()) >= len(LANES) - 1
    assert len(driver.acts) == probes + 1


def test_an_invalid_payload_says_nothing_of_the_dependency() -> None:
    """It was refused before any handler saw it: the breaker stays open, and another lane tries at once."""
    driver = an_outage()
    driver.handler = always(invalid_payload("amount: missing"))
    driver.now_ms += 1000
    (probe,) = driver.hand_out()
    driver.step(probe)
    driver.finish(probe)
    assert Channel.SOURCE in driver.board.blocked()
    driver.handler = always(ACK)
    driver.rest()
    assert Channel.SOURCE not in driver.board.blocked()


def test_a_clock_set_back_in_an_outage_stalls_nothing() -> None:
    """An hour backwards: the next lane tries at once, not in an hour."""
    driver = an_outage()
    driver.handler = always(ACK)
    driver.now_ms -= 3_600_000
    driver.produce("z", 1)
    driver.rest()
    assert "z1" in driver.effects()


def test_an_abandoned_probe_does_not_stall_the_others() -> None:
    """A probe whose handler never answers is given up with its ownership; the next owner starts afresh."""
    driver = an_outage()
    driver.now_ms += 1000
    (probe,) = driver.hand_out()
    driver.out.remove(probe)
    driver.board.abandon(probe)
    assert len(driver.hand_out()) == 1
    driver.crash()
    driver.handler = always(ACK)
    driver.rest()
    assert len(driver.effects()) == 2 * len(LANES)
    driver.check_at_rest()


def test_the_lanes_that_opened_it_may_all_be_paused() -> None:
    """With nobody left to try, the source is read on: what comes next finds out."""
    driver = an_outage(lanes=LANES[:5])
    for lane in LANES[:5]:
        driver.command("pause", lane=lane)
    driver.rest(wait=False)
    driver.now_ms += 1000
    driver.rest(wait=False)
    driver.handler = always(ACK)
    driver.produce("z", 1)
    driver.rest()
    assert driver.effects() == ["z1"]
    for lane in LANES[:5]:
        driver.applied("resume", lane=lane)
    assert len(driver.effects()) == 11
    driver.check_at_rest()


def test_commands_are_applied_during_an_outage() -> None:
    """What runs nothing needs no dependency; a replay may be the probe."""

    def handler(record: Record) -> Outcome:
        return POISON if record.effect_key == "x1" else DOWN

    driver = Operated(handler=handler)
    driver.produce_many("x", 1, 2)
    driver.produce_many("y", 1, 3)
    driver.handler = lambda r: handler(r) if r.lane == "kx" else ACK
    driver.turn()
    driver.turn()
    rejected, gap = driver.case("rejected"), driver.case("sequence-gap")
    driver.handler = always(DOWN)
    for lane in LANES:
        driver.produce(lane, 1)
    driver.turn()
    assert Channel.SOURCE in driver.board.blocked()
    skipped = driver.command("skip", gap)
    replayed = driver.command("replay", rejected)
    driver.turn()
    driver.turn()
    assert driver.answer(skipped).event == "applied"
    driver.handler = always(ACK)
    driver.rest()
    assert driver.answer(replayed).outcome == "succeeded"
    assert {act.attempt for act in driver.acts if act.effect_key == "x1"} == {1, 2}
    driver.check_at_rest()


def test_few_lanes_rest_each_for_itself() -> None:
    """Below the number the source is read, and other lanes go on."""
    driver = Operated(Rules(breaker_lanes=3), handler=lambda r: DOWN if r.lane in ("ka", "kb") else ACK)
    for lane in "abc":
        driver.produce(lane, 1)
    driver.turn()
    assert driver.board.blocked() == {}
    assert driver.effects() == ["c1"]
