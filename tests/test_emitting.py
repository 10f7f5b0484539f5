"""Emitting: what a handler publishes goes out with its success, and a mistake is the handler's own."""

from __future__ import annotations

from typing import Any

import pytest

from laneway import Delivery, Pipeline, TemporaryFailure
from laneway.lanes.forward import Forward, ForwardKind
from laneway.lanes.lane import NEW_LANE
from laneway.lanes.record import Channel, Record, keyed_lane
from laneway.lanes.rules import Rules
from laneway.lanes.settlement import Settlement
from laneway.lanes.settling import Settling
from laneway.lanes.verdict import Ack, Emitted, Outcome, Retry
from tests.lanes.driver import HOME


def a_record(offset: int = 7, attempt: int = 1) -> Record:
    """A record whose turn has come."""
    record = Record(Channel.SOURCE, offset, b"k", b'{"n":1}')
    record.payload = b'{"n":1}'
    record.message_id, record.effect_key, record.sequence_key = "m", f"e{offset}", "a"
    record.sequence, record.lane, record.attempt = 1, keyed_lane("a"), attempt
    return record


def outcome_of(handle: Any) -> Outcome:
    """One delivery to this handler."""
    pipeline: Pipeline[Any] = Pipeline()
    pipeline.handler(handle)
    return pipeline.compile().process(a_record(), "invoices", 3, 0)


def settled(record: Record, outcome: Outcome) -> Settlement:
    """The settlement of an outcome on a new lane."""
    return Settling(HOME, Rules()).verdict(record, outcome, NEW_LANE, None, 1000)[0]


def ids_of(forwards: list[Forward]) -> list[str]:
    """Their forward ids."""
    return [forward.forward_id for forward in forwards]


def test_what_is_emitted_goes_out_with_the_success() -> None:
    """Records that a handler emits are forwards of its settlement, in the order it said them."""

    def handle(delivery: Delivery[Any]) -> str:
        delivery.emit("audit", b"a", b"one", [("trace", b"\xff"), ("none", None)])
        delivery.emit("audit", None, None)
        return "done"

    outcome = outcome_of(handle)
    assert outcome.verdict == Ack("done")
    first, second = settled(a_record(), outcome).forwards
    assert (first.kind, first.topic, first.key, first.value) == (ForwardKind.EMITTED, "audit", b"a", b"one")
    assert first.headers[:2] == (("trace", b"\xff"), ("none", None))
    assert dict(first.headers)["laneway-forward-id"] == first.forward_id.encode()
    assert (second.key, second.value) == (None, None)
    assert first.order_key == second.order_key == keyed_lane("a")


def test_nothing_is_emitted_without_success() -> None:
    """What was emitted before a failure is dropped with it: the next attempt says it again."""

    def fail(delivery: Delivery[Any]) -> None:
        delivery.emit("audit", b"a", b"one")
        raise TemporaryFailure("later")

    def say_retry(delivery: Delivery[Any]) -> Retry:
        delivery.emit("audit", b"a", b"one")
        return Retry("later")

    for handle in (fail, say_retry):
        forwards = settled(a_record(), outcome_of(handle)).forwards
        assert [forward.kind for forward in forwards] == [ForwardKind.RETRY]


def test_an_emitted_record_has_the_same_id_after_any_crash() -> None:
    """The id hangs on position, attempt and number: a second run after a crash sends copies, not news."""
    outcome = Outcome(Ack(), emitted=(Emitted("t", None, b"1", ()), Emitted("t", None, b"2", ())))
    once, again = settled(a_record(), outcome), settled(a_record(), outcome)
    assert ids_of(once.forwards) == ids_of(again.forwards)
    others = settled(a_record(offset=8), outcome).forwards + settled(a_record(attempt=2), outcome).forwards
    assert len({*ids_of(once.forwards), *ids_of(others)}) == 6


def test_an_offset_waits_for_what_was_emitted_from_it() -> None:
    """The source position is held until its emitted records are published; that of a follower was passed."""
    outcome = Outcome(Ack(), emitted=(Emitted("t", None, b"1", ()),))
    record = a_record()
    assert settled(record, outcome).forwards[0].offset == 7
    record.parked = True
    assert settled(record, outcome).forwards[0].offset == -1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((b"audit", b"k", b"v"), TypeError),
        (("", b"k", b"v"), ValueError),
        (("..", b"k", b"v"), ValueError),
        (("no spaces", b"k", b"v"), ValueError),
        (("x" * 250, b"k", b"v"), ValueError),
        (("audit", "secret-key", b"v"), TypeError),
        (("audit", b"k", {"secret": 1}), TypeError),
        (("audit", b"k", b"v", [("name",)]), TypeError),
        (("audit", b"k", b"v", [(b"name", b"")]), TypeError),
        (("audit", b"k", b"v", [("name", "secret")]), TypeError),
        (("audit", b"k", b"v", [("laneway-kind", b"")]), ValueError),
    ],
)
def test_a_mistake_in_emitting_is_the_handlers(arguments: Any, error: type[Exception]) -> None:
    """What Kafka would not take is refused where it is said, before it could hold the offset of an effect."""
    found: list[Exception] = []

    def handle(delivery: Delivery[Any]) -> None:
        try:
            delivery.emit(*arguments)
        except Exception as mistake:
            found.append(mistake)
            raise

    outcome = outcome_of(handle)
    assert type(found[0]) is error
    assert "secret" not in str(found[0])
    assert outcome.cause == "unclassified-failure"
