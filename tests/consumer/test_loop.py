"""The event loop: what is cancelled, what is overdue, and what a handler cannot break."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
from collections import deque
from typing import Any

import pytest

from laneway import Delivery, Pipeline, TemporaryFailure
from laneway.consumer.running.loop import BLOCKED_MS, GRACE_MS, RunLoop
from laneway.consumer.workers import FORKED
from laneway.lanes.run import Run
from laneway.lanes.verdict import Outcome, Retry, Review
from tests.consumer.pools import (
    DEADLINE_S,
    collect,
    now_ms,
    pipeline_of,
    pool_of,
    run_of,
    settings,
    verdicts,
)
from tests.waiting import eventually

RUN_AGAIN = Outcome(Retry("handler-timeout"), "handler-timeout")
ASK = Outcome(Review("outcome-unknown", ""), "outcome-unknown")


def test_many_handlers_wait_at_once() -> None:
    """Hundreds of lanes are under way together on one thread, each in its own order."""
    pipeline: Pipeline[Any] = Pipeline()
    inside, most = 0, 0
    opened = asyncio.Event()

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if inside == 200:
            opened.set()
        await opened.wait()
        inside -= 1

    with pool_of(pipeline, settings(max_running=200)) as pool:
        pool.submit([run_of(f"lane-{number}", 2) for number in range(200)])
        assert all(verdicts(run) == ["Ack", "Ack"] for run in collect(pool, 200))
    assert most == 200


@pytest.mark.parametrize(("review", "outcome"), [(False, RUN_AGAIN), (True, ASK)])
def test_a_handler_over_its_time_is_cancelled(review: bool, outcome: Outcome) -> None:
    """4.3, 4.6: nobody knows what it did: it runs again, or a person is asked. Others go on."""
    pipeline: Pipeline[Any] = Pipeline()
    cleaned: list[str] = []

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        if delivery.sequence_key == "slow":
            try:
                await asyncio.sleep(DEADLINE_S)
            finally:
                cleaned.append(delivery.effect_key)

    with pool_of(pipeline, settings(timeout_ms=50, review=review)) as pool:
        slow = run_of("slow", 3)
        pool.submit([slow, run_of("quick", 3)])
        ended = {run.lane: run for run in collect(pool, 2)}
        assert pool.overdue(now_ms()) == []
    assert verdicts(ended["quick"]) == ["Ack"] * 3
    assert slow.outcomes == [outcome]
    assert len(slow.unstarted()) == 2
    assert cleaned == ["slow:1"]


def test_a_cancelled_handler_that_still_answers_is_believed() -> None:
    """It knows what it has done; and what comes behind it in its lane is not cancelled for it."""
    pipeline: Pipeline[Any] = Pipeline()

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> str:
        if delivery.sequence != 1:
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
            await asyncio.sleep(0.01)
            return "as usual"
        try:
            await asyncio.sleep(DEADLINE_S)
        except asyncio.CancelledError:
            if delivery.sequence_key == "undone":
                raise TemporaryFailure("rolled back") from None
        return "done all the same"

    with pool_of(pipeline, settings(timeout_ms=40)) as pool:
        pool.submit([run_of("done", 3), run_of("undone", 2)])
        ended = {run.lane: run for run in collect(pool, 2)}
    keys = [outcome.verdict.result_key for outcome in ended["done"].outcomes]  # type: ignore[union-attr]
    assert keys == ["done all the same", "as usual", "as usual"]
    assert [outcome.verdict for outcome in ended["undone"].outcomes] == [Retry("rolled back")]


def test_a_handler_that_swallows_its_cancellation_is_overdue() -> None:
    """4.6: as a sync one: it is named, its lane waits, others go on, and its answer counts in the end."""
    pipeline: Pipeline[Any] = Pipeline()
    go: list[bool] = []

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        while delivery.sequence_key == "stubborn" and not go:
            try:  # noqa: SIM105 - as people write it
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                pass

    with pool_of(pipeline, settings(timeout_ms=30)) as pool:
        stubborn = run_of("stubborn", 2)
        pool.submit([stubborn])
        eventually(lambda: stubborn.started_ms, DEADLINE_S, "the handler to start")
        assert pool.overdue(stubborn.started_ms + 30 + GRACE_MS) == []
        eventually(lambda: pool.overdue(now_ms()) == [stubborn], DEADLINE_S, "it to be overdue")
        pool.submit([run_of("other")])
        assert [run.lane for run in collect(pool, 1)] == ["other"]
        go.append(True)
        assert collect(pool, 1) == [stubborn]
        assert verdicts(stubborn) == ["Ack", "Ack"]
        assert pool.overdue(now_ms() + 10_000) == []


def test_a_handler_that_blocks_the_loop_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing can be cancelled while it blocks, so people are told where it stands, once."""
    pipeline: Pipeline[Any] = Pipeline()
    go = threading.Event()
    skew = [0]

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        blocks_right_here()

    def blocks_right_here() -> None:
        assert go.wait(DEADLINE_S)

    with pool_of(pipeline, settings(timeout_ms=100), lambda: now_ms() + skew[0]) as pool:
        run = run_of("a")
        pool.submit([run])
        eventually(lambda: run.started_ms, DEADLINE_S, "the handler to start")
        assert pool.overdue(now_ms()) == []
        with caplog.at_level(logging.ERROR):
            assert pool.overdue(now_ms() + BLOCKED_MS + GRACE_MS + 100) == [run]
            pool.overdue(now_ms() + BLOCKED_MS + GRACE_MS + 200)
        go.set()
        collect(pool, 1)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "the event loop has not turned" in told[0]
    assert "in blocks_right_here" in told[0]


def test_a_cancellation_of_the_handlers_own_is_no_timeout() -> None:
    """A handler that lets another cancellation through has failed in a way that nobody listed (S8)."""
    pipeline: Pipeline[Any] = Pipeline()

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        inner = asyncio.create_task(asyncio.sleep(DEADLINE_S))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner

    with pool_of(pipeline) as pool:
        pool.submit([run_of("a")])
        (run,) = collect(pool, 1)
    assert [outcome.cause for outcome in run.outcomes] == ["unclassified-failure"]
    assert run.outcomes[0].error_class == "asyncio.exceptions.CancelledError"


def test_a_timeout_of_the_handlers_own_is_its_own() -> None:
    """`asyncio.timeout` inside a handler raises TimeoutError as ever, listed as temporary by default."""
    pipeline: Pipeline[Any] = Pipeline(temporary=[TimeoutError])

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(DEADLINE_S)

    with pool_of(pipeline, settings(timeout_ms=5_000)) as pool:
        pool.submit([run_of("a")])
        (run,) = collect(pool, 1)
    assert run.outcomes[0].verdict == Retry("temporary-failure")


def test_what_a_handler_leaves_behind_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A task of its own that fails, even with SystemExit, is told without its message; others go on (S20)."""
    pipeline: Pipeline[Any] = Pipeline()
    left: set[asyncio.Task[None]] = set()

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        async def fail() -> None:
            raise SystemExit("4711-PRIVATE") if delivery.sequence == 1 else ValueError("4711-PRIVATE")

        if delivery.sequence_key == "leaves":
            left.add(asyncio.create_task(fail()))
            await asyncio.sleep(0.01)
            left.clear()

    with caplog.at_level(logging.ERROR), pool_of(pipeline) as pool:
        pool.submit([run_of("leaves", 2)])
        collect(pool, 1)
        pool.submit([run_of("good")])
        assert verdicts(collect(pool, 1)[0]) == ["Ack"]
    assert "SystemExit" in caplog.text
    assert "4711-PRIVATE" not in caplog.text


def test_runs_do_not_see_each_others_context() -> None:
    """A context variable that one lane's handler sets, and forgets, is not set in another lane's."""
    pipeline: Pipeline[Any] = Pipeline()
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
    seen: list[str] = []

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        seen.append(tenant.get())
        tenant.set(delivery.effect_key)

    with pool_of(pipeline, settings(max_running=1)) as pool:
        pool.submit([run_of(f"lane-{number}") for number in range(20)])
        collect(pool, 20)
    assert seen == ["nobody"] * 20


def test_a_handler_that_never_waits_lets_others_in() -> None:
    """Handlers that do not await anything do not keep a cancelled one, or a quick lane, waiting for ever."""
    pipeline: Pipeline[Any] = Pipeline()
    over: list[str] = []

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        if delivery.sequence_key == "polite":
            await asyncio.sleep(0)
        else:
            time.sleep(0.0005)
        over.append(delivery.sequence_key or "")

    with pool_of(pipeline, settings(max_running=4)) as pool:
        pool.submit([run_of("polite"), *(run_of(f"greedy-{number}", 10) for number in range(50))])
        collect(pool, 51)
    assert over.index("polite") < 100


def test_a_child_that_an_async_handler_forked_is_no_worker() -> None:
    """A child that comes back out of the handler ends there: it takes no run and holds nobody up."""
    pipeline: Pipeline[Any] = Pipeline()
    ended: list[int] = []

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        child = os.fork()
        if child:
            ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with pool_of(pipeline) as pool:
        pool.submit([run_of("a", 2), run_of("b")])
        collect(pool, 2)
    assert ended == [FORKED] * 3


def test_a_handler_that_stops_the_loop_stops_nobody() -> None:
    """The loop is the worker's: whoever stops it from inside keeps no other handler from running."""
    pipeline: Pipeline[Any] = Pipeline()

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.001)

    with pool_of(pipeline) as pool:
        pool.submit([run_of("a", 2), run_of("b", 2)])
        assert all(verdicts(run) == ["Ack", "Ack"] for run in collect(pool, 2))


@pytest.mark.parametrize("kind", ["async", "async batch"])
def test_a_handler_that_cancels_everybody_loses_nobody(kind: str) -> None:
    """What is cancelled before it began comes back unstarted; its lane does not wait for ever."""
    reached: list[str] = []

    async def handle(delivery: Delivery[Any]) -> None:
        reached.append(delivery.effect_key)
        if len(reached) == 1:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

    with pool_of(pipeline_of(kind, handle, max_size=1)) as pool:
        pool.submit([run_of(lane) for lane in "abc"])
        ended = collect(pool, 3)
        assert next(run for run in ended if verdicts(run) == ["Ack"]).lane == "a"
        assert sorted(run.lane for run in ended if run.unstarted()) == ["b", "c"]
        assert (reached, pool.in_hand, pool.busy) == (["a:1"], 0, 0)
        assert all(run.started_ms == 0 for run in ended)


def test_what_a_recall_has_in_its_hands_is_not_forgotten() -> None:
    """A run that stays is taken out and put back; when the last job ends meanwhile, it starts."""
    pipeline: Pipeline[Any] = Pipeline()
    goes_on = threading.Event()

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        while not goes_on.is_set():
            await asyncio.sleep(0.001)

    class InHands(deque[Run]):
        """What waits, and a recall that is slow."""

        def popleft(self) -> Run:
            run = super().popleft()
            if threading.current_thread() is threading.main_thread():
                goes_on.set()
                eventually(lambda: not pool.busy, DEADLINE_S, "the end of the last job")
            return run

    with pool_of(pipeline, settings(max_running=1)) as pool:
        assert isinstance(pool, RunLoop)
        pool._waiting = InHands()
        pool.submit([run_of("a"), run_of("b")])
        eventually(lambda: pool.busy, DEADLINE_S, "the first")
        pool.recall()
        assert [verdicts(run) for run in collect(pool, 2)] == [["Ack"], ["Ack"]]


def test_a_handler_that_cancels_itself_meets_the_next_record_with_nothing() -> None:
    """It answered, so it is believed; what stands behind it in its run comes back and runs in its turn."""
    pipeline: Pipeline[Any] = Pipeline()

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        if delivery.sequence == 1:
            task.cancel()
        else:
            await asyncio.sleep(0)

    with pool_of(pipeline) as pool:
        pool.submit([run_of("a", 2)])
        (run,) = collect(pool, 1)
        assert verdicts(run) == ["Ack"]
        assert len(run.unstarted()) == 1
