"""A source partition under one ownership: its ledger, its board, and what is still owed to Kafka.

Only the owner thread touches it. It is born in the assign callback, goes live when its ledger
is open, and is dropped whole when the partition leaves; nothing of it is carried over.
"""

from __future__ import annotations

import time
from enum import Enum

from laneway.consumer.topics import TopicNames
from laneway.errors import LanewayError
from laneway.lanes.board import Board
from laneway.lanes.forward import Forward, ForwardKind, Home
from laneway.lanes.record import Channel
from laneway.lanes.settlement import Settlement
from laneway.store.port import LedgerStore


class State(Enum):
    """Where an ownership stands.

    OPENING: assigned and paused, its ledger being opened.
    LIVE: reading and running.
    DRAINING: nothing new starts; what runs may finish and settle.
    CLOSED: over; whatever still arrives under its epoch is refused.
    """

    OPENING = "opening"
    LIVE = "live"
    DRAINING = "draining"
    CLOSED = "closed"


class Unpublished:
    """A forward that is durable in the outbox and not yet known to be in its topic."""

    __slots__ = ("forward", "in_flight", "retry_at_ms", "stubbed")

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.in_flight = False
        self.retry_at_ms = 0
        self.stubbed = False


class Partition:
    """One source partition while this process owns it.

    Attributes:
        starts: by channel, the offset that reading starts at.
        committed: by channel, what the group coordinator confirmed; None when nothing was ever committed.
        durable: by channel, the frontier that the ledger has on disk; commits never pass it.
        outbox: forwards by outbox key, oldest first.
        published: outbox keys to be cleared with the next write.
        unacked: settlements whose offset, or whose forward, is still owed.
        paused: channels paused now, and why.
        moved_ms: when the committable source offset last moved.
        assigned_s: monotonic seconds of the assignment.
        lost: the group gave it away without asking; nothing is published or committed any more.
    """

    __slots__ = (
        "assigned_s",
        "board",
        "committed",
        "durable",
        "epoch",
        "failure",
        "home",
        "ledger",
        "lost",
        "metadata",
        "metadata_ms",
        "moved_ms",
        "names",
        "outbox",
        "paused",
        "published",
        "starts",
        "state",
        "told_locked",
        "unacked",
    )

    def __init__(
        self,
        home: Home,
        names: TopicNames,
        epoch: int,
        starts: dict[Channel, int],
        committed: dict[Channel, int | None],
    ) -> None:
        self.home = home
        self.names = names
        self.epoch = epoch
        self.starts = starts
        self.committed = committed
        self.durable = dict(starts)
        self.state = State.OPENING
        self.ledger: LedgerStore | None = None
        self.board: Board | None = None
        self.outbox: dict[bytes, Unpublished] = {}
        self.published: list[bytes] = []
        self.unacked: list[Settlement] = []
        self.paused: dict[Channel, str] = {}
        self.failure: LanewayError | None = None
        self.metadata = ""
        self.metadata_ms = 0
        self.moved_ms = 0
        self.lost = False
        self.assigned_s = time.monotonic()
        self.told_locked = False

    @property
    def topic(self) -> str:
        """The source topic."""
        return self.home.topic

    @property
    def partition(self) -> int:
        """The partition's number, the same in every topic that lives with it."""
        return self.home.partition

    def __str__(self) -> str:
        return f"{self.home.topic}-{self.home.partition}"

    def topic_of(self, channel: Channel) -> str:
        """The topic of one channel."""
        if channel is Channel.SOURCE:
            return self.home.topic
        return self.names.retry if channel is Channel.RETRY else self.names.commands

    def target_of(self, forward: Forward) -> tuple[str, int | None]:
        """Topic and partition of a forward; review news go where their key leads."""
        if forward.kind is ForwardKind.REVIEW:
            return self.names.review, None
        name = self.names.retry if forward.kind is ForwardKind.RETRY else self.names.dlq
        return name, self.home.partition

    def committable(self, channel: Channel) -> int:
        """The offset that may be committed: durable, and not past a forward still in the outbox."""
        owed = [
            entry.forward.offset
            for entry in self.outbox.values()
            if entry.forward.channel == channel and entry.forward.offset >= 0
        ]
        return min(self.durable[channel], *owed) if owed else self.durable[channel]

    def is_behind(self) -> bool:
        """Whether anything is still owed to Kafka."""
        if self.outbox or self.unacked or self.published:
            return True
        return any(self.committable(channel) != self.committed.get(channel) for channel in self.durable)
