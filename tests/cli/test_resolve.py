"""What `review resolve`, `pause` and `resume` refuse before anybody is asked, and what they say they do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from laneway.cli.main import main
from laneway.cli.resolve import Wanted, described, will
from laneway.cli.resolve_many import conditions
from laneway.errors import UsageError
from laneway.lanes.case import REASONS
from laneway.lanes.command import ACTIONS
from laneway.lanes.forward import ReviewNews

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
        ((*RESOLVE, "c", "--action", "skip", "--reason", "\udcff", *WHERE), "--reason: it is not UTF-8"),
        ((*RESOLVE, "--action", "skip", "--reason", "r", *WHERE), "no case is named"),
        ((*RESOLVE, "c", "--key", "k", "--action", "skip", "--reason", "r", *WHERE), "one case is named"),
        ((*RESOLVE, "c", "--action", "set-next", "--reason", "r", *WHERE), "needs a number"),
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


def test_a_record_without_a_key_is_not_spoken_of_as_one() -> None:
    """Where there is no sequence key, no sequence is named."""
    text = described(news(key=None), Wanted("skip", "a", "r"))
    assert "without a key" in text
    assert "equence" not in text


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
