"""Answers to commands stand in the review topic between the news of cases."""

from __future__ import annotations

import msgspec

from laneway.consumer.inspection.cases import MAX_ANSWERS, CaseBook
from laneway.consumer.inspection.topics import StoredRecord
from laneway.lanes.command import COMMAND_FORMAT, Command
from laneway.lanes.forward import Forwarder, Home
from laneway.lanes.record import Channel, Record
from tests.consumer.test_inspect_cases import HOME, ids, news


def answer(
    number: int, *, case_id: str = "case-1", why: str = "", home: Home = HOME, offset: int = 0
) -> StoredRecord:
    """One answer as the worker publishes it."""
    record = Record(Channel.COMMANDS, offset, None, b"{}")
    record.command = Command(
        COMMAND_FORMAT, f"command-{number}", "skip", "ann", "because", home.group, home.topic, 3, "k", case_id
    )
    forward = Forwarder(home).answer(record, why=why, now_ms=number)
    return StoredRecord("review", 0, 0, 0, forward.key, forward.value, forward.headers)


def test_answers_are_neither_news_nor_unreadable() -> None:
    """An answer opens, closes and counts nothing; without asking for them none is kept."""
    book = CaseBook("reminders").take_all([news(1), answer(1), news(2), answer(2, why="no")])
    assert (ids(book), book.unreadable, book.answers) == (["case-1", "case-2"], 0, {})


def test_answers_about_a_case_are_kept_once() -> None:
    """Of the case that is asked about, copies once, another's not, and never more than a bound."""
    records = [answer(1), answer(1), answer(2, case_id="case-2"), answer(3, why="not open")]
    book = CaseBook("reminders", answers_to="case-1").take_all(records)
    assert [(each.command_id, each.why) for each in book.answers.values()] == [
        ("command-1", ""),
        ("command-3", "not open"),
    ]
    book.take_all(answer(number) for number in range(10, 10 + 2 * MAX_ANSWERS))
    assert len(book.answers) == MAX_ANSWERS
    assert list(book.answers)[-1] == f"command-{9 + 2 * MAX_ANSWERS}"


def test_an_answer_of_others_or_of_another_release_is_passed_over() -> None:
    """Another group's, a damaged one and one of an unknown format are counted, not believed."""
    good = answer(1)
    value = msgspec.json.decode(good.value or b"")
    later = StoredRecord(*_place(good), msgspec.json.encode({**value, "format": 9}), good.headers)
    broken = StoredRecord(*_place(good), b"\xff", good.headers)
    book = CaseBook("reminders", answers_to="case-1")
    book.take_all([answer(1, home=Home("others", "invoices", 3)), later, broken])
    assert (book.unreadable, book.answers) == (3, {})


def _place(record: StoredRecord) -> tuple[str, int, int, int, bytes | None]:
    return record.topic, record.partition, record.offset, record.timestamp_ms, record.key
