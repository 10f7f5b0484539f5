"""What every pool promises, whatever kind of handler it runs: threads, a loop, and batches on either."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import defaultdict
from typing import Any

import pytest

from laneway import Delivery, PermanentFailure, Reject, Retry, Review, TemporaryFailure, Unavailable
from laneway.consumer.running.pool import pool_for
from laneway.lanes.run import Run
from tests.consumer.pools import (
    DEADLINE_S,
    KINDS,
    collect,
    pipeline_of,
    pool_of,
    run_of,
    settings,
    verdicts,
)

pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_every_run_comes_back_once_and_its_records_ran_in_order(kind: str) -> None:
    """Over many submissions no run is lost or doubled, and no lane runs out of order (S16)."""
    ran: dict[str, list[int]] = defaultdict(list)
    dice = random.Random(7)

    def handle(delivery: Delivery[Any]) -> str:
        ran[delivery.sequence_key or ""].append(delivery.sequence or 0)
        return delivery.effect_key

    ended: list[str] = []
    with pool_of(pipeline_of(kind, handle)) as pool:
        for number in range(10):
            runs = [run_of(f"{number}-{lane}", dice.randint(1, 4)) for lane in range(50)]
            pool.submit(runs)
            back = collect(pool, len(runs))
            ended += [run.lane for run in back]
            for run in back:
                keys = [outcome.verdict.result_key for outcome in run.outcomes]  # type: ignore[union-attr]
                assert keys == [record.effect_key for record in run.records], "an answer of another record"
        assert (pool.in_hand, pool.busy) == (0, 0)
    assert len(ended) == len(set(ended)) == 500
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in ran.values())


@pytest.mark.parametrize(
    "answer",
    [
        Retry("r"),
        Reject("r"),
        Review("r", "c"),
        TemporaryFailure("t"),
        PermanentFailure("p"),
        Unavailable(5),
        ValueError("v"),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_a_run_stops_at_the_first_outcome_that_is_no_ack(kind: str, answer: Any) -> None:
    """N+1 never starts when N did not succeed: the rest comes back unstarted (S16)."""
    ran: list[int] = []

    def handle(delivery: Delivery[Any]) -> Any:
        ran.append(delivery.sequence or 0)
        if delivery.sequence == 2:
            if isinstance(answer, Exception):
                raise answer
            return answer
        return None

    with pool_of(pipeline_of(kind, handle)) as pool:
        pool.submit([run_of("a", 4)])
        (run,) = collect(pool, 1)
    expected = {TemporaryFailure: "Retry", PermanentFailure: "Reject", ValueError: "Review"}
    expected[Unavailable] = "Wait"
    assert verdicts(run) == ["Ack", expected.get(type(answer), type(answer).__name__)]
    assert [record.sequence for record in run.unstarted()] == [3, 4]
    assert ran == [1, 2]
    assert run.started_ms == 0


def test_a_run_that_is_told_to_stop_starts_nothing_more(kind: str) -> None:
    """`stop` lets the record in the handler end, and keeps the next one from starting (S4)."""
    run = run_of("a", 3)

    def handle(delivery: Delivery[Any]) -> None:
        run.stop = True

    with pool_of(pipeline_of(kind, handle)) as pool:
        pool.submit([run])
        assert collect(pool, 1) == [run]
    assert len(run.outcomes) == 1


def test_what_no_handler_has_begun_is_given_back_at_once(kind: str) -> None:
    """A partition that leaves does not wait for other partitions' handlers before its runs come back."""
    go, entered = threading.Event(), threading.Event()

    def handle(delivery: Delivery[Any]) -> None:
        entered.set()
        assert go.wait(DEADLINE_S)

    one = settings(workers=1, max_running=1)
    with pool_of(pipeline_of(kind, handle, max_size=1), one) as pool:
        pool.submit([run_of("first")])
        assert entered.wait(DEADLINE_S)
        leaving, staying = run_of("leaving"), run_of("staying")
        pool.submit([leaving, staying])
        leaving.stop = True
        pool.recall()
        assert collect(pool, 1) == [leaving]
        assert leaving.outcomes == []
        go.set()
        assert {run.lane for run in collect(pool, 2)} == {"first", "staying"}


def test_no_more_are_under_way_than_the_settings_say(kind: str) -> None:
    """S3: `lanes.workers` and `lanes.max_running` bound how many handlers run at once, and all are used."""
    lock, now, most = threading.Lock(), [0], [0]
    together = threading.Barrier(3)

    def handle(delivery: Delivery[Any]) -> Any:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        if "async" in kind:
            return later()
        together.wait(DEADLINE_S)  # opens only when three handlers stand here
        with lock:
            now[0] -= 1
        return None

    async def later() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        now[0] -= 1

    given = settings(workers=3, max_running=3)
    with pool_of(pipeline_of(kind, handle, max_size=1), given) as pool:
        pool.submit([run_of(f"lane-{number}") for number in range(30)])
        collect(pool, 30)
    assert most == [3]


def test_a_pool_is_fed_while_more_waits_than_may_be_under_way(kind: str) -> None:
    """The owner may rest only then: with a handler that has nothing to do, every moment of it would cost."""
    go, entered = threading.Event(), threading.Semaphore(0)

    def handle(delivery: Delivery[Any]) -> Any:
        entered.release()
        if "async" in kind:
            return later()
        assert go.wait(DEADLINE_S)
        return None

    async def later() -> None:
        assert await asyncio.to_thread(go.wait, DEADLINE_S)

    def wait_for(count: int) -> None:
        for _ in range(count):
            assert entered.acquire(timeout=DEADLINE_S)

    with pool_of(pipeline_of(kind, handle, max_size=1), settings(workers=2, max_running=2)) as pool:
        fed = [pool.fed_s > 0]
        pool.submit([run_of("a")])
        wait_for(1)
        fed.append(pool.fed_s > 0)
        pool.submit([run_of("b")])
        wait_for(1)
        fed.append(pool.fed_s > 0)
        pool.submit([run_of("c")])
        fed.append(pool.fed_s > 0)
        go.set()
        collect(pool, 3)
        fed.append(pool.fed_s > 0)
    assert fed == [False, False, False, True, False]


def test_stop_lets_running_records_end_and_gives_the_rest_back(kind: str) -> None:
    """S4: a stop loses nothing: each run comes back, what did not start without an outcome."""
    go, entered = threading.Event(), threading.Event()

    def handle(delivery: Delivery[Any]) -> None:
        entered.set()
        assert go.wait(DEADLINE_S)

    pipeline = pipeline_of(kind, handle, max_size=1)
    pool = pool_for(pipeline.compile(), settings(workers=1, max_running=1), clock=lambda: 1)
    first, second = run_of("a", 2), run_of("b", 2)
    pool.submit([first])
    assert entered.wait(DEADLINE_S)
    pool.submit([second])
    assert pool.stop(0) is False
    go.set()
    assert pool.stop(DEADLINE_S) is True
    late = run_of("late")
    pool.submit([late])
    ended = pool.finished()
    assert sorted(run.lane for run in ended) == ["a", "b", "late"]
    assert (len(first.outcomes), second.outcomes, late.outcomes) == (1, [], [])
    assert pool.in_hand == 0


def test_a_payload_that_does_not_fit_meets_no_handler(kind: str) -> None:
    """It is rejected in its turn, and the handler gets the others (S9)."""
    seen: list[str] = []

    def handle(delivery: Delivery[Any]) -> None:
        seen.append(delivery.effect_key)

    pipeline = pipeline_of(kind, handle, max_per_lane=4)
    pipeline._payload = dict[str, int]
    bad = run_of("bad", 3)
    bad.records[1].payload = b'{"n":"text"}'
    with pool_of(pipeline) as pool:
        pool.submit([bad, run_of("good", 2)])
        collect(pool, 2)
    assert verdicts(bad) == ["Ack", "Reject"]
    assert sorted(seen) == ["bad:1", "good:1", "good:2"]


def test_what_escapes_a_handler_ends_nothing(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """SystemExit and its like become a case of that record; the pool takes the next run (S8)."""

    def handle(delivery: Delivery[Any]) -> None:
        if delivery.sequence_key == "bad":
            raise SystemExit(3)

    with caplog.at_level(logging.CRITICAL), pool_of(pipeline_of(kind, handle, max_size=1)) as pool:
        pool.submit([run_of("bad", 2)])
        (run,) = collect(pool, 1)
        assert [outcome.cause for outcome in run.outcomes] == ["unclassified-failure"]
        pool.submit([run_of("good")])
        assert verdicts(collect(pool, 1)[0]) == ["Ack"]


def test_what_is_emitted_belongs_to_its_delivery(kind: str) -> None:
    """Each outcome carries what its own handler emitted."""

    def handle(delivery: Delivery[Any]) -> None:
        delivery.emit("told", None, delivery.effect_key.encode())

    with pool_of(pipeline_of(kind, handle)) as pool:
        pool.submit([run_of(f"lane-{number}") for number in range(5)])
        for run in collect(pool, 5):
            assert [each.value for each in run.outcomes[0].emitted] == [run.records[0].effect_key.encode()]


def test_a_deadline_is_the_start_and_the_timeout(kind: str) -> None:
    """A delivery knows when it is overdue (S7)."""
    seen: list[int] = []
    given = settings(timeout_ms=500)
    handle = lambda delivery: seen.append(delivery.deadline_ms)  # noqa: E731
    with pool_of(pipeline_of(kind, handle, max_wait_ms=0), given, clock=lambda: 1_000) as pool:
        pool.submit([run_of("a")])
        collect(pool, 1)
    assert seen == [1_500]


def test_recalls_in_the_middle_lose_and_double_nothing(kind: str) -> None:
    """4.5: whatever is taken back while handlers run: each run ends once, and what ran is in order."""
    dice = random.Random(11)
    ran: dict[str, list[int]] = defaultdict(list)

    def handle(delivery: Delivery[Any]) -> None:
        ran[delivery.sequence_key or ""].append(delivery.sequence or 0)

    runs = [run_of(f"lane-{number}", dice.randint(1, 5)) for number in range(600)]
    back: list[Run] = []
    pipeline = pipeline_of(kind, handle, max_size=5, max_wait_ms=1, max_per_lane=2)
    with pool_of(pipeline, settings(workers=3, max_running=7)) as pool:
        for start in range(0, len(runs), 30):
            some = runs[start : start + 30]
            pool.submit(some)
            for run in dice.sample(some, 8):
                run.stop = True
            pool.recall()
            back += pool.finished()
        back += collect(pool, len(runs) - len(back))
        assert pool.in_hand == 0
    assert sorted(run.lane for run in back) == sorted(run.lane for run in runs)
    for run in runs:
        assert ran[run.lane] == list(range(1, len(run.outcomes) + 1))
        assert run.stop or len(run.outcomes) == len(run.records)
