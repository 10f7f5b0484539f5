"""`laneway preview`: what Laneway would do with a live topic, before it does anything."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Final

import typer

from laneway.app import load_app
from laneway.cli import options
from laneway.cli.columns import Column, counted, listed
from laneway.cli.output import Cell, Format, Table, emit, say
from laneway.consumer.kafka.cluster import Cluster, Partition
from laneway.consumer.preview import suggestion
from laneway.consumer.preview.findings import Count, Example, written
from laneway.consumer.preview.preview import Preview, Report, batches_of
from laneway.consumer.preview.sizes import Limit, limits
from laneway.consumer.preview.window import Begin, window
from laneway.consumer.settings import values
from laneway.consumer.settings.model import Settings
from laneway.consumer.settings.order import held_orders
from laneway.errors import UsageError

INTERRUPTED: Final = 130
_TELL_EVERY_S: Final = 5.0
_MOST_PARTITIONS: Final = 50

_Counted = tuple[str, str, str, Count]
"""Source, word, reason, count."""

_FATES: Final = (
    Column[_Counted]("source", lambda row: row[0], ""),
    Column[_Counted]("what", lambda row: row[1]),
    Column[_Counted]("reason", lambda row: row[2] or None),
    Column[_Counted]("records", lambda row: row[3].records),
    Column[_Counted]("first", lambda row: [written(where) for where in row[3].first]),
)
_EXAMPLES: Final = (
    Column[Example]("what", lambda row: row.what),
    Column[Example]("at", lambda row: written(row.where)),
    Column[Example]("key", lambda row: row.key),
    Column[Example]("sequence", lambda row: row.sequence),
    Column[Example]("effect_key", lambda row: row.effect_key or None),
    Column[Example]("about", lambda row: row.about or None),
)
_LIMITS: Final = (
    Column[Limit]("limit", lambda row: row.name),
    Column[Limit]("bytes", lambda row: row.bytes),
    Column[Limit]("largest_record_bytes", lambda row: row.needed_bytes, "largest-record"),
    Column[Limit]("fits", lambda row: row.fits),
)


def preview(
    app: Annotated[str, typer.Argument(help="module:attr or ./file.py:attr: a Pipeline or a function.")],
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Read at most so many.")
    ] = 100_000,
    begin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest (the newest N), or @TIME, as @2026-03-01T06:00Z.",
        ),
    ] = "earliest",
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.")
    ] = None,
    first: Annotated[
        int, typer.Option("--first", metavar="N", min=1, help="Name the first N of each kind.")
    ] = 3,
    timeout: options.Timeout = 300.0,
    output: options.Output = Format.TABLE,
) -> None:
    """Read a live topic and say what Laneway would do with it; runs no handler and writes nothing anywhere.

    It is in no group and commits nothing. Each partition is worked through in memory by the rules that a
    worker obeys, as configured, with the payload validated in place of the handler; nobody resolves a case.
    So the tables say how many records would run, what would become of the others, which keys would be held
    and where, and which settings fit what was seen. Never a payload: names, positions and counts.

    Memory is bounded: about 1 KB for each record that is read, and the bytes of those that would be parked
    or held in a case; at 1 GiB it stops. Exit 0: all was read, whatever was found. 5: it stopped before, and
    shows what it has. 130: interrupted, likewise.
    """
    start = _begin(begin)
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    )
    options.require_sources(loaded)
    settings = loaded.settings
    # An application is imported, and its models' code runs: standard output is for the report.
    with contextlib.redirect_stdout(sys.stderr):
        pipeline = load_app(app)
        for order in held_orders(loaded):
            if not order.is_meant:
                say(f"warning: {order.text}")
        with Cluster(settings) as cluster:
            chosen = window(cluster, settings.sources, start, limit=limit, partition=partition)
            looking = Preview(settings, pipeline, chosen, keep=first)
            say(f"reading {counted(chosen.offsets, 'offset')} of {counted(len(chosen.spans), 'partition')}")
            code = _read(looking, settings, timeout)
            sizes = limits(settings, cluster, looking.report)
    emit(_tables(settings, looking.report, sizes, output), output)
    if output is Format.TABLE:
        for sentence in _sentences(settings, looking.report):
            say(sentence)
    if looking.report.unfinished is not None:
        say(f"laneway: {looking.report.unfinished}")
        code = looking.report.unfinished.exit_code
    if code:
        raise typer.Exit(code)


def _read(looking: Preview, settings: Settings, timeout_s: float) -> int:
    told_s = time.monotonic()
    began_s = told_s

    def tell(report: Report) -> None:
        nonlocal told_s
        now_s = time.monotonic()
        if now_s - told_s >= _TELL_EVERY_S:
            told_s = now_s
            say(f"{now_s - began_s:5.1f} s  {report.records} of at most {report.window.offsets} records")

    try:
        looking.work_through(batches_of(settings, looking.report.window.spans, timeout_s=timeout_s), tell)
    except KeyboardInterrupt:
        say("interrupted: this is what was read by now")
        return INTERRUPTED
    return 0


def _begin(text: str) -> Begin:
    if text in {"earliest", "latest"}:
        return text  # type: ignore[return-value]
    try:
        if text.startswith("@"):
            found = values.start_instant(text[1:])
            if isinstance(found, int):
                return found
    except ValueError:
        pass
    raise UsageError(
        f"{text!r} is no place to begin",
        where="--from",
        mend="write earliest, latest, or @2026-03-01T06:00:00Z",
    )


# --- the report ----------------------------------------------------------------------------------


def _tables(settings: Settings, report: Report, sizes: list[Limit], form: Format) -> Table:
    several = len(report.seen) > 1
    fates = [replace(_FATES[0], heading=None), *_FATES[1:]] if several else list(_FATES)
    rows = list(_fates(report))
    seen_of = report.seen.items()
    cases = [(source, *each) for source, seen in seen_of for each in seen.cases]
    payloads = [(source, *each) for source, seen in seen_of for each in seen.payloads]
    inner = {
        "cases": _counts("cases", ("", "reason"), cases, form),
        "payloads": _counts("payloads", ("what", "place"), payloads, form),
        "versions": _counts("versions", ("what", "version"), list(_versions(settings, report)), form),
        "examples": listed(
            "examples",
            _EXAMPLES,
            sorted(
                (e for seen in report.seen.values() for e in seen.told_examples()),
                key=lambda e: (e.what, e.where),
            ),
            form,
        ),
        "partitions": _partitions(report, form),
        "limits": listed("limits", _LIMITS, sizes, form),
    }
    table = listed("preview", fates, rows, form, _facts(settings, report))
    return replace(
        table,
        tables=inner,
        lists={"settings": suggestion.lines(settings, report)},
    )


def _fates(report: Report) -> Iterator[_Counted]:
    """What became of the records; together they are all that were read."""
    for source, seen in report.seen.items():
        counted = sorted(
            seen.fates, key=lambda each: (each[0] != "effect", each[0], -each[2].records, each[1])
        )
        for what, reason, count in counted:
            yield source, what, reason, count
        yield from ((source, "parked", reason, count) for reason, count in _parked(report, source))


def _parked(report: Report, source: str) -> Iterator[tuple[str, Count]]:
    by_reason: dict[str, Count] = {}
    for (topic, number), trial in sorted(report.trials.items()):
        if topic == source:
            for offset, reason in trial.waiting():
                count = by_reason.setdefault(f"behind {reason}", Count())
                count.records += 1
                if len(count.first) < report.keep:
                    count.first.append((topic, number, offset))
    yield from sorted(by_reason.items())


def _versions(settings: Settings, report: Report) -> Iterator[_Counted]:
    for source, seen in report.seen.items():
        if settings.envelope_of(source).version is not None:
            for kind, name, count in seen.versions:
                yield source, kind, name, count


def _counts(kind: str, names: tuple[str, str], rows: list[_Counted], form: Format) -> Table:
    """Counts under names of their own; one that is empty is left out."""
    source, what, reason, *rest = _FATES
    named = [replace(column, name=name) for column, name in zip((what, reason), names, strict=True) if name]
    return listed(kind, [source, *named, *rest], rows, form)


def _partitions(report: Report, form: Format) -> Table:
    columns: tuple[Column[Partition], ...] = (
        Column("topic", lambda place: place[0]),
        Column("partition", lambda place: place[1]),
        Column("log_start", lambda place: report.window.logs[place].start),
        Column("log_end", lambda place: report.window.logs[place].end),
        Column("from", lambda place: report.window.spans[place].start),
        Column("to", lambda place: report.window.spans[place].end),
        Column("records", lambda place: report.trials[place].records),
        Column("keys", lambda place: len(report.trials[place].numbers)),
        Column("parked", lambda place: report.trials[place].parked),
        Column("open_cases", lambda place: report.trials[place].open_cases),
        Column("stops_behind", lambda place: stop.offset if (stop := report.trials[place].stop) else None),
        Column("because", lambda place: stop.why if (stop := report.trials[place].stop) else None),
    )
    shown = sorted(report.trials)
    if form is Format.TABLE and len(shown) > _MOST_PARTITIONS:
        say(f"{_MOST_PARTITIONS} of {len(shown)} partitions are shown; -o json has all")
        shown = shown[:_MOST_PARTITIONS]
    return listed("partitions", columns, shown, form)


def _facts(settings: Settings, report: Report) -> dict[str, Cell]:
    longest = report.longest_key()
    seen = report.seen.values()
    return {
        "group": settings.group,
        "sources": list(report.seen),
        "complete": report.unfinished is None,
        "offsets_not_read": report.window.unread_behind,
        "records": report.records,
        "bytes": sum(each.bytes for each in seen),
        "unreadable": report.unreadable,
        "keys": sum(len(each.keys) for each in seen),
        "effects": sum(len(each.effects) for each in seen),
        "longest_key": longest[1],
        "longest_key_records": longest[0],
        "order": report.order,
        "keys_in_two_partitions": sum(len(each.keys.split) for each in seen),
        "effects_in_two_partitions": sum(len(each.effects.split) for each in seen),
        "gaps": sum(each.cases.of("case", "sequence-gap") for each in seen),
        "gaps_healed": sum(each.healed for each in seen),
        "late": sum(each.fates.of("review", "sequence-stale") for each in seen),
        "first_sequences": report.other_firsts,
        "duplicates": sum(each.fates.of("duplicate") for each in seen),
        "conflicts": sum(each.fates.of("review", "effect-conflict") for each in seen),
        "open_cases": sum(trial.open_cases for trial in report.trials.values()),
        "parked": sum(trial.parked for trial in report.trials.values()),
    }


def _sentences(settings: Settings, report: Report) -> Iterator[str]:
    """The same in words, for a person."""
    facts = _facts(settings, report)

    def number(fact: str, noun: str) -> str:
        return counted(int(str(facts[fact])), noun)

    yield (
        f"{number('records', 'record')} read, {facts['unreadable']} of them unreadable; "
        f"{number('keys', 'key')}, {number('effects', 'effect key')}"
    )
    if facts["longest_key"] is not None:
        yield f"the longest key has {number('longest_key_records', 'record')}: {facts['longest_key']}"
    yield (
        f"order {report.order}: {number('gaps', 'gap')} ({facts['gaps_healed']} healed by a late record), "
        f"{facts['late']} came too late, {number('first_sequences', 'key')} not beginning with the number "
        "that is configured"
    )
    yield (
        f"{number('duplicates', 'duplicate')}, {number('conflicts', 'conflict')} (same effect key, other "
        "payload)"
    )
    if facts["keys_in_two_partitions"]:
        yield (
            f"{number('keys_in_two_partitions', 'key')} in more than one partition: nothing keeps the "
            "order between partitions; the publisher has to partition by the key"
        )
    if facts["effects_in_two_partitions"]:
        yield (
            f"{number('effects_in_two_partitions', 'effect key')} in more than one partition: each partition "
            "knows its own effects only, so an effect would happen once in each"
        )
    for place, trial in sorted(report.trials.items()):
        if trial.stop is not None:
            yield (
                f"a worker would stop reading {place[0]}/{place[1]} behind offset {trial.stop.offset}: "
                f"{trial.stop.why}; what follows is counted as if somebody had raised that bound"
            )
    middle = sum(not report.window.begins_at_the_start(place) for place in report.trials)
    if middle and facts["first_sequences"]:
        yield (
            f"{counted(middle, 'partition')} not read from the first record on, so keys may have begun "
            "before: what is counted is what a group would meet that starts there"
        )
    if report.window.unread_behind:
        yield f"{counted(report.window.unread_behind, 'offset')} behind not read; --limit N reads more"
