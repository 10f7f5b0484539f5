"""`laneway ledger`: what the ledgers know, read beside the workers that own them. Changes nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from laneway.cli import ledger_places, options
from laneway.cli.columns import Column, age_text, detailed, instant_text, listed
from laneway.cli.ledger_places import Sizes
from laneway.cli.output import Format, emit, say
from laneway.cli.suggested import asked
from laneway.lanes.effect import Effect
from laneway.lanes.record import Channel, is_lane_of_one, sequence_key_of
from laneway.lanes.view import ChannelMark

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look into the ledgers: on this machine, or in their topics.",
)

StateDirOption = Annotated[
    Path | None,
    typer.Option("--state-dir", metavar="DIR", help="The workers' state_dir; alone it is enough."),
]
FromTopic = Annotated[
    bool, typer.Option("--from-topic", help="Read the ledger topic, also where there are stores here.")
]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition; repeatable.")
]


@dataclass(frozen=True, slots=True)
class _Found:
    """An effect, and the ledger that knows it."""

    effect_key: str
    topic: str
    partition: int
    effect: Effect
    max_attempts: int | None


@dataclass(frozen=True, slots=True)
class _Ledger:
    """One ledger's sizes and progress; None for one that has no cycle yet."""

    topic: str
    partition: int
    sizes: Sizes

    @property
    def mark(self) -> ChannelMark | None:
        """How far the source is settled."""
        return self.sizes.progress.marks.get(Channel.SOURCE)


def _attempts(found: _Found) -> str:
    effect, most = found.effect, found.max_attempts
    if most is None:
        return str(effect.attempt)
    # Each replay and rerun counts on, and has a budget of its own.
    again = effect.attempt > most or effect.replay is not None or effect.run > 0
    return (
        f"{effect.attempt} (up to {most} since the last replay)" if again else f"{effect.attempt} of {most}"
    )


def _effect_columns(now_ms: int) -> tuple[Column[_Found], ...]:
    return (
        Column("effect_key", lambda found: found.effect_key),
        Column("state", lambda found: found.effect.state.name.lower()),
        Column("result_key", lambda found: found.effect.result_key),
        Column("reason", lambda found: found.effect.reason or None),
        Column("attempt", lambda found: found.effect.attempt, "attempt", _attempts),
        Column("max_attempts", lambda found: found.max_attempts, ""),
        Column("run", lambda found: found.effect.run),
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
        Column("lane", lambda found: sequence_key_of(found.effect.lane)),
        Column(
            "sequence",
            lambda found: None if is_lane_of_one(found.effect.lane) else found.effect.sequence,
        ),
        Column("message_id", lambda found: found.effect.message_id or None),
        Column("version", lambda found: found.effect.version),
        Column("case", lambda found: found.effect.case_id or None),
        Column("payload_hash", lambda found: found.effect.payload_hash.hex() or None),
        Column("succeeded_with", lambda found: (found.effect.succeeded or b"").hex() or None),
    )


def _ledger_columns(now_ms: int) -> tuple[Column[_Ledger], ...]:
    return (
        Column("topic", lambda ledger: ledger.topic),
        Column("partition", lambda ledger: ledger.partition),
        Column("entries", lambda ledger: ledger.sizes.entries),
        Column("disk_bytes", lambda ledger: ledger.sizes.disk_bytes),
        Column("parked", lambda ledger: ledger.sizes.progress.parked),
        Column("parked_bytes", lambda ledger: ledger.sizes.progress.parked_bytes),
        Column("open_cases", lambda ledger: ledger.sizes.progress.open_cases),
        Column("frontier", lambda ledger: ledger.mark.frontier if ledger.mark else None),
        Column("settled_ranges", lambda ledger: len(ledger.mark.settled) if ledger.mark else None),
        Column(
            "written_ms",
            lambda ledger: ledger.sizes.progress.written_ms or None,
            "written",
            lambda ledger: (
                age_text(now_ms - ledger.sizes.progress.written_ms)
                if ledger.sizes.progress.written_ms
                else None
            ),
        ),
        Column("writer", lambda ledger: ledger.sizes.progress.writer or None, ""),
        Column("cycle", lambda ledger: ledger.sizes.progress.cycle, ""),
    )


@app.command(epilog="Example: laneway ledger lookup invoice-17/reminder-1 --state-dir ./state")
def lookup(
    effect_key: Annotated[str, typer.Argument(metavar="EFFECT_KEY", help="The key as the envelope has it.")],
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    state_dir: StateDirOption = None,
    from_topic: FromTopic = False,
    partitions: Partitions = None,
    timeout: options.Timeout = 300.0,
    output: options.Output = Format.TABLE,
) -> None:
    """Tell where an effect stands: state, result, attempt, why, when it is due, and where it was found.

    With replication = "changelog" the ledger topic is read through, from any machine; with "local" the stores
    of this one. With -b and -g alone: its stores where it has a state directory, else the topic. Exit 1 when
    no ledger knows it: not delivered yet, parked behind its key (`lanes explain KEY`), in hand, past its
    retention, or with "local" on another machine.
    """
    options.require_utf8(effect_key, "the effect key")
    looked = ledger_places.where(
        config,
        sets,
        bootstrap,
        group,
        sources=sources or (),
        partitions=partitions or (),
        state_dir=state_dir,
        from_topic=from_topic,
        timeout_s=timeout,
    )
    answers = looked.ledgers.effect(effect_key)
    found = [
        _Found(effect_key, topic, partition, effect, looked.max_attempts)
        for (topic, partition), effect in answers.by_ledger.items()
        if effect is not None
    ]
    if found:
        emit(detailed("ledger.lookup", _effect_columns(_now_ms()), found, output, answers.facts), output)
    answers.refuse_if_incomplete()
    if not found:
        names = answers.names
        say(
            f"not found in {len(names)} {answers.ledgers}: {', '.join(names)}"
            if names
            else "not found: there is no store to look in"
        )
        explain = asked(config, sets, bootstrap, group, sources).line("lanes", "explain", "KEY")
        say(f"it was not delivered, is in hand, past retention, or parked behind its key: {explain}")
        raise typer.Exit(1)


@app.command(epilog="Example: laneway ledger stats --state-dir ./state -o json")
def stats(
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    state_dir: StateDirOption = None,
    from_topic: FromTopic = False,
    partitions: Partitions = None,
    timeout: options.Timeout = 60.0,
    output: options.Output = Format.TABLE,
) -> None:
    """Print size and progress of each ledger; ENTRIES is RocksDB's estimate of everything it keeps.

    With replication = "changelog" the end of the ledger topic tells, from any machine, all but ENTRIES and
    DISK-BYTES; with "local" the stores of this one. With -b and -g alone: its stores where it has a state
    directory, else the topic.
    """
    looked = ledger_places.where(
        config,
        sets,
        bootstrap,
        group,
        sources=sources or (),
        partitions=partitions or (),
        state_dir=state_dir,
        from_topic=from_topic,
        timeout_s=timeout,
    )
    answers = looked.ledgers.sizes()
    rows = [_Ledger(topic, partition, sizes) for (topic, partition), sizes in answers.by_ledger.items()]
    emit(listed("ledger.stats", _ledger_columns(_now_ms()), rows, output, answers.facts), output)
    answers.refuse_if_incomplete()
    if not rows:
        say("there is no store here yet: a worker makes one for each partition it is given")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
