"""A run: consecutive next records of one lane, handed to a worker together.

Each record runs on condition that the one before it acked, so the worker stops at the first
verdict that is not Ack and gives the rest back unstarted. One hand-over for many records is
what makes a busy lane cheap.
"""

from __future__ import annotations

from laneway.lanes.record import Record
from laneway.lanes.verdict import Outcome


class Run:
    """Records of one lane on their way through a worker.

    Owned by one thread at a time: the owner builds it, a worker fills `outcomes`, the owner
    settles it. Only `stop` crosses, and it only ever goes from False to True.

    Attributes:
        outcomes: one for each record that was started, in order.
        epoch: the ownership under which it was handed out; an older one is refused.
        owner: the partition it came from; opaque to the rules.
        stop: set by the owner to keep records that have not started from starting.
        started_ms: when the record now running was started; 0 while none is.
    """

    __slots__ = ("epoch", "lane", "outcomes", "owner", "records", "started_ms", "stop")

    def __init__(self, lane: str, records: list[Record], epoch: int, owner: object = None) -> None:
        self.lane = lane
        self.records = records
        self.outcomes: list[Outcome] = []
        self.epoch = epoch
        self.owner = owner
        self.stop = False
        self.started_ms = 0

    def unstarted(self) -> list[Record]:
        """The records that no handler has seen."""
        return self.records[len(self.outcomes) :]
