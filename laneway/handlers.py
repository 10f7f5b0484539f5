"""What a function must be to be a handler, and which kind of handler it is.

    def              runs in one of `lanes.workers` threads
    async def        runs on one event loop, at most `lanes.max_running` at once
    batch_handler    either of the two, with a list of deliveries

Everything is found out when the application is imported; a mistake is told with how to write it instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from laneway.errors import AppImportError
from laneway.payload import name_of

MAX_BATCH: Final = 10_000
MAX_WAIT_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How many deliveries a batch handler is given at once.

    Attributes:
        max_size: at most so many.
        max_wait_ms: how long the first one waits for others.
        max_per_lane: of one lane at most so many, one behind the other.
    """

    max_size: int
    max_wait_ms: int
    max_per_lane: int = 1


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that takes deliveries.

    Attributes:
        is_async: calling it gives a coroutine.
        batch: what it takes at once; None for a handler of single deliveries.
    """

    function: Callable[[Any], Any]
    is_async: bool = False
    batch: BatchLimits | None = None

    @property
    def name(self) -> str:
        """What it is called in the application."""
        return name_of(self.function)


def handler_of(function: object, batch: BatchLimits | None = None) -> Handler:
    """Look at a function, and say which kind of handler it is.

    Raises:
        AppImportError: it is none: no function, a generator, or it cannot be called with one argument.
    """
    takes, written = ("deliveries", "list[Delivery[Model]]") if batch else ("delivery", "Delivery[Model]")
    if not callable(function) or isinstance(function, type):
        raise AppImportError(
            f"a handler is a function, not {name_of(function)}",
            mend=f"write @pipeline.handler over `def handle({takes}: {written})`",
        )
    called = called_by(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise AppImportError(
            "a handler returns, it does not yield: nobody would run the body of this generator",
            where=name_of(function),
            mend="return the result key or a verdict, and take out the `yield`",
        )
    is_async = inspect.iscoroutinefunction(called)
    try:
        signature = inspect.signature(function)
    except ValueError:
        return Handler(function, is_async, batch)  # a builtin that does not tell its signature
    try:
        signature.bind(object())
    except TypeError:
        raise AppImportError(
            f"the handler must take exactly one positional argument, the {takes}",
            where=f"{name_of(function)}({', '.join(signature.parameters)})",
            mend=f"write it as `{'async ' if is_async else ''}def handle({takes}: {written})`",
        ) from None
    return Handler(function, is_async, batch)


def called_by(function: Callable[..., object]) -> object:
    """The function whose body runs when this is called: behind partials and callable objects."""
    inner: object = function
    while isinstance(inner, partial):
        inner = inner.func
    return inner if inspect.isroutine(inner) else type(inner).__call__


def batch_limits(max_size: object, max_wait_ms: object, max_per_lane: object) -> BatchLimits:
    """Check the arguments of `@pipeline.batch_handler(...)`.

    Raises:
        AppImportError: one of them is no number in its range.
    """
    if callable(max_size):
        raise AppImportError(
            "@pipeline.batch_handler is written without parentheses",
            where=name_of(max_size),
            mend="write @pipeline.batch_handler(max_size=100, max_wait_ms=50)",
        )
    size = _number("max_size", max_size, 1, MAX_BATCH)
    wait_ms = _number("max_wait_ms", max_wait_ms, 0, MAX_WAIT_MS)
    return BatchLimits(size, wait_ms, _number("max_per_lane", max_per_lane, 1, size))


def _number(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        shown = value if isinstance(value, int) else name_of(value)
        raise AppImportError(
            f"{name} is a whole number from {low} to {high}, not {shown}",
            where="@pipeline.batch_handler",
            mend="write @pipeline.batch_handler(max_size=100, max_wait_ms=50)",
        )
    return value
