"""`laneway retry`: the records that failed temporarily and come again."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from laneway.cli import options
from laneway.cli.columns import Column, age_text, counted, listed
from laneway.cli.output import Cell, Format, Table, say
from laneway.consumer.inspection import offsets as inspect_offsets
from laneway.consumer.inspection import retries as inspect_retries
from laneway.consumer.inspection.retries import WaitingRetry
from laneway.consumer.kafka.cluster import Cluster

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at what waits for its retry.")


@app.callback()
def _group() -> None:
    """Keeps `list` a command of its own while it is the only one."""


def _columns(now_ms: int) -> tuple[Column[WaitingRetry], ...]:
    return (
        Column("effect_key", lambda retry: retry.effect_key),
        Column("attempt", lambda retry: retry.attempt),
        Column("due_in_ms", lambda retry: retry.due_ms - now_ms, "due-in", lambda retry: _due(retry, now_ms)),
        Column("due_ms", lambda retry: retry.due_ms, ""),
        Column("reason", lambda retry: retry.reason),
        Column("key", lambda retry: retry.sequence_key),
        Column("sequence", lambda retry: retry.sequence),
        Column(
            "origin", lambda retry: f"{retry.origin_topic}/{retry.origin_partition}@{retry.origin_offset}"
        ),
        Column("message_id", lambda retry: retry.message_id, ""),
        Column("first_failed_ms", lambda retry: retry.first_failed_ms, ""),
        Column("topic", lambda retry: retry.record.topic, ""),
        Column("partition", lambda retry: retry.record.partition, ""),
        Column("offset", lambda retry: retry.record.offset, ""),
        Column("forward_id", lambda retry: retry.forward_id, ""),
    )


@app.command(name="list", epilog="Example: laneway retry list -b localhost:9092 -g reminders --watch 2")
def list_(
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    output: options.Output = Format.TABLE,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only this sequence key, or effect key.")
    ] = None,
    limit: options.Limit = 100,
    timeout: options.Timeout = 60.0,
    watch: options.Watch = None,
) -> None:
    """List the records that wait for their retry, the one due first at the beginning.

    ATTEMPT is the one to come; a negative DUE-IN means that it is overdue: the worker is busy, or down.
    """
    settings = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    ).settings

    def look() -> Table:
        with Cluster(settings) as cluster:
            topics = [names.retry for names in inspect_offsets.companions_of(settings, cluster)]
            found = inspect_retries.waiting(settings, cluster, topics, timeout_s=timeout)
        retries = [retry for retry in found.retries if key is None or key in _keys(retry)]
        if found.strangers:
            say(f"{counted(found.strangers, 'record')} of the retry topics passed over: none of this group")
        if len(retries) > limit:
            say(f"{limit} of {len(retries)} retries; --limit {len(retries)} shows the others")
        facts: dict[str, Cell] = {"group": settings.group, "waiting": len(retries)}
        return listed("retry.list", _columns(_now_ms()), retries[:limit], output, facts)

    options.show(look, output, watch)


def _keys(retry: WaitingRetry) -> tuple[str | None, str | None]:
    return retry.sequence_key, retry.effect_key


def _due(retry: WaitingRetry, now_ms: int) -> str | None:
    left_ms = retry.due_ms - now_ms
    age = age_text(abs(left_ms))
    return f"-{age}" if left_ms < 0 else age


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
