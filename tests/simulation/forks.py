"""Work for many short-lived processes, each a fork that does one part and ends with its heap.

Not a `multiprocessing.Pool`: it waits for ever for a child that has ended without a word.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import TypeVar

_Part = TypeVar("_Part")
_Result = TypeVar("_Result")


class ChildEndedError(Exception):
    """A process ended without its result."""


def in_forks(work: Callable[[_Part], _Result], parts: Sequence[_Part], processes: int) -> Iterator[_Result]:
    """The results of all parts, as they come; so many processes at once.

    Raises:
        ChildEndedError: one of them was killed, or raised; what it raised stands on standard error.
    """
    context = get_context("fork")
    left = list(reversed(parts))
    running: dict[Connection, ForkProcess] = {}
    try:
        while left or running:
            while left and len(running) < processes:
                ours, theirs = context.Pipe(duplex=False)
                child = context.Process(target=_child, args=(work, left.pop(), theirs))
                child.start()
                theirs.close()
                running[ours] = child
            for told in wait(list(running)):
                assert isinstance(told, Connection)
                child = running.pop(told)
                try:
                    result = told.recv()
                except EOFError as error:
                    child.join()
                    raise ChildEndedError(f"exit code {child.exitcode}") from error
                child.join()
                yield result
    finally:
        for child in running.values():
            child.terminate()
            child.join()


def _child(work: Callable[[_Part], _Result], part: _Part, results: Connection) -> None:
    """Nothing is collected: the process ends, and its heap of histories with it.

    Nice, too: what runs beside it, like tests with brokers, waits for clocks.
    """
    os.nice(5)
    gc.freeze()
    gc.disable()
    results.send(work(part))
