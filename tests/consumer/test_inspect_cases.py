"""The review topic folded into cases, from the news that the rules themselves write."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

import msgspec
import pytest

from laneway.consumer.inspection import cases as inspect_cases
from laneway.consumer.inspection.cases import CaseBook
from laneway.consumer.inspection.topics import StoredRecord
from laneway.errors import RefusedError
from laneway.lanes.case import Case
from laneway.lanes.forward import Forwarder, Home
from laneway.lanes.record import Channel, Record

HOME = Home("reminders", "invoices", 3)


def news(
    number: int,
    event: str = "opened",
    *,
    opened_ms: int = 1000,
    reason: str = "sequence-gap",
    home: Home = HOME,
) -> StoredRecord:
    """One record of the review topic, as the worker publishes it."""
    case = Case(
        case_id=f"case-{number}",
        reason=reason,
        cause="",
        holds=True,
        lane=f"kcustomer-{number}",
        sequence=2,
        effect_key="",
        message_id="",
        offset=number,
        attempts=0,
        required_check="Was it published?",
        opened_ms=opened_ms,
    )
    resolution = "predecessor-arrived" if event == "resolved" else None
    record = Record(Channel.SOURCE, number, None, b"secret")
    forward = Forwarder(home).news(
        case, record, event=event, resolution=resolution, now_ms=opened_ms + number
    )
    return StoredRecord("review", 0, 0, 0, forward.key, forward.value, forward.headers)


def ids(book: CaseBook) -> list[str]:
    """The open cases."""
    return [each.case_id for each in book.open()]


def test_an_opened_case_is_open_until_it_is_resolved() -> None:
    """What was opened and not resolved is open; the one that waits longest comes first."""
    book = CaseBook("reminders", keep_resolved=5)
    book.take_all([news(1, opened_ms=30), news(2, opened_ms=10), news(3, opened_ms=20)])
    assert ids(book) == ["case-2", "case-3", "case-1"]
    book.take(news(3, "resolved", opened_ms=20))
    assert ids(book) == ["case-2", "case-1"]
    assert [each.resolution for each in book.resolved()] == ["predecessor-arrived"]


def test_news_that_stand_there_twice_show_once() -> None:
    """At-least-once: copies, in any number and at any later place, change nothing."""
    opened, resolved = news(1), news(1, "resolved")
    book = CaseBook("reminders", keep_resolved=5)
    book.take_all([news(2), opened, opened, news(2), resolved, opened, resolved, opened])
    assert ids(book) == ["case-2"]
    assert [each.case_id for each in book.resolved()] == ["case-1"]


def test_news_in_any_order_fold_to_the_same() -> None:
    """A topic that grew partitions may give the end of a case before its beginning."""
    records = [news(n) for n in range(20)] + [news(n, "resolved") for n in range(0, 20, 2)]
    expected = sorted(f"case-{n}" for n in range(1, 20, 2))
    for seed in range(20):
        shuffled = random.Random(seed).sample(records, len(records))
        assert sorted(ids(CaseBook("reminders").take_all(shuffled))) == expected, seed


def test_a_case_that_opens_anew_is_open() -> None:
    """A ledger that was lost may open the same case again later; its old end does not hide it."""
    book = CaseBook("reminders", keep_resolved=5)
    book.take_all([news(1), news(1, "resolved"), news(1, opened_ms=2000), news(1, "resolved")])
    assert [each.opened_ms for each in book.open()] == [2000]
    assert book.resolved() == []


def test_only_this_groups_news_are_believed() -> None:
    """Other groups' news, other formats and other bytes are counted and passed over."""
    later = news(1)
    document = msgspec.json.decode(later.value or b"")
    formats = StoredRecord("review", 0, 0, 0, None, msgspec.json.encode({**document, "format": 9}))
    more = StoredRecord("review", 0, 0, 0, None, msgspec.json.encode({**document, "newField": 1}))
    other = news(2, home=Home("others", "invoices", 3))
    strange = [StoredRecord("review", 0, 0, 0, None, value) for value in (None, b"", b"\xff", b"[]", b"{}")]
    book = CaseBook("reminders").take_all([other, formats, *strange, more])
    assert ids(book) == ["case-1"]
    assert book.unreadable == 7


def test_what_is_not_wanted_is_read_over() -> None:
    """A filter applies before anything is kept."""
    book = CaseBook("reminders", wanted=lambda each: each.reason == "rejected")
    assert ids(book.take_all([news(1), news(2, reason="rejected")])) == ["case-2"]


def test_too_many_open_cases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open cases beyond what memory is meant for are an error that says how to narrow it."""
    monkeypatch.setattr(inspect_cases, "MAX_OPEN", 3)
    with pytest.raises(RefusedError, match="--reason or --key"):
        CaseBook("reminders").take_all(news(n) for n in range(4))


def test_memory_follows_the_open_cases_not_the_topic() -> None:
    """A long life of resolved cases is folded in a few megabytes; the last resolved ones are kept."""

    def life() -> Iterator[StoredRecord]:
        for number in range(15_000):
            yield news(number)
            yield news(number, "resolved")

    tracemalloc.start()
    try:
        book = CaseBook("reminders", keep_resolved=10).take_all(life())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ids(book) == []
    assert [each.case_id for each in book.resolved()] == [f"case-{n}" for n in range(14_999, 14_989, -1)]
    # 15,000 cases kept whole are some 20 MB.
    assert peak < 8_000_000
