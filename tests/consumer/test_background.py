"""Threads for calls that block."""

from __future__ import annotations

import threading

import pytest

from laneway.consumer.background import DaemonExecutor


def test_a_call_answers_and_an_error_belongs_to_whoever_asks() -> None:
    """A future carries the result, or the exception, of its call; the thread goes on."""
    executor = DaemonExecutor(1, "test-io")
    broken = executor.submit(int, "x")
    assert executor.submit(int, "7").result(10) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        broken.result(10)
    executor.shutdown()
    assert executor.join(10)


def test_a_stuck_call_is_not_waited_for() -> None:
    """Shutting down returns at once and joining returns in time, whatever a thread is stuck in (case 38)."""
    release = threading.Event()
    executor = DaemonExecutor(2, "test-io")
    stuck = executor.submit(release.wait, 60)
    executor.shutdown()
    assert not executor.join(0.05)
    release.set()
    assert stuck.result(10)
    assert executor.join(10)
