"""Random histories of one partition: duplicates, gaps, poison, failures, crashes and late commits.

The driver checks every moment; the end is compared with the same records in a calm run. A failure
prints the seed that replays it: `LANEWAY_HISTORY_SEED=N pytest tests/lanes/test_histories.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from laneway.lanes.admission import Order
from laneway.lanes.case import Case
from laneway.lanes.effect import Effect
from laneway.lanes.envelope import EnvelopeRules
from laneway.lanes.record import Channel, Record
from laneway.lanes.rules import Rules
from laneway.lanes.verdict import ACK, Outcome, Reject, Retry, Review, Wait
from tests.lanes.driver import MANY, Driver, value_of

HISTORIES = int(os.environ.get("LANEWAY_HISTORIES", "200"))
"""Per kind of lane and test; with the kinds below a few thousand in all."""

POISON = Outcome(Reject("poison"), "permanent-failure")
UNKNOWN = Outcome(Review("unclassified-failure", ""), "unclassified-failure", "x.Boom", "abc")
LATER = Outcome(Retry("later"), "temporary-failure")
DOWN = Outcome(Wait(700, "down"), "unavailable")

CONTIGUOUS = Rules(max_run=4, delays_ms=(1000, 4000))
KINDS = {
    "contiguous": CONTIGUOUS,
    "pass": replace(CONTIGUOUS, pass_after_reject=True),
    "any-first": replace(CONTIGUOUS, first_sequence=None),
    "hold-version": replace(CONTIGUOUS, hold_unknown_version=True, max_run=1),
    "increasing": replace(CONTIGUOUS, order=Order.INCREASING),
    "arrival": replace(CONTIGUOUS, order=Order.ARRIVAL),
    "no-key": CONTIGUOUS,
}


def envelope_of(kind: str) -> EnvelopeRules:
    """The envelope that goes with a kind of lane."""
    if kind == "no-key":
        return EnvelopeRules(sequence_key=None, sequence=None)
    return EnvelopeRules(needs_sequence=kind != "arrival", tombstones="skip")


class Story:
    """What the publishers send and how the handler takes it, all from one seed.

    Args:
        in_order: no late ones. With `increasing` it depends on time whether a late one is still
            taken (while the lane waits) or stale, so such stories have no one end.
    """

    def __init__(self, random: Random, *, shared_effects: bool, in_order: bool = False) -> None:
        self.fates: dict[str, str] = {}
        self.down: set[tuple[str, int]] = set()
        self.values: list[bytes | None] = []
        for lane in random.sample("abc", random.randint(1, 3)):
            for sequence in range(1, random.randint(2, 7)):
                self._publish(random, lane, sequence, shared_effects)
        if not in_order:
            self._delay_some(random)
        for garbage in (b"\xff", b"{}", None):
            if random.random() < 0.2:
                self.values.insert(random.randint(0, len(self.values)), garbage)

    def _publish(self, random: Random, lane: str, sequence: int, shared_effects: bool) -> None:
        if random.random() < 0.1:
            return  # never published: a gap, when it has a successor
        effect = f"{lane}{sequence}"
        if shared_effects and random.random() < 0.4:
            effect = f"shared{random.randint(1, 3)}"
        fate = random.choices(
            ["fine", "later", "later twice", "never", "poison", "unknown"], [12, 3, 1, 1, 1, 0.7]
        )[0]
        self.fates.setdefault(effect, fate)
        version = 2 if random.random() < 0.04 else 1
        self.values.append(value_of(lane, sequence, effect=effect, version=version))
        if random.random() < 0.15:
            self.values.append(value_of(lane, sequence, effect=effect, version=version))
        if random.random() < 0.04:
            self.values.append(value_of(lane, sequence, effect=effect, payload={"other": 1}))

    def _delay_some(self, random: Random) -> None:
        for _ in range(random.randint(0, 3)):
            if len(self.values) > 1:
                at = random.randrange(len(self.values))
                value = self.values.pop(at)
                self.values.insert(min(len(self.values), at + random.randint(1, 6)), value)
        if random.random() < 0.5:
            random.shuffle(self.values)

    def answer(self, record: Record) -> Outcome:
        """Decided by the effect and the attempt alone, so that a crash changes nothing."""
        fate = self.fates[record.effect_key]
        failures = {"later": 1, "later twice": 2, "never": 99}.get(fate, 0)
        if record.attempt <= failures:
            return LATER
        return {"poison": POISON, "unknown": UNKNOWN}.get(fate, ACK)


def calm(kind: str, story: Story, like: Driver) -> Driver:
    """The source topic of another run, without a disturbance."""
    driver = Driver(KINDS[kind], envelope_of(kind), story.answer)
    driver.topics[Channel.SOURCE] = list(like.topics[Channel.SOURCE])
    driver.rest()
    driver.check_at_rest()
    return driver


def disturbed(kind: str, story: Story, random: Random) -> Driver:
    """The same records among crashes, delays, dependencies that are down, and copies of forwards."""

    def handler(record: Record) -> Outcome:
        return DOWN if random.random() < 0.05 else story.answer(record)

    driver = Driver(KINDS[kind], envelope_of(kind), handler)
    left = list(story.values)
    for _ in range(random.randint(30, 200)):
        one_act(driver, left, random)
    for value in left:
        driver.produce_raw(value)
    driver.handler = story.answer
    driver.rest()
    driver.check_at_rest()
    return driver


def produce(driver: Driver, left: list[bytes | None], random: Random) -> None:
    """Some more records arrive, or an offset that holds none."""
    for value in left[: random.randint(1, 4)]:
        driver.produce_raw(value)
        del left[0]
    if random.random() < 0.1:
        driver.topics[Channel.SOURCE].append(None)


def handle(driver: Driver, random: Random) -> None:
    """One handler gets one record."""
    if driver.out:
        driver.step(random.choice(driver.out))


def finish(driver: Driver, random: Random) -> None:
    """One run comes back, done or not."""
    if driver.out:
        driver.finish(random.choice(driver.out))


def write(driver: Driver, random: Random) -> None:
    """A cycle is written, when none is under way."""
    if driver.pending is None:
        driver.write()


def publish(driver: Driver, random: Random) -> None:
    """Some forwards reach their topics; some of them will be sent again."""
    if driver.pending is None:
        driver.publish(random.randint(1, 3), clear=random.random() < 0.8)


def let_time_pass(driver: Driver, random: Random) -> None:
    """A moment, or long enough for a retry."""
    driver.now_ms += random.choice([1, 300, 1000, 4000])


def work(driver: Driver, random: Random) -> None:
    """One lane is worked on without a pause."""
    for run in driver.hand_out(1):
        while driver.step(run):
            pass
        driver.finish(run)


def cycle(driver: Driver, random: Random) -> None:
    """A whole cycle without a pause."""
    driver.settle()


ACTS: list[tuple[float, Callable[[Driver, Random], object]]] = [
    (5, lambda driver, random: driver.poll(random.randint(1, 6))),
    (5, lambda driver, random: driver.hand_out(random.randint(1, 8))),
    (9, handle),
    (6, finish),
    (4, write),
    (4, lambda driver, random: driver.sync()),
    (3, publish),
    (3, lambda driver, random: driver.commit()),
    (3, let_time_pass),
    (4, work),
    (4, cycle),
    (0.8, lambda driver, random: driver.crash(lose_unsynced=random.random() < 0.5)),
]


def one_act(driver: Driver, left: list[bytes | None], random: Random) -> None:
    """Anything that may happen next."""
    if random.random() < 0.12:
        produce(driver, left, random)
    else:
        random.choices([act for _, act in ACTS], [weight for weight, _ in ACTS])[0](driver, random)


def effect_end(effect: Effect | None) -> tuple[object, ...] | None:
    """What of an effect may not depend on time."""
    return None if effect is None else (effect.state, effect.attempt, effect.payload_hash, effect.offset)


def outcome_of(driver: Driver, story: Story) -> dict[str, object]:
    """Where everything ended, without times."""
    lanes = {lane: driver.lane(lane) for lane in "abc"}

    def case_end(case: Case) -> tuple[object, ...]:
        return (case.case_id, case.reason, case.holds, case.attempts)

    return {
        "effects": {key: effect_end(driver.effect(key)) for key in sorted(story.fates)},
        "lanes": {
            name: None if lane is None else (lane.last, lane.hold and lane.hold.case_id, lane.parked)
            for name, lane in lanes.items()
        },
        "cases": [case_end(case) for case in driver.ledger.cases(limit=MANY)],
        "dlq": sorted({forward.forward_id for forward in driver.dlq}),
    }


def seeds() -> list[int]:
    """One seed to replay, or a block of them."""
    asked = os.environ.get("LANEWAY_HISTORY_SEED")
    return [int(asked)] if asked else list(range(HISTORIES))


@pytest.mark.parametrize("kind", KINDS)
def test_faults_change_nothing_but_time(kind: str) -> None:
    """Whatever crashes and waits, a partition ends where a calm run of it ends (invariants 1 to 5)."""
    for seed in seeds():
        random = Random(f"{kind} {seed}")
        story = Story(random, shared_effects=False, in_order=kind == "increasing")
        try:
            run = disturbed(kind, story, random)
            assert outcome_of(run, story) == outcome_of(calm(kind, story, run), story)
        except BaseException as error:
            error.add_note(f"replay: LANEWAY_HISTORY_SEED={seed}, kind {kind}")
            raise


@pytest.mark.parametrize("kind", KINDS)
def test_lanes_that_share_effects_keep_every_promise(kind: str) -> None:
    """Two lanes may claim one effect: it happens once, in whichever is first, and all is accounted for."""
    for seed in seeds():
        random = Random(f"shared {kind} {seed}")
        story = Story(random, shared_effects=True)
        try:
            disturbed(kind, story, random)
        except BaseException as error:
            error.add_note(f"replay: LANEWAY_HISTORY_SEED={seed}, kind {kind}")
            raise
