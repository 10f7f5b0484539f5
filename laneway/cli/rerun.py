"""`laneway rerun`: effects happen once more on purpose, after a handler did them wrong.

Each goes as a command to the owner of its lane, so it waits its turn there, beside no other delivery of its
key.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from laneway.cli import ledger_places, options
from laneway.cli.columns import Column, counted, listed, verb
from laneway.cli.output import Cell, Format, Table, emit, escaped, say
from laneway.cli.resolve import Actor, Wait, default_actor, reason_of, text_of
from laneway.cli.suggested import Asked, asked
from laneway.consumer.inspection import offsets as inspect_offsets
from laneway.consumer.inspection.topics import extents
from laneway.consumer.kafka.cluster import Cluster, Partition, Watermarks
from laneway.consumer.operations import rerun as rerunning
from laneway.consumer.operations.commands import Commands, queued
from laneway.consumer.operations.many import Tally, send_all
from laneway.consumer.operations.rerun import Effects, Plan, Records
from laneway.consumer.operations.reset import goal_of
from laneway.consumer.preview.preview import is_numbered
from laneway.consumer.settings.model import Settings
from laneway.errors import IncompleteError, LanewayError, RefusedError, UsageError
from laneway.lanes.command import Command
from laneway.lanes.effect import Effect
from laneway.lanes.forward import CommandAnswer
from laneway.lanes.record import Record

_LEFT: Final[Mapping[str, str]] = {
    rerunning.UNKNOWN: "no ledger knows their effect: never settled, or forgotten after ledger.retention",
    rerunning.COPY: "copies of a record that made the effect",
    rerunning.OPENED: "their effect is open: it runs, waits for its retry, or for a person",
    rerunning.NOT_SUCCEEDED: "their effect has not succeeded: `laneway dlq replay` is for those",
    rerunning.DONE: "done in this run already",
    rerunning.ENDED: "ended otherwise in this run; what follows of their keys is refused",
    rerunning.LATER: "repeated in a later run",
    rerunning.QUEUED: "a command of this run is queued already",
    rerunning.CORRECTED: "they succeeded with a corrected payload, which the source topic does not have",
}
_LOOK_S: Final = 0.5
_NOTABLE: Final[tuple[Column[CommandAnswer], ...]] = (
    Column("topic", lambda answer: answer.topic),
    Column("partition", lambda answer: answer.partition),
    Column("effect_key", lambda answer: answer.effect_key),
    Column("outcome", lambda answer: answer.outcome or None),
    Column("next_case", lambda answer: answer.next_case or None),
    Column("why", lambda answer: answer.why or None),
)


def rerun(
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with each answer.")
    ],
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="WHERE", help="From start, an offset, or @TIME on.  [default: start]"),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="WHERE", help="Below end, an offset, or @TIME.  [default: end]"),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only this sequence key.")] = None,
    effect: Annotated[
        str | None, typer.Option("--effect", metavar="KEY", help="Only this effect key.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")
    ] = None,
    run: Annotated[
        int | None,
        typer.Option(
            "--run", metavar="N", min=1, help="Go on with this rerun, which exists.  [default: a new number]"
        ),
    ] = None,
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", metavar="DIR", help="Where the ledgers are, when no topic has them."),
    ] = None,
    actor: Actor = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Refuse when more records fit.")
    ] = 100_000,
    rate: Annotated[
        float, typer.Option("--rate", metavar="R", min=0.1, help="At most R commands a second.")
    ] = 100.0,
    wait: Wait = 10.0,
    timeout: options.Timeout = 300.0,
    output: options.Output = Format.TABLE,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
) -> None:
    """Let effects that have succeeded happen once more: those of a range of one source, or of a key.

    Each runs once for each run number, which the handler sees as `delivery.run` (0 in the normal flow); of a
    key in their order, and behind one that fails none. What the key has in hand ends first, what comes
    meanwhile waits, and no number moves. A target that refuses a known idempotency key needs the run number
    in it.

    Exit 5: not all have answered; the commands stay queued. Run again with --run N, it goes on where it was.
    """
    if begin is None and end is None and key is None and effect is None:
        raise UsageError("what is to be repeated?", mend="give --from and --to, --key, or --effect")
    who = text_of("--actor", actor) if actor is not None else default_actor()
    said = reason_of(reason)
    flags = {"state_dir": None if state_dir is None else str(state_dir)}
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True, flags=flags
    )
    settings, has_file = loaded.settings, loaded.path is not None
    words = asked(config, sets, bootstrap, group, sources)
    with Cluster(settings) as cluster:
        names = inspect_offsets.sources_of(settings, cluster)
        if len(names) != 1:
            raise UsageError(
                f"the group has {len(names)} sources, and a rerun is of one", mend="give --source TOPIC"
            )
        spans = _spans(cluster, names[0], partition, begin, end)
        records = rerunning.find(settings, spans, _fits(key, effect), limit=limit, timeout_s=timeout)
        given = (config, sets, bootstrap, group)
        known = _known(given, names[0], records, state_dir, timeout)
        if not records.found:
            _tell_nothing(records, partial(words.unreadable, configured=has_file))
        number = run if run is not None else rerunning.next_run(records, known)

        def still_queued() -> Mapping[str, tuple[Command, int]]:
            return queued(
                settings, cluster, names, timeout_s=timeout, wanted=lambda c: rerunning.run_of(c) > 0
            )

        in_queue = still_queued()
        runs = rerunning.runs_of(records, known) | {rerunning.run_of(each) for each, _ in in_queue.values()}
        if run is not None and run not in runs:
            _refuse_run(run, runs)
        before = {name: each for name, each in in_queue.items() if rerunning.run_of(each[0]) == number}
        made = rerunning.plan(
            records,
            known,
            number,
            by_number=is_numbered(settings, names[0]),
            queued=rerunning.effects_of([command for command, _ in before.values()]),
        )
        facts = _facts(settings, names[0], records, made, who, said)
        waiting = [command for command, _ in in_queue.values()]
        for line in _sentences(records, made, waiting, partial(words.unreadable, configured=has_file)):
            say(line)
        if dry_run or not (made.chosen or before):
            _tell(Tally(), facts, output)
            return
        options.confirm(f"repeat {counted(len(made.chosen), 'effect')} as run {number}?", yes=yes)
        with _going_on(number), Commands(settings, cluster, names) as sending:
            tally = send_all(
                sending,
                rerunning.commands(settings, made, who, said, timeout_s=timeout),
                rate=rate,
                wait_s=wait,
                most_cases=settings.lanes.max_open_cases_per_partition,
                told=lambda now: say(f"{now.sent} of {len(made.chosen)} sent, {_counts(now)}"),
            )
        deadline_s = time.monotonic() + wait
        while (older := still_queued().keys() & before.keys()) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
    _tell(tally, facts, output)
    _end(tally, len(made.chosen), len(older), number, words)


def _tell_nothing(records: Records, unreadable: Callable[[int], str]) -> NoReturn:
    """End a command that has nothing to do.

    Raises:
        typer.Exit: with 1.
    """
    say("nothing was found: no record in this range fits")
    if records.unreadable:
        say(unreadable(records.unreadable))
    raise typer.Exit(1)


def _refuse_run(run: int, runs: frozenset[int]) -> NoReturn:
    """Refuse a number that nobody has begun: a slip of a finger would make every effect happen again.

    Raises:
        RefusedError: always.
    """
    known = ", ".join(map(str, sorted(runs)))
    raise RefusedError(
        f"there is no run {run} of these records",
        where="--run",
        mend=f"leave it out for a new run, or go on with one that exists: {known}"
        if known
        else "leave it out for a new run",
    )


def _fits(key: str | None, effect: str | None) -> rerunning.Fits:
    def fits(record: Record) -> bool:
        if key is not None and record.sequence_key != key:
            return False
        return effect is None or record.effect_key == effect

    return fits


def _spans(
    cluster: Cluster, source: str, partition: int | None, begin: str | None, end: str | None
) -> Mapping[Partition, Watermarks]:
    """What is looked through, of each partition.

    Raises:
        UsageError: a place that means nothing here.
    """
    logs = {
        place: log
        for place, log in extents(cluster, [source]).items()
        if partition is None or place[1] == partition
    }
    if not logs:
        raise UsageError(f"there is no partition {partition}", where="--partition", mend="check the number")
    starts = _at(cluster, "--from", begin or "start", logs)
    ends = _at(cluster, "--to", end or "end", logs)
    return {place: Watermarks(starts[place], max(starts[place], ends[place])) for place in logs}


def _at(
    cluster: Cluster, option: str, text: str, logs: Mapping[Partition, Watermarks]
) -> Mapping[Partition, int]:
    goal = goal_of(text, option, relative=False)
    if goal.word == "time":
        found = cluster.offsets_at(list(logs), goal.number)
        return {place: max(log.start, found.get(place, log.end)) for place, log in logs.items()}
    if goal.word == "offset":
        if len(logs) > 1:
            raise UsageError(
                "an offset is of one partition, and the source has more",
                where=option,
                mend="give --partition N",
            )
        return {place: min(max(log.start, goal.number), log.end) for place, log in logs.items()}
    return {place: log.start if goal.word == "start" else log.end for place, log in logs.items()}


_Asked = tuple[Path | None, list[str] | None, str | None, str | None]


def _known(
    given: _Asked, source: str, records: Records, state_dir: Path | None, timeout_s: float
) -> Mapping[Partition, Mapping[str, Effect]]:
    """What the ledgers know of the effects.

    Raises:
        RefusedError: they cannot be read from here.
    """
    wanted = frozenset(each.effect_key for each in records.found)
    try:
        looked = ledger_places.where(
            *given,
            sources=[source],
            partitions=sorted({each.place[1] for each in records.found}),
            state_dir=state_dir,
            from_topic=False,
            timeout_s=timeout_s,
        )
        answers = looked.ledgers.fold(lambda: Effects(wanted))
        answers.refuse_if_incomplete()
    except UsageError:
        raise
    except LanewayError as error:
        raise RefusedError(
            f"which effects have happened cannot be said from here: {error.what}",
            where=error.where,
            mend="run it where the ledger is, with the workers' -c FILE or --state-dir DIR",
        ) from error
    return {place: fold.known for place, fold in answers.by_ledger.items()}


# --- what is said ----------------------------------------------------------------------------------


def _facts(
    settings: Settings, source: str, records: Records, made: Plan, actor: str, said: str
) -> dict[str, Cell]:
    return {
        "group": settings.group,
        "source": source,
        "run": made.run,
        "actor": actor,
        "said": said,
        "fit": len(records.found),
        "unreadable": records.unreadable,
        **{f"left_{word.replace('-', '_')}": made.left[word] for word in _LEFT},
        "chosen": len(made.chosen),
        "keys": made.keys,
        "repeated_before": made.before.total(),
    }


def _sentences(
    records: Records, made: Plan, queued: Sequence[Command], unreadable: Callable[[int], str]
) -> list[str]:
    chosen, fit = len(made.chosen), len(records.found)
    lines = [
        f"run {made.run}: {counted(chosen, 'effect')} of {counted(made.keys, 'key')} "
        f"{verb(chosen, 'happens', 'happen')} once more, of {counted(fit, 'record')} that "
        f"{verb(fit, 'fits', 'fit')}"
    ]
    lines += [
        f"  {count} of them {verb(count, 'has', 'have')} happened once more in run {run} already; "
        f"--run {run} goes on with that run"
        for run, count in sorted(made.before.items())
    ]
    wanted = {(found.place, found.effect_key) for found in made.chosen.values()}
    runs = Counter(rerunning.run_of(each) for each in queued if rerunning.effects_of([each]) & wanted)
    lines += [
        f"  {count} of them {verb(count, 'is', 'are')} queued in run {run} too, and "
        f"{verb(count, 'happens', 'happen')} in both; --run {run} goes on with that"
        for run, count in sorted(runs.items())
        if run != made.run
    ]
    if made.by_hand:
        lines.append(
            f"  {made.by_hand} of them {verb(made.by_hand, 'was', 'were')} marked done by a person: "
            "here the handler does what somebody else has done"
        )
    lines += [f"  {made.left[word]} left alone: {text}" for word, text in _LEFT.items() if made.left[word]]
    if records.unreadable:
        lines.append(f"  {unreadable(records.unreadable)}")
    return lines


def _counts(tally: Tally) -> str:
    return f"{tally.applied} applied, {tally.refused} refused, {tally.unanswered} without an answer yet"


def _tell(tally: Tally, facts: dict[str, Cell], form: Format) -> None:
    counts: dict[str, Cell] = {
        **facts,
        "sent": tally.sent,
        "applied": tally.applied,
        "refused": tally.refused,
        **{name: tally.outcomes[name] for name in ("succeeded", "retry_wait", "quarantined", "in_review")},
        "unanswered": tally.unanswered,
    }
    if form is not Format.TABLE:
        emit(listed("rerun", _NOTABLE, tally.notable, form, counts), form)
        return
    shown = [
        (name.replace("_", "-"), value)
        for name, value in counts.items()
        if value or not (name in {"unreadable", "repeated_before"} or name.startswith("left_"))
    ]
    emit(Table("rerun", ("field", "value"), shown), form)
    for answer in tally.notable:
        new = f", in case {answer.next_case}" if answer.next_case else ""
        say(f"effect {escaped(answer.effect_key)}: {answer.why or answer.outcome}{new}")
    if waiting := tally.outcomes["retry_wait"]:
        waits = verb(
            waiting, "waits for its next attempt; how it ends", "wait for their next attempt; how they end"
        )
        say(f"{counted(waiting, 'effect')} failed and {waits} shows later")


@contextmanager
def _going_on(run: int) -> Iterator[None]:
    """An error while commands are sent says how to go on: without the number, what was sent happens twice."""
    try:
        yield
    except LanewayError as error:
        first = f"{error.mend}; " if error.mend else ""
        error.mend = f"{first}run the same command again with --run {run}, or what was sent happens twice"
        raise


def _end(tally: Tally, chosen: int, older: int, run: int, words: Asked) -> None:
    left = tally.unanswered + older
    if left:
        raise IncompleteError(
            f"{counted(left, 'command')} queued and not answered yet; each is applied once, by the worker "
            "that owns its partition",
            mend=f"run the same command again with --run {run} to go on; "
            f"{words.line('offsets', 'show')} tells who owns the partition",
        )
    if tally.stopped:
        raise LanewayError(
            f"stopped after {counted(tally.ended_in_case, 'new case')} "
            f"(lanes.max_open_cases_per_partition); {chosen - tally.sent} of {chosen} were not asked for",
            mend=f"see what they ended in: {words.line('review', 'list')}; once that is mended, run the same "
            f"command again with --run {run}",
        )
    if tally.sent < chosen:
        raise IncompleteError(
            f"{chosen - tally.sent} of {counted(chosen, 'effect')} were not asked for: their records left "
            "the source topic meanwhile, or one before them of their keys did",
            mend=f"run the same command again with --run {run} for what is left",
        )
    failed = tally.outcomes["quarantined"] + tally.outcomes["in_review"]
    if tally.refused == tally.sent and tally.sent:
        raise RefusedError("all were refused, and nothing was repeated")
    if failed or tally.refused:
        raise LanewayError(
            f"{failed} failed and {tally.refused} were refused; what came behind them of their keys did not "
            "run",
            mend=f"decide what they ended in ({words.line('review', 'list')}, "
            f"{words.line('dlq', 'list')}); then run the same command again with --run {run}",
        )
