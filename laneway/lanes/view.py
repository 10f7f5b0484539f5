"""Ports between the rules and the ledger, and the values that cross them.

The rules read through `LedgerView` and answer with entries; they never write. RocksDB and the
in-memory twin implement the view, under one contract suite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from laneway.lanes.case import Case
from laneway.lanes.effect import Effect
from laneway.lanes.forward import Forward
from laneway.lanes.lane import Lane, Parked, ParkedKey, Pause
from laneway.lanes.record import Channel

Ranges = tuple[tuple[int, int], ...]
"""Sorted, disjoint half-open ranges [first, end) of settled offsets."""


class ChannelMark(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How far one channel of the partition is settled.

    Attributes:
        frontier: the lowest unsettled offset.
        settled: what is settled above it.
    """

    frontier: int
    settled: Ranges = ()


class Meta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The one meta entry that every cycle writes for a partition.

    Attributes:
        writer: this start of the process; never reused.
        cycle: number of the cycle inside the writer.
        marks: by channel; a channel nothing was read from yet is absent.
        handed_over: by channel, the highest offset that handlers may have seen by then.
        pause: set while an operator lets nothing of the partition start.
        topic_ids: of the source and of its retry topic, which the marks are about; "" where nobody tells.
    """

    writer: str
    cycle: int
    marks: dict[Channel, ChannelMark]
    open_cases: int
    parked_bytes: int
    written_ms: int
    parked: int = 0
    handed_over: dict[Channel, int] = {}
    pause: Pause | None = None
    topic_ids: tuple[str, str] = ("", "")


class PutEffect(msgspec.Struct, frozen=True, gc=False):
    """Record where an effect stands; None forgets it: an intent whose handler never started."""

    effect_key: str
    effect: Effect | None


class PutLane(msgspec.Struct, frozen=True, gc=False):
    """Record a lane; None forgets it (nothing held, nothing parked, no number to keep)."""

    lane_id: str
    lane: Lane | None


class PutParked(msgspec.Struct, frozen=True, gc=False):
    """Park a follower; None removes it because it settled."""

    key: ParkedKey
    parked: Parked | None


class PutCase(msgspec.Struct, frozen=True):
    """Open or change a case; None closes it."""

    case_id: str
    case: Case | None


Entry = PutEffect | PutLane | PutParked | PutCase


class Opening(msgspec.Struct, frozen=True):
    """What a ledger tells when it is opened.

    Attributes:
        meta: None in a new ledger.
        handed_over: by channel, the highest offset that handlers may have seen before.
        outbox: forwards that were durable but perhaps not published, oldest first, by outbox key.
        lanes_with_parked: lanes that may have followers to judge.
    """

    meta: Meta | None
    handed_over: dict[Channel, int]
    outbox: Sequence[tuple[bytes, Forward]]
    lanes_with_parked: Sequence[str]


class LedgerView(Protocol):
    """Read access to one partition's ledger. Reads are batched where a batch asks."""

    def effects(self, keys: Sequence[str]) -> Sequence[Effect | None]:
        """The effects of these keys, in the order asked; None where there is none."""
        ...

    def lanes(self, ids: Sequence[str]) -> Sequence[Lane | None]:
        """The lanes of these ids, in the order asked; None where there is none."""
        ...

    def parked(
        self, lane: str, after: tuple[int, int] | None, limit: int
    ) -> Sequence[tuple[ParkedKey, Parked]]:
        """The first followers of a lane beyond (sequence, offset), lowest first."""
        ...

    def case(self, case_id: str) -> Case | None:
        """One open case."""
        ...
