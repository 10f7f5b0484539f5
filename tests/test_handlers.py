"""What may be a handler, a batch handler and a lifespan, and what somebody is told who writes another."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from laneway import Ack, Delivery, Pipeline, Reject, Retry, Review, TemporaryFailure
from laneway.errors import AppImportError
from laneway.lanes.record import Channel, Record
from laneway.lanes.verdict import Outcome


async def _async(delivery: Delivery[Any]) -> str:
    return delivery.effect_key


class _AsyncCallable:
    async def __call__(self, delivery: Delivery[Any]) -> str:
        return delivery.effect_key


def _record() -> Record:
    record = Record(Channel.SOURCE, 1, None, b"{}")
    record.effect_key, record.payload = "e-1", b"{}"
    return record


@pytest.mark.parametrize("function", [_async, partial(_async), _AsyncCallable(), _AsyncCallable().__call__])
def test_an_async_function_is_a_handler(function: Any) -> None:
    """However it is written down, a handler that must be awaited is awaited, and its answer counts."""
    pipeline: Pipeline[Any] = Pipeline()
    assert pipeline.handler(function) is function
    processor = pipeline.compile()
    assert processor.handler.is_async
    assert asyncio.run(processor.process_async(_record(), "t", 0, 0)) == Outcome(Ack("e-1"))


def test_a_returned_exception_is_no_ack() -> None:
    """As it came out of `asyncio.gather(..., return_exceptions=True)`: it means what it would mean raised."""
    pipeline: Pipeline[Any] = Pipeline(temporary=[TimeoutError])

    @pipeline.handler
    async def handle(delivery: Delivery[Any]) -> Any:
        return TimeoutError()

    outcome = asyncio.run(pipeline.compile().process_async(_record(), "t", 0, 0))
    assert outcome.verdict == Retry("temporary-failure")


@pytest.mark.parametrize("kind", [TemporaryFailure, ValueError, Retry, Reject, Review])
def test_a_class_for_an_answer_is_no_ack(kind: type, caplog: pytest.LogCaptureFixture) -> None:
    """`return TemporaryFailure` says that it failed, if not how: a person looks, and the log says why."""
    pipeline: Pipeline[Any] = Pipeline()

    @pipeline.handler
    def handle(delivery: Delivery[Any]) -> Any:
        return kind

    outcome = pipeline.compile().process(_record(), "t", 0, 0)
    assert (type(outcome.verdict), outcome.cause) == (Review, "unclassified-failure")
    assert f"returned the class {kind.__qualname__}" in caplog.text


def test_handler_and_batch_handler_are_one_too_many() -> None:
    """Whichever comes second is refused, and says which is there already and what to write (exit 2)."""
    pipeline: Pipeline[Any] = Pipeline()
    pipeline.handler(_async)
    with pytest.raises(AppImportError) as refused:
        pipeline.batch_handler(10, 5)(lambda deliveries: None)
    assert refused.value.what == "the pipeline already has the handler _async"
    assert "a second Pipeline" in refused.value.mend
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_size": 0}, "max_size is a whole number from 1 to 10000, not 0"),
        ({"max_size": "many"}, "max_size is a whole number"),
        ({"max_size": True}, "max_size is a whole number"),
        ({"max_wait_ms": -1}, "max_wait_ms is a whole number from 0 to 60000, not -1"),
        ({"max_wait_ms": 0.5}, "max_wait_ms is a whole number"),
        ({"max_size": 5, "max_per_lane": 6}, "max_per_lane is a whole number from 1 to 5, not 6"),
    ],
)
def test_a_bound_that_is_none_is_refused(arguments: dict[str, Any], words: str) -> None:
    """A bound of a batch is told with its range and with how to write it."""
    with pytest.raises(AppImportError, match=words) as refused:
        Pipeline(payload=dict).batch_handler(**arguments)
    assert "max_size=100, max_wait_ms=50" in refused.value.mend


def test_the_batch_decorator_without_parentheses_is_refused_in_our_words() -> None:
    """`@pipeline.batch_handler` over a function says what to write instead."""
    function: Any = lambda deliveries: None  # noqa: E731
    with pytest.raises(AppImportError, match="without parentheses") as refused:
        Pipeline(payload=dict).batch_handler(function)
    assert "@pipeline.batch_handler(max_size=100" in refused.value.mend


def test_a_batch_handler_takes_one_list() -> None:
    """A function of two arguments is told what it would get."""
    pipeline: Pipeline[Any] = Pipeline()
    with pytest.raises(AppImportError, match="one positional argument, the deliveries") as refused:
        pipeline.batch_handler()(lambda a, b: None)  # type: ignore[arg-type, misc]
    assert "list[Delivery[Model]]" in refused.value.mend


# Lifespans


def _sync_life() -> Iterator[None]:
    yield


async def _async_life() -> AsyncIterator[None]:
    yield


class _Manager:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("function", "is_async"),
    [
        (_sync_life, False),
        (contextlib.contextmanager(_sync_life), False),
        (contextlib.nullcontext, False),
        (_async_life, True),
        (contextlib.asynccontextmanager(_async_life), True),
        (_Manager, True),
    ],
)
def test_what_yields_once_is_a_lifespan(function: Any, is_async: bool) -> None:
    """A generator, plain or decorated, or a class of context managers; its kind is known at import."""
    pipeline: Pipeline[Any] = Pipeline()
    assert pipeline.lifespan(function) is function
    assert pipeline.life is not None
    assert pipeline.life.is_async is is_async


def test_a_lifespan_that_is_none_is_refused() -> None:
    """One that takes arguments or does not yield, and a second one, are told how it is written."""
    needy: Any = lambda needed: needed  # noqa: E731
    text: Any = "pool"
    with pytest.raises(AppImportError, match="takes no argument"):
        Pipeline(payload=dict).lifespan(needy)
    with pytest.raises(AppImportError, match="a lifespan is a function, not an object of class str"):
        Pipeline(payload=dict).lifespan(text)

    async def no_yield() -> None: ...

    with pytest.raises(AppImportError, match="yields once"):
        Pipeline(payload=dict).lifespan(no_yield)
    pipeline: Pipeline[Any] = Pipeline()
    pipeline.lifespan(_sync_life)
    with pytest.raises(AppImportError, match="already has the lifespan _sync_life"):
        pipeline.lifespan(_async_life)


def test_an_async_lifespan_needs_an_async_handler() -> None:
    """Without an event loop nothing could enter it: said before anything starts."""
    pipeline: Pipeline[Any] = Pipeline()
    pipeline.lifespan(_async_life)
    pipeline.handler(lambda delivery: None)
    with pytest.raises(AppImportError, match="an async lifespan needs an async handler") as refused:
        pipeline.compile()
    assert refused.value.mend == "write the lifespan as `def`, or the handler as `async def`"


# The docs


def test_every_example_of_the_page_works() -> None:
    """Each block of docs/verdicts.md runs as it stands, and its pipeline can be compiled."""
    page = (Path(__file__).parents[1] / "docs" / "verdicts.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    kinds = []
    for block in blocks:
        names: dict[str, Any] = {}
        exec(block, names)  # noqa: S102 - it is ours
        handler = names["pipeline"].compile().handler
        kinds.append((handler.name, handler.is_async, handler.batch is not None))
    assert kinds == [("remind", True, False), ("store", False, True), ("remind", True, False)]


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_preview_takes_any_kind_of_handler(is_batch: bool) -> None:
    """`laneway preview` runs no handler, so what kind it is, and its lifespan, make no difference there."""
    pipeline: Pipeline[Any] = Pipeline()
    pipeline.lifespan(_async_life)
    if is_batch:
        pipeline.batch_handler()(lambda deliveries: None)
    else:
        pipeline.handler(_async)
    assert pipeline.compile_reading().process(_record(), "t", 0, 0) == Outcome(Ack())
