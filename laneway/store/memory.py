"""The ledger's twin in memory: `LedgerStore` over dictionaries, for simulations and the Harness.

Written apart from `ledger`, so that each checks the other under the one contract suite; of its bytes
it knows the changelog's only, since those travel. It adds what only a simulation can ask for: the
crash, with and without what was not synced.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from laneway.errors import LedgerError
from laneway.lanes.case import Case
from laneway.lanes.effect import FINISHED, Effect
from laneway.lanes.forward import Forward
from laneway.lanes.lane import Lane, Parked, ParkedKey
from laneway.lanes.record import Channel
from laneway.lanes.view import Entry, Meta, Opening, PutCase, PutEffect, PutLane, PutParked
from laneway.store.changes import encode_cycle, read_entry
from laneway.store.port import Change, ChangelogMark, LedgerStats

_Place = tuple[int, int]
_K = TypeVar("_K")
_V = TypeVar("_V")


class _State:
    """All that a store holds. Values are frozen and shared; only the containers are copied."""

    def __init__(self) -> None:
        self.effects: dict[str, Effect] = {}
        self.lanes: dict[str, Lane] = {}
        self.parked: dict[str, dict[_Place, Parked]] = {}
        self.cases: dict[str, Case] = {}
        self.outbox: dict[int, Forward] = {}
        self.handed_over: dict[Channel, int] = {}
        self.meta: Meta | None = None
        self.mark: ChangelogMark | None = None

    def copy(self) -> _State:
        twin = _State()
        twin.effects = dict(self.effects)
        twin.lanes = dict(self.lanes)
        twin.parked = {lane: dict(followers) for lane, followers in self.parked.items()}
        twin.cases = dict(self.cases)
        twin.outbox = dict(self.outbox)
        twin.handed_over = dict(self.handed_over)
        twin.meta = self.meta
        twin.mark = self.mark
        return twin

    def put(self, entry: Entry) -> None:
        if isinstance(entry, PutEffect):
            _put(self.effects, entry.effect_key, entry.effect)
        elif isinstance(entry, PutLane):
            _put(self.lanes, entry.lane_id, entry.lane)
        elif isinstance(entry, PutCase):
            _put(self.cases, entry.case_id, entry.case)
        elif isinstance(entry, PutParked):
            lane, *place = entry.key
            followers = self.parked.setdefault(lane, {})
            _put(followers, (place[0], place[1]), entry.parked)
            if not followers:
                del self.parked[lane]

    def take(self, entry: Entry | Meta) -> None:
        if isinstance(entry, Meta):
            self.meta = entry
        else:
            self.put(entry)


_Step = Callable[[_State], None]


class MemoryLedger:
    """A ledger that forgets with the process, or earlier when a simulation says so."""

    def __init__(self) -> None:
        self._durable = _State()
        self._state = _State()
        # What was written since the last sync, to be done again to the durable state by the next.
        self._unsynced: list[_Step] = []
        self._next_outbox = 1
        # What a crash of the process leaves while a restore is under way; None at other times.
        self._unlogged_since: _State | None = None
        self._lock = threading.Lock()
        self._closed = False

    # --- the reading half -----------------------------------------------------------------------

    def effects(self, keys: Sequence[str]) -> list[Effect | None]:
        """The effects of these keys, in the order asked."""
        found = self._open().effects
        return [found.get(key) for key in keys]

    def lanes(self, ids: Sequence[str]) -> list[Lane | None]:
        """The lanes of these ids, in the order asked."""
        found = self._open().lanes
        return [found.get(lane) for lane in ids]

    def parked(self, lane: str, after: tuple[int, int] | None, limit: int) -> list[tuple[ParkedKey, Parked]]:
        """The first followers of a lane beyond (sequence, offset), lowest first."""
        followers = self._open().parked.get(lane, {})
        places = sorted(followers)
        first = 0 if after is None else bisect.bisect_right(places, after)
        return [((lane, *place), followers[place]) for place in places[first : first + limit]]

    def case(self, case_id: str) -> Case | None:
        """One open case."""
        return self._open().cases.get(case_id)

    def cases(self, limit: int = 1000, after: str = "") -> list[Case]:
        """Open cases by ascending case id, those beyond `after`, at most `limit`."""
        found = self._open().cases
        # A store sorts by bytes; UTF-8 keeps the order of code points, by which Python sorts text.
        return [found[name] for name in sorted(name for name in found if name > after)[:limit]]

    def stats(self) -> LedgerStats:
        """Sizes and progress."""
        state = self._open()
        meta = state.meta
        parked = sum(len(followers) for followers in state.parked.values())
        return LedgerStats(
            entries=len(state.effects) + len(state.lanes) + parked + len(state.cases) + len(state.outbox),
            disk_bytes=0,
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
        state = self._open()
        return Opening(
            meta=state.meta,
            handed_over=dict(state.handed_over),
            outbox=[(_outbox_key(counter), state.outbox[counter]) for counter in sorted(state.outbox)],
            lanes_with_parked=sorted(state.parked),
        )

    def changelog_mark(self) -> ChangelogMark | None:
        """How much of the changelog the store holds; None when it never followed one."""
        return self._open().mark

    # --- the writing half -----------------------------------------------------------------------

    def apply(
        self,
        entries: Iterable[Entry],
        meta: Meta,
        outbox: Sequence[Forward],
        cleared: Sequence[bytes] = (),
    ) -> list[bytes]:
        """Store one cycle; see `LedgerStore.apply`."""
        kept = list(entries)
        numbered = list(enumerate(outbox, self._next_outbox))
        gone = [_counter(key) for key in cleared]
        self._next_outbox += len(numbered)

        def step(state: _State) -> None:
            for entry in kept:
                state.put(entry)
            for counter in gone:
                state.outbox.pop(counter, None)
            state.outbox.update(numbered)
            state.meta = meta

        self._write(step)
        return [_outbox_key(counter) for counter, _ in numbered]

    def leave_changelog(self) -> None:
        """Follow no changelog any more; see `LedgerStore.leave_changelog`."""

        def step(state: _State) -> None:
            state.mark = None

        self._write(step)

    def clear_outbox(self, keys: Sequence[bytes]) -> None:
        """Forget published forwards, unsynced; see `LedgerStore.clear_outbox`."""
        gone = [_counter(key) for key in keys]

        def step(state: _State) -> None:
            for counter in gone:
                state.outbox.pop(counter, None)

        self._write(step)

    def sync(self) -> None:
        """Make durable all that was applied before this call."""
        with self._lock:
            state = self._open()
            for step in self._unsynced:
                step(self._durable)
            self._unsynced.clear()
            if self._unlogged_since is not None:
                self._unlogged_since = state.copy()

    def note_handed_over(self, marks: Mapping[Channel, int]) -> None:
        """Remember, unsynced, that handlers may have seen these offsets. Never lowers a mark."""
        noted = dict(marks)

        def step(state: _State) -> None:
            for channel, offset in noted.items():
                state.handed_over[channel] = max(offset, state.handed_over.get(channel, -1))

        self._write(step)

    def expire(self, before_ms: int, limit: int) -> int:
        """Forget finished effects last changed before `before_ms`; see `LedgerStore.expire`."""
        old = self.expired(before_ms, limit)

        def step(state: _State) -> None:
            for key in old:
                state.effects.pop(key, None)

        self._write(step)
        return len(old)

    def changes(self, entries: Iterable[Entry], meta: Meta, expired: Sequence[str] = ()) -> list[Change]:
        """A cycle as changelog entries, the meta entry last; see `LedgerStore.changes`."""
        return encode_cycle(entries, meta, expired)

    def apply_changes(self, changes: Sequence[Change], mark: ChangelogMark) -> None:
        """Store committed changelog entries and how far they go; see `LedgerStore.apply_changes`."""
        self._open()
        entries = [read_entry(key, data) for key, data in changes]

        def step(state: _State) -> None:
            for entry in entries:
                state.take(entry)
            state.mark = mark

        self._write(step)

    def begin_restore(self) -> None:
        """From here to `end_restore` a crash of the process forgets what was applied since the last sync."""
        self._unlogged_since = self._open().copy()

    def end_restore(self) -> None:
        """Make durable what was restored; see `LedgerStore.end_restore`."""
        self.sync()
        self._unlogged_since = None

    def expired(self, before_ms: int, limit: int) -> list[str]:
        """Keys of finished effects last changed before `before_ms`; see `LedgerStore.expired`."""
        old = sorted(
            (effect.changed_ms, key)
            for key, effect in self._open().effects.items()
            if effect.state in FINISHED and effect.changed_ms < before_ms
        )
        return [key for _, key in old[: max(0, limit)]]

    def close(self) -> None:
        """Sync and let go. Twice is once."""
        if not self._closed:
            self.sync()
            self._closed = True

    # --- for simulations ------------------------------------------------------------------------

    def durable(self) -> MemoryLedger:
        """What a reopening after a loss of power would see; this ledger goes on."""
        return _reopened(self._durable.copy())

    def crash(self, *, lose_unsynced: bool) -> MemoryLedger:
        """End this ledger as a crash would, and reopen it.

        Args:
            lose_unsynced: the machine lost power. False: only the process was killed, and the
                operating system had every write already.
        """
        state = self._durable if lose_unsynced else self._unlogged_since or self._state
        self._closed = True
        return _reopened(state.copy())

    def _write(self, step: _Step) -> None:
        with self._lock:
            step(self._open())
            self._unsynced.append(step)

    def _open(self) -> _State:
        if self._closed:
            raise LedgerError("the ledger is closed")
        return self._state


def _reopened(state: _State) -> MemoryLedger:
    ledger = MemoryLedger()
    ledger._durable = state
    ledger._state = state.copy()
    ledger._next_outbox = max(state.outbox, default=0) + 1
    return ledger


def _put(into: dict[_K, _V], key: _K, value: _V | None) -> None:
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value


def _outbox_key(counter: int) -> bytes:
    return b"o" + counter.to_bytes(8, "big")


def _counter(key: bytes) -> int:
    return int.from_bytes(key[1:], "big")
