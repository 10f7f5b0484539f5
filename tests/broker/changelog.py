"""The changelog of a group's ledgers, read back from its topic: what a new owner would get to know.

The committed records of a partition, one by one, are what its ledger is; whatever a store on a disk holds
must be the same as far as it goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import Message

from laneway.lanes.record import keyed_lane
from laneway.store import codec
from laneway.store.memory import MemoryLedger
from laneway.store.port import ChangelogMark
from laneway.store.state_dir import StateDir
from tests.broker.cluster import Cluster, position_of
from tests.broker.journal_checks import Ledger, Ledgers

Entries = Mapping[int, Sequence[Message]]
"""Committed changelog records by partition, in order."""


def read_changelog(cluster: Cluster, topic: str) -> Entries:
    """All committed records of a changelog topic."""
    entries: dict[int, list[Message]] = defaultdict(list)
    for message in cluster.read_topic(topic):
        entries[position_of(message).partition].append(message)
    return entries


def fold(entries: Sequence[Message], below: int | None = None) -> MemoryLedger:
    """The ledger that records of one partition make, up to an offset or all of them."""
    ledger = MemoryLedger()
    taken = [each for each in entries if below is None or position_of(each).offset < below]
    if taken:
        changes = [(each.key() or b"", each.value()) for each in taken]
        ledger.apply_changes(changes, ChangelogMark("", position_of(taken[-1]).offset + 1, 0))
    return ledger


def writers_of(entries: Sequence[Message]) -> list[str]:
    """Who wrote each cycle of one partition, in order: a name for each start of a process."""
    return [codec.decode_meta(each.value() or b"").writer for each in entries if each.key() == codec.META_KEY]


def ledgers_of(entries: Entries, effect_keys: Sequence[str], sequence_keys: Sequence[str]) -> Ledgers:
    """What the ledgers of all partitions hold of these, by the changelog."""
    found = Ledgers()
    for records in entries.values():
        found.take(fold(records), effect_keys, sequence_keys)
    return found


def check_stores(
    state_dir: Path, source: str, entries: Entries, effect_keys: Sequence[str], sequence_keys: Sequence[str]
) -> int:
    """Every store is the fold of the committed changelog up to its own position, never ahead (invariant 9).

    Returns:
        How many stores there were.
    """
    state = StateDir.inspect(state_dir)
    stores = [partition for topic, partition in state.list_stores() if topic == source]
    for partition in stores:
        with state.read_store(source, partition) as store:
            mark = store.changelog_mark()
            # Without a mark it was left before it had followed anything, and has to be empty.
            told = fold(entries.get(partition, ()), mark.next_offset if mark is not None else 0)
            of_store, of_topic = (_content(each, effect_keys, sequence_keys) for each in (store, told))
            for name, value in of_topic.items():
                assert of_store[name] == value, f"{state_dir}, {source}-{partition} at {mark}: {name} differ"
    return len(stores)


def _content(ledger: Ledger, effect_keys: Sequence[str], sequence_keys: Sequence[str]) -> dict[str, object]:
    effects = zip(effect_keys, ledger.effects(effect_keys), strict=True)
    ids = [keyed_lane(key) for key in sequence_keys]
    opening = ledger.opening()
    return {
        "meta entries": opening.meta,
        "effects": {key: effect for key, effect in effects if effect is not None},
        "lanes": {key: lane for key, lane in zip(ids, ledger.lanes(ids), strict=True) if lane is not None},
        "parked records": {
            key: parked
            for lane in opening.lanes_with_parked
            for key, parked in ledger.parked(lane, None, 1_000_000)
        },
        "cases": ledger.cases(),
    }
