"""What `review show` tells a person to do next."""

from __future__ import annotations

import msgspec
import pytest

from laneway.cli.review import next_step
from laneway.cli.suggested import asked
from laneway.lanes.case import REASONS
from laneway.lanes.forward import ReviewNews

WORDS = asked(None, None, "h:1", "g", None)


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
    held, loose = next_step(news(reason), WORDS), next_step(news(reason, holds=False), WORDS)
    assert "Answer the required check" not in held
    assert "are parked" in held
    assert "Nothing waits for it" in loose


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("effect-conflict", "`laneway ledger lookup '{0}' -b h:1 -g g`"),
        ("rejected", "`laneway dlq list -b h:1 -g g`"),
    ],
)
def test_a_command_in_the_next_step_goes_where_the_reader_asked(reason: str, line: str) -> None:
    """It carries the options that were given, and names what it is about: it can be copied as it stands."""
    assert line in next_step(news(reason), WORDS)


def test_a_stale_record_is_not_sent_to_look_for_what_nobody_did() -> None:
    """Nothing was done under its effect key, so the way on is its publisher and not the ledger."""
    step = next_step(news("sequence-stale", holds=False), WORDS)
    assert "nothing was done under its effect key" in step
    assert "published with the next number of key '{key}'" in step
    assert "ledger lookup" not in step


def test_what_the_file_of_a_replay_must_be_is_said() -> None:
    """Where a corrected value may be sent it is told that it is the whole record, and elsewhere it is not."""
    allowed = msgspec.structs.replace(news("rejected"), actions=("replay-with",))
    assert "the whole record as a publisher would send it, envelope included" in next_step(allowed, WORDS)
    assert "envelope" not in next_step(news("sequence-gap"), WORDS)


def test_a_resolved_case_asks_for_nothing() -> None:
    """The next step of a case that closed is none, and it says how it closed."""
    step = next_step(news("sequence-gap", resolution="predecessor-arrived"), WORDS)
    assert step == "Nothing: it closed as predecessor-arrived."
