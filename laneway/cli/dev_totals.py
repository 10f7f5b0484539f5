"""The one line that `laneway dev` leads with: where every record of the file is now, so that it adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from laneway.cli.columns import counted
from laneway.cli.dev_account import Account
from laneway.cli.dev_feed import Feeder
from laneway.lanes.forward import ReviewNews

_ELSEWHERE: Final = frozenset({"rejected", "sequence-gap"})
"""Cases whose record is counted already: as a dead letter, or as parked."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Each record is in one of these.

    Attributes:
        held_back: the record of a case, or parked behind one.
        unread: not read, not finished, or too large for the embedded cluster.
        waiting: the rest: between two attempts when the run ended.
        held_keys: sequence keys whose lane a case holds; no records, so not part of the sum.
    """

    records: int
    effects: int
    duplicates: int
    dead_letters: int
    held_back: int
    unread: int
    waiting: int
    held_keys: int

    @classmethod
    def of(cls, feeder: Feeder, account: Account, cases: Sequence[ReviewNews]) -> Self:
        """What became of the records by now."""
        records = feeder.published + len(feeder.oversized)
        duplicates, dead_letters = account.total("duplicates"), account.total("dlq")
        held_back = len(account.parked_lines()) + sum(news.reason not in _ELSEWHERE for news in cases)
        unread = feeder.unsettled + len(feeder.oversized)
        rest = records - account.effects - duplicates - dead_letters - held_back - unread
        keys = {news.sequence_key for news in cases if news.sequence_key is not None}
        return cls(
            records, account.effects, duplicates, dead_letters, held_back, unread, max(0, rest), len(keys)
        )

    def hint(self, feeder: Feeder, account: Account) -> str:
        """What the file probably is, when none of it could be used; empty when some of it could."""
        if self.dead_letters < feeder.published or not self.records:
            return ""
        if feeder.begins_with_array:
            return "the file is a JSON array: write its items one a line, as `jq -c '.[]' FILE` does"
        if 0 < account.counts["dlq", "undecodable-json"] == feeder.published:
            return "no line could be read as JSON: is the file one JSON object per line?"
        return ""

    def __str__(self) -> str:
        parts = [
            counted(self.effects, "effect"),
            counted(self.duplicates, "duplicate") if self.duplicates else "",
            counted(self.dead_letters, "dead letter"),
            f"{self.held_back} held back" if self.held_back else "",
            f"{self.waiting} waiting for a retry" if self.waiting else "",
            f"{self.unread} unread",
        ]
        text = f"{counted(self.records, 'record')}: {', '.join(filter(None, parts))}"
        return f"{text}; {counted(self.held_keys, 'key')} held by a case" if self.held_keys else text
