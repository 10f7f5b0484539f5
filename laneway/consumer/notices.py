"""What a person at the terminal should hear about, in doses: dead letters and cases.

The journal has every record; this has the first of each kind at once, and afterwards a count. It never
names a business key, which can be personal data: place, reason and case id lead to it.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable
from typing import Final

from laneway.consumer.partition import Partition
from laneway.lanes.settlement import Settled, Settlement

log = logging.getLogger("laneway")

COUNT_EVERY_MS: Final = 10_000
NEXT_STEP: Final = "next_step"
"""The attribute of a log record that tells how its message ends: with the command to look further."""

_MAX_KINDS: Final = 1000

_DEAD_LETTERS: Final = "dead letter"
_CASES: Final = "case"
_LISTS: Final = {_DEAD_LETTERS: "dlq list", _CASES: "review list"}
_Kind = tuple[str, str, str]
"""Topic, what there is more of, and the fixed word of its reason."""


class Notices:
    """Says the first of a kind, then counts for a while. Belongs to the owner thread."""

    def __init__(self) -> None:
        self._counted: dict[_Kind, int] = {}
        self._since_ms: dict[_Kind, int] = {}

    def tell(self, partition: Partition, settlements: Iterable[Settlement], now_ms: int) -> None:
        """Look at what a cycle settled."""
        for done in settlements:
            # The place that every list names: of a retry, not where in the retry topic it stood.
            offset = done.record.origin_offset
            if done.how is Settled.QUARANTINED:
                what, then = f"to the DLQ: {done.reason}", "; `laneway dlq list` shows it"
                self._say(partition, _DEAD_LETTERS, done.reason, offset, what, then, now_ms)
            for event, case_id in done.events:
                if event == "review_opened":
                    reason = case_id.rpartition("-")[0]
                    what, then = f"opened a case: {reason}", f"; `laneway review show {case_id}`"
                    self._say(partition, _CASES, reason, offset, what, then, now_ms)

    def count(self, now_ms: int) -> None:
        """Say how many more there were of each kind whose time has come. Called every so often."""
        for kind in [each for each in self._counted if now_ms - self._since_ms[each] >= COUNT_EVERY_MS]:
            self._since_ms[kind] = now_ms
            self._say_count(kind)

    def close(self) -> None:
        """Say every count that is left: nothing comes after this."""
        for kind in list(self._counted):
            self._say_count(kind)

    def _say(
        self, partition: Partition, things: str, reason: str, offset: int, what: str, then: str, now_ms: int
    ) -> None:
        # The fixed word of a reason, so that one place told about it does not hide another.
        kind = (partition.topic, things, reason.partition(":")[0])
        if kind in self._since_ms:
            self._counted[kind] = self._counted.get(kind, 0) + 1
        elif len(self._since_ms) < _MAX_KINDS:
            self._since_ms[kind] = now_ms
            # The next step is known as such, for one who has nothing to look into afterwards.
            next_step = {NEXT_STEP: then}
            log.warning("%s: offset %d %s%s", partition, offset, what, then, extra=next_step)

    def _say_count(self, kind: _Kind) -> None:
        topic, things, reason = kind
        count = self._counted.pop(kind)
        then = f"; `laneway {_LISTS[things]} --reason {shlex.quote(reason)}`"
        things += "s" if count > 1 else ""
        log.warning("%s: %d more %s: %s%s", topic, count, things, reason, then, extra={NEXT_STEP: then})
