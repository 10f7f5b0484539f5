"""A changelog written by hand, and state directories on which its partition is opened."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from laneway.consumer.assignment.opening import Opened
from laneway.consumer.assignment.restore import ChangelogOpener
from laneway.consumer.kafka import clients
from laneway.consumer.partition import Partition, State
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import topic_names
from laneway.lanes.forward import Home
from laneway.lanes.record import Channel
from laneway.lanes.view import ChannelMark, Meta, Opening, PutEffect
from laneway.store.memory import MemoryLedger
from laneway.store.port import Change, ChangelogMark, LedgerStore
from laneway.store.state_dir import StateDir
from tests.broker.cluster import Cluster
from tests.store.builders import effect

OPENED_S = 20.0


def cycle(number: int, *keys: str) -> list[Change]:
    """The changelog entries of one cycle in which these effects happened."""
    marks = {Channel.SOURCE: ChannelMark(number)}
    meta = Meta("writer", number, marks, open_cases=0, parked_bytes=0, written_ms=1000)
    return MemoryLedger().changes([PutEffect(key, effect()) for key in keys], meta)


@dataclass
class Scene:
    """A changelog topic of one partition, and state directories on which its partition is opened."""

    settings: Settings
    cluster: Cluster
    directory: Path
    stack: ExitStack
    opened: list[Partition] = field(default_factory=list)
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(4))

    @property
    def source(self) -> str:
        return self.settings.sources[0]

    @property
    def topic(self) -> str:
        return topic_names(self.settings, self.source).ledger

    def create(self, policy: str = "compact", config: Mapping[str, str] | None = None) -> None:
        """Make the topic."""
        self.cluster.create_topic(self.topic, 1, config={"cleanup.policy": policy, **(config or {})})

    def producer(self, name: str = "owner") -> Producer:
        """A transactional producer, ready to begin."""
        made = clients.new_transactional_producer(self.settings, f"laneway-{self.settings.group}-{name}")
        made.init_transactions(30)
        return made

    def begin(self, producer: Producer, changes: Sequence[Change]) -> None:
        """Begin a transaction and have these entries in the log."""
        producer.begin_transaction()
        for key, value in changes:
            producer.produce(self.topic, value, key, 0)
        assert producer.flush(30) == 0

    def write(self, producer: Producer, changes: Sequence[Change]) -> None:
        """One committed transaction."""
        self.begin(producer, changes)
        producer.commit_transaction(30)

    def end(self) -> int:
        """The end of the log, markers and open transactions included."""
        return self.cluster.end_offsets(self.topic)[0]

    def state_dir(self, machine: str = "here") -> StateDir:
        """The state directory of one machine."""
        return StateDir.claim(self.directory / machine, self.settings.group, "cluster")

    def partition(self, committed: int | None = None, *, by_worker: bool = True) -> Partition:
        """An ownership of the source partition, as the assign callback makes it."""
        home = Home(self.settings.group, self.source, 0)
        starts = {Channel.SOURCE: committed or 0, Channel.RETRY: 0, Channel.COMMANDS: 0}
        own = {Channel.SOURCE: committed, Channel.RETRY: None, Channel.COMMANDS: None}
        partition = Partition(home, topic_names(self.settings, self.source), 1, starts, own)
        partition.is_worker_commit = committed is not None and by_worker
        return partition

    def opener(self, machine: str = "here", **options: Any) -> ChangelogOpener:
        """What opens on one machine."""
        options.setdefault("accept_empty_ledger", False)
        return ChangelogOpener(self.settings, self.state_dir(machine), **options)

    def open(
        self,
        partition: Partition | None = None,
        machine: str = "here",
        kept: LedgerStore | None = None,
        **options: Any,
    ) -> Opened:
        """Open within the deadline; the ledger is closed with the test."""
        ledger, opening = self.begin_open(partition, machine, kept, **options).result(OPENED_S)
        self.stack.callback(ledger.close)
        return ledger, opening

    def begin_open(
        self,
        partition: Partition | None = None,
        machine: str = "here",
        kept: LedgerStore | None = None,
        **options: Any,
    ) -> Future[Opened]:
        """Open on another thread."""
        opened = partition or self.partition()
        self.opened.append(opened)
        return self.threads.submit(self.opener(machine, **options).open, opened, kept)

    def close(self) -> None:
        """End what is still being restored."""
        for partition in self.opened:
            partition.state = State.CLOSED
        self.threads.shutdown()

    def stored(self, mark: ChangelogMark, *changes: Change) -> None:
        """Leave a store behind that was closed in this state."""
        ledger = self.state_dir().open_store(self.source, 0)
        ledger.apply_changes([*changes, *cycle(1)], mark)
        ledger.close()

    @property
    def store(self) -> Path:
        """The store of the partition on this machine."""
        return self.state_dir().store_path(self.source, 0)

    def aside(self) -> list[str]:
        """Stores that were moved aside, by name."""
        return sorted(path.name for path in self.store.parent.glob("*.aside-*"))


def keys_of(ledger: LedgerStore, *keys: str) -> list[str]:
    """Those of the effects that the ledger knows."""
    return [key for key, known in zip(keys, ledger.effects(keys), strict=True) if known is not None]


def cycle_of(opening: Opening) -> int | None:
    """The last cycle that the ledger knows."""
    return None if opening.meta is None else opening.meta.cycle


def now_ms() -> int:
    """As the opener sees it."""
    return time.time_ns() // 1_000_000
