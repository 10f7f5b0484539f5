"""What the clients of the fake Kafka share: the cluster they talk to, the process they live in, a message.

Boundary: `broker` and `coordinator` know what a Kafka does; here is what surrounds them, and how well the
network is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import NamedTuple, Protocol

from confluent_kafka import KafkaError

from tests.simulation.broker import Group, Log, Member, Place, Stored, Transaction
from tests.simulation.coordinator import Coordinator, RefusedByCoordinator


class Host(Protocol):
    """The process that a client lives in: where it may die, and whose callbacks may block."""

    @property
    def ident(self) -> int:
        """The number of this start of the process."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether it has ended."""
        ...

    def pulse(self, act: str) -> None:
        """An act of the process: it may end right here."""
        ...

    def serving(self, callback: Callable[[], None]) -> None:
        """Run a rebalance callback."""
        ...

    def note(self, text: str, partition: int) -> None:
        """A line of the event log."""
        ...

    def wait_beside(self, timeout_s: float) -> None:
        """A thread beside the owner's waits: everything else goes on."""
        ...


class Cluster:
    """All logs, the group, and the condition of the network.

    Attributes:
        refuses_writes: every produce fails; commits go on.
        is_calm: nothing fails by itself any more.
        lost_answers: the share of answers to transactional producers that get lost.
        put_away: logs in whose place an empty one stands now.
        late_ends: ends of transactions that still travel: transactional id, epoch, commit.
    """

    def __init__(
        self,
        group: Group,
        random: Random,
        now_ms: Callable[[], int],
        on_decided: Callable[[Transaction], None],
        on_expired: Callable[[Transaction], None],
    ) -> None:
        self.group = group
        self.random = random
        self.now_ms = now_ms
        self.logs: dict[Place, Log] = {}
        self.coordinator = Coordinator(group, self.log, now_ms, random, on_decided, on_expired)
        self.refuses_writes = False
        self.is_calm = False
        self.lost_answers = 0.0
        self.late_ends: list[tuple[str, int, bool]] = []
        self.topic_ids: dict[str, str] = {}
        self.put_away: dict[Place, Log] = {}

    def log(self, topic: str, partition: int) -> Log:
        """One log; made when first asked for."""
        place = (topic, partition)
        return self.logs[place] if place in self.logs else self.logs.setdefault(place, Log())

    def topic_id(self, topic: str) -> str:
        """What tells a topic from another one of the same name."""
        return self.topic_ids.setdefault(topic, f"{topic}-1")

    def make_anew(self, topic: str, partition: int) -> None:
        """A topic is another one of the same name; of its partitions only this one is empty."""
        self.coordinator.abandon_all()
        self.topic_ids[topic] = f"{topic}-2"
        self.put_away.setdefault((topic, partition), self.log(topic, partition))
        self.logs[topic, partition] = Log()

    def bring_back(self, topic: str) -> None:
        """It is the old one again, with all that was in it."""
        self.topic_ids.pop(topic, None)
        self.logs.update(self.put_away)
        self.put_away = {}

    def land_late_end(self) -> None:
        """An end of a transaction arrives that nobody waits for any more."""
        name, epoch, commit = self.late_ends.pop(0)
        with suppress(RefusedByCoordinator):
            self.coordinator.end(name, epoch, commit=commit)


class FakeGroupMetadata(NamedTuple):
    """A member at a moment, for offsets that travel in a transaction."""

    member: Member | None
    generation: int


class FakeMessage:
    """What `consume` returns: a record, or an event about its partition."""

    __slots__ = ("_error", "_offset", "_partition", "_stored", "_topic")

    def __init__(self, place: Place, offset: int, stored: Stored | None, error: int | None = None) -> None:
        self._topic, self._partition = place
        self._offset = offset
        self._stored = stored
        self._error = error

    def error(self) -> KafkaError | None:
        """None for a record."""
        return None if self._error is None else KafkaError(self._error)

    def topic(self) -> str:
        """The topic."""
        return self._topic

    def partition(self) -> int:
        """The partition."""
        return self._partition

    def offset(self) -> int:
        """The position."""
        return self._offset

    def key(self) -> bytes | None:
        """The record's key."""
        return self._stored.key if self._stored else None

    def value(self) -> bytes | None:
        """The record's value."""
        return self._stored.value if self._stored else None

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """The record's headers."""
        return list(self._stored.headers) if self._stored else None

    def timestamp(self) -> tuple[int, int]:
        """(create time, epoch ms)."""
        return (1, self._stored.timestamp_ms if self._stored else 0)
