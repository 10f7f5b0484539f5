"""The transaction coordinator of the fake Kafka.

    init       a producer's epoch goes up: the one before is fenced, what it left open is aborted, and what it
               had decided is carried through
    add        a log, or offsets of the group, join the transaction
    end        it is decided, once; whoever asks again hears the same
    mark       each log, and the group, hears of the decision in its own time
    expire     what is open for longer than its timeout is aborted, and its producer fenced

As before KIP-890 an end names its producer's epoch and not the transaction: one that comes late may hit the
next transaction of the same producer.

Boundary: it knows producers, logs and offsets, and nothing of Laneway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from confluent_kafka import KafkaError

from tests.simulation.broker import OFFSETS, Group, Log, Member, Place, Transaction


class _Producer:
    """One transactional id."""

    __slots__ = ("decided", "epoch", "timeout_ms", "transaction")

    def __init__(self) -> None:
        self.epoch = -1
        self.timeout_ms = 0
        self.transaction: Transaction | None = None
        self.decided: bool | None = None


class RefusedByCoordinator(Exception):  # noqa: N818 - an answer, which the client turns into an error
    """The coordinator says no.

    Args:
        code: of the Kafka error.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Coordinator:
    """All transactional ids of a cluster.

    Args:
        clock: steady milliseconds.
        on_decided: called as a transaction is about to be committed, before anybody can see it.
        on_expired: called when a transaction was open for too long.
    """

    def __init__(
        self,
        group: Group,
        log: Callable[[str, int], Log],
        clock: Callable[[], int],
        random: Random,
        on_decided: Callable[[Transaction], None],
        on_expired: Callable[[Transaction], None],
    ) -> None:
        self._group = group
        self._log = log
        self._clock = clock
        self._random = random
        self._on_decided = on_decided
        self._on_expired = on_expired
        self._producers: dict[str, _Producer] = {}
        self._unmarked: list[Transaction] = []

    # -- what producers ask

    def init(self, name: str, timeout_ms: int) -> int:
        """A producer takes a transactional id; returns its epoch."""
        self.expire()
        producer = self._producers.setdefault(name, _Producer())
        self._abandon(producer)
        producer.epoch += 1
        producer.timeout_ms = timeout_ms
        producer.decided = None
        return producer.epoch

    def add(self, name: str, epoch: int, who: int, place: Place) -> Transaction:
        """A log joins the transaction; the first thing that joins begins it."""
        transaction = self._joined(name, epoch, who)
        transaction.places.setdefault(place, self._log(*place).end)
        return transaction

    def add_offsets(
        self,
        name: str,
        epoch: int,
        who: int,
        offsets: Mapping[Place, int],
        member: Member | None,
        generation: int,
        notes: Mapping[Place, str] | None = None,
    ) -> None:
        """Offsets join the transaction, when the group takes them from this member now."""
        transaction = self._joined(name, epoch, who)
        refusal = self._group.refusal(member, generation)
        if refusal is not None:
            raise RefusedByCoordinator(refusal)
        transaction.offsets.update(offsets)
        transaction.notes.update(notes or {})

    def end(self, name: str, epoch: int, *, commit: bool) -> None:
        """Decide the transaction that is open."""
        producer = self._checked(name, epoch)
        transaction = producer.transaction
        if transaction is None or transaction.is_committed is not None:
            if producer.decided is not commit:
                raise RefusedByCoordinator(KafkaError.INVALID_TXN_STATE)
            return
        self._decide(producer, transaction, commit=commit)

    # -- what the world asks

    def expire(self) -> None:
        """Abort what is open for too long."""
        now_ms = self._clock()
        for producer in self._producers.values():
            transaction = producer.transaction
            if transaction is None or transaction.is_committed is not None:
                continue
            if now_ms - transaction.began_ms > producer.timeout_ms:
                producer.epoch += 1
                self._abandon(producer)
                self._on_expired(transaction)

    def abandon_all(self) -> None:
        """Whatever is open is aborted, and every log hears of it."""
        for producer in self._producers.values():
            producer.epoch += 1
            self._abandon(producer)
        self.mark_all()

    def unstable(self, place: Place) -> bool:
        """Whether offsets of this place hang on a transaction that has not ended in the group."""
        return any(place in transaction.offsets for transaction in self.pending())

    def pending(self) -> list[Transaction]:
        """Transactions that are open, or that somebody has not heard the end of."""
        open_ones = [
            producer.transaction
            for producer in self._producers.values()
            if producer.transaction is not None and producer.transaction.is_committed is None
        ]
        return open_ones + self._unmarked

    @property
    def on_the_way(self) -> int:
        """Decisions that travel."""
        return len(self._unmarked)

    def mark_one(self) -> None:
        """One log, or the group, hears of a decision."""
        transaction = self._unmarked[0]
        place = transaction.unmarked.pop(0)
        if place != OFFSETS:
            self._log(*place).mark(transaction)
        if not transaction.unmarked:
            del self._unmarked[0]

    def mark_all(self) -> None:
        """All decisions are heard everywhere."""
        while self._unmarked:
            self.mark_one()

    # -- behind it

    def _checked(self, name: str, epoch: int) -> _Producer:
        self.expire()
        producer = self._producers[name]
        if producer.epoch != epoch:
            raise RefusedByCoordinator(KafkaError.INVALID_PRODUCER_EPOCH)
        return producer

    def _joined(self, name: str, epoch: int, who: int) -> Transaction:
        producer = self._checked(name, epoch)
        if producer.transaction is None or producer.transaction.is_committed is not None:
            self._carry_through(producer)
            producer.transaction = Transaction(name, who, self._clock())
            producer.decided = None
        return producer.transaction

    def _decide(self, producer: _Producer, transaction: Transaction, *, commit: bool) -> None:
        if commit:
            self._on_decided(transaction)
            self._group.committed.update(transaction.offsets)
            self._group.notes.update(transaction.notes)
        transaction.is_committed = producer.decided = commit
        transaction.unmarked = [*transaction.places, *((OFFSETS,) if transaction.offsets else ())]
        self._random.shuffle(transaction.unmarked)
        if transaction.unmarked:
            self._unmarked.append(transaction)

    def _abandon(self, producer: _Producer) -> None:
        transaction = producer.transaction
        if transaction is not None and transaction.is_committed is None:
            self._decide(producer, transaction, commit=False)
        self._carry_through(producer)

    def _carry_through(self, producer: _Producer) -> None:
        """No transaction begins before the one before it has ended everywhere."""
        transaction = producer.transaction
        while transaction in self._unmarked:
            at = self._unmarked.index(transaction)
            self._unmarked.insert(0, self._unmarked.pop(at))
            self.mark_one()
        producer.transaction = None
