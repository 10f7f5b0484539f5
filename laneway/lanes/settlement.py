"""The settlement: the durable outcome of one delivery, as a value.

The board makes it; the settler writes its entries, publishes its forwards and commits its
offset; the journal tells it. Only a settled offset may be committed.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from laneway.lanes.forward import Forward
from laneway.lanes.lane import Lane, Pause
from laneway.lanes.record import Record
from laneway.lanes.view import Entry


class Settled(Enum):
    """How a delivery ended. The value is its journal event; "" has no line of its own."""

    SUCCEEDED = "result_saved"
    DUPLICATE = "duplicate_suppressed"
    RETRY_WAIT = "retry_scheduled"
    QUARANTINED = "quarantined"
    IN_REVIEW = "in_review"
    PARKED = "parked"
    SKIPPED = ""


HANDLED: Final = frozenset({Settled.SUCCEEDED, Settled.RETRY_WAIT, Settled.QUARANTINED, Settled.IN_REVIEW})
"""Ends that a handler, or the reading of the payload before it, came to."""


class Settlement:
    """One record's end, or its durable wait.

    Attributes:
        reason: a fixed word, such as `already-settled` or `invalid-payload`.
        result_key: of a success, or of the success that a duplicate found.
        ends: False while the record is only stored and will settle again when it is released.
        events: further journal lines in order: (event, reason or case id).
        number: settlements of a board in the order they were made.
        switched: of a command that paused or resumed the partition: the pause until then, in a tuple.
        lane_before: of an Ack that was settled together with those behind it, which have the lane's entry:
            the lane before all of them, for when those do not go with it.
    """

    __slots__ = (
        "ends",
        "entries",
        "events",
        "forwards",
        "how",
        "lane_before",
        "number",
        "reason",
        "record",
        "result_key",
        "switched",
    )

    def __init__(
        self,
        record: Record,
        how: Settled,
        entries: list[Entry],
        reason: str = "",
        result_key: str | None = None,
    ) -> None:
        self.record = record
        self.how = how
        self.entries = entries
        self.reason = reason
        self.result_key = result_key
        self.ends = True
        self.forwards: list[Forward] = []
        self.events: list[tuple[str, str]] = []
        self.number = 0
        self.lane_before: Lane | None = None
        self.switched: tuple[Pause | None] | None = None
