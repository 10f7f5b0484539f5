"""The watchdog: a worker that sits still is heard of."""

from __future__ import annotations

import logging
import threading

import pytest

from laneway.consumer.watchdog import Watchdog
from tests.waiting import eventually


def sits_here(until: threading.Event) -> None:
    """Where the owner is stuck."""
    until.wait(20)


def test_an_owner_that_does_not_turn_is_told_of_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    """The person on call sees since when and in which call; one that turns is not spoken of (case 38)."""
    found, quiet = threading.Event(), threading.Event()

    def owner() -> None:
        dog = Watchdog(still_s=0.5)
        dog.start()
        for _ in range(30):
            dog.turned()
            quiet.wait(0.05)
        assert not caplog.records
        sits_here(found)
        dog.stop()

    with caplog.at_level(logging.ERROR, logger="laneway"):
        thread = threading.Thread(target=owner)
        thread.start()
        eventually(lambda: bool(caplog.records), 15, "a word about the owner")
        found.set()
        thread.join(20)
    text = caplog.records[0].getMessage()
    assert "has not turned for" in text
    assert "in sits_here" in text
