"""What `review resolve`, `pause` and `resume` refuse before anybody is asked, and what they say they do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from laneway.cli import replay_many, resolve, resolve_many
from laneway.cli.main import main
from laneway.cli.output import Format
from laneway.cli.resolve import Wanted, described, will
from laneway.cli.resolve_many import conditions
from laneway.cli.suggested import asked
from laneway.consumer.operations import corrected
from laneway.consumer.operations.letters import Sorted
from laneway.consumer.operations.many import Tally
from laneway.consumer.settings.load import load
from laneway.errors import RefusedError, UsageError
from laneway.lanes.case import REASONS, Case
from laneway.lanes.command import ACTIONS
from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.forward import ReviewNews
from laneway.lanes.lane import Hold, HoldKind, Lane, Raw
from laneway.lanes.record import Channel, Record
from laneway.lanes.resolving import Resolving

RESOLVE = ("review", "resolve")
WHERE = ("-b", "127.0.0.1:1", "-g", "g")


def news(reason: str = "rejected", *, key: str | None = "k", holds: bool = True) -> ReviewNews:
    """An open case."""
    rule = REASONS[reason]
    return ReviewNews(
        format=1,
        event="opened",
        case_id="c-1",
        reason=reason,
        cause="Boom",
        group="g",
        topic="invoices",
        partition=3,
        offset=17,
        sequence_key=key,
        sequence=4,
        effect_key="e/4",
        message_id="m",
        attempts=1,
        required_check="Is it {right}?",
        actions=rule.holding if holds else rule.loose,
        holds=holds,
        version=1,
        opened_ms=1,
        fingerprint="f00",
    )


@pytest.mark.parametrize(
    ("words", "because"),
    [
        ((*RESOLVE, "c", "--action", "skip", *WHERE), "--reason"),
        ((*RESOLVE, "c", "--reason", "r", *WHERE), "--action"),
        ((*RESOLVE, "c", "--action", "jump", "--reason", "r", *WHERE), "'jump' is no action"),
        ((*RESOLVE, "c", "--action", "pause", "--reason", "r", *WHERE), "'pause' is no action"),
        ((*RESOLVE, "c", "--action", "skip", "--reason", " ", *WHERE), "--reason: it is empty"),
        ((*RESOLVE, "c", "--action", "skip", "--reason", "WHY", *WHERE), "--reason: write a reason"),
        (("pause", "--reason", "WHY", *WHERE), "--reason: write a reason"),
        ((*RESOLVE, "c", "--action", "skip", "--reason", "\udcff", *WHERE), "--reason: it is not UTF-8"),
        ((*RESOLVE, "--action", "skip", "--reason", "r", *WHERE), "no case is named"),
        ((*RESOLVE, "c", "--key", "k", "--action", "skip", "--reason", "r", *WHERE), "one case is named"),
        ((*RESOLVE, "c", "--action", "set-next", "--reason", "r", *WHERE), "needs a number"),
        (
            (*RESOLVE, "c", "--action", "set-next", "--reason", "r", *WHERE),
            "laneway review resolve c --action set-next N --reason r -b",
        ),
        ((*RESOLVE, "c", "x", "--action", "set-next", "--reason", "r", *WHERE), "'x' is no sequence"),
        ((*RESOLVE, "c", "5", "--action", "skip", "--reason", "r", *WHERE), "'5' is one thing more"),
        ((*RESOLVE, "c", "--action", "replay-with", "--reason", "r", *WHERE), "needs a FILE"),
        (
            (*RESOLVE, "c", "none.json", "--action", "replay-with", "--reason", "r", *WHERE),
            "none.json: the corrected value cannot be read (No such file",
        ),
        (
            (*RESOLVE, "c", "--action", "skip", "--result-key", "x", "--reason", "r", *WHERE),
            "--result-key belongs to mark-done",
        ),
        ((*RESOLVE, "--key", "k", "--action", "set-next", "--reason", "r", *WHERE), "not the same for many"),
        ((*RESOLVE, "--where", "x=1", "--action", "skip", "--reason", "r", *WHERE), "'x=1' is no condition"),
        (
            (*RESOLVE, "--where", "reason=x", "--action", "skip", "--reason", "r", *WHERE),
            "'x' is no reason of a case",
        ),
        (("pause", *WHERE), "--reason"),
        (("pause", "--lane", "a", "--effect", "b", "--reason", "r", *WHERE), "name two things"),
        (("resume", "--lane", "", "--reason", "r", *WHERE), "--lane: it is empty"),
        (("pause", "--key", "a", "--effect", "b", "--reason", "r", *WHERE), "name two things"),
        (("lanes", "list", "--older", "soon", *WHERE), "'soon' is not a duration"),
    ],
)
def test_a_command_that_makes_no_sense_is_a_usage_error(
    words: Sequence[str],
    because: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit 2 with what is wrong, before any broker is asked (none is there)."""
    monkeypatch.chdir(tmp_path)
    assert main(list(words)) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert because in err


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("action", [name for name, rule in ACTIONS.items() if rule.needs_case])
def test_every_action_says_what_it_will_do(action: str, holds: bool) -> None:
    """S18: before it is sent, each action is told in plain words with the names of this very case."""
    text = will(news(holds=holds), Wanted(action, "a", "r", sequence=9))
    assert "{" not in text
    assert any(name in text for name in ("invoices/3@17", "e/4", "sequence 4", "sequence 9"))
    if action in ("mark-done", "discard"):
        assert ("goes on behind sequence 4" in text) is holds


def left_by(reason: str) -> Effect | None:
    """The effect as a record at offset 17 leaves it when it opens a case of this reason."""
    if reason in ("sequence-gap", "sequence-stale"):
        return None
    state, offset = {
        "effect-conflict": (EffectState.SUCCEEDED, 3),
        "rejected": (EffectState.QUARANTINED, 17),
    }.get(reason, (EffectState.IN_REVIEW, 17))
    return Effect(state, "m", offset, "kk", 4, 1, b"", 1, 1, None, "", 1)


@pytest.mark.parametrize(
    ("reason", "holds", "action"),
    [
        (reason, holds, action)
        for reason, rule in REASONS.items()
        for holds, actions in ((True, rule.holding), (False, rule.loose))
        for action in actions
        if not ACTIONS[action].runs
    ],
)
def test_what_is_said_of_an_effect_is_what_becomes_of_it(reason: str, holds: bool, action: str) -> None:
    """S18: an effect is called succeeded or discarded only where the worker's own rule makes it so."""
    seen = news(reason, holds=holds)
    wanted = Wanted(action, "a", "r", sequence=9 if action == "set-next" else None)
    effect_key = "" if reason == "sequence-gap" else "e/4"
    case = Case("c-1", reason, "Boom", holds, "kk", 4, effect_key, "m", 17, 1, "?", 1)
    hold = Hold(HoldKind.CASE, effect_key, 4, 17, 1, reason, "c-1", 1) if holds else None
    changed = Resolving._effect_after(
        Record(Channel.COMMANDS, 0, None, None),
        wanted.for_case(seen),
        case,
        left_by(reason),
        Lane(3, hold),
        2,
    )
    text = will(seen, wanted)
    after = None if changed is None else changed.state
    assert ("recorded as discarded" in text) is (after is EffectState.DISCARDED)
    assert ("recorded as succeeded" in text) is (after is EffectState.SUCCEEDED)
    assert ("stays" in text) is ((changed is None and bool(effect_key)) or reason == "sequence-stale")


def test_a_record_without_a_key_is_not_spoken_of_as_one() -> None:
    """Where there is no sequence key, no sequence is named."""
    text = described(news(key=None), Wanted("skip", "a", "r"))
    assert "without a key" in text
    assert "equence" not in text


def test_a_cause_that_is_the_reason_is_said_once() -> None:
    """The cause stands behind the reason only where it adds something."""
    conflict = msgspec.structs.replace(news("effect-conflict"), cause="effect-conflict")
    assert described(conflict, Wanted("skip", "a", "r")).count("effect-conflict") == 1
    assert "rejected (Boom)" in described(news(), Wanted("skip", "a", "r"))


@pytest.mark.parametrize(("key", "named"), [("two words", "'two words'"), (None, "e/4")])
def test_a_file_that_cannot_stand_for_the_record_is_told_what_it_must_be(
    key: str | None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A payload without its envelope is refused with what the file must be and where the original stands."""
    raw = Raw(None, b'{"messageId": "m"}', (), 1)
    monkeypatch.setattr(corrected, "published", lambda *_, **__: raw)
    monkeypatch.setattr(
        corrected, "refusal", lambda _s, _n, _o, value: "" if value is None else "it has no effect key"
    )
    settings = load(flags={"group": "g", "sources": ["invoices"]}, env={}, inspect=True).settings
    words = asked(None, None, "h:1", "g", None)
    with pytest.raises(RefusedError) as refused:
        resolve._compared(settings, None, news(key=key), b"{}", words, 1, payload=False)  # type: ignore[arg-type]
    assert "the whole record as a publisher would send it, envelope included" in refused.value.mend
    assert f"laneway lanes explain {named} --show-payload -b h:1 -g g" in refused.value.mend


def test_what_strangers_wrote_cannot_act_on_the_terminal() -> None:
    """S18: the case as it is shown before the question holds no control character of its key."""
    text = described(news(key="k\x1b[2J\u202e"), Wanted("skip", "a", "r"))
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "{right}" in text


def test_conditions_all_have_to_hold() -> None:
    """--where narrows with each one; --key means a sequence key or an effect key."""
    assert conditions(["reason=rejected", "partition=3", "cause=Boom"], None)(news())
    assert not conditions(["reason=rejected", "partition=4"], None)(news())
    assert conditions([], "e/4")(news())
    assert conditions([], "k")(news())
    assert not conditions(["fingerprint=f00"], "other")(news())
    with pytest.raises(UsageError, match="is no condition"):
        conditions(["reason"], None)


def test_what_is_planned_for_many_agrees_in_number() -> None:
    """One case or letter is told of as one, and several as several."""
    counts = {"open": 1, "chosen": 1, "not_permitted": 1, "queued_before": 2}
    assert resolve_many._plan("replay", counts).splitlines() == [
        "1 open case fits; replay for 1 of them, the oldest first",
        "1 does not permit it and is left alone",
        "2 have a command queued already and are left to it",
    ]
    some = {"fit": 2, "chosen": 1, "nameless": 0, "over": 1, "queued_before": 0, "out_of_order": 1}
    assert replay_many._plan(some, Sorted()).splitlines() == [
        "2 dead letters fit; 1 of them is replayed, the oldest first",
        "1 is over: replayed already, or its effect has come to its end since",
        "1 RUNS OUT OF ORDER: later records of its key have run",
    ]


def test_how_many_deliveries_wait_for_a_retry_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A decided record that failed for now is neither done nor in a case: the count says where it went."""
    tally = Tally(sent=3, applied=3, outcomes=Counter(retry_wait=2, succeeded=1))
    resolve_many._tell(tally, {}, Format.TABLE)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["retry-wait", "2"] in lines
    assert not any("quarantined" in line for line in lines), "most actions run nothing"
    resolve_many._tell(tally, {}, Format.JSON)
    assert json.loads(capsys.readouterr().out)["quarantined"] == 0
