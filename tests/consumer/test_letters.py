"""Which dead letters are replayed, and what is expected of each before anything is sent."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from laneway.cli.replay_wish import conditions
from laneway.consumer.inspection.dead_letters import DeadLetter, letter_of
from laneway.consumer.inspection.topics import StoredRecord
from laneway.consumer.kafka.cluster import Partition, Watermarks
from laneway.consumer.operations import letters
from laneway.consumer.operations.letters import (
    Chosen,
    Fate,
    Standing,
    Told,
    Wanted,
    fates_of,
    names_of,
    sort_out,
    told_of,
    wanted_of,
)
from laneway.consumer.settings.model import Settings
from laneway.errors import UsageError
from laneway.lanes.admission import Order
from laneway.lanes.command import COMMAND_FORMAT, Command, Letter
from laneway.lanes.effect import Effect, EffectState, Replay
from laneway.lanes.forward import Forwarder, Home, ReviewNews
from laneway.lanes.lane import Hold, HoldKind, Lane
from laneway.lanes.record import Channel, Record
from laneway.store import codec

HOME = Home("reminders", "invoices", 3)
DLQ = "invoices.reminders.dlq"
PLACE = ("invoices", 3)
SETTINGS = Settings(group="reminders", sources=("invoices",), state_dir=Path("none"))


def stored(
    effect: str = "a2", *, attempt: int = 1, reason: str = "poison", offset: int = 1, value: bytes = b"{}"
) -> StoredRecord:
    """A dead letter of key "a" as the worker publishes it."""
    record = Record(Channel.SOURCE, offset, b"a", value)
    record.message_id, record.effect_key, record.lane = f"m-{effect}", effect, "ka"
    record.sequence_key, record.sequence = "a", 2
    forward = Forwarder(HOME).dead_letter(
        record,
        attempt=attempt,
        reason=reason,
        error_class="app.Poison",
        case_id="",
        now_ms=5,
        fingerprint="f1",
    )
    return StoredRecord(DLQ, 3, offset, 5, forward.key, forward.value, forward.headers)


def letter(**named: object) -> DeadLetter:
    """The same as a list has it."""
    return letter_of(stored(**named), "reminders")  # type: ignore[arg-type]


def wanted(**named: object) -> Wanted:
    """The same, chosen."""
    found = wanted_of(letter(**named))
    assert found is not None
    return found


def effect(**named: object) -> Effect:
    """What the ledger knows of effect a2, as the letter says."""
    known = Effect(EffectState.QUARANTINED, "m-a2", 1, "ka", 2, 1, b"", 1, 1, None, "poison", 5)
    return msgspec.structs.replace(known, **named)


def ledger(of: Effect | None, lane: Lane | None = None) -> Standing:
    """A ledger that knows this much."""
    fold = Standing(names_of([wanted()]))
    fold.take(codec.effect_key("other"), codec.encode(effect()))
    fold.take(codec.effect_key("a2"), None if of is None else codec.encode(of))
    fold.take(codec.lane_key("ka"), codec.encode(lane or Lane(2)))
    return fold


def expected(of: Effect | None, lane: Lane | None = None, *, late: bool = False) -> str:
    """What is said of the letter: ready, over, or why it may not."""
    known = {PLACE: ledger(of, lane)}
    found = sort_out([wanted()], Told(), known, (), SETTINGS, out_of_order=late)
    if found.ready:
        return "late" if found.late else "ready"
    return f"over: {found.over[0][1]}" if found.over else found.refused[0][1]


def test_of_an_effect_only_the_last_letter_is_meant() -> None:
    """A letter that was refused again since is not sent, also when the newer one has another reason."""
    fits = conditions(["reason=poison"], None, None)
    chosen = Chosen()
    for each in (
        letter(),
        letter(effect="a3"),
        letter(attempt=2),
        letter(effect="a3", attempt=2, reason="x"),
    ):
        chosen.take(each, fits)
    assert [(each.effect_key, each.attempt) for each in chosen.letters.values()] == [("a2", 2)]


def test_what_has_no_identity_is_counted_and_left_out() -> None:
    """Garbage, and what others wrote, has no key to go back to."""
    record = Record(Channel.SOURCE, 9, b"k", b"\xff")
    record.fault = "undecodable-json"
    forward = Forwarder(HOME).dead_letter(
        record, attempt=1, reason="undecodable-json", error_class="", case_id="", now_ms=5
    )
    garbage = letter_of(StoredRecord(DLQ, 3, 9, 5, forward.key, forward.value, forward.headers), "reminders")
    strange = letter_of(stored(), "others")
    chosen = Chosen()
    for each in (garbage, strange):
        chosen.take(each, lambda _: True)
    assert (chosen.letters, chosen.nameless) == ({}, 2)


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        (["reason=poison"], True),
        (["reason=other"], False),
        (["reason=poison", "earlier-replays=0"], True),
        (["earlier-replays=1"], False),
        (["error-class=app.Poison", "fingerprint=f1", "topic=invoices", "partition=3"], True),
        (["effect-key=a2", "message-id=m-a2", "key=a"], True),
        (["key=b"], False),
    ],
)
def test_every_condition_has_to_hold(where: list[str], fits: bool) -> None:
    """--where may be given again and again, and narrows each time."""
    assert conditions(where, None, None)(letter()) is fits


def test_key_and_fingerprint_are_conditions_too() -> None:
    """--key is the sequence key or the effect key; --fingerprint that of the error."""
    assert conditions((), "a", "f1")(letter())
    assert conditions((), "a2", None)(letter())
    assert not conditions((), "b", None)(letter())
    assert not conditions((), "a", "f2")(letter())
    for broken in ("reason", "what=1", "=x"):
        with pytest.raises(UsageError, match="is no condition"):
            conditions([broken], None, None)


@pytest.mark.parametrize(
    ("of", "lane", "said"),
    [
        (effect(), None, "ready"),
        (None, None, "knows nothing of effect 'a2'"),
        (effect(state=EffectState.SUCCEEDED), None, "over: effect 'a2' has succeeded"),
        (effect(state=EffectState.DISCARDED, reason="skip"), None, "over: effect 'a2' was given up"),
        (effect(attempt=2), None, "over: effect 'a2' was refused again since"),
        (effect(state=EffectState.IN_REVIEW, case_id="c1"), None, "in case c1"),
        (effect(replay=Replay("f", 3)), None, "was replayed 3 times"),
        (effect(), Lane(5), "moved on to sequence 5, and this one is 2"),
        (effect(), Lane(2, Hold(HoldKind.CASE, "a3", 3, 2, 1, "rejected", "c9", 0)), "case c9 of its key"),
    ],
)
def test_the_owners_rule_is_asked_beforehand(of: Effect | None, lane: Lane | None, said: str) -> None:
    """What the owner would say, by the ledger as it was read: nothing is sent that it would refuse."""
    assert said in expected(of, lane)


def test_late_ones_are_told_when_they_are_allowed() -> None:
    """--out-of-order sends them, and the preview says how many there are."""
    assert expected(effect(), Lane(5), late=True) == "late"
    assert expected(effect(), Lane(2), late=True) == "ready"


def test_without_a_ledger_the_owner_decides() -> None:
    """Where no ledger can be read everything is sent, but what is done, on its way, or stopped by a case."""
    news = wanted()
    assert sort_out([news], Told(), {}, (), SETTINGS, out_of_order=False).ready == [news]
    assert sort_out([news], Told(), {}, [news.forward_id], SETTINGS, out_of_order=False).queued == 1
    stopped = Told(cases={(PLACE, "ka"): ["c7"]})
    [(_, why)] = sort_out([news], stopped, {}, (), SETTINGS, out_of_order=False).refused
    assert "case c7 of its key is open" in why


def test_answers_tell_what_was_done() -> None:
    """An applied replay is over; a refused one may be asked for again; both commands have their answer."""
    news = wanted()
    answers = []
    for number, why in ((0, "it would run out of order"), (1, "")):
        record = Record(Channel.COMMANDS, number, None, None)
        record.command = Command(
            COMMAND_FORMAT,
            f"c{number}",
            "replay-letter",
            "ann",
            "because",
            "reminders",
            *PLACE,
            lane="ka",
            letter=news.as_letter(out_of_order=False),
        )
        made = Forwarder(HOME).answer(record, why=why, outcome="" if why else "succeeded", now_ms=9)
        answers.append(StoredRecord("r", 3, number, 9, made.key, made.value, made.headers))
    refused = told_of(SETTINGS, answers[:1], [news])
    assert (refused.answered, refused.replayed) == ({"c0"}, {})
    done = told_of(SETTINGS, answers, [news])
    assert done.answered == {"c0", "c1"}
    [(_, why)] = sort_out([news], done, {}, [news.forward_id], SETTINGS, out_of_order=False).over
    assert why == "it was replayed already, by ann: succeeded"


@pytest.mark.parametrize(
    ("resolution", "state"),
    [(None, "case open"), ("replay", "done"), ("mark-done", "done"), ("skip", "open")],
)
def test_a_letter_says_whether_it_is_dealt_with(resolution: str | None, state: str) -> None:
    """An open case comes first; once that has run the record nothing is left; skipped, it may run."""
    one = replace(letter(), case_id="rejected-1")
    news = ReviewNews(
        *(1, "opened", "rejected-1", "rejected", "poison", "reminders", *PLACE, 1, "a", 2, "a2", "m-a2", 1),
        *("look", ("replay",), True, 1, 5),
    )
    told = [news]
    if resolution is not None:
        told.append(msgspec.structs.replace(news, event="resolved", resolution=resolution, resolved_ms=9))
    records = [StoredRecord("r", 3, n, n, b"", msgspec.json.encode(each), ()) for n, each in enumerate(told)]
    fate = fates_of(SETTINGS, records, [one])[one.letter_id]
    assert fate == Fate(state, "rejected-1" if resolution is None else "", 0)


def test_arrival_is_asked_of_the_settings() -> None:
    """Where keys have no numbers, a replay needs the word for it whatever the ledger says."""
    lanes = SETTINGS.lanes.model_copy(update={"order": Order.ARRIVAL.value})
    settings = SETTINGS.model_copy(update={"lanes": lanes})
    [(_, why)] = sort_out(
        [wanted()], Told(), {PLACE: ledger(effect())}, (), settings, out_of_order=False
    ).refused
    assert "no numbers" in why


def test_memory_follows_the_letters_without_their_bytes() -> None:
    """Two hundred letters of 1 MB fit, and none of their values is kept."""

    def topic() -> Iterator[StoredRecord]:
        for number in range(200):
            yield stored(effect=f"e{number}", offset=number, value=bytes(1_000_000))

    chosen = Chosen()
    tracemalloc.start()
    try:
        for each in topic():
            chosen.take(letter_of(each, "reminders"), lambda _: True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(chosen.letters) == 200
    assert peak < 10_000_000


class Gone:
    """A cluster whose source topic has nothing any more."""

    def partition_counts(self, names: Sequence[str]) -> Mapping[str, int]:
        """Four of each."""
        return dict.fromkeys(names, 4)

    def watermarks(self, partitions: Sequence[Partition]) -> Mapping[Partition, Watermarks]:
        """All deleted."""
        return {place: Watermarks(9, 9) for place in partitions}


def test_a_corrected_value_keeps_the_key_and_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a letter whose own value was too large and is gone: only the value is another one."""
    whole = stored()
    headers = (*whole.headers, ("tenant", b"acme"), ("laneway-stub", b"value-too-large"))
    record = replace(whole, value=None, headers=headers)
    bare = wanted_of(letter_of(record, "reminders"))
    assert bare is not None
    assert bare.letter.stub
    monkeypatch.setattr(letters, "read", lambda *_, **__: iter([record]))

    def given(*, corrected: bool) -> Letter | None:
        found = letters.with_bytes(
            SETTINGS, Gone(), [bare], out_of_order=True, timeout_s=1, corrected=corrected
        )
        return next(iter(found))[1]

    assert given(corrected=False) is None
    found = given(corrected=True)
    assert found is not None
    assert (found.key, found.value, found.headers) == (b"a", None, (("tenant", b"acme"),))
    assert found.out_of_order
