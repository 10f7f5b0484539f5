"""`eventually` waits no longer than needed, and says what it waited for."""

from __future__ import annotations

import pytest

from tests.waiting import eventually


def test_returns_the_first_true_value() -> None:
    """The value that ended the waiting is handed back."""
    values = iter([0, 0, 7, 8])
    assert eventually(lambda: next(values), 5, "a number", poll_s=0) == 7


def test_a_failed_assertion_means_not_yet() -> None:
    """A condition made of assertions is asked again until they hold."""
    left = iter([3, 2, 1])

    def is_down_to_one() -> bool:
        assert next(left) == 1
        return True

    assert eventually(is_down_to_one, 5, "the countdown", poll_s=0)


def test_failure_says_what_was_awaited_and_last_seen() -> None:
    """At the deadline the failure names the thing awaited and the last value seen."""
    with pytest.raises(AssertionError, match=r"waited 0\.01 s for lag zero; last seen: \[\]"):
        eventually(list, 0.01, "lag zero", poll_s=0.001)


def test_another_exception_is_not_swallowed() -> None:
    """An error that is no assertion goes up at once."""
    with pytest.raises(ZeroDivisionError):
        eventually(lambda: 1 / 0, 5, "the impossible")
