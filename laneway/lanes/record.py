"""The one struct that travels the route, from intake to settlement.

It is mutable on purpose: each room fills in its own fields, and a frozen object per step costs
more than the rules themselves. Nothing here decides anything.
"""

from __future__ import annotations

from enum import IntEnum

from laneway.lanes.canonical import RULE
from laneway.lanes.command import Command
from laneway.lanes.effect import Effect, EffectState, Replay

Headers = tuple[tuple[str, bytes | None], ...]


class Channel(IntEnum):
    """Which of the topics that live with a source partition a position belongs to."""

    SOURCE = 0
    RETRY = 1
    COMMANDS = 2


class Record:
    """One Kafka record, and what became known about it on the way.

    Filled by `consumer/intake`: channel, offset, timestamp_ms, key, value, headers.
    Filled by `lanes/envelope`: the identity, `payload`, and `fault` when there is none.
    Filled by `lanes/board`: redelivered, parked, prior.
    Filled by `consumer/workers`: payload_hash.

    Attributes:
        offset: position in the topic of `channel` that it was read from.
        origin_offset: its position in the source topic; differs from `offset` on a retry.
        payload: the raw JSON of the payload, or whatever the pipeline's `decode` returned.
        attempt: 1 for a source record; a retry carries the attempt it asks for.
        due_ms: epoch milliseconds before which a retry must not run; 0 when it may run at once.
        fault: why there is no usable envelope; such a record is rejected out of turn.
        misfit: why a readable record must be rejected when its turn comes (unknown version).
        skip: why the configuration lets it pass without a delivery (a tombstone), or "".
        prior: its effect as the ledger knew it when the record was judged.
        command: what an operator wants, on a record of the commands topic.
        size_bytes: of key, value and headers: what the in-flight and parking bounds count.
        parked: True when it was read back from the ledger, so it has no offset left to settle.
    """

    __slots__ = (
        "attempt",
        "channel",
        "command",
        "due_ms",
        "effect_key",
        "fault",
        "first_failed_ms",
        "headers",
        "key",
        "lane",
        "message_id",
        "misfit",
        "offset",
        "origin_offset",
        "parked",
        "payload",
        "payload_hash",
        "prior",
        "redelivered",
        "sequence",
        "sequence_key",
        "size_bytes",
        "skip",
        "timestamp_ms",
        "value",
        "version",
    )

    def __init__(
        self,
        channel: Channel,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp_ms: int = 0,
    ) -> None:
        self.channel = channel
        self.offset = offset
        self.origin_offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self.headers = headers
        self.message_id = ""
        self.effect_key = ""
        self.sequence_key: str | None = None
        self.sequence = 0
        self.version = 0
        self.payload: object = None
        self.payload_hash = b""
        self.lane = ""
        self.attempt = 1
        self.due_ms = 0
        self.first_failed_ms = 0
        self.fault = ""
        self.misfit = ""
        self.skip = ""
        self.redelivered = False
        self.parked = False
        self.prior: Effect | None = None
        self.command: Command | None = None
        self.size_bytes = size_bytes(key, value, headers)

    def __repr__(self) -> str:
        # No payload and no header values: a repr ends in logs and in test output.
        return (
            f"Record({self.channel.name} {self.offset} effect={self.effect_key!r} "
            f"lane={self.lane!r} seq={self.sequence} attempt={self.attempt})"
        )


def replay_of(record: Record) -> Replay | None:
    """The dead letter that a delivery goes back to, and how often one of its effect was replayed by then."""
    prior, command = record.prior, record.command
    before = prior.replay if prior is not None and prior.offset == record.origin_offset else None
    letter = command.letter if command is not None else None
    if letter is None or prior is None or prior.state is EffectState.RUNNING:
        return before  # a command that has begun before is counted by its own intent
    return Replay(letter.forward_id, (before.count if before is not None else 0) + 1)


def run_of(record: Record) -> int:
    """The number of the rerun that a delivery belongs to; 0 for the normal flow."""
    prior, command = record.prior, record.command
    if command is not None and command.repeat is not None:
        return command.repeat.run
    return prior.run if prior is not None and prior.offset == record.origin_offset else 0


def success_behind(record: Record) -> bytes | None:
    """The payload hash of another delivery's success that this one is replayed over; None for none."""
    prior = record.prior
    if prior is None:
        return None
    if prior.state is EffectState.SUCCEEDED and prior.offset != record.origin_offset:
        return prior.payload_hash
    return prior.succeeded


def effect_of(
    record: Record,
    state: EffectState,
    now_ms: int,
    first_failed_ms: int,
    *,
    reason: str = "",
    result_key: str | None = None,
    due_ms: int = 0,
    case_id: str = "",
) -> Effect:
    """The record's effect in this state, with what it keeps of the one before."""
    return Effect(
        state,
        record.message_id,
        record.origin_offset,
        record.lane,
        record.sequence,
        record.version,
        record.payload_hash,
        RULE,
        record.attempt,
        result_key,
        reason,
        now_ms,
        first_failed_ms,
        due_ms,
        case_id,
        replay_of(record),
        run_of(record),
        success_behind(record),
    )


def size_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes of key, value and headers."""
    size = len(key or b"") + len(value or b"")
    for name, content in headers:
        size += len(name) + len(content or b"")
    return size


def keyed_lane(sequence_key: str) -> str:
    """The lane of a sequence key. The prefix keeps it apart from the lanes of one."""
    return "k" + sequence_key


def lane_of_one(effect_key: str) -> str:
    """The lane of a record without a sequence key: nothing but its own effect is ordered."""
    return "e" + effect_key


def is_lane_of_one(lane: str) -> bool:
    """True for the lane of a record without a sequence key."""
    return lane.startswith("e")


def sequence_key_of(lane: str) -> str | None:
    """The sequence key whose lane this is; None for a lane of one, and for none at all."""
    return lane[1:] if lane.startswith("k") else None


def effect_key_of(lane: str) -> str | None:
    """The effect key of a lane of one; None for any other."""
    return lane[1:] if is_lane_of_one(lane) else None
