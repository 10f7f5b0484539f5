"""`laneway dlq`: the rejected records. Their bytes are shown only when somebody asks for them."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Final

import typer

from laneway.cli import options
from laneway.cli.columns import Column, age_text, detailed, instant_text, listed, verb
from laneway.cli.output import Cell, Format, Table, emit, say
from laneway.cli.review import answered
from laneway.cli.suggested import WHY, Asked, asked
from laneway.consumer.inspection import dead_letters as letters
from laneway.consumer.inspection import offsets as inspect_offsets
from laneway.consumer.inspection import topics as inspect_topics
from laneway.consumer.inspection.dead_letters import DeadLetter, Group
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.operations.letters import Fate, answers_to, fates_of
from laneway.consumer.settings.model import Settings
from laneway.errors import LanewayError, UsageError
from laneway.lanes.forward import foreign

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at rejected records, and run them again."
)


class GroupBy(StrEnum):
    """The values of --group-by."""

    REASON = "reason"
    ERROR_CLASS = "error-class"
    FINGERPRINT = "fingerprint"


_GROUPED_BY: Final[dict[GroupBy, Callable[[DeadLetter], str | None]]] = {
    GroupBy.REASON: lambda letter: letter.reason,
    GroupBy.ERROR_CLASS: lambda letter: letter.error_class,
    GroupBy.FINGERPRINT: lambda letter: letter.reason,
}


def _likeness(letter: DeadLetter) -> str | None:
    """What letters have in common that one fault made: the place in the code, else the words for it."""
    return letter.fingerprint or letter.error_class


Fates = Mapping[str, Fate]


def _columns(now_ms: int, fates: Fates) -> tuple[Column[DeadLetter], ...]:
    def of(name: str) -> Callable[[DeadLetter], Cell]:
        return lambda letter: getattr(fates.get(letter.letter_id), name, None)

    return (
        Column("id", lambda letter: letter.letter_id),
        Column("state", of("state")),
        Column("reason", lambda letter: letter.reason),
        Column("error_class", lambda letter: letter.error_class),
        Column(
            "failed_ms",
            lambda letter: letter.failed_ms,
            "failed",
            lambda letter: None if letter.failed_ms is None else age_text(now_ms - letter.failed_ms),
        ),
        Column("origin", lambda letter: letter.origin),
        Column("key", lambda letter: letter.sequence_key),
        Column("sequence", lambda letter: letter.sequence, ""),
        Column("effect_key", lambda letter: letter.effect_key),
        Column("message_id", lambda letter: letter.message_id, ""),
        Column("attempt", lambda letter: letter.attempt),
        Column("size_bytes", lambda letter: letter.size_bytes, "size"),
        Column(
            "sha256",
            lambda letter: letter.sha256,
            None,
            lambda letter: letter.sha256[:12] if letter.sha256 else None,
        ),
        Column("stub", lambda letter: letter.stub, ""),
        Column("case", lambda letter: letter.case_id, ""),
        Column("fingerprint", lambda letter: letter.fingerprint, ""),
        Column("replays", of("replays")),
        Column("earlier_replays", lambda letter: letter.replays, ""),
        Column("replay_of", lambda letter: letter.replay_of, ""),
        Column("forward_id", lambda letter: letter.forward_id, ""),
        Column("ours", lambda letter: letter.ours, ""),
    )


def _details(fates: Fates, *, payload: bool) -> tuple[Column[DeadLetter], ...]:
    words: dict[str, Callable[[DeadLetter], Cell]] = {
        "failed_ms": lambda letter: instant_text(letter.failed_ms),
        "first_failed_ms": lambda letter: instant_text(letter.first_failed_ms),
        "sha256": lambda letter: letter.sha256,
    }
    columns = [
        *_columns(0, fates),
        Column[DeadLetter]("first_failed_ms", lambda letter: letter.first_failed_ms),
        Column[DeadLetter](
            "header_names", lambda letter: [name for name, _ in foreign(letter.record.headers)]
        ),
    ]
    if payload:
        columns += [
            Column("record_key", lambda letter: _utf8(letter.record.key), text=lambda x: _text(x.record.key)),
            Column("record_key_base64", lambda letter: _base64(letter.record.key), ""),
            Column(
                "payload", lambda letter: _utf8(letter.record.value), text=lambda x: _text(x.record.value)
            ),
            Column("payload_base64", lambda letter: _base64(letter.record.value), ""),
            Column(
                "headers",
                lambda letter: [f"{name}={_text(value)}" for name, value in foreign(letter.record.headers)],
            ),
        ]
    return tuple(
        column
        if column.name.endswith("_base64")
        else Column(
            column.name, column.of, column.name.removesuffix("_ms"), words.get(column.name, column.text)
        )
        for column in columns
    )


_GROUPS: Final[tuple[Column[Group], ...]] = (
    Column("name", lambda group: group.name),
    Column("error_class", lambda group: group.error_class, ""),
    Column("fingerprint", lambda group: group.fingerprint, ""),
    Column("letters", lambda group: group.letters),
    Column("bytes", lambda group: group.bytes),
    Column("first_ms", lambda group: group.first_ms, "first", lambda group: instant_text(group.first_ms)),
    Column("last_ms", lambda group: group.last_ms, "last", lambda group: instant_text(group.last_ms)),
    Column("example", lambda group: group.example),
    Column("keys", lambda group: group.keys),
)


def _group_columns(by: GroupBy) -> list[Column[Group]]:
    """The columns of a summary, called by what it is grouped by."""
    name = GroupBy.REASON.value if by is GroupBy.FINGERPRINT else by.value
    shown = {"error_class", "fingerprint"} if by is GroupBy.FINGERPRINT else set()
    rest = [Column(c.name, c.of, None, c.text) if c.name in shown else c for c in _GROUPS[1:]]
    return [Column("name", _GROUPS[0].of, name), *rest]


@app.command(name="list", epilog="Example: laneway dlq list -b localhost:9092 -g reminders --group-by reason")
def list_(
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    output: options.Output = Format.TABLE,
    reason: Annotated[
        str | None, typer.Option(metavar="REASON", help="Only this reason; reads the whole topic.")
    ] = None,
    group_by: Annotated[
        GroupBy | None,
        typer.Option(
            "--group-by",
            help="Count instead of list; reads the whole topic. Of fingerprint: by reason and error.",
        ),
    ] = None,
    limit: options.Limit = 50,
    timeout: options.Timeout = 60.0,
    watch: options.Watch = None,
) -> None:
    """List the newest rejected records, newest first; never a payload or a header's value.

    STATE is open (it may be replayed), case open (a case of its key comes first), replayed, or done (its case
    has run it, or marked it done); - where nobody could read whose it is. REPLAYS counts those of this very
    letter.
    """
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    )
    settings, words = loaded.settings, asked(config, sets, bootstrap, group, sources)
    if reason is not None and group_by is not None:
        raise UsageError("--reason and --group-by do not go together", mend="give one of them")
    facts: dict[str, Cell] = {"group": settings.group}

    def look() -> Table:
        with Cluster(settings) as cluster:
            topics = {names.dlq: names.review for names in inspect_offsets.companions_of(settings, cluster)}
            if group_by is not None:
                records = inspect_topics.read(
                    settings, inspect_topics.extents(cluster, list(topics)), timeout_s=timeout
                )
                also = _likeness if group_by is GroupBy.FINGERPRINT else lambda _: None
                groups = letters.summarise(records, settings.group, _GROUPED_BY[group_by], also)
                facts["by"] = group_by.value
                return listed("dlq.groups", _group_columns(group_by), groups[:limit], output, facts)
            found = letters.newest(
                settings, cluster, list(topics), limit=limit, reason=reason, timeout_s=timeout
            )
            fates, _ = _fates(settings, cluster, found.letters, topics, timeout)
        if found.copies:
            copies = verb(
                found.copies, "copy of a record listed here is", "copies of records listed here are"
            )
            say(f"{found.copies} {copies} left out (same forward id)")
        strangers = sum(not letter.ours for letter in found.letters)
        if strangers:
            were = verb(
                strangers,
                "was not written by this group, so nothing is known of it",
                "were not written by this group, so nothing is known of them",
            )
            say(f"{strangers} of these records {were}")
        table = listed("dlq.list", _columns(_now_ms(), fates), found.letters, output, facts)
        return replace(table, lists={"next_commands": _further(found.letters, fates, words)})

    options.show(look, output, watch)


def _further(found: Sequence[DeadLetter], fates: Fates, words: Asked) -> list[str]:
    """The commands that tell more of the newest letter and of its case, or of what was not refused."""
    if not found:
        say("no record was rejected")
        return [words.line("review", "list")]
    newest = found[0]
    fate = fates.get(newest.letter_id)
    case = [words.line("review", "show", fate.case_id)] if fate is not None and fate.case_id else []
    return [words.line("dlq", "show", newest.letter_id), *case]


@app.command(epilog="Example: laneway dlq show invoices.reminders.dlq/3@17 -b localhost:9092 -g reminders")
def show(
    letter_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="TOPIC/PARTITION@OFFSET; PARTITION@OFFSET where there is one topic."
        ),
    ],
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    output: options.Output = Format.TABLE,
    show_payload: Annotated[
        bool,
        typer.Option(
            "--show-payload", help="Print key, value and header values too, escaped. They may be secret."
        ),
    ] = False,
    timeout: options.Timeout = 60.0,
) -> None:
    """Show one rejected record: why, since when, and from where."""
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    )
    settings, words = loaded.settings, asked(config, sets, bootstrap, group, sources)
    with Cluster(settings) as cluster:
        topics = {names.dlq: names.review for names in inspect_offsets.companions_of(settings, cluster)}
        place, offset = letters.parse_id(letter_id, list(topics))
        letter = letters.find(settings, cluster, place, offset, timeout_s=timeout)
        fates, replays = _fates(settings, cluster, [letter], topics, timeout)
    if not letter.ours:
        say("this record was not written by this group, so nothing is known of it but its bytes")
    if letter.stub:
        say(f"its value was too large for the topic; the original is at {letter.origin}")
    table = detailed("dlq.show", _details(fates, payload=show_payload), [letter], output)
    lists = {"commands": replays, "next_commands": _next(letter, fates.get(letter.letter_id), words)}
    emit(replace(table, lists={name: lines for name, lines in lists.items() if lines}), output)


def _fates(
    settings: Settings,
    cluster: Cluster,
    found: Sequence[DeadLetter],
    topics: Mapping[str, str],
    timeout_s: float,
) -> tuple[Fates, list[str]]:
    """What became of letters, and of one the replays. Who may not read those still sees the letters.

    Args:
        topics: by DLQ topic, the review topic beside it.
    """
    reviews = sorted({topics[each.record.topic] for each in found if each.forward_id is not None})
    if not reviews:
        return {}, []
    try:
        records = inspect_topics.read(settings, inspect_topics.extents(cluster, reviews), timeout_s=timeout_s)
        if len(found) > 1:
            return fates_of(settings, records, found), []
        both = list(records)
        answers = answers_to(settings, both, found[0].forward_id or "")
        return fates_of(settings, both, found), [answered(each) for each in answers]
    except LanewayError as error:
        say(f"whether they were dealt with is not known: {error}")
        return {}, []


def _next(letter: DeadLetter, fate: Fate | None, words: Asked) -> list[str]:
    """The commands that lead on from here: to its case while that is open, and to nothing that is over."""
    if letter.lane is None:
        return []
    if fate is not None and fate.case_id:
        return [words.line("review", "show", fate.case_id)]
    explain = words.line("lanes", "explain", letter.sequence_key or letter.effect_key or "")
    if fate is not None and fate.state != "open":
        return [explain]
    return [explain, words.line("dlq", "replay", letter.letter_id, "--reason", WHY)]


def _utf8(content: bytes | None) -> str | None:
    """The bytes as text, None when they are none; `_base64` has them then."""
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def _base64(content: bytes | None) -> str | None:
    return None if content is None or _utf8(content) is not None else base64.b64encode(content).decode()


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "backslashreplace")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
