"""A Kafka in memory: logs with holes, and a group coordinator for both protocols.

Kept apart: what a log holds, who is in the group, which offsets are committed and by whom that was allowed.
Transactions are the `coordinator`'s; here is what they are to a log. Clients are in `clients`, `producers`
and `readers`.

Boundary: it knows topics, members and offsets, and nothing of Laneway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from confluent_kafka import KafkaError

Place = tuple[str, int]
"""(topic, partition)"""


class Stored(NamedTuple):
    """One record as a log keeps it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class Transaction:
    """One transaction of one producer, as coordinator and logs know it.

    Attributes:
        producer, who: the transactional id, and the start of the process that had it.
        places: the logs that it wrote to, and where there its first record stands.
        offsets, notes: of the group, that become true with it; and what is noted beside them.
        is_committed: None while nobody has decided.
        unmarked: what has not heard of the decision yet: logs, and the group under `OFFSETS`.
    """

    __slots__ = ("began_ms", "is_committed", "notes", "offsets", "places", "producer", "unmarked", "who")

    def __init__(self, producer: str, who: int, began_ms: int) -> None:
        self.producer = producer
        self.who = who
        self.began_ms = began_ms
        self.places: dict[Place, int] = {}
        self.offsets: dict[Place, int] = {}
        self.notes: dict[Place, str] = {}
        self.is_committed: bool | None = None
        self.unmarked: list[Place] = []


OFFSETS: Place = ("__consumer_offsets", 0)


class Log:
    """One partition of one topic. None is an offset without a record: a marker, or compacted away."""

    def __init__(self) -> None:
        self.start = 0
        self.compacted_below = 0
        self.records: list[Stored | None] = []
        self._horizons: dict[int, int] = {}
        self._open: dict[Transaction, int] = {}
        self._of: dict[int, Transaction] = {}
        self._written: dict[Transaction, list[int]] = {}

    @property
    def end(self) -> int:
        """The high watermark."""
        return len(self.records)

    @property
    def stable(self) -> int:
        """The last stable offset: nothing below it belongs to a transaction without a marker."""
        return min(self._open.values()) if self._open else len(self.records)

    def append(self, record: Stored | None, transaction: Transaction | None = None) -> int:
        """Store a record, or only use up an offset."""
        offset = len(self.records)
        self.records.append(record)
        if transaction is not None:
            self._of[offset] = transaction
            self._open.setdefault(transaction, offset)
            self._written.setdefault(transaction, []).append(offset)
        return offset

    def mark(self, transaction: Transaction) -> None:
        """The marker that ends a transaction here; it takes an offset."""
        self._open.pop(transaction, None)
        self.records.append(None)

    def of(self, transaction: Transaction) -> list[tuple[int, Stored]]:
        """The records of one transaction."""
        found = []
        for offset in self._written.get(transaction, ()):
            record = self.records[offset]
            if record is not None:
                found.append((offset, record))
        return found

    def committed(self, offset: int) -> Stored | None:
        """What a reader of committed records sees there."""
        transaction = self._of.get(offset)
        if transaction is not None and not transaction.is_committed:
            return None
        return self.records[offset]

    def compact_changes(self, now_ms: int, keep_tombstones_ms: int) -> None:
        """Log compaction: the last committed value of each key stays.

        A tombstone stays for a while from the first pass that meets it: who has read what it deletes, which
        that pass removes, has as long to read on.
        """
        seen: set[bytes | None] = set()
        self.compacted_below = self.stable
        # From the very first: what is deleted for a while is compacted with the rest.
        for offset in range(self.stable - 1, -1, -1):
            record = self.committed(offset)
            if record is None:
                self.records[offset] = None
                continue
            is_old = record.value is None and now_ms > self._horizons.setdefault(
                offset, now_ms + keep_tombstones_ms
            )
            if is_old or record.key in seen:
                self.records[offset] = None
            seen.add(record.key)

    def compact(self, below: int) -> list[int]:
        """Take away the records below an offset that a later one of the same key replaces."""
        seen: set[bytes | None] = set()
        gone = []
        for offset in range(len(self.records) - 1, self.start - 1, -1):
            record = self.records[offset]
            if record is None:
                continue
            if record.key is not None and record.key in seen and offset < below:
                self.records[offset] = None
                gone.append(offset)
            seen.add(record.key)
        return gone

    def retain_from(self, start: int) -> list[int]:
        """Retention deletes the beginning; returns the offsets that held records."""
        gone = [offset for offset in range(self.start, start) if self.records[offset] is not None]
        for offset in gone:
            self.records[offset] = None
        self.start = max(self.start, start)
        return gone


class Member:
    """One member of the group, as the coordinator knows it.

    Attributes:
        generation: the generation, or member epoch, that its commits carry.
        owned: source partitions that it was given and has not given back.
    """

    def __init__(self, ident: int) -> None:
        self.ident = ident
        self.generation = 0
        self.owned: set[int] = set()


_NOTHING: set[int] = set()


class Group:
    """The coordinator of one group over the partitions of one source.

    `classic` is eager: with each change of members all give everything back, then a new generation is dealt.
    `consumer` is incremental: each member gives back what it shall not keep, and gets what is free.

    Args:
        on_commit: called as a commit is about to be believed: (member, place, old offset, new offset).
    """

    def __init__(
        self,
        protocol: str,
        partitions: int,
        on_commit: Callable[[int, Place, int | None, int], None],
    ) -> None:
        self.incremental = protocol == "consumer"
        self._partitions = partitions
        self._on_commit = on_commit
        self.generation = 0
        self.members: dict[int, Member] = {}
        self.committed: dict[Place, int] = {}
        self.notes: dict[Place, str] = {}
        self._joining = False
        self._joined: set[int] = set()
        self._targets: dict[int, set[int]] = {}

    # -- membership

    def join(self, ident: int) -> Member:
        """A new member."""
        member = self.members[ident] = Member(ident)
        self._changed()
        return member

    def leave(self, ident: int) -> None:
        """A member says goodbye, or its session has ended: what it holds is free."""
        if self.members.pop(ident, None) is not None:
            self._joined.discard(ident)
            self._changed()

    def has(self, member: Member) -> bool:
        """Whether this very membership still counts."""
        return self.members.get(member.ident) is member

    def to_give_back(self, member: Member) -> set[int] | None:
        """What a member must give back now; None when nothing is asked of it."""
        if self.incremental:
            mine = self._target_of(member)
            return (member.owned - mine) or None
        if self._joining and member.ident not in self._joined:
            return set(member.owned)
        return None

    def gave_back(self, member: Member, partitions: Iterable[int]) -> None:
        """A member has let go; under the eager protocol it also waits for the new generation."""
        member.owned -= set(partitions)
        if self.incremental:
            self._settle_epoch(member)
        elif self._joining and self.has(member):
            self._joined.add(member.ident)
            self._deal_when_complete()

    def to_take(self, member: Member) -> set[int] | None:
        """What a member gets now; None when there is no news for it. The member owns it from here on."""
        if self.incremental:
            taken = {p for other in self.members.values() for p in other.owned}
            free = self._target_of(member) - taken
            member.owned |= free
            self._settle_epoch(member)
            return free or None
        if self._joining or member.generation == self.generation:
            return None
        member.generation = self.generation
        member.owned = set(self._target_of(member))
        return set(member.owned)

    @property
    def is_waiting(self) -> bool:
        """Whether an eager rebalance waits for members."""
        return self._joining

    def expel_the_late(self) -> list[int]:
        """The rebalance timeout: members that have not joined again are out."""
        late = [ident for ident in self.members if ident not in self._joined] if self._joining else []
        for ident in late:
            self.leave(ident)
        return late

    # -- offsets

    def commit(self, member: Member, generation: int, offsets: Iterable[tuple[Place, int]]) -> int | None:
        """Believe a commit, or answer with the code of the error that refuses it."""
        if not self.has(member):
            return KafkaError.UNKNOWN_MEMBER_ID
        if self.incremental:
            if generation != member.generation:
                return KafkaError.STALE_MEMBER_EPOCH
        elif generation != self.generation:
            return KafkaError.ILLEGAL_GENERATION
        elif self._joining and member.ident in self._joined:
            return KafkaError.REBALANCE_IN_PROGRESS
        for place, offset in offsets:
            self._on_commit(member.ident, place, self.committed.get(place), offset)
            self.committed[place] = offset
        return None

    def refusal(self, member: Member | None, generation: int) -> int | None:
        """Why offsets in a transaction are refused; None when they are not.

        While a rebalance is being prepared they are taken, as a broker does: the generation is still the old.
        They are taken as well from one that names no member: that fences nothing.
        """
        if member is None:
            return None
        if not self.has(member):
            return KafkaError.UNKNOWN_MEMBER_ID
        current = member.generation if self.incremental else self.generation
        return KafkaError.ILLEGAL_GENERATION if generation != current else None

    # -- behind it

    def _changed(self) -> None:
        if self.incremental:
            self.generation += 1
            self._deal()
            for member in self.members.values():
                self._settle_epoch(member)
            return
        self._joining = bool(self.members)
        self._joined &= set(self.members)
        self._deal_when_complete()

    def _deal_when_complete(self) -> None:
        if self._joining and self._joined and self._joined == set(self.members):
            self.generation += 1
            self._joining = False
            self._joined = set()
            self._deal()

    def _deal(self) -> None:
        names = sorted(self.members)
        # Dealt from another end each time, so that partitions really move.
        self._targets = {name: set() for name in names}
        for p in range(self._partitions if names else 0):
            self._targets[names[(p + self.generation) % len(names)]].add(p)

    def _target_of(self, member: Member) -> set[int]:
        """Not to be changed."""
        return self._targets.get(member.ident, _NOTHING) if self.has(member) else _NOTHING

    def _settle_epoch(self, member: Member) -> None:
        # As soon as it has given back what it shall not keep; what it waits for makes no difference.
        if self.has(member) and member.owned <= self._target_of(member):
            member.generation = self.generation
