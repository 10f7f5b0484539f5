"""Effects that happen once more on purpose: in order, once for each run, apart from the normal flow."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from laneway.lanes.admission import Order
from laneway.lanes.command import Repeat
from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.envelope import EnvelopeRules
from laneway.lanes.record import Channel, Record, run_of
from laneway.lanes.rules import Rules
from laneway.lanes.settlement import Settled
from laneway.lanes.verdict import ACK, Outcome
from tests.lanes.cases import LATER, POISON, UNKNOWN
from tests.lanes.driver import MANY, value_of
from tests.lanes.operated import Operated
from tests.lanes.test_histories import DOWN, HISTORIES, one_act


class Rerun(Operated):
    """A partition whose handler notes the run that it sees.

    Attributes:
        seen: effect key and run number of each delivery, in order.
        answers_with: what the handler does in place of an Ack, by effect key and run.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        self.seen: list[tuple[str, int]] = []
        self.answers_with: dict[tuple[str, int], Outcome] = {}
        super().__init__(*args, **named)
        self.handler = self._handle

    def _handle(self, record: Record) -> Outcome:
        about = (record.effect_key, run_of(record))
        self.seen.append(about)
        return self.answers_with.get(about, ACK)

    def again(self, key: str, /, run: int = 1, behind: str = "", **members: Any) -> int:
        """Ask for an effect once more; returns the offset of the command."""
        effect = self.known(key)
        stored = self.topics[Channel.SOURCE][effect.offset]
        assert stored is not None
        repeat = Repeat(
            key,
            effect.offset,
            run,
            behind,
            stored.key,
            stored.value,
            stored.headers,
            stored.timestamp_ms,
        )
        return self.command("rerun", lane_id=effect.lane, repeat=msgspec.structs.replace(repeat, **members))

    def known(self, effect_key: str) -> Effect:
        """What the ledger knows of an effect that it knows."""
        effect = self.effect(effect_key)
        assert effect is not None
        return effect

    def chain(self, *effect_keys: str, run: int = 1) -> list[int]:
        """Ask for effects of one lane in their order."""
        behind = ("", *effect_keys)
        return [self.again(key, run, behind[at]) for at, key in enumerate(effect_keys)]

    def whys(self, offsets: list[int]) -> list[str]:
        """What was answered: how it ended, or why it was refused."""
        answers = [self.answer(offset) for offset in offsets]
        return [answer.why or answer.outcome for answer in answers]


def happened(rules: Rules | None = None, *numbers: int) -> Rerun:
    """A lane whose effects have all happened."""
    driver = Rerun(rules)
    driver.produce_many("a", *(numbers or (1, 2, 3)))
    driver.rest()
    driver.check_at_rest()
    driver.seen.clear()
    return driver


@pytest.mark.parametrize("order", list(Order))
def test_effects_happen_once_more_in_order(order: Order) -> None:
    """Each runs once, in the order of its key; the handler sees the number, the lane stays where it is."""
    driver = happened(Rules(order=order))
    lane = driver.lane("a")
    asked = driver.chain("a1", "a2", "a3")
    driver.rest()
    assert driver.seen == [("a1", 1), ("a2", 1), ("a3", 1)]
    assert driver.whys(asked) == ["succeeded"] * 3
    assert driver.lane("a") == lane
    assert [driver.known(key).run for key in ("a1", "a2", "a3")] == [1, 1, 1]
    assert (Settled.SUCCEEDED, "run 1") in driver.ends_of(0)
    driver.produce("a", 4)
    driver.produce("a", 2)
    driver.rest()
    assert driver.seen[3:] == [("a4", 0)], "a copy of what was repeated is a duplicate"
    assert driver.cases() == []
    driver.check_at_rest()


def test_an_effect_happens_once_for_each_run() -> None:
    """The same run twice is one, an older one is refused, a newer one is another."""
    driver = happened()
    asked = [driver.again("a1", 2), driver.again("a1", 2), driver.again("a1", 1), driver.again("a1", 3)]
    driver.rest()
    assert driver.seen == [("a1", 2), ("a1", 3)]
    first, again, older, newer = driver.whys(asked)
    assert (first, newer) == ("succeeded", "succeeded")
    assert "has ended run 2 already" in again
    assert "was repeated since, in run 2" in older
    assert [act.attempt for act in driver.acts if act.effect_key == "a1"] == [1, 2, 3]
    driver.check_at_rest()


def test_what_comes_behind_a_failure_does_not_run() -> None:
    """A repeat that is refused stops its key in this run, holds nothing, and the normal flow goes on."""
    driver = happened()
    driver.answers_with["a2", 1] = POISON
    asked = driver.chain("a1", "a2", "a3")
    driver.produce("a", 4)
    driver.rest()
    assert driver.seen == [("a1", 1), ("a2", 1), ("a4", 0)]
    assert driver.whys(asked)[:2] == ["succeeded", "quarantined"]
    assert "'a2' of its key has not succeeded in run 1" in driver.whys(asked)[2]
    assert driver.cases() == []
    # It has happened before, so a copy is no new effect, and no correction of something that did not.
    driver.produce("a", 2)
    driver.rest()
    assert driver.cases() == []
    assert len(driver.seen) == 3
    driver.check_at_rest()


def test_a_retry_of_a_repeat_is_waited_for() -> None:
    """A temporary failure takes its retry; repeats behind it wait, what comes of the key is parked."""
    driver = happened()
    driver.answers_with["a1", 1] = LATER
    asked = driver.chain("a1", "a2")
    driver.rest(wait=False)
    assert driver.seen == [("a1", 1)]
    driver.produce("a", 4)
    driver.produce("a", 1)
    driver.rest(wait=False)
    assert driver.seen == [("a1", 1)]
    assert driver.known("a1").state is EffectState.RETRY_WAIT
    assert driver.cases() == [], "a copy of an effect that is being repeated contradicts nothing"
    driver.crash()
    driver.answers_with.clear()
    driver.rest()
    assert driver.seen == [("a1", 1), ("a1", 1), ("a2", 1), ("a4", 0)]
    assert driver.whys(asked) == ["retry_wait", "succeeded"]
    assert driver.known("a1").run == 1
    driver.check_at_rest()


def test_a_repeat_that_a_person_has_to_see() -> None:
    """A bug is a case that holds the key, as of any record; once it is decided the run goes on behind it."""
    driver = happened()
    driver.answers_with["a1", 1] = UNKNOWN
    asked = driver.chain("a1", "a2")
    driver.produce("a", 4)
    driver.rest()
    case = driver.case("unclassified-failure")
    assert driver.seen == [("a1", 1)]
    assert driver.whys(asked) == [
        "in_review",
        f"case {case.case_id} of its key is open; that has to be decided first",
    ]
    driver.answers_with.clear()
    driver.applied("replay", case)
    again = driver.chain("a1", "a2")
    driver.rest()
    assert driver.seen[1:] == [("a1", 1), ("a4", 0), ("a2", 1)]
    assert "has ended run 1 already" in driver.whys(again)[0]
    assert driver.whys(again)[1] == "succeeded"
    driver.check_at_rest()


def test_it_waits_for_what_runs() -> None:
    """One delivery of a key at a time: a repeat and the normal flow never run beside each other."""
    driver = happened()
    driver.produce("a", 4)
    driver.poll()
    (run,) = driver.hand_out()
    driver.step(run)
    asked = driver.again("a1")
    driver.poll()
    assert driver.hand_out() == []
    driver.finish(run)
    driver.rest()
    assert driver.seen == [("a4", 0), ("a1", 1)]
    assert driver.answer(asked).outcome == "succeeded"
    driver.check_at_rest()


def crashes(driver: Rerun) -> None:
    """Begin what can be begun, and die with it in the handler."""
    driver.poll()
    if not (runs := driver.hand_out()):
        driver.settle()
        runs = driver.hand_out()
    for run in runs:
        driver.step(run)
    driver.crash()
    driver.rest()


def test_a_crash_in_a_repeat() -> None:
    """The command comes again with the same number, as the same attempt, marked as redelivered."""
    driver = happened()
    asked = driver.again("a1", 7)
    crashes(driver)
    assert driver.seen == [("a1", 7), ("a1", 7)]
    assert [(act.attempt, act.redelivered) for act in driver.acts[-2:]] == [(2, False), (2, True)]
    assert (driver.known("a1").run, driver.answer(asked).outcome) == (7, "succeeded")
    driver.check_at_rest()


def test_a_crash_in_a_repeat_where_unknown_outcomes_are_reviewed() -> None:
    """on_unknown_outcome = "review": a repeat that has begun and not ended is asked about, not run."""
    driver = happened(Rules(intents=True, max_run=1))
    driver.again("a1", 7)
    crashes(driver)
    assert driver.seen == [("a1", 7)]
    case = driver.case("outcome-unknown")
    driver.applied("run-again", case)
    assert driver.seen == [("a1", 7), ("a1", 7)]
    assert driver.known("a1").run == 7
    lane = driver.lane("a")
    assert lane is not None
    assert lane.last == 3
    driver.check_at_rest()


@pytest.mark.parametrize("what", [POISON, LATER, UNKNOWN])
@pytest.mark.parametrize("unknown_first", [False, True])
@pytest.mark.parametrize("kind", ["rerun", "letter"])
def test_what_a_lane_waits_for_is_kept_when_an_unknown_outcome_is_found(
    what: Outcome, kind: str, *, unknown_first: bool
) -> None:
    """A newer record that failed meanwhile stays held, or waits for its retry; nothing passes it."""
    driver = _with_something_begun(Rerun(Rules(intents=True, max_run=1)), kind)
    driver.produce_many("a", 4, 5)
    fourth = [what]
    driver.handler = lambda r: fourth.pop() if r.effect_key == "a4" and fourth else ACK
    commands = driver.topics[Channel.COMMANDS]
    driver.topics[Channel.COMMANDS] = commands[: driver.position[Channel.COMMANDS]]
    driver.poll()
    driver.hand_out()
    driver.settle()
    (run,) = driver.hand_out()
    driver.step(run)
    driver.topics[Channel.COMMANDS] = commands
    driver.poll()
    driver.finish(run)
    driver.rest()
    driver.check_at_rest()
    while cases := list(driver.ledger.cases(limit=MANY)):
        cases.sort(key=lambda case: (case.reason == "outcome-unknown") is not unknown_first)
        driver.applied("mark-done", cases[0])
    assert driver.effects()[-1] == "a5"
    assert (what is LATER) == ("a4" in driver.effects())
    assert [driver.known(key).state for key in ("a2", "a4", "a5")] == [EffectState.SUCCEEDED] * 3
    driver.check_at_rest()


def _with_something_begun(driver: Rerun, kind: str) -> Rerun:
    """Three effects, and an owner that died while the second was done once more."""
    if kind == "letter":
        driver.rules = Rules(intents=True, max_run=1, pass_after_reject=True)
        driver.crash()
        driver.handler = lambda r: POISON if r.effect_key == "a2" else ACK
    driver.produce_many("a", 1, 2, 3)
    driver.rest()
    if kind == "letter":
        driver.rules = Rules(intents=True, max_run=1)
        driver.crash()
        driver.replay(driver.dlq[0], out_of_order=True)
    else:
        driver.again("a2")
    driver.poll()
    driver.hand_out()
    driver.settle()
    assert len(driver.hand_out()) == 1
    driver.crash()
    return driver


def test_what_was_corrected_is_not_repeated_uncorrected() -> None:
    """The source topic has the value that was wrong; the effect came of another (case 29)."""
    driver = Rerun(Rules())
    driver.handler = lambda r: POISON if r.value == value_of("a", 2, payload={"cents": 100}) else ACK
    driver.produce("a", 1)
    driver.produce("a", 2, payload={"cents": 100})
    driver.rest()
    corrected = value_of("a", 2, payload={"cents": 10})
    driver.applied("replay-with", driver.case("rejected"), value=corrected)
    values: list[bytes | None] = []

    def note(record: Record) -> Outcome:
        values.append(record.value)
        return ACK

    driver.handler = note
    asked = driver.again("a2")
    driver.rest()
    assert values == []
    assert "with another payload than its record has" in driver.answer(asked).why
    asked = driver.again("a2", value=corrected)
    driver.rest()
    assert (values, driver.answer(asked).outcome) == ([corrected], "succeeded")
    driver.check_at_rest()


REFUSED: list[tuple[str, Callable[[Rerun], int]]] = [
    ("knows nothing of effect 'x'", lambda d: d.again("a1", effect_key="x")),
    ("was made by offset 0; the record of 1 was a copy", lambda d: d.again("a1", offset=1)),
    ("'b9' of its key has not succeeded in run 1", lambda d: d.again("a1", behind="b9")),
]


@pytest.mark.parametrize(("why", "ask"), REFUSED)
def test_what_is_refused(why: str, ask: Callable[[Rerun], int]) -> None:
    """What the ledger does not know as this effect of this key has nothing to be repeated."""
    driver = happened()
    offset = ask(driver)
    driver.rest()
    assert why in driver.answer(offset).why
    assert driver.seen == []
    driver.check_at_rest()


def test_what_has_not_succeeded_is_not_repeated() -> None:
    """A dead letter and an open effect have ways of their own; a held key is decided first."""
    driver = Rerun(Rules(pass_after_reject=True))
    driver.answers_with["a2", 0] = POISON
    driver.answers_with["b1", 0] = UNKNOWN
    driver.produce_many("a", 1, 2, 3)
    driver.produce("b", 1)
    driver.rest()
    asked = [driver.again("a2"), driver.again("b1")]
    driver.applied("pause", lane="a")
    asked.append(driver.again("a1"))
    driver.rest()
    quarantined, opened, paused = driver.whys(asked)
    assert "has not succeeded, it is quarantined" in quarantined
    assert "is open in case" in opened
    assert "is paused" in paused
    driver.applied("resume", lane="a")


def test_other_commands_pass_a_repeat_that_waits() -> None:
    """While a repeat waits for a retry of its key, the key can be paused, and resumed."""
    driver = happened()
    driver.answers_with["a1", 1] = LATER
    asked = driver.chain("a1", "a2")
    driver.rest(wait=False)
    for action in ("pause", "resume"):
        offset = driver.command(action, lane="a")
        driver.rest(wait=False)
        assert driver.answer(offset).event == "applied"
        assert driver.seen == [("a1", 1)]
    driver.answers_with.clear()
    driver.rest()
    assert driver.seen == [("a1", 1), ("a1", 1), ("a2", 1)]
    assert driver.whys(asked) == ["retry_wait", "succeeded"]
    driver.check_at_rest()


def test_a_refused_repeat_is_no_effect_that_did_not_happen() -> None:
    """Without order a changed payload corrects what was rejected; not what has happened, and was repeated."""
    driver = Rerun(envelope=EnvelopeRules(sequence_key=None, sequence=None))
    driver.produce(None, None, effect="x")
    driver.rest()
    driver.answers_with["x", 1] = POISON
    driver.again("x")
    driver.rest()
    assert driver.known("x").state is EffectState.QUARANTINED
    driver.produce(None, None, effect="x", payload={"of": "something else"})
    driver.rest()
    assert driver.cases() == ["effect-conflict"]
    assert driver.seen == [("x", 0), ("x", 1)]


def test_what_is_no_repeat_is_refused() -> None:
    """A command that nobody of ours would send changes nothing and stops nobody."""
    driver = happened()
    offsets = [
        driver.again("a1", run=0),
        driver.again("a1", offset=-1),
        driver.again("a1", effect_key=""),
        driver.command("rerun", lane="a"),
        driver.command("rerun", repeat=Repeat("a1", 0, 1)),
        driver.command("pause", lane="a", repeat=Repeat("a1", 0, 1)),
    ]
    driver.rest()
    assert all("broken-command" in driver.answer(offset).why for offset in offsets)
    assert driver.seen == []
    assert driver.ledger.cases(limit=MANY) == []


def disturbed(driver: Rerun, random: Random, runs: int) -> None:
    """Reruns are asked for while new records come, owners die, and dependencies are down."""
    keys = [f"{name}{number}" for name in "ab" for number in range(1, 5)]
    driver.answers_with = {
        (key, run): random.choices([ACK, LATER, DOWN, POISON, UNKNOWN], [12, 3, 3, 1, 1])[0]
        for key in keys
        for run in range(1, runs + 1)
    }
    left: list[bytes | None] = [value_of(name, number) for number in (5, 6) for name in "ab"]
    chains = [(name, run) for run in range(1, runs + 1) for name in "ab"]
    for _ in range(random.randint(20, 120)):
        if chains and random.random() < 0.15:
            name, run = chains.pop(0)
            driver.chain(*(f"{name}{number}" for number in range(1, 5)), run=run)
        one_act(driver, left, random)
        if random.random() < 0.1:
            # What was down is up again, and what may work later does.
            driver.answers_with = {
                about: outcome
                for about, outcome in driver.answers_with.items()
                if outcome is POISON or outcome is UNKNOWN or random.random() < 0.5
            }
    driver.answers_with = {
        about: outcome
        for about, outcome in driver.answers_with.items()
        if outcome is POISON or outcome is UNKNOWN
    }
    for value in left:
        driver.produce_raw(value)
    for name, run in chains:
        driver.chain(*(f"{name}{number}" for number in range(1, 5)), run=run)
    driver.rest()
    driver.check_at_rest()


@pytest.mark.parametrize("intents", [False, True])
@pytest.mark.parametrize("order", list(Order))
def test_in_any_history_a_run_is_in_order_and_stops_where_it_fails(order: Order, *, intents: bool) -> None:
    """Of each key and run the effects that happened are the first ones, in order; the key goes on."""
    rules = Rules(order=order, delays_ms=(1000, 4000), intents=intents, max_run=1 if intents else 4)
    for seed in range(HISTORIES // 2):
        random = Random(f"{order} {intents} {seed}")
        driver = Rerun(rules)
        for name in "ab":
            driver.produce_many(name, 1, 2, 3, 4)
        driver.rest()
        driver.acts.clear()
        driver.seen.clear()
        try:
            disturbed(driver, random, runs=2)
            check(driver, runs=2, is_sure=intents)
        except BaseException as error:
            error.add_note(f"seed {seed}, {order}, intents {intents}")
            raise


def check(driver: Rerun, *, runs: int, is_sure: bool) -> None:
    """Of each key and run the effects that happened are the first ones of it, in order."""
    happened = [about for about, act in zip(driver.seen, driver.acts, strict=True) if act.verdict == "Ack"]
    if is_sure:
        assert len(happened) == len(set(happened)), "nothing of unknown outcome runs again by itself"
    for name in "ab":
        lane = driver.lane(name)
        held = lane is not None and lane.hold is not None
        failed = held or any(key[0] == name for key, _ in driver.answers_with)
        for run in range(1, runs + 1):
            first = list(dict.fromkeys(key for key, number in happened if number == run and key[0] == name))
            assert first == [f"{name}{number}" for number in range(1, len(first) + 1)], (run, first)
            done = [key for key in first if driver.known(key).run >= run]
            assert len(done) >= len(first) - (1 if is_sure else 0)
            assert failed or len(first) == 4, (run, first)
        new = list(dict.fromkeys(key for key, run in happened if not run and key[0] == name))
        assert new == [f"{name}5", f"{name}6"] or held, new
