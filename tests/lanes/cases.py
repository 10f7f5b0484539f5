"""One partition for each reason and kind of case, with a lane that waits for it: the ground of command tests.

A situation is built from records and handlers alone, as it would come about in production. In each the lane
is "a", and the handlers are well again when it is handed out.
"""

from __future__ import annotations

from collections.abc import Callable

from laneway.lanes.case import Case
from laneway.lanes.envelope import Envelope, EnvelopeRules
from laneway.lanes.failures import NeedsReview, classify
from laneway.lanes.record import Record
from laneway.lanes.rules import Rules
from laneway.lanes.verdict import ACK, Outcome, Reject, Retry
from tests.lanes.driver import always
from tests.lanes.operated import Operated

LATER = Outcome(Retry("later"), "temporary-failure")
POISON = Outcome(Reject("poison"), "permanent-failure", "app.Poison")
UNKNOWN = classify(KeyError("secret"), ())
ASKS = classify(NeedsReview("is it paid?"), ())


def gap() -> Operated:
    """Sequence 2 never came; 3 and 4 wait for it."""
    driver = Operated()
    driver.produce_many("a", 1, 3, 4)
    return _at_rest(driver)


def stale() -> Operated:
    """An effect nobody knows, at a number that the lane has passed."""
    driver = Operated()
    driver.produce_many("a", 1, 2)
    driver.produce("a", 1, effect="late")
    return _at_rest(driver)


def conflict() -> Operated:
    """The turn of a record that claims an effect which has happened with another payload."""
    driver = Operated()
    driver.produce("b", 1)
    driver.produce("a", 1)
    driver.produce("a", 2, effect="b1", payload={"of": "something else"})
    driver.produce("a", 3)
    return _at_rest(driver)


def loose_conflict() -> Operated:
    """The same, at a number that the lane has passed."""
    driver = Operated()
    driver.produce_many("a", 1, 2)
    driver.produce("a", 1, payload={"of": "something else"})
    return _at_rest(driver)


def unknown_outcome() -> Operated:
    """The process died with the record in the handler."""
    driver = Operated(Rules(intents=True))
    driver.produce("a", 1)
    _die_in_the_handler(driver)
    driver.produce_many("a", 2, 3)
    return _at_rest(driver)


def loose_unknown_outcome() -> Operated:
    """The same, and the lane is told since that it begins behind that record."""
    driver = Operated(Rules(intents=True))
    driver.produce("a", 1)
    _die_in_the_handler(driver, Rules(intents=True, first_sequence=2))
    driver.produce_many("a", 2, 3)
    return _at_rest(driver)


def failing(outcome: Outcome, rules: Rules | None = None) -> Callable[[], Operated]:
    """The second record of the lane ends like this; a third waits behind it."""

    def build() -> Operated:
        driver = Operated(rules, handler=lambda r: outcome if _is_second(r) else ACK)
        driver.produce_many("a", 1, 2, 3)
        return _at_rest(driver)

    return build


def unknown_version() -> Operated:
    """The second record speaks a version that this release does not understand."""
    driver = Operated(Rules(hold_unknown_version=True))
    driver.produce("a", 1)
    driver.produce("a", 2, version=7)
    driver.produce("a", 3)
    return _at_rest(driver)


SITUATIONS: dict[tuple[str, bool], Callable[[], Operated]] = {
    ("sequence-gap", True): gap,
    ("sequence-stale", False): stale,
    ("effect-conflict", True): conflict,
    ("effect-conflict", False): loose_conflict,
    ("outcome-unknown", True): unknown_outcome,
    ("outcome-unknown", False): loose_unknown_outcome,
    ("attempts-exhausted", True): failing(LATER),
    ("unclassified-failure", True): failing(UNKNOWN),
    ("review-requested", True): failing(ASKS),
    ("rejected", True): failing(POISON),
    ("unknown-contract-version", True): unknown_version,
}
"""By reason, and whether the case holds its lane."""


def situation(reason: str, *, holds: bool = True) -> tuple[Operated, Case]:
    """A partition at rest with one open case of this reason, whose handlers are well again.

    So is the release: it understands the version that the one before it did not.
    """
    driver = SITUATIONS[reason, holds]()
    case = driver.case(reason)
    assert case.holds is holds
    driver.handler = always(ACK)
    if reason == "unknown-contract-version":
        driver.envelope = Envelope(EnvelopeRules(accepts=(1, 7)))
        driver.crash()
    return driver, case


def _is_second(record: Record) -> bool:
    return record.effect_key == "a2"


def _at_rest(driver: Operated) -> Operated:
    driver.rest()
    driver.check_at_rest()
    return driver


def _die_in_the_handler(driver: Operated, rules: Rules | None = None) -> None:
    driver.poll()
    driver.hand_out()
    driver.settle()
    (run,) = driver.hand_out()
    driver.step(run)
    driver.rules = rules or driver.rules
    driver.crash()
