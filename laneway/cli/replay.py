"""`laneway dlq replay`: dead letters back to the lanes of their own group, one or many.

What is known of each is shown before anything is asked: whether it is over, in whose way it would be, and
whether it would run out of order. The worker that owns the key decides. Many have a file of their own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from laneway.cli import options
from laneway.cli.columns import Column, age_text, listed
from laneway.cli.compared import differing_lines
from laneway.cli.output import Format, emit, escaped, say
from laneway.cli.replay_many import replay_many
from laneway.cli.replay_wish import NAMELESS, TOLD, Wish, conditions, ledgers_of, looked_at
from laneway.cli.resolve import (
    STAYS_QUEUED,
    Actor,
    Wait,
    content_of,
    default_actor,
    reason_of,
    text_of,
)
from laneway.cli.suggested import Asked, asked
from laneway.consumer.inspection import offsets as inspect_offsets
from laneway.consumer.inspection.dead_letters import DeadLetter, find, is_id, parse_id
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.operations import corrected, letters
from laneway.consumer.operations.commands import Commands
from laneway.consumer.operations.letters import Sorted, Standing, Wanted
from laneway.consumer.settings.model import Settings
from laneway.errors import IncompleteError, RefusedError, UsageError
from laneway.lanes.admission import Order
from laneway.lanes.dead_letter import comes_late
from laneway.lanes.forward import CommandAnswer
from laneway.lanes.lane import NEW_LANE, Raw

_WILL: Final = (
    "replay: the record of {origin} runs once more in its key, with {what} and a new budget of retries. "
    "What comes for its key waits until it has ended. Refused again, it comes back to the DLQ and holds "
    "nothing; a failure of another kind opens a case, as of any record."
)


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a replay. `offset` is where its command lies, once it does."""

    wanted: Wanted
    wish: Wish
    result: str
    command_id: str | None = None
    offset: int | None = None
    answer: CommandAnswer | None = None


_COLUMNS: Final[tuple[Column[Done], ...]] = (
    Column("letter", lambda done: done.wanted.letter.letter_id),
    Column("key", lambda done: done.wanted.letter.sequence_key),
    Column("sequence", lambda done: done.wanted.letter.sequence),
    Column("effect_key", lambda done: done.wanted.effect_key),
    Column("result", lambda done: done.result),
    Column("outcome", lambda done: (done.answer.outcome or None) if done.answer else None),
    Column("next_case", lambda done: (done.answer.next_case or None) if done.answer else None),
    Column("replays", lambda done: done.answer.replays if done.answer else done.wanted.letter.replays),
    Column("why", lambda done: (done.answer.why or None) if done.answer else None, ""),
    Column("origin", lambda done: done.wanted.letter.origin, ""),
    Column("actor", lambda done: done.wish.actor, ""),
    Column("said", lambda done: done.wish.reason, ""),
    Column("command", lambda done: done.command_id, ""),
    Column("offset", lambda done: done.offset, ""),
)


def replay(
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the replay.")],
    which: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="TOPIC/PARTITION@OFFSET as `dlq list` has it, or a message id."),
    ] = None,
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    actor: Actor = None,
    corrected_by: Annotated[
        Path | None,
        typer.Option(
            "--with", metavar="FILE", help="One: run this value in the place of its own; envelope included."
        ),
    ] = None,
    out_of_order: Annotated[
        bool, typer.Option("--out-of-order", help="Also where later records of the key have run.")
    ] = False,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="NAME=VALUE", help="Many: all that fit; repeatable."),
    ] = None,
    fingerprint: Annotated[
        str | None, typer.Option("--fingerprint", metavar="F", help="Many: those of this error.")
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
    """Run rejected records again, in the lanes of this group; nothing is written to the source topic.

    The worker that owns the key applies it once, and answers: exit 0 applied, 4 refused, 5 nobody answered
    yet (it stays queued). Many at once with --where (reason, error-class, fingerprint, key, effect-key,
    message-id, topic, partition, earlier-replays), --fingerprint or --key; run again, it goes on.
    A letter is refused while a case of its key is open, when later records of its key have run (unless
    --out-of-order), and after lanes.max_replays replays.
    """
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True
    )
    many = bool(where) or key is not None or fingerprint is not None
    if many and which is not None:
        raise UsageError("one dead letter is named and many are asked for", mend="give ID, or conditions")
    if not many and which is None:
        raise UsageError("no dead letter is named", mend="give its ID, or --where NAME=VALUE for many")
    if many and corrected_by is not None:
        raise UsageError("--with is the value of one record", mend="give one ID")
    wish = Wish(
        text_of("--actor", actor) if actor is not None else default_actor(),
        reason_of(reason),
        out_of_order,
        None if corrected_by is None else content_of(str(corrected_by)),
        wait,
        timeout,
        output,
        yes,
        dry_run,
        show_payload,
        lambda wanted: ledgers_of(config, sets, bootstrap, group, sources or (), wanted, timeout),
    )
    words = asked(config, sets, bootstrap, group, sources)
    with Cluster(loaded.settings) as cluster:
        if which is not None:
            _replay_one(loaded.settings, cluster, which, wish, words)
        else:
            fits = conditions(where or (), key, fingerprint)
            replay_many(loaded.settings, cluster, fits, wish, words, limit=limit, rate=rate)


def _replay_one(settings: Settings, cluster: Cluster, which: str, wish: Wish, words: Asked) -> None:
    wanted = _named(settings, cluster, which, wish, words)
    where = f"dead letter {wanted.letter.letter_id}"
    found, ledgers = looked_at(settings, cluster, [wanted], wish)
    _refuse_one(found, where, words)
    say(_described(wanted, ledgers.get(wanted.source), settings, wish))
    original = next(
        letters.with_bytes(
            settings,
            cluster,
            [wanted],
            out_of_order=wish.out_of_order,
            timeout_s=wish.timeout_s,
            corrected=wish.value is not None,
        )
    )[1]
    is_whole = original is not None and not (wanted.letter.stub and original.value is None)
    if not is_whole and wish.value is None:
        raise RefusedError(
            "its value was too large for the DLQ, and the source topic has the record no more",
            where=where,
            mend="give the value with --with FILE",
        )
    letter = original or wanted.as_letter(out_of_order=wish.out_of_order)
    if wish.value is not None:
        raw = Raw(letter.key, letter.value, letter.headers, letter.timestamp_ms)
        if is_whole:
            _compare(settings, wanted, raw, wish, words)
        letter = msgspec.structs.replace(letter, value=None)
    if wish.dry_run:
        _emit([Done(wanted, wish, "would-send")], wish)
        return
    options.confirm(f"replay {wanted.letter.letter_id}?", yes=wish.yes)
    command = letters.command_of(wanted, letter, wish.actor, wish.reason, settings.group, wish.value)
    with Commands(settings, cluster, [wanted.topic]) as commands:
        commands.send([command])
        offset = commands.sent[command.command_id]
        answer = next(iter(commands.answers(wish.wait_s)), None)
    result = "queued" if answer is None else answer.event
    _emit([Done(wanted, wish, result, command.command_id, offset, answer)], wish)
    _end_one(wanted, answer, wish, words)


def _named(settings: Settings, cluster: Cluster, which: str, wish: Wish, words: Asked) -> Wanted:
    """The one letter that is meant.

    Raises:
        RefusedError: there is none, there are several, or it cannot be replayed.
    """
    topics = [names.dlq for names in inspect_offsets.companions_of(settings, cluster)]
    if is_id(which):
        letter = find(settings, cluster, *parse_id(which, topics), timeout_s=wish.timeout_s)
        wanted = letters.wanted_of(letter)
        if wanted is None:
            raise _no_lane(letter, words)
        return wanted
    chosen = letters.choose(
        settings, cluster, topics, lambda each: each.message_id == which, timeout_s=wish.timeout_s
    )
    found = list(chosen.letters.values())
    if len(found) != 1:
        what = "no dead letter has" if not found else f"{len(found)} dead letters have"
        ids = "".join(f"; {each.letter.letter_id}" for each in found[:TOLD])
        raise RefusedError(
            f"{what} the message id {which!r}{ids}",
            where=f"group {settings.group}",
            mend=f"{words.line('dlq', 'list')}   (shows their ids)",
        )
    return found[0]


def _no_lane(letter: DeadLetter, words: Asked) -> RefusedError:
    where = f"dead letter {letter.letter_id}"
    if not letter.ours:
        return RefusedError("it was not written by this group, so nothing is known of it", where=where)
    source = letter.origin_topic or "its source topic"
    shown = words.line("dlq", "show", letter.letter_id, "--show-payload")
    return RefusedError(
        f"{NAMELESS} ({letter.reason})",
        where=where,
        mend=f"have its publisher send it again to {source}, corrected: it is taken in its place, and a gap "
        f"that waits for it closes by itself; {shown} shows its bytes",
    )


def _described(wanted: Wanted, ledger: Standing | None, settings: Settings, wish: Wish) -> str:
    """The letter, what a replay of it will do, and where its key stands."""
    letter = wanted.letter
    key = "without a key" if letter.sequence_key is None else f"key {letter.sequence_key!r}"
    number = "" if letter.sequence_key is None else f", sequence {letter.sequence}"
    cause = f" ({letter.error_class})" if letter.error_class else ""
    ago = "" if letter.failed_ms is None else f", refused {age_text(_now_ms() - letter.failed_ms)} ago"
    before = f", replayed {letter.replays} of {settings.lanes.max_replays} times" if letter.replays else ""
    what = "the value of your file in the place of its own" if wish.value is not None else "the value it had"
    lines = [
        f"dead letter {letter.letter_id}: {letter.reason}{cause}, {key}{number}, effect "
        f"{wanted.effect_key!r}, from {letter.origin}{ago}{before}",
        _WILL.format(origin=letter.origin, what=what),
        f"order: {_order(wanted, ledger, settings)}",
    ]
    return "\n".join(escaped(line) for line in lines)


def _order(wanted: Wanted, ledger: Standing | None, settings: Settings) -> str:
    if wanted.letter.sequence_key is None:
        return "it has no key, so nothing comes before or after it"
    if ledger is None:
        return (
            "where its key stands cannot be read from here; the worker refuses it when later records of its "
            "key have run, unless --out-of-order is given"
        )
    lane = ledger.lanes.get(wanted.lane, NEW_LANE)
    late = comes_late(wanted.lane, wanted.letter.sequence or 0, lane, Order(settings.lanes.order))
    if late:
        return f"OUT OF ORDER: {late}. What ran behind it does not run again"
    return "nothing of its key has run behind it, so the order is kept"


def _refuse_one(found: Sorted, where: str, words: Asked) -> None:
    """What its owner would refuse anyway.

    Raises:
        RefusedError: it says why.
        IncompleteError: a command for it is queued.
    """
    if found.queued:
        raise IncompleteError(f"a replay of it is queued already; {STAYS_QUEUED}", where=where)
    for wanted, why in found.over:
        shown = words.line("dlq", "show", wanted.letter.letter_id)
        raise RefusedError(why, where=where, mend=f"{shown}   (tells who replayed it, and what became of it)")
    for wanted, why in found.refused:
        raise RefusedError(why, where=where, mend=_mend(wanted, why, words))


def _mend(wanted: Wanted, why: str, words: Asked) -> str:
    if case := re.search(r"\bcase (\S+) of its key", why):
        return words.line("review", "show", case.group(1))
    if "out of order" in why:
        return "give --out-of-order if that does no harm at the target; what ran behind it does not run again"
    if "lanes.max_replays" in why:
        return (
            "mend what refuses it and raise lanes.max_replays, or have the record published again, corrected"
        )
    return words.line("lanes", "explain", wanted.letter.sequence_key or wanted.effect_key)


def _compare(settings: Settings, wanted: Wanted, original: Raw, wish: Wish, words: Asked) -> None:
    """Say what a corrected value changes.

    Raises:
        RefusedError: it cannot stand for the record.
    """
    assert wish.value is not None
    if corrected.refusal_for_letter(settings, wanted, original, None):
        # Then these are not the worker's rules: it has a decoder, or an envelope that was not given here.
        say("the envelope known here does not read the record itself (give -c FILE?); the worker judges")
        return
    if why := corrected.refusal_for_letter(settings, wanted, original, wish.value):
        shown = words.line("dlq", "show", wanted.letter.letter_id, "--show-payload")
        raise RefusedError(
            why,
            where=f"dead letter {wanted.letter.letter_id}",
            mend="the file has to be the whole record as a publisher would send it, envelope included, "
            f"not the payload alone; {shown} shows the original",
        )
    say("\n".join(differing_lines(original.value, wish.value, payload=wish.payload)))


def _emit(rows: Sequence[Done], wish: Wish) -> None:
    emit(listed("dlq.replay", _COLUMNS, rows, wish.form), wish.form)


def _end_one(wanted: Wanted, answer: CommandAnswer | None, wish: Wish, words: Asked) -> None:
    letter_id = wanted.letter.letter_id
    if answer is None:
        raise IncompleteError(
            f"nobody answered within {wish.wait_s:g} s; {STAYS_QUEUED}",
            where=f"dead letter {letter_id}",
            mend=f"{words.line('dlq', 'show', letter_id)}   (tells when it is done; "
            f"{words.line('offsets', 'show')} tells who owns the partition)",
        )
    if answer.why:
        raise RefusedError(
            answer.why, where=f"dead letter {letter_id}", mend=_mend(wanted, answer.why, words)
        )
    if answer.next_case:
        say(f"its delivery ended in a new case: {words.line('review', 'show', answer.next_case)}")
    elif answer.outcome == "quarantined":
        say(f"it was refused again and is in the DLQ anew: {words.line('dlq', 'list')}")
    elif answer.outcome == "retry_wait":
        say(f"it failed and waits for its next attempt: {words.line('retry', 'list')}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
