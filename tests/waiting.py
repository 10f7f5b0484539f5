"""Waiting in tests: poll for a condition up to a deadline, never sleep and hope."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], deadline_s: float, what: str, *, poll_s: float = 0.02) -> T:
    """Returns the first true value of `condition`; fails when there is none within `deadline_s`.

    Args:
        condition: asked at least once, and once more when the deadline has passed. An AssertionError
            counts as "not yet"; any other exception goes up at once.
        deadline_s: seconds from now.
        what: completes the sentence "waited for ..." in the failure.
        poll_s: pause between two questions.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        late = time.monotonic() >= deadline
        seen: object
        try:
            value = condition()
        except AssertionError as error:
            seen = error
        else:
            if value:
                return value
            seen = value
        if late:
            raise AssertionError(f"waited {deadline_s:g} s for {what}; last seen: {seen!r}")
        time.sleep(poll_s)
