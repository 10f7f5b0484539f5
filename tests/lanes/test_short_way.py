"""The short way of plain Acks through the books: nobody can tell it from the long way that all others go."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.lanes.admission import Order
from laneway.lanes.board import Board
from laneway.lanes.envelope import EnvelopeRules
from laneway.lanes.record import Record
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


def played(rules: Rules, published: list[tuple[str, int]], outcomes: dict[str, Outcome], pace: int) -> Driver:
    """All that came of it, once everything has come to rest."""

    def handler(record: Record) -> Outcome:
        return outcomes[record.effect_key] if record.attempt == 1 else ACK

    envelope = EnvelopeRules(needs_sequence=rules.order is not Order.ARRIVAL)
    driver = Driver(rules, envelope, handler=handler)
    for at, (lane, sequence) in enumerate(published):
        driver.produce(lane, sequence)
        if at % pace == 0:
            driver.turn()
    driver.rest()
    return driver


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_short_way_leads_where_the_long_way_leads(data: st.DataObject) -> None:
    """Ledger, offsets, forwards and ends are the same, whatever stands among the Acks, in each order."""
    order = data.draw(st.sampled_from(Order))
    rules = Rules(order=order, pass_after_reject=data.draw(st.booleans()), intents=data.draw(st.booleans()))
    number = st.tuples(st.sampled_from("ab"), st.integers(1, 6))
    published = data.draw(st.lists(number, min_size=1, max_size=16))
    keys = sorted({f"{lane}{sequence}" for lane, sequence in published})
    outcomes = {key: data.draw(st.sampled_from(OUTCOMES)) for key in keys}
    pace = data.draw(st.integers(1, 6))
    short = played(rules, published, outcomes, pace)
    with patch.object(Board, "_settle_acks", lambda *_: 0):
        long = played(rules, published, outcomes, pace)
    for name in ("effects", "lanes", "parked", "cases", "meta", "outbox"):
        assert getattr(short.ledger._state, name) == getattr(long.ledger._state, name), name
    assert (short.acts, short.ends) == (long.acts, long.ends)
    assert (short.committed, short.dlq, short.review) == (long.committed, long.dlq, long.review)


def test_a_run_of_acks_writes_its_lane_once() -> None:
    """The entry of the lane stands behind those of its effects, and is the last number."""
    driver = Driver()
    driver.produce_many("a", 1, 2, 3)
    driver.poll()
    [run] = driver.hand_out()
    while driver.step(run):
        pass
    driver.finish(run)
    cut = driver.board.cut(driver.now_ms)
    assert cut is not None
    names = [type(entry).__name__ for entry in cut.entries()]
    assert names == ["PutEffect", "PutEffect", "PutEffect", "PutLane"]
    assert [done.number for done in cut.settlements] == [1, 2, 3]
