"""`laneway review resolve`: a person's decision about a case, sent to the worker that owns its key.

The case is shown before anything is asked, with what the action will do in plain words. The worker decides
whether it may be done; what cannot be is refused here already, without a command.
"""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from laneway.cli import options, resolve_many
from laneway.cli.columns import Column, age_text, instant_text, listed
from laneway.cli.compared import differing_lines
from laneway.cli.output import Format, emit, escaped, say
from laneway.cli.review import find_case
from laneway.cli.suggested import WHY, Asked, asked
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.operations import corrected
from laneway.consumer.operations.commands import Commands, about_case
from laneway.consumer.settings.model import Settings
from laneway.errors import IncompleteError, RefusedError, UsageError
from laneway.lanes.case import REASONS
from laneway.lanes.command import ACTIONS, Command
from laneway.lanes.forward import CommandAnswer, ReviewNews

MAX_FILE_BYTES: Final = 64 * 1024 * 1024

_CASE_ACTIONS: Final = tuple(name for name, rule in ACTIONS.items() if rule.needs_case)

# What an action does, in plain words.
_WILL: Final[dict[str, str]] = {
    "replay": "The record at {place} runs as it is, with a new budget of retries. If it succeeds the "
    "key goes on behind it; if not, a new case says why.",
    "replay-with": "The record at {place} runs with the value of your file in the place of its own, with a "
    "new budget of retries. The replaced value is kept in the DLQ.",
    "run-again": "The record at {place} runs again with effect key {effect}. If it happened the first time, "
    "the target has to tell by that key.",
    "mark-done": "Effect {effect} is recorded as succeeded and does not run; later copies of it are "
    "duplicates.",
    "skip": "The record at {place} does not run: effect {effect} is given up and recorded as discarded.",
    "discard": "The record at {place} does not run: effect {effect} is given up and recorded as discarded.",
    "set-next": "The key waits for sequence {value} from then on. What lies before it does not run, and "
    "opens a case if it comes late.",
}
# Where the effect is not the record's own to end, or has its end (`Resolving`), it is told as it is.
_BY_ANOTHER: Final = (
    "Only the record at {place} is dropped: it does not run. Effect {effect} stays as another record made it."
)
_STAYS_REFUSED: Final = (
    "The record at {place} does not run and stays in the DLQ: effect {effect} stays quarantined."
)
_STALE: Final = (
    "Only the record at {place} is dropped: it does not run. What is known of effect {effect}, if anything, "
    "stays as it is, so a copy of the record opens a case again."
)
_RUNS_BESIDE: Final = " What another record made of effect {effect} does not keep it from running."
_OF_REASON: Final[dict[tuple[str, str], str]] = {
    ("sequence-gap", "skip"): "Nothing runs for sequence {sequence}. If its record comes late it does not "
    "run either: it opens a case.",
    ("effect-conflict", "replay"): _WILL["replay"] + _RUNS_BESIDE,
    ("effect-conflict", "replay-with"): _WILL["replay-with"] + _RUNS_BESIDE,
    ("effect-conflict", "skip"): _BY_ANOTHER,
    ("effect-conflict", "discard"): _BY_ANOTHER,
    ("effect-conflict", "mark-done"): "Only the case closes: the record at {place} does not run, and effect "
    "{effect} stays as another record made it.",
    ("sequence-stale", "discard"): _STALE,
    ("sequence-stale", "mark-done"): "The record at {place} does not run. If nothing is known of effect "
    "{effect} it is recorded as succeeded, and later copies of it are duplicates; else it stays as it is.",
    ("rejected", "skip"): _STAYS_REFUSED,
    ("rejected", "discard"): _STAYS_REFUSED,
}
STAYS_QUEUED: Final = (
    "it stays queued for the worker that owns the partition, which first lets a delivery of this key "
    "in flight end (a slow handler), and then applies it, once"
)
_ENDS: Final = frozenset({"skip", "discard", "mark-done"})
_MOVES_ON: Final = " The key goes on behind sequence {sequence}."
_MOVES_ON_NUMBERLESS: Final = " What waits behind it goes on."

Wait = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", min=0.0, help="How long to wait for the worker's answer."),
]
Actor = Annotated[
    str | None, typer.Option("--actor", metavar="NAME", help="Who does it.  [default: user@host]")
]
Said = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the case.")]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the reader asked for, once it is known to make sense."""

    action: str
    actor: str
    reason: str
    sequence: int | None = None
    result_key: str | None = None
    value: bytes | None = None

    def for_case(self, news: ReviewNews) -> Command:
        """The command, for a case as it was seen."""
        return about_case(
            news,
            self.action,
            self.actor,
            self.reason,
            sequence=self.sequence,
            result_key=self.result_key,
            value=self.value,
        )


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a command. `offset` is where it lies in the commands topic, once it does."""

    command: Command
    result: str
    offset: int | None = None
    answer: CommandAnswer | None = None


COLUMNS: Final[tuple[Column[Done], ...]] = (
    Column("case", lambda done: done.command.case_id),
    Column("action", lambda done: done.command.action),
    Column("result", lambda done: done.result),
    Column("outcome", lambda done: (done.answer.outcome or None) if done.answer else None),
    Column("next_case", lambda done: (done.answer.next_case or None) if done.answer else None),
    Column("why", lambda done: (done.answer.why or None) if done.answer else None, ""),
    Column("actor", lambda done: done.command.actor, ""),
    Column("said", lambda done: done.command.reason, ""),
    Column("command", lambda done: done.command.command_id, ""),
    Column("topic", lambda done: done.command.topic, ""),
    Column("partition", lambda done: done.command.partition, ""),
    Column("offset", lambda done: done.offset, ""),
    Column("answered_ms", lambda done: done.answer.answered_ms if done.answer else None, ""),
)


def resolve(
    action: Annotated[
        str, typer.Option("--action", metavar="ACTION", help="What to do; `review show` says.")
    ],
    reason: Said,
    case_id: Annotated[
        str | None, typer.Argument(metavar="CASE", help="Its id; none with --where or --key.")
    ] = None,
    what: Annotated[
        str | None, typer.Argument(metavar="FILE|N", help="FILE of replay-with, N of set-next.")
    ] = None,
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    actor: Actor = None,
    result_key: Annotated[
        str | None, typer.Option("--result-key", metavar="K", help="Of mark-done: where the result lies.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="NAME=VALUE", help="Many cases: all open ones that fit; repeatable."),
    ] = None,
    key: options.KeyOfMany = None,
    limit: options.AtMost = None,
    rate: options.Rate = 100.0,
    wait: Wait = 10.0,
    show_payload: options.ShowDifference = False,
    output: options.Output = Format.TABLE,
    yes: options.Yes = False,
    dry_run: options.DryRun = False,
    timeout: options.Timeout = 60.0,
) -> None:
    """Decide a case: replay, replay-with FILE, run-again, mark-done, skip, discard or set-next N.

    The worker that owns the key applies it once, and answers: exit 0 applied, 4 refused, 5 nobody answered
    yet (it stays queued). Many at once with --where (reason, key, effect-key, cause, fingerprint, topic,
    partition) or --key; run again, it goes on with what is still open.
    """
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    )
    words = asked(config, sets, bootstrap, group, sources)
    many = bool(where) or key is not None
    if many and case_id is not None:
        raise UsageError("one case is named and many are asked for", mend="give CASE, or --where and --key")
    if not many and case_id is None:
        raise UsageError("no case is named", mend="give its id, or --where NAME=VALUE for many")
    wanted = _wanted(action, reason, actor, what, result_key, case_id=case_id, words=words)
    if many:
        resolve_many.resolve_many(
            loaded.settings,
            resolve_many.conditions(where or (), key),
            wanted.for_case,
            wanted.action,
            words,
            limit=limit,
            rate=rate,
            wait_s=wait,
            timeout_s=timeout,
            form=output,
            yes=yes,
            dry_run=dry_run,
        )
        return
    assert case_id is not None
    _resolve_one(
        loaded.settings,
        case_id,
        wanted,
        words,
        wait_s=wait,
        timeout_s=timeout,
        payload=show_payload,
        form=output,
        yes=yes,
        dry_run=dry_run,
    )


def _wanted(
    action: str,
    reason: str,
    actor: str | None,
    what: str | None,
    result_key: str | None,
    *,
    case_id: str | None,
    words: Asked,
) -> Wanted:
    if action not in _CASE_ACTIONS:
        raise UsageError(f"{action!r} is no action", mend=f"there are {', '.join(_CASE_ACTIONS)}")
    takes = {"replay-with": "a FILE", "set-next": "a number N"}.get(action)
    if case_id is None and takes:
        raise UsageError(
            f"{action} takes {takes}, which is not the same for many cases", mend="give one CASE"
        )
    if takes and what is None:
        assert case_id is not None, "refused above"
        which = (case_id, "--action", action, takes.rpartition(" ")[2])
        whole = words.line("review", "resolve", *which, "--reason", reason)
        raise UsageError(f"{action} needs {takes}", mend=f"write it behind the action: {whole}")
    if what is not None and not takes:
        raise UsageError(f"{action} takes nothing besides the case, and {what!r} is one thing more")
    if result_key is not None and action != "mark-done":
        raise UsageError("--result-key belongs to mark-done", mend="leave it out")
    return Wanted(
        action,
        text_of("--actor", actor) if actor is not None else default_actor(),
        reason_of(reason),
        sequence=_number(what) if action == "set-next" else None,
        result_key=None if result_key is None else text_of("--result-key", result_key),
        value=content_of(what) if action == "replay-with" else None,
    )


def default_actor() -> str:
    """Who runs this command, as far as the machine knows."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def text_of(option: str, text: str) -> str:
    """Words that can be kept.

    Raises:
        UsageError: they are empty, or not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("it is not UTF-8", where=option) from None
    if not text.strip():
        raise UsageError("it is empty", where=option, mend="whoever looks later wants to know")
    return text


def reason_of(text: str) -> str:
    """Why somebody does it, in words of their own.

    Raises:
        UsageError: there are none, or they are the WHY of a suggested line.
    """
    if text.strip() == WHY:
        raise UsageError(
            "write a reason", where="--reason", mend=f"{WHY} in a suggested line stands for your own words"
        )
    return text_of("--reason", text)


def _number(text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise UsageError(f"{text!r} is no sequence", mend="give a number, 0 or more")
    return int(text)


def content_of(name: str | None) -> bytes:
    """A corrected value.

    Raises:
        UsageError: the file cannot be read, or is too large.
    """
    path = Path(name or "")
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"it is larger than {MAX_FILE_BYTES >> 20} MiB", where=str(path))
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the corrected value cannot be read ({error.strerror or error})", where=str(path)
        ) from error


# --- one ---------------------------------------------------------------------------------------


def _resolve_one(
    settings: Settings,
    case_id: str,
    wanted: Wanted,
    words: Asked,
    *,
    wait_s: float,
    timeout_s: float,
    payload: bool,
    form: Format,
    yes: bool,
    dry_run: bool,
) -> None:
    news, _ = find_case(settings, case_id, words, timeout_s)
    _refuse(news, wanted.action)
    command = wanted.for_case(news)
    say(described(news, wanted))
    with Cluster(settings) as cluster:
        if wanted.value is not None:
            found = _compared(settings, cluster, news, wanted.value, words, timeout_s, payload=payload)
            say("\n".join(found))
        if dry_run:
            emit(listed("review.resolve", COLUMNS, [Done(command, "would-send")], form), form)
            return
        options.confirm(f"{wanted.action} {case_id}?", yes=yes)
        with Commands(settings, cluster, [news.topic]) as commands:
            commands.send([command])
            offset = commands.sent[command.command_id]
            answer = next(iter(commands.answers(wait_s)), None)
    result = "queued" if answer is None else answer.event
    facts = {"group": settings.group}
    emit(listed("review.resolve", COLUMNS, [Done(command, result, offset, answer)], form, facts), form)
    if answer is None:
        raise IncompleteError(
            f"nobody answered within {wait_s:g} s; {STAYS_QUEUED}",
            where=f"case {case_id}",
            mend=f"{words.line('review', 'show', case_id)}   (tells when it is done; "
            f"{words.line('offsets', 'show')} tells who owns the partition)",
        )
    if answer.why:
        raise RefusedError(
            answer.why, where=f"case {case_id}", mend=f"{words.line('review', 'show', case_id)}"
        )
    if answer.next_case:
        say(f"its delivery ended in a new case: {words.line('review', 'show', answer.next_case)}")


def _refuse(news: ReviewNews, action: str) -> None:
    """What its owner would refuse anyway.

    Raises:
        RefusedError: the case is resolved, or its reason does not permit the action.
    """
    if news.resolution is not None:
        by = f" by {news.actor} ({news.said})" if news.actor else ""
        raise RefusedError(
            f"it is resolved: {news.resolution}{by}, {instant_text(news.resolved_ms)}",
            where=f"case {news.case_id}",
        )
    if action not in news.actions:
        held = "" if news.holds else ", which holds nothing here"
        permitted = ", ".join(news.actions) or "none"
        raise RefusedError(
            f"{action} is not permitted for {news.reason}{held}; permitted: {permitted}",
            where=f"case {news.case_id}",
            mend=f"required check: {news.required_check}" if news.reason in REASONS else "",
        )


def described(news: ReviewNews, wanted: Wanted) -> str:
    """The case, its required check, and what the action will do."""
    key = "without a key" if news.sequence_key is None else f"key {news.sequence_key!r}"
    number = "" if news.sequence_key is None else f", sequence {news.sequence}"
    cause = f" ({news.cause})" if news.cause not in ("", news.reason) else ""
    lines = [
        f"case {news.case_id}: {news.reason}{cause}, {key}{number}, {news.topic}/{news.partition}"
        f"@{news.offset}, open for {age_text(time.time_ns() // 1_000_000 - news.opened_ms)}",
        f"check first: {news.required_check}",
        f"{wanted.action}: {will(news, wanted)}",
    ]
    return "\n".join(escaped(line) for line in lines)


def will(news: ReviewNews, wanted: Wanted) -> str:
    """What the action will do, in plain words."""
    text = _OF_REASON.get((news.reason, wanted.action), _WILL[wanted.action])
    if news.holds and wanted.action in _ENDS:
        text += _MOVES_ON if news.sequence_key is not None else _MOVES_ON_NUMBERLESS
    return text.format(
        place=f"{news.topic}/{news.partition}@{news.offset}",
        effect=news.effect_key,
        sequence=news.sequence,
        value=wanted.sequence,
    )


def original_line(words: Asked, news: ReviewNews) -> str:
    """The command that shows the record of a case as it was published."""
    return words.line("lanes", "explain", news.sequence_key or news.effect_key, "--show-payload")


def _compared(
    settings: Settings,
    cluster: Cluster,
    news: ReviewNews,
    value: bytes,
    words: Asked,
    timeout_s: float,
    *,
    payload: bool,
) -> Sequence[str]:
    """What a corrected value changes.

    Raises:
        RefusedError: it cannot stand for the record of the case.
    """
    original = corrected.published(settings, cluster, news, timeout_s=timeout_s)
    if original is None:
        return [
            "the record is not in its topic any more, so nothing can be compared; the worker judges the file"
        ]
    if corrected.refusal(settings, news, original, None):
        # Then these are not the worker's rules: it has a decoder, or an envelope that was not given here.
        return ["the envelope known here does not read the record itself (give -c FILE?); the worker judges"]
    if why := corrected.refusal(settings, news, original, value):
        raise RefusedError(
            why,
            where=f"case {news.case_id}",
            mend="the file has to be the whole record as a publisher would send it, envelope included, "
            f"not the payload alone; {original_line(words, news)} shows the original",
        )
    return differing_lines(original.value, value, payload=payload)
