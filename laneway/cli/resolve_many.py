"""Many cases decided alike: those that fit a condition, the oldest first, with progress and a final count.

A run that ends in the middle, however it ends, is run again: what is resolved by then is not open any more,
and what is queued is left to the worker that finds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from laneway.cli import options
from laneway.cli.columns import Column, counted, listed, verb
from laneway.cli.output import Cell, Format, Table, emit, say
from laneway.cli.review import read_cases
from laneway.cli.suggested import Asked
from laneway.consumer.inspection import offsets as inspect_offsets
from laneway.consumer.inspection.cases import CaseBook
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.operations.commands import Commands, queued
from laneway.consumer.operations.many import Tally, send_all
from laneway.consumer.settings.model import Settings
from laneway.errors import IncompleteError, RefusedError, UsageError
from laneway.lanes.case import REASONS
from laneway.lanes.command import Command
from laneway.lanes.forward import CommandAnswer, ReviewNews

Condition = Callable[[ReviewNews], bool]

_FIELDS: Final[dict[str, Callable[[ReviewNews], str | None]]] = {
    "reason": lambda news: news.reason,
    "key": lambda news: news.sequence_key,
    "effect-key": lambda news: news.effect_key,
    "cause": lambda news: news.cause,
    "fingerprint": lambda news: news.fingerprint,
    "topic": lambda news: news.topic,
    "partition": lambda news: str(news.partition),
}

_NOTABLE: Final[tuple[Column[CommandAnswer], ...]] = (
    Column("case", lambda answer: answer.case_id),
    Column("result", lambda answer: answer.event),
    Column("outcome", lambda answer: answer.outcome or None),
    Column("next_case", lambda answer: answer.next_case or None),
    Column("why", lambda answer: answer.why or None),
)

_OUTCOMES: Final = ("succeeded", "retry_wait", "quarantined", "in_review")


def conditions(where: Sequence[str], key: str | None) -> Condition:
    """Which cases are meant; every condition has to hold.

    Raises:
        UsageError: one is not NAME=VALUE, or of an unknown name.
    """
    wanted: list[tuple[str, str]] = []
    for each in where:
        name, equals, value = each.partition("=")
        if not equals or name not in _FIELDS:
            raise UsageError(
                f"{each!r} is no condition", where="--where", mend=f"write NAME=VALUE: {', '.join(_FIELDS)}"
            )
        if name == "reason" and value not in REASONS:
            raise UsageError(
                f"{value!r} is no reason of a case", mend=f"there are {', '.join(sorted(REASONS))}"
            )
        wanted.append((name, value))

    def fits(news: ReviewNews) -> bool:
        if key is not None and key not in (news.sequence_key, news.effect_key):
            return False
        return all(_FIELDS[name](news) == value for name, value in wanted)

    return fits


def resolve_many(
    settings: Settings,
    fits: Condition,
    command_for: Callable[[ReviewNews], Command],
    action: str,
    words: Asked,
    *,
    limit: int | None,
    rate: float,
    wait_s: float,
    timeout_s: float,
    form: Format,
    yes: bool,
    dry_run: bool,
) -> None:
    """Decide all open cases that fit.

    Raises:
        RefusedError: none of them permits the action, or the workers refused some.
        IncompleteError: some are without an answer.
    """
    opened = read_cases(settings, CaseBook(settings.group, wanted=fits), timeout_s).open()
    permitted = [news for news in opened if action in news.actions]
    if opened and not permitted:
        others = sorted({name for news in opened for name in news.actions})
        raise RefusedError(
            f"none of {counted(len(opened), 'case')} permits {action}; "
            f"permitted: {', '.join(others) or 'nothing'}"
        )
    with Cluster(settings) as cluster:
        sources = inspect_offsets.sources_of(settings, cluster)
        ids = {news.case_id for news in permitted}
        before = queued(
            settings, cluster, sources, timeout_s=timeout_s, wanted=lambda command: command.case_id in ids
        )
        taken = {command.case_id for command, _ in before.values()}
        chosen = [news for news in permitted if news.case_id not in taken][:limit]
        counts = {
            "open": len(opened),
            "not_permitted": len(opened) - len(permitted),
            "queued_before": len(taken),
            "chosen": len(chosen),
        }
        facts: dict[str, Cell] = {"group": settings.group, "action": action, **counts}
        say("\n".join([_plan(action, counts), *_checks(chosen)]))
        if dry_run or not chosen:
            _tell(Tally(), facts, form)
            _refuse_rest(Tally(), len(taken) if not dry_run else 0, words)
            return
        options.confirm(f"{action} {counted(len(chosen), 'case')}?", yes=yes)
        with Commands(settings, cluster, {news.topic for news in chosen}) as commands:
            tally = send_all(
                commands,
                map(command_for, chosen),
                rate=rate,
                wait_s=wait_s,
                told=lambda now: say(f"{now.sent} of {len(chosen)} sent, {_counts(now)}"),
            )
    _tell(tally, facts, form)
    _refuse_rest(tally, len(taken), words)


def _plan(action: str, counts: Mapping[str, int]) -> str:
    fit, others, before = counts["open"], counts["not_permitted"], counts["queued_before"]
    lines = [
        f"{counted(fit, 'open case')} {verb(fit, 'fits', 'fit')}; {action} for {counts['chosen']} of them, "
        "the oldest first"
    ]
    if others:
        lines.append(
            f"{others} {verb(others, 'does not permit it and is', 'do not permit it and are')} left alone"
        )
    if before:
        has = verb(before, "has a command queued already and is", "have a command queued already and are")
        lines.append(f"{before} {has} left to it")
    return "\n".join(lines)


def _checks(chosen: Sequence[ReviewNews]) -> list[str]:
    """The required check of each reason that is to be decided: many cases are many checks, not one."""
    first = {news.reason: news for news in reversed(chosen)}
    counts = Counter(news.reason for news in chosen)
    return [
        f"check first for each of {counted(counts[reason], 'case')} {reason}; "
        f"of the oldest: {news.required_check}"
        for reason, news in first.items()
    ]


def _counts(tally: Tally) -> str:
    return f"{tally.applied} applied, {tally.refused} refused, {tally.unanswered} without an answer yet"


def _tell(tally: Tally, facts: dict[str, Cell], form: Format) -> None:
    outcomes = {name: tally.outcomes[name] for name in _OUTCOMES}
    counts: dict[str, Cell] = {
        **facts,
        "sent": tally.sent,
        "applied": tally.applied,
        "refused": tally.refused,
        **outcomes,
        "ended_in_case": tally.ended_in_case,
        "unanswered": tally.unanswered,
    }
    if form is Format.TABLE:
        # Most actions run nothing, so only what came about is told.
        rows = [
            (name.replace("_", "-"), value) for name, value in counts.items() if value or name not in outcomes
        ]
        emit(Table("review.resolve-many", ("field", "value"), rows), form)
        for answer in tally.notable:
            new = f", in case {answer.next_case}" if answer.next_case else ""
            say(f"case {answer.case_id}: {answer.why or answer.outcome}{new}")
        return
    emit(listed("review.resolve-many", _NOTABLE, tally.notable, form, counts), form)


def _refuse_rest(tally: Tally, queued_before: int, words: Asked) -> None:
    left = tally.unanswered + queued_before
    if left:
        raise IncompleteError(
            f"{counted(left, 'command')} queued and not answered yet; each is applied once, by the worker "
            "that owns its partition, which first lets a delivery in flight of that key end (a slow handler)",
            mend=f"{words.line('review', 'list')}   (shows what is still open); run the same command again "
            "to go on",
        )
    if tally.refused:
        raise RefusedError(
            f"{tally.refused} of {tally.sent} were refused: those cases are as they were, or somebody was "
            "first"
        )
