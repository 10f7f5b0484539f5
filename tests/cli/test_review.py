"""What `review show` tells a person to do next."""

from __future__ import annotations

import pytest

from laneway.cli.review import next_step
from laneway.lanes.case import REASONS
from laneway.lanes.forward import ReviewNews


def news(reason: str, *, holds: bool = True, resolution: str | None = None) -> ReviewNews:
    """A case with braces where a stranger may put them."""
    return ReviewNews(
        format=1,
        event="opened",
        case_id="c-1",
        reason=reason,
        cause="Boom",
        group="g",
        topic="invoices",
        partition=3,
        offset=17,
        sequence_key="{key}",
        sequence=4,
        effect_key="{0}",
        message_id="m",
        attempts=1,
        required_check="?",
        actions=(),
        holds=holds,
        version=1,
        opened_ms=1,
        fingerprint="f00",
        resolution=resolution,
    )


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_every_reason_has_a_next_step(reason: str) -> None:
    """S18: for each reason there is advice of its own, and whether later records wait is said beside it."""
    held, loose = next_step(news(reason)), next_step(news(reason, holds=False))
    assert "Answer the required check" not in held
    assert "are parked" in held
    assert "Nothing waits for it" in loose


def test_a_resolved_case_asks_for_nothing() -> None:
    """The next step of a case that closed is none, and it says how it closed."""
    step = next_step(news("sequence-gap", resolution="predecessor-arrived"))
    assert step == "Nothing: it closed as predecessor-arrived."
