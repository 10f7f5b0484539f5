"""Dead letters to be replayed: which of them, what is known of each, and the commands that do it.

A letter stays in its topic for ever, whatever became of it; so what is left to do is told by the answers on
the review topic, the commands that are queued, and the ledger where it can be read. The owner judges again by
the same rule (`lanes/dead_letter`), and applies one command for each letter. So whoever is killed in the
middle runs it again. Memory follows the letters that fit, without their bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from laneway.consumer.inspection.cases import MAX_ANSWERS, CaseBook, answer_of, is_answer
from laneway.consumer.inspection.dead_letters import DeadLetter, letter_of
from laneway.consumer.inspection.topics import Marks, StoredRecord, extents, read
from laneway.consumer.kafka.cluster import Partition, Watermarks
from laneway.consumer.operations.commands import lane_of, new_command_id
from laneway.consumer.settings.model import Settings
from laneway.errors import RefusedError
from laneway.lanes.admission import Order
from laneway.lanes.command import COMMAND_FORMAT, Command, Letter
from laneway.lanes.dead_letter import comes_late, is_over, refusal_of_letter
from laneway.lanes.effect import Effect
from laneway.lanes.forward import CommandAnswer, ReviewNews, foreign
from laneway.lanes.lane import NEW_LANE, Lane
from laneway.store import codec

MAX_LETTERS: Final = 200_000
"""Letters that fit and are kept, without their bytes."""

CHUNK: Final = 100
CHUNK_BYTES: Final = 16 * 2**20
"""Letters, and bytes of them, that are read ahead of being sent."""

Condition = Callable[[DeadLetter], bool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A letter that fits, without its bytes."""

    letter: DeadLetter
    topic: str
    partition: int
    offset: int
    attempt: int
    effect_key: str
    forward_id: str
    lane: str

    @property
    def source(self) -> Partition:
        """The source partition whose owner is to run it."""
        return self.topic, self.partition

    def as_letter(self, *, out_of_order: bool) -> Letter:
        """What its owner is asked, without the bytes."""
        return Letter(
            self.forward_id,
            self.effect_key,
            self.offset,
            self.attempt,
            timestamp_ms=self.letter.origin_ms,
            out_of_order=out_of_order,
        )


@dataclass
class Chosen:
    """The letters that fit a condition: of each effect only the last one.

    Attributes:
        letters: in the order of the topics.
        nameless: letters that fit and of which nobody could read whose they are, or that are another's.
    """

    letters: dict[tuple[Partition, str], Wanted] = field(default_factory=dict)
    nameless: int = 0

    def take(self, letter: DeadLetter, fits: Condition) -> None:
        """One letter, in the order of its partition."""
        wanted = wanted_of(letter)
        if wanted is None:
            self.nameless += fits(letter)
            return
        name = (wanted.source, wanted.effect_key)
        if fits(letter):
            self.letters.pop(name, None)
            self.letters[name] = wanted
            if len(self.letters) > MAX_LETTERS:
                raise RefusedError(
                    f"more than {MAX_LETTERS} dead letters fit", mend="narrow it with --where or --key"
                )
        else:
            self.letters.pop(name, None)  # what was refused since has another reason, and is the last word


def wanted_of(letter: DeadLetter) -> Wanted | None:
    """A letter that has all that a replay needs; None when nobody could read whose it is."""
    lane = letter.lane
    if (
        lane is None
        or letter.effect_key is None
        or letter.forward_id is None
        or letter.origin_topic is None
        or letter.origin_partition is None
        or letter.origin_offset is None
        or letter.attempt is None
    ):
        return None
    record = letter.record
    bare = StoredRecord(record.topic, record.partition, record.offset, record.timestamp_ms, None, None)
    return Wanted(
        replace(letter, record=bare),
        letter.origin_topic,
        letter.origin_partition,
        letter.origin_offset,
        letter.attempt,
        letter.effect_key,
        letter.forward_id,
        lane,
    )


def choose(
    settings: Settings, cluster: Marks, topics: Sequence[str], fits: Condition, *, timeout_s: float
) -> Chosen:
    """The letters of these topics that fit. Reads them whole, once.

    Raises:
        IncompleteError: the deadline passed.
        RefusedError: more fit than memory is meant for.
    """
    chosen = Chosen()
    for record in read(settings, extents(cluster, topics), timeout_s=timeout_s):
        chosen.take(letter_of(record, settings.group), fits)
    return chosen


# --- what is known of them ---------------------------------------------------------------------


@dataclass
class Told:
    """What the review topics say of letters and their lanes.

    Attributes:
        replayed: by forward id of a letter, the answer to the command that was applied.
        answered: ids of the commands about them that have their answer, though perhaps not their commit.
        cases: by source partition and lane, the cases that are open.
        resolved: by id, how the cases that the letters name were closed.
    """

    replayed: dict[str, CommandAnswer] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    cases: dict[tuple[Partition, str], list[str]] = field(default_factory=dict)
    resolved: dict[str, str] = field(default_factory=dict)


def told_of(settings: Settings, records: Iterable[StoredRecord], wanted: Iterable[Wanted]) -> Told:
    """Fold the records of the review topics."""
    ids, lanes, own_cases = set(), set(), set()
    for each in wanted:
        ids.add(each.forward_id)
        lanes.add((each.source, each.lane))
        own_cases.add(each.letter.case_id)

    def is_theirs(news: ReviewNews) -> bool:
        if news.event == "resolved" and news.case_id in own_cases and news.resolution is not None:
            told.resolved[news.case_id] = news.resolution
        return ((news.topic, news.partition), lane_of(news)) in lanes

    told, book = Told(), CaseBook(settings.group, wanted=is_theirs)
    for record in records:
        if not is_answer(record):
            book.take(record)
            continue
        answer = answer_of(record, settings.group)
        if answer is not None and answer.letter in ids:
            told.answered.add(answer.command_id)
            if not answer.why:
                told.replayed[answer.letter] = answer
    for news in book.open():
        told.cases.setdefault(((news.topic, news.partition), lane_of(news)), []).append(news.case_id)
    return told


_ENDING: Final = frozenset({"replay", "replay-with", "run-again", "mark-done"})
"""Actions of a case that leave nothing to replay of its letter; after the others it may still run."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What the review topics say of one letter.

    Attributes:
        state: `open`, `case open` (that has to be decided first), `replayed`, or `done` by its case.
        case_id: the open case, "".
        replays: how often this letter was replayed.
    """

    state: str
    case_id: str = ""
    replays: int = 0


def fates_of(
    settings: Settings, records: Iterable[StoredRecord], found: Iterable[DeadLetter]
) -> dict[str, Fate]:
    """By letter id; those of which nobody could read whose they are have none."""
    wanted = [each for each in map(wanted_of, found) if each is not None]
    told = told_of(settings, records, wanted)
    return {each.letter.letter_id: _fate(each, told) for each in wanted}


def _fate(each: Wanted, told: Told) -> Fate:
    if each.forward_id in told.replayed:
        return Fate("replayed", replays=1)
    cases, own = told.cases.get((each.source, each.lane), []), each.letter.case_id
    if own not in cases and told.resolved.get(own or "") in _ENDING:
        return Fate("done")
    return Fate("case open", own if own in cases and own else cases[0]) if cases else Fate("open")


def names_of(wanted: Iterable[Wanted]) -> dict[bytes, str]:
    """What the ledgers have to tell about: effects and lanes of letters, by their key there."""
    names: dict[bytes, str] = {}
    for each in wanted:
        names[codec.lane_key(each.lane)] = each.lane
        names[codec.effect_key(each.effect_key)] = each.effect_key
    return names


def answers_to(settings: Settings, records: Iterable[StoredRecord], forward_id: str) -> list[CommandAnswer]:
    """What became of the commands about one letter, the last ones, in the order they were answered."""
    found: dict[str, CommandAnswer] = {}
    for record in records:
        answer = answer_of(record, settings.group) if is_answer(record) else None
        if answer is not None and answer.letter == forward_id:
            found[answer.command_id] = answer
            if len(found) > MAX_ANSWERS:
                del found[next(iter(found))]
    return sorted(found.values(), key=lambda answer: answer.answered_ms)


class Standing:
    """Effects and lanes of letters, as one ledger has them."""

    prefixes: tuple[bytes, ...] = (codec.LANE, codec.EFFECT)

    def __init__(self, names: Mapping[bytes, str]) -> None:
        self._names = names
        self.lanes: dict[str, Lane] = {}
        self.effects: dict[str, Effect] = {}

    def take(self, key: bytes, value: bytes | None) -> None:
        """Fold one entry in; None removes.

        Raises:
            LedgerFormatError: it is none that this release reads.
        """
        name = self._names.get(key)
        if name is None:
            return
        if key[:1] == codec.LANE:
            self.lanes.pop(name, None)
            if value is not None:
                self.lanes[name] = codec.decode_lane(value)
        else:
            self.effects.pop(name, None)
            if value is not None:
                self.effects[name] = codec.decode_effect(value)


@dataclass
class Sorted:
    """Letters by what is to be expected of a replay.

    Attributes:
        ready: to be sent.
        late: those of them that run out of order, because somebody allows it.
        over: nothing is left to do, and why: replayed already, or the effect has its end.
        queued: a command for it is on its way.
        refused: the others, and why.
    """

    ready: list[Wanted] = field(default_factory=list)
    late: int = 0
    over: list[tuple[Wanted, str]] = field(default_factory=list)
    queued: int = 0
    refused: list[tuple[Wanted, str]] = field(default_factory=list)


def sort_out(
    wanted: Iterable[Wanted],
    told: Told,
    ledgers: Mapping[Partition, Standing],
    queued: Iterable[str],
    settings: Settings,
    *,
    out_of_order: bool,
) -> Sorted:
    """What is to be expected of each, as far as it can be known from here.

    Args:
        ledgers: by source partition; one that is missing could not be read.
        queued: forward ids of letters that a command on its way is about.
    """
    found, on_their_way = Sorted(), set(queued)
    order, most = Order(settings.lanes.order), settings.lanes.max_replays
    for each in wanted:
        ledger, letter = ledgers.get(each.source), each.as_letter(out_of_order=out_of_order)
        effect = ledger.effects.get(each.effect_key) if ledger is not None else None
        lane = ledger.lanes.get(each.lane, NEW_LANE) if ledger is not None else NEW_LANE
        if (answer := told.replayed.get(each.forward_id)) is not None:
            found.over.append((each, f"it was replayed already, by {answer.actor}: {answer.outcome}"))
        elif each.forward_id in on_their_way:
            found.queued += 1
        elif is_over(letter, effect):
            found.over.append((each, refusal_of_letter(letter, each.lane, effect, lane, order, most)))
        elif cases := told.cases.get((each.source, each.lane)):
            found.refused.append((each, f"case {cases[0]} of its key is open; that has to be decided first"))
        elif ledger is not None and (why := refusal_of_letter(letter, each.lane, effect, lane, order, most)):
            found.refused.append((each, why))
        else:
            found.ready.append(each)
            late = effect is not None and comes_late(each.lane, effect.sequence, lane, order)
            found.late += bool(late)
    return found


# --- the commands ------------------------------------------------------------------------------


def command_of(
    each: Wanted, letter: Letter, actor: str, reason: str, group: str, value: bytes | None = None
) -> Command:
    """The command that replays a letter."""
    return Command(
        COMMAND_FORMAT,
        new_command_id(),
        "replay-letter",
        actor,
        reason,
        group,
        each.topic,
        each.partition,
        lane=each.lane,
        value=value,
        letter=letter,
    )


def with_bytes(
    settings: Settings,
    cluster: Marks,
    wanted: Sequence[Wanted],
    *,
    out_of_order: bool,
    timeout_s: float,
    corrected: bool = False,
) -> Iterator[tuple[Wanted, Letter | None]]:
    """The letters with their bytes, a few at a time; None for one whose bytes are nowhere any more.

    Args:
        corrected: another value comes in the place of theirs, so those whose value is nowhere are given
            without one: key and headers are theirs all the same.

    Raises:
        IncompleteError: the deadline passed, for the few that are read at a time.
    """
    left = list(wanted)
    while left:
        some, found, size = left[:CHUNK], dict[tuple[Partition, int], StoredRecord](), 0
        places = {((w.letter.record.topic, w.letter.record.partition), w.letter.record.offset) for w in some}
        for record in read(settings, _spans(places), timeout_s=timeout_s):
            place = ((record.topic, record.partition), record.offset)
            if place in places:
                found[place] = record
                size += len(record.value or b"")
                if size > CHUNK_BYTES:
                    break
        else:
            found = {place: found.get(place, _NOTHING) for place in places}
        done = [each for each in some if _place(each) in found]
        for each in done:
            record = found.pop(_place(each))
            letter = _filled(settings, cluster, each, record, out_of_order, timeout_s)
            if letter is None and corrected and record.offset >= 0:
                letter = _as_published(each, record, None, out_of_order)
            yield each, letter
        if not done:
            return
        kept = {_place(each) for each in done}
        left = [each for each in left if _place(each) not in kept]


_NOTHING: Final = StoredRecord("", 0, -1, 0, None, None)


def _place(each: Wanted) -> tuple[Partition, int]:
    record = each.letter.record
    return (record.topic, record.partition), record.offset


def _spans(places: Iterable[tuple[Partition, int]]) -> dict[Partition, Watermarks]:
    spans: dict[Partition, Watermarks] = {}
    for place, offset in places:
        span = spans.get(place, Watermarks(offset, offset + 1))
        spans[place] = Watermarks(min(span.start, offset), max(span.end, offset + 1))
    return spans


def _filled(
    settings: Settings,
    cluster: Marks,
    each: Wanted,
    record: StoredRecord,
    out_of_order: bool,
    timeout_s: float,
) -> Letter | None:
    """The letter with the bytes of its record; of a stub those are in the source topic only."""
    if record.offset < 0:
        return None
    value = record.value
    if each.letter.stub:
        original = at_source(settings, cluster, each, timeout_s=timeout_s)
        if original is None or hashlib.sha256(original.value or b"").hexdigest() != each.letter.sha256:
            return None
        value = original.value
    return _as_published(each, record, value, out_of_order)


def _as_published(each: Wanted, record: StoredRecord, value: bytes | None, out_of_order: bool) -> Letter:
    return msgspec.structs.replace(
        each.as_letter(out_of_order=out_of_order),
        key=record.key,
        value=value,
        headers=foreign(record.headers),
    )


def at_source(settings: Settings, cluster: Marks, each: Wanted, *, timeout_s: float) -> StoredRecord | None:
    """The record as it was published; None when its topic has it no more."""
    span = extents(cluster, [each.topic]).get(each.source)
    if span is None or not span.start <= each.offset < span.end:
        return None
    here = {each.source: Watermarks(each.offset, each.offset + 1)}
    return next(iter(read(settings, here, timeout_s=timeout_s)), None)
