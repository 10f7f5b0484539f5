"""`laneway review`: the cases a person must decide, read from the review topics.

What decides them, `resolve`, has a file of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Final

import typer

from laneway.cli import options
from laneway.cli.columns import Column, age_text, counted, detailed, instant_text, listed
from laneway.cli.output import Cell, Format, Table, emit, say
from laneway.cli.suggested import WHY, Asked, asked
from laneway.consumer.inspection import offsets as inspect_offsets
from laneway.consumer.inspection import topics as inspect_topics
from laneway.consumer.inspection.cases import CaseBook
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.operations.commands import queued
from laneway.consumer.settings.model import Settings
from laneway.errors import LanewayError, RefusedError, UsageError
from laneway.lanes.case import REASONS
from laneway.lanes.command import Command
from laneway.lanes.forward import CommandAnswer, ReviewNews

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Look at the cases that wait for a person, and decide."
)

# What a person does next, by reason, in the words of the case. Holding or not is said beside it.
_NEXT: Final[dict[str, str]] = {
    "sequence-gap": "Ask the publisher of key {key} for sequence {sequence}. If it is late, let it come: "
    "it is taken by itself, and this case closes as predecessor-arrived. If it was never sent, have it sent.",
    "sequence-stale": "The record at {place} was not run, and nothing was done under its effect key. If it "
    "is still wanted, have it published with the next number of key {key}.",
    "effect-conflict": "The record at {place} was not run. Compare its payload with the one that made the "
    "effect: `{lookup}` tells its position.",
    "outcome-unknown": "Look at the target for effect {effect} before anything else: running it blindly "
    "may do it twice.",
    "attempts-exhausted": "Mend what refused it ({cause}). Nothing of effect {effect} is recorded as done.",
    "unclassified-failure": "Find {cause}, fingerprint {fingerprint}, in the worker's standard error, and "
    "look at the target: the handler may have done a part of effect {effect}.",
    "review-requested": "Do the check that the handler asked for.",
    "rejected": "`{dead_letters}` has the record of {place} and says why it was refused. Decide whether "
    "key {key} can go on without it.",
    "unknown-contract-version": "Deploy a release that accepts this version, or correct the publisher.",
}

_WHOLE_RECORD: Final = (
    " The file of replay-with is the whole record as a publisher would send it, envelope included."
)


def _place(news: ReviewNews) -> str:
    return f"{news.topic}/{news.partition}@{news.offset}"


def _state(news: ReviewNews) -> str:
    return "open" if news.resolution is None else "resolved"


def _columns(now_ms: int, *, resolved: bool) -> tuple[Column[ReviewNews], ...]:
    """The fields of a case; a list leaves out what only `show` needs."""
    hidden: str | None = "" if not resolved else None
    return (
        Column("case", lambda news: news.case_id),
        Column("state", _state, hidden),
        Column("reason", lambda news: news.reason),
        Column("cause", lambda news: news.cause or None),
        Column("key", lambda news: news.sequence_key),
        Column("sequence", lambda news: news.sequence if news.sequence_key is not None else None),
        Column("effect_key", lambda news: news.effect_key or None, ""),
        Column("message_id", lambda news: news.message_id or None, ""),
        Column("attempts", lambda news: news.attempts),
        Column("opened_ms", lambda news: news.opened_ms, "opened", lambda news: _ago(news.opened_ms, now_ms)),
        Column("topic", lambda news: news.topic),
        Column("partition", lambda news: news.partition),
        Column("offset", lambda news: news.offset),
        Column("holds", lambda news: news.holds),
        Column("note", lambda news: news.note or None, ""),
        Column("fingerprint", lambda news: news.fingerprint or None, ""),
        Column("required_check", lambda news: news.required_check, ""),
        Column("actions", lambda news: news.actions, ""),
        Column("version", lambda news: news.version, ""),
        Column("resolution", lambda news: news.resolution, hidden),
        Column("resolved_by", lambda news: news.actor or None, hidden),
        Column("said", lambda news: news.said or None, hidden),
        Column("command", lambda news: news.command_id or None, ""),
        Column(
            "resolved_ms",
            lambda news: news.resolved_ms,
            "resolved" if resolved else "",
            lambda news: _ago(news.resolved_ms, now_ms),
        ),
    )


def _details(now_ms: int, asked_for: Asked) -> tuple[Column[ReviewNews], ...]:
    """Every field of one case, and what comes next."""
    words: dict[str, Callable[[ReviewNews], str | None]] = {
        "opened_ms": lambda news: _instant_and_age(news.opened_ms, now_ms),
        "resolved_ms": lambda news: _instant_and_age(news.resolved_ms, now_ms),
    }
    listed_ones = (
        Column(column.name, column.of, column.name.removesuffix("_ms"), words.get(column.name))
        for column in _columns(now_ms, resolved=True)
    )
    return (*listed_ones, Column("next", lambda news: next_step(news, asked_for)))


@app.command(
    name="list", epilog="Example: laneway review list -b localhost:9092 -g reminders --reason sequence-gap"
)
def list_(
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    output: options.Output = Format.TABLE,
    reason: Annotated[str | None, typer.Option(metavar="REASON", help="Only cases of this reason.")] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only cases of this sequence key, or effect key.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Resolved cases too; at most --limit of them, the latest.")
    ] = False,
    limit: options.Limit = 100,
    timeout: options.Timeout = 60.0,
    watch: options.Watch = None,
) -> None:
    """List open cases, the one that waits longest first; `review show CASE` tells all of one."""
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    )
    if reason is not None and reason not in REASONS:
        raise UsageError(f"{reason!r} is no reason of a case", mend=f"there are {', '.join(sorted(REASONS))}")

    words = asked(config, sets, bootstrap, group, sources)

    def wanted(news: ReviewNews) -> bool:
        return (reason is None or news.reason == reason) and (
            key is None or key in (news.sequence_key, news.effect_key)
        )

    def look() -> Table:
        book = read_cases(
            loaded.settings,
            CaseBook(loaded.settings.group, wanted=wanted, keep_resolved=limit if everything else 0),
            timeout,
        )
        cases = book.open()
        shown = (cases + book.resolved())[:limit]
        if len(shown) < len(cases):
            say(f"{len(shown)} of {len(cases)} open cases; --limit {len(cases)} shows the others")
        facts: dict[str, Cell] = {"group": loaded.settings.group, "open": len(cases)}
        columns = _columns(_now_ms(), resolved=everything)
        table = listed("review.list", columns, shown, output, facts)
        return replace(table, lists={"next_commands": _further(cases, words)})

    options.show(look, output, watch)


def _further(cases: Sequence[ReviewNews], words: Asked) -> list[str]:
    """The commands that tell more of the first case, or of what waits for no person; or decide like cases."""
    if not cases:
        say("no case is open")
        return [words.line("lanes", "list"), words.line("offsets", "show")]
    found = [words.line("review", "show", cases[0].case_id)]
    alike = Counter((each.reason, each.cause, each.fingerprint) for each in cases if _may_replay(each))
    for (reason, cause, fingerprint), count in alike.most_common(1):
        if count > 1:
            say(f"{count} of {len(cases)} open cases have one cause: {reason} ({cause})")
            many = ("--where", f"reason={reason}", "--where", f"fingerprint={fingerprint}")
            found.append(words.line("review", "resolve", *many, "--action", "replay", "--reason", WHY))
    return found


def _may_replay(news: ReviewNews) -> bool:
    return bool(news.fingerprint) and "replay" in news.actions


@app.command(epilog="Example: laneway review show sequence-gap-0123456789ab -b localhost:9092 -g reminders")
def show(
    case_id: Annotated[str, typer.Argument(metavar="CASE", help="Its id, as `review list` prints it.")],
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    output: options.Output = Format.TABLE,
    timeout: options.Timeout = 60.0,
) -> None:
    """Show one case, open or resolved: what it is about, what to check, what may be done, what is next."""
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    )
    words = asked(config, sets, bootstrap, group, sources)
    news, answers = find_case(loaded.settings, case_id, words, timeout)
    waiting = _queued(loaded.settings, news, timeout) if news.resolution is None else []
    table = detailed("review.show", _details(_now_ms(), words), [news], output)
    lists = {"commands": [*map(answered, answers), *map(_waiting, waiting)]}
    if news.resolution is None:
        lists["next_commands"] = words.resolving(news.case_id, news.actions, news.sequence + 1)
    emit(replace(table, lists={name: lines for name, lines in lists.items() if lines}), output)


def find_case(
    settings: Settings, case_id: str, words: Asked, timeout_s: float
) -> tuple[ReviewNews, list[CommandAnswer]]:
    """One case, open or resolved, and the answers to commands about it.

    Raises:
        RefusedError: nothing is known of it.
    """
    wanted = CaseBook(
        settings.group,
        wanted=lambda news: news.case_id == case_id,
        keep_resolved=1,
        answers_to=case_id,
    )
    book = read_cases(settings, wanted, timeout_s)
    found = book.open() or book.resolved()
    if not found:
        raise RefusedError(
            f"there is no case {case_id!r}",
            where=f"group {settings.group}",
            mend=f"`{words.line('review', 'list', '--all')}` shows those there are",
        )
    return found[0], sorted(book.answers.values(), key=lambda answer: answer.answered_ms)


def answered(answer: CommandAnswer) -> str:
    """What became of a command, in a line."""
    ended = f", its delivery: {answer.outcome}" if answer.outcome else ""
    further = f", in case {answer.next_case}" if answer.next_case else ""
    refused = f": {answer.why}" if answer.why else ""
    return (
        f"{instant_text(answer.answered_ms)} {answer.action} by {answer.actor} ({answer.said}): "
        f"{answer.event}{ended}{further}{refused}"
    )


def _queued(settings: Settings, news: ReviewNews, timeout_s: float) -> list[Command]:
    """Commands about a case that nobody has answered yet. Who may not read those still sees the case."""
    try:
        with Cluster(settings) as cluster:
            found = queued(
                settings,
                cluster,
                [news.topic],
                timeout_s=timeout_s,
                wanted=lambda command: command.case_id == news.case_id,
            )
    except LanewayError as error:
        say(f"whether a command is queued for it is not known: {error}")
        return []
    return [command for command, _ in found.values()]


def _waiting(command: Command) -> str:
    return (
        f"queued: {command.action} by {command.actor} ({command.reason}); its partition's worker applies it"
    )


def next_step(news: ReviewNews, words: Asked) -> str:
    """What a person does now, in plain words."""
    if news.resolution is not None:
        by = f" by {news.actor}: {news.said}" if news.actor else ""
        return f"Nothing: it closed as {news.resolution}{by}."
    advice = _NEXT.get(news.reason, "Answer the required check.").format(
        key=repr(news.sequence_key),
        sequence=news.sequence,
        effect=news.effect_key,
        place=_place(news),
        cause=f"{news.cause or 'the cause'}: {news.note}" if news.note else news.cause or "the cause",
        fingerprint=news.fingerprint or "none",
        lookup=words.line("ledger", "lookup", news.effect_key),
        dead_letters=words.line("dlq", "list"),
    )
    waits = (
        "Until the case closes, later records of this key are parked; other keys go on."
        if news.holds
        else "Nothing waits for it."
    )
    corrected = _WHOLE_RECORD if "replay-with" in news.actions else ""
    return f"{advice} {waits}{corrected}"


def read_cases(settings: Settings, book: CaseBook, timeout_s: float) -> CaseBook:
    """Fold the review topics of the group into a book."""
    with Cluster(settings) as cluster:
        names = inspect_offsets.companions_of(settings, cluster)
        spans = inspect_topics.extents(cluster, dict.fromkeys(each.review for each in names))
        book.take_all(inspect_topics.read(settings, spans, timeout_s=timeout_s))
    if book.unreadable:
        say(
            f"{counted(book.unreadable, 'record')} of the review topics passed over: "
            "not written by this group, or by another release"
        )
    return book


def _ago(at_ms: int | None, now_ms: int) -> str | None:
    return None if at_ms is None else age_text(now_ms - at_ms)


def _instant_and_age(at_ms: int | None, now_ms: int) -> str | None:
    return None if at_ms is None else f"{instant_text(at_ms)} ({_ago(at_ms, now_ms)} ago)"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
