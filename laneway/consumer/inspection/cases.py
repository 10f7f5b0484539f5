"""The review topic folded into cases: what is open, what was resolved, and what operators were answered.

News of one case stand in order in one partition. They may stand there twice (at-least-once), and
after a topic grew its later news stand in another partition; neither shows.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from laneway.consumer.inspection.topics import Recent, StoredRecord
from laneway.errors import RefusedError
from laneway.lanes.forward import FORMAT, PREFIX, CommandAnswer, ReviewNews

MAX_OPEN: Final = 50_000
"""Cases of a fold in memory. Far beyond lanes.max_open_cases_per_partition times any partitions."""

MAX_ANSWERS: Final = 100
"""Answers about one case that are kept, the last ones."""

_ANSWER: Final = (f"{PREFIX}kind", b"answer")

_decode = msgspec.json.Decoder(ReviewNews).decode
_decode_answer = msgspec.json.Decoder(CommandAnswer).decode


class CaseBook:
    """The fold. Memory follows the open cases that are wanted, not the length of the topic.

    Args:
        wanted: cases it does not want are read over.
        keep_resolved: how many resolved cases are kept, the last resolved ones.
        answers_to: the case whose commands are told about, answered ones; "" for none.

    Attributes:
        unreadable: records that are neither news nor answers of this group, or of another release's format.
        answers: to commands about the case, each once, the last ones.
    """

    def __init__(
        self,
        group: str,
        *,
        wanted: Callable[[ReviewNews], bool] = lambda _: True,
        keep_resolved: int = 0,
        answers_to: str = "",
    ) -> None:
        self._group = group
        self._wanted = wanted
        self._keep_resolved = keep_resolved
        self._open: dict[str, ReviewNews] = {}
        self._resolved: dict[str, ReviewNews] = {}
        # An opening is a case id and its time: a ledger that was lost may open the same case anew.
        self._closed = Recent()
        self._answers_to = answers_to
        self.answers: dict[str, CommandAnswer] = {}
        self.unreadable = 0

    def take_all(self, records: Iterable[StoredRecord]) -> CaseBook:
        """Fold records in; returns the book itself."""
        for record in records:
            self.take(record)
        return self

    def take(self, record: StoredRecord) -> None:
        """Fold one record in.

        Raises:
            RefusedError: more cases are open than memory is meant for.
        """
        if is_answer(record):
            self._answered(record)
            return
        news = news_of(record, self._group)
        if news is None:
            self.unreadable += 1
        elif self._wanted(news):
            if news.event == "opened":
                self._opened(news)
            elif news.event == "resolved":
                self._closed_by(news)

    def open(self) -> list[ReviewNews]:
        """Open cases, the one that waits longest first."""
        return sorted(self._open.values(), key=lambda news: (news.opened_ms, news.case_id))

    def resolved(self) -> list[ReviewNews]:
        """The last resolved cases, the latest first."""
        return heapq.nlargest(self._keep_resolved, self._resolved.values(), key=_resolved_at)

    def _answered(self, record: StoredRecord) -> None:
        answer = answer_of(record, self._group)
        if answer is None:
            self.unreadable += 1
        elif self._answers_to and answer.case_id == self._answers_to:
            self.answers[answer.command_id] = answer
            if len(self.answers) > MAX_ANSWERS:
                del self.answers[next(iter(self.answers))]

    def _opened(self, news: ReviewNews) -> None:
        known = self._open.get(news.case_id)
        if (news.case_id, news.opened_ms) in self._closed:
            return
        if known is None or (news.opened_ms, news.version) > (known.opened_ms, known.version):
            self._open[news.case_id] = news
        self._resolved.pop(news.case_id, None)
        if len(self._open) > MAX_OPEN:
            raise RefusedError(
                f"more than {MAX_OPEN} cases are open",
                where=f"group {self._group}",
                mend="narrow it with --reason or --key",
            )

    def _closed_by(self, news: ReviewNews) -> None:
        self._closed.note(news.case_id, news.opened_ms)
        known = self._open.get(news.case_id)
        if known is not None:
            if known.opened_ms > news.opened_ms:
                return
            del self._open[news.case_id]
        if self._keep_resolved:
            self._resolved[news.case_id] = news
            if len(self._resolved) > 2 * self._keep_resolved + 100:
                self._resolved = {kept.case_id: kept for kept in self.resolved()}


def news_of(record: StoredRecord, group: str) -> ReviewNews | None:
    """A review record as news; None when it is not this group's, damaged, or of an unknown format."""
    try:
        news = _decode(record.value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return news if news.group == group and str(news.format) == FORMAT else None


def is_answer(record: StoredRecord) -> bool:
    """Whether it tells what became of a command, and is no news of a case."""
    return _ANSWER in record.headers


def answer_of(record: StoredRecord, group: str) -> CommandAnswer | None:
    """What became of a command; None when it is not this group's, damaged, or of an unknown format."""
    try:
        answer = _decode_answer(record.value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return answer if answer.group == group and str(answer.format) == FORMAT else None


def _resolved_at(news: ReviewNews) -> tuple[int, str]:
    return news.resolved_ms or 0, news.case_id
