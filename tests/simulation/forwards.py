"""Records of companion topics, read back as the forwards that they were."""

from __future__ import annotations

import re
from functools import lru_cache

from laneway.lanes.forward import Forward, ForwardKind
from laneway.lanes.record import Channel
from tests.simulation.broker import Stored
from tests.simulation.setup import EMITTED, NAMES

_KINDS = {
    NAMES.retry: ForwardKind.RETRY,
    NAMES.dlq: ForwardKind.DLQ,
    NAMES.review: ForwardKind.REVIEW,
    EMITTED: ForwardKind.EMITTED,
}
_NEWS_PARTITION = re.compile(rb'"partition":(\d+)')


@lru_cache(maxsize=1000)
def forward_of(topic: str, stored: Stored) -> tuple[int, Forward]:
    """A record of a companion topic as the forward that it was, and the source partition it belongs to."""
    ident = number = b""
    for name, value in stored.headers:
        if name == "laneway-forward-id":
            ident = value or b""
        elif name == "laneway-origin-partition":
            number = value or b""
    if not number:
        found = _NEWS_PARTITION.search(stored.value or b"")
        number = found[1] if found is not None else b"-1"
    return int(number), Forward(
        _KINDS[topic], ident.decode(), stored.key, stored.value, stored.headers, Channel.SOURCE, -1
    )
