"""One partition, worked through in memory by the rules that a worker obeys.

A real board over a ledger in memory: records are read, admitted, judged, settled and committed as in a
worker, only that in place of the handler the payload is validated, that what would be published goes nowhere,
and that nobody resolves a case. So what is counted here is what Laneway would do, not an opinion of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from laneway.consumer.preview.findings import Example, Examples, Numbers, Placement, Tally, Where
from laneway.lanes.admission import Order, next_sequence
from laneway.lanes.board import Board
from laneway.lanes.books import Cut
from laneway.lanes.envelope import UNKNOWN_VERSION, Envelope
from laneway.lanes.forward import Home
from laneway.lanes.record import Channel, Record
from laneway.lanes.rules import Rules
from laneway.lanes.settlement import Settled, Settlement
from laneway.lanes.verdict import ACK, Ack, Outcome, Reject, Retry, Wait
from laneway.lanes.view import PutCase, PutParked
from laneway.pipeline import Processor
from laneway.store.memory import MemoryLedger

RECORD_BYTES: Final = 1024
"""What is remembered of a record beside its bytes: its effect, its lane, its place in the ledger.

Measured: 750 for 200,000 records of 40,000 keys with names of fifty characters.
"""

KEY_SPLIT: Final = "key-in-two-partitions"
EFFECT_SPLIT: Final = "effect-in-two-partitions"

_BUDGET: Final = 1000
_WRITER: Final = "preview"
_FATES: Final = {
    Settled.SUCCEEDED: "effect",
    Settled.DUPLICATE: "duplicate",
    Settled.QUARANTINED: "dlq",
    Settled.IN_REVIEW: "review",
    Settled.SKIPPED: "skipped",
}


class Seen:
    """What was seen of all partitions of one source.

    Attributes:
        fates: what became of records, by word and reason.
        unreadable: records without a usable envelope.
        other_firsts: keys that begin, in one partition or more, with another number than they should.
        healed: gaps that a late record has closed.
        payloads: payloads that did not fit, by location and type.
        versions: contract versions, accepted or not.
        keys, effects: sequence keys and effect keys, by partition.
    """

    def __init__(self, keep: int) -> None:
        self.records = 0
        self.bytes = 0
        self.largest: tuple[int, Where | None] = (0, None)
        self.fates = Tally(keep)
        self.cases = Tally(keep)
        self.payloads = Tally(keep)
        self.versions = Tally(keep)
        self.examples = Examples(keep)
        self.unreadable = 0
        self.other_firsts: set[str] = set()
        self.healed = 0
        self.keys = Placement()
        self.effects = Placement()

    def told_examples(self) -> Iterator[Example]:
        """The examples; what is in several partitions names all of them, as far as was read."""
        for each in self.examples:
            if each.what == KEY_SPLIT and each.key is not None:
                yield dataclasses.replace(each, about=_partitions(self.keys, each.key))
            elif each.what == EFFECT_SPLIT:
                yield dataclasses.replace(each, about=_partitions(self.effects, each.effect_key))
            else:
                yield each


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """Where a worker would read no further until a person has decided something."""

    offset: int
    why: str


class Trial:
    """The work of one partition.

    Args:
        start: the offset that is read first.
        seen: where what is found goes; shared by the partitions of a source.
        clock: epoch milliseconds.
        ledger: what is known before; nothing, when it is not given.
        watch: told of each cut, once it is committed.

    Attributes:
        numbers: by sequence key, where lanes have numbers.
        kept_bytes: roughly, what is held in memory for this partition.
    """

    def __init__(
        self,
        home: Home,
        rules: Rules,
        envelope: Envelope,
        processor: Processor,
        seen: Seen,
        *,
        start: int,
        is_numbered: bool,
        clock: Callable[[], int],
        ledger: MemoryLedger | None = None,
        watch: Callable[[Cut], None] = lambda _: None,
    ) -> None:
        self.home = home
        self._rules = dataclasses.replace(rules, intents=False, hand_over_slack=0)
        self._envelope = envelope
        self._processor = processor
        self._seen = seen
        self._is_numbered = is_numbered
        self._clock = clock
        self._ledger = MemoryLedger() if ledger is None else ledger
        self._watch = watch
        self._board = Board(
            home,
            self._rules,
            envelope,
            self._ledger,
            self._ledger.opening(),
            epoch=1,
            writer=_WRITER,
            starts={Channel.SOURCE: start},
        )
        # What a new key has to begin with; only contiguous lanes ask.
        asks = is_numbered and rules.order is Order.CONTIGUOUS
        self._first = next_sequence(None, rules.first_sequence) if asks else None
        self._waiting: dict[int, str] = {}
        self.numbers: dict[str, Numbers] = {}
        self.stop: Stop | None = None
        self.records = 0
        self.kept_bytes = 0

    @property
    def parked(self) -> int:
        """Followers that wait behind a held record."""
        return self._board.parked

    @property
    def open_cases(self) -> int:
        """Cases that a person would have to decide."""
        return self._board.open_cases

    def read(self, record: Record) -> None:
        """Find a record's identity.

        Raises:
            HandlerSignal: the pipeline's decoder cannot read now; nothing was counted.
        """
        if not record.fault:
            self._envelope.read(record, self.home.topic, self.home.partition)

    def take(self, records: Sequence[Record]) -> None:
        """Do with these records, in the order they lie in the partition, what a worker would do."""
        for record in records:
            self._look_at(record)
        now_ms = self._clock()
        self._board.tick(now_ms)
        self._board.admit(records, now_ms)
        self._work(now_ms)
        why = self._board.blocked().get(Channel.SOURCE)
        if why is not None and self.stop is None and records:
            self.stop = Stop(records[-1].offset, why)

    def waiting(self) -> Iterator[tuple[int, str]]:
        """The parked followers that nothing has released: offset, and what they wait for."""
        yield from sorted(self._waiting.items())

    def _work(self, now_ms: int) -> None:
        """Judge, run, settle and commit until nothing moves any more."""
        board = self._board
        while True:
            runs = board.next_runs(_BUDGET, now_ms)
            for run in runs:
                for record in run.records:
                    outcome = self._outcome(record)
                    run.outcomes.append(outcome)
                    if not isinstance(outcome.verdict, Ack):
                        break
                board.settle(run, now_ms)
            cut = board.cut(now_ms)
            if cut is not None:
                # Nothing is published, so no outbox; synced at once, so that no second copy is kept.
                self._ledger.apply(cut.entries(), cut.meta, ())
                self._ledger.sync()
                board.committed(cut)
                self._tell(cut)
                self._watch(cut)
            elif not runs:
                return

    # -- what is seen

    def _where(self, record: Record) -> Where:
        return (self.home.topic, self.home.partition, record.origin_offset)

    def _look_at(self, record: Record) -> None:
        """What a record says for itself, before anything is decided."""
        seen, where = self._seen, self._where(record)
        self.records += 1
        self.kept_bytes += RECORD_BYTES
        seen.records += 1
        seen.bytes += record.size_bytes
        if seen.largest[1] is None or (-record.size_bytes, where) < (-seen.largest[0], seen.largest[1]):
            seen.largest = (record.size_bytes, where)
        if record.fault or record.skip:
            seen.unreadable += 1 if record.fault else 0
            return
        seen.versions.note("unknown" if record.misfit else "accepted", str(record.version), where)
        is_new = record.effect_key not in seen.effects
        if seen.effects.note(record.effect_key, self.home.partition):
            self._example(record, EFFECT_SPLIT)
        key = record.sequence_key
        if key is None:
            return
        if seen.keys.note(key, self.home.partition):
            self._example(record, KEY_SPLIT)
        numbers = self.numbers.get(key)
        if numbers is None:
            numbers = self.numbers[key] = Numbers(record.sequence)
            first = self._first
            if first is not None and record.sequence != first:
                seen.other_firsts.add(key)
                self._example(record, "first-sequence", f"begins with {record.sequence}, not with {first}")
        elif self._is_numbered:
            numbers.then(record.sequence, is_new=is_new)
        else:
            numbers.records += 1

    def _outcome(self, record: Record) -> Outcome:
        """The payload in place of the handler. What only time can mend is taken as done."""
        outcome = self._processor.process(record, self.home.topic, self.home.partition, 0)
        if not record.parked:  # a follower was looked at when it was parked
            self._note_payload(record, outcome)
        return ACK if isinstance(outcome.verdict, Retry | Wait) else outcome

    def _note_payload(self, record: Record, outcome: Outcome) -> None:
        where = self._where(record)
        if isinstance(outcome.verdict, Ack):
            return
        if isinstance(outcome.verdict, Reject) and outcome.detail:
            for name in _locations(outcome.detail):
                self._seen.payloads.note("invalid-payload", name, where)
        else:
            name = outcome.error_class if outcome.cause != UNKNOWN_VERSION else "no model for this version"
            self._seen.payloads.note(outcome.cause, name, where)

    # -- what became of it

    def _tell(self, cut: Cut) -> None:
        for done in cut.settlements:
            self._count_cases(done)
            record = done.record
            if done.how is Settled.PARKED:
                self._waiting[record.origin_offset] = done.reason
                if not record.misfit:
                    self._note_payload(
                        record, self._processor.process(record, self.home.topic, self.home.partition, 0)
                    )
            elif done.ends:
                self._waiting.pop(record.origin_offset, None)
                self._seen.fates.note(_FATES[done.how], done.reason, self._where(record))
                self._example_of(done)

    def _count_cases(self, done: Settlement) -> None:
        for entry in done.entries:
            if type(entry) is PutParked:
                parked = entry.parked
                self.kept_bytes += parked.raw.size_bytes() if parked else -done.record.size_bytes
            elif type(entry) is PutCase:
                case = entry.case
                if case is None:
                    self._seen.healed += 1
                    continue
                self._seen.cases.note("case", case.reason, self._where(done.record))
                self.kept_bytes += done.record.size_bytes if case.record is not None else 0
                if case.reason == "sequence-gap":
                    about = f"{case.sequence} is missing before {done.record.sequence}"
                    self._example(done.record, "sequence-gap", about)

    def _example_of(self, done: Settlement) -> None:
        record, reason = done.record, done.reason
        if done.how in {Settled.SUCCEEDED, Settled.SKIPPED}:
            return
        if done.how is Settled.DUPLICATE:
            self._example(record, "duplicate", "same effect key, same payload")
        elif reason == "effect-conflict":
            self._example(record, reason, "same effect key, another payload")
        elif reason == "sequence-stale":
            self._example(record, reason, "came behind a higher number of its key")
        else:
            self._example(record, reason)

    def _example(self, record: Record, what: str, about: str = "") -> None:
        number = record.sequence if self._is_numbered and record.sequence_key is not None else None
        self._seen.examples.note(
            Example(self._where(record), what, record.sequence_key, number, record.effect_key, about)
        )


def _partitions(placement: Placement, name: str) -> str:
    return "partitions " + ", ".join(str(number) for number in sorted(placement.split[name]))


def _locations(detail: str) -> Iterable[str]:
    """The single errors of an outcome's detail; what was cut off at its bound is left out."""
    parts = detail.split("; ")
    if detail.endswith("…"):
        parts.pop()
    return [part for part in parts if not part.startswith("and ")] or ["(payload)"]
