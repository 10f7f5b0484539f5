"""One place answers "can this be tried again?", and nothing foreign is quoted on the way."""

from __future__ import annotations

import pytest

from laneway.lanes.failures import (
    MAX_REASON_CHARS,
    HandlerSignal,
    NeedsReview,
    PermanentFailure,
    TemporaryFailure,
    Unavailable,
    bounded,
    classify,
    fingerprint,
    invalid_payload,
)
from laneway.lanes.verdict import Outcome, Reject, Retry, Review, Verdict, Wait


class ShyFailure(TemporaryFailure):
    """A team's own class that forgets its base."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TemporaryFailure("busy"), Retry("busy")),
        (TemporaryFailure(), Retry("temporary-failure")),
        (ShyFailure(), Retry("temporary-failure")),
        (PermanentFailure("gone"), Reject("gone")),
        (PermanentFailure(), Reject("permanent-failure")),
        (NeedsReview("Is it paid?", "dunning"), Review("dunning", "Is it paid?")),
        (NeedsReview("Is it paid?"), Review("review-requested", "Is it paid?")),
        (Unavailable(250, "crm"), Wait(250, "crm")),
        (Unavailable(-5), Wait(1, "unavailable")),
        (TimeoutError("took 9 s for Jane Doe"), Retry("temporary-failure")),
        (ConnectionResetError(), Retry("temporary-failure")),
        (KeyError("Jane Doe"), Review("unclassified-failure", "")),
        (HandlerSignal("?"), Review("unclassified-failure", "")),
        (ExceptionGroup("", [TimeoutError(), TemporaryFailure("b")]), Retry("temporary-failure")),
        (ExceptionGroup("", [ExceptionGroup("", [Unavailable(250, "crm")])]), Wait(250, "crm")),
        (ExceptionGroup("", [TimeoutError(), Unavailable(250)]), Review("unclassified-failure", "")),
        (ExceptionGroup("", [TimeoutError(), KeyError()]), Review("unclassified-failure", "")),
        (ExceptionGroup("", [PermanentFailure("gone")]), Review("unclassified-failure", "")),
    ],
    ids=lambda part: repr(part) if isinstance(part, BaseException) else "",
)
def test_an_exception_means_this(error: BaseException, expected: Verdict | Wait) -> None:
    """Temporary, invalid and unknown are told apart before anything is returned (S8)."""
    assert classify(error, (TimeoutError, ConnectionError)).verdict == expected


def test_only_listed_classes_are_temporary() -> None:
    """A class that nobody listed is unknown, whatever its name sounds like (S17)."""
    assert isinstance(classify(TimeoutError(), ()).verdict, Review)
    assert isinstance(classify(TimeoutError(), (TimeoutError,)).verdict, Retry)


def test_nothing_of_a_foreign_message_is_kept() -> None:
    """Of a foreign exception stay class and fingerprint; its message may quote the payload (S9)."""
    outcome = classify(ValueError("card 4111-1111"), ())
    assert "4111" not in repr(outcome)
    assert outcome.error_class == "builtins.ValueError"
    assert len(outcome.fingerprint) == 12


def test_a_group_is_told_by_what_is_in_it() -> None:
    """Whoever looks at a case of a task group sees which classes failed, and tells two such cases apart."""
    group = ExceptionGroup("card 4111-1111", [KeyError("4111"), ExceptionGroup("", [ValueError("4111")])])
    outcome = classify(group, ())
    assert outcome.error_class == "builtins.ExceptionGroup[builtins.KeyError, builtins.ValueError]"
    assert "4111" not in repr(outcome)
    assert outcome.fingerprint != classify(ExceptionGroup("", [KeyError("4111")]), ()).fingerprint


def raised(error: Exception) -> Exception:
    """An exception with a traceback, always from this line."""
    try:
        raise error
    except Exception as caught:  # noqa: BLE001 - that is what it is for
        return caught


def test_like_errors_share_a_fingerprint_and_others_do_not() -> None:
    """Class and place make the fingerprint, the message does not."""
    assert fingerprint(raised(ValueError("one"))) == fingerprint(raised(ValueError("two")))
    assert fingerprint(raised(ValueError("one"))) != fingerprint(raised(KeyError("one")))
    assert fingerprint(raised(ValueError("one"))) != fingerprint(ValueError("one"))


def test_a_reason_is_short_and_harmless_to_a_terminal() -> None:
    """What a handler says is stored and shown: cut to length, control characters made visible."""
    assert bounded("fine") == "fine"
    assert bounded("red \x1b[31m") == "red \\x1b[31m"
    assert bounded("\n" * 500).isprintable()
    for text in ("x" * 10_000, "\x00" * 10_000, "é" * 201):
        assert len(bounded(text)) == MAX_REASON_CHARS
    assert bounded("x" * MAX_REASON_CHARS) == "x" * MAX_REASON_CHARS


def test_a_payload_that_does_not_fit_is_refused_with_the_place_and_never_the_value() -> None:
    """`invalid-payload` is one fixed reason; where it did not fit stands beside it."""
    assert invalid_payload("amount: int_parsing") == Outcome(
        Reject("invalid-payload"), "invalid-payload", detail="amount: int_parsing"
    )
