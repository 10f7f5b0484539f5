"""What is true where the changelog is: the fold of all that was ever committed to it.

It follows the decisions of the coordinator, not the logs, so that compaction cannot take anything from it.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict

from laneway.lanes.view import Entry, Meta
from laneway.store.changes import read_entry
from laneway.store.memory import _State
from tests.invariants import Broken
from tests.simulation.broker import Stored

Change = tuple[int, Entry | Meta]


class Changelogs:
    """The truth of each partition."""

    def __init__(self) -> None:
        self._changes: dict[int, list[Change]] = defaultdict(list)
        self._truths: dict[int, _State] = defaultdict(_State)

    def truth(self, partition: int) -> _State:
        """All that is committed."""
        return self._truths[partition]

    def commit(self, partition: int, records: list[tuple[int, Stored]]) -> list[Entry | Meta]:
        """The entries of one transaction become true; returns them."""
        changes = [(offset, read_entry(stored.key or b"", stored.value)) for offset, stored in records]
        entries = [entry for _, entry in changes]
        metas = [entry for entry in entries if isinstance(entry, Meta)]
        if len(metas) != 1 or entries[-1] is not metas[0]:
            raise Broken(
                9, f"{len(metas)} meta entries in a transaction, or not the last", partition=partition
            )
        known = self._changes[partition]
        if known and known[-1][0] > changes[0][0]:
            for change in changes:
                insort(known, change, key=lambda item: item[0])
            self._truths[partition] = self._fold(partition, known[-1][0] + 1)
            return entries
        known.extend(changes)
        for entry in entries:
            self._truths[partition].take(entry)
        return entries

    def at(self, partition: int, next_offset: int) -> _State:
        """What was committed below an offset."""
        known = self._changes[partition]
        if not known or next_offset > known[-1][0]:
            return self._truths[partition]
        return self._fold(partition, next_offset)

    def _fold(self, partition: int, next_offset: int) -> _State:
        state = _State()
        for offset, entry in self._changes[partition]:
            if offset < next_offset:
                state.take(entry)
        return state


def check_fold(partition: int, ledger: _State, fold: _State) -> None:
    """A ledger is the fold of its changelog up to its mark, never ahead and never behind (invariant 9)."""
    for name in ("effects", "lanes", "parked", "cases", "meta"):
        here, there = getattr(ledger, name), getattr(fold, name)
        if here != there:
            raise Broken(
                9, f"the ledger has {here!r} as {name}, its changelog {there!r}", partition=partition
            )
