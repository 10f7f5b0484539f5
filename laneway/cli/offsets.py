"""`laneway offsets`: how far a group is, partition by partition; and a file of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from laneway.cli import options
from laneway.cli.columns import Column, age_text, counted, listed
from laneway.cli.output import Cell, Format, Table, emit, say
from laneway.cli.reset import reset
from laneway.cli.suggested import WHY, Asked, asked
from laneway.consumer.inspection import offsets as inspect_offsets
from laneway.consumer.inspection.offsets import DELETED_UNREAD, Standing
from laneway.consumer.kafka.cluster import Cluster, PartitionOffsets
from laneway.consumer.operations import offset_file

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at a group's offsets, and set them."
)


def _blocked_by(row: Standing) -> str | None:
    """What a person should look at: a partition without lag whose keys are held is not well either."""
    cases = row.note.open_cases if row.note else 0
    reasons = [row.blocked_by]
    if cases and "open case" not in row.blocked_by:
        reasons.append(counted(cases, "open case"))
    return "; ".join(filter(None, reasons)) or None


_COLUMNS: tuple[Column[Standing], ...] = (
    Column("topic", lambda row: row.offsets.topic),
    Column("partition", lambda row: row.offsets.partition),
    Column("committed", lambda row: row.offsets.committed),
    Column("log_start", lambda row: row.offsets.start),
    Column("log_end", lambda row: row.offsets.end),
    Column("lag", lambda row: row.offsets.lag),
    Column("running", lambda row: row.note.running if row.note else None),
    Column("waiting", lambda row: row.note.waiting if row.note else None, ""),
    Column("retries", lambda row: row.note.retries if row.note else None, ""),
    Column("parked", lambda row: row.note.parked if row.note else None),
    Column("open_cases", lambda row: row.note.open_cases if row.note else None, ""),
    Column("blocked_by", lambda row: row.blocked_by or None, "blocked_by", _blocked_by),
    Column("age_ms", lambda row: row.age_ms, "age", lambda row: age_text(row.age_ms)),
    Column(
        "member",
        lambda row: row.owner.client_id if row.owner else None,
        "member",
        lambda row: f"{row.owner.client_id}/{row.owner.host}" if row.owner else None,
    ),
    Column("host", lambda row: row.owner.host if row.owner else None, ""),
    Column("member_id", lambda row: row.owner.member_id if row.owner else None, ""),
    Column("instance_id", lambda row: row.owner.instance_id if row.owner else None, ""),
)


_LEADS: Final = (
    ("lanes.max_parked_", ("lanes", "list", "--state", "parked")),
    ("open case", ("review", "list")),
)
"""What tells more of a word of BLOCKED-BY."""


def _next_commands(rows: Sequence[Standing], words: Asked, sources: Sequence[str]) -> list[str]:
    """The lines that tell more of what blocks, or take it away; each once."""
    found: dict[str, None] = {}
    for row in rows:
        blocked_by = _blocked_by(row) or ""
        place = ("--source", row.offsets.topic) if len(sources) > 1 else ()
        number = ("--partition", str(row.offsets.partition))
        for word, command in _LEADS:
            if word in blocked_by:
                found[words.line(*command)] = None
        if DELETED_UNREAD in blocked_by:
            found[words.line("offsets", "reset", "--to", "start", *place, *number, "--reason", WHY)] = None
        if "paused by " in blocked_by:
            found[words.line("resume", *place, *number, "--reason", WHY)] = None
    if not found and any(row.note and (row.note.parked or row.note.retries) for row in rows):
        found[words.line("lanes", "list")] = None
    return list(found)


@app.command(epilog="Example: laneway offsets show -b localhost:9092 -g reminders")
def show(
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    output: options.Output = Format.TABLE,
    everything: Annotated[
        bool, typer.Option("--all", help="The retry and commands topics too, not only the sources.")
    ] = False,
    watch: options.Watch = None,
) -> None:
    """Print committed offset, log, lag and owner of each partition; -b and -g are enough.

    COMMITTED is - where nothing was committed, and LAG then counts from the log's start. RUNNING,
    PARKED and BLOCKED-BY are the worker's own as of its last commit; BLOCKED-BY counts open cases too. AGE
    is the time since the committed offset last moved, while there is lag. The commands below the
    table tell more of what blocks, or take it away.
    """
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    )
    settings = loaded.settings
    words = asked(config, sets, bootstrap, group, sources)

    def look() -> Table:
        with Cluster(settings) as cluster:
            names = inspect_offsets.sources_of(settings, cluster)
            now_ms = time.time_ns() // 1_000_000
            rows = inspect_offsets.standings(settings, cluster, names, now_ms, companions=everything)
        table = listed("offsets.show", _COLUMNS, rows, output, {"group": settings.group})
        lines = _next_commands([row for row in rows if row.offsets.topic in names], words, names)
        return replace(table, lists={"next_commands": lines} if lines or output is not Format.TABLE else {})

    options.show(look, output, watch)


app.command(
    epilog="Example: laneway offsets reset --to start --partition 0 --reason 'the log was cut off' "
    "-b localhost:9092 -g reminders"
)(reset)


@dataclass(frozen=True, slots=True)
class _Exported:
    """One partition and the topic that its offset is about."""

    offsets: PartitionOffsets
    topic_id: str


_EXPORT: tuple[Column[_Exported], ...] = (
    Column("topic", lambda row: row.offsets.topic),
    Column("topic_id", lambda row: row.topic_id),
    Column("partition", lambda row: row.offsets.partition),
    Column("offset", lambda row: row.offsets.committed),
)


@app.command(epilog="Example: laneway offsets export offsets.json -b localhost:9092 -g reminders")
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; - is standard output.")],
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
) -> None:
    """Write the committed offsets of the sources to a file, for `offsets reset --from-file`.

    JSON with a schema version: topic, its id, partition, offset; null where nothing is committed. The file is
    replaced in one go. It says where the group was, not what its ledger knows: put back later, it repeats no
    effect.
    """
    settings = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    ).settings
    with Cluster(settings) as cluster:
        names = inspect_offsets.sources_of(settings, cluster)
        now_ms = time.time_ns() // 1_000_000
        standing = inspect_offsets.standings(settings, cluster, names, now_ms)
        topics = cluster.topics(names)
        rows = [_Exported(each.offsets, topics[each.offsets.topic].topic_id) for each in standing]
        facts: dict[str, Cell] = {
            "group": settings.group,
            "cluster_id": cluster.cluster_id(),
            "exported_ms": now_ms,
        }
    table = listed(offset_file.KIND, _EXPORT, rows, Format.JSON, facts)
    if str(file) == "-":
        emit(table, Format.JSON)
        return
    offset_file.write(file, table.document())
    say(f"{counted(len(rows), 'partition')} of group {settings.group} in {file}")
