"""The group's consumer in the fake Kafka, shaped like that of confluent-kafka, as the worker uses it.

A rebalance is served inside `consume`; commits travel and land later, in order, or with their process
never. What is on its way lands one by one, whenever the scheduler says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.simulation.broker import Log, Member, Place
from tests.simulation.cluster import Cluster, FakeGroupMetadata, FakeMessage, Host

OnAssign = Callable[["FakeConsumer", list[TopicPartition]], None]
_BEGINNING = -2


class _Commit:
    """A commit on its way."""

    __slots__ = ("generation", "offsets")

    def __init__(self, generation: int, offsets: list[TopicPartition]) -> None:
        self.generation = generation
        self.offsets = offsets


class FakeConsumer:
    """One member of the group.

    Attributes:
        blind: for so many polls the group does not reach it, whatever has happened there.
    """

    def __init__(
        self,
        cluster: Cluster,
        host: Host,
        source: str,
        on_commit: Callable[[KafkaError | None, list[TopicPartition]], None],
    ) -> None:
        self._cluster = cluster
        self._host = host
        self._source = source
        self._on_commit = on_commit
        self._member: Member | None = None
        self._positions: dict[Place, int] = {}
        self._ended: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._travelling: deque[_Commit] = deque()
        self._answers: deque[tuple[int | None, list[TopicPartition]]] = deque()
        self._callbacks: dict[str, OnAssign] = {}
        self.blind = 0
        self._closed = False
        self._is_out = False

    # -- what the worker calls

    def subscribe(self, topics: Sequence[str], **callbacks: OnAssign) -> None:
        """Join the group."""
        assert list(topics) == [self._source]
        self._callbacks = callbacks
        self._member = self._cluster.group.join(self._host.ident)

    def consume(self, limit: int, timeout_s: float) -> list[FakeMessage]:
        """Serve what the group wants, tell the answers of commits, and return some messages."""
        self._host.pulse("consume")
        random = self._cluster.random
        if self.blind > 0:
            self.blind -= 1
            return []
        # Messages that were taken out of the queue before the rebalance come out behind it.
        early = random.random() < 0.3 and not self._cluster.is_calm
        messages = self._fetch(limit) if early else []
        self._serve_answers()
        self._serve_group()
        return messages if early else self._fetch(limit)

    def assign(self, positions: list[TopicPartition]) -> None:
        """Take exactly these partitions."""
        self._positions = {}
        self._ended = {}
        self._paused = set()
        self.incremental_assign(positions)

    def incremental_assign(self, positions: list[TopicPartition]) -> None:
        """Take these partitions too."""
        for tp in positions:
            log = self._cluster.log(tp.topic, tp.partition)
            self._positions[tp.topic, tp.partition] = log.start if tp.offset == _BEGINNING else tp.offset

    def unassign(self) -> None:
        """Let go of everything."""
        self._positions = {}
        self._ended = {}

    def incremental_unassign(self, positions: list[TopicPartition]) -> None:
        """Let go of these."""
        for tp in positions:
            self._positions.pop((tp.topic, tp.partition), None)
            self._ended.pop((tp.topic, tp.partition), None)
            self._paused.discard((tp.topic, tp.partition))

    def pause(self, positions: list[TopicPartition]) -> None:
        """Read nothing of these."""
        self._paused |= {(tp.topic, tp.partition) for tp in positions}

    def resume(self, positions: list[TopicPartition]) -> None:
        """Read these again."""
        self._paused -= {(tp.topic, tp.partition) for tp in positions}

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        """Send a commit; it lands later."""
        assert asynchronous
        self._host.pulse("commit")
        if self._closed:
            raise RuntimeError("Consumer closed")
        assert self._member is not None
        self._travelling.append(_Commit(self._member.generation, offsets))
        self._host.pulse("commit sent")

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        """What the group has; the question goes behind the commits."""
        self._host.pulse("committed")
        random = self._cluster.random
        if not self._cluster.is_calm and random.random() < 0.15:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        while self._travelling:
            self.land_one()
        coordinator = self._cluster.coordinator
        coordinator.expire()
        if any(coordinator.unstable((tp.topic, tp.partition)) for tp in places):
            # They hang on a transaction: the client asks again by itself, until its patience ends.
            if random.random() < 0.5:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            coordinator.mark_all()
            if any(coordinator.unstable((tp.topic, tp.partition)) for tp in places):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [self._found((tp.topic, tp.partition)) for tp in places]

    def _found(self, place: Place) -> TopicPartition:
        group = self._cluster.group
        return TopicPartition(*place, group.committed.get(place, -1001), group.notes.get(place, ""))

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        """(start, end) of a log."""
        if not self._cluster.is_calm and self._cluster.random.random() < 0.05:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        log = self._cluster.log(place.topic, place.partition)
        return log.start, log.stable

    def consumer_group_metadata(self) -> FakeGroupMetadata:
        """Who this is in the group now, for offsets that travel in a transaction."""
        self._host.pulse("group metadata")
        member = self._member
        if member is None or self._knows_it_is_out:
            return FakeGroupMetadata(None, -1)
        return FakeGroupMetadata(member, member.generation)

    def memberid(self) -> str:
        """The name of this membership; "" while this is no member."""
        return "" if self._member is None or self._knows_it_is_out else f"member-{self._member.ident}"

    @property
    def _knows_it_is_out(self) -> bool:
        # A heartbeat tells the client; the worker hears of it with its next poll.
        member = self._member
        return self._is_out or (
            member is not None and self.blind <= 0 and not self._cluster.group.has(member)
        )

    def close(self) -> None:
        """Give everything back and leave."""
        if self._closed or self._member is None or self._host.is_dead:
            return
        member, group = self._member, self._cluster.group
        if group.has(member):
            self._call("on_revoke", member.owned)
            member.owned = set()
        while self._travelling:
            self.land_one()
        group.leave(member.ident)
        self._closed = True

    # -- what the scheduler does

    @property
    def on_the_way(self) -> int:
        """Commits that have not landed."""
        return len(self._travelling)

    @property
    def untold(self) -> int:
        """Answers that wait for a poll."""
        return len(self._answers)

    def land_one(self) -> None:
        """The oldest commit reaches the coordinator."""
        commit = self._travelling.popleft()
        assert self._member is not None
        places = [((tp.topic, tp.partition), tp.offset) for tp in commit.offsets]
        refused = self._cluster.group.commit(self._member, commit.generation, places)
        if refused is None:
            notes = {(tp.topic, tp.partition): tp.metadata or "" for tp in commit.offsets}
            self._cluster.group.notes.update(notes)
        self._answers.append((refused, commit.offsets))

    def position(self, place: Place) -> int | None:
        """The next offset to be read; None when the place is not assigned."""
        return self._positions.get(place)

    def is_paused(self, place: Place) -> bool:
        """Whether a place is paused."""
        return place in self._paused

    # -- inside consume

    def _serve_answers(self) -> None:
        while self._answers:
            code, offsets = self._answers.popleft()
            error = None if code is None else KafkaError(code)
            if error is None and not self._cluster.is_calm and self._cluster.random.random() < 0.05:
                error = KafkaError(KafkaError._TIMED_OUT)  # it has landed, and nobody knows
            self._on_commit(error, [TopicPartition(tp.topic, tp.partition, tp.offset) for tp in offsets])

    def _serve_group(self) -> None:
        group, member = self._cluster.group, self._member
        if member is None:
            return
        if not group.has(member):
            self._is_out = True
            self._call("on_lost", member.owned)
            self._is_out = False
            self._member = group.join(self._host.ident)
            return
        going = group.to_give_back(member)
        if going is not None:
            self._call("on_revoke", going)
            group.gave_back(member, going)
            if not group.has(member):
                return
        coming = group.to_take(member)
        if coming is not None:
            self._call("on_assign", coming)

    def _call(self, name: str, partitions: Iterable[int]) -> None:
        places = [TopicPartition(self._source, p) for p in sorted(partitions)]
        if not places and name != "on_assign":
            return
        for place in places:
            self._host.note(name, place.partition)
        self._host.serving(lambda: self._callbacks[name](self, places))

    def _fetch(self, limit: int) -> list[FakeMessage]:
        random = self._cluster.random
        places = [place for place in self._positions if place not in self._paused]
        random.shuffle(places)
        found: list[FakeMessage] = []
        for place in places:
            log = self._cluster.logs.get(place)
            if log is None:
                continue
            if self._positions[place] < log.start:
                found.append(FakeMessage(place, self._positions[place], None, KafkaError._AUTO_OFFSET_RESET))
                continue
            count = limit if self._cluster.is_calm else random.choice((1, 2, 4, 9))
            self._read(place, log, min(limit - len(found), count), found)
            if len(found) >= limit:
                break
        return found

    def _read(self, place: Place, log: Log, count: int, found: list[FakeMessage]) -> None:
        position, end = self._positions[place], log.stable
        while position < end and count > 0:
            stored = log.committed(position)
            if stored is not None:
                found.append(FakeMessage(place, position, stored))
                count -= 1
            position += 1
        self._positions[place] = position
        if position == end and self._ended.get(place) != end:
            self._ended[place] = end
            found.append(FakeMessage(place, end, None, KafkaError._PARTITION_EOF))
