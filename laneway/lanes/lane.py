"""The lane: the FIFO of one sequence key, as the ledger keeps it.

A lane that waits for nothing needs only `last`. A held lane says for what it waits, since
when, and which delivery may move it; its followers are parked beside it.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from laneway.lanes.record import Headers, size_bytes


class HoldKind(IntEnum):
    """What a held lane waits for. The numbers are part of the ledger's format."""

    GAP = 1
    RETRY = 2
    CASE = 3


class Hold(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Why a lane waits.

    Attributes:
        sequence: the missing sequence of a gap, else the sequence of the held record.
        offset: source position of the held record; of the first record beyond a gap.
        attempt: the only attempt that may run now; older retry copies are dropped.
        case_id: the holding case; "" while waiting for a retry.
        due_ms: when the retry is due, else 0.
        base: attempts that do not count against the retry budget any more: those before the last replay.
    """

    kind: HoldKind
    effect_key: str
    sequence: int
    offset: int
    attempt: int
    reason: str
    case_id: str
    since_ms: int
    due_ms: int = 0
    base: int = 0


class Pause(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """An operator wants nothing to start. Who says so, and why, is a claim to be shown to people."""

    actor: str
    reason: str
    since_ms: int


class Lane(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The stored state of one lane.

    Attributes:
        last: the last sequence settled in order; None before the first.
        parked: followers stored in the ledger.
        parked_bytes: their size.
        pause: set while an operator lets nothing of the lane start; what comes is parked.
    """

    last: int | None = None
    hold: Hold | None = None
    parked: int = 0
    parked_bytes: int = 0
    pause: Pause | None = None

    @property
    def is_free(self) -> bool:
        """Whether the lane waits for nothing: its next record may run."""
        return self.hold is None and self.pause is None


NEW_LANE = Lane()


class Raw(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The bytes of a record, kept so that it can run, or be shown to a person, later."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    def size_bytes(self) -> int:
        """What the parking bounds count; the same as of the record read back from it."""
        return size_bytes(self.key, self.value, self.headers)


class Parked(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A follower of a held lane. Keyed by (lane, sequence, position): copies never overwrite."""

    message_id: str
    effect_key: str
    version: int
    parked_ms: int
    raw: Raw


ParkedKey = tuple[str, int, int]
"""(lane, sequence, source offset)"""
