"""What must hold of any run, read from what it left behind: journals, runs of the handler, topics, ledgers.

Each check takes plain values and raises AssertionError with the records that break it. Nothing here
starts, waits or writes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Message

from laneway.lanes.case import Case
from laneway.lanes.effect import Effect
from laneway.lanes.lane import Lane, ParkedKey
from laneway.lanes.record import keyed_lane
from laneway.lanes.view import Opening
from laneway.store.port import LedgerReading
from laneway.store.state_dir import StateDir
from tests.broker.cluster import position_of
from tests.broker.recording import Run

Line = Mapping[str, Any]
Place = tuple[str, int, int]

# A delivery ends with one of these; what opened a case has no line but the case's own.
ENDING = frozenset(
    {"result_saved", "duplicate_suppressed", "retry_scheduled", "quarantined", "review_opened"}
)


def place_of(line: Line) -> Place:
    """The position a journal line is about."""
    return line["topic"], line["partition"], line["offset"]


def events_of(journal: Iterable[Line], *events: str) -> list[Line]:
    """The lines of these events, in order."""
    return [line for line in journal if line["event"] in events]


def check_saved_before_acked(journal: Iterable[Line]) -> None:
    """In one process's journal each `ack_sent` stands behind the outcome of its delivery (S2, S10).

    A position may be acknowledged twice: once for a redelivery that was suppressed, and once for its follower
    that had been parked before the process started. Never more often than it had an outcome.
    """
    owed: Counter[Place] = Counter()
    for line in journal:
        place = place_of(line)
        if line["event"] in ENDING:
            owed[place] += 1
        elif line["event"] == "ack_sent":
            assert owed[place] > 0, f"acknowledged before any outcome: {line}"
            owed[place] -= 1


def check_lane_order(runs: Iterable[Run]) -> None:
    """Per sequence key, effects first happen in the order of their sequences, none twice in between (S16)."""
    done: dict[str, list[int]] = defaultdict(list)
    for run in runs:
        if run.outcome == "effect" and run.sequence_key is not None:
            done[run.sequence_key].append(run.sequence)
    for key, sequences in done.items():
        firsts = list(dict.fromkeys(sequences))
        assert firsts == sorted(firsts), f"{key} ran out of order: {sequences}"


def check_contiguous(runs: Iterable[Run], last: Mapping[str, int]) -> None:
    """Each key's effects are 1 up to its last, without a hole."""
    done: dict[str, set[int]] = {key: set() for key in last}
    for run in runs:
        if run.outcome == "effect":
            assert run.sequence_key is not None
            done.setdefault(run.sequence_key, set()).add(run.sequence)
    wrong = {
        key: sorted(found) for key, found in done.items() if found != set(range(1, last.get(key, 0) + 1))
    }
    assert not wrong, (
        f"not 1 up to the last: { {key: (wrong[key], last.get(key)) for key in list(wrong)[:5]} }"
    )


def second_runs(runs: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Runs of one effect and attempt beyond the first, each with the one before it."""
    by_attempt: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        by_attempt[run.effect_key, run.attempt].append(run)
    return [pair for same in by_attempt.values() for pair in pairwise(same)]


def check_second_runs(
    runs: Iterable[Run], killed: Iterable[int], journal_of: Mapping[int, Sequence[Line]]
) -> int:
    """A handler ran twice only where a kill fell between effect and settlement, and the journal shows it.

    Args:
        killed: pids that were ended by kill -9.
        journal_of: each process's journal by pid.

    Returns:
        How many second runs there were.
    """
    pairs = second_runs(runs)
    dead = set(killed)
    for first, second in pairs:
        assert first.pid in dead, f"ran again although nobody was killed: {first} {second}"
        assert first.pid != second.pid, f"ran twice in one process: {first} {second}"
        before = [line for line in journal_of[first.pid] if _is_about(line, first)]
        assert events_of(before, "running"), f"ran without a line that said so: {first}"
        # A suppressed copy of the record is no outcome of this run.
        told = events_of(before, *ENDING - {"duplicate_suppressed"})
        assert not told, f"ran again after its outcome was told: {second}, {told}"
        assert second.redelivered, f"ran again and was not marked redelivered (S21): {second}"
        after = [line for line in journal_of[second.pid] if _is_about(line, second)]
        assert any(line["redelivered"] for line in events_of(after, "running")), f"journal hides it: {second}"
    return len(pairs)


def _is_about(line: Line, run: Run) -> bool:
    return bool(line["effectKey"] == run.effect_key and line["attempt"] == run.attempt)


def header(message: Message, name: str) -> str:
    """One of our own headers as text; "" when it is not there."""
    return text_headers(message).get(f"laneway-{name}", "")


def text_headers(message: Message) -> dict[str, str]:
    """All headers as text; of repeated ones the last."""
    pairs: list[tuple[str, bytes | None]] = list(message.headers() or ())  # type: ignore[arg-type]
    return {name: (value or b"").decode(errors="replace") for name, value in pairs}


def by_forward_id(messages: Iterable[Message]) -> dict[str, Message]:
    """Forwards by id. A second copy is allowed only with the same id, and then it is the same record.

    Fails too when two ids stand for the same thing: the same kind, position, attempt and case.
    """
    found: dict[str, Message] = {}
    about: dict[tuple[str, ...], str] = {}
    for message in messages:
        ident = header(message, "forward-id")
        assert ident, f"a forward without an id at {position_of(message)}"
        first = found.setdefault(ident, message)
        same = (first.key(), first.value(), first.headers()) == (
            message.key(),
            message.value(),
            message.headers(),
        )
        assert same, f"two different forwards with the id {ident}"
        names = ("kind", "origin-partition", "origin-offset", "attempt", "case-id")
        event = b'"resolved"' in (message.value() or b"") if header(message, "kind") == "review" else ""
        what = (*(header(message, name) for name in names), str(event))
        assert about.setdefault(what, ident) == ident, f"two forwards for one event: {what}"
    return found


class Ledger(LedgerReading, Protocol):
    """What is asked of a store, of its reader and of the twin in memory alike."""

    def opening(self) -> Opening:
        """Progress, and what is parked."""
        ...


def check_once(messages: Iterable[Message]) -> list[Message]:
    """A reader of committed records sees every forward once."""
    found = list(messages)
    seen = Counter(header(message, "forward-id") for message in found)
    assert "" not in seen, "a forward without an id"
    twice = {ident: count for ident, count in seen.items() if count > 1}
    assert not twice, f"published more than once: {twice}"
    return found


@dataclass
class Ledgers:
    """Everything that the ledgers of one source hold, over all its partitions."""

    effects: dict[str, Effect] = field(default_factory=dict)
    homes: Counter[str] = field(default_factory=Counter)
    lanes: dict[str, Lane] = field(default_factory=dict)
    parked: list[ParkedKey] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    outbox: int = 0

    def take(self, store: Ledger, effect_keys: Sequence[str], sequence_keys: Sequence[str]) -> None:
        """Add what one partition's ledger holds of these."""
        for key, effect in zip(effect_keys, store.effects(effect_keys), strict=True):
            if effect is not None:
                self.effects[key] = effect
                self.homes[key] += 1
        ids = [keyed_lane(key) for key in sequence_keys]
        for key, lane in zip(sequence_keys, store.lanes(ids), strict=True):
            if lane is not None:
                self.lanes[key] = lane
        opening = store.opening()
        for ident in opening.lanes_with_parked:
            self.parked += [key for key, _ in store.parked(ident, None, 1_000_000)]
        self.outbox += len(opening.outbox)
        self.cases += store.cases()


def read_ledgers(
    state_dir: Path, source: str, effect_keys: Sequence[str], sequence_keys: Sequence[str]
) -> Ledgers:
    """Reads all stores of a source: these effects and lanes, and every follower and case.

    `homes` counts in how many stores an effect key is recorded.
    """
    state = StateDir.inspect(state_dir)
    found = Ledgers()
    for topic, partition in state.list_stores():
        if topic == source:
            with state.read_store(topic, partition) as store:
                found.take(store, effect_keys, sequence_keys)
    return found
