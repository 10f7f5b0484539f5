"""The entries of a store on this machine, one by one, beside the worker that owns it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from laneway.store import codec
from laneway.store.reader import LedgerReader

AT_ONCE: Final = 64
"""Entries in memory. Each may be as large as a parked record."""


class EntryReader(LedgerReader):
    """A reader that goes through all entries of a kind."""

    def entries(self, prefixes: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of all entries whose key begins with one of the prefixes, in their order."""
        for prefix in prefixes:
            first = prefix
            while page := self._store.scan(first, codec.end_of(prefix), AT_ONCE):
                yield from page
                first = page[-1][0] + b"\0"
