"""Producers of the fake Kafka, shaped like confluent-kafka's: the idempotent one and the transactional one.

Produced records land in order, and their reports come later, wrong, or not at all. What is on its way lands
one by one, whenever the scheduler says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.simulation.broker import Place, Stored
from tests.simulation.cluster import Cluster, FakeGroupMetadata, FakeMessage, Host
from tests.simulation.coordinator import RefusedByCoordinator

Report = Callable[[KafkaError | None, object], None]


class FakeProducer:
    """Produces into the logs.

    Args:
        on_sent: called when a record leaves: (topic, record).
        on_landed: called when a copy stands in its log: (topic, partition, offset, record).
        refuses: whether the topic would not take this value.
    """

    def __init__(
        self,
        cluster: Cluster,
        host: Host,
        partitions: int,
        on_sent: Callable[[str, Stored], None],
        on_landed: Callable[[str, int, int, Stored], None],
        refuses: Callable[[str, bytes | None], bool],
    ) -> None:
        self._cluster = cluster
        self._host = host
        self._partitions = partitions
        self._on_sent = on_sent
        self._on_landed = on_landed
        self._refuses = refuses
        self._travelling: deque[tuple[Place, Stored, Report]] = deque()
        self._reports: deque[tuple[Report, int | None]] = deque()

    def produce(
        self,
        topic: str,
        *,
        value: bytes | None,
        key: bytes | None,
        headers: list[tuple[str, bytes | None]],
        partition: int,
        on_delivery: Report,
    ) -> None:
        """Send a record; it lands later."""
        self._host.pulse("produce")
        if not self._cluster.is_calm and self._cluster.random.random() < 0.02:
            raise BufferError("queue full")
        if self._refuses(topic, value):
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        number = partition if partition >= 0 else sum(key or b"") % self._partitions
        stored = Stored(key, value, tuple(headers), 7)
        self._on_sent(topic, stored)
        self._travelling.append(((topic, number), stored, on_delivery))

    def poll(self, timeout_s: float) -> int:
        """Tell the reports that have come."""
        self._host.pulse("producer poll")
        told = 0
        while self._reports:
            report, code = self._reports.popleft()
            report(None if code is None else KafkaError(code), None)
            told += 1
        return told

    def flush(self, timeout_s: float) -> int:
        """Wait for what is on its way."""
        while self._travelling:
            self.land_one()
        return 0

    @property
    def on_the_way(self) -> int:
        """Records that have not landed."""
        return len(self._travelling)

    @property
    def untold(self) -> int:
        """Reports that wait for a poll."""
        return len(self._reports)

    def land_one(self) -> None:
        """The oldest record reaches its log, or fails, or its report is lost."""
        place, stored, report = self._travelling.popleft()
        fate = 0.0 if self._cluster.is_calm else self._cluster.random.random()
        if self._cluster.refuses_writes or fate > 0.9:
            self._reports.append((report, KafkaError._MSG_TIMED_OUT))
            return
        log = self._cluster.log(*place)
        offset = log.append(stored)
        if fate > 0.86:
            log.append(None)
        self._on_landed(place[0], place[1], offset, stored)
        self._reports.append((report, KafkaError._MSG_TIMED_OUT if 0.76 < fate < 0.85 else None))


class _Sent(NamedTuple):
    """A record on its way, and who wants to hear of it."""

    place: Place
    stored: Stored
    report: Report


class FakeTransactionalProducer:
    """Produces into the logs inside transactions.

    What it is asked may be answered with a timeout although it happened, happens later, or never does. A
    record that fails, or offsets that are refused, leave it fit for an abort only; a newer producer of its
    transactional id leaves it fit for nothing.

    Args:
        refuses: see `FakeProducer`.
        error_cb: told when a connection broke, and something was perhaps sent twice.
    """

    def __init__(
        self,
        cluster: Cluster,
        host: Host,
        name: str,
        timeout_ms: int,
        partitions: int,
        refuses: Callable[[str, bytes | None], bool],
        error_cb: Callable[[KafkaError], None] | None,
    ) -> None:
        self._cluster = cluster
        self._host = host
        self._on_error = error_cb
        self.name = name
        self._timeout_ms = timeout_ms
        self._partitions = partitions
        self._refuses = refuses
        self._epoch = -1
        self._is_open = False
        self._wrote = False
        self._breaks = 0
        self._flaw: KafkaError | None = None
        self._travelling: deque[_Sent] = deque()
        self._reports: deque[tuple[_Sent, int | None, int]] = deque()

    # -- what the worker calls

    def init_transactions(self, timeout: float = -1) -> None:
        """Take the transactional id; whoever had it is fenced."""
        self._host.pulse("init transactions")
        self._usable(for_abort=False)
        if self._answer_is_lost():
            if self._cluster.random.random() < 0.5:
                self._cluster.coordinator.init(self.name, self._timeout_ms)
            raise _timed_out()
        self._epoch = self._cluster.coordinator.init(self.name, self._timeout_ms)
        self._host.pulse("transactions initialised")

    def begin_transaction(self) -> None:
        """Nothing leaves yet."""
        self._usable(for_abort=False)
        if self._is_open or self._epoch < 0:
            raise KafkaException(KafkaError(KafkaError._STATE, "a transaction is open, or init is missing"))
        self._is_open, self._wrote = True, False

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        on_delivery: Report | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> None:
        """Send a record; it lands later."""
        self._host.pulse("produce")
        if self._flaw is not None:
            raise KafkaException(KafkaError(KafkaError._FATAL if self._flaw.fatal() else KafkaError._STATE))
        assert self._is_open, "produced outside of a transaction"
        if not self._cluster.is_calm and self._cluster.random.random() < 0.01:
            raise BufferError("queue full")
        number = partition if partition >= 0 else sum(key or b"") % self._partitions
        stored = Stored(key, value, tuple(headers or ()), self._cluster.now_ms())
        self._travelling.append(_Sent((topic, number), stored, on_delivery or _unheard))

    def poll(self, timeout: float = 0) -> int:
        """Tell the reports that have come."""
        self._host.pulse("producer poll")
        told = 0
        while self._breaks and self._on_error is not None:
            self._breaks -= 1
            self._on_error(KafkaError(KafkaError._TRANSPORT))
        while self._reports:
            sent, code, offset = self._reports.popleft()
            sent.report(
                None if code is None else KafkaError(code), FakeMessage(sent.place, offset, sent.stored)
            )
            told += 1
        return told

    def flush(self, timeout: float = -1) -> int:
        """Wait for what is on its way, and tell the reports; returns what is still on its way."""
        self._host.pulse("flush")
        late = not self._cluster.is_calm and self._cluster.random.random() < 0.05
        while self._travelling and not (late and len(self._travelling) == 1):
            self.land_one()
        self.poll()
        return len(self._travelling)

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Give up what is on its way: some of it has landed already, and nobody will know."""
        while self._travelling:
            if self._cluster.random.random() < 0.5:
                self.land_one()
                self._reports.pop()
                continue
            sent = self._travelling.popleft()
            self._reports.append((sent, KafkaError._PURGE_QUEUE, -1))

    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], group_metadata: object, timeout: float = -1
    ) -> None:
        """Let offsets join; the group looks at who asks, and in which generation."""
        self._host.pulse("send offsets")
        self._usable(for_abort=False)
        assert self._is_open
        assert isinstance(group_metadata, FakeGroupMetadata)
        offsets = {(tp.topic, tp.partition): tp.offset for tp in positions}
        notes = {(tp.topic, tp.partition): tp.metadata or "" for tp in positions}
        if self._answer_is_lost():
            if self._cluster.random.random() < 0.5:
                self._offsets_join(offsets, notes, group_metadata)
            raise _timed_out()
        self._offsets_join(offsets, notes, group_metadata)
        self._host.pulse("offsets sent")

    def commit_transaction(self, timeout: float = -1) -> None:
        """End it, all or nothing. A timeout says nothing of which."""
        self._host.pulse("commit transaction")
        self._usable(for_abort=False)
        assert self._is_open
        while self._travelling:
            self.land_one()
        self._usable(for_abort=False)
        self._end(commit=True)
        self._host.pulse("transaction committed")

    def abort_transaction(self, timeout: float = -1) -> None:
        """End it with nothing."""
        self._host.pulse("abort transaction")
        self._usable(for_abort=True)
        assert self._is_open
        self.purge()
        self._end(commit=False)
        self._host.pulse("transaction aborted")

    def __len__(self) -> int:
        return len(self._travelling) + len(self._reports)

    # -- what the scheduler does

    @property
    def on_the_way(self) -> int:
        """Records that have not landed."""
        return len(self._travelling)

    @property
    def untold(self) -> int:
        """Reports that wait for a poll."""
        return len(self._reports)

    def land_one(self) -> None:
        """The oldest record reaches its log, or fails, or its report is lost."""
        sent = self._travelling.popleft()
        fate = 0.0 if self._cluster.is_calm else self._cluster.random.random()
        if self._refuses(sent.place[0], sent.stored.value):
            self._fail(sent, KafkaError.MSG_SIZE_TOO_LARGE)
            return
        if self._cluster.refuses_writes or fate > 0.985:
            self._fail(sent, KafkaError._MSG_TIMED_OUT)
            return
        try:
            transaction = self._cluster.coordinator.add(self.name, self._epoch, self._host.ident, sent.place)
        except RefusedByCoordinator as refused:
            self._refused(refused)
            self._reports.append((sent, refused.code, -1))
            return
        self._wrote = True
        offset = self._cluster.log(*sent.place).append(sent.stored, transaction)
        if fate > 0.97:
            self._fail(sent, KafkaError._MSG_TIMED_OUT)
        else:
            self._reports.append((sent, None, offset))

    # -- behind it

    def _usable(self, *, for_abort: bool) -> None:
        flaw = self._flaw
        if flaw is not None and (flaw.fatal() or not for_abort):
            raise KafkaException(flaw)

    def _answer_is_lost(self) -> bool:
        return not self._cluster.is_calm and self._cluster.random.random() < self._cluster.lost_answers

    def _fail(self, sent: _Sent, code: int) -> None:
        self._reports.append((sent, code, -1))
        self._flaw = self._flaw or KafkaError(code, "a message failed", False, False, True)

    def _offsets_join(
        self, offsets: dict[Place, int], notes: dict[Place, str], metadata: FakeGroupMetadata
    ) -> None:
        # The coordinator has heard of them before the group refuses them.
        self._wrote = True
        try:
            self._cluster.coordinator.add_offsets(
                self.name,
                self._epoch,
                self._host.ident,
                offsets,
                metadata.member,
                metadata.generation,
                notes,
            )
        except RefusedByCoordinator as refused:
            raise KafkaException(self._refused(refused)) from None

    def _end(self, *, commit: bool) -> None:
        cluster = self._cluster
        if not self._wrote:
            self._is_open, self._flaw = False, None
            return
        if self._answer_is_lost():
            # It has arrived, or it comes later, to whatever it finds then, or it never does; or the client
            # has sent it again by itself, and the first one still travels.
            what = cluster.random.choice(("landed", "late", "never", "twice"))
            self._breaks += 1
            if what == "twice":
                cluster.late_ends.append((self.name, self._epoch, commit))
                self._end_now(commit=commit)
                return
            if what == "landed":
                with suppress(RefusedByCoordinator):
                    cluster.coordinator.end(self.name, self._epoch, commit=commit)
            elif what == "late":
                cluster.late_ends.append((self.name, self._epoch, commit))
            raise _timed_out()
        self._end_now(commit=commit)

    def _end_now(self, *, commit: bool) -> None:
        try:
            self._cluster.coordinator.end(self.name, self._epoch, commit=commit)
        except RefusedByCoordinator as refused:
            raise KafkaException(self._refused(refused)) from None
        self._is_open, self._flaw = False, None

    def _refused(self, refused: RefusedByCoordinator) -> KafkaError:
        """What the client makes of a refusal: most are for an abort, a foreign epoch is the end."""
        if refused.code == KafkaError.INVALID_PRODUCER_EPOCH:
            self._flaw = KafkaError(KafkaError._FENCED, "a newer producer has the id", True, False, False)
        elif refused.code == KafkaError.INVALID_TXN_STATE:
            self._flaw = KafkaError(refused.code, "no such transaction is open", True, False, False)
        else:
            self._flaw = KafkaError(refused.code, "the group refuses", False, False, True)
        return self._flaw


def _timed_out() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", False, True, False))


def _unheard(_: KafkaError | None, __: object) -> None:
    """Nobody asked for a report."""
