"""What the Kafka client says of itself, in doses a person can read.

A broker that is away makes the client complain at every attempt to connect, a hundred times a second.
Each kind of line is let through once in a while, with the number of those left out.
"""

from __future__ import annotations

import logging
import re
from typing import Final

REPEAT_S: Final = 10.0
_MAX_KINDS: Final = 500
_NUMBERS: Final = re.compile(r"\d+")
# One [kafka] table configures consumers and producers: what only one of them reads is no mistake.
_OTHER_CLIENTS: Final = "property and will be ignored by this"
# Partitions that are resumed ask something only to wake the client, and wait for no answer; see
# `ownership.resume`. The summary of such requests has no name in it; one that matters fails its call as well.
_UNHEARD_ANSWERS: Final = re.compile(r"Timed out (ListOffsetsRequest|\d+ in-flight, 0 retry-queued)")


class Doses(logging.Filter):
    """Passes the first line of a kind, and the next one when `REPEAT_S` have gone by."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is to be shown; a shown one tells how many like it were not."""
        text = record.getMessage()
        if _OTHER_CLIENTS in text or _UNHEARD_ANSWERS.search(text):
            return False
        kind = _NUMBERS.sub("#", text)
        shown_s, left_out = self._seen.get(kind, (float("-inf"), 0))
        if record.created - shown_s < REPEAT_S:
            self._seen[kind] = (shown_s, left_out + 1)
            return False
        if len(self._seen) >= _MAX_KINDS:
            self._seen.clear()
        self._seen[kind] = (record.created, 0)
        if left_out:
            record.msg, record.args = f"{text} ({left_out} more like this were left out)", None
        return True


logger: Final = logging.getLogger("laneway.kafka")
# Without a handler of its own Python would print the client's complaints to standard error.
logger.addHandler(logging.NullHandler())
logger.addFilter(Doses())
