"""Workers: every run comes back once, in order, and a slow one holds up nobody else."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from laneway.consumer.workers import FORKED, Process, Workers
from laneway.lanes.record import Channel, Record
from laneway.lanes.run import Run
from laneway.lanes.verdict import ACK, Outcome, Reject, Retry, Review, Verdict, Wait
from tests.waiting import eventually

DEADLINE_S = 20.0


@dataclass(frozen=True)
class Owner:
    topic: str = "invoices"
    partition: int = 3


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def run_of(lane: str, records: int = 1) -> Run:
    """A run whose records carry the lane's name and count from 1."""
    made = []
    for number in range(1, records + 1):
        record = Record(Channel.SOURCE, number, None, None)
        record.lane, record.sequence = lane, number
        made.append(record)
    return Run(lane, made, 1, Owner())


@contextmanager
def pool(
    process: Process, threads: int = 4, timeout_ms: int = 60_000, clock: Callable[[], int] = now_ms
) -> Iterator[Workers]:
    """Workers that are stopped at the end; a handler that waits must have been let go by then."""
    workers = Workers(process, threads=threads, timeout_ms=timeout_ms, clock=clock)
    try:
        yield workers
    finally:
        assert workers.stop(DEADLINE_S)


class InHands(deque[Run]):
    """What a thread has taken, and an owner that is slow to put it back.

    Args:
        meanwhile: called while the owner has a run in its hands.
    """

    def __init__(self, runs: Iterable[Run], meanwhile: Callable[[], None]) -> None:
        super().__init__(runs)
        self._meanwhile = meanwhile

    def popleft(self) -> Run:
        run = super().popleft()
        if threading.current_thread() is threading.main_thread():
            self._meanwhile()
        return run


def collect(workers: Workers, count: int) -> list[Run]:
    """The next `count` runs that end."""
    ended: list[Run] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(ended) < count:
        assert time.monotonic() < deadline, f"{len(ended)} of {count} runs ended"
        workers.wait(1.0)
        ended += workers.finished()
    return ended


def warm_up(workers: Workers) -> None:
    """Make the handler count as fast, so that a thread takes hundreds of runs at once."""
    for _ in range(40):
        workers.submit([run_of(f"warm-{number}") for number in range(200)])
        collect(workers, 200)


def ack(record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
    return ACK


def test_a_child_that_a_handler_forked_is_no_worker() -> None:
    """A child that comes back out of the handler ends there: it takes no run and holds nobody up."""
    ended: list[int] = []

    def fork(record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        child = os.fork()
        if child:
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return ACK

    with pool(fork, threads=1) as workers:
        workers.submit([run_of("a", 2), run_of("b")])
        collect(workers, 2)
    assert ended == [FORKED] * 3


def test_every_run_comes_back_once_and_its_records_ran_in_order() -> None:
    """Over many batches of mixed speed no run is lost or doubled, and no lane runs out of order."""
    ran: dict[str, list[int]] = {}
    dice = random.Random(7)

    def process(record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        if dice.random() < 0.01:
            time.sleep(0.007)  # a slow one now and then, so that chunks are taken back
        ran.setdefault(record.lane, []).append(record.sequence)
        return ACK

    ended: list[str] = []
    with pool(process, threads=8) as workers:
        for batch in range(20):
            runs = [run_of(f"{batch}-{lane}", dice.randint(1, 4)) for lane in range(100)]
            workers.submit(runs)
            ended += [run.lane for run in collect(workers, len(runs))]
        assert (workers.in_hand, workers.busy, workers.running()) == (0, 0, [])
    assert len(ended) == len(set(ended)) == 2000
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in ran.values())


def test_a_record_gets_place_and_deadline() -> None:
    """The processor is told source topic, partition and the time at which the record is overdue (S7)."""
    seen: list[tuple[str, int, int]] = []

    def process(record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        seen.append((topic, partition, deadline_ms))
        return ACK

    with pool(process, timeout_ms=500, clock=lambda: 1_000) as workers:
        workers.submit([run_of("a")])
        collect(workers, 1)
    assert seen == [("invoices", 3, 1_500)]


@pytest.mark.parametrize("verdict", [Retry("r"), Reject("r"), Review("r", "c"), Wait(1, "r")])
def test_a_run_stops_at_the_first_outcome_that_is_no_ack(verdict: Verdict | Wait) -> None:
    """N+1 never starts when N did not succeed: the rest comes back unstarted."""
    with pool(lambda r, *_: Outcome(verdict) if r.sequence == 2 else ACK) as workers:
        workers.submit([run_of("a", 4)])
        (run,) = collect(workers, 1)
    assert [outcome.verdict for outcome in run.outcomes] == [ACK.verdict, verdict]
    assert [record.sequence for record in run.unstarted()] == [3, 4]
    assert run.started_ms == 0


def test_a_run_that_is_told_to_stop_starts_nothing_more() -> None:
    """`stop` lets the record in the handler end, and keeps the next one from starting."""
    entered, go = threading.Event(), threading.Event()

    def process(record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        entered.set()
        assert go.wait(DEADLINE_S)
        return ACK

    with pool(process) as workers:
        run = run_of("a", 3)
        workers.submit([run])
        assert entered.wait(DEADLINE_S)
        run.stop = True
        go.set()
        assert collect(workers, 1) == [run]
    assert len(run.outcomes) == 1


def test_a_run_stopped_before_it_starts_comes_back_whole() -> None:
    """A run that is stopped while it waits for a thread is given back without an outcome."""
    run = run_of("a", 3)
    run.stop = True
    with pool(ack) as workers:
        workers.submit([run])
        assert collect(workers, 1) == [run]
    assert run.outcomes == []


def test_fast_runs_do_not_wait_behind_a_slow_one() -> None:
    """What stands behind a handler that hangs is taken over by other threads, and reported at once."""
    go = threading.Event()
    hang = threading.Event()

    def process(record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        if record.lane == "slow":
            hang.set()
            assert go.wait(DEADLINE_S)
        return ACK

    with pool(process, threads=2) as workers:
        warm_up(workers)
        slow = run_of("slow")
        workers.submit([run_of("before"), slow, *(run_of(f"after-{number}") for number in range(50))])
        assert len({run.lane for run in collect(workers, 51)} - {"slow"}) == 51
        assert hang.is_set()
        assert (workers.running(), workers.in_hand, workers.busy) == ([slow], 1, 1)
        go.set()
        assert collect(workers, 1) == [slow]


def test_slow_handlers_run_side_by_side() -> None:
    """As many slow records are in handlers as there are threads, also right after fast ones."""
    together = threading.Barrier(8)

    def process(record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        if record.lane.startswith("slow"):
            together.wait(DEADLINE_S)  # opens only when eight handlers stand here
        return ACK

    with pool(process, threads=8) as workers:
        warm_up(workers)
        workers.submit([run_of(f"slow-{number}") for number in range(8)])
        assert all(run.outcomes == [ACK] for run in collect(workers, 8))


def test_records_that_have_become_slower_are_shared_among_the_threads() -> None:
    """Hundreds of runs, taken by one thread as work for an instant, do not all stay with it at 2 ms each."""
    by_thread: Counter[int] = Counter()

    def process(record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        if record.lane.startswith("slower"):
            time.sleep(0.002)
            by_thread[threading.get_ident()] += 1
        return ACK

    with pool(process, threads=8) as workers:
        warm_up(workers)
        workers.submit([run_of(f"slower-{number}") for number in range(400)])
        collect(workers, 400)
    assert max(by_thread.values()) < 200, by_thread


def test_an_overdue_run_is_named_and_others_go_on() -> None:
    """A record past its timeout is reported with its run, and once it ended it is not."""
    clock = [1_000]
    go = threading.Event()

    def process(record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        if record.lane == "slow":
            assert go.wait(DEADLINE_S)
        return ACK

    with pool(process, timeout_ms=100, clock=lambda: clock[0]) as workers:
        slow = run_of("slow")
        workers.submit([slow])
        eventually(lambda: slow.started_ms, DEADLINE_S, "the handler to start")
        assert workers.overdue(1_100) == []
        assert workers.overdue(1_101) == [slow]
        clock[0] = 1_101
        workers.submit([run_of("other")])
        assert [run.lane for run in collect(workers, 1)] == ["other"]
        go.set()
        collect(workers, 1)
        assert workers.overdue(9_999) == []


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(1), KeyboardInterrupt()])
def test_an_exception_out_of_the_processor_kills_no_thread(error: BaseException) -> None:
    """Whatever escapes becomes a case for its record, and the thread takes the next run."""

    def process(record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        if record.lane == "bad":
            raise error
        return ACK

    with pool(process, threads=1) as workers:
        workers.submit([run_of("bad", 2)])
        (run,) = collect(workers, 1)
        assert [outcome.cause for outcome in run.outcomes] == ["unclassified-failure"]
        workers.submit([run_of("good")])
        assert collect(workers, 1)[0].outcomes == [ACK]


def test_finished_never_blocks_and_wait_ends_at_its_timeout() -> None:
    """With nothing to report the owner gets an empty list at once, and `wait` returns in time."""
    with pool(ack) as workers:
        assert workers.finished() == []
        before = time.monotonic()
        workers.wait(0.01)
        assert time.monotonic() - before < DEADLINE_S
        workers.submit([])
        assert workers.in_hand == 0


def test_stop_lets_running_records_end_and_gives_the_rest_back() -> None:
    """S4: a stop loses nothing: each run comes back, what did not start without an outcome."""
    entered, go = threading.Event(), threading.Event()

    def process(record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        entered.set()
        assert go.wait(DEADLINE_S)
        return ACK

    workers = Workers(process, threads=1, timeout_ms=60_000, clock=now_ms)
    first, second = run_of("a", 2), run_of("b", 2)
    workers.submit([first, second])
    assert entered.wait(DEADLINE_S)
    assert workers.stop(0) is False
    go.set()
    assert workers.stop(DEADLINE_S) is True
    late = run_of("late")
    workers.submit([late])
    ended = workers.finished()
    assert {run.lane for run in ended} == {"a", "b", "late"}
    assert (len(first.outcomes), second.outcomes, late.outcomes) == (1, [], [])
    assert workers.in_hand == 0


def test_a_thread_that_is_stuck_does_not_hold_the_process() -> None:
    """All threads are daemons: the process can end while a handler hangs."""
    with pool(ack, threads=2):
        named = [thread for thread in threading.enumerate() if thread.name.startswith("laneway-worker-")]
        assert len(named) >= 2
        assert all(thread.daemon for thread in named)


def test_what_a_recall_has_in_its_hands_is_not_forgotten() -> None:
    """A run that stays is taken out and put back; should its thread have gone to sleep, another runs it."""
    goes_on, entered = threading.Event(), threading.Event()

    def process(record: Record, *_: object) -> Outcome:
        entered.set()
        assert goes_on.wait(DEADLINE_S)
        return ACK

    with pool(process, threads=1) as workers:
        workers._record_s = 1e-6  # both in one chunk
        workers.submit([run_of("a"), run_of("b")])
        assert entered.wait(DEADLINE_S)
        (slot,) = workers._slots
        assert len(slot.taken) == 1

        def its_thread_sleeps() -> None:
            goes_on.set()
            eventually(lambda: slot in workers._idle, DEADLINE_S, "the thread to sleep")

        slot.taken = InHands(slot.taken, its_thread_sleeps)
        workers.recall()
        assert {run.lane for run in collect(workers, 2)} == {"a", "b"}
