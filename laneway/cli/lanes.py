"""`laneway lanes`: which keys do not move, and where one key stands, why, and what would move it.

Read beside the workers, from their stores on this machine or from the ledger topics on any. Changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from laneway.cli import ledger_places, options
from laneway.cli.columns import Column, age_text, counted, detailed, instant_text, listed
from laneway.cli.lane_words import Standing, next_commands, next_words, states, why
from laneway.cli.ledger import FromTopic, Partitions, StateDirOption
from laneway.cli.ledger_places import Answers
from laneway.cli.output import Format, Table, emit, say
from laneway.cli.suggested import Asked, asked
from laneway.consumer.inspection.lanes import (
    KeyStory,
    StandingLanes,
    Waiting,
    since_ms_of,
    states_of,
    what_it_waits_for,
)
from laneway.consumer.settings.values import duration_ms
from laneway.errors import LanewayError, UsageError
from laneway.lanes.effect import Effect
from laneway.lanes.lane import Lane, Pause
from laneway.lanes.record import effect_key_of, sequence_key_of

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at keys: which wait, since when, for what."
)

_PARKED_SHOWN: Final = 20
_BROKERS: Final = "HOST:PORT"


class State(StrEnum):
    """The values of --state."""

    HELD = "held"
    PAUSED = "paused"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class _Row:
    """One lane that does not move."""

    name: str
    topic: str
    partition: int
    lane: Lane


def _key(row: _Row) -> str | None:
    return sequence_key_of(row.name)


def _columns(now_ms: int) -> tuple[Column[_Row], ...]:
    return (
        Column("key", _key),
        Column("effect_key", lambda row: effect_key_of(row.name), ""),
        Column("state", lambda row: states_of(row.lane)),
        Column("waits_for", lambda row: what_it_waits_for(row.lane) or None),
        Column("reason", lambda row: row.lane.hold.reason if row.lane.hold else None),
        Column("sequence", lambda row: row.lane.hold.sequence if row.lane.hold else None),
        Column(
            "since_ms",
            lambda row: since_ms_of(row.lane),
            "since",
            lambda row: (
                None if since_ms_of(row.lane) is None else age_text(now_ms - (since_ms_of(row.lane) or 0))
            ),
        ),
        Column("parked", lambda row: row.lane.parked),
        Column("parked_bytes", lambda row: row.lane.parked_bytes, ""),
        Column("last", lambda row: row.lane.last, ""),
        Column("attempt", lambda row: row.lane.hold.attempt if row.lane.hold else None, ""),
        Column("due_ms", lambda row: (row.lane.hold.due_ms or None) if row.lane.hold else None, ""),
        Column("case", lambda row: (row.lane.hold.case_id or None) if row.lane.hold else None),
        Column("paused_by", lambda row: row.lane.pause.actor if row.lane.pause else None, ""),
        Column("paused_because", lambda row: row.lane.pause.reason if row.lane.pause else None, ""),
        Column("topic", lambda row: row.topic),
        Column("partition", lambda row: row.partition),
        Column("offset", lambda row: row.lane.hold.offset if row.lane.hold else None, ""),
    )


@app.command(name="list", epilog="Example: laneway lanes list -b localhost:9092 -g reminders --state held")
def list_(
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    state_dir: StateDirOption = None,
    from_topic: FromTopic = False,
    partitions: Partitions = None,
    state: Annotated[State | None, typer.Option("--state", help="Only lanes in this state.")] = None,
    older: Annotated[
        str | None, typer.Option("--older", metavar="AGE", help="Only those that wait longer, such as 10m.")
    ] = None,
    limit: options.Limit = 100,
    timeout: options.Timeout = 300.0,
    watch: options.Watch = None,
    output: options.Output = Format.TABLE,
) -> None:
    """List the keys that do not move, the longest waiting first; `lanes explain KEY` tells all of one.

    Held: waits for a missing sequence, a retry, or a person. Paused: by an operator. Parked: has followers
    stored; with --state parked those with the most come first. Where the ledgers are looked for is the same
    as of `ledger lookup`.
    """
    least_ms = _age(older)
    words = asked(config, sets, bootstrap, group, sources)
    last: list[Answers[StandingLanes]] = []

    def look() -> Table:
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
        answers = looked.ledgers.fold(StandingLanes)
        last[:] = [answers]
        now_ms = _now_ms()
        rows = []
        pauses = []
        for (topic, number), fold in answers.by_ledger.items():
            if fold.pause is not None:
                pauses.append(f"{topic}-{number} is paused {_paused(fold.pause)}")
            rows += [
                _Row(name, topic, number, lane)
                for name, lane in fold.lanes.items()
                if (state is None or state.value in states_of(lane))
                and (least_ms is None or now_ms - (since_ms_of(lane) or now_ms) >= least_ms)
            ]
        rows.sort(key=lambda row: (since_ms_of(row.lane) or now_ms, row.name, row.partition))
        if state is State.PARKED:
            rows.sort(key=lambda row: -row.lane.parked)
        for sentence in pauses:
            say(sentence)
        if len(rows) > limit:
            say(f"{limit} of {len(rows)} lanes; --limit {len(rows)} shows the others")
        facts = {**answers.facts, "lanes": len(rows), "paused_partitions": pauses}
        table = listed("lanes.list", _columns(now_ms), rows[:limit], output, facts)
        return replace(table, lists={"next_commands": [_further(rows, words)]})

    options.show(look, output, watch)
    if watch is None:
        last[0].refuse_if_incomplete()


def _further(rows: Sequence[_Row], words: Asked) -> str:
    """The command that tells more: of the first lane, else of records that no ledger knows yet."""
    if not rows:
        say("no ledger knows of a key that waits")
        return words.line("offsets", "show")
    return words.line("lanes", "explain", sequence_key_of(rows[0].name) or effect_key_of(rows[0].name) or "")


def _age(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        found = duration_ms(text)
    except ValueError as error:
        raise UsageError(f"{text!r} {error}", where="--older") from None
    assert isinstance(found, int)
    return found


# --- one key -----------------------------------------------------------------------------------


def _details(now_ms: int) -> tuple[Column[Standing], ...]:
    def since(standing: Standing) -> str | None:
        at_ms = standing.since_ms
        return None if at_ms is None else f"{instant_text(at_ms)} ({age_text(now_ms - at_ms)} ago)"

    return (
        Column("key", lambda standing: standing.key),
        Column("topic", lambda standing: standing.topic),
        Column("partition", lambda standing: standing.partition),
        Column("state", states),
        Column("last", lambda standing: standing.lane.last, "last in order"),
        Column("why", lambda standing: why(standing, now_ms)),
        Column("since_ms", lambda standing: standing.since_ms, "since", since),
        Column("reason", lambda standing: standing.lane.hold.reason if standing.lane.hold else None, ""),
        Column("sequence", lambda standing: standing.lane.hold.sequence if standing.lane.hold else None, ""),
        Column("offset", lambda standing: standing.lane.hold.offset if standing.lane.hold else None, ""),
        Column("attempt", lambda standing: standing.lane.hold.attempt if standing.lane.hold else None, ""),
        Column(
            "due_ms",
            lambda standing: (standing.lane.hold.due_ms or None) if standing.lane.hold else None,
            "due",
            lambda standing: instant_text(standing.lane.hold.due_ms) if standing.lane.hold else None,
        ),
        Column("case", lambda standing: standing.case.case_id if standing.case else None),
        Column("required_check", lambda standing: standing.case.required_check if standing.case else None),
        Column("parked", lambda standing: standing.lane.parked, None, _parked_words),
        Column("parked_bytes", lambda standing: standing.lane.parked_bytes, ""),
        Column("other_cases", lambda standing: [case.case_id for case in standing.loose]),
        Column("next", lambda standing: next_words(standing, now_ms)),
    )


def _parked_words(standing: Standing) -> str:
    if not standing.parked:
        return "nothing"
    sequences = [sequence for sequence, _, _ in standing.parked]
    offsets = [offset for _, offset, _ in standing.parked]
    of = f", sequences {min(sequences)} to {max(sequences)}" if not standing.is_of_one else ""
    return f"{counted(len(standing.parked), 'record')}{of}, offsets {min(offsets)} to {max(offsets)}"


_Parked = tuple[int, int, Waiting]


def _parked_columns(now_ms: int) -> tuple[Column[_Parked], ...]:
    return (
        Column("sequence", lambda each: each[0]),
        Column("offset", lambda each: each[1]),
        Column("effect_key", lambda each: each[2].effect_key),
        Column("size_bytes", lambda each: each[2].size_bytes, "size"),
        Column(
            "parked_ms",
            lambda each: each[2].parked_ms,
            "parked",
            lambda each: _ago(each[2].parked_ms, now_ms),
        ),
    )


def _effect_columns(now_ms: int) -> tuple[Column[tuple[str, Effect]], ...]:
    return (
        Column("sequence", lambda each: each[1].sequence),
        Column("offset", lambda each: each[1].offset),
        Column("effect_key", lambda each: each[0]),
        Column("state", lambda each: each[1].state.name.lower()),
        Column("attempts", lambda each: each[1].attempt),
        Column("reason", lambda each: each[1].reason or None),
        Column("result_key", lambda each: each[1].result_key),
        Column(
            "first_failed_ms",
            lambda each: each[1].first_failed_ms or None,
            "first_failed",
            lambda each: instant_text(each[1].first_failed_ms),
        ),
        Column(
            "changed_ms",
            lambda each: each[1].changed_ms,
            "changed",
            lambda each: f"{instant_text(each[1].changed_ms)} ({_ago(each[1].changed_ms, now_ms)})",
        ),
        Column("case", lambda each: each[1].case_id or None, ""),
    )


@app.command(epilog="Example: laneway lanes explain customer-17 -b localhost:9092 -g reminders")
def explain(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="A sequence key; or the effect key of a record without one.")
    ],
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    state_dir: StateDirOption = None,
    from_topic: FromTopic = False,
    partitions: Partitions = None,
    recent: Annotated[
        int, typer.Option("--recent", metavar="N", min=0, help="How many of its last records.")
    ] = 10,
    show_payload: Annotated[
        bool,
        typer.Option("--show-payload", help="The value of the held record too, escaped. It may be secret."),
    ] = False,
    timeout: options.Timeout = 300.0,
    output: options.Output = Format.TABLE,
) -> None:
    """Tell where a key stands, since when and why, what is parked behind it, and the command that moves it.

    Its partition need not be known: all ledgers are asked. Exit 1 when none knows the key.
    """
    options.require_utf8(key, "the key")
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
    answers = looked.ledgers.fold(lambda: KeyStory(key))
    standings = [
        _standing(story, name, *place) for place, story in answers.by_ledger.items() for name in story.known
    ]
    if standings:
        owner = group or (None if config else str(answers.facts.get("group") or "") or None)
        if bootstrap is None and answers.facts.get("read_from") == "stores":
            bootstrap = _bootstrap_to_fill_in(config, sets, owner)
        words = asked(config, sets, bootstrap, owner, sources)
        now_ms = _now_ms()
        details: Sequence[Column[Standing]] = _details(now_ms)
        if show_payload:
            details = [*details, Column("payload", _payload)]
        table = detailed("lanes.explain", details, standings, output, answers.facts)
        parked = [each for standing in standings for each in standing.parked]
        effects = [each for standing in standings for each in standing.effects[:recent]]
        lines = [line for standing in standings for line in next_commands(standing, words)]
        emit(
            Table(
                table.kind,
                table.columns,
                table.rows,
                facts=table.facts,
                tables={
                    "parked_records": listed("", _parked_columns(now_ms), parked[:_PARKED_SHOWN], output),
                    "recent": listed("", _effect_columns(now_ms), effects, output),
                },
                lists={"next_commands": lines} if lines or output is not Format.TABLE else {},
            ),
            output,
        )
        if len(parked) > _PARKED_SHOWN:
            say(f"{counted(len(parked) - _PARKED_SHOWN, 'more parked record')} not shown")
    answers.refuse_if_incomplete()
    if not standings:
        names = answers.names
        further = asked(config, sets, bootstrap, group, sources).line("offsets", "show")
        say(
            f"no record of this key is known to {len(names)} {answers.ledgers}: {', '.join(names)}; "
            f"one that has not run is not known yet: `{further}` tells whether records wait, and for what"
            if names
            else "not found: there is no store to look in"
        )
        raise typer.Exit(1)


def _bootstrap_to_fill_in(config: Path | None, sets: list[str] | None, group: str | None) -> str | None:
    """A place for the brokers in the lines to copy: a store is read without them, a command is not sent so.

    None where a configuration says which they are.
    """
    try:
        loaded = options.load_settings(config, sets, group=group, inspect=True)
    except LanewayError:
        return _BROKERS
    return None if ("bootstrap",) in loaded.written else _BROKERS


def _standing(story: KeyStory, name: str, topic: str, partition: int) -> Standing:
    lane = story.lanes.get(name, Lane())
    cases = [case for case in story.cases.values() if case.lane == name]
    held_by = next((case for case in cases if lane.hold and case.case_id == lane.hold.case_id), None)
    return Standing(
        name,
        topic,
        partition,
        lane,
        story.pause,
        held_by,
        [case for case in cases if case is not held_by],
        sorted(
            (sequence, offset, each) for (of, sequence, offset), each in story.parked.items() if of == name
        ),
        sorted(
            ((key, effect) for key, effect in story.effects.items() if effect.lane == name),
            key=lambda each: each[1].offset,
            reverse=True,
        ),
    )


def _payload(standing: Standing) -> str | None:
    record = standing.case.record if standing.case else None
    return (
        None if record is None or record.value is None else record.value.decode("utf-8", "backslashreplace")
    )


def _paused(pause: Pause) -> str:
    return f"since {instant_text(pause.since_ms)} by {pause.actor}: {pause.reason}"


def _ago(at_ms: int, now_ms: int) -> str:
    return f"{age_text(now_ms - at_ms)} ago"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
