"""`laneway offsets reset`: set a group's offsets by hand, after a look at what its ledger will make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from laneway.cli import ledger_places, options
from laneway.cli.columns import Column, counted, listed
from laneway.cli.output import Cell, Format, emit, escaped, say
from laneway.cli.resolve import Actor, default_actor, reason_of, text_of
from laneway.cli.suggested import asked
from laneway.consumer.inspection import offsets as inspect_offsets
from laneway.consumer.kafka.cluster import Cluster, Partition
from laneway.consumer.operations import offset_file
from laneway.consumer.operations import reset as resetting
from laneway.consumer.operations.foreseen import KEPT, Foreseen, Part, foreseen, outdated, touched
from laneway.consumer.operations.reset import Goal, Move, Written
from laneway.consumer.settings.model import Settings
from laneway.errors import LanewayError, RefusedError, UnreachableError, UsageError

Said = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why; the worker that starts there tells it.")
]
_SHOWN: Final = 30
"""Partitions that are told of in sentences; the data has all."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One partition. `seen` is None where nobody looked, `now` before anything was written."""

    move: Move
    seen: Foreseen | None
    result: str
    now: int | None = None
    why: str = ""


def _of(name: str) -> Column[_Row]:
    return Column(name, lambda row: None if row.seen is None else getattr(row.seen, name), "")


_COLUMNS: Final[tuple[Column[_Row], ...]] = (
    Column("topic", lambda row: row.move.place[0]),
    Column("partition", lambda row: row.move.place[1]),
    Column("before", lambda row: row.move.before),
    Column("after", lambda row: row.move.after),
    Column("result", lambda row: row.result),
    Column("now", lambda row: row.now, ""),
    Column("why", lambda row: row.why or row.move.remark or None),
    Column("log_start", lambda row: row.move.log.start, ""),
    Column("log_end", lambda row: row.move.log.end, ""),
    Column("ledger", lambda row: None if row.seen is None else row.seen.frontier),
    Column("again", lambda row: None if row.seen is None else row.seen.again),
    Column("suppressed", lambda row: None if row.seen is None else row.seen.suppressed),
    Column("runs", lambda row: None if row.seen is None else row.seen.runs),
    Column("lost", lambda row: None if row.seen is None else row.seen.lost),
    Column("gaps", lambda row: None if row.seen is None else len(row.seen.gaps)),
    Column("cases", lambda row: None if row.seen is None else row.seen.cases),
    _of("parked"),
    _of("reviewed"),
    _of("unreadable"),
    _of("lost_at"),
    _of("gone"),
    Column("gap_keys", lambda row: None if row.seen is None else list(row.seen.gaps)[:KEPT], ""),
    _of("gaps_now"),
    Column(
        "touched_cases",
        lambda row: None if row.seen is None else sorted({*row.seen.closed, *row.seen.about})[:KEPT],
        "",
    ),
    Column("opened_cases", lambda row: None if row.seen is None else row.seen.opened, ""),
    _of("unread"),
)


def reset(
    reason: Said,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="WHERE", help="start, end, an offset N, +N or -N from now, or @TIME."),
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="As `offsets export` wrote it.")
    ] = None,
    partitions: Annotated[
        list[int] | None,
        typer.Option("--partition", metavar="N", min=0, help="Only this partition; repeatable."),
    ] = None,
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    actor: Actor = None,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", metavar="DIR", help="Where the ledgers are, when no topic has them."),
    ] = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="Do it although the ledger cannot be read from here.")
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Look at so many records at most.")
    ] = 100_000,
    timeout: options.Timeout = 120.0,
    output: options.Output = Format.TABLE,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
) -> None:
    """Set the committed offsets of the sources of a group that is stopped; says first what that will do.

    Going back repeats no effect: what the ledger has settled is read again and suppressed; to repeat effects
    on purpose there is `laneway rerun`. Going forward loses what nobody has settled yet, for good, and keys
    that lose a number wait for it. SUPPRESSED, RUNS, LOST, GAPS and CASES are what the rules make of it.

    Exit 4: the group is live (looked at again right before the write), or a place is outside its log. 1: what
    was read back is not what was written.
    """
    goal = _goal(to, from_file)
    who = text_of("--actor", actor) if actor is not None else default_actor()
    said = reason_of(reason)
    flags = {"state_dir": None if state_dir is None else str(state_dir)}
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True, flags=flags
    )
    settings = loaded.settings
    words = asked(config, sets, bootstrap, group, sources)
    with Cluster(settings) as cluster:
        names = inspect_offsets.sources_of(settings, cluster)
        _require_file_fits(goal, settings, cluster, names)
        resetting.require_at_rest(cluster, settings.group)
        moves = resetting.planned(cluster, settings.group, names, sorted(set(partitions or ())), goal)
        try:
            seen = _look(settings, moves, (config, sets, bootstrap, group, state_dir), limit, timeout)
        except UnreachableError:
            raise
        except LanewayError as error:
            if not blind:
                raise RefusedError(
                    f"what the ledger will make of it cannot be said from here: {error.what}",
                    where=error.where,
                    mend="run it where the ledger is, with the workers' -c FILE or --state-dir DIR; or give "
                    "--blind",
                ) from error
            say(f"not looked at: {error.what}")
            seen = {}
        unreadable = partial(words.unreadable, configured=loaded.path is not None)
        for line in _sentences(moves, seen, unreadable):
            say(line)
        facts: dict[str, Cell] = {"group": settings.group, "actor": who, "said": said}
        if dry_run:
            rows = [_Row(move, seen.get(move.place), "would-set") for move in moves]
            emit(listed("offsets.reset", _COLUMNS, rows, output, facts), output)
            return
        options.confirm(f"set {counted(len(moves), 'offset')} of group {settings.group}?", yes=yes)
        written = resetting.write(cluster, settings.group, moves, who, said)
    rows = [_row(move, seen.get(move.place), written) for move in moves]
    emit(listed("offsets.reset", _COLUMNS, rows, output, facts), output)
    wrong = [row for row in rows if row.result != "set"]
    if wrong:
        raise LanewayError(
            f"{len(wrong)} of {len(rows)} are not what was written",
            where=f"group {settings.group}",
            mend="`laneway offsets show` tells what is committed now; a worker that has started commits too",
        )


def _row(move: Move, seen: Foreseen | None, written: Written) -> _Row:
    now = written.now.get(move.place)
    if written.is_set(move):
        return _Row(move, seen, "set", now)
    why = written.refused.get(move.place) or f"read back: {'nothing' if now is None else now}"
    return _Row(move, seen, "not-set", now, why)


def _goal(to: str | None, from_file: Path | None) -> Goal:
    if (to is None) == (from_file is None):
        raise UsageError("where to?", mend="give --to WHERE, or --from-file FILE")
    if from_file is not None:
        return Goal("file", file=offset_file.read(from_file))
    assert to is not None
    return resetting.goal_of(to)


def _require_file_fits(goal: Goal, settings: Settings, cluster: Cluster, names: Sequence[str]) -> None:
    if goal.file is None:
        return
    ids = {name: info.topic_id for name, info in cluster.topics(names).items()}
    goal.file.refuse_others(settings.group, cluster.cluster_id(), ids)
    left = sorted({topic for topic, _ in goal.file.offsets} - set(names))
    if left:
        say(f"left alone, for they are no source of the group here: {', '.join(left)}")
    empty = sum(1 for offset in goal.file.offsets.values() if offset is None)
    if empty:
        say(f"left alone, for the file has nothing committed there: {counted(empty, 'partition')}")


# --- what the ledger will make of it ---------------------------------------------------------------

_Unreadable = Callable[[int], str]
_Asked = tuple[Path | None, list[str] | None, str | None, str | None, Path | None]


def _look(
    settings: Settings, moves: Sequence[Move], given: _Asked, limit: int, timeout_s: float
) -> Mapping[Partition, Foreseen]:
    """What each move comes to.

    Raises:
        RefusedError: a worker has committed where no ledger is to be found, or beyond the one that is.
    """
    found = touched(settings, moves, limit=limit, timeout_s=timeout_s)
    config, sets, bootstrap, group, state_dir = given
    parts: dict[Partition, Part] = {}
    due = [move for move in moves if move.after_worker]
    try:
        looked = ledger_places.where(
            config,
            sets,
            bootstrap,
            group,
            sources=sorted({move.place[0] for move in moves}),
            partitions=sorted({move.place[1] for move in moves}),
            state_dir=state_dir,
            from_topic=False,
            timeout_s=timeout_s,
        )
        answers = looked.ledgers.fold(lambda: Part(found))
        answers.refuse_if_incomplete()
        parts = {place: part for place, part in answers.by_ledger.items() if part.meta is not None}
    except LanewayError:
        if due:
            raise
    lacking = [move.place for move in due if move.place not in parts]
    if lacking:
        raise RefusedError(
            "a worker has committed here, and its ledger is not to be found",
            where=", ".join(f"{topic}-{number}" for topic, number in lacking[:KEPT]),
        )
    for (topic, number), end in outdated(moves, parts).items():
        raise RefusedError(
            f"a worker has committed beyond this ledger, which ends at {end}: it is an old one, and what has "
            "happened since would happen twice",
            where=f"{topic}-{number}",
        )
    return foreseen(settings, moves, found, parts, timeout_s=timeout_s)


def _sentences(
    moves: Sequence[Move], seen: Mapping[Partition, Foreseen], unreadable: _Unreadable
) -> Iterator[str]:
    for move in moves[:_SHOWN]:
        before = "nothing" if move.before is None else str(move.before)
        head = f"{move.place[0]}/{move.place[1]}: {before} -> {move.after}"
        if move.remark:
            head += f" ({move.remark})"
        look = seen.get(move.place)
        yield head if look is None else f"{head}; {'; '.join(_said(move, look, unreadable))}"
    if len(moves) > _SHOWN:
        yield f"... and {counted(len(moves) - _SHOWN, 'partition')} more; -o json has all"


def _said(move: Move, look: Foreseen, unreadable: _Unreadable) -> Iterator[str]:
    if look.gone:
        yield (
            f"deleted unread below {move.log.start}: {counted(look.gone, 'position')}, LOST whatever it was; "
            "where numbers are contiguous, a key that misses one opens a gap when its next record comes"
        )
    if move.after <= move.origin:
        yield from _of_going_back(look)
    else:
        yield from _of_going_forward(look)
    # What lies below the log's start is told of already.
    edge = look.frontier if move.before is None else min(move.before, move.origin)
    if look.frontier is not None and edge is not None and look.frontier < min(move.after, edge):
        yield (
            f"the ledger ends at {look.frontier}: what lies between is unknown to it and counts as done from "
            "then on"
        )
    if look.about:
        yield (
            f"{counted(len(look.about), 'open case')} about it, which stay open: {', '.join(look.about[:3])}"
            f"{', ...' if len(look.about) > 3 else ''}"
        )
    if look.unreadable:
        yield unreadable(look.unreadable)
    if look.unread:
        yield f"{counted(look.unread, 'offset')} not looked at; --limit N looks at more"


def _of_going_back(look: Foreseen) -> Iterator[str]:
    if not look.again:
        yield "no record is read again"
        return
    known = "no ledger knows them" if look.frontier is None else f"settled up to {look.frontier}"
    yield (
        f"{counted(look.again, 'record')} read again: {look.suppressed} suppressed as duplicates ({known}), "
        f"{look.runs} run"
    )
    others = ((look.parked, "parked"), (look.reviewed, "in review"))
    yield from (f"{count} {what}" for count, what in others if count)
    if look.opened or look.closed:
        yield f"{counted(look.opened, 'case')} opened, {len(look.closed)} closed"
    if look.suppressed == look.again:
        yield "no effect is repeated, and the offset comes back by itself; `laneway rerun` repeats effects"


def _of_going_forward(look: Foreseen) -> Iterator[str]:
    lost = look.lost - look.gone
    if not lost:
        yield "nothing is lost: all that is passed over is settled"
        return
    places = ", ".join(str(offset) for offset in look.lost_at[:5])
    yield (
        f"{counted(lost, 'unsettled record')} passed over and LOST once a worker has started "
        f"({places}{', ...' if lost > 5 else ''})"
    )
    if look.gaps:
        named = ", ".join(f"{escaped(key)} misses {number}" for key, number in list(look.gaps.items())[:3])
        yield (
            f"{counted(len(look.gaps), 'key')} will open a gap ({named}"
            f"{', ...' if len(look.gaps) > 3 else ''}), {look.gaps_now} of them at once"
        )
