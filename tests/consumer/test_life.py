"""Lifespans: entered before the first delivery, left after the last, on the loop where there is one."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from laneway import Delivery, Pipeline
from laneway.consumer.running.life import Life
from laneway.errors import LanewayError
from tests.consumer.pools import DEADLINE_S, collect, pool_of, run_of
from tests.waiting import eventually

Told = list[tuple[str, str]]


def never() -> bool:
    return False


def pipeline_of(handler: str, life: str, told: Told) -> Pipeline[Any]:
    """A pipeline that writes down what happens, on which thread."""
    pipeline: Pipeline[Any] = Pipeline()

    def tell(what: str) -> None:
        told.append((what, threading.current_thread().name))

    def on_threads() -> Iterator[None]:
        tell("enter")
        yield
        tell("leave")

    async def on_a_loop() -> AsyncIterator[None]:
        await asyncio.sleep(0)
        tell("enter")
        yield
        await asyncio.sleep(0)
        tell("leave")

    pipeline.lifespan(on_a_loop if life == "async" else on_threads)

    async def handle_later(delivery: Delivery[Any]) -> None:
        tell("run")

    pipeline.handler(handle_later if handler == "async" else lambda delivery: tell("run"))
    return pipeline


@pytest.mark.parametrize(
    ("handler", "life", "thread"),
    [("def", "def", "MainThread"), ("async", "def", "laneway-loop"), ("async", "async", "laneway-loop")],
)
def test_a_lifespan_surrounds_all_deliveries(handler: str, life: str, thread: str) -> None:
    """It is entered first and left last; an async handler's on its own loop, in one task."""
    told: Told = []
    pipeline = pipeline_of(handler, life, told)
    with pool_of(pipeline) as pool:
        lives = Life(pipeline.life, pool)
        lives.open(never)
        pool.submit([run_of("a", 2)])
        collect(pool, 1)
        lives.close(DEADLINE_S)
    assert [what for what, _ in told] == ["enter", "run", "run", "leave"]
    assert {where for what, where in told if what != "run"} == {thread}


@pytest.mark.parametrize("handler", ["def", "async"])
def test_a_lifespan_that_fails_as_it_is_entered_ends_the_start(handler: str) -> None:
    """Nothing is read: the worker says which lifespan failed, with what, and ends."""

    def broken() -> Iterator[None]:
        connect()
        yield

    def connect() -> None:
        raise ConnectionError("no database at db:5432")

    pipeline = pipeline_of(handler, "def", [])
    pipeline.life = None
    pipeline.lifespan(broken)
    with pool_of(pipeline) as pool:
        lives = Life(pipeline.life, pool)
        with pytest.raises(LanewayError, match="no database at db:5432") as failed:
            lives.open(never)
        assert failed.value.exit_code == 1
        assert "broken" in failed.value.where
        lives.close(DEADLINE_S)


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
@pytest.mark.parametrize("handler", ["def", "async"])
def test_a_lifespan_that_fails_as_it_is_left_spoils_nothing(
    handler: str, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """All is settled by then: the failure is told, without its message, and the worker ends as it would."""

    def broken() -> Iterator[None]:
        yield
        raise kind("4711-PRIVATE")

    pipeline = pipeline_of(handler, "def", [])
    pipeline.life = None
    pipeline.lifespan(broken)
    with caplog.at_level(logging.ERROR), pool_of(pipeline) as pool:
        lives = Life(pipeline.life, pool)
        lives.open(never)
        lives.close(DEADLINE_S)
    assert f"builtins.{kind.__name__}" in caplog.text
    assert "4711-PRIVATE" not in caplog.text


def test_a_start_that_is_told_to_stop_does_not_wait_for_its_lifespan() -> None:
    """A pool that finds no database must not keep a worker from stopping."""
    pipeline: Pipeline[Any] = Pipeline()

    async def endless() -> AsyncIterator[None]:
        await asyncio.sleep(DEADLINE_S)
        yield

    async def handle(delivery: Delivery[Any]) -> None: ...

    pipeline.lifespan(endless)
    pipeline.handler(handle)
    asked = iter([False, False, True])
    gives_up: Callable[[], bool] = lambda: next(asked)  # noqa: E731
    with pool_of(pipeline) as pool:
        lives = Life(pipeline.life, pool)
        lives.open(gives_up)
        lives.close(DEADLINE_S)


def test_what_handlers_still_use_is_not_closed() -> None:
    """A handler that outlives the drain keeps its pool; the process ends with it."""
    told: Told = []
    pipeline = pipeline_of("def", "def", told)
    go, entered = threading.Event(), threading.Event()
    pipeline._handler = None

    @pipeline.handler
    def handle(delivery: Delivery[Any]) -> None:
        entered.set()
        assert go.wait(DEADLINE_S)

    with pool_of(pipeline) as pool:
        lives = Life(pipeline.life, pool)
        lives.open(never)
        pool.submit([run_of("a")])
        assert entered.wait(DEADLINE_S)
        lives.close(DEADLINE_S)
        assert [what for what, _ in told] == ["enter"]
        go.set()


def test_a_lifespan_that_ends_in_the_middle_ends_the_worker() -> None:
    """A background task of its own fails, and closes the pools: the worker must not go on without them."""
    pipeline: Pipeline[Any] = Pipeline()
    opened = threading.Event()

    async def renew() -> None:
        await asyncio.to_thread(opened.wait, DEADLINE_S)
        raise ValueError("4711-PRIVATE")

    @pipeline.lifespan
    async def pool_and_token() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(renew())
            yield

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> None: ...

    with pool_of(pipeline) as pool:
        lives = Life(pipeline.life, pool)
        assert lives.failure() is None
        lives.open(never)
        opened.set()

        def is_seen() -> bool:
            failure = lives.failure()
            assert failure is not None
            assert "builtins.ValueError" in failure.what
            assert "4711-PRIVATE" not in str(failure)
            assert "pool_and_token" in failure.where
            return True

        eventually(is_seen, DEADLINE_S, "the end of the lifespan")
        lives.close(DEADLINE_S)
