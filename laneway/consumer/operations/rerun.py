"""A rerun: which effects happen once more, in which order, and the commands that ask for it.

Three looks. The records of a range, or of a key, are found in the source topic; the ledger says which of them
made an effect that may be repeated, and in which runs it has happened before; the records are read once more,
and each travels in a command to the owner of its lane. Of one lane each effect names the one before it, so
a failure stops its key in this run, whatever is queued. Memory follows the records that fit, without their
bytes.

Whoever is killed in the middle runs it again with the same number: the owner repeats an effect once for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from laneway.consumer.kafka.cluster import Partition, Watermarks
from laneway.consumer.operations.commands import new_command_id
from laneway.consumer.preview.preview import Read, batches_of
from laneway.consumer.rules import envelope_of
from laneway.consumer.settings.model import Settings
from laneway.errors import RefusedError
from laneway.lanes.canonical import payload_hash
from laneway.lanes.command import COMMAND_FORMAT, Command, Repeat
from laneway.lanes.effect import OPEN, Effect, EffectState
from laneway.lanes.record import Record
from laneway.lanes.rerun import is_same_payload
from laneway.store import codec

UNKNOWN: Final = "unknown"
COPY: Final = "copy"
OPENED: Final = "open"
NOT_SUCCEEDED: Final = "not-succeeded"
DONE: Final = "done"
ENDED: Final = "ended-otherwise"
LATER: Final = "later-run"
QUEUED: Final = "queued"
CORRECTED: Final = "corrected"

Fits = Callable[[Record], bool]


@dataclass(frozen=True, slots=True)
class Found:
    """One record that fits, without its bytes."""

    place: Partition
    offset: int
    lane: str
    effect_key: str
    payload_hash: bytes = field(default=b"", compare=False)


@dataclass
class Records:
    """The records of a range that fit.

    Attributes:
        unreadable: records whose effect nobody can read from here.
    """

    found: list[Found] = field(default_factory=list)
    unreadable: int = 0


class Effects:
    """What one ledger knows of some effects. A fold of its entries."""

    prefixes: tuple[bytes, ...] = (codec.EFFECT,)

    def __init__(self, effect_keys: frozenset[str]) -> None:
        self._keys = {codec.effect_key(key): key for key in effect_keys}
        self.known: dict[str, Effect] = {}

    def take(self, key: bytes, value: bytes | None) -> None:
        """Fold one entry in; None removes."""
        name = self._keys.get(key)
        if name is not None:
            self.known.pop(name, None)
            if value is not None:
                self.known[name] = codec.decode_effect(value)


@dataclass
class Plan:
    """What a rerun does.

    Attributes:
        behind: of each record that is sent, the effect before it; by partition and offset.
        chosen: the records, by partition and offset.
        left: how many records are left alone, by a fixed word.
        keys: lanes of which something is repeated.
        before: of the records, how many made an effect that was repeated before, by the number of that run.
        by_hand: of the records, how many made no effect: a person said that it had happened.
    """

    run: int
    chosen: dict[tuple[Partition, int], Found] = field(default_factory=dict)
    behind: dict[tuple[Partition, int], str] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)
    keys: int = 0
    before: Counter[int] = field(default_factory=Counter)
    by_hand: int = 0


def find(
    settings: Settings,
    spans: Mapping[Partition, Watermarks],
    fits: Fits,
    *,
    limit: int,
    timeout_s: float,
    read: Read = batches_of,
) -> Records:
    """The records of these spans that fit.

    Raises:
        IncompleteError: the deadline passed.
        RefusedError: more than `limit` fit.
    """
    records = Records()
    envelopes = {topic: envelope_of(settings, topic, None) for topic, _ in spans}
    for place, batch in read(settings, spans, timeout_s=timeout_s):
        for record in batch:
            if not record.fault:
                envelopes[place[0]].read(record, *place)
            if record.fault:
                records.unreadable += 1
            elif not record.skip and fits(record):
                records.found.append(
                    Found(
                        place,
                        record.offset,
                        record.lane,
                        record.effect_key,
                        payload_hash(record.payload, record.value),
                    )
                )
                if len(records.found) > limit:
                    raise RefusedError(
                        f"more than {limit} records fit",
                        mend="take a smaller range, one --key, or raise --limit",
                    )
    return records


def next_run(records: Records, known: Mapping[Partition, Mapping[str, Effect]]) -> int:
    """A number that none of these effects has had."""
    return 1 + max(runs_of(records, known), default=0)


def runs_of(records: Records, known: Mapping[Partition, Mapping[str, Effect]]) -> frozenset[int]:
    """The numbers that these effects have had."""
    effects = (known.get(each.place, {}).get(each.effect_key) for each in records.found)
    return frozenset(effect.run for effect in effects if effect is not None and effect.run)


def plan(
    records: Records,
    known: Mapping[Partition, Mapping[str, Effect]],
    run: int,
    *,
    by_number: bool,
    queued: frozenset[tuple[Partition, str]] = frozenset(),
) -> Plan:
    """What is to be sent in this run, and what is left alone.

    Args:
        known: what the ledgers know of the effects.
        by_number: lanes go by their numbers, and else as the records arrived.
        queued: effects that a command of this run waits for already, by partition.
    """
    made = Plan(run)
    lanes: dict[tuple[Partition, str], list[tuple[int, Found, str]]] = {}
    for each in records.found:
        effect = known.get(each.place, {}).get(each.effect_key)
        word = _left_alone(each, effect, run)
        if not word and (each.place, each.effect_key) in queued:
            word = QUEUED
        if word:
            made.left[word] += 1
        elif effect is not None and effect.run:
            made.before[effect.run] += 1
        elif effect is not None:
            made.by_hand += effect.reason == "mark-done"
        # What this run has done, or failed at, stays the one before.
        if effect is not None and word != COPY and (word in {"", QUEUED} or effect.run == run):
            number = effect.sequence if by_number else each.offset
            lanes.setdefault((each.place, each.lane), []).append((number, each, word))
    for members in lanes.values():
        before = ""
        made.keys += any(not word for _, _, word in members)
        for _, each, word in sorted(members, key=lambda member: (member[0], member[1].offset)):
            if not word:
                made.chosen[each.place, each.offset] = each
                made.behind[each.place, each.offset] = before
            before = each.effect_key
    return made


def _left_alone(each: Found, effect: Effect | None, run: int) -> str:
    """Why its owner would refuse it whatever its lane does, in a fixed word; the owner asks again."""
    if effect is None:
        return UNKNOWN
    if effect.offset != each.offset or effect.lane != each.lane:
        return COPY
    if effect.state in OPEN:
        return OPENED
    if effect.run > run:
        return LATER
    succeeded = effect.state is EffectState.SUCCEEDED
    if effect.run == run:
        return DONE if succeeded else ENDED
    if not succeeded:
        return NOT_SUCCEEDED
    is_same = not each.payload_hash or is_same_payload(effect, each.payload_hash)
    return "" if is_same else CORRECTED


def commands(
    settings: Settings, made: Plan, actor: str, reason: str, *, timeout_s: float, read: Read = batches_of
) -> Iterator[Command]:
    """The commands, those of one lane in its order; the records are read meanwhile.

    Raises:
        IncompleteError: the deadline passed.
    """
    spans: dict[Partition, Watermarks] = {}
    for place, offset in made.chosen:
        span = spans.get(place, Watermarks(offset, offset + 1))
        spans[place] = Watermarks(min(span.start, offset), max(span.end, offset + 1))
    ahead = {(place, made.chosen[place, offset].effect_key) for place, offset in made.chosen}
    waiting: dict[tuple[Partition, str], Command] = {}
    for place, batch in read(settings, spans, timeout_s=timeout_s):
        for record in batch:
            found = made.chosen.get((place, record.offset))
            if found is None:
                continue
            behind = made.behind[place, record.offset]
            command = _command(settings, found, made.run, behind, record, actor, reason)
            if (place, behind) in ahead:
                # Its number is behind that of a record further on.
                waiting[place, behind] = command
                continue
            next_one: Command | None = command
            name = (place, found.effect_key)
            while next_one is not None:
                yield next_one
                ahead.discard(name)
                next_one = waiting.pop(name, None)
                if next_one is not None and next_one.repeat is not None:
                    name = (place, next_one.repeat.effect_key)


def _command(
    settings: Settings, found: Found, run: int, behind: str, record: Record, actor: str, reason: str
) -> Command:
    return Command(
        format=COMMAND_FORMAT,
        command_id=new_command_id(),
        action="rerun",
        actor=actor,
        reason=reason,
        group=settings.group,
        topic=found.place[0],
        partition=found.place[1],
        lane=found.lane,
        repeat=Repeat(
            found.effect_key,
            found.offset,
            run,
            behind,
            record.key,
            record.value,
            record.headers,
            max(0, record.timestamp_ms),
        ),
    )


def run_of(command: Command) -> int:
    """The number of the rerun that a queued command belongs to; 0 when it is none of a rerun."""
    return command.repeat.run if command.action == "rerun" and command.repeat is not None else 0


def effects_of(queued: Sequence[Command]) -> frozenset[tuple[Partition, str]]:
    """The effects that queued commands are about."""
    return frozenset(
        ((command.topic, command.partition), command.repeat.effect_key)
        for command in queued
        if command.repeat is not None
    )
