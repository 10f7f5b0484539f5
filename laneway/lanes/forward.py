"""What leaves for another topic: retries, dead letters and news of cases.

A forward is a value with an id derived from what caused it, so that a second copy after a
crash is recognised. Headers we write start with `laneway-` and are replaced, never appended:
twenty replays leave their number and bytes constant.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

import msgspec

from laneway.lanes.case import Case
from laneway.lanes.envelope import MAX_TEXT_BYTES
from laneway.lanes.lane import Raw
from laneway.lanes.record import Channel, Headers, Record, keyed_lane, lane_of_one, replay_of, sequence_key_of
from laneway.lanes.verdict import Emitted

FORMAT = "1"
PREFIX = "laneway-"


class ForwardKind(IntEnum):
    """Where a forward goes. The numbers are part of the ledger's format."""

    RETRY = 1
    DLQ = 2
    REVIEW = 3
    EMITTED = 4


class Forward(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One record to be published, and the position that may not be committed before it is.

    Attributes:
        forward_id: derived from group, origin position, attempt, kind and case.
        channel, offset: the position it settles; offset is -1 when no offset hangs on it
            (a released follower's was committed when it was parked).
        order_key: later forwards with the same order key wait behind this one; "" for none.
        topic: of an emitted record; the others have theirs by their kind.
    """

    kind: ForwardKind
    forward_id: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    channel: Channel
    offset: int
    order_key: str = ""
    topic: str = ""


class Home(msgspec.Struct, frozen=True):
    """Where a ledger is at home: its group and its source partition."""

    group: str
    topic: str
    partition: int


class ReviewNews(msgspec.Struct, frozen=True, rename="camel"):
    """The value of a review record. No payload, no header value.

    Attributes:
        event: `opened` or `resolved`.
        resolution: how it closed, such as `predecessor-arrived`, or an operator's action; None while open.
        command_id, actor, said: of the command that closed it: its id, who claims to send it, and why.
    """

    format: int
    event: str
    case_id: str
    reason: str
    cause: str
    group: str
    topic: str
    partition: int
    offset: int
    sequence_key: str | None
    sequence: int
    effect_key: str
    message_id: str
    attempts: int
    required_check: str
    actions: tuple[str, ...]
    holds: bool
    version: int
    opened_ms: int
    fingerprint: str = ""
    note: str = ""
    resolution: str | None = None
    resolved_ms: int | None = None
    command_id: str = ""
    actor: str = ""
    said: str = ""


class CommandAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """What became of a command: the value of a review record whose kind is `answer`.

    Attributes:
        event: `applied` or `refused`.
        why: of a refusal, in plain words.
        outcome: what the delivery came to that a command asked for, such as `succeeded`; else "".
        next_case: the case that it ended in, when it did not end well.
        letter, replays: of a replayed dead letter: its forward id, and how often its effect was replayed.
        effect_key, run: of a rerun: what was to be repeated, and the number of the rerun.
    """

    format: int
    event: str
    command_id: str
    action: str
    actor: str
    said: str
    case_id: str
    lane: str
    group: str
    topic: str
    partition: int
    offset: int
    answered_ms: int
    why: str = ""
    outcome: str = ""
    next_case: str = ""
    letter: str = ""
    replays: int = 0
    effect_key: str = ""
    run: int = 0


class Forwarder:
    """Builds the forwards of one source partition. Every header is derived, none is random.

    Args:
        home: named in the headers, so that a record is believed only where it belongs.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def retry(self, record: Record, *, attempt: int, due_ms: int, reason: str, now_ms: int) -> Forward:
        """The same bytes, to be delivered again at `due_ms` as `attempt`."""
        own = self._lineage(record, attempt, reason, "", now_ms)
        own.append(("due-at", str(due_ms)))
        return self._forward(ForwardKind.RETRY, record, own, attempt, "")

    def dead_letter(
        self,
        record: Record,
        *,
        attempt: int,
        reason: str,
        error_class: str,
        case_id: str,
        now_ms: int,
        fingerprint: str = "",
    ) -> Forward:
        """Original key and value bytes, with why they were refused."""
        own = self._lineage(record, attempt, reason, case_id, now_ms)
        if fingerprint:
            own.append(("fingerprint", fingerprint))
        own += [
            ("error-class", error_class),
            ("failed-at", str(now_ms)),
            ("payload-sha256", hashlib.sha256(record.value or b"").hexdigest()),
        ]
        return self._forward(ForwardKind.DLQ, record, own, attempt, case_id)

    def emitted(self, record: Record, number: int, emitted: Emitted) -> Forward:
        """A record that the handler wants published; those of a lane go out in the lane's order.

        Args:
            number: which one of this delivery's; with it the id is the same after any crash.
        """
        home = self._home
        forward_id = self._forward_id("emitted", record.origin_offset, record.attempt, str(number))
        own = [
            ("format", FORMAT),
            ("kind", "emitted"),
            ("forward-id", forward_id),
            ("group", home.group),
            ("origin-topic", home.topic),
            ("origin-partition", str(home.partition)),
            ("origin-offset", str(record.origin_offset)),
        ]
        return Forward(
            kind=ForwardKind.EMITTED,
            forward_id=forward_id,
            key=emitted.key,
            value=emitted.value,
            headers=emitted.headers + _encoded(own),
            channel=record.channel,
            offset=-1 if record.parked else record.offset,
            order_key=record.lane,
            topic=emitted.topic,
        )

    def news(self, case: Case, record: Record, *, event: str, resolution: str | None, now_ms: int) -> Forward:
        """A case was opened or closed; keyed by case id, in order with the case's other news.

        Args:
            record: the record whose settlement makes the news; its offset waits for it.
        """
        home = self._home
        command = record.command if resolution is not None else None
        value = msgspec.json.encode(
            ReviewNews(
                format=int(FORMAT),
                event=event,
                case_id=case.case_id,
                reason=case.reason,
                cause=case.cause,
                group=home.group,
                topic=home.topic,
                partition=home.partition,
                offset=case.offset,
                sequence_key=sequence_key_of(case.lane),
                sequence=case.sequence,
                effect_key=case.effect_key,
                message_id=case.message_id,
                attempts=case.attempts,
                required_check=case.required_check,
                actions=case.actions,
                holds=case.holds,
                version=case.version,
                opened_ms=case.opened_ms,
                fingerprint=case.fingerprint,
                note=case.note,
                resolution=resolution,
                resolved_ms=now_ms if resolution is not None else None,
                command_id=command.command_id if command is not None else "",
                actor=command.actor if command is not None else "",
                said=command.reason if command is not None else "",
            )
        )
        forward_id = self._forward_id(f"review-{event}", case.offset, case.attempts, case.case_id)
        own = [("kind", "review"), ("reason", case.reason), ("case-id", case.case_id)]
        return self._review(record, forward_id, case.case_id, value, own)

    def answer(
        self, record: Record, *, why: str, outcome: str = "", next_case: str = "", now_ms: int
    ) -> Forward:
        """What became of the command that `record` carries; in order with the news of its case.

        Args:
            why: the refusal; "" when the command was applied.
        """
        home, command = self._home, record.command
        letter, replay = command.letter if command is not None else None, replay_of(record)
        repeat = command.repeat if command is not None else None
        value = msgspec.json.encode(
            CommandAnswer(
                format=int(FORMAT),
                event="refused" if why else "applied",
                command_id=command.command_id if command is not None else "",
                action=command.action if command is not None else "",
                actor=command.actor if command is not None else "",
                said=command.reason if command is not None else "",
                case_id=command.case_id if command is not None else "",
                lane=command.lane if command is not None else "",
                group=home.group,
                topic=home.topic,
                partition=home.partition,
                offset=record.offset,
                answered_ms=now_ms,
                why=why,
                outcome=outcome,
                next_case=next_case,
                letter=letter.forward_id if letter is not None else "",
                replays=replay.count if letter is not None and replay is not None and not why else 0,
                effect_key=repeat.effect_key if repeat is not None else "",
                run=repeat.run if repeat is not None else 0,
            )
        )
        forward_id = self._forward_id("answer", record.offset, 0, "")
        case_id = command.case_id if command is not None else ""
        name = command.command_id if command is not None else f"commands-{home.partition}-{record.offset}"
        own = [("kind", "answer"), ("command-id", name)]
        if case_id:
            own.append(("case-id", case_id))
        return self._review(record, forward_id, case_id or name, value, own)

    def _review(
        self, record: Record, forward_id: str, key: str, value: bytes, own: list[tuple[str, str]]
    ) -> Forward:
        own += [("format", FORMAT), ("forward-id", forward_id), ("group", self._home.group)]
        return Forward(
            kind=ForwardKind.REVIEW,
            forward_id=forward_id,
            key=key.encode(),
            value=value,
            headers=_encoded(own),
            channel=record.channel,
            offset=-1 if record.parked else record.offset,
            order_key=key,
        )

    def _lineage(
        self, record: Record, attempt: int, reason: str, case_id: str, now_ms: int
    ) -> list[tuple[str, str]]:
        home = self._home
        own = [
            ("format", FORMAT),
            ("origin-topic", home.topic),
            ("origin-partition", str(home.partition)),
            ("origin-timestamp", str(record.timestamp_ms)),
            ("group", home.group),
            ("attempt", str(attempt)),
            ("first-failed-at", str(record.first_failed_ms or now_ms)),
            ("reason", reason),
        ]
        # A retry record that cannot be believed has no origin that can be.
        if not (record.fault and record.channel is Channel.RETRY):
            own.append(("origin-offset", str(record.origin_offset)))
        if record.message_id:
            own.append(("message-id", record.message_id))
        if record.effect_key:
            own.append(("effect-key", record.effect_key))
        if record.sequence_key is not None:
            own.append(("sequence-key", record.sequence_key))
            own.append(("sequence", str(record.sequence)))
        if case_id:
            own.append(("case-id", case_id))
        if (replay := replay_of(record)) is not None:
            own += [("replay-of", replay.letter), ("replay-count", str(replay.count))]
        return own

    def _forward(
        self, kind: ForwardKind, record: Record, own: list[tuple[str, str]], attempt: int, case_id: str
    ) -> Forward:
        name = kind.name.lower()
        # A record without identity has no attempt history of its own, so its position tells it apart.
        place = f"{record.channel.name}:{record.offset}" if record.fault else ""
        forward_id = self._forward_id(name + place, record.origin_offset, attempt, case_id)
        own += [("kind", name), ("forward-id", forward_id)]
        return Forward(
            kind=kind,
            forward_id=forward_id,
            key=record.key,
            value=record.value,
            headers=foreign(record.headers) + _encoded(own),
            channel=record.channel,
            offset=-1 if record.parked else record.offset,
            order_key=case_id,
        )

    def _forward_id(self, kind: str, origin_offset: int, attempt: int, case_id: str) -> str:
        home = self._home
        seed = (home.group, home.topic, str(home.partition), kind, str(origin_offset), str(attempt), case_id)
        return hashlib.sha256("\x00".join(seed).encode()).hexdigest()[:24]


def foreign(headers: Headers) -> Headers:
    """The headers that are not ours; they are kept as they came, in order, repeats included."""
    return tuple(header for header in headers if not header[0].startswith(PREFIX))


def stub(forward: Forward) -> Forward:
    """The same forward without its value, for a dead letter that the topic refuses as too large.

    Position and hash stand in the headers, so the original can be found in the source topic.
    """
    headers = (*forward.headers, (PREFIX + "stub", b"value-too-large"))
    return msgspec.structs.replace(forward, value=None, headers=headers)


def read_retry(record: Record, home: Home, payload_fault: str, *, latest_due_ms: int) -> None:
    """Fill a retry record's identity from our own headers, which are believed only when they fit.

    Args:
        payload_fault: what the envelope said of the value; a fault met on a retry is judged in
            turn, because the lane waits for this very record.
        latest_due_ms: a later due time is cut to this, so that a hostile one stalls nothing.

    Sets `record.fault` when the headers are missing, broken, or of another group or partition.
    """
    own = {name[len(PREFIX) :]: value for name, value in record.headers if name.startswith(PREFIX)}
    record.fault = ""
    try:
        texts = {name: value.decode("utf-8") for name, value in own.items() if value is not None}
        at_home = (
            texts["group"] == home.group
            and texts["origin-topic"] == home.topic
            and _number(texts["origin-partition"]) == home.partition
        )
        if texts["format"] != FORMAT or texts["kind"] != "retry" or not at_home:
            record.fault = "foreign-retry-record"
            return
        record.message_id = texts["message-id"]
        record.effect_key = texts["effect-key"]
        record.sequence_key = texts.get("sequence-key")
        record.sequence = _number(texts["sequence"]) if record.sequence_key is not None else 0
        record.origin_offset = _number(texts["origin-offset"])
        record.timestamp_ms = _instant(texts["origin-timestamp"])
        record.attempt = _number(texts["attempt"])
        record.first_failed_ms = _number(texts["first-failed-at"])
        record.due_ms = min(_number(texts["due-at"]), latest_due_ms)
    except (KeyError, ValueError):
        record.fault = "broken-retry-headers"
        return
    record.misfit = record.misfit or payload_fault
    key = record.sequence_key
    # The bounds of the envelope: a forged record must not store what none of ours could.
    if not (record.message_id and record.effect_key) or any(
        len(text.encode()) > MAX_TEXT_BYTES for text in (record.message_id, record.effect_key, key or "")
    ):
        record.fault = "broken-retry-headers"
        return
    record.lane = keyed_lane(key) if key is not None else lane_of_one(record.effect_key)


def raw_of(record: Record) -> Raw:
    """The bytes to keep in a case or beside a held lane; our own headers are left out."""
    return Raw(record.key, record.value, foreign(record.headers), record.timestamp_ms)


def with_raw(record: Record, raw: Raw) -> Record:
    """The identity of one record over the bytes of another; it settles at the same position."""
    other = Record(record.channel, record.offset, raw.key, raw.value, raw.headers, raw.timestamp_ms)
    other.origin_offset, other.lane = record.origin_offset, record.lane
    other.message_id, other.effect_key = record.message_id, record.effect_key
    other.sequence_key, other.sequence = record.sequence_key, record.sequence
    other.version, other.first_failed_ms = record.version, record.first_failed_ms
    other.prior = record.prior
    return other


def _encoded(own: list[tuple[str, str]]) -> Headers:
    return tuple((PREFIX + name, text.encode("utf-8")) for name, text in own)


def _instant(text: str) -> int:
    """Epoch milliseconds; a producer may stamp a record with a time before 1970."""
    return -_number(text[1:]) if text.startswith("-") else _number(text)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValueError(text)
    number = int(text)
    if number >= 1 << 63:
        raise ValueError(text)
    return number
