"""What lives as long as a worker: `@pipeline.lifespan`, for pools and clients that handlers share.

Entered before the first delivery and left after the last one. Boundary: this says what may be a lifespan;
`consumer/running/life.py` enters and leaves it.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any

from laneway.errors import AppImportError
from laneway.handlers import called_by
from laneway.payload import name_of

Manager = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]


@dataclass(frozen=True, slots=True)
class Lifespan:
    """How to make the context manager of a worker.

    Attributes:
        make: called once, when the worker starts.
        is_async: it must be entered on an event loop.
    """

    make: Callable[[], Manager]
    is_async: bool

    @property
    def name(self) -> str:
        """What it is called in the application."""
        return name_of(self.make)


def lifespan_of(function: object) -> Lifespan:
    """Look at a function with one `yield`, or at one that returns a context manager.

    Raises:
        AppImportError: it is neither.
    """
    if not callable(function):
        raise AppImportError(f"a lifespan is a function, not {name_of(function)}", mend=_EXAMPLE)
    try:
        inspect.signature(function).bind()
    except ValueError:
        pass  # a builtin that does not tell its signature
    except TypeError:
        raise AppImportError("a lifespan takes no argument", where=name_of(function), mend=_EXAMPLE) from None
    called = called_by(function)
    if inspect.isasyncgenfunction(called):
        return Lifespan(contextlib.asynccontextmanager(function), is_async=True)
    if inspect.isgeneratorfunction(called):
        return Lifespan(contextlib.contextmanager(function), is_async=False)
    if inspect.iscoroutinefunction(called):
        raise AppImportError("a lifespan yields once", where=name_of(function), mend=_EXAMPLE)
    # Behind `@asynccontextmanager` and `@contextmanager` stands the generator that was decorated.
    decorated = inspect.unwrap(function)
    is_async = inspect.isasyncgenfunction(decorated) or (
        hasattr(function, "__aenter__") and not hasattr(function, "__enter__")
    )
    return Lifespan(function, is_async=is_async)


_EXAMPLE = "write `def pools(): ...; yield; ...`, or `async def` for an async handler"
