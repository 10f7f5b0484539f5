"""Where the worker's modules would meet threads, clocks and Kafka, they meet the simulation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import laneway.consumer.committer as committer_module
import laneway.consumer.opening as opening_module
import laneway.consumer.ownership as ownership_module
import laneway.consumer.partition as partition_module
import laneway.consumer.worker as worker_module
from laneway.consumer.rules import envelope_of, rules_of
from laneway.consumer.settings.model import Settings
from laneway.lanes.envelope import Envelope
from tests.simulation.clients import FakeConsumer, FakeProducer
from tests.simulation.process import Died, Process
from tests.simulation.setup import SOURCE
from tests.simulation.threads import Threads

if TYPE_CHECKING:
    from tests.simulation.world import World


@contextmanager
def seams(current: Callable[[], World]) -> Iterator[None]:
    """Let the worker's module meet the simulation where it would meet threads, clocks and Kafka.

    Args:
        current: the world that is running.
    """

    def host() -> Process:
        starting = current().starting
        assert starting is not None
        return starting

    def new_threads(process: Any, *, threads: int, timeout_ms: int, clock: Callable[[], int]) -> Threads:
        mine = host()
        mine.threads = Threads(process, threads=threads, timeout_ms=timeout_ms, clock=clock, host=mine)
        return mine.threads

    def new_consumer(_: Settings, *, partition_eof: bool, on_commit: Any) -> FakeConsumer:
        assert partition_eof
        mine = host()
        mine.consumer = FakeConsumer(mine.world.cluster, mine, SOURCE, on_commit)
        return mine.consumer

    def new_producer(_: Settings, *, max_message_bytes: int | None) -> FakeProducer:
        mine = host()
        world = mine.world
        mine.producer = FakeProducer(
            world.cluster,
            mine,
            world.plan.config.partitions,
            world.watch.on_sent,
            world.watch.on_landed,
            world.watch.refuses,
        )
        return mine.producer

    def exit_now(_: int) -> None:
        # Only the process whose turn it is can call it.
        running = next(p for p in reversed(current().processes) if p.is_busy)
        current().tell(running, "ends: a handler outlived its partition")
        current().die(running)
        raise Died

    def envelope_once(settings: Settings, source: str, decode: Any) -> Envelope:
        # It keeps nothing of what it reads, so all processes of a history may share it.
        world = current()
        if world.envelope is None:
            world.envelope = envelope_of(settings, source, decode)
        return world.envelope

    real_rules = rules_of
    time = SimpleNamespace(
        monotonic=lambda: current().clock.steady_ms / 1000,
        monotonic_ns=lambda: current().clock.steady_ms * 1_000_000,
        time_ns=lambda: current().clock.now_ms * 1_000_000,
        sleep=lambda seconds: current().clock.advance(int(seconds * 1000) + 1),
    )
    changes: Sequence[tuple[Any, str, object]] = (
        (worker_module, "time", time),
        (ownership_module, "time", time),
        (opening_module, "time", time),
        (committer_module, "time", time),
        (partition_module, "time", time),
        (worker_module, "clients", SimpleNamespace(new_consumer=new_consumer, new_producer=new_producer)),
        (worker_module, "Workers", new_threads),
        (worker_module, "DaemonExecutor", lambda *_: _Pool(host())),
        (worker_module, "ShapeWatch", _NoWatch),
        (worker_module, "threading", SimpleNamespace(Thread=_InlineThread, Event=threading.Event)),
        (worker_module, "free_bytes", lambda _: 1 << 60),
        (worker_module, "os", SimpleNamespace(_exit=exit_now)),
        (
            worker_module,
            "rules_of",
            lambda settings: replace(real_rules(settings), max_run=current().plan.config.max_run),
        ),
        (worker_module, "envelope_of", envelope_once),
    )
    before = [(module, name, getattr(module, name, None)) for module, name, _ in changes]
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


class _Pool:
    """An executor whose calls happen when the scheduler says so."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        """Queue a call."""
        future: Future[Any] = Future()
        self._process.jobs.append((future, lambda: call(*args)))
        return future

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

    def __init__(self, *_: object) -> None:
        pass

    def stop(self) -> None:
        """Nothing runs."""
