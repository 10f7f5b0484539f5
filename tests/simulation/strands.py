"""Calls that wait in their middle, although the world has one thread: each on a strand of its own.

A strand is a thread that runs only while somebody waits for it to pause or to end, so there is still one
thing that happens at a time, and a seed stays one history. Ended strands are used again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

_IDLE: list[Strand] = []
_HERE = threading.local()
# Threads do not survive a fork.
os.register_at_fork(after_in_child=_IDLE.clear)


class Strand:
    """One call under way.

    Attributes:
        is_over: the call has returned or raised; nobody asks which.
    """

    def __init__(self) -> None:
        self.is_over = True
        self._call: Callable[[], None] | None = None
        # Plain locks, taken by one thread and let go by the other: the cheapest way to hand over.
        self._go = threading.Lock()
        self._back = threading.Lock()
        self._go.acquire()
        self._back.acquire()
        threading.Thread(target=self._run, name="strand", daemon=True).start()

    def resume(self) -> None:
        """Let it run until it pauses or ends."""
        self._go.release()
        self._back.acquire()
        if self.is_over:
            _IDLE.append(self)

    def pause(self) -> None:
        """Called on the strand: let the others go on."""
        self._back.release()
        self._go.acquire()

    def _run(self) -> None:
        _HERE.strand = self
        while True:
            self._go.acquire()
            call, self._call = self._call, None
            assert call is not None
            call()
            self.is_over = True
            self._back.release()

    @staticmethod
    def of(call: Callable[[], None]) -> Strand:
        """A strand that will run this call, which raises nothing."""
        strand = _IDLE.pop() if _IDLE else Strand()
        strand._call, strand.is_over = call, False
        return strand

    @staticmethod
    def here() -> Strand | None:
        """The strand that asks; None for the one thread of the world."""
        found: Strand | None = getattr(_HERE, "strand", None)
        return found
