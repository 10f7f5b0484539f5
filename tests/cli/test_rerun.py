"""What `laneway rerun` says before it asks, and how it ends."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from laneway.cli.rerun import _end, _going_on, _sentences
from laneway.cli.suggested import asked
from laneway.consumer.operations.many import Tally
from laneway.consumer.operations.rerun import Found, Plan, Records
from laneway.errors import IncompleteError, LanewayError, UnreachableError
from laneway.lanes.command import COMMAND_FORMAT, Command, Repeat

PLACE = ("invoices", 3)
WORDS = asked(None, None, "b:1", "g", None)


def queued(effect_key: str, run: int) -> Command:
    """A command of a rerun that no worker has taken yet."""
    repeat = Repeat(effect_key, 0, run)
    return Command(COMMAND_FORMAT, "c", "rerun", "ann", "why", "g", *PLACE, repeat=repeat)


def test_a_second_rerun_of_the_same_is_told_before_it_is_asked_for() -> None:
    """Who was interrupted and types no number hears that effects are about to happen twice."""
    plan = Plan(3, {(PLACE, 0): Found(PLACE, 0, "ka", "a1")}, before=Counter({2: 1}))
    said = "\n".join(_sentences(Records([]), plan, [queued("a1", 2), queued("a9", 2), queued("a1", 3)], str))
    assert "1 of them has happened once more in run 2 already; --run 2 goes on with that run" in said
    assert "1 of them is queued in run 2 too, and happens in both" in said
    assert "in run 3 too" not in said
    assert "run 3: 1 effect of 0 keys happens once more, of 0 records that fit" in said


@pytest.mark.parametrize(
    ("configured", "said"),
    [
        (False, "1 record cannot be read by the envelope known here: give the workers' -c FILE"),
        (
            True,
            "1 record is unreadable for the worker too, unless its pipeline has a decoder",
        ),
    ],
)
def test_a_record_that_nobody_reads_is_told_by_whose_rules(configured: bool, said: str) -> None:
    """Who uses the workers' file already is not sent to look for it, but to where the record is."""
    lines = _sentences(Records([], 1), Plan(1), [], partial(WORDS.unreadable, configured=configured))
    assert said in "\n".join(lines)


def test_what_a_person_has_marked_done_is_told() -> None:
    """The handler is about to do what somebody did by other means."""
    plan = Plan(1, {(PLACE, 0): Found(PLACE, 0, "ka", "a1")}, by_hand=1)
    said = "\n".join(_sentences(Records([]), plan, [], str))
    assert "1 of them was marked done by a person" in said


def test_brokers_that_go_away_in_the_middle_do_not_make_it_happen_twice() -> None:
    """What was sent is queued, so the next thing to type has the number of this run."""
    with pytest.raises(UnreachableError) as failed, _going_on(7):
        raise UnreachableError("gone", where="b:1", mend="look")
    assert failed.value.mend.startswith("look; run the same command again with --run 7, or")
    assert failed.value.exit_code == 3


def test_a_handler_that_is_broken_for_all_ends_the_rerun() -> None:
    """The command ends with 1, says how many it left, and how to go on."""
    tally = Tally(sent=110, applied=110, ended_in_case=110, stopped=True)
    with pytest.raises(LanewayError, match="890 of 1000 were not asked for") as failed:
        _end(tally, 1000, 0, 7, WORDS)
    assert failed.value.exit_code == 1
    assert "--run 7" in failed.value.mend


def test_what_could_not_be_asked_for_is_no_success() -> None:
    """Records that left the topic between the look and the sending end the command with 5, not with 0."""
    tally = Tally(sent=3, applied=3)
    _end(tally, 3, 0, 7, WORDS)
    with pytest.raises(IncompleteError, match="2 of 5 effects were not asked for") as failed:
        _end(tally, 5, 0, 7, WORDS)
    assert failed.value.exit_code == 5
    assert "--run 7" in failed.value.mend
