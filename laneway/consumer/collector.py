"""How often Python looks for cyclic garbage in a worker process.

Thousands of records are in hand at any time, each of several objects and none of them part of a cycle.
With Python's own thresholds every batch is walked through again and again: a seventh of all CPU time of a
handler that does nothing.
"""

from __future__ import annotations

import gc
from typing import Final

CALM: Final = (50_000, 10, 20)
"""Cycles that handlers leave are still found, and soon enough: with what the worker itself holds an old
generation is a few ten thousand objects, so even a full collection is short."""

_OF_PYTHON: Final = gc.get_threshold()


def calm_collector() -> None:
    """Once, when the worker is built: what is there by now lives as long as the process.

    An application that has set thresholds of its own keeps them.
    """
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _OF_PYTHON:
        gc.set_threshold(*CALM)
