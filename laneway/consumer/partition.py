"""A source partition under one ownership: its ledger, its board, and what is still owed to Kafka.

Only the owner thread touches it. It is born in the assign callback, goes live when its ledger
is open, and is dropped whole when the partition leaves; nothing of it is carried over.
"""

from __future__ import annotations

import time
from enum import Enum

import msgspec

from laneway.consumer.assignment.progress import RestoreProgress
from laneway.consumer.topics import TopicNames
from laneway.errors import LanewayError
from laneway.lanes.board import Board
from laneway.lanes.forward import Forward, ForwardKind, Home
from laneway.lanes.record import Channel
from laneway.lanes.settlement import Settlement
from laneway.store.port import LedgerStore

NOTE_EVERY_MS = 1000
"""How often a note that changed is committed again beside an offset that did not."""


class CommitNote(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Counts that travel as the metadata of a source offset, for people who look at lag.

    Attributes:
        waiting: records in memory, those that run included.
        moved_ms: when the committed offset last moved.
    """

    running: int = 0
    waiting: int = 0
    retries: int = 0
    parked: int = 0
    open_cases: int = 0
    blocked_by: str = ""
    moved_ms: int = 0


class ResetNote(msgspec.Struct, frozen=True, rename="camel"):
    """Who set an offset by hand, as the metadata of that offset, for the worker that starts there.

    Attributes:
        after_worker: a worker of the group had committed before: a ledger has to be there.
    """

    reset_by: str
    reason: str
    reset_ms: int
    after_worker: bool


_decode_reset = msgspec.json.Decoder(ResetNote).decode


def reset_line(topic: str, number: int, to: str) -> str:
    """The command that sets the offset of this partition and of no other, for an error's `mend`."""
    return f"`laneway offsets reset --to {to} --source {topic} --partition {number} --reason WHY`"


def read_reset(metadata: str) -> ResetNote | None:
    """The note of an offset that was set by hand; None when a worker, or another client, committed it."""
    try:
        return _decode_reset(metadata) if metadata else None
    except msgspec.DecodeError:
        return None


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
    """A forward that is durable in the outbox and not yet known to be in its topic.

    Attributes:
        alone: a batch with it was refused as too large, so it travels without others from now on.
    """

    __slots__ = ("alone", "forward", "in_flight", "retry_at_ms", "stubbed")

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.in_flight = False
        self.retry_at_ms = 0
        self.stubbed = False
        self.alone = False


class Partition:
    """One source partition while this process owns it.

    Attributes:
        starts: by channel, the offset that reading starts at.
        committed: by channel, what the group coordinator confirmed; None when nothing was ever committed.
        durable: by channel, the frontier that the ledger has on disk; commits never pass it.
        outbox: forwards by outbox key, oldest first.
        published: outbox keys to be cleared with the next write.
        refused_topic: the last topic that took no forward of it, while settlements are held back for that.
        unacked: settlements whose offset, or whose forward, is still owed.
        paused: channels paused now, and why.
        overdue: what is said of handlers that are over their time; "" when none is.
        moved_ms: when the committable source offset last moved.
        assigned_s: monotonic seconds of the assignment.
        restore: how the ledger is brought up to date with its changelog; None where it follows none.
        opens_beside_work: others of the process have records in hand while this one's ledger is opened.
        changelog_next: the offset of the changelog that the restore has come to.
        is_worker_commit: a worker of the group wrote the committed offset, nobody by hand.
        reset: who set the committed offset by hand with `laneway offsets reset`, and why; None else.
        lost: the group gave it away without asking; nothing is published or committed any more.
    """

    __slots__ = (
        "assigned_s",
        "board",
        "changelog_next",
        "committed",
        "committed_note",
        "durable",
        "epoch",
        "failure",
        "home",
        "is_worker_commit",
        "ledger",
        "lost",
        "moved_ms",
        "names",
        "noted_ms",
        "opens_beside_work",
        "outbox",
        "overdue",
        "paused",
        "published",
        "refused_topic",
        "reset",
        "restore",
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
        self.refused_topic = ""
        self.unacked: list[Settlement] = []
        self.paused: dict[Channel, str] = {}
        self.overdue = ""
        self.failure: LanewayError | None = None
        self.committed_note = ""
        self.noted_ms = 0
        self.moved_ms = 0
        self.lost = False
        self.is_worker_commit = False
        self.reset: ResetNote | None = None
        self.assigned_s = time.monotonic()
        self.restore: RestoreProgress | None = None
        self.changelog_next = 0
        self.opens_beside_work = False
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

    def told_by(self) -> str:
        """Who told the group where to go on, for a sentence about what that passes over."""
        reset = self.reset
        return "the group was told" if reset is None else f"{reset.reset_by!r} said: {reset.reason!r}"

    def topic_of(self, channel: Channel) -> str:
        """The topic of one channel."""
        if channel is Channel.SOURCE:
            return self.home.topic
        return self.names.retry if channel is Channel.RETRY else self.names.commands

    def target_of(self, forward: Forward) -> tuple[str, int | None]:
        """Topic and partition of a forward; review news and what handlers emit go where their key leads."""
        if forward.kind is ForwardKind.REVIEW:
            return self.names.review, None
        if forward.kind is ForwardKind.EMITTED:
            return forward.topic, None
        name = self.names.retry if forward.kind is ForwardKind.RETRY else self.names.dlq
        return name, self.home.partition

    def committable(self, channel: Channel) -> int:
        """The offset that may be committed: durable, and not past a forward still in the outbox."""
        if not self.outbox:
            return self.durable[channel]
        owed = [
            entry.forward.offset
            for entry in self.outbox.values()
            if entry.forward.channel == channel and entry.forward.offset >= 0
        ]
        return min(self.durable[channel], *owed) if owed else self.durable[channel]

    def note(self) -> str:
        """What `offsets show` prints beside a lag; for display only, nothing depends on it."""
        board = self.board
        if board is None:
            return ""
        blocked = self.paused.get(Channel.SOURCE, "")
        if not blocked and self.outbox:
            oldest = next(iter(self.outbox.values())).forward
            blocked = f"{oldest.kind.name.lower()} of offset {oldest.offset} not published"
        elif not blocked and board.held_back:
            blocked = f"{board.held_back} settlements held back: {self.refused_topic} takes nothing"
        elif not blocked:
            blocked = board.waits_for
        note = CommitNote(
            running=board.running,
            waiting=board.in_memory,
            retries=board.retries_waiting,
            parked=board.parked,
            open_cases=board.open_cases,
            blocked_by="; ".join(filter(None, (blocked, self.overdue))),
            moved_ms=self.moved_ms,
        )
        return msgspec.json.encode(note).decode()

    def is_note_stale(self, now_ms: int) -> bool:
        """Whether people who look at lag would see old counts."""
        return now_ms - self.noted_ms >= NOTE_EVERY_MS and self.note() != self.committed_note

    def is_behind(self) -> bool:
        """Whether anything is still owed to Kafka."""
        if self.outbox or self.unacked or self.published:
            return True
        return self.committed != self.durable
