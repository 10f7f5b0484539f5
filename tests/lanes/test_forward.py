"""Forwards: what leaves for another topic; ids are derived, headers are believed at home only."""

from __future__ import annotations

import hashlib
from itertools import product

import msgspec
import pytest

from laneway.lanes.case import Case
from laneway.lanes.forward import Forward, Forwarder, ForwardKind, Home, foreign, raw_of, read_retry, stub
from laneway.lanes.record import Channel, Headers, Record, keyed_lane, lane_of_one

HOME = Home("reminders", "invoices", 3)
NOW_MS = 5_000


def a_record(
    *,
    offset: int = 7,
    headers: Headers = (("trace", b"\xff"),),
    value: bytes | None = b"v",
    key: bytes | None = b"k",
    sequence_key: str | None = "a",
) -> Record:
    """A record with an identity."""
    record = Record(Channel.SOURCE, offset, key, value, headers, 1234)
    record.message_id, record.effect_key = "m-1", "e-1"
    record.sequence_key = sequence_key
    record.sequence = 5 if sequence_key is not None else 0
    record.lane = keyed_lane(sequence_key) if sequence_key is not None else lane_of_one("e-1")
    return record


def texts(forward: Forward) -> dict[str, str]:
    """Our headers of a forward."""
    return {n[8:]: (v or b"").decode() for n, v in forward.headers if n.startswith("laneway-")}


def retry(record: Record, attempt: int = 2, due_ms: int = 6_000) -> Forward:
    """A retry of a record."""
    return Forwarder(HOME).retry(record, attempt=attempt, due_ms=due_ms, reason="later", now_ms=NOW_MS)


def dead_letter(record: Record, attempt: int = 1, case_id: str = "") -> Forward:
    """A dead letter of a record."""
    return Forwarder(HOME).dead_letter(
        record, attempt=attempt, reason="poison", error_class="app.Bad", case_id=case_id, now_ms=NOW_MS
    )


def test_a_retry_carries_who_the_record_is_and_when_it_is_due() -> None:
    """All the identity headers are there, as text, beside the untouched bytes (case 2)."""
    forward = retry(a_record())
    assert (forward.kind, forward.key, forward.value) == (ForwardKind.RETRY, b"k", b"v")
    assert (forward.channel, forward.offset) == (Channel.SOURCE, 7)
    assert forward.headers[0] == ("trace", b"\xff")
    assert texts(forward) == {
        "format": "1",
        "kind": "retry",
        "forward-id": forward.forward_id,
        "message-id": "m-1",
        "origin-topic": "invoices",
        "origin-partition": "3",
        "origin-offset": "7",
        "origin-timestamp": "1234",
        "group": "reminders",
        "sequence-key": "a",
        "sequence": "5",
        "effect-key": "e-1",
        "attempt": "2",
        "first-failed-at": "5000",
        "reason": "later",
        "due-at": "6000",
    }


def test_a_dead_letter_says_what_refused_it_and_can_be_matched() -> None:
    """Class, time, case and a hash of the value; the original bytes unchanged (S9)."""
    forward = dead_letter(a_record(value=b"\x00"), case_id="rejected-1")
    found = texts(forward)
    assert found["error-class"] == "app.Bad"
    assert found["failed-at"] == "5000"
    assert found["case-id"] == "rejected-1"
    assert found["payload-sha256"] == hashlib.sha256(b"\x00").hexdigest()
    assert (forward.value, forward.order_key) == (b"\x00", "rejected-1")
    assert "due-at" not in found


@pytest.mark.parametrize("sequence_key", ["a", "", "b64:/w==", "ключ\n", None])
@pytest.mark.parametrize("value", [None, b"", b"\xff"])
def test_a_retry_read_back_is_the_same_record(sequence_key: str | None, value: bytes | None) -> None:
    """Identity, lane, origin and attempt come back from the headers exactly (case 2)."""
    sent = a_record(sequence_key=sequence_key, value=value)
    forward = retry(sent)
    back = Record(Channel.RETRY, 99, forward.key, forward.value, forward.headers, 777)
    read_retry(back, HOME, "", latest_due_ms=NOW_MS + 4_000)
    for name in (
        "message_id",
        "effect_key",
        "sequence_key",
        "sequence",
        "lane",
        "timestamp_ms",
        "key",
        "value",
    ):
        assert getattr(back, name) == getattr(sent, name), name
    assert (back.fault, back.offset, back.origin_offset) == ("", 99, 7)
    assert (back.attempt, back.due_ms, back.first_failed_ms) == (2, 6_000, 5_000)


def test_headers_of_ours_are_replaced_and_foreign_ones_kept_as_they_came() -> None:
    """Foreign headers stay in order, repeats included, and of ours there is one of each (case 22)."""
    headers: Headers = (("a", b"1"), ("laneway-forged", b"x"), ("a", None), ("laneway-attempt", b"99"))
    record = a_record(headers=headers)
    first = retry(record)
    assert foreign(first.headers) == (("a", b"1"), ("a", None))
    assert "forged" not in texts(first)
    again = a_record(headers=first.headers)
    again.first_failed_ms = NOW_MS
    assert retry(again).headers == first.headers


def test_a_due_time_beyond_the_longest_delay_is_cut() -> None:
    """A hostile due time stalls nothing."""
    forward = retry(a_record(), due_ms=10**15)
    back = Record(Channel.RETRY, 0, forward.key, forward.value, forward.headers)
    read_retry(back, HOME, "", latest_due_ms=9_000)
    assert (back.due_ms, back.fault) == (9_000, "")


@pytest.mark.parametrize(
    "missing", ["attempt", "due-at", "effect-key", "message-id", "origin-offset", "sequence"]
)
def test_a_retry_without_one_of_its_headers_is_broken(missing: str) -> None:
    """A missing header is a fault, never a guess."""
    headers = tuple(header for header in retry(a_record()).headers if header[0] != f"laneway-{missing}")
    back = Record(Channel.RETRY, 0, b"k", b"v", headers)
    read_retry(back, HOME, "", latest_due_ms=9_000)
    assert back.fault == "broken-retry-headers"


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("origin-timestamp", "9" * 40),
        ("origin-timestamp", "-" + "9" * 40),
        ("origin-timestamp", " 12 "),
        ("origin-offset", "-1"),
        ("attempt", "9" * 19),
        ("due-at", "253402300799.5"),
        ("message-id", ""),
        ("effect-key", ""),
        ("effect-key", "x" * 4097),
        ("sequence-key", "x" * 4097),
    ],
)
def test_a_forged_header_that_no_ledger_could_hold_is_broken(header: str, text: str) -> None:
    """Numbers and texts outside the bounds of the envelope are a fault, before anything is stored of them."""
    forged = (f"laneway-{header}", text.encode())
    headers = tuple(forged if each[0] == forged[0] else each for each in retry(a_record()).headers)
    back = Record(Channel.RETRY, 0, b"k", b"v", headers)
    read_retry(back, HOME, "", latest_due_ms=9_000)
    assert back.fault == "broken-retry-headers"


def test_a_retry_of_a_record_from_before_1970_comes_back() -> None:
    """A producer may stamp a record with a negative time; its retry is still ours."""
    sent = a_record()
    sent.timestamp_ms = -86_400_000
    forward = retry(sent)
    back = Record(Channel.RETRY, 0, forward.key, forward.value, forward.headers)
    read_retry(back, HOME, "", latest_due_ms=9_000)
    assert (back.fault, back.timestamp_ms) == ("", -86_400_000)


@pytest.mark.parametrize(
    "home", [Home("x", "invoices", 3), Home("reminders", "x", 3), Home("reminders", "invoices", 4)]
)
def test_headers_are_believed_only_at_home(home: Home) -> None:
    """A retry of another group, topic or partition is foreign (case 24)."""
    forward = retry(a_record())
    back = Record(Channel.RETRY, 0, forward.key, forward.value, forward.headers)
    read_retry(back, home, "", latest_due_ms=9_000)
    assert back.fault == "foreign-retry-record"


def test_a_payload_fault_of_a_retry_waits_for_its_turn() -> None:
    """The lane waits for this very record, so it is refused in turn and not on sight."""
    forward = retry(a_record())
    back = Record(Channel.RETRY, 0, forward.key, forward.value, forward.headers)
    read_retry(back, HOME, "undecodable-json", latest_due_ms=9_000)
    assert (back.fault, back.misfit) == ("", "undecodable-json")


def test_forward_ids_are_derived_and_differ_where_the_forwards_do() -> None:
    """Position, attempt, kind and case make the id, the time does not: a second copy is recognised."""
    made = {}
    for offset, attempt, case_id in product((7, 77), (1, 2), ("", "c-1")):
        record = a_record(offset=offset)
        made[dead_letter(record, attempt, case_id).forward_id] = 1
        made[retry(record, attempt).forward_id] = 1
    assert len(made) == 8 + 4
    later = Forwarder(HOME).retry(a_record(), attempt=2, due_ms=9, reason="other", now_ms=NOW_MS + 1)
    assert later.forward_id == retry(a_record()).forward_id
    elsewhere = Forwarder(Home("others", "invoices", 3)).retry(
        a_record(), attempt=2, due_ms=9, reason="", now_ms=1
    )
    assert elsewhere.forward_id != later.forward_id


def test_an_unreadable_record_is_told_apart_by_its_position() -> None:
    """Faulty records of one offset, one from the source and one from the retries, are two dead letters."""
    source, other = a_record(), a_record()
    other.channel = Channel.RETRY
    source.fault = other.fault = "undecodable-json"
    assert dead_letter(source).forward_id != dead_letter(other).forward_id


def test_a_released_follower_hangs_on_no_offset() -> None:
    """Its offset was committed when it was parked."""
    record = a_record()
    record.parked = True
    assert (retry(record).offset, dead_letter(record).offset) == (-1, -1)


def test_news_of_a_case_carries_no_payload_and_no_header_value() -> None:
    """A review record is for people: ids and questions only, keyed by its case, in order with its news."""
    record = a_record(value=b"secret-value", key=b"secret-key", headers=(("h", b"secret-header"),))
    case = Case(
        "c-1", "rejected", "app.Bad", True, "ka", 5, "e-1", "m-1", 7, 1, "Why?", 1000, 1, "f", raw_of(record)
    )
    forwarder = Forwarder(HOME)
    opened = forwarder.news(case, record, event="opened", resolution=None, now_ms=NOW_MS)
    closed = forwarder.news(case, record, event="resolved", resolution="skipped", now_ms=NOW_MS)
    assert {opened.key, closed.key} == {b"c-1"}
    assert opened.order_key == closed.order_key == "c-1"
    assert opened.forward_id != closed.forward_id
    for news in (opened, closed):
        assert "secret" not in repr(news)
    told = msgspec.json.decode(closed.value or b"")
    assert (told["event"], told["resolution"], told["resolvedMs"]) == ("resolved", "skipped", NOW_MS)
    assert (told["sequenceKey"], told["actions"][0]) == ("a", "replay")


def test_a_stub_keeps_all_but_the_value() -> None:
    """A dead letter that its topic refuses as too large goes as a stub with position and hash (case 22)."""
    forward = dead_letter(a_record(value=b"x" * 100))
    small = stub(forward)
    assert small.value is None
    assert texts(small) == texts(forward) | {"stub": "value-too-large"}
    assert (small.forward_id, small.offset) == (forward.forward_id, forward.offset)


def test_kept_bytes_leave_our_own_headers_out() -> None:
    """What a case keeps is the publisher's record, whatever round it is on."""
    record = a_record(headers=retry(a_record()).headers)
    assert raw_of(record).headers == (("trace", b"\xff"),)
