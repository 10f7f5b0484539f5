"""What a person at the terminal should hear about, in doses: dead letters and cases.

The journal has every record; this has the first of each kind at once, and afterwards a count. It never
names a business key, which can be personal data: place, reason and case id lead to it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from laneway.consumer.partition import Partition
from laneway.lanes.settlement import Settled, Settlement

log = logging.getLogger("laneway")

COUNT_EVERY_MS: Final = 10_000
NEXT_STEP: Final = "next_step"
"""The attribute of a log record that tells how its message ends: with the command to look further."""

_MAX_KINDS: Final = 1000


class Notices:
    """Says the first of a kind, then counts for a while. Belongs to the owner thread."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str, str], int] = {}
        self._since_ms: dict[tuple[str, str, str], int] = {}

    def tell(self, partition: Partition, settlements: Iterable[Settlement], now_ms: int) -> None:
        """Look at what a cycle settled."""
        for done in settlements:
            if done.how is Settled.QUARANTINED:
                what, then = f"to the DLQ: {done.reason}", "; `laneway dlq list` shows it"
                self._say(partition, "dead letters", done.reason, done.record.offset, what, then, now_ms)
            for event, case_id in done.events:
                if event == "review_opened":
                    reason = case_id.rpartition("-")[0]
                    what, then = f"opened a case: {reason}", f"; `laneway review show {case_id}`"
                    self._say(partition, "cases", reason, done.record.offset, what, then, now_ms)

    def _say(
        self, partition: Partition, kind: str, reason: str, offset: int, what: str, then: str, now_ms: int
    ) -> None:
        # The fixed word of a reason, so that one place told about it does not hide another.
        key = (partition.topic, kind, reason.partition(":")[0])
        if key not in self._since_ms:
            if len(self._since_ms) < _MAX_KINDS:
                self._since_ms[key] = now_ms
                # The next step is known as such, for one who has nothing to look into afterwards.
                next_step = {NEXT_STEP: then}
                log.warning("%s: offset %d %s%s", partition, offset, what, then, extra=next_step)
            return
        self._counted[key] = self._counted.get(key, 0) + 1
        if now_ms - self._since_ms[key] >= COUNT_EVERY_MS:
            self._since_ms[key] = now_ms
            log.warning("%s: %d more %s: %s", partition.topic, self._counted.pop(key), kind, key[2])
