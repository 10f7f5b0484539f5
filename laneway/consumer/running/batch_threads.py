"""Threads that run batches: each takes one, calls the handler, and gives the answers back.

    submit ─► batching ─► a thread ─► done ─► finished

The threads wait for work and for time on one condition; a batch, not a record, is what that costs.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from laneway.consumer.running.batching import Batch, Batching
from laneway.consumer.running.handback import FED_S, take_finished
from laneway.consumer.workers import FORKED
from laneway.delivery import Delivery
from laneway.lanes.run import Run
from laneway.lanes.verdict import Outcome

ProcessBatch = Callable[[list[Delivery[Any]], Outcome], list[Outcome | None]]


class BatchThreads:
    """A pool of threads. Every method is the owner thread's; none waits for a handler but `wait`, `stop`.

    Args:
        process: runs one batch; must be safe to call from many threads.
        unknown: what it means when nobody can say what has happened.
        failed: what an exception out of `process` means.
        threads: how many batches can be in a handler at once.
    """

    def __init__(
        self,
        process: ProcessBatch,
        batching: Batching,
        unknown: Outcome,
        failed: Callable[[BaseException], Outcome],
        *,
        threads: int,
    ) -> None:
        self._process = process
        self._batching = batching
        self._unknown = unknown
        self._failed = failed
        self._done: deque[Run] = deque()
        self._news = threading.Event()
        self._changed = threading.Condition()
        self._in_batch: dict[int, Batch] = {}
        self._in_hand = 0
        self._stopping = False
        self._is_child = False
        os.register_at_fork(after_in_child=self._in_child)
        self._threads = [
            # Daemons: one that is stuck in a handler must not keep the process.
            threading.Thread(target=self._work, args=(number,), name=f"laneway-worker-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, runs: list[Run]) -> None:
        """Hand over runs of different lanes; they come back through `finished`, each exactly once."""
        if not runs:
            return
        self._in_hand += len(runs)
        ready = self._batching.put(runs)
        if self._stopping:
            self._give_back(self._batching.take_back(only_stopped=False))
        self._wake(1 + ready)

    def finished(self) -> list[Run]:
        """The runs that ended since the last call: acked to the end, or stopped earlier. Never blocks."""
        runs = take_finished(self._done, self._news)
        self._in_hand -= len(runs)
        return runs

    def wait(self, timeout_s: float) -> None:
        """Return as soon as a run has finished, or after the timeout."""
        if not self._done:
            self._news.wait(timeout_s)

    def recall(self) -> None:
        """Give back the runs that were told to stop and that no handler has begun."""
        self._give_back(self._batching.take_back(only_stopped=True))

    def reclaim(self, now_ms: int) -> int:  # noqa: ARG002 - see `Pool`
        """Nothing stands behind a slow batch: what is not in one waits for any thread."""
        return 0

    def nudge(self) -> None:
        """End the owner's `wait`: something other than a run wants it. From any thread."""
        self._news.set()

    @property
    def in_hand(self) -> int:
        """Runs that were submitted and have not come back through `finished`."""
        return self._in_hand

    @property
    def fed_s(self) -> float:
        """For how long, about, every thread has a batch without the owner; 0 while one has none."""
        return FED_S if len(self._in_batch) == len(self._threads) and self._batching.is_ahead else 0.0

    @property
    def capacity(self) -> int:
        """How many records can be in handlers at once."""
        return len(self._threads) * self._batching.limits.max_size

    @property
    def busy(self) -> int:
        """Threads that are in a batch."""
        return len(self._in_batch)

    def running(self) -> list[Run]:
        """The runs that are in a batch, as seen now."""
        # The copy is one step of the interpreter; no thread can come between.
        return [run for batch in list(self._in_batch.values()) for run, _ in batch.runs if run.started_ms]

    def overdue(self, now_ms: int) -> list[Run]:
        """The runs whose batch has been in its handler for longer than it may be."""
        timeout_ms = self._batching.timeout_ms
        return [run for run in self.running() if now_ms - (run.started_ms or now_ms) > timeout_ms]

    def stop(self, timeout_s: float) -> bool:
        """Start no further batch, wait for those that run; what did not start comes back unstarted.

        Returns:
            True when all threads ended; False when one is still in a handler.
        """
        self._stopping = True
        self._give_back(self._batching.take_back(only_stopped=False))
        for run in self.running():
            run.stop = True
        self._wake(len(self._threads))
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._give_back(self._batching.take_back(only_stopped=False))
        return not any(thread.is_alive() for thread in self._threads)

    def _wake(self, count: int) -> None:
        """Wake so many threads: one for each full batch, and one that waits for the time of the rest."""
        with self._changed:
            self._changed.notify(count)

    def _give_back(self, runs: Sequence[Run]) -> None:
        if runs:
            self._done.extend(runs)
            self._news.set()

    # -- the threads' side

    def _in_child(self) -> None:
        """A handler has forked. Its child ends where the handler ends: it is no worker, and has no lock."""
        self._is_child = True

    def _work(self, number: int) -> None:
        while not self._stopping:
            batch = self._batching.take()
            if batch is not None:
                self._in_batch[number] = batch
                self._run(batch)
                del self._in_batch[number]
                continue
            with self._changed:
                # Asked again with the condition in hand: who puts something in now wakes this thread.
                wait_ms = self._batching.wait_ms()
                if not (self._has_stopped() or wait_ms == 0):
                    self._changed.wait(None if wait_ms is None else wait_ms / 1000)

    def _has_stopped(self) -> bool:
        return self._stopping

    def _run(self, batch: Batch) -> None:
        answers: list[Outcome | None] = []
        if batch.deliveries:
            try:
                answers = self._process(batch.deliveries, self._unknown)
            except BaseException as error:  # noqa: BLE001 - the thread lives on, whatever `process` broke
                answers = [self._failed(error)] * len(batch.deliveries)
            if self._is_child:
                os._exit(FORKED)
        over, going_on = batch.end(answers)
        if going_on and not self._stopping:
            self._wake(self._batching.put(going_on))  # and this one comes back by itself
        else:
            over += going_on
        self._give_back(over)
