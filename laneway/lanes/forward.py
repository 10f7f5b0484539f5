"""What leaves for another topic: retries, dead letters and news of cases.

A forward is a value with an id derived from what caused it, so that a second copy after a
crash is recognised. Headers we write start with `laneway-` and are replaced, never appended:
twenty replays leave their number and bytes constant.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from laneway.lanes.record import Channel, Headers


class ForwardKind(IntEnum):
    """Where a forward goes. The numbers are part of the ledger's format."""

    RETRY = 1
    DLQ = 2
    REVIEW = 3


class Forward(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One record to be published, and the position that may not be committed before it is.

    Attributes:
        forward_id: derived from group, origin position, attempt, kind and case.
        channel, offset: the position it settles; offset is -1 when no offset hangs on it
            (a released follower's was committed when it was parked).
        order_key: later forwards with the same order key wait behind this one; "" for none.
    """

    kind: ForwardKind
    forward_id: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    channel: Channel
    offset: int
    order_key: str = ""
