"""The client's own log lines: each kind is heard, none floods."""

from __future__ import annotations

import logging

import pytest

from laneway.consumer.kafka.log import REPEAT_S, Doses


def line(text: str, at_s: float) -> logging.LogRecord:
    """A log line at a time."""
    record = logging.LogRecord("laneway.kafka", logging.ERROR, __file__, 1, "%s [%s]", ("FAIL", text), None)
    record.created = at_s
    return record


def test_a_kind_of_line_comes_once_in_a_while_with_the_number_left_out() -> None:
    """Lines that differ in numbers only are one kind; the next one shown counts those that were not."""
    doses = Doses()
    assert doses.filter(line("refused after 1 ms", 0))
    assert not any(doses.filter(line(f"refused after {ms} ms", ms / 100)) for ms in range(1, 90))
    again = line("refused after 3 ms", REPEAT_S)
    assert doses.filter(again)
    assert again.getMessage() == "FAIL [refused after 3 ms] (89 more like this were left out)"
    assert not doses.filter(line("refused after 4 ms", REPEAT_S + 1))


def test_kinds_do_not_hide_each_other() -> None:
    """Another line is shown although the first one floods."""
    doses = Doses()
    assert doses.filter(line("connection refused", 0))
    assert doses.filter(line("authentication failed", 0.1))


def test_a_key_that_only_the_other_client_reads_is_no_warning() -> None:
    """[kafka] configures consumers and producers alike, so a consumer's key is no mistake."""
    text = "session.timeout.ms is a consumer property and will be ignored by this producer instance"
    assert not Doses().filter(line(text, 0))


@pytest.mark.parametrize(
    "text",
    [
        "REQTMOUT [thrd:x]: Timed out ListOffsetsRequest in flight",
        "REQTMOUT [thrd:x]: Timed out 18 in-flight, 0 retry-queued, 0 out-queue, 0 partially-sent requests",
    ],
)
def test_a_question_that_only_wakes_the_client_is_not_reported(text: str) -> None:
    """The answer that nobody waits for, after a partition was resumed, is no alarm."""
    assert not Doses().filter(line(text, 0))
