"""The short way of plain Acks through the books: nobody can tell it from the long way that all others go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.lanes.admission import Order
from laneway.lanes.board import Board
from laneway.lanes.envelope import EnvelopeRules
from laneway.lanes.forward import ForwardKind
from laneway.lanes.lane import Lane
from laneway.lanes.rules import Rules
from laneway.lanes.verdict import ACK, Ack, Emitted, Outcome
from tests.lanes.cases import LATER, POISON, UNKNOWN
from tests.lanes.driver import Driver

OUTCOMES = (
    ACK,
    ACK,
    ACK,
    Outcome(Ack("result")),
    Outcome(Ack(), emitted=(Emitted("out", None, b"x", ()),)),
    LATER,
    POISON,
    UNKNOWN,
)
Published = list[tuple[str, int, str]]
"""(sequence key, sequence, effect key)"""


def played(
    rules: Rules, published: Published, outcomes: dict[str, Outcome], pace: int, refused: set[ForwardKind]
) -> Iterator[Driver]:
    """A partition after each turn of a history, and at its rest.

    Args:
        pace: records between two turns.
        refused: what no topic takes until all records are there.
    """
    envelope = EnvelopeRules(needs_sequence=rules.order is not Order.ARRIVAL)
    driver = Driver(rules, envelope, handler=lambda r: outcomes[r.effect_key] if r.attempt == 1 else ACK)
    driver.refuses = lambda forward: forward.kind in refused
    for at, (lane, sequence, effect_key) in enumerate(published):
        driver.produce(lane, sequence, effect=effect_key)
        if at % pace == 0:
            driver.turn()
            yield driver
    driver.turn()
    yield driver
    driver.refuses = lambda _: False
    driver.now_ms += 60_000
    driver.rest()
    yield driver


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_short_way_leads_where_the_long_way_leads(data: st.DataObject) -> None:
    """Ledger, offsets, forwards and ends are the same after each turn, whatever stands among the Acks.

    In each order of lanes, with effects that several lanes name, and while topics refuse what they are sent.
    """
    order = data.draw(st.sampled_from(Order))
    rules = Rules(order=order, pass_after_reject=data.draw(st.booleans()), intents=data.draw(st.booleans()))
    effects = st.one_of(st.none(), st.sampled_from(("x", "y")))
    record = st.tuples(st.sampled_from("abc"), st.integers(1, 5), effects)
    drawn = data.draw(st.lists(record, min_size=1, max_size=16))
    published = [(lane, number, effect or f"{lane}{number}") for lane, number, effect in drawn]
    keys = sorted({effect for _, _, effect in published})
    outcomes = {key: data.draw(st.sampled_from(OUTCOMES)) for key in keys}
    pace = data.draw(st.integers(1, 6))
    refused = data.draw(st.sets(st.sampled_from(ForwardKind)))

    def snapshots(*, short: bool) -> list[tuple[object, ...]]:
        way = nullcontext() if short else patch.object(Board, "_settle_acks", lambda *_: 0)
        with way:
            return [_seen(driver) for driver in played(rules, published, outcomes, pace, refused)]

    assert snapshots(short=True) == snapshots(short=False)


def _seen(driver: Driver) -> tuple[object, ...]:
    state = driver.ledger._state
    return (
        (dict(state.effects), dict(state.lanes), dict(state.cases)),
        {lane: dict(followers) for lane, followers in state.parked.items()},
        (state.meta, list(driver.acts), list(driver.ends), dict(driver.committed)),
        (list(driver.dlq), list(driver.review)),
    )


def handed_back(driver: Driver, *sequences: int) -> None:
    """Lane a has run these in one run, and the run is back."""
    driver.poll()
    [run] = [run for run in driver.hand_out() if run.lane == "ka"]
    assert [record.sequence for record in run.records] == list(sequences)
    while driver.step(run):
        pass
    driver.finish(run)


def test_a_run_of_acks_writes_its_lane_once() -> None:
    """The entry of the lane stands behind those of its effects, and is the last number."""
    driver = Driver()
    driver.produce_many("a", 1, 2, 3)
    handed_back(driver, 1, 2, 3)
    cut = driver.board.cut(driver.now_ms)
    assert cut is not None
    names = [type(entry).__name__ for entry in cut.entries()]
    assert names == ["PutEffect", "PutEffect", "PutEffect", "PutLane"]
    assert [done.number for done in cut.settlements] == [1, 2, 3]


def test_a_run_of_which_a_part_is_held_back_still_moves_its_lane() -> None:
    """The second Ack hangs on a settlement that no topic takes; the first goes, and its lane knows of it.

    A lane that did not would stand before a gap after the next change of owner, for what is done.
    """
    driver = Driver()
    driver.refuses = lambda forward: forward.kind is ForwardKind.REVIEW
    driver.produce("m", 2, effect="shared")
    driver.produce("a", 1)
    driver.produce("a", 2, effect="shared")
    handed_back(driver, 1, 2)
    assert driver.write()
    driver.sync()
    assert driver.effect("a1") is not None
    assert driver.effect("shared") is None
    assert driver.lane("a") == Lane(1)
