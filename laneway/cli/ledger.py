"""`laneway ledger`: what the stores of a state directory know, read beside the workers that own them.

Needs no broker, takes no lock and changes nothing; it sees what a live worker has written so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import typer

from laneway.cli import options
from laneway.cli.columns import Column, age_text, detailed, instant_text, listed
from laneway.cli.output import Format, emit, say
from laneway.errors import IncompleteError, LanewayError, StateDirError, UsageError
from laneway.lanes.effect import Effect
from laneway.lanes.record import Channel, is_lane_of_one
from laneway.lanes.view import ChannelMark
from laneway.store.port import LedgerStats
from laneway.store.reader import LedgerReader
from laneway.store.state_dir import StateDir

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look into the ledgers on this machine.")

T = TypeVar("T")

StateDirOption = Annotated[
    Path | None,
    typer.Option("--state-dir", metavar="DIR", help="The workers' state_dir; alone it is enough."),
]


@dataclass(frozen=True, slots=True)
class _Looked:
    """Where to look, and what the configuration adds to what is found there."""

    directory: StateDir
    max_attempts: int | None


@dataclass(frozen=True, slots=True)
class _Found:
    """An effect, and the store that knows it."""

    effect_key: str
    topic: str
    partition: int
    effect: Effect
    max_attempts: int | None


@dataclass(frozen=True, slots=True)
class _Store:
    """One store's sizes and progress; None for one that was made and has no cycle yet."""

    topic: str
    partition: int
    stats: LedgerStats

    @property
    def mark(self) -> ChannelMark | None:
        """How far the source is settled."""
        return self.stats.marks.get(Channel.SOURCE)


def _attempts(found: _Found) -> str:
    if found.max_attempts is None:
        return str(found.effect.attempt)
    return f"{found.effect.attempt} of {found.max_attempts}"


def _effect_columns(now_ms: int) -> tuple[Column[_Found], ...]:
    return (
        Column("effect_key", lambda found: found.effect_key),
        Column("state", lambda found: found.effect.state.name.lower()),
        Column("result_key", lambda found: found.effect.result_key),
        Column("reason", lambda found: found.effect.reason or None),
        Column("attempt", lambda found: found.effect.attempt, "attempt", _attempts),
        Column("max_attempts", lambda found: found.max_attempts, ""),
        Column(
            "due_ms",
            lambda found: found.effect.due_ms or None,
            "due",
            lambda found: instant_text(found.effect.due_ms),
        ),
        Column(
            "changed_ms",
            lambda found: found.effect.changed_ms,
            "changed",
            lambda found: (
                f"{instant_text(found.effect.changed_ms)} ({age_text(now_ms - found.effect.changed_ms)} ago)"
            ),
        ),
        Column(
            "first_failed_ms",
            lambda found: found.effect.first_failed_ms or None,
            "first_failed",
            lambda found: instant_text(found.effect.first_failed_ms),
        ),
        Column("topic", lambda found: found.topic),
        Column("partition", lambda found: found.partition),
        Column("offset", lambda found: found.effect.offset),
        Column("lane", lambda found: None if is_lane_of_one(found.effect.lane) else found.effect.lane[1:]),
        Column(
            "sequence",
            lambda found: None if is_lane_of_one(found.effect.lane) else found.effect.sequence,
        ),
        Column("message_id", lambda found: found.effect.message_id or None),
        Column("version", lambda found: found.effect.version),
        Column("case", lambda found: found.effect.case_id or None),
        Column("payload_hash", lambda found: found.effect.payload_hash.hex() or None),
    )


def _store_columns(now_ms: int) -> tuple[Column[_Store], ...]:
    return (
        Column("topic", lambda store: store.topic),
        Column("partition", lambda store: store.partition),
        Column("entries", lambda store: store.stats.entries),
        Column("disk_bytes", lambda store: store.stats.disk_bytes),
        Column("parked", lambda store: store.stats.parked),
        Column("parked_bytes", lambda store: store.stats.parked_bytes),
        Column("open_cases", lambda store: store.stats.open_cases),
        Column("frontier", lambda store: store.mark.frontier if store.mark else None),
        Column("settled_ranges", lambda store: len(store.mark.settled) if store.mark else None),
        Column(
            "written_ms",
            lambda store: store.stats.written_ms or None,
            "written",
            lambda store: age_text(now_ms - store.stats.written_ms) if store.stats.written_ms else None,
        ),
        Column("writer", lambda store: store.stats.writer or None, ""),
        Column("cycle", lambda store: store.stats.cycle, ""),
    )


@app.command(epilog="Example: laneway ledger lookup invoice-17/reminder-1 --state-dir ./state")
def lookup(
    effect_key: Annotated[str, typer.Argument(metavar="EFFECT_KEY", help="The key as the envelope has it.")],
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    state_dir: StateDirOption = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Tell where an effect stands: state, result, attempt, why, when it is due, and where it was found.

    Exit 1 when no store knows it: not delivered yet, still in hand, on another machine, or past retention.
    """
    try:
        effect_key.encode()
    except UnicodeEncodeError:
        raise UsageError("the effect key is not UTF-8", mend="give it as the envelope has it") from None
    looked = _where(config, sets, group, state_dir)

    def ask(topic: str, partition: int, reader: LedgerReader) -> _Found | None:
        (effect,) = reader.effects([effect_key])
        return None if effect is None else _Found(effect_key, topic, partition, effect, looked.max_attempts)

    answers = _ask_all(looked.directory, sources, ask)
    found = [answer for answer in answers.by_store.values() if answer is not None]
    if found:
        emit(detailed("ledger.lookup", _effect_columns(_now_ms()), found, output), output)
    answers.refuse_if_incomplete()
    if not found:
        stores = answers.by_store
        say(
            f"not found in {len(stores)} stores: {', '.join(stores)}"
            if stores
            else "not found: there is no store to look in"
        )
        raise typer.Exit(1)


@app.command(epilog="Example: laneway ledger stats --state-dir ./state -o json")
def stats(
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    state_dir: StateDirOption = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Print size and progress of each store; ENTRIES is RocksDB's estimate of everything it keeps."""
    looked = _where(config, sets, group, state_dir)
    answers = _ask_all(
        looked.directory, sources, lambda topic, partition, reader: _Store(topic, partition, reader.stats())
    )
    rows = list(answers.by_store.values())
    directory = looked.directory
    facts = {"group": directory.group, "cluster_id": directory.cluster_id, "state_dir": str(directory.path)}
    emit(listed("ledger.stats", _store_columns(_now_ms()), rows, output, facts), output)
    answers.refuse_if_incomplete()
    if not rows:
        say("there is no store here yet: a worker makes one for each partition it is given")


def _where(config: Path | None, sets: list[str] | None, group: str | None, state_dir: Path | None) -> _Looked:
    """A directory says itself whose it is; a configuration, where it is asked for, must agree."""
    if state_dir is not None and config is None and not sets and group is None:
        return _Looked(StateDir.inspect(state_dir), None)
    flags = {"state_dir": None if state_dir is None else str(state_dir)}
    settings = options.load_settings(config, sets, group=group, inspect=True, flags=flags).settings
    directory = StateDir.inspect(settings.state_dir)
    if directory.group != settings.group:
        raise StateDirError(
            f"the state directory belongs to group {directory.group!r}, not to {settings.group!r}",
            where=str(directory.path),
            mend="check -g, or name the other directory with --state-dir",
        )
    return _Looked(directory, 1 + len(settings.retry.delays_ms))


class _Answers(Generic[T]):
    """What each store said, by its name; and the stores that could not be asked."""

    def __init__(self) -> None:
        self.by_store: dict[str, T] = {}
        self.unreadable: list[str] = []

    def refuse_if_incomplete(self) -> None:
        """An answer that lacks a store must not look like a whole one.

        Raises:
            IncompleteError: a store could not be read; why was said at once.
        """
        if self.unreadable:
            count = len(self.unreadable) + len(self.by_store)
            raise IncompleteError(
                f"{len(self.unreadable)} of {count} stores cannot be read, so this is not the whole answer: "
                f"{', '.join(self.unreadable)}"
            )


def _ask_all(
    directory: StateDir, sources: list[str] | None, ask: Callable[[str, int, LedgerReader], T]
) -> _Answers[T]:
    """Ask each store in turn, open only while it is asked. One that cannot be read hides no other."""
    answers: _Answers[T] = _Answers()
    for topic, partition in directory.list_stores():
        if sources and topic not in sources:
            continue
        name = f"{topic}-{partition}"
        try:
            with directory.read_store(topic, partition) as reader:
                answers.by_store[name] = ask(topic, partition, reader)
        except LanewayError as error:
            say(f"laneway: {error}")
            answers.unreadable.append(name)
    return answers


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
