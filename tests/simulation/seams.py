"""Where the worker's modules would meet threads, clocks and Kafka, they meet the simulation."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import laneway.consumer.kafka.clients as clients_module
import laneway.consumer.overdue as overdue_module
import laneway.consumer.worker as worker_module
from laneway.consumer.rules import envelope_of, rules_of
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import TopicInfo
from laneway.lanes.envelope import Envelope
from laneway.lanes.rules import Rules
from laneway.processing import Processor
from tests.simulation.batches import Batches, pool_of
from tests.simulation.clients import FakeConsumer
from tests.simulation.process import Answer, Died, Job, Process
from tests.simulation.producers import FakeProducer, FakeTransactionalProducer
from tests.simulation.readers import FakeReader
from tests.simulation.setup import DELETE_RETENTION_MS, SOURCE, TRANSACTION_TIMEOUT_MS
from tests.simulation.threads import Threads

if TYPE_CHECKING:
    from tests.simulation.world import Clock, World


# Whatever the worker has imported of its own part: none of it may meet a clock or a thread.
_MODULES = [
    module
    for name, module in sorted(sys.modules.items())
    if name.startswith("laneway.consumer.") and ".settings" not in name
]
_CLOCKED = [module for module in _MODULES if getattr(module, "time", None) is time]
_ADMINISTERING = [module for module in _MODULES if module.__name__.endswith(".restore")]
_POOLING = [module for module in _MODULES if hasattr(module, "DaemonExecutor")]


@contextmanager
def seams(current: Callable[[], World], clock: Clock) -> Iterator[None]:
    """Let the worker's modules meet the simulation where they would meet threads, clocks and Kafka.

    Args:
        current: the world that is running.
        clock: its clock.
    """
    edge = _Edge(current, clock)
    changes: Sequence[tuple[Any, str, object]] = (
        *((module, "time", edge.time) for module in _CLOCKED),
        *((module, "DaemonExecutor", edge.new_pool) for module in _POOLING),
        (clients_module, "new_consumer", edge.new_consumer),
        (clients_module, "new_producer", edge.new_producer),
        (clients_module, "new_transactional_producer", edge.new_transactional_producer),
        (clients_module, "new_reader", edge.new_reader),
        (worker_module, "pool_for", edge.new_threads),
        (worker_module, "ShapeWatch", _NoWatch),
        (worker_module, "threading", SimpleNamespace(Thread=_InlineThread, Event=threading.Event)),
        (worker_module, "free_bytes", lambda _: 1 << 60),
        (overdue_module, "os", SimpleNamespace(_exit=edge.exit_now, getpid=lambda: 1)),
        (worker_module, "rules_of", edge.rules),
        (worker_module, "envelope_of", edge.envelope),
        *((module, "Cluster", edge.new_cluster) for module in _ADMINISTERING),
    )
    before = [(module, name, getattr(module, name, None)) for module, name, _ in changes]
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


class _Edge:
    """What stands where the outside would be."""

    def __init__(self, current: Callable[[], World], clock: Clock) -> None:
        self._current = current
        self.time = SimpleNamespace(
            monotonic=lambda: clock.steady_ms / 1000,
            monotonic_ns=lambda: clock.steady_ms * 1_000_000,
            time=lambda: clock.now_ms / 1000,
            time_ns=lambda: clock.now_ms * 1_000_000,
            # A step takes no time of its own here.
            thread_time=lambda: 0.0,
            sleep=lambda seconds: current().sleep(seconds),
        )

    def _host(self) -> Process:
        acting = self._current().acting
        assert acting is not None
        return acting

    def new_threads(
        self, processor: Processor, settings: Settings, *, clock: Callable[[], int]
    ) -> Threads | Batches:
        mine = self._host()
        mine.threads = pool_of(processor, settings, mine)
        return mine.threads

    def new_pool(self, _: int, name: str) -> _Pool:
        return _Pool(self._host(), may_wait=name == "laneway-open")

    def new_consumer(self, _: Settings, *, partition_eof: bool, on_commit: Any) -> FakeConsumer:
        assert partition_eof
        mine = self._host()
        mine.consumer = FakeConsumer(mine.world.cluster, mine, SOURCE, on_commit)
        return mine.consumer

    def new_producer(self, _: Settings, *, max_message_bytes: int | None) -> FakeProducer:
        mine = self._host()
        world = mine.world
        producer = mine.producer = FakeProducer(
            world.cluster,
            mine,
            world.plan.config.partitions,
            world.watch.on_sent,
            world.watch.on_landed,
            world.watch.refuses,
        )
        return producer

    def new_transactional_producer(
        self, _: Settings, name: str, *, max_message_bytes: int | None = None, error_cb: Any = None
    ) -> FakeTransactionalProducer:
        mine = self._host()
        world = mine.world
        producer = mine.producer = FakeTransactionalProducer(
            world.cluster,
            mine,
            name,
            TRANSACTION_TIMEOUT_MS,
            world.plan.config.partitions,
            world.watch.refuses,
            error_cb,
        )
        return producer

    def new_reader(self, _: Settings, *, committed: bool) -> FakeReader:
        mine = self._host()
        return FakeReader(mine.world.cluster, mine, committed=committed)

    def new_cluster(self, _: Settings) -> _Admin:
        return _Admin(self._current())

    def exit_now(self, _: int) -> None:
        mine = self._host()
        mine.world.tell(mine, "ends: a handler outlived its partition")
        mine.world.die(mine)
        raise Died

    def rules(self, settings: Settings) -> Rules:
        world = self._current()
        if world.rules is None:
            world.rules = replace(rules_of(settings), max_run=world.plan.config.max_run)
        return world.rules

    def envelope(self, settings: Settings, source: str, decode: Any) -> Envelope:
        # It keeps nothing of what it reads, so all processes of a history may share it.
        world = self._current()
        if world.envelope is None:
            world.envelope = envelope_of(settings, source, decode)
        return world.envelope


class _Admin:
    """What an admin client tells of topics."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def topics(self, names: Sequence[str]) -> dict[str, TopicInfo]:
        """As the cluster has them now."""
        configs = {"delete.retention.ms": str(DELETE_RETENTION_MS)}
        partitions = self._world.plan.config.partitions
        topic_id = self._world.cluster.topic_id
        return {name: TopicInfo(name, partitions, 1, configs, topic_id(name)) for name in names}


class _Pool:
    """An executor whose calls happen when the scheduler says so.

    Args:
        may_wait: its calls may pause in their middle, so each gets a strand.
    """

    def __init__(self, process: Process, *, may_wait: bool) -> None:
        self._process = process
        self._may_wait = may_wait and process.world.plan.config.changelog

    def submit(self, call: Callable[..., Any], *args: Any) -> Answer:
        """Queue a call."""
        answer = Answer()
        self._process.jobs.append(Job(answer, partial(call, *args), self._may_wait))
        return answer

    def add_thread(self) -> None:
        """No call hangs here for ever."""
        raise AssertionError("a call was given up that only had not been scheduled yet")

    def shutdown(self) -> None:
        """Nothing ends here."""

    def join(self, _timeout_s: float) -> bool:
        """Nobody is waited for."""
        return True


class _InlineThread:
    """A thread that is over as soon as it starts."""

    def __init__(self, *, target: Callable[[], None], name: str, daemon: bool) -> None:
        self._target = target

    def start(self) -> None:
        """Run it."""
        self._target()

    def join(self, timeout: float) -> None:
        """It is over."""

    def is_alive(self) -> bool:
        """It is over."""
        return False


class _NoWatch:
    """Nothing changes the partition count here."""

    failure = None

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def stop(self) -> None:
        """Nothing runs."""
