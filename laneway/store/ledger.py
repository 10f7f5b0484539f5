"""The ledger of one source partition: `LedgerStore` over one RocksDB.

It translates entries to keys and values and back; what an entry means is the business of
`laneway.lanes`, what a byte means of `codec`, how it reaches the disk of `rocks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from laneway.errors import LedgerFormatError, StateDirError
from laneway.lanes.case import Case
from laneway.lanes.effect import FINISHED, Effect
from laneway.lanes.forward import Forward
from laneway.lanes.lane import Lane, Parked, ParkedKey
from laneway.lanes.record import Channel
from laneway.lanes.view import Entry, Meta, Opening
from laneway.store import codec, rocks
from laneway.store.changes import Value, encode_cycle, last_states, read_change
from laneway.store.files import make_private_dir, tree_bytes
from laneway.store.port import Change, ChangelogMark, LedgerStats, StoreIdentity
from laneway.store.rocks import Rocks

_ALL: Final = 2**31
_FRONTS: Final = 1024


class LedgerReads:
    """What can be asked of an open store, primary or secondary."""

    def __init__(self, store: Rocks) -> None:
        self._store = store

    def effects(self, keys: Sequence[str]) -> list[Effect | None]:
        """The effects of these keys, in the order asked."""
        found = self._store.get_many([codec.effect_key(key) for key in keys])
        return [None if data is None else codec.decode_effect(data) for data in found]

    def lanes(self, ids: Sequence[str]) -> list[Lane | None]:
        """The lanes of these ids, in the order asked."""
        found = self._store.get_many([codec.lane_key(lane) for lane in ids])
        return [None if data is None else codec.decode_lane(data) for data in found]

    def parked(self, lane: str, after: tuple[int, int] | None, limit: int) -> list[tuple[ParkedKey, Parked]]:
        """The first followers of a lane beyond (sequence, offset), lowest first."""
        prefix = codec.parked_prefix(lane)
        # A NUL behind a key gives the next possible key.
        first = prefix if after is None else codec.parked_key(lane, *after) + b"\0"
        return self._followers(prefix, first, limit)

    def case(self, case_id: str) -> Case | None:
        """One open case."""
        data = self._store.get(codec.case_key(case_id))
        return None if data is None else codec.decode_case(data)

    def cases(self, limit: int = 1000, after: str = "") -> list[Case]:
        """Open cases by ascending case id, those beyond `after`, at most `limit`."""
        first = codec.case_key(after) + b"\0" if after else codec.CASE
        found = self._store.scan(first, codec.end_of(codec.CASE), limit)
        return [codec.decode_case(data) for _, data in found]

    def stats(self) -> LedgerStats:
        """Sizes and progress."""
        meta = self._meta()
        return LedgerStats(
            entries=self._store.estimated_keys(),
            disk_bytes=tree_bytes(self._store.path),
            parked=meta.parked if meta else 0,
            parked_bytes=meta.parked_bytes if meta else 0,
            open_cases=meta.open_cases if meta else 0,
            writer=meta.writer if meta else "",
            cycle=meta.cycle if meta else 0,
            written_ms=meta.written_ms if meta else 0,
            marks=meta.marks if meta else {},
        )

    def opening(self) -> Opening:
        """What a new owner must know first: progress, hand-overs, unpublished forwards, parked lanes."""
        outbox = self._store.scan(codec.OUTBOX, codec.end_of(codec.OUTBOX), _ALL)
        first_of_lanes = self._store.skip_scan(codec.PARKED, codec.end_of(codec.PARKED), codec.behind_lane)
        return Opening(
            meta=self._meta(),
            handed_over=self._handed_over(),
            outbox=[(key, codec.decode_forward(data)) for key, data in outbox],
            lanes_with_parked=[codec.decode_parked_key(key)[0] for key in first_of_lanes],
        )

    def changelog_mark(self) -> ChangelogMark | None:
        """How much of the changelog the store holds; None when it never followed one."""
        data = self._store.get(codec.CHANGELOG_KEY)
        return None if data is None else codec.decode_changelog_mark(data)

    def identity(self) -> StoreIdentity | None:
        """Whose store this is; None while it has no marker yet.

        Raises:
            StateDirError: its format is unknown to this release.
        """
        data = self._store.get(codec.MARKER_KEY)
        return None if data is None else codec.decode_marker(data, str(self._store.path))

    def _followers(self, prefix: bytes, first: bytes, limit: int) -> list[tuple[ParkedKey, Parked]]:
        found = self._store.scan(first, prefix + b"\xff", limit)
        return [(codec.decode_parked_key(key), codec.decode_parked(data)) for key, data in found]

    def _meta(self) -> Meta | None:
        data = self._store.get(codec.META_KEY)
        return None if data is None else codec.decode_meta(data)

    def _handed_over(self) -> dict[Channel, int]:
        found = self._store.scan(codec.HANDED_OVER, codec.end_of(codec.HANDED_OVER), _ALL)
        return dict(codec.decode_handed_over(key, data) for key, data in found)


class Ledger(LedgerReads):
    """The one owner's ledger. Everything but `sync` belongs to one thread; see `LedgerStore`."""

    def __init__(self, store: Rocks) -> None:
        super().__init__(store)
        self._marks = self._handed_over()
        last = store.last_key(codec.OUTBOX, codec.end_of(codec.OUTBOX))
        self._next_outbox = 1 if last is None else codec.decode_outbox_key(last) + 1
        # Where the next look into the expiry index begins: below lie only the tombstones of earlier
        # looks, which RocksDB would step over one by one.
        self._expiry_from_ms = 0
        # The same for the followers of a lane: the lowest that may exist, by parked prefix. A lane of
        # 100,000 followers is released from the front, and each look would step over all those gone.
        self._fronts: dict[bytes, bytes] = {}
        # Index entries of the effects that `expired` told last, by effect key, to go with their tombstones.
        self._told: dict[bytes, bytes] = {}
        self._logged = True

    @classmethod
    def open(cls, path: Path, identity: StoreIdentity) -> Ledger:
        """Open the store at `path`, or make it there, and lock it.

        Raises:
            LedgerLockedError: it is still in use; wait and try again.
            StateDirError: it is another's ledger, or of an unknown format; nothing was changed.
            LedgerFormatError: it is damaged.
            LedgerError: the system refused.
        """
        make_private_dir(path)
        store = rocks.open_primary(path)
        try:
            _claim(store, identity)
            return cls(store)
        except BaseException:
            store.close()
            raise

    def apply(
        self,
        entries: Iterable[Entry],
        meta: Meta,
        outbox: Sequence[Forward],
        cleared: Sequence[bytes] = (),
    ) -> list[bytes]:
        """Store one cycle in one unsynced write batch; see `LedgerStore.apply`."""
        batch: list[Change] = []
        encode, derive = codec.encode, self._derive
        for key, value in last_states(entries).items():
            batch.append((key, None if value is None else encode(value)))
            derive(batch, key, value)
        batch.extend((key, None) for key in cleared)
        # A failed write burns its numbers; they only have to ascend.
        first = self._next_outbox
        self._next_outbox += len(outbox)
        keys = [codec.outbox_key(first + index) for index in range(len(outbox))]
        batch.extend((key, codec.encode(forward)) for key, forward in zip(keys, outbox, strict=True))
        batch.append((codec.META_KEY, codec.encode(meta)))
        self._store.write(batch, logged=self._logged)
        return keys

    def leave_changelog(self) -> None:
        """Follow no changelog any more; see `LedgerStore.leave_changelog`."""
        self._store.write([(codec.CHANGELOG_KEY, None)])

    def clear_outbox(self, keys: Sequence[bytes]) -> None:
        """Forget published forwards, unsynced; see `LedgerStore.clear_outbox`."""
        self._store.write([(key, None) for key in keys])

    def sync(self) -> None:
        """Make durable all that was applied before this call. From any thread."""
        self._store.sync()

    def note_handed_over(self, marks: Mapping[Channel, int]) -> None:
        """Remember, unsynced, that handlers may have seen these offsets. Never lowers a mark."""
        for channel, offset in marks.items():
            if offset > self._marks.get(channel, -1):
                self._store.put(codec.handed_over_key(channel), codec.encode_handed_over(offset))
                self._marks[channel] = offset

    def expire(self, before_ms: int, limit: int) -> int:
        """Forget finished effects last changed before `before_ms`; see `LedgerStore.expire`."""
        entries, old = self._expiring(before_ms, limit)
        batch: list[Change] = [(index, None) for index in entries]
        batch.extend((codec.effect_key(effect_key), None) for _, effect_key in old)
        if batch:
            self._store.write(batch, logged=self._logged)
        return len(entries)

    def changes(self, entries: Iterable[Entry], meta: Meta, expired: Sequence[str] = ()) -> list[Change]:
        """A cycle as changelog entries, the meta entry last; see `LedgerStore.changes`."""
        return encode_cycle(entries, meta, expired)

    def apply_changes(self, changes: Sequence[Change], mark: ChangelogMark) -> None:
        """Store committed changelog entries in one unsynced batch; see `LedgerStore.apply_changes`."""
        batch, derive = list(changes), self._derive
        for key, data in changes:
            derive(batch, key, read_change(key, data)[1])
        batch.append((codec.CHANGELOG_KEY, codec.encode(mark)))
        self._store.write(batch, logged=self._logged)

    def begin_restore(self) -> None:
        """Spare the write-ahead log until `end_restore`; see `LedgerStore.begin_restore`."""
        self._logged = False

    def end_restore(self) -> None:
        """Flush; from here on every batch is logged. See `LedgerStore.end_restore`."""
        self._store.sync()
        self._logged = True

    def expired(self, before_ms: int, limit: int) -> list[str]:
        """Keys of finished effects last changed before `before_ms`; see `LedgerStore.expired`."""
        entries, old = self._expiring(before_ms, limit)
        self._told = {codec.effect_key(effect_key): index for index, effect_key in old}
        kept = set(self._told.values())
        stale: list[Change] = [(index, None) for index in entries if index not in kept]
        if stale:
            self._store.write(stale, logged=self._logged)
        if old:
            # Those told are met again until their tombstones come.
            self._expiry_from_ms = codec.decode_expiry_key(old[0][0])[0]
        return [effect_key for _, effect_key in old]

    def close(self) -> None:
        """Sync and let go of the store. Twice is once; waits for a `sync` under way."""
        self._store.close()

    def parked(self, lane: str, after: tuple[int, int] | None, limit: int) -> list[tuple[ParkedKey, Parked]]:
        """The first followers of a lane beyond (sequence, offset), lowest first."""
        if after is not None:
            return super().parked(lane, after, limit)
        prefix = codec.parked_prefix(lane)
        found = self._followers(prefix, self._fronts.get(prefix, prefix), limit)
        if len(self._fronts) >= _FRONTS:
            self._fronts.clear()  # hints only: the next look takes longer
        if found:
            self._fronts[prefix] = codec.parked_key(*found[0][0])
        return found

    def _expiring(self, before_ms: int, limit: int) -> tuple[list[bytes], list[tuple[bytes, str]]]:
        """The next index entries below the limit of age, and those of effects that may go, with their keys.

        The others are stale: an effect that moved on has a later entry, or gets one when it finishes.
        """
        if before_ms <= self._expiry_from_ms or limit <= 0:
            return [], []
        first, end = codec.expiry_key(self._expiry_from_ms), codec.expiry_key(before_ms)
        entries = [key for key, _ in self._store.scan(first, end, limit)]
        named = [codec.decode_expiry_key(key) for key in entries]
        effects = self.effects([effect_key for _, effect_key in named])
        self._expiry_from_ms = named[-1][0] if len(entries) == limit else before_ms
        old = [
            (index, effect_key)
            for index, (changed_ms, effect_key), effect in zip(entries, named, effects, strict=True)
            if effect is not None and effect.state in FINISHED and effect.changed_ms == changed_ms
        ]
        return entries, old

    def _derive(self, batch: list[Change], key: bytes, value: Value | None) -> None:
        """Keep what follows from an entry that is to be written: the expiry index and two hints.

        A write that fails after this leaves hints that are too low, which costs time only.
        """
        if isinstance(value, Effect):
            if value.state in FINISHED:
                batch.append((codec.expiry_of(key, value.changed_ms), b""))
                # Lower only when the clock went back.
                self._expiry_from_ms = min(self._expiry_from_ms, value.changed_ms)
        elif isinstance(value, Parked):
            if self._fronts:
                prefix = codec.prefix_of_parked(key)
                if key < self._fronts.get(prefix, b""):
                    self._fronts[prefix] = key
        elif value is None and self._told:
            stale = self._told.pop(key, None)
            if stale is not None:
                batch.append((stale, None))


def _claim(store: Rocks, identity: StoreIdentity) -> None:
    """Mark a new store; refuse one that is another's, of an unknown format, or not a ledger."""
    where = str(store.path)
    data = store.get(codec.MARKER_KEY)
    if data is None:
        if store.scan(b"", b"\xff", 1):
            raise LedgerFormatError(
                "the store has entries but no format marker: damaged, or not made by Laneway",
                where=where,
                mend="restore it from a copy, or move it aside and start with --accept-empty-ledger",
            )
        store.put(codec.MARKER_KEY, codec.encode_marker(identity))
        store.sync()
        return
    owner = codec.decode_marker(data, where)
    if (owner.group, owner.topic, owner.partition) != (identity.group, identity.topic, identity.partition):
        raise StateDirError(
            f"it is the ledger of group {owner.group!r}, {owner.topic} [{owner.partition}], "
            f"not of group {identity.group!r}, {identity.topic} [{identity.partition}]",
            where=where,
            mend="name the state directory of this group, or move the store back where it came from",
        )
    _compare_ids(owner, identity, where)
    known = msgspec.structs.replace(
        owner, topic_id=identity.topic_id or owner.topic_id, retry_id=identity.retry_id or owner.retry_id
    )
    if known != owner:
        store.put(codec.MARKER_KEY, codec.encode_marker(known))
        store.sync()


def _compare_ids(owner: StoreIdentity, identity: StoreIdentity, where: str) -> None:
    """Refuse a ledger whose topics were made anew: its positions would pass for those of other records."""
    for what, theirs, ours in (
        (f"topic {identity.topic}", owner.topic_id, identity.topic_id),
        (f"retry topic of {identity.topic}", owner.retry_id, identity.retry_id),
    ):
        if theirs and ours and theirs != ours:
            raise StateDirError(
                f"the {what} was deleted and made anew since this ledger was begun, so the offsets "
                "that it knows as settled belong to records that are gone",
                where=where,
                mend="find out what the old topic still held; then move this directory aside, so that a new "
                "ledger begins (effects that the old one knows may run again)",
            )
