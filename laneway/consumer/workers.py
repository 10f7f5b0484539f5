"""Worker threads: they run the records of a run through the processor, one after another.

Boundary: runs come in, the same runs with outcomes come out. Nothing here knows a board, a ledger, the
journal or Kafka, and no exception of a handler gets out.

The owner and the threads share three deques and no lock: appends and pops of a deque are atomic.

    submit ─► _waiting ─► slot.taken (a chunk) ─► slot.run ─► _done ─► finished
                  ▲            │
                  └─ reclaim ──┘   what stands behind a slow run goes to somebody else

A chunk is as many runs as take about 2 ms by the measured time of a record: one hand-over for hundreds
of runs of a trivial handler, and for one run of a slow one. Only as many threads are woken as there is
work for, since threads without work would only fight over the interpreter.

Bounds: `submit` takes what it is given; the board's in-flight limits bound it. A thread in a handler that
never returns is lost until the process ends; `overdue` names its run.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from laneway.consumer.running.handback import take_finished
from laneway.lanes.failures import class_name
from laneway.lanes.record import Record
from laneway.lanes.run import Run
from laneway.lanes.verdict import Ack, Outcome, Review

FORKED: Final = 70
"""Exit code of a child that a handler forked and that came back out of the handler."""
CHUNK_S: Final = 0.002
SLOW_MS: Final = 5
SLOW_CHUNK_MS: Final = 20
"""Ten times what a chunk is meant to take: its records have become slower than they were, if none is slow."""
_TICK_S: Final = 0.005
# Pessimistic, so that the first runs of an unknown handler are spread over all threads.
_FIRST_ESTIMATE_S: Final = 0.01
_WEIGHT: Final = 0.25

Process = Callable[[Record, str, int, int], Outcome]
"""(record, source topic, partition, deadline in epoch ms) -> its outcome."""


class RunOwner(Protocol):
    """What a run's `owner` tells: the source partition it belongs to."""

    @property
    def topic(self) -> str:
        """The source topic."""
        ...

    @property
    def partition(self) -> int:
        """Its partition."""
        ...


class _Slot:
    """One thread's visible state.

    Attributes:
        taken: its chunk: runs it has taken and not begun; the owner may take them back.
        run: the run it is in.
        began_ms: when it began its chunk.
        quiet: True while it may have finished runs without having said so.
        gate: held while the thread sleeps; released to wake it.
    """

    __slots__ = ("began_ms", "gate", "quiet", "run", "taken", "thread")

    def __init__(self) -> None:
        self.taken: deque[Run] = deque()
        self.run: Run | None = None
        self.began_ms = 0
        self.quiet = False
        self.gate = threading.Lock()
        self.gate.acquire()
        self.thread: threading.Thread | None = None

    def is_slow(self, now_ms: int) -> bool:
        """True while one record has been running for more than a moment, or a chunk for many."""
        run = self.run
        if run is None:
            return False
        started_ms = run.started_ms
        if started_ms == 0:
            return False
        return now_ms - started_ms > SLOW_MS or now_ms - self.began_ms > SLOW_CHUNK_MS


class Workers:
    """A pool of threads. Every method is the owner thread's, and none waits for a handler but `wait`, `stop`.

    Args:
        process: runs one record; must be safe to call from many threads.
        threads: how many records can be in a handler at once.
        timeout_ms: how long one record may take; becomes the deadline of its delivery.
        clock: epoch milliseconds that never jump (taken once, then counted on by a monotonic clock): a
            corrected wall clock must not make every handler overdue.
    """

    def __init__(
        self,
        process: Process,
        *,
        threads: int,
        timeout_ms: int,
        clock: Callable[[], int],
    ) -> None:
        self._process = process
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._waiting: deque[Run] = deque()
        self._done: deque[Run] = deque()
        self._idle: deque[_Slot] = deque()
        self._news = threading.Event()
        self._stopping = False
        self._in_hand = 0
        self._record_s = _FIRST_ESTIMATE_S
        self._chunk_s = CHUNK_S
        self._is_child = False
        os.register_at_fork(after_in_child=self._in_child)
        self._slots = [_Slot() for _ in range(threads)]
        for number, slot in enumerate(self._slots):
            # Daemons: one that is stuck in a handler must not keep the process.
            slot.thread = threading.Thread(
                target=self._work, args=(slot,), name=f"laneway-worker-{number}", daemon=True
            )
            slot.thread.start()

    # The owner's side

    def submit(self, runs: list[Run]) -> None:
        """Hand over runs of different lanes; they come back through `finished`, each exactly once."""
        if not runs:
            return
        self._in_hand += len(runs)
        self._waiting.extend(runs)
        if self._stopping:
            self._give_back_waiting()
            return
        work_s = self._record_s * sum(len(run.records) for run in runs)
        wanted = min(len(self._slots), len(runs), 1 + int(work_s / CHUNK_S))
        # No thread takes more than its share, or the last ones would stand idle.
        self._chunk_s = min(CHUNK_S, work_s / wanted)
        self._wake(wanted - self._soon_free(self._clock()))

    def finished(self) -> list[Run]:
        """The runs that ended since the last call: acked to the end, or stopped earlier. Never blocks."""
        runs = take_finished(self._done, self._news)
        self._in_hand -= len(runs)
        return runs

    def wait(self, timeout_s: float) -> None:
        """Return as soon as a run has finished, or after the timeout."""
        deadline = time.monotonic() + timeout_s
        while not self._done:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            # Somebody must look after what waits behind a slow run; nobody else is awake to do it.
            watch = bool(self._waiting) or any(slot.taken or slot.quiet for slot in self._slots)
            has_news = self._news.wait(min(left_s, _TICK_S) if watch else left_s)
            if watch:
                self.reclaim(self._clock())
            if has_news:
                return

    def recall(self) -> None:
        """Give back the runs that were told to stop and that no thread has begun.

        A partition that leaves must not wait for other partitions' handlers before its own runs come back.
        """
        for source in (self._waiting, *(slot.taken for slot in self._slots)):
            for _ in range(len(source)):
                try:
                    run = source.popleft()
                except IndexError:
                    break  # a thread was faster
                if run.stop:
                    self._done.append(run)
                else:
                    # For any thread: its own may have looked while the run was here, and sleep by now.
                    self._waiting.append(run)
        self._wake(len(self._waiting))
        if self._done:
            self._tell()

    def nudge(self) -> None:
        """End the owner's `wait`: something other than a run wants it. From any thread."""
        self._news.set()

    @property
    def in_hand(self) -> int:
        """Runs that were submitted and have not come back through `finished`."""
        return self._in_hand

    @property
    def fed_s(self) -> float:
        """For how long, about, every thread has work without the owner; 0 while one is idle."""
        return 0.0 if self._idle else self._record_s * len(self._waiting) / len(self._slots)

    @property
    def capacity(self) -> int:
        """How many records can be in handlers at once."""
        return len(self._slots)

    @property
    def busy(self) -> int:
        """Threads that are in a run."""
        return sum(slot.run is not None for slot in self._slots)

    def running(self) -> list[Run]:
        """The runs that threads are in, as seen now."""
        return [run for slot in self._slots if (run := slot.run) is not None]

    def overdue(self, now_ms: int) -> list[Run]:
        """The runs whose current record has been in its handler for longer than `timeout_ms`."""
        late = []
        for run in self.running():
            started_ms = run.started_ms
            if started_ms and now_ms - started_ms > self._timeout_ms:
                late.append(run)
        return late

    def reclaim(self, now_ms: int) -> int:
        """Give what stands behind a slow run to other threads; returns how many runs that were.

        `wait` does this by itself; call it where the owner waits elsewhere.
        """
        moved = 0
        for slot in self._slots:
            if slot.taken and slot.is_slow(now_ms):
                moved += _move_all(slot.taken, self._waiting)
        if moved:
            self._chunk_s = 0.0  # one at a time until the next submit: the estimate was wrong
        if moved or (self._waiting and not self._soon_free(now_ms)):
            self._wake(len(self._waiting))
        return moved

    def stop(self, timeout_s: float) -> bool:
        """Start no further record, wait for those that run; what did not start comes back unstarted.

        Returns:
            True when all threads ended; False when one is still in a handler.
        """
        self._stopping = True
        self._give_back_waiting()
        for slot in self._slots:
            _move_all(slot.taken, self._done)
            # A thread that has no run yet looks at `_stopping` after it has shown its run here.
            run = slot.run
            if run is not None:
                run.stop = True
        self._wake(len(self._slots))
        deadline = time.monotonic() + timeout_s
        for slot in self._slots:
            if slot.thread is not None:
                slot.thread.join(max(0.0, deadline - time.monotonic()))
        self._give_back_waiting()
        return not any(slot.thread is not None and slot.thread.is_alive() for slot in self._slots)

    def _soon_free(self, now_ms: int) -> int:
        """Threads that are awake and will take more work within a moment."""
        if self._record_s > CHUNK_S:
            return 0
        slow = sum(slot.is_slow(now_ms) for slot in self._slots)
        return len(self._slots) - len(self._idle) - slow

    def _give_back_waiting(self) -> None:
        if _move_all(self._waiting, self._done):
            self._news.set()

    def _wake(self, count: int) -> None:
        for _ in range(count):
            try:
                slot = self._idle.pop()
            except IndexError:
                return
            slot.gate.release()

    # The threads' side

    def _in_child(self) -> None:
        """A handler has forked. Its child ends where the handler ends: it is no worker, and has no lock."""
        self._is_child = True

    def _work(self, slot: _Slot) -> None:
        while not self._stopping:
            if self._take(slot):
                self._run_chunk(slot)
            else:
                self._sleep(slot)

    def _take(self, slot: _Slot) -> bool:
        """Take a chunk: runs for `_chunk_s` of estimated work, and always at least one."""
        budget_s = self._chunk_s
        record_s = self._record_s
        while True:
            try:
                run = self._waiting.popleft()
            except IndexError:
                break
            slot.taken.append(run)
            budget_s -= record_s * len(run.records)
            if budget_s < record_s:
                break
        return bool(slot.taken)

    def _sleep(self, slot: _Slot) -> None:
        self._idle.append(slot)
        # Asked again after joining the idle: work that came in between would wake nobody.
        if self._waiting or self._stopping:
            try:
                self._idle.remove(slot)
            except ValueError:
                pass  # the owner has taken it to wake it; its gate opens at once
            else:
                return
        slot.gate.acquire()

    def _run_chunk(self, slot: _Slot) -> None:
        records = 0
        slot.began_ms = self._clock()
        began_s = said_s = time.perf_counter()
        slot.quiet = len(slot.taken) > 1
        while True:
            try:
                run = slot.taken.popleft()
            except IndexError:
                break
            slot.run = run
            if not self._stopping:
                self._run(run)
            slot.run = None
            records += len(run.outcomes)
            self._done.append(run)
            now_s = time.perf_counter()
            if now_s - said_s > CHUNK_S:
                said_s = now_s
                self._tell()
        slot.quiet = False
        self._tell()
        if records:
            self._measured((time.perf_counter() - began_s) / records)

    def _tell(self) -> None:
        # is_set costs no lock; most of the time the owner has not yet looked at the last news.
        if not self._news.is_set():
            self._news.set()

    def _measured(self, record_s: float) -> None:
        # At most doubled by one sample: a thread that was kept from running is not a slow handler.
        before_s = self._record_s
        self._record_s = before_s + _WEIGHT * (min(record_s, 2 * before_s) - before_s)

    def _run(self, run: Run) -> None:
        process, clock, timeout_ms = self._process, self._clock, self._timeout_ms
        owner = cast("RunOwner", run.owner)
        topic, partition = owner.topic, owner.partition
        outcomes = run.outcomes
        for record in run.records:
            if run.stop:
                break
            now_ms = clock()
            run.started_ms = now_ms
            try:
                outcome = process(record, topic, partition, now_ms + timeout_ms)
            except BaseException as error:  # noqa: BLE001 - the thread lives on, whatever `process` broke
                outcome = Outcome(
                    Review("unclassified-failure", ""), "unclassified-failure", class_name(error)
                )
            if self._is_child:
                os._exit(FORKED)
            outcomes.append(outcome)
            if type(outcome.verdict) is not Ack:
                break
        run.started_ms = 0


def _move_all(source: deque[Run], target: deque[Run]) -> int:
    """Move what is there, one atomic step each; a thread may be popping at the other end."""
    moved = 0
    while True:
        try:
            target.append(source.pop())
        except IndexError:
            return moved
        moved += 1
