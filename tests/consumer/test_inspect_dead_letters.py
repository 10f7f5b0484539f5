"""Dead letters read back from the headers that the rules themselves write."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Iterator

import pytest

from laneway.consumer.inspection.dead_letters import collect, letter_of, parse_id, summarise
from laneway.consumer.inspection.topics import StoredRecord
from laneway.errors import UsageError
from laneway.lanes.forward import Forwarder, Home, stub
from laneway.lanes.record import Channel, Headers, Record

HOME = Home("reminders", "invoices", 3)
DLQ = "invoices.reminders.dlq"


def letter(
    number: int,
    *,
    reason: str = "payload-invalid",
    value: bytes | None = b"{}",
    headers: Headers = (),
    too_large: bool = False,
    at_ms: int | None = None,
) -> StoredRecord:
    """One record of the DLQ topic, as the worker publishes it."""
    record = Record(Channel.SOURCE, number, b"key", value, headers)
    record.message_id, record.effect_key = f"m{number}", f"e{number}"
    record.sequence_key, record.sequence = "customer", number
    forward = Forwarder(HOME).dead_letter(
        record, attempt=2, reason=reason, error_class="ValueError", case_id="case-1", now_ms=5000
    )
    if too_large:
        forward = stub(forward)
    stored_ms = number if at_ms is None else at_ms
    return StoredRecord(DLQ, 3, number, stored_ms, forward.key, forward.value, forward.headers)


def test_a_letter_says_what_the_worker_wrote() -> None:
    """Why, since when, from where, whose, and how large: all of it from headers."""
    found = letter_of(letter(7, value=b"{...}"), "reminders")
    assert found.ours
    assert found.letter_id == f"{DLQ}/3@7"
    assert found.origin == "invoices/3@7"
    assert (found.reason, found.error_class, found.attempt) == ("payload-invalid", "ValueError", 2)
    assert (found.failed_ms, found.first_failed_ms) == (5000, 5000)
    assert (found.message_id, found.effect_key, found.sequence_key, found.sequence) == (
        "m7",
        "e7",
        "customer",
        7,
    )
    assert found.size_bytes == len(b"key") + len(b"{...}")
    assert found.sha256 == hashlib.sha256(b"{...}").hexdigest()
    assert (found.case_id, found.stub) == ("case-1", False)


def test_a_stub_is_known_as_one() -> None:
    """An oversized letter came without its value, and keeps the hash of the original."""
    found = letter_of(letter(7, value=b"x" * 100, too_large=True), "reminders")
    assert (found.stub, found.size_bytes) == (True, 3)
    assert found.sha256 == hashlib.sha256(b"x" * 100).hexdigest()


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("laneway-group", b"others"), ("laneway-kind", b"dlq"), ("laneway-format", b"1")),
        (("laneway-group", b"reminders"), ("laneway-kind", b"retry"), ("laneway-format", b"1")),
        (("laneway-group", b"reminders"), ("laneway-kind", b"dlq"), ("laneway-format", b"2")),
        (("laneway-group", b"\xff"), ("laneway-kind", None)),
    ],
)
def test_headers_of_others_are_not_believed(headers: Headers) -> None:
    """A record that this group did not write has its bytes and no story."""
    found = letter_of(
        StoredRecord(DLQ, 0, 1, 9, None, b"abc", (*headers, ("laneway-reason", b"x"))), "reminders"
    )
    assert (found.ours, found.reason, found.origin, found.size_bytes) == (False, None, None, 3)


def test_broken_numbers_are_unknown() -> None:
    """A damaged header leaves its field empty and the rest readable."""
    record = letter(7)
    broken = tuple(
        (name, b"-1e9" if name in {"laneway-attempt", "laneway-origin-offset"} else value)
        for name, value in record.headers
    )
    found = letter_of(StoredRecord(DLQ, 3, 7, 0, None, None, broken), "reminders")
    assert (found.attempt, found.origin, found.reason) == (None, None, "payload-invalid")


def test_the_newest_come_first() -> None:
    """The newest by the time they were written, whatever partition they lie in."""
    records = [letter(n, at_ms=at_ms) for n, at_ms in ((1, 50), (2, 90), (3, 10), (4, 70))]
    found = collect(records, "reminders", 3)
    assert [each.record.offset for each in found.letters] == [2, 4, 1]


def test_copies_of_a_letter_count_once() -> None:
    """At-least-once: the same forward id at two offsets is one dead letter."""
    first, copy = letter(1), letter(1, at_ms=99)
    found = collect([first, letter(2), copy], "reminders", 10)
    assert sorted(each.origin or "" for each in found.letters) == ["invoices/3@1", "invoices/3@2"]
    assert found.copies == 1
    (group,) = summarise([first, letter(2), copy], "reminders", lambda each: each.reason)
    assert group.letters == 2


def test_a_reason_is_picked_before_the_limit() -> None:
    """The newest of one reason, however many others came after it."""
    records = [letter(1, reason="rare"), *(letter(n) for n in range(2, 50))]
    found = collect(records, "reminders", 1, "rare")
    assert [each.record.offset for each in found.letters] == [1]


def test_a_reason_is_picked_by_its_fixed_word_too() -> None:
    """The worker's count names the kind only, so the list finds every place of that kind by it."""
    places = ("missing-field: sequence", "missing-field: version", "missing-fields")
    records = [letter(number, reason=reason) for number, reason in enumerate(places)]
    assert len(collect(records, "reminders", 9, "missing-field").letters) == 2
    assert len(collect(records, "reminders", 9, "missing-field: version").letters) == 1


def test_a_summary_counts_by_what_it_is_asked() -> None:
    """The most frequent first, with the span of time and an id that leads to the latest one."""
    records = [letter(1, reason="rare"), *(letter(n) for n in range(2, 5))]
    groups = summarise(records, "reminders", lambda each: each.reason)
    assert [(each.name, each.letters) for each in groups] == [("payload-invalid", 3), ("rare", 1)]
    assert (groups[0].first_ms, groups[0].last_ms, groups[0].example) == (2, 4, f"{DLQ}/3@4")


def test_a_summary_has_a_bound() -> None:
    """A handler that writes another reason into every letter cannot fill the memory."""
    groups = summarise(
        (letter(n, reason=f"r{n}") for n in range(10_050)), "reminders", lambda each: each.reason
    )
    assert len(groups) == 10_001
    assert (groups[0].name, groups[0].letters) == ("(further ones)", 50)


def test_memory_follows_the_limit_not_the_topic() -> None:
    """Two hundred letters of 1 MB are read with memory for the few that are shown."""

    def topic() -> Iterator[StoredRecord]:
        for number in range(200):
            yield letter(number, value=bytes(1_000_000))

    tracemalloc.start()
    try:
        found = collect(topic(), "reminders", 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.letters) == 3
    assert peak < 10_000_000


def test_an_id_is_read_back() -> None:
    """What a list prints, and the short form where only one topic can be meant."""
    assert parse_id(f"{DLQ}/3@17", [DLQ, "b.reminders.dlq"]) == ((DLQ, 3), 17)
    assert parse_id("3@17", [DLQ]) == ((DLQ, 3), 17)


@pytest.mark.parametrize(
    "text", ["", "17", "3@", "3@-1", f"{DLQ}[3]@17", "3@17 ", "other/3@17", "3@17", "٣@1"]
)
def test_an_id_that_leads_nowhere_is_refused(text: str) -> None:
    """Anything else says what to write."""
    with pytest.raises(UsageError):
        parse_id(text, [DLQ, "b.reminders.dlq"])
