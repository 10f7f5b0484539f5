"""What a person at the terminal hears about dead letters and cases."""

from __future__ import annotations

import logging

import pytest

from laneway.consumer.notices import COUNT_EVERY_MS, Notices
from laneway.consumer.partition import Partition
from laneway.consumer.topics import TopicNames
from laneway.lanes.forward import Home
from laneway.lanes.record import Channel, Record
from laneway.lanes.settlement import Settled, Settlement


def a_partition() -> Partition:
    """Partition 3 of orders."""
    names = TopicNames("orders", "o.retry", "o.commands", "o.dlq", "o.review")
    return Partition(Home("g", "orders", 3), names, 1, {Channel.SOURCE: 0}, {Channel.SOURCE: None})


def rejected(offset: int, reason: str) -> Settlement:
    """A dead letter with a key that nobody may hear."""
    record = Record(Channel.SOURCE, offset, b"k", b"secret")
    record.sequence_key = "secret-customer"
    return Settlement(record, Settled.QUARANTINED, [], reason)


def test_the_first_of_a_kind_is_told_at_once_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One line for the first dead letter of a reason, one with the count when a while has passed."""
    notices = Notices()
    with caplog.at_level(logging.WARNING, logger="laneway"):
        notices.tell(a_partition(), [rejected(5, "missing-field: sequence at json:/sequence")], 1000)
        notices.tell(a_partition(), [rejected(6, "missing-field: version at json:/version")], 1000)
        assert len(caplog.records) == 1
        assert "orders-3: offset 5 to the DLQ: missing-field: sequence" in caplog.text
        notices.tell(a_partition(), [rejected(7, "missing-field: x")], 2000)
        notices.count(999 + COUNT_EVERY_MS)
        assert len(caplog.records) == 1
        notices.count(1000 + COUNT_EVERY_MS)
        notices.count(1000 + 2 * COUNT_EVERY_MS)
    assert len(caplog.records) == 2
    assert (
        "orders: 2 more dead letters: missing-field; `laneway dlq list --reason missing-field`" in caplog.text
    )


def test_a_worker_that_stops_withholds_no_count(caplog: pytest.LogCaptureFixture) -> None:
    """What was only counted is told at the end, with the command that lists it."""
    notices = Notices()
    with caplog.at_level(logging.WARNING, logger="laneway"):
        for offset in range(3):
            done = rejected(offset, "invalid-payload")
            done.how = Settled.IN_REVIEW
            done.events.append(("review_opened", f"rejected-{offset:012}"))
            notices.tell(a_partition(), [done], 1000)
        notices.close()
        notices.close()
    assert len(caplog.records) == 2
    assert "orders: 2 more cases: rejected; `laneway review list --reason rejected`" in caplog.text


def test_the_place_of_a_retry_is_that_of_its_record(caplog: pytest.LogCaptureFixture) -> None:
    """The line names the source partition, so the offset is one of it, as `review list` has it."""
    last, opened = rejected(14, "attempts-exhausted"), rejected(15, "attempts-exhausted")
    last.record.origin_offset = opened.record.origin_offset = 13
    opened.how = Settled.IN_REVIEW
    opened.events.append(("review_opened", "attempts-exhausted-0123456789ab"))
    with caplog.at_level(logging.WARNING, logger="laneway"):
        Notices().tell(a_partition(), [last, opened], 1000)
    assert "orders-3: offset 13 to the DLQ" in caplog.text
    assert "orders-3: offset 13 opened a case" in caplog.text


def test_a_case_is_named_with_the_command_that_shows_it(caplog: pytest.LogCaptureFixture) -> None:
    """A case's line leads to it, and names no business key and no payload (invariant 10)."""
    done = rejected(9, "invalid-payload")
    done.events.append(("review_opened", "rejected-0123456789ab"))
    with caplog.at_level(logging.WARNING, logger="laneway"):
        Notices().tell(a_partition(), [done], 1000)
    assert "laneway review show rejected-0123456789ab" in caplog.text
    assert "secret" not in caplog.text
