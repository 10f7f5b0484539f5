"""Handlers that take longer than they may: told once each, and no lane gets two owners because of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from laneway.consumer.journal import Journal
from laneway.consumer.partition import Partition, State
from laneway.consumer.running.pool import Pool
from laneway.lanes.run import Run

log = logging.getLogger("laneway")


class Overdue:
    """Watches the handlers of one worker.

    Args:
        timeout_ms: `lanes.handler_timeout_ms`.
        clock: epoch milliseconds that never jump.
    """

    def __init__(self, pool: Pool, journal: Journal, timeout_ms: int, *, clock: Callable[[], int]) -> None:
        self._pool = pool
        self._journal = journal
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._told: set[int] = set()
        self._noted: set[Partition] = set()

    def report(self) -> None:
        """Tell of each late handler once; end the process when its partition has gone elsewhere meanwhile."""
        late = self._pool.overdue(self._clock())
        for run in late:
            # It may have ended since it was found.
            record = run.records[min(len(run.outcomes), len(run.records) - 1)]
            if id(run) not in self._told:
                log.error(
                    "%s: the handler is over lanes.handler_timeout_ms (%d ms) with offset %d, effect %r; "
                    "its lane waits, other lanes go on. If it never comes back, end this process (%d): the "
                    "record then comes again, or becomes a case (ledger.on_unknown_outcome)",
                    run.owner,
                    self._timeout_ms,
                    record.offset,
                    record.effect_key,
                    os.getpid(),
                )
        self._told = {id(run) for run in late}
        self._note(late)
        for run in late:
            if isinstance(run.owner, Partition) and run.owner.state is State.CLOSED:
                log.critical(
                    "%s: a handler outlived its timeout and its partition; ending the process so that no two "
                    "owners run one lane (lanes.on_overdue)",
                    run.owner,
                )
                self._journal.flush()
                os._exit(1)

    def _note(self, late: Sequence[Run]) -> None:
        """Have it stand beside the lag, for as long as it lasts."""
        offsets: dict[Partition, list[int]] = {}
        for run in late:
            if isinstance(run.owner, Partition):
                record = run.records[min(len(run.outcomes), len(run.records) - 1)]
                offsets.setdefault(run.owner, []).append(record.offset)
        for partition in self._noted - offsets.keys():
            partition.overdue = ""
        for partition, found in offsets.items():
            others = f" and of {len(found) - 1} more" if len(found) > 1 else ""
            partition.overdue = (
                f"the handler of offset {min(found)}{others} is over its time (lanes.handler_timeout_ms), in "
                f"process {os.getpid()}"
            )
        self._noted = set(offsets)
