"""Says where the owner thread is when it has not turned for long.

Every wait of the owner is bounded. Should one not be (a client call that ignores its timeout), a worker
that sits still and says nothing is the worst that a person on call can meet. Nothing is ended here: whether
to wait or to kill the process is that person's choice, and after either nothing is lost.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from typing import Final

log = logging.getLogger("laneway")

STILL_S: Final = 90.0
"""Longer than any bounded wait of the owner: a revoke may take a fifth of max.poll.interval.ms, 60 s."""
_FRAMES: Final = 8


class Watchdog:
    """Belongs to the owner thread, which says `turned` each time it comes round."""

    def __init__(self, still_s: float = STILL_S) -> None:
        self._still_s = still_s
        self._turned_s = time.monotonic()
        self._owner = threading.get_ident()
        self._ended = threading.Event()

    def start(self) -> None:
        """Watch the calling thread from now on."""
        self._owner = threading.get_ident()
        self._turned_s = time.monotonic()
        threading.Thread(target=self._watch, name="laneway-watchdog", daemon=True).start()

    def turned(self) -> None:
        """The owner has come round."""
        self._turned_s = time.monotonic()

    def stop(self) -> None:
        """The owner is leaving; its last waits have bounds of their own."""
        self._ended.set()

    def _watch(self) -> None:
        told_s = 0.0
        while not self._ended.wait(self._still_s / 10):
            still_s = time.monotonic() - self._turned_s
            if still_s < self._still_s:
                told_s = 0.0
            elif still_s - told_s >= self._still_s:
                told_s = still_s
                log.error("the owner thread has not turned for %.0f s; it is in\n%s", still_s, self._where())

    def _where(self) -> str:
        """Files, lines and functions, innermost last; never a value."""
        frame = sys._current_frames().get(self._owner)
        frames = traceback.extract_stack(frame) if frame is not None else []
        return "\n".join(f"  {each.filename}:{each.lineno} in {each.name}" for each in frames[-_FRAMES:])
