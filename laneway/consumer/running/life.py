"""Enters the pipeline's lifespan before the first delivery, and leaves it after the last one.

With an async handler it lives in one task on the handlers' event loop, so that what it opens belongs to that
loop; otherwise on the owner thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from typing import Any, Final, cast

from laneway.consumer.running.loop import LoopPool
from laneway.consumer.running.pool import Pool
from laneway.errors import LanewayError
from laneway.lanes.failures import bounded, class_name
from laneway.lifespan import Lifespan, Manager

log = logging.getLogger("laneway")

_LOOK_S: Final = 0.1


class Life:
    """The lifespan of one worker. Called from the owner thread.

    Args:
        lifespan: of the pipeline; None when it has none.
        pool: runs the handlers that use what the lifespan opens.
    """

    def __init__(self, lifespan: Lifespan | None, pool: Pool) -> None:
        self._lifespan = lifespan
        self._pool = pool
        self._stack = contextlib.ExitStack()
        self._leave = asyncio.Event()
        self._entered: Future[None] = Future()
        self._lived: Future[None] | None = None

    def open(self, gives_up: Callable[[], bool]) -> None:
        """Enter it.

        Args:
            gives_up: whether nobody waits for it any more.

        Raises:
            LanewayError: it failed.
        """
        lifespan, pool = self._lifespan, self._pool
        if lifespan is None:
            return
        try:
            if isinstance(pool, LoopPool):
                self._lived = asyncio.run_coroutine_threadsafe(self._live(lifespan.make), pool.loop)
                while not (gives_up() or self._entered.done() or self._lived.done()):
                    wait((self._entered, self._lived), _LOOK_S, return_when="FIRST_COMPLETED")
                if self._lived.done():
                    self._lived.result()
            else:
                self._stack.enter_context(cast("AbstractContextManager[Any]", lifespan.make()))
        except Exception as error:
            raise LanewayError(
                f"the lifespan failed with {class_name(error)}: {bounded(str(error))}",
                where=lifespan.name,
                mend="mend what it opens, then start again; nothing was read",
            ) from error

    def failure(self) -> LanewayError | None:
        """Why the worker must end: what its handlers share is closed. None while all is well."""
        if self._lived is None or not self._lived.done():
            return None
        error = None if self._lived.cancelled() else self._lived.exception()
        return LanewayError(
            f"the lifespan has ended while handlers may need what it has closed ({_named(error)})",
            where="" if self._lifespan is None else self._lifespan.name,
            mend="mend what ended it (a task group ends with the first task that fails), then start again",
        )

    def close(self, timeout_s: float) -> None:
        """Leave it, if it was entered and no handler can still need it."""
        if self._pool.busy:
            return
        try:
            if self._lived is None:
                self._stack.close()
            elif isinstance(self._pool, LoopPool) and self._entered.done():
                self._pool.loop.call_soon_threadsafe(self._leave.set)
                self._lived.result(timeout_s)
        except BaseException as error:  # noqa: BLE001 - all is settled, and the ledgers are still to be closed
            log.error("the lifespan failed as it was left: %s", class_name(error))

    async def _live(self, make: Callable[[], Manager]) -> None:
        async with contextlib.AsyncExitStack() as stack:
            manager = make()
            if isinstance(manager, contextlib.AbstractAsyncContextManager):
                await stack.enter_async_context(manager)
            else:
                stack.enter_context(manager)
            self._entered.set_result(None)
            await self._leave.wait()


def _named(error: BaseException | None) -> str:
    """The class of an error; never a message."""
    return "cancelled" if error is None else class_name(error)
