"""What the consumer may ask of a ledger: reading through `LedgerView`, writing through `LedgerStore`.

Only protocols and the values that cross them. `ledger.Ledger` and `memory.MemoryLedger` implement
the whole of it under one contract suite (tests/store/test_contract.py); `reader.LedgerReader` the
reading half.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from laneway.lanes.case import Case
from laneway.lanes.forward import Forward
from laneway.lanes.record import Channel
from laneway.lanes.view import ChannelMark, Entry, LedgerView, Meta, Opening


class StoreIdentity(msgspec.Struct, frozen=True):
    """Whose ledger a store is. It is marked with this when made and refuses everybody else.

    Attributes:
        topic_id, retry_id: of the source topic and its retry topic, whose offsets the ledger knows. A
            topic that is deleted and made again has another one; "" where the cluster gives none.
    """

    group: str
    topic: str
    partition: int
    topic_id: str = ""
    retry_id: str = ""


Change = tuple[bytes, bytes | None]
"""A key of the ledger and its new value; None deletes it. Also key and value of a changelog record."""


class ChangelogMark(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How much of the changelog a ledger holds: it is the fold of what was committed below this.

    Attributes:
        topic_id: of the changelog topic; "" where the cluster gives none.
        next_offset: of the changelog partition.
        current_ms: epoch ms at which the ledger was last known to hold all that was committed.
    """

    topic_id: str
    next_offset: int
    current_ms: int


class LedgerStats(msgspec.Struct, frozen=True):
    """The size of a ledger and how far it came; cheap to ask for, for display only.

    Attributes:
        entries: RocksDB's estimate of the keys stored, the expiry index among them.
        disk_bytes: files of the store, the write-ahead log included; 0 in memory.
        writer, cycle, written_ms: of the last cycle; "", 0, 0 in a new ledger.
        marks: by channel, how far it is settled.
    """

    entries: int
    disk_bytes: int
    parked: int
    parked_bytes: int
    open_cases: int
    writer: str
    cycle: int
    written_ms: int
    marks: Mapping[Channel, ChannelMark]


class LedgerReading(LedgerView, Protocol):
    """The view of the rules, and what an operator looks at besides."""

    def cases(self, limit: int = 1000, after: str = "") -> list[Case]:
        """Open cases by ascending case id, those beyond `after`, at most `limit`."""
        ...

    def stats(self) -> LedgerStats:
        """Sizes and progress."""
        ...


class LedgerStore(LedgerReading, Protocol):
    """The ledger of one source partition, as its one owner uses it.

    Everything but `sync` belongs to one thread at a time. `sync` may run beside any of it on another
    thread, and `close` waits for it.

    It is written in one of two ways. Where the ledger is the truth (`local`): `apply`, `clear_outbox`,
    `expire`. Where it follows the changelog: `changes` tells what to commit, `apply_changes` takes what
    was committed, by this process or read back, and `expired` what may be forgotten. Notes of the
    process (`note_handed_over`) stay in the store in either case.
    """

    def opening(self) -> Opening:
        """What a new owner must know first: progress, hand-overs, unpublished forwards, parked lanes."""
        ...

    def apply(
        self,
        entries: Iterable[Entry],
        meta: Meta,
        outbox: Sequence[Forward],
        cleared: Sequence[bytes] = (),
    ) -> list[bytes]:
        """Store one cycle, all of it or nothing, without waiting for the disk.

        Args:
            entries: in order; of two entries for one key the later one stands.
            outbox: forwards that are not published yet.
            cleared: outbox keys whose forwards are published.

        Returns:
            The outbox keys given to `outbox`, in its order. They ascend through the life of the
            store, so that oldest first is key order, also after a restart.

        Raises:
            LedgerError: nothing of the cycle is known to be stored; the partition stops.
        """
        ...

    def clear_outbox(self, keys: Sequence[bytes]) -> None:
        """Forget published forwards, unsynced: losing this only sends them again, with the same ids."""
        ...

    def sync(self) -> None:
        """Make durable all that was applied before this call. From any thread; releases the GIL.

        Raises:
            LedgerError: the disk refused, or the ledger is closed.
        """
        ...

    def note_handed_over(self, marks: Mapping[Channel, int]) -> None:
        """Remember, unsynced, that handlers may have seen these offsets. A lower mark changes nothing."""
        ...

    def expire(self, before_ms: int, limit: int) -> int:
        """Forget finished effects last changed before `before_ms`; open ones never go.

        Args:
            limit: index entries looked at in this call, so that it cannot hold up a cycle.

        Returns:
            How many index entries were dealt with; below `limit` there is no more to do now.
        """
        ...

    def changes(self, entries: Iterable[Entry], meta: Meta, expired: Sequence[str] = ()) -> list[Change]:
        """A cycle as changelog entries: one for each key, its last state; the meta entry last.

        Pure encoding: nothing is read or stored.

        Args:
            expired: what `expired` answered; forgotten by tombstones, unless `entries` write it again.
        """
        ...

    def apply_changes(self, changes: Sequence[Change], mark: ChangelogMark) -> None:
        """Store committed changelog entries and how far they go, all of it or nothing, unsynced.

        The batch may begin and end anywhere in the changelog. Applying entries again changes nothing.

        Raises:
            ChangelogFormatError: an entry that this release cannot read, or that does not belong
                in a changelog. Nothing of the batch was stored.
            LedgerError: the store refused; nothing of the batch is known to be stored.
        """
        ...

    def changelog_mark(self) -> ChangelogMark | None:
        """As of the last `apply_changes`; None when there was none."""
        ...

    def leave_changelog(self) -> None:
        """Follow no changelog any more: the store stays on this machine. Durable with the next sync."""
        ...

    def begin_restore(self) -> None:
        """Expect many batches of changes. A crash before `end_restore` may forget the later ones.

        What it leaves, `changelog_mark` says: never entries without their mark or a mark without its entries.
        """
        ...

    def end_restore(self) -> None:
        """Make the restored entries durable; from here on a crash of the process forgets nothing applied."""
        ...

    def expired(self, before_ms: int, limit: int) -> list[str]:
        """Keys of finished effects last changed before `before_ms`, oldest first, at most `limit`.

        They are told again until their tombstones come through `apply_changes`. Ask when no cycle is
        on its way that could write one of them: its tombstone would follow what that cycle wrote.

        Args:
            limit: index entries looked at in this call. Some may be stale, so an answer below the
                limit, or none, does not mean that there is no more.
        """
        ...

    def close(self) -> None:
        """Sync and let go of the store. Twice is once; waits for a `sync` under way."""
        ...
