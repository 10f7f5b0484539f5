"""Dead letters as a person looks at them: why, since when, from where; the bytes only when asked for.

What is said of a dead letter stands in the headers that the worker wrote. They are believed when
they name this group; anybody may write to a topic.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from laneway.consumer.inspection.topics import Marks, Recent, StoredRecord, extents, read
from laneway.consumer.kafka.cluster import Partition, Watermarks
from laneway.consumer.settings.model import Settings
from laneway.errors import RefusedError, UsageError
from laneway.lanes.forward import FORMAT
from laneway.lanes.record import keyed_lane, lane_of_one

MAX_GROUPS: Final = 10_000
"""Rows of a summary; a handler may write a reason of its own into every letter."""

EXAMPLES: Final = 3
"""Keys of a group that are named."""

_SLACK: Final = 50
_ID: Final = re.compile(
    r"(?:(?P<topic>[A-Za-z0-9._-]+)/)?(?P<partition>\d{1,9})@(?P<offset>\d{1,18})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record of a DLQ topic. What its headers do not say is None.

    Attributes:
        ours: its headers name this group, so they are believed.
        size_bytes: of key and value as they lie there.
        sha256: of the original value, as the worker wrote it.
        stub: the original value was too large for the topic and is in the source topic only.
        fingerprint: of the error, to group the like ones.
        replay_of, replays: the letter that was replayed and ended in this one, and how often that happened.
        origin_ms: when the record was published.
    """

    record: StoredRecord
    ours: bool
    reason: str | None = None
    error_class: str | None = None
    failed_ms: int | None = None
    first_failed_ms: int | None = None
    origin_topic: str | None = None
    origin_partition: int | None = None
    origin_offset: int | None = None
    message_id: str | None = None
    effect_key: str | None = None
    sequence_key: str | None = None
    sequence: int | None = None
    attempt: int | None = None
    case_id: str | None = None
    forward_id: str | None = None
    sha256: str | None = None
    stub: bool = False
    fingerprint: str | None = None
    replay_of: str | None = None
    replays: int = 0
    origin_ms: int = 0

    @property
    def letter_id(self) -> str:
        """TOPIC/PARTITION@OFFSET: what `dlq list` prints and `dlq show` takes."""
        return f"{self.record.topic}/{self.record.partition}@{self.record.offset}"

    @property
    def origin(self) -> str | None:
        """The source position in the same form."""
        if self.origin_topic is None or self.origin_partition is None or self.origin_offset is None:
            return None
        return f"{self.origin_topic}/{self.origin_partition}@{self.origin_offset}"

    @property
    def lane(self) -> str | None:
        """Its lane, as the ledger names it; None when nobody could read whose it is."""
        if self.effect_key is None:
            return None
        return lane_of_one(self.effect_key) if self.sequence_key is None else keyed_lane(self.sequence_key)

    def is_of(self, reason: str) -> bool:
        """Whether that is its reason, or the fixed word that its reason begins with."""
        return self.reason is not None and reason in (self.reason, self.reason.partition(":")[0])

    @property
    def size_bytes(self) -> int:
        """See the class."""
        return len(self.record.key or b"") + len(self.record.value or b"")


def letter_of(record: StoredRecord, group: str) -> DeadLetter:
    """A record of a DLQ topic as a dead letter."""
    own = record.own_headers()
    if own.get("group") != group or own.get("kind") != "dlq" or own.get("format") != FORMAT:
        return DeadLetter(record, ours=False)
    return DeadLetter(
        record,
        ours=True,
        reason=own.get("reason"),
        error_class=own.get("error-class") or None,
        failed_ms=_number(own, "failed-at"),
        first_failed_ms=_number(own, "first-failed-at"),
        origin_topic=own.get("origin-topic"),
        origin_partition=_number(own, "origin-partition"),
        origin_offset=_number(own, "origin-offset"),
        message_id=own.get("message-id"),
        effect_key=own.get("effect-key"),
        sequence_key=own.get("sequence-key"),
        sequence=_number(own, "sequence"),
        attempt=_number(own, "attempt"),
        case_id=own.get("case-id"),
        forward_id=own.get("forward-id"),
        sha256=own.get("payload-sha256"),
        stub="stub" in own,
        fingerprint=own.get("fingerprint"),
        replay_of=own.get("replay-of"),
        replays=_number(own, "replay-count") or 0,
        origin_ms=_instant(own),
    )


# --- many --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest letters first, and how many copies of them were left out."""

    letters: Sequence[DeadLetter]
    copies: int


def newest(
    settings: Settings,
    cluster: Marks,
    topics: Sequence[str],
    *,
    limit: int,
    reason: str | None = None,
    timeout_s: float,
) -> Newest:
    """The newest letters of these topics. Without a reason only the ends of the topics are read.

    Raises:
        TopicError: a topic does not exist.
        IncompleteError: the deadline passed.
    """
    whole = extents(cluster, topics)
    depth = limit + _SLACK
    while True:
        spans = whole if reason is not None else _ends(whole, depth)
        found = collect(read(settings, spans, timeout_s=timeout_s), settings.group, limit, reason)
        # Markers and compaction leave holes: a window may hold fewer records than offsets.
        if len(found.letters) >= limit or all(spans[each].start == whole[each].start for each in whole):
            return found
        depth *= 8


def collect(records: Iterable[StoredRecord], group: str, limit: int, reason: str | None = None) -> Newest:
    """The newest `limit` letters, with memory for that many. A copy is told by its forward id."""
    heap: list[tuple[tuple[int, str, int, int], DeadLetter]] = []
    seen = Recent()
    copies = 0
    for record in records:
        letter = letter_of(record, group)
        if reason is not None and not letter.is_of(reason):
            continue
        if letter.forward_id is not None and not seen.note(letter.forward_id):
            copies += 1
            continue
        place = (record.timestamp_ms, record.topic, record.partition, record.offset)
        if len(heap) < limit:
            heapq.heappush(heap, (place, letter))
        else:
            heapq.heappushpop(heap, (place, letter))
    return Newest([letter for _, letter in sorted(heap, key=lambda entry: entry[0], reverse=True)], copies)


@dataclass(slots=True)
class Group:
    """Letters that share what they were grouped by.

    Attributes:
        error_class, fingerprint: of the latest one.
        keys: a few of their keys.
    """

    name: str | None
    error_class: str | None = None
    fingerprint: str | None = None
    keys: list[str] = field(default_factory=list)
    letters: int = 0
    bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0
    example: str = ""


def summarise(
    records: Iterable[StoredRecord],
    group: str,
    by: Callable[[DeadLetter], str | None],
    also: Callable[[DeadLetter], str | None] = lambda _: None,
) -> list[Group]:
    """Count letters by reason or the like, the most frequent first; copies are counted once.

    Args:
        also: what tells apart, besides, groups that have one name.
    """
    groups: dict[tuple[str | None, str | None], Group] = {}
    seen = Recent()
    for record in records:
        letter = letter_of(record, group)
        if letter.forward_id is not None and not seen.note(letter.forward_id):
            continue
        name = (by(letter), also(letter))
        if name not in groups and len(groups) >= MAX_GROUPS:
            name = ("(further ones)", None)
        found = groups.get(name)
        if found is None:
            found = groups[name] = Group(name[0], first_ms=record.timestamp_ms)
        found.letters += 1
        found.bytes += letter.size_bytes
        found.first_ms = min(found.first_ms, record.timestamp_ms)
        if record.timestamp_ms >= found.last_ms:
            found.last_ms, found.example = record.timestamp_ms, letter.letter_id
            found.error_class, found.fingerprint = letter.error_class, letter.fingerprint
        key = letter.effect_key if letter.sequence_key is None else letter.sequence_key
        if key is not None and len(found.keys) < EXAMPLES and key not in found.keys:
            found.keys.append(key)
    return sorted(groups.values(), key=lambda found: (-found.letters, found.name or "", found.example))


def _ends(whole: Mapping[Partition, Watermarks], depth: int) -> Mapping[Partition, Watermarks]:
    return {place: Watermarks(max(span.start, span.end - depth), span.end) for place, span in whole.items()}


# --- one ---------------------------------------------------------------------------------------


def is_id(text: str) -> bool:
    """Whether it is written as the id of a dead letter is."""
    return _ID.fullmatch(text) is not None


def parse_id(text: str, topics: Sequence[str]) -> tuple[Partition, int]:
    """TOPIC/PARTITION@OFFSET; PARTITION@OFFSET is enough where the group has one DLQ topic.

    Raises:
        UsageError: it is neither, or of a topic that is no DLQ topic of this group.
    """
    fits = _ID.fullmatch(text)
    if fits is None:
        raise UsageError(
            f"{text!r} is no id of a dead letter", mend="write TOPIC/PARTITION@OFFSET, as dlq list does"
        )
    topic = fits["topic"] or (topics[0] if len(topics) == 1 else None)
    if topic is None:
        raise UsageError(
            f"{text!r} does not say which of the topics {', '.join(topics)}",
            mend="write TOPIC/PARTITION@OFFSET",
        )
    if topic not in topics:
        raise UsageError(
            f"{topic} is no DLQ topic of this group: it has {', '.join(topics)}", mend="check -g and --source"
        )
    return (topic, int(fits["partition"])), int(fits["offset"])


def find(
    settings: Settings, cluster: Marks, place: Partition, offset: int, *, timeout_s: float
) -> DeadLetter:
    """The dead letter at one position.

    Raises:
        RefusedError: there is none; it says why.
    """
    topic, number = place
    where = f"{topic}/{number}@{offset}"
    mend = f"`laneway dlq list -g {settings.group}` shows those that are there"
    span = extents(cluster, [topic]).get(place)
    if span is None:
        raise RefusedError("the topic has no such partition", where=where, mend=mend)
    if offset < span.start:
        raise RefusedError(
            f"no such dead letter: the topic begins at offset {span.start}, retention took what was before",
            where=where,
            mend=mend,
        )
    if offset < span.end:
        for record in read(settings, {place: Watermarks(offset, offset + 1)}, timeout_s=timeout_s):
            return letter_of(record, settings.group)
    raise RefusedError("no such dead letter: the topic has no record there", where=where, mend=mend)


def _instant(own: Mapping[str, str]) -> int:
    text = own.get("origin-timestamp", "")
    early = text.startswith("-")
    number = _number({"": text[early:]}, "") or 0
    return -number if early else number


def _number(own: Mapping[str, str], name: str) -> int | None:
    text = own.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 19 else None
