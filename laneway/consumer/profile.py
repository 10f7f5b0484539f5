"""Where the time of a record goes: CPU of the owner thread by stage, and of all that runs beside it.

The owner says which stage it enters; what it spends until it enters another one belongs to that stage. Whole
batches pass at once, so this is a handful of clock readings a turn, and none at all when nobody asked.

CPU time, not wall time: other work on the machine, and waiting, would drown a few microseconds.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from enum import Enum
from typing import Final, Protocol


class Stage(Enum):
    """What the owner does; the value is what people read."""

    POLL = "poll: messages from the client"
    DECODE = "decode: records, envelopes"
    ADMIT = "admit: positions, lanes"
    JUDGE = "judge: effects read, runs made"
    HAND_OFF = "hand-off: runs to the handlers"
    SETTLE = "settle: verdicts to entries"
    CUT = "cut: a cycle begins"
    ENCODE = "forward: entries and forwards to the client"
    LEDGER = "ledger: written, notes of what is handed over"
    COMMIT = "commit: offsets, ends of transactions"
    JOURNAL = "journal"
    REST = "all else: rebalances, expiry, overdue, waiting"


_HANDLERS: Final = ("laneway-worker", "laneway-loop")

OF_STEP: Final = {
    # changelog
    "begun": Stage.ENCODE,
    "sent": Stage.COMMIT,
    "offsets": Stage.COMMIT,
    "committed": Stage.COMMIT,
    "told": Stage.JOURNAL,
    "applied": Stage.LEDGER,
    "acked": Stage.JOURNAL,
    # local
    "written": Stage.LEDGER,
    "synced": Stage.LEDGER,
    "published": Stage.ENCODE,
}
"""The stage of each step of the settler, by its name."""


class Profile(Protocol):
    """What the owner tells as it goes."""

    def enter(self, stage: Stage) -> None:
        """What follows belongs to this stage."""
        ...

    def count(self, records: int) -> None:
        """So many records were admitted."""
        ...

    def stop(self) -> None:
        """The threads are about to end: read their clocks."""
        ...


class NoProfile:
    """Nobody asked."""

    def enter(self, stage: Stage) -> None:
        """See `Profile`."""

    def count(self, records: int) -> None:
        """See `Profile`."""

    def stop(self) -> None:
        """See `Profile`."""


class CycleProfile:
    """Adds up. All of it is the owner thread's."""

    def __init__(self) -> None:
        self.records = 0
        self.spent_s: defaultdict[Stage, float] = defaultdict(float)
        self.beside_s: defaultdict[str, float] = defaultdict(float)
        self._stage = Stage.REST
        self._since_s = time.thread_time()
        self._began_s = time.monotonic()
        self._process_s = time.process_time()
        self.wall_s = 0.0

    def enter(self, stage: Stage) -> None:
        """See `Profile`."""
        now_s = time.thread_time()
        self.spent_s[self._stage] += now_s - self._since_s
        self._stage, self._since_s = stage, now_s

    def count(self, records: int) -> None:
        """See `Profile`."""
        self.records += records

    def stop(self) -> None:
        """See `Profile`."""
        self.enter(Stage.REST)
        self.wall_s = time.monotonic() - self._began_s
        whole_s = time.process_time() - self._process_s
        for name, spent_s in _threads():
            self.beside_s["handlers" if name.startswith(_HANDLERS) else "our other threads"] += spent_s
        ours_s = sum(self.spent_s.values()) + sum(self.beside_s.values())
        self.beside_s["the Kafka client and RocksDB"] = max(0.0, whole_s - ours_s)


def _threads() -> Iterator[tuple[str, float]]:
    """CPU seconds of our threads but this one; all of them where the system does not tell."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return
    for thread in threading.enumerate():
        if thread is threading.current_thread() or thread.ident is None:
            continue
        if not thread.name.startswith("laneway-"):
            continue
        try:
            spent_s = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        except OSError:  # it has just ended
            continue
        yield thread.name, spent_s


NO_PROFILE: Final = NoProfile()
