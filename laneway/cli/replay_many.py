"""Many dead letters replayed: those that fit a condition, with progress and a final count.

A run that ends in the middle, however it ends, is run again: what was replayed by then is over, and what is
queued is left to the worker that finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from laneway.cli import options
from laneway.cli.columns import Column, counted, listed, verb
from laneway.cli.output import Cell, Format, Table, emit, escaped, say
from laneway.cli.replay_wish import NAMELESS, TOLD, Wish, looked_at
from laneway.cli.suggested import Asked
from laneway.consumer.inspection import offsets as inspect_offsets
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.operations import letters
from laneway.consumer.operations.commands import Commands
from laneway.consumer.operations.letters import Condition, Sorted, Wanted
from laneway.consumer.operations.many import Tally, send_all
from laneway.consumer.settings.model import Settings
from laneway.errors import IncompleteError, RefusedError
from laneway.lanes.command import Command
from laneway.lanes.forward import CommandAnswer


def replay_many(
    settings: Settings,
    cluster: Cluster,
    fits: Condition,
    wish: Wish,
    words: Asked,
    *,
    limit: int | None,
    rate: float,
) -> None:
    """Replay all that fit.

    Raises:
        RefusedError: the workers refused some, or the bytes of some are gone.
        IncompleteError: some are without an answer.
    """
    topics = [names.dlq for names in inspect_offsets.companions_of(settings, cluster)]
    all_of_them = letters.choose(settings, cluster, topics, fits, timeout_s=wish.timeout_s)
    wanted = list(all_of_them.letters.values())
    found = looked_at(settings, cluster, wanted, wish)[0] if wanted else Sorted()
    oldest = sorted(found.ready, key=lambda each: (each.letter.failed_ms or 0, each.source, each.offset))
    # Of one key in the order in which its records were published.
    chosen = sorted(oldest[:limit], key=lambda each: (each.offset, each.source))
    counts = {
        "fit": len(wanted) + all_of_them.nameless,
        "nameless": all_of_them.nameless,
        "over": len(found.over),
        "queued_before": found.queued,
        "not_permitted": len(found.refused),
        "out_of_order": found.late,
        "chosen": len(chosen),
    }
    facts: dict[str, Cell] = {"group": settings.group, **counts}
    say(_plan(counts, found))
    gone: list[Wanted] = []
    if wish.dry_run or not chosen:
        _tell(Tally(), facts, gone, {}, wish.form)
        _end_many(Tally(), 0 if wish.dry_run else found.queued, gone, words)
        return
    options.confirm(f"replay {counted(len(chosen), 'dead letter')}?", yes=wish.yes)

    def commands_for() -> Iterator[Command]:
        for each, letter in letters.with_bytes(
            settings, cluster, chosen, out_of_order=wish.out_of_order, timeout_s=wish.timeout_s
        ):
            if letter is None:
                gone.append(each)
            else:
                yield letters.command_of(each, letter, wish.actor, wish.reason, settings.group)

    with Commands(settings, cluster, {each.topic for each in chosen}) as commands:
        tally = send_all(
            commands,
            commands_for(),
            rate=rate,
            wait_s=wish.wait_s,
            most_cases=settings.lanes.max_open_cases_per_partition,
            told=lambda now: say(f"{now.sent} of {len(chosen)} sent, {_counts(now)}"),
        )
    _tell(tally, facts, gone, {each.forward_id: each.letter.letter_id for each in chosen}, wish.form)
    _end_many(tally, found.queued, gone, words)


def _plan(counts: Mapping[str, int], found: Sorted) -> str:
    fit, chosen = counts["fit"], counts["chosen"]
    lines = [
        f"{counted(fit, 'dead letter')} {verb(fit, 'fits', 'fit')}; {chosen} of them "
        f"{verb(chosen, 'is', 'are')} replayed, the oldest first"
    ]
    if nameless := counts["nameless"]:
        lines.append(f"{nameless} {verb(nameless, 'is', 'are')} left out: {NAMELESS}")
    if over := counts["over"]:
        lines.append(
            f"{over} {verb(over, 'is', 'are')} over: replayed already, or {verb(over, 'its', 'their')} "
            "effect has come to its end since"
        )
    if before := counts["queued_before"]:
        has = verb(before, "has a command queued already and is", "have a command queued already and are")
        lines.append(f"{before} {has} left to it")
    if late := counts["out_of_order"]:
        runs = verb(
            late,
            "RUNS OUT OF ORDER: later records of its key",
            "RUN OUT OF ORDER: later records of their keys",
        )
        lines.append(f"{late} {runs} have run")
    if found.refused:
        lines.append(f"{len(found.refused)} may not be replayed now:")
        lines += [f"  {wanted.letter.letter_id}: {why}" for wanted, why in found.refused[:TOLD]]
        if len(found.refused) > TOLD:
            lines.append(f"  ... and {len(found.refused) - TOLD} more")
    return "\n".join(escaped(line) for line in lines)


def _counts(tally: Tally) -> str:
    ends = "".join(f", {count} {outcome}" for outcome, count in sorted(tally.outcomes.items()))
    return f"{tally.applied} applied{ends}, {tally.refused} refused, {tally.unanswered} without an answer yet"


def _tell(
    tally: Tally, facts: Mapping[str, Cell], gone: Sequence[Wanted], ids: Mapping[str, str], form: Format
) -> None:
    counts: dict[str, Cell] = {
        **facts,
        "sent": tally.sent,
        "applied": tally.applied,
        **{name: tally.outcomes[name] for name in ("succeeded", "quarantined", "retry_wait", "in_review")},
        "refused": tally.refused,
        "gone": len(gone),
        "unanswered": tally.unanswered,
    }
    columns: tuple[Column[CommandAnswer], ...] = (
        Column("letter", lambda answer: ids.get(answer.letter)),
        Column("result", lambda answer: answer.event),
        Column("outcome", lambda answer: answer.outcome or None),
        Column("next_case", lambda answer: answer.next_case or None),
        Column("why", lambda answer: answer.why or None),
    )
    if form is not Format.TABLE:
        emit(listed("dlq.replay-many", columns, tally.notable, form, counts), form)
        return
    rows = [(name.replace("_", "-"), value) for name, value in counts.items()]
    emit(Table("dlq.replay-many", ("field", "value"), rows), form)
    for answer in tally.notable:
        new = f", in case {answer.next_case}" if answer.next_case else ""
        say(f"{ids.get(answer.letter)}: {answer.why or answer.outcome}{new}")


def _end_many(tally: Tally, queued_before: int, gone: Sequence[Wanted], words: Asked) -> None:
    left = tally.unanswered + queued_before
    if left:
        raise IncompleteError(
            f"{counted(left, 'command')} queued and not answered yet; each is applied once, by the worker "
            "that owns its partition",
            mend=f"run the same command again to go on; {words.line('offsets', 'show')} tells who owns what",
        )
    if tally.stopped:
        raise RefusedError(
            f"stopped after {counted(tally.ended_in_case, 'new case')} (lanes.max_open_cases_per_partition); "
            "the rest was not sent",
            mend=f"see what they ended in: {words.line('review', 'list')}; once that is mended, run the same "
            "command again",
        )
    if tally.refused:
        raise RefusedError(f"{tally.refused} of {tally.sent} were refused: those stay in the DLQ as they are")
    if gone:
        raise RefusedError(
            f"the bytes of {counted(len(gone), 'dead letter')} are nowhere any more",
            where=", ".join(each.letter.letter_id for each in gone[:TOLD]),
            mend="replay each with --with FILE, or have it published again",
        )
