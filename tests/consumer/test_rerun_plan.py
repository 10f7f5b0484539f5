"""Which effects a rerun asks for, in which order, and what it leaves alone: on records in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from laneway.consumer.kafka.cluster import Partition, Watermarks
from laneway.consumer.operations import rerun
from laneway.consumer.operations.rerun import Found, Plan, Records
from laneway.consumer.settings.load import load
from laneway.errors import RefusedError
from laneway.lanes.effect import Effect, EffectState
from tests.consumer.test_foreseen import PLACE, Log, done

STATES = EffectState
LOG = Log(("a", 1), ("a", 3), ("b", 1), ("a", 2), ("a", 2), ("a", 4))


def known(**changed: tuple[EffectState, int]) -> dict[Partition, dict[str, Effect]]:
    """What the ledger knows of the log: all has succeeded, but for what is given as (state, run)."""
    effects = {}
    for offset, about in enumerate(LOG.records):
        assert about is not None
        name = f"{about[0]}{about[1]}"
        if name not in effects:
            effects[name] = done(*about, offset)[1]
    for name, (state, run) in changed.items():
        effects[name] = msgspec.structs.replace(effects[name], state=state, run=run)
    return {PLACE: effects}


def records() -> Records:
    """All of the log."""
    found = []
    for offset, about in enumerate(LOG.records):
        assert about is not None
        found.append(Found(PLACE, offset, f"k{about[0]}", f"{about[0]}{about[1]}"))
    return Records(found)


def chain(plan: Plan) -> dict[str, str]:
    """Each effect that is sent, and the one before it."""
    return {found.effect_key: plan.behind[at] for at, found in plan.chosen.items()}


def test_the_chain_follows_the_numbers() -> None:
    """Of a key the next number stands behind the one before, wherever they lie in the log; a copy is left."""
    plan = rerun.plan(records(), known(), 1, by_number=True)
    assert chain(plan) == {"a1": "", "a2": "a1", "a3": "a2", "a4": "a3", "b1": ""}
    assert (plan.left, plan.keys) == ({rerun.COPY: 1}, 2)
    arrived = rerun.plan(records(), known(), 1, by_number=False)
    assert chain(arrived) == {"a1": "", "a3": "a1", "a2": "a3", "a4": "a2", "b1": ""}


@pytest.mark.parametrize(
    ("state", "run", "word", "before_a4"),
    [
        (STATES.SUCCEEDED, 2, rerun.DONE, "a3"),
        (STATES.QUARANTINED, 2, rerun.ENDED, "a3"),
        (STATES.IN_REVIEW, 2, rerun.OPENED, "a3"),
        (STATES.QUARANTINED, 0, rerun.NOT_SUCCEEDED, "a2"),
        (STATES.IN_REVIEW, 0, rerun.OPENED, "a2"),
        (STATES.SUCCEEDED, 3, rerun.LATER, "a2"),
    ],
)
def test_what_is_left_alone(state: EffectState, run: int, word: str, before_a4: str) -> None:
    """Each is told by a word; what this run has done, or failed at, stays the one before the next."""
    plan = rerun.plan(records(), known(a3=(state, run)), 2, by_number=True)
    assert plan.left[word] == 1
    assert chain(plan)["a4"] == before_a4
    assert "a3" not in chain(plan)


def test_what_was_corrected_by_hand_is_left_alone() -> None:
    """The topic has another payload than the effect came of; what follows of its key goes on without it."""
    found = [replace(each, payload_hash=b"as published") for each in records().found]
    effects = known()
    for name, effect in effects[PLACE].items():
        made_of = b"corrected" if name == "a3" else b"as published"
        effects[PLACE][name] = msgspec.structs.replace(effect, payload_hash=made_of)
    plan = rerun.plan(Records(found), effects, 1, by_number=True)
    assert chain(plan) == {"a1": "", "a2": "a1", "a4": "a2", "b1": ""}
    assert plan.left[rerun.CORRECTED] == 1


def test_what_a_person_has_done_is_told() -> None:
    """An effect that was marked done was not made by the handler; who repeats it hears of that."""
    effects = known()
    effects[PLACE]["a2"] = msgspec.structs.replace(effects[PLACE]["a2"], reason="mark-done")
    plan = rerun.plan(records(), effects, 1, by_number=True)
    assert plan.by_hand == 1
    assert "a2" in chain(plan)


def test_what_is_queued_is_not_asked_for_twice() -> None:
    """A command that waits for its worker is left to it."""
    plan = rerun.plan(records(), known(), 1, by_number=True, queued=frozenset({(PLACE, "a2")}))
    assert plan.left[rerun.QUEUED] == 1
    assert chain(plan)["a3"] == "a2"


def test_what_no_ledger_knows() -> None:
    """Without a ledger there is nothing to repeat."""
    plan = rerun.plan(records(), {}, 1, by_number=True)
    assert (plan.chosen, plan.left[rerun.UNKNOWN]) == ({}, 6)


def test_a_new_number_is_new() -> None:
    """It is above every number that one of these effects has had."""
    assert rerun.next_run(records(), known()) == 1
    assert rerun.runs_of(records(), known()) == frozenset()
    before = known(a2=(STATES.SUCCEEDED, 4))
    assert rerun.runs_of(records(), before) == {4}
    assert rerun.next_run(records(), before) == 5
    assert rerun.plan(records(), before, 5, by_number=True).before == {4: 1}


def test_commands_go_in_the_order_of_their_key(tmp_path: Path) -> None:
    """A number that lies further on in the log is waited for; a command carries its record as published."""
    toml = tmp_path / "laneway.toml"
    toml.write_text('bootstrap = "b:1"\ngroup = "g"\nsources = ["s"]\n')
    settings = load(toml, env={}).settings
    everything = {PLACE: Watermarks(0, len(LOG.records))}
    found = rerun.find(settings, everything, lambda _: True, limit=6, timeout_s=1, read=LOG)
    assert found == records()
    with pytest.raises(RefusedError, match="more than 5 records fit"):
        rerun.find(settings, everything, lambda _: True, limit=5, timeout_s=1, read=LOG)
    plan = rerun.plan(found, known(), 7, by_number=True)
    sent = list(rerun.commands(settings, plan, "ann", "why", timeout_s=1, read=LOG))
    repeats = [command.repeat for command in sent if command.repeat is not None]
    assert [each.effect_key for each in repeats] == ["a1", "b1", "a2", "a3", "a4"]
    assert [(each.offset, each.run) for each in repeats] == [(0, 7), (2, 7), (3, 7), (1, 7), (5, 7)]
    assert all(b'"payload"' in (each.value or b"") for each in repeats)
    assert len({command.command_id for command in sent}) == 5
