"""Holding back: what cannot be published waits, with all that hangs on it, as if it had not happened."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.lanes.books import HELD_BACK_MS, LONGEST_HELD_BACK_MS
from laneway.lanes.forward import Forward, ForwardKind
from laneway.lanes.frontier import Frontier, without
from laneway.lanes.record import Channel
from laneway.lanes.rules import Rules
from laneway.lanes.verdict import ACK, Emitted, Outcome
from laneway.lanes.verdict import Ack as AckVerdict
from tests.lanes.cases import LATER, POISON, UNKNOWN, situation
from tests.lanes.driver import MANY, always
from tests.lanes.operated import Operated

EMITS = Outcome(AckVerdict(), emitted=(Emitted("out", None, b"x", ()),))


def no_letters(forward: Forward) -> bool:
    """The DLQ topic takes nothing."""
    return forward.kind is ForwardKind.DLQ


def nothing(_: Forward) -> bool:
    """Every topic takes everything."""
    return False


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_mark_without_some_offsets_is_the_mark_of_a_history_without_them(data: st.DataObject) -> None:
    """`without` gives what the frontier would say had these offsets not been settled (4.2)."""
    start = data.draw(st.integers(0, 3))
    seen = sorted(data.draw(st.sets(st.integers(start, start + 14), max_size=15)))
    settled = data.draw(st.lists(st.sampled_from(seen), unique=True)) if seen else []
    taken = data.draw(st.sets(st.sampled_from(settled))) if settled else set()
    whole, rest = Frontier(start), Frontier(start)
    for offset in seen:
        whole.see(offset)
        rest.see(offset)
    for offset in settled:
        whole.settle(offset)
        if offset not in taken:
            rest.settle(offset)
    told, expected = without(whole.mark(), taken), rest.mark()
    # Holes of the log may be told as settled by the one and not by the other; records may not.
    assert told.frontier == expected.frontier
    for offset in seen:
        assert _is_settled(told, offset) is _is_settled(expected, offset)
    edges = [edge for pair in told.settled for edge in pair]
    assert edges == sorted(set(edges)), "ranges touch or overlap"
    assert all(first >= told.frontier for first, _ in told.settled)


def _is_settled(mark: object, offset: int) -> bool:
    assert hasattr(mark, "frontier")
    assert hasattr(mark, "settled")
    return offset < mark.frontier or any(first <= offset < end for first, end in mark.settled)


def test_a_refused_forward_holds_its_offset_and_no_other_lane() -> None:
    """Case 21: the DLQ refuses; that offset is held, other lanes live, and later nothing is lost."""
    driver = Operated(handler=lambda r: POISON if r.lane == "ka" else ACK)
    driver.refuses = no_letters
    driver.produce("a", 1)
    driver.produce_many("b", 1, 2)
    driver.turn()
    driver.turn()
    assert driver.effects() == ["b1", "b2"]
    assert driver.durable[Channel.SOURCE] == 0
    assert driver.effect("a1") is None
    assert driver.cases() == []
    assert driver.board.held_back == 1
    driver.refuses = nothing
    driver.now_ms += HELD_BACK_MS
    driver.rest()
    assert driver.cases() == ["rejected"]
    assert len(driver.dlq) == 1
    assert driver.board.held_back == 0
    driver.check_at_rest()


def test_what_follows_in_the_lane_stays_behind_in_order() -> None:
    """4.2: every later settlement of the lane waits too, also those of later cuts."""
    driver = Operated(handler=lambda r: POISON if r.sequence == 1 else ACK)
    driver.refuses = no_letters
    driver.produce_many("a", 1, 2)
    driver.turn()
    driver.produce("a", 3)
    driver.turn()
    assert driver.ends == []
    assert driver.lane("a") is None
    assert driver.ledger.opening().meta is not None
    driver.refuses = nothing
    driver.now_ms += HELD_BACK_MS
    driver.rest()
    lane = driver.lane("a")
    assert lane is not None
    assert lane.parked == 2
    driver.applied("skip", driver.case())
    assert driver.effects() == ["a2", "a3"]
    driver.check_at_rest()


def test_what_follows_on_the_effect_stays_behind_in_other_lanes() -> None:
    """4.2: a duplicate of what is held back must not become durable before it."""
    driver = Operated(handler=lambda r: EMITS if r.lane == "ka" else ACK)
    driver.refuses = lambda f: f.kind is ForwardKind.EMITTED
    driver.produce("a", 1, effect="x")
    driver.turn()
    driver.produce("b", 1, effect="x", payload={"of": "x"})
    driver.produce("b", 2)
    driver.turn()
    driver.turn()
    assert driver.ends_of(1) == [], "the duplicate is durable and its effect is not"
    driver.crash()
    driver.refuses = nothing
    driver.rest()
    assert [end.how.name for end in driver.ends] == ["SUCCEEDED", "DUPLICATE", "SUCCEEDED"]
    driver.check_at_rest()


def test_settlements_come_back_in_the_order_they_were_made() -> None:
    """Whichever of one lane is refused first: the last one made is the last one written."""
    driver = Operated()
    driver.produce("b", 1, effect="a2", payload={"of": "a2"})
    driver.produce("a", 1)
    driver.rest()
    driver.produce("a", 3)
    driver.produce("a", 2, payload={"of": "a2"})
    driver.poll()
    driver.work()
    cut = driver.board.cut(driver.now_ms)
    assert cut is not None
    opened, healed = cut.settlements
    rest = driver.board.hold_back(cut, healed, driver.now_ms)
    rest = driver.board.hold_back(rest, opened, driver.now_ms)
    assert rest.settlements == []
    driver.board.committed(rest)
    driver.now_ms += 10 * HELD_BACK_MS
    again = driver.board.cut(driver.now_ms)
    assert again is not None
    assert again.settlements == [opened, healed]


def test_the_pause_between_attempts_grows_to_a_bound() -> None:
    """A topic that refuses is asked ever less often, and at least every half minute."""
    driver = Operated(handler=always(POISON))
    asked: list[int] = []

    def refuse(forward: Forward) -> bool:
        if forward.kind is ForwardKind.DLQ:
            asked.append(driver.now_ms)
        return forward.kind is ForwardKind.DLQ

    driver.refuses = refuse
    driver.produce("a", 1)
    for _ in range(1300):
        driver.turn()
        driver.now_ms += 100
    waits = [after - before for before, after in pairwise(asked)]
    assert waits[0] == HELD_BACK_MS
    assert waits == sorted(waits)
    assert max(waits) == LONGEST_HELD_BACK_MS


def test_a_clock_that_is_set_back_does_not_make_it_wait_longer() -> None:
    """What was due in a second by the old clock is asked for at once."""
    driver = Operated(handler=always(POISON))
    driver.refuses = no_letters
    driver.produce("a", 1)
    driver.turn()
    driver.refuses = nothing
    driver.now_ms -= 3_600_000
    driver.turn()
    driver.turn()
    assert driver.cases() == ["rejected"]


def test_what_is_held_back_counts_as_in_memory() -> None:
    """It has a bound like all that is in hand: intake pauses before memory is full."""
    driver = Operated(Rules(pass_after_reject=True), handler=always(POISON))
    driver.refuses = no_letters
    for number in range(5):
        driver.produce(f"lane-{number}", 1)
    driver.turn()
    driver.turn()
    assert driver.board.in_memory == 5
    assert driver.board.in_memory_bytes > 0
    driver.refuses = nothing
    driver.now_ms += HELD_BACK_MS
    driver.rest()
    driver.check_at_rest()


def test_an_effect_stays_in_hand_while_it_is_held_back() -> None:
    """4.2: it counts as in hand until it is settled, so no other lane starts it."""
    driver = Operated(handler=lambda r: LATER if r.lane == "ka" else ACK)
    driver.refuses = lambda f: f.kind is ForwardKind.RETRY
    driver.produce("a", 1, effect="x")
    driver.turn()
    driver.produce("b", 1, effect="x")
    driver.turn()
    driver.turn()
    assert [act.lane for act in driver.acts] == ["ka"]
    assert driver.cases() == []
    driver.refuses = nothing
    driver.handler = always(ACK)
    driver.now_ms += HELD_BACK_MS
    driver.rest()
    assert [act.lane for act in driver.acts if act.verdict == "Ack"] == ["ka"]


def test_an_effect_stays_in_hand_when_its_cut_is_committed_without_it() -> None:
    """The rebuilt cut is durable, and what it was to bring is not: the effect is still in hand."""
    driver = Operated(handler=lambda r: LATER if r.lane == "ka" else ACK)
    driver.refuses = lambda f: f.kind is ForwardKind.RETRY
    driver.produce("a", 1, effect="x")
    driver.turn()
    driver.turn()
    assert "x" in driver.board._books.in_hand
    driver.refuses = nothing
    driver.now_ms += HELD_BACK_MS
    driver.rest()
    assert "x" not in driver.board._books.in_hand


@pytest.mark.parametrize("lose_unsynced", [False, True])
def test_a_crash_brings_everything_held_back_again(lose_unsynced: bool) -> None:
    """Nothing of it was durable: the next owner reads the records again."""
    driver = Operated(handler=lambda r: POISON if r.sequence == 1 else ACK)
    driver.refuses = no_letters
    driver.produce_many("a", 1, 2)
    driver.produce("b", 2)
    driver.turn()
    driver.turn()
    driver.crash(lose_unsynced=lose_unsynced)
    driver.refuses = nothing
    driver.rest()
    assert driver.cases() == ["rejected", "sequence-gap"]
    assert len(driver.dlq) == 1
    driver.check_at_rest()


def test_a_command_whose_answer_is_refused_is_not_applied_yet() -> None:
    """The case, the lane and the command's offset stay together, through a crash too."""
    driver, case = situation("rejected")
    driver.refuses = lambda f: f.kind is ForwardKind.REVIEW
    driver.command("skip", case)
    driver.turn()
    driver.turn()
    assert driver.durable[Channel.COMMANDS] == 0
    assert driver.cases() == ["rejected"]
    driver.crash()
    driver.refuses = nothing
    driver.rest()
    assert [answer.event for answer in driver.answers()] == ["applied"]
    assert driver.effects() == ["a1", "a3"]
    driver.check_at_rest()


@pytest.mark.parametrize("resumed_too", [False, True])
def test_a_pause_whose_answer_is_refused_is_not_durable_yet(resumed_too: bool) -> None:
    """The pause stands in the meta entry, and is told there as if its command had not come."""
    driver = Operated()
    driver.refuses = lambda f: f.kind is ForwardKind.REVIEW
    driver.command("pause")
    driver.turn()
    if resumed_too:
        driver.refuses = lambda f: b"c0" in (f.value or b"")
        driver.command("resume")
        driver.turn()
    meta = driver.ledger.opening().meta
    assert meta is not None
    assert meta.pause is None
    assert meta.marks[Channel.COMMANDS].frontier == 0
    assert meta.marks[Channel.COMMANDS].settled == ()
    driver.crash()
    driver.refuses = nothing
    driver.rest()
    assert [answer.event for answer in driver.answers()] == ["applied"] * (1 + resumed_too)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_marks_and_counts_are_as_if_what_is_held_back_had_not_happened(seed: int) -> None:
    """Whatever is refused: the meta entry of each rebuilt cut agrees with what the ledger then holds."""
    rng = Random(seed)
    outcomes = (ACK, ACK, ACK, POISON, LATER, UNKNOWN, EMITS)
    driver = Operated(Rules(delays_ms=(10, 20)), handler=lambda r: rng.choice(outcomes))
    driver.refuses = lambda f: rng.random() < 0.3
    numbers = Counter[str]()
    for _ in range(rng.randrange(3, 14)):
        lane = rng.choice("abc")
        numbers[lane] += 1 + (rng.random() < 0.15)
        effect = rng.choice([None, None, None, "x", "y"])
        driver.produce(lane, numbers[lane], effect=effect, payload={"of": effect or lane})
        if rng.random() < 0.4:
            driver.turn()
            driver.now_ms += rng.choice([0, 5, 1000])
            _agrees(driver)
        if rng.random() < 0.1:
            driver.crash()
    driver.refuses = nothing
    driver.now_ms += LONGEST_HELD_BACK_MS
    driver.rest()
    _agrees(driver)
    driver.check_at_rest()


def _agrees(driver: Operated) -> None:
    meta, ledger = driver.ledger.opening().meta, driver.ledger
    if meta is None:
        return
    parked = [p for lane in ledger.opening().lanes_with_parked for _, p in ledger.parked(lane, None, MANY)]
    size = sum(p.raw.size_bytes() for p in parked)
    counted = (meta.open_cases, meta.parked, meta.parked_bytes)
    assert counted == (len(ledger.cases(limit=MANY)), len(parked), size)
    settled = {end.offset for end in driver.ends}
    for offset in range(len(driver.topics[Channel.SOURCE])):
        told = _is_settled(meta.marks[Channel.SOURCE], offset)
        assert told is (offset in settled), f"offset {offset}: {meta.marks}, {driver.ends_of(offset)}"
