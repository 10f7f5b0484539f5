"""`laneway topics`: the companion topics a group needs, planned, made and checked."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from laneway.cli import options
from laneway.cli.columns import counted
from laneway.cli.output import Format, Table, emit, render, say
from laneway.consumer import rights, topics
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.topics import PlannedTopic

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Plan, create and check topics.")

_EMBEDDED = "this is the embedded cluster: any topic asked for exists there, so this says nothing"
_COLUMNS = (
    "topic",
    "kind",
    "source",
    "partitions",
    "replication",
    "max_message_bytes",
    "cleanup_policy",
    "retention_ms",
    "delete_retention_ms",
    "state",
)


@app.command(epilog="Example: laneway topics plan -b localhost:9092 -g reminders --source invoices")
def plan(
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Print the topics, their settings and the least rights a worker needs; changes nothing.

    With replication = "changelog" that is the compacted ledger topic of each source too, and the right to
    transactions whose id begins with laneway-GROUP-. Each line of ACLS completes a `kafka-acls.sh` command;
    topics that a handler emits to need Write besides, and brokers before 2.8 IdempotentWrite on the cluster.
    """
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    )
    options.require_sources(loaded)
    settings = loaded.settings
    with Cluster(settings) as cluster:
        planned = topics.plan(settings, cluster)
        missing = {topic.name for topic in topics.to_create(settings, cluster)}
        embedded = not topics.is_telling(cluster)
    if embedded:
        say(_EMBEDDED)
    states = {topic.name: "missing" if topic.name in missing else "exists" for topic in planned}
    table = _table("topics.plan", planned, states)
    acls = {"acls": rights.acls(settings)}
    emit(Table(table.kind, table.columns, table.rows, lists=acls, facts={"embedded": embedded}), output)


@app.command(epilog="Example: laneway topics create -c laneway.toml --dry-run")
def create(
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    output: options.Output = Format.TABLE,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
) -> None:
    """Create the topics that are missing and read them back; those that exist stay as they are."""
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    )
    options.require_sources(loaded)
    settings = loaded.settings
    with Cluster(settings) as cluster:
        topics.refuse_embedded(settings, cluster)
        missing = topics.to_create(settings, cluster)
        if dry_run or not missing:
            if not missing:
                say("nothing to create: every topic exists (laneway topics check says whether it fits)")
            emit(_table("topics.create", missing, dict.fromkeys(_names(missing), "would-create")), output)
            return
        if not yes:
            say(
                render(
                    _table("topics.create", missing, dict.fromkeys(_names(missing), "missing")), Format.TABLE
                )
            )
        options.confirm(f"create {len(missing)} topics at {settings.bootstrap}?", yes=yes)
        made = topics.create(settings, cluster)
    emit(_table("topics.create", made, dict.fromkeys(_names(made), "created")), output)


@app.command(epilog="Example: laneway topics check -c laneway.toml -o json")
def check(
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Compare the topics with what the protocol needs; exit 4 with the mending command for each finding.

    A finding of level `warning` stops no worker, and alone it leaves with 0.
    """
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    )
    options.require_sources(loaded)
    settings = loaded.settings
    with Cluster(settings) as cluster:
        findings = topics.check(settings, cluster)
        embedded = not topics.is_telling(cluster)
    rows = [
        (finding.topic, "warning" if finding.warning else "refused", finding.problem, finding.command)
        for finding in findings
    ]
    columns = ("topic", "level", "problem", "command")
    emit(Table("topics.check", columns, rows, facts={"embedded": embedded}), output)
    refusals = sum(not finding.warning for finding in findings)
    if embedded:
        say(_EMBEDDED)
    elif not findings:
        say(f"every topic of group {settings.group} is as it has to be")
    elif not refusals:
        say(f"{counted(len(findings), 'warning')}: workers of {settings.group} would start, and log this")
    else:
        say(f"{counted(refusals, 'finding')}: a worker of group {settings.group} would refuse to start")
        raise typer.Exit(4)


def _names(planned: Sequence[PlannedTopic]) -> list[str]:
    return [topic.name for topic in planned]


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _table(kind: str, planned: Sequence[PlannedTopic], states: dict[str, str]) -> Table:
    rows = [
        (
            topic.name,
            topic.kind.value,
            topic.source,
            topic.partitions,
            topic.replication,
            int(topic.configs["max.message.bytes"]),
            topic.configs["cleanup.policy"],
            _number(topic.configs.get("retention.ms")),
            _number(topic.configs.get("delete.retention.ms")),
            states[topic.name],
        )
        for topic in planned
    ]
    return Table(kind, _COLUMNS, rows)
