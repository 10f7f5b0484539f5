"""What differs between the two values of `ledger.replication`, put together in one place.

    local       the ledger of this machine is the truth: a producer and commits of the group follow it
    changelog   a Kafka transaction is the truth: the ledger follows it, to whatever machine

The worker asks only this; it knows no mode by name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, Protocol

from confluent_kafka import Consumer, KafkaError, Producer

from laneway.consumer.background import DaemonExecutor
from laneway.consumer.journal import Journal
from laneway.consumer.notices import Notices
from laneway.consumer.rights import transactional_id_prefix
from laneway.consumer.settings.model import Settings
from laneway.consumer.settler import Strategy
from laneway.consumer.settling.changelog_truth import ChangelogTruth
from laneway.consumer.settling.committer import Answer, Committer
from laneway.consumer.settling.local_truth import LocalTruth
from laneway.consumer.settling.publisher import Publisher
from laneway.consumer.settling.transactions import Membership, Transactions
from laneway.store.port import LedgerStore
from laneway.store.state_dir import StateDir, WorkerSlot

EXPIRE_AT_ONCE: Final = 1000


class Replication(Protocol):
    """How settlements become true, and what that leaves to the worker.

    Attributes:
        left_over: what a stop that ran out of time has left with Kafka, and the reader's next step.
        files_lost: the next step of somebody who has removed the files of an open ledger.
    """

    @property
    def strategy(self) -> Strategy: ...

    @property
    def left_over(self) -> tuple[str, str]: ...

    @property
    def files_lost(self) -> str: ...

    def drain(self, *, begins: bool) -> None:
        """The owner stops polling while it drains, or polls again."""
        ...

    def expire(self, ledger: LedgerStore, before_ms: int) -> None:
        """Forget finished effects last changed before that time, unless the cycles do so."""
        ...

    def close(self, timeout_s: float, /) -> None:
        """Let go of Kafka, within a bound."""
        ...


class Local:
    """`local`. See `local_truth`."""

    left_over = (
        "Kafka had not taken every offset and forward",
        "nothing is lost: the ledger has them, and the next start sends them; is the cluster well?",
    )
    files_lost = "put the state directory back where it was before anything starts again"

    def __init__(
        self,
        consumer: Consumer,
        answers: deque[Answer],
        producer: Producer,
        *,
        journal: Journal,
        notices: Notices,
        executor: Executor,
        notice: Callable[[], None],
    ) -> None:
        self._committer = Committer(consumer, answers)
        self._publisher = Publisher(producer)
        self.strategy: Strategy = LocalTruth(
            publisher=self._publisher,
            committer=self._committer,
            journal=journal,
            notices=notices,
            executor=executor,
            notice=notice,
        )

    def drain(self, *, begins: bool) -> None:
        """A committer that nobody polls for has to ask by itself."""
        self._committer.is_polled = not begins

    def expire(self, ledger: LedgerStore, before_ms: int) -> None:
        """Some of them, so that it cannot hold up a cycle."""
        ledger.expire(before_ms, EXPIRE_AT_ONCE)

    def close(self, timeout_s: float, /) -> None:
        """Wait for what is on its way."""
        self._publisher.close(timeout_s)


class Changelog:
    """`changelog`. See `changelog_truth`.

    The transactional id is the worker's own for as long as it lives and is taken again by its next start,
    which fences whatever this one has left: the static member's name, or a number among the workers that
    share a state directory.
    """

    left_over = (
        "Kafka had not answered for the last transaction",
        "nothing is lost: the changelog decides whether it happened, and the next start reads it there; is "
        "the cluster well?",
    )
    files_lost = "start again: the ledger is restored from its changelog"

    def __init__(
        self,
        settings: Settings,
        state_dir: StateDir,
        consumer: Consumer,
        new_producer: Callable[[str, Callable[[KafkaError], None]], Producer],
        new_reader: Callable[[], Consumer],
        *,
        journal: Journal,
        notices: Notices,
        executor: DaemonExecutor,
        notice: Callable[[], None],
    ) -> None:
        # Held as long as the process: another worker on this directory takes another number.
        self._slot: WorkerSlot | None = None if settings.instance_id else state_dir.worker_slot()
        prefix = transactional_id_prefix(settings.group)
        own = settings.instance_id or f"{state_dir.state_id}-{self._slot.number if self._slot else 0}"
        self._transactions = Transactions(
            prefix + own,
            lambda on_error: new_producer(prefix + own, on_error),
            new_reader,
            prefix=prefix,
            executor=executor,
            notice=notice,
            on_stuck=executor.add_thread,
        )
        self.strategy: Strategy = ChangelogTruth(
            transactions=self._transactions,
            membership=Membership(consumer),
            journal=journal,
            notices=notices,
            retention_ms=settings.ledger.retention_ms,
        )

    def drain(self, *, begins: bool) -> None:
        """Nothing here waits for a poll."""

    def expire(self, ledger: LedgerStore, before_ms: int) -> None:
        """Tombstones travel in transactions."""

    def close(self, _: float, /) -> None:
        """Abort what is open: others would wait for its timeout."""
        self._transactions.close()
        if self._slot is not None:
            self._slot.release()
