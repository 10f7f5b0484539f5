"""How runs come back to the owner: threads append to a deque and set an event, and no lock is held."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from laneway.lanes.run import Run

FED_S: Final = 0.004
"""What a pool says that does not measure its handlers, when more waits for them than may be under way."""


def take_finished(done: deque[Run], news: threading.Event) -> list[Run]:
    """The runs that have come back since the last call. Never blocks; the owner's alone."""
    # Cleared first: a run that ends after this line sets it again and is seen next time at the latest.
    news.clear()
    runs = []
    while done:
        runs.append(done.popleft())
    return runs
