"""How the interpreter of a worker process looks for cyclic garbage, and how often its threads take turns.

Thousands of records are in hand at any time, each of several objects and none of them part of a cycle.
With Python's own thresholds every batch is walked through again and again: a seventh of all CPU time of a
handler that does nothing.

A thread that has slept, or waited for a socket, wants the interpreter back for a moment only. The owner gives
it up after the switch interval: with Python's own five milliseconds a short handler mostly waits for that.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

CALM: Final = (50_000, 10, 20)
"""Cycles that handlers leave are still found, and soon enough: with what the worker itself holds an old
generation is a few ten thousand objects, so even a full collection is short."""
SWITCH_S: Final = 0.001

_OF_PYTHON: Final = (gc.get_threshold(), sys.getswitchinterval())


def tune_interpreter() -> None:
    """Once, when the worker is built: what is there by now lives as long as the process.

    An application that has set thresholds, or an interval, of its own keeps them.
    """
    gc.collect()
    gc.freeze()
    thresholds, interval_s = _OF_PYTHON
    if gc.get_threshold() == thresholds:
        gc.set_threshold(*CALM)
    if sys.getswitchinterval() == interval_s:
        sys.setswitchinterval(SWITCH_S)
