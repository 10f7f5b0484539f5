"""The ledger as the rules see it: what is stored, with what is settled but not committed laid over.

Between a settlement and its commit only memory knows of it. This is that memory, and the
counters that go into the meta entry. Reads go through `LedgerView` in batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from laneway.lanes.case import Case
from laneway.lanes.effect import Effect
from laneway.lanes.lane import HoldKind, Lane, Parked, ParkedKey
from laneway.lanes.record import Record
from laneway.lanes.view import Entry, LedgerView, Opening, PutCase, PutEffect

Known = dict[str, Effect | None]
"""Effects read for one round of judging; a key that was not read is absent."""


class Overlay:
    """Uncommitted effects and cases over a ledger, and the partition's running counts.

    Lanes are not here: a lane that changed stays in memory, with its state, until it is committed.
    """

    def __init__(self, view: LedgerView, opening: Opening) -> None:
        self._view = view
        self._effects: dict[str, tuple[Effect | None, int]] = {}
        self._cases: dict[str, Case] = {}
        meta = opening.meta
        self.open_cases = meta.open_cases if meta is not None else 0
        self.parked_records = meta.parked if meta is not None else 0
        self.parked_bytes = meta.parked_bytes if meta is not None else 0

    def read_effects(self, records: Iterable[Record], known: Known) -> None:
        """Add to `known` what the ledger says of these records' effects, in one read."""
        mine = self._effects
        asked = [key for record in records if (key := record.effect_key) not in known and key not in mine]
        if asked:
            asked = list(dict.fromkeys(asked))
            known.update(zip(asked, self._view.effects(asked), strict=True))

    def effect(self, effect_key: str, known: Known) -> Effect | None:
        """Where an effect stands now.

        Raises:
            KeyError: the key was not read; absent must never pass for unknown.
        """
        mine = self._effects.get(effect_key)
        return mine[0] if mine is not None else known[effect_key]

    def is_committed(self, effect_key: str) -> bool:
        """False while what we know of an effect could still be lost in a crash."""
        return effect_key not in self._effects

    def lanes(self, ids: Sequence[str]) -> Sequence[Lane | None]:
        """Stored lanes, in the order asked."""
        return self._view.lanes(ids)

    def parked(
        self, lane: str, after: tuple[int, int] | None, limit: int
    ) -> Sequence[tuple[ParkedKey, Parked]]:
        """Stored followers beyond a cursor, lowest first."""
        return self._view.parked(lane, after, limit)

    def case(self, case_id: str) -> Case | None:
        """One open case."""
        return self._cases.get(case_id) or self._view.case(case_id)

    def gap_healed_by(self, record: Record, lane: Lane) -> Case | None:
        """The gap case that this record's settlement closes."""
        hold = lane.hold
        if hold is None or hold.kind is not HoldKind.GAP or hold.sequence != record.sequence:
            return None
        return self.case(hold.case_id)

    def book(self, entries: Iterable[Entry], cycle: int) -> None:
        """Lay entries over the ledger until their cycle is committed."""
        for entry in entries:
            if type(entry) is PutEffect:
                self._effects[entry.effect_key] = (entry.effect, cycle)
            elif type(entry) is PutCase:
                if entry.case is None:
                    self.open_cases -= 1
                    self._cases.pop(entry.case_id, None)
                else:
                    self.open_cases += 1
                    self._cases[entry.case_id] = entry.case

    def book_parked(self, before: Lane, after: Lane) -> None:
        """Count what a lane's change did to the parked followers."""
        self.parked_records += after.parked - before.parked
        self.parked_bytes += after.parked_bytes - before.parked_bytes

    def book_later(self, entries: Iterable[Entry], cycle: int) -> None:
        """Entries that were laid over the ledger before become durable with another cycle."""
        for entry in entries:
            if type(entry) is PutEffect:
                self._effects[entry.effect_key] = (entry.effect, cycle)

    def forget(self, entries: Iterable[Entry], cycle: int) -> None:
        """A cycle is committed: drop what the ledger now knows itself."""
        for entry in entries:
            if type(entry) is PutEffect:
                mine = self._effects.get(entry.effect_key)
                if mine is not None and mine[1] <= cycle:
                    del self._effects[entry.effect_key]
            elif type(entry) is PutCase and entry.case is not None:
                self._cases.pop(entry.case_id, None)
