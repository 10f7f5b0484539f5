"""One event loop on a thread of its own: it runs async handlers, many at once.

    submit ─► waiting ─► at most `max_running` tasks ─► done ─► finished
              (any thread)        (the loop's)          (the owner's)

The owner and the loop share two deques and no lock. What is submitted together costs one call into the loop,
a run one task, a record nothing but its handler: no future, no timer. One look at all tasks every few
milliseconds finds those that are over their time and cancels them.

Cancelled at its timeout, a handler's outcome is *unknown*, unless it says something else: one that catches
the cancellation and returns, or raises, is believed. One that catches it and goes on is overdue. A handler
that blocks the loop holds up all others, their timeouts too: `overdue` says so, and where.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, cast

from laneway.consumer.running.handback import FED_S, take_finished
from laneway.consumer.workers import FORKED, RunOwner
from laneway.lanes.failures import class_name
from laneway.lanes.record import Record
from laneway.lanes.run import Run
from laneway.lanes.verdict import Ack, Outcome

log = logging.getLogger("laneway")

GRACE_MS: Final = 1000
"""How long a cancelled handler may take to end before it counts as overdue."""
BLOCKED_MS: Final = 2000
"""A loop that has not turned for so long is held up by a handler."""
_TELL_S: Final = 0.002
_MIN_LOOK_S: Final = 0.002
_MAX_LOOK_S: Final = 0.2
_LEFT_S: Final = 1.0
_FRAMES: Final = 8

ProcessAsync = Callable[[Record, str, int, int], Coroutine[Any, Any, Outcome]]


class Job:
    """One call of a handler, or one after another: what may be cancelled.

    Attributes:
        runs: that it works on.
        started_ms: when the call under way was started; 0 while none is.
        is_cut: it was cancelled for taking too long.
    """

    __slots__ = ("is_cut", "runs", "started_ms", "task")

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.started_ms = 0
        self.is_cut = False
        self.task: asyncio.Task[None] | None = None

    def unbegun(self) -> Sequence[Run]:
        """Its runs, when it is over before it began: they come back as they are."""
        return self.runs


class LoopPool(ABC):
    """The loop, its thread, and what every kind of job needs. Public methods are the owner thread's.

    Args:
        max_running: how many handlers may be under way.
        timeout_ms: how long one may take.
        clock: see `Workers`.
    """

    def __init__(self, *, max_running: int, timeout_ms: int, clock: Callable[[], int]) -> None:
        self._max_running = max_running
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._done: deque[Run] = deque()
        self._jobs: dict[Job, None] = {}
        self._news = threading.Event()
        self._in_hand = 0
        self._stopping = False
        self._is_called = False
        self._is_telling = False
        self._is_child = False
        self._is_over = False
        self._told_blocked = False
        self._look_s = min(_MAX_LOOK_S, max(_MIN_LOOK_S, timeout_ms / 1000 / 20))
        self._turned_ms = clock()
        self._context = contextvars.copy_context()
        os.register_at_fork(after_in_child=self._in_child)
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_tell_of_a_task)
        self.loop.call_soon(self._look)
        # A daemon: a handler that never ends must not keep the process.
        self._thread = threading.Thread(target=self._work, name="laneway-loop", daemon=True)
        self._thread.start()

    # -- the owner's side

    def submit(self, runs: list[Run]) -> None:
        """Hand over runs of different lanes; they come back through `finished`, each exactly once."""
        if not runs:
            return
        self._in_hand += len(runs)
        self._put(runs)
        if self._stopping:
            self._give_back(self._take_back(only_stopped=False))
        elif not self._is_called:
            self._is_called = True
            self.loop.call_soon_threadsafe(self._start_called)

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
        self._give_back(self._take_back(only_stopped=True))

    def reclaim(self, now_ms: int) -> int:  # noqa: ARG002 - see `Pool`
        """Nothing stands behind a slow run: each has a task of its own."""
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
        """For how long, about, as many jobs as may be are under way without the owner; else 0."""
        return FED_S if len(self._jobs) >= self._max_running and self._is_waited_for() else 0.0

    @property
    def capacity(self) -> int:
        """How many records can be in handlers at once."""
        return self._max_running

    @property
    def busy(self) -> int:
        """Handlers that are under way."""
        return len(self._jobs)

    def running(self) -> list[Run]:
        """The runs that handlers are in, as seen now."""
        # The copy is one step of the interpreter; the loop cannot come between.
        return [run for job in list(self._jobs) for run in job.runs if run.started_ms]

    def overdue(self, now_ms: int) -> list[Run]:
        """The runs whose handler goes on although it was cancelled, or cannot be, as the loop is blocked."""
        still_ms = now_ms - self._turned_ms
        if still_ms < BLOCKED_MS:
            self._told_blocked = False
        elif not self._told_blocked and self._thread.is_alive():
            self._told_blocked = True
            log.error(
                "the event loop has not turned for %.1f s: a handler blocks it, and all others wait; next: "
                "await what waits there, or write the handler as `def`; it is in\n%s",
                still_ms / 1000,
                self._where(),
            )
        limit_ms = self._timeout_ms + GRACE_MS
        return [
            run
            for job in list(self._jobs)
            if job.started_ms and now_ms - job.started_ms > limit_ms
            for run in job.runs
            if run.started_ms
        ]

    def stop(self, timeout_s: float) -> bool:
        """Start no further record, wait for those that run; what did not start comes back unstarted.

        Returns:
            True when all handlers ended, and the loop with them; False when one is still under way.
        """
        self._stopping = True
        self._give_back(self._take_back(only_stopped=False))
        for job in list(self._jobs):
            for run in job.runs:
                run.stop = True
        with contextlib.suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(self._end_if_idle)
        self._thread.join(timeout_s)
        self._give_back(self._take_back(only_stopped=False))
        return not self._thread.is_alive()

    def _where(self) -> str:
        """Files, lines and functions, innermost last; never a value."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        frames = traceback.extract_stack(frame) if frame is not None else []
        return "\n".join(f"  {each.filename}:{each.lineno} in {each.name}" for each in frames[-_FRAMES:])

    def _give_back(self, runs: Sequence[Run]) -> None:
        if runs:
            self._done.extend(runs)
            self._news.set()

    # -- what the kinds of jobs do differently

    @abstractmethod
    def _put(self, runs: list[Run]) -> None:
        """Keep what was submitted, for the loop to take."""

    @abstractmethod
    def _take_back(self, *, only_stopped: bool) -> list[Run]:
        """Take out of what was kept again. From the owner's thread."""

    @abstractmethod
    def _is_waited_for(self) -> bool:
        """Whether anything waits for a job. From the owner's thread."""

    @abstractmethod
    def _next(self) -> Job | None:
        """The next job to do; None when there is none now. On the loop."""

    @abstractmethod
    async def _do(self, job: Job) -> None:
        """Do a job, and tell that it is over. On the loop, in a task of its own."""

    # -- the loop's side

    def _in_child(self) -> None:
        """A handler has forked. Its child ends where the handler ends: it is no worker, and has no lock."""
        self._is_child = True

    def _work(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_over:
            try:
                self.loop.run_forever()  # a handler may stop it: that is not theirs to do
            except BaseException as error:  # noqa: BLE001 - a task of theirs may raise SystemExit
                log.error("a task that a handler left behind raised %s", class_name(error))
        # What handlers left behind ends as it would in a program of its own.
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left, timeout=_LEFT_S))
        self.loop.close()

    def _start_called(self) -> None:
        self._is_called = False
        self._start()

    def _start(self) -> None:
        """Begin as many jobs as may be under way."""
        while len(self._jobs) < self._max_running and not self._stopping:
            job = self._next()
            if job is None:
                return
            self._jobs[job] = None
            # Begun by the end of another job, it would inherit what that one's handler has set.
            job.task = self.loop.create_task(self._do(job), context=self._context.copy())

    def _ended(self, job: Job, runs: Sequence[Run]) -> None:
        """A job is over: its runs go to the owner, and others get their turn."""
        del self._jobs[job]
        self._done.extend(runs)
        if not self._jobs:
            self._tell()
        elif not self._is_telling:
            # One waking of the owner for all that end within a moment.
            self._is_telling = True
            self.loop.call_later(_TELL_S, self._tell)
        self._start()
        if self._stopping:
            self._end_if_idle()

    def _tell(self) -> None:
        self._is_telling = False
        # is_set costs no lock; most of the time the owner has not yet looked at the last news.
        if self._done and not self._news.is_set():
            self._news.set()

    def _look(self) -> None:
        """Cancel what is over its time, and give back what somebody else has cancelled before it began."""
        now_ms = self._turned_ms = self._clock()
        for job in [job for job in self._jobs if job.task is not None and job.task.done()]:
            self._ended(job, job.unbegun())
        for job in self._jobs:
            if job.started_ms and not job.is_cut and now_ms - job.started_ms > self._timeout_ms:
                job.is_cut = True
                assert job.task is not None
                job.task.cancel()
        # A recall may have had in its hands what was looked for here when the last job ended.
        self._start()
        self.loop.call_later(self._look_s, self._look)

    def _answered(self, job: Job) -> None:
        """A handler has come to its end, cancelled or not."""
        if self._is_child:
            os._exit(FORKED)
        job.started_ms = 0
        if job.is_cut:
            job.is_cut = False
            assert job.task is not None
            job.task.uncancel()

    def _end_if_idle(self) -> None:
        if not self._jobs:
            self._is_over = True
            self.loop.stop()


class RunLoop(LoopPool):
    """Runs of single deliveries: a task for each run, its records one after another.

    Args:
        process: runs one record.
        unknown: the outcome of a handler that was cancelled.
        failed: what any other exception out of `process` means.
    """

    def __init__(
        self,
        process: ProcessAsync,
        unknown: Outcome,
        failed: Callable[[BaseException], Outcome],
        *,
        max_running: int,
        timeout_ms: int,
        clock: Callable[[], int],
    ) -> None:
        self._process = process
        self._unknown = unknown
        self._failed = failed
        self._waiting: deque[Run] = deque()
        super().__init__(max_running=max_running, timeout_ms=timeout_ms, clock=clock)

    def _put(self, runs: list[Run]) -> None:
        self._waiting.extend(runs)

    def _take_back(self, *, only_stopped: bool) -> list[Run]:
        back = []
        for _ in range(len(self._waiting)):
            try:
                run = self._waiting.popleft()
            except IndexError:
                break  # the loop was faster
            if run.stop or not only_stopped:
                back.append(run)
            else:
                self._waiting.append(run)
        return back

    def _is_waited_for(self) -> bool:
        return bool(self._waiting)

    def _next(self) -> Job | None:
        try:
            return Job((self._waiting.popleft(),))
        except IndexError:
            return None

    async def _do(self, job: Job) -> None:
        (run,) = job.runs
        process, clock, timeout_ms = self._process, self._clock, self._timeout_ms
        owner = cast("RunOwner", run.owner)
        topic, partition = owner.topic, owner.partition
        outcomes = run.outcomes
        for record in run.records:
            if run.stop or self._stopping:
                break
            run.started_ms = job.started_ms = now_ms = clock()
            try:
                outcome = await process(record, topic, partition, now_ms + timeout_ms)
            except asyncio.CancelledError as error:
                outcome = self._unknown if job.is_cut else self._failed(error)
            except BaseException as error:  # noqa: BLE001 - the loop lives on, whatever `process` broke
                outcome = self._failed(error)
            self._answered(job)
            outcomes.append(outcome)
            assert job.task is not None
            # A handler that has cancelled its own task must not meet the next one with it.
            if type(outcome.verdict) is not Ack or job.task.cancelling():
                break
        run.started_ms = 0
        self._ended(job, job.runs)


def _tell_of_a_task(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A task that a handler left behind has failed. Its message may quote a payload."""
    error = context.get("exception")
    log.error("on the event loop: %s", class_name(error) if error is not None else context.get("message", ""))
