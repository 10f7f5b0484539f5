"""`laneway pause` and `resume`: nothing of a key, a partition or the group starts, until somebody says so.

What runs goes on to its end, what comes for a paused key is parked, and the pause outlives every worker. It
is a command to the owner of each partition, so it is ordered with the work and needs no access to a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from laneway.cli import ledger_places, options
from laneway.cli.columns import Column, listed
from laneway.cli.output import Format, emit, escaped, say
from laneway.cli.resolve import Actor, Done, Wait, default_actor, reason_of, text_of
from laneway.cli.review import read_cases
from laneway.cli.suggested import Asked, asked
from laneway.consumer.inspection import offsets as inspect_offsets
from laneway.consumer.inspection.cases import CaseBook
from laneway.consumer.inspection.lanes import OneLane
from laneway.consumer.inspection.topics import extents
from laneway.consumer.kafka.cluster import Cluster, Partition
from laneway.consumer.operations.commands import Commands, lane_of, new_command_id
from laneway.consumer.settings.model import Settings
from laneway.errors import IncompleteError, LanewayError, RefusedError, UsageError
from laneway.lanes.command import COMMAND_FORMAT, Command
from laneway.lanes.lane import Lane
from laneway.lanes.record import effect_key_of, keyed_lane, lane_of_one, sequence_key_of

LaneKey = Annotated[
    str | None, typer.Option("--lane", "--key", metavar="KEY", help="Only this sequence key.")
]
Said = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the pause.")]
EffectLane = Annotated[
    str | None,
    typer.Option("--effect", metavar="KEY", help="Only this effect key, of a record without order."),
]
Number = Annotated[
    int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition of each source.")
]


def _key(done: Done) -> str | None:
    return sequence_key_of(done.command.lane)


_COLUMNS: Final[tuple[Column[Done], ...]] = (
    Column("topic", lambda done: done.command.topic),
    Column("partition", lambda done: done.command.partition),
    Column("key", _key),
    Column(
        "effect_key",
        lambda done: effect_key_of(done.command.lane),
        "",
    ),
    Column("action", lambda done: done.command.action),
    Column("result", lambda done: done.result),
    Column("why", lambda done: (done.answer.why or None) if done.answer else None),
    Column("actor", lambda done: done.command.actor, ""),
    Column("said", lambda done: done.command.reason, ""),
    Column("command", lambda done: done.command.command_id, ""),
    Column("offset", lambda done: done.offset, ""),
)


@dataclass(frozen=True, slots=True)
class _Found:
    """The partitions that are meant, and a sentence on how they were found."""

    places: Sequence[Partition]
    how: str


def pause(
    reason: Said,
    lane: LaneKey = None,
    effect: EffectLane = None,
    partition: Number = None,
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    actor: Actor = None,
    wait: Wait = 10.0,
    timeout: options.Timeout = 60.0,
    output: options.Output = Format.TABLE,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
) -> None:
    """Let nothing of a key, a partition, or the whole group start, until it is resumed; what runs ends.

    A paused partition is not read, and `offsets show` tells who paused it and why. Of a paused key the
    records are parked. Exit 5: nobody answered yet, the command stays queued.
    """
    _switch(
        "pause",
        _lane_name(lane, effect),
        partition,
        reason,
        actor,
        (config, sets, bootstrap, group, sources),
        wait_s=wait,
        timeout_s=timeout,
        form=output,
        yes=yes,
        dry_run=dry_run,
    )


def resume(
    reason: Said,
    lane: LaneKey = None,
    effect: EffectLane = None,
    partition: Number = None,
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    actor: Actor = None,
    wait: Wait = 10.0,
    timeout: options.Timeout = 60.0,
    output: options.Output = Format.TABLE,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
) -> None:
    """Let a paused key, partition, or the whole group go on where it was.

    A key and its partition are paused, and resumed, each by itself.
    """
    _switch(
        "resume",
        _lane_name(lane, effect),
        partition,
        reason,
        actor,
        (config, sets, bootstrap, group, sources),
        wait_s=wait,
        timeout_s=timeout,
        form=output,
        yes=yes,
        dry_run=dry_run,
    )


_Options = tuple[Path | None, list[str] | None, str | None, str | None, list[str] | None]


def _switch(
    action: str,
    lane: str,
    partition: int | None,
    reason: str,
    actor: str | None,
    given: _Options,
    *,
    wait_s: float,
    timeout_s: float,
    form: Format,
    yes: bool,
    dry_run: bool,
) -> None:
    config, sets, bootstrap, group, sources = given
    who = text_of("--actor", actor) if actor is not None else default_actor()
    said = reason_of(reason)
    settings = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    ).settings
    words = asked(*given)
    with Cluster(settings) as cluster:
        names = inspect_offsets.sources_of(settings, cluster)
        everywhere = sorted(extents(cluster, names))
        found = _places(action, lane, partition, everywhere, given, settings, timeout_s)
        commands = [
            Command(
                format=COMMAND_FORMAT,
                command_id=new_command_id(),
                action=action,
                actor=who,
                reason=said,
                group=settings.group,
                topic=topic,
                partition=number,
                lane=lane,
            )
            for topic, number in found.places
        ]
        what = f"key {escaped(lane[1:])!r}" if lane else "all that is read"
        where = ", ".join(f"{topic}-{number}" for topic, number in found.places)
        say(f"{action} {what} of {where}" + (f"\n{found.how}" if found.how else ""))
        facts = {"group": settings.group}
        if dry_run:
            emit(listed(action, _COLUMNS, [Done(each, "would-send") for each in commands], form, facts), form)
            return
        options.confirm(f"{action} it?", yes=yes)
        with Commands(settings, cluster, {topic for topic, _ in found.places}) as sending:
            sending.send(commands)
            offsets = dict(sending.sent)
            answers = {answer.command_id: answer for answer in sending.answers(wait_s)}
    rows = [
        Done(
            each,
            answers[each.command_id].event if each.command_id in answers else "queued",
            offsets.get(each.command_id),
            answers.get(each.command_id),
        )
        for each in commands
    ]
    emit(listed(action, _COLUMNS, rows, form, facts), form)
    _end(rows, wait_s, words)


def _end(rows: Sequence[Done], wait_s: float, words: Asked) -> None:
    queued = [row for row in rows if row.answer is None]
    if queued:
        raise IncompleteError(
            f"{len(queued)} of {len(rows)} did not answer within {wait_s:g} s; those commands stay queued, "
            "each for the worker that owns its partition, which applies it once",
            mend=f"{words.line('offsets', 'show')}   (tells who owns the partition)",
        )
    refusals = [row.answer.why for row in rows if row.answer is not None and row.answer.why]
    if len(refusals) == len(rows):
        raise RefusedError("; ".join(sorted(set(refusals))))


def _lane_name(lane: str | None, effect: str | None) -> str:
    if lane is not None and effect is not None:
        raise UsageError("--lane and --effect name two things", mend="give one of them")
    if lane is not None:
        return keyed_lane(text_of("--lane", lane))
    return "" if effect is None else lane_of_one(text_of("--effect", effect))


# --- where -------------------------------------------------------------------------------------


def _places(
    action: str,
    lane: str,
    partition: int | None,
    everywhere: Sequence[Partition],
    given: _Options,
    settings: Settings,
    timeout_s: float,
) -> _Found:
    """The partitions that are meant.

    Raises:
        UsageError: there is none of that number.
    """
    if partition is not None:
        places = [place for place in everywhere if place[1] == partition]
        if not places:
            raise UsageError(
                f"there is no partition {partition}", where="--partition", mend="check the number"
            )
        return _Found(places, "")
    if not lane:
        return _Found(everywhere, "")
    known = _in_ledgers(lane, given, timeout_s)
    paused = [place for place, each in known.items() if each.pause is not None]
    if action == "resume" and paused:
        return _Found(paused, "")
    if action == "pause" and known:
        return _Found(sorted(known), "")
    if action == "pause":
        book = CaseBook(settings.group, wanted=lambda news: lane_of(news) == lane, keep_resolved=100)
        read_cases(settings, book, timeout_s)
        places = sorted({(news.topic, news.partition) for news in (*book.open(), *book.resolved())})
        if places:
            return _Found(places, "its cases say so")
    return _Found(
        everywhere,
        "where this key lives is not known from here, so every partition is told; where it has no records "
        "that does nothing. --partition N tells one only",
    )


def _in_ledgers(lane: str, given: _Options, timeout_s: float) -> dict[Partition, Lane]:
    """The lane by the ledgers that have it, as far as they can be read from here."""
    config, sets, bootstrap, group, sources = given
    try:
        looked = ledger_places.where(
            config,
            sets,
            bootstrap,
            group,
            sources=sources or (),
            partitions=(),
            state_dir=None,
            from_topic=False,
            timeout_s=timeout_s,
        )
        answers = looked.ledgers.fold(lambda: OneLane(lane))
    except LanewayError:
        # With "local" on another machine there is nothing to read; then every partition is told.
        return {}
    if answers.unreadable:
        return {}
    return {place: fold.lane for place, fold in answers.by_ledger.items() if fold.lane is not None}
