"""Defects to plant into the worker processes of `laneway demo`, before they start.

They reach the workers as a `sitecustomize` on PYTHONPATH, so the command under test is the shipped one.
Each is a mistake that somebody could make in one place of the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from laneway.consumer.settler import Cycle, Step
from laneway.consumer.settling.local_truth import LocalTruth
from laneway.lanes.effect import Effect
from laneway.lanes.settling import Settling
from laneway.lanes.view import PutLane
from laneway.store.ledger import LedgerReads


def ack_before_the_result() -> None:
    """Offsets are committed, and told as acked, before the ledger has the outcome."""
    right = cast("property", LocalTruth.steps).fget
    assert right is not None
    asked: list[int] = []

    def steps(self: LocalTruth) -> Sequence[tuple[str, Step]]:
        def too_early(cycle: Cycle) -> bool:
            cuts = [(part.partition, part.cut) for part in cycle.parts if part.cut is not None]
            if not cuts:
                return True
            if cycle.number not in asked:
                asked.append(cycle.number)
                self._committer.begin(
                    [
                        (partition.topic_of(channel), partition.partition, mark.frontier, "")
                        for partition, cut in cuts
                        for channel, mark in cut.meta.marks.items()
                    ]
                )
            if self._committer.answer() is None:
                return False
            for partition, cut in cuts:
                self._journal.acked(partition, cut.settlements)
            self._journal.flush()
            return True

        return (("too-early", too_early), *right(self))

    cast("Any", LocalTruth).steps = property(steps)


def followers_pass_a_retry() -> None:
    """A record that waits for its retry does not hold its lane."""
    right = Settling._retry

    def passing(self: Settling, record: Any, *rest: Any) -> Any:
        done, after = right(self, record, *rest)
        free = msgspec.structs.replace(after, last=record.sequence, hold=None)
        done.entries[-1] = PutLane(record.lane, free)
        return done, free

    cast("Any", Settling)._retry = passing


def a_ledger_that_forgets() -> None:
    """What was once written about an effect is not found again."""

    def effects(_: LedgerReads, keys: Sequence[str]) -> list[Effect | None]:
        return [None for _ in keys]

    cast("Any", LedgerReads).effects = effects
