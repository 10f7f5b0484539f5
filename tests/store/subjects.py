"""The two ledgers under the contract suite, any entries to feed them, and all that can be seen of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from hypothesis import strategies as st

from laneway.lanes.effect import EffectState
from laneway.lanes.lane import Lane
from laneway.lanes.view import Entry, PutCase, PutEffect, PutLane, PutParked
from laneway.store.ledger import Ledger
from laneway.store.memory import MemoryLedger
from laneway.store.port import LedgerStore
from tests.store.builders import IDENTITY, case, effect, parked

# Lanes whose bytes begin, contain or end each other, hold NUL and 0xff-like bytes, or none at all.
TRICKY_LANES = ["", "k", "ka", "kab", "kb", "k\x00", "ka\x00", "k\x00a", "ké", "k\U0010ffff", "k" * 300]

_lanes = st.sampled_from(TRICKY_LANES)
ANY_ENTRY: st.SearchStrategy[Entry] = st.one_of(
    st.builds(
        PutEffect,
        st.text(max_size=3),
        st.none() | st.builds(effect, st.sampled_from(EffectState), changed_ms=st.integers(0, 50)),
    ),
    st.builds(PutLane, _lanes, st.none() | st.builds(Lane, st.integers(0, 9))),
    st.builds(
        PutParked,
        st.tuples(_lanes, st.integers(0, 4) | st.just(2**63 - 1), st.integers(0, 3)),
        st.none() | st.builds(parked),
    ),
    st.builds(PutCase, st.sampled_from("abc"), st.none() | st.builds(case)),
)


def contents(ledger: LedgerStore, effect_keys: Iterable[str]) -> object:
    """All that the rules could ask, given the effect keys that were ever written."""
    keys = sorted(effect_keys)
    opening = ledger.opening()
    return (
        dict(zip(keys, ledger.effects(keys), strict=True)),
        ledger.lanes(TRICKY_LANES),
        [ledger.parked(lane, after, 3) for lane in TRICKY_LANES for after in (None, (1, 1))],
        ledger.cases(),
        opening.meta,
        sorted(opening.lanes_with_parked),
    )


class Subject(Protocol):
    """A ledger under test."""

    ledger: LedgerStore

    def reopen(self) -> LedgerStore:
        """Close in order and open again."""
        ...

    def end(self) -> None:
        """Let go of everything."""
        ...


class RocksSubject:
    """The ledger over RocksDB."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger: LedgerStore = Ledger.open(path, IDENTITY)

    def reopen(self) -> LedgerStore:
        self.ledger.close()
        self.ledger = Ledger.open(self.path, IDENTITY)
        return self.ledger

    def end(self) -> None:
        self.ledger.close()


class MemorySubject:
    """The twin."""

    def __init__(self) -> None:
        self.memory = MemoryLedger()
        self.ledger: LedgerStore = self.memory

    def reopen(self) -> LedgerStore:
        self.memory.close()
        self.memory = self.memory.durable()
        self.ledger = self.memory
        return self.ledger

    def end(self) -> None:
        self.memory.close()
