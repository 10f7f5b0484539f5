"""The state directory in memory: one ledger and one lock per partition, shared by a machine's processes.

A killed process loses its locks and nothing that it wrote, but for a restore under way; a loss of power takes
what was not synced, or the end of it. Each
owner gets its own handle: it dies with its process, and fails when the plan says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Protocol

from laneway.errors import LedgerError, LedgerLockedError
from laneway.lanes.case import Case
from laneway.lanes.effect import Effect
from laneway.lanes.forward import Forward
from laneway.lanes.lane import Lane, Parked, ParkedKey
from laneway.lanes.record import Channel
from laneway.lanes.view import Entry, Meta, Opening
from laneway.store.memory import MemoryLedger, _State
from laneway.store.port import Change, ChangelogMark, LedgerStats


class Host(Protocol):
    """The process that opens ledgers."""

    @property
    def is_dead(self) -> bool:
        """Whether it has ended."""
        ...

    def pulse(self, act: str) -> None:
        """An act of the process: it may end right here."""
        ...

    def note(self, text: str, partition: int) -> None:
        """A line of the event log."""
        ...


Written = Callable[["Handle", Sequence[Entry], Sequence[Forward]], None]
"""Told of each cycle that is about to be written."""

Applied = Callable[["Handle", ChangelogMark | None, ChangelogMark], None]
"""Told of each batch of the changelog that a ledger has taken, with the mark before it and its own."""


class Disk:
    """All ledgers of one machine.

    Attributes:
        failing: by partition, how many of the next writes fail; the rest of the value says whether such a
            write is there all the same.
        is_doomed: its state directory is deleted, the next time that no process of the machine runs.
        memory: goes up when something that handlers may have seen is forgotten.
    """

    def __init__(self, on_write: Written, on_apply: Applied, on_forget: Callable[[int, str], None]) -> None:
        self.ledgers: dict[int, MemoryLedger] = {}
        self.holders: dict[int, Handle] = {}
        self.failing: dict[int, bool] = {}
        self.on_write = on_write
        self.on_apply = on_apply
        self.on_forget = on_forget
        self.is_doomed = False
        self.memory = 0
        self.slots: dict[int, Host] = {}

    def exists(self, partition: int) -> bool:
        """Whether a store was ever made."""
        return partition in self.ledgers

    def open(self, partition: int, host: Host) -> Handle:
        """Open and lock a ledger.

        Raises:
            LedgerLockedError: somebody has it.
        """
        host.pulse("open")
        if partition in self.holders:
            raise LedgerLockedError("locked")
        if partition not in self.ledgers:
            self.ledgers[partition] = MemoryLedger()
        # A store that is opened writes what its log held into files, and syncs them.
        self.ledgers[partition].sync()
        handle = self.holders[partition] = Handle(self, partition, host)
        host.note("opens the ledger", partition)
        return handle

    def free(self, handle: Handle) -> None:
        """A lock goes, with its holder or because it let go."""
        if self.holders.get(handle.partition) is handle:
            del self.holders[handle.partition]

    def lose_process(self, host: Host) -> None:
        """A process was killed: its locks are free, its writes are in the operating system."""
        for handle in list(self.holders.values()):
            if handle.host is host:
                self.free(handle)
                ledger = self.ledgers[handle.partition]
                if ledger._unlogged_since is not None:  # it was being restored, past its log
                    self.ledgers[handle.partition] = ledger.crash(lose_unsynced=False)

    def lose_power(self, random: Random | None) -> None:
        """What was not synced is gone: all of it, or by chance the end of it, as it was written."""
        self.holders.clear()
        self.memory += 1
        for partition, ledger in self.ledgers.items():
            if random is not None and ledger._unlogged_since is None:
                del ledger._unsynced[random.randint(0, len(ledger._unsynced)) :]
                ledger.sync()
            self.ledgers[partition] = ledger.crash(lose_unsynced=True)

    def move_aside(self, partition: int) -> None:
        """A store that is not to be trusted goes out of the way."""
        assert partition not in self.holders, "moved aside while it is open"
        self.memory += 1
        self.ledgers.pop(partition, None)

    def forget(self) -> None:
        """Somebody deletes the state directory."""
        self.is_doomed = False
        self.memory += 1
        self.ledgers.clear()

    def seen(self, partition: int) -> _State:
        """What a reader sees now, synced or not."""
        ledger = self.ledgers.get(partition)
        return ledger._state if ledger is not None else _EMPTY

    def durable(self, partition: int) -> _State:
        """What a loss of power would leave."""
        ledger = self.ledgers.get(partition)
        return ledger._durable if ledger is not None else _EMPTY


_EMPTY = _State()


class Handle:
    """One owner's open ledger: `LedgerStore` that dies with its process."""

    def __init__(self, disk: Disk, partition: int, host: Host) -> None:
        self._disk = disk
        self._ledger = disk.ledgers[partition]
        self.partition = partition
        self.host = host
        self._closed = False

    @property
    def state(self) -> _State:
        """What is in it now."""
        return self._ledger._state

    def _mine(self) -> MemoryLedger:
        if self._closed:
            raise LedgerError("the disk refused: the ledger is closed")
        return self._ledger

    def effects(self, keys: Sequence[str]) -> list[Effect | None]:
        """See `LedgerView`."""
        return self._mine().effects(keys)

    def lanes(self, ids: Sequence[str]) -> list[Lane | None]:
        """See `LedgerView`."""
        return self._mine().lanes(ids)

    def parked(self, lane: str, after: tuple[int, int] | None, limit: int) -> list[tuple[ParkedKey, Parked]]:
        """See `LedgerView`."""
        return self._mine().parked(lane, after, limit)

    def case(self, case_id: str) -> Case | None:
        """See `LedgerView`."""
        return self._mine().case(case_id)

    def cases(self, limit: int = 1000, after: str = "") -> list[Case]:
        """See `LedgerReading`."""
        return self._mine().cases(limit, after)

    def stats(self) -> LedgerStats:
        """See `LedgerReading`."""
        return self._mine().stats()

    def opening(self) -> Opening:
        """See `LedgerStore`."""
        self.host.pulse("opening")
        return self._mine().opening()

    def apply(
        self,
        entries: Iterable[Entry],
        meta: Meta,
        outbox: Sequence[Forward],
        cleared: Sequence[bytes] = (),
    ) -> list[bytes]:
        """See `LedgerStore`."""
        self.host.pulse("apply")
        kept = list(entries)
        failing = self._disk.failing.pop(self.partition, None)
        if failing is not True:
            self._disk.on_write(self, kept, outbox)
        if failing is not None:
            if not failing:
                self._mine().apply(kept, meta, outbox, cleared)
            raise LedgerError("the disk refused a write")
        keys = self._mine().apply(kept, meta, outbox, cleared)
        self.host.pulse("applied")
        return keys

    def clear_outbox(self, keys: Sequence[bytes]) -> None:
        """See `LedgerStore`."""
        self.host.pulse("clear")
        self._mine().clear_outbox(keys)

    def sync(self) -> None:
        """See `LedgerStore`."""
        if self._disk.failing.pop(self.partition, None) is not None:
            raise LedgerError("the disk refused a sync")
        self._mine().sync()

    def note_handed_over(self, marks: Mapping[Channel, int]) -> None:
        """See `LedgerStore`."""
        self.host.pulse("note")
        self._mine().note_handed_over(marks)

    def expire(self, before_ms: int, limit: int) -> int:
        """See `LedgerStore`."""
        before = set(self._mine()._state.effects)
        count = self._mine().expire(before_ms, limit)
        if count:
            for key in before - set(self._mine()._state.effects):
                self._disk.on_forget(self.partition, key)
        return count

    def changes(self, entries: Iterable[Entry], meta: Meta, expired: Sequence[str] = ()) -> list[Change]:
        """See `LedgerStore`."""
        return self._mine().changes(entries, meta, expired)

    def apply_changes(self, changes: Sequence[Change], mark: ChangelogMark) -> None:
        """See `LedgerStore`."""
        self.host.pulse("apply changes")
        failing = self._disk.failing.pop(self.partition, None)
        if failing is not True:
            before = self._mine().changelog_mark()
            self._mine().apply_changes(changes, mark)
            self._disk.on_apply(self, before, mark)
        if failing is not None:
            raise LedgerError("the disk refused a write")
        self.host.pulse("changes applied")

    def changelog_mark(self) -> ChangelogMark | None:
        """See `LedgerStore`."""
        return self._mine().changelog_mark()

    def begin_restore(self) -> None:
        """See `LedgerStore`."""
        self.host.pulse("begin restore")
        self._mine().begin_restore()

    def end_restore(self) -> None:
        """See `LedgerStore`."""
        self.host.pulse("end restore")
        self._mine().end_restore()

    def expired(self, before_ms: int, limit: int) -> list[str]:
        """See `LedgerStore`."""
        return self._mine().expired(before_ms, limit)

    def close(self) -> None:
        """See `LedgerStore`."""
        if self.host.is_dead or self._closed:
            return
        self._ledger.sync()
        self._closed = True
        self._disk.free(self)
        self.host.note("closes the ledger", self.partition)
