"""Threads for calls that block on a disk or a broker.

The standard library's pool joins its threads when the process ends, so one call that ignores its
timeout would hold a worker for ever. These are daemons: what is stuck in them ends with the process.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class DaemonExecutor(Executor):
    """Daemon threads over one queue."""

    def __init__(self, threads: int, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._name = name
        self._threads: list[threading.Thread] = []
        for _ in range(threads):
            self.add_thread()

    def add_thread(self) -> None:
        """One more, in place of one that is stuck in a call and may never come back."""
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run a call on one of the threads."""
        future: Future[_T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever asks the future
                future.set_exception(error)

        self._queue.put(call)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end after what is queued; waits for none of them, whatever is asked."""
        del wait, cancel_futures
        for _ in self._threads:
            self._queue.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads to end after `shutdown`; False when one is still in a call."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            call()
