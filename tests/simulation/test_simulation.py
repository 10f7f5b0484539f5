"""Whole histories, each from a seed. More of them: `make simulate SEEDS=n FROM=k`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

from tests.simulation.dice import Dice
from tests.simulation.plan import make_plan
from tests.simulation.world import happen

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("LANEWAY_SIMULATION_SEEDS", "10000"))
LOOKED_AT = 600


def test_no_history_breaks_a_promise() -> None:
    """Whatever crashes, moves, fails or waits: every invariant holds at every step and at the end.

    Also where messages that were fetched before a rebalance surface behind it. Shows case 7.
    """
    command = [sys.executable, "-m", "tests.simulation", "--seeds", str(SEEDS)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{SEEDS} seeds from 0: 0 broke a promise" in run.stdout


def test_a_seed_is_one_history() -> None:
    """The same seed gives the same events in the same order, so a failing one can be looked at."""
    for seed in (3, 17, 40):
        first, second = (happen(make_plan(seed), trace=True)[0].trace for _ in range(2))
        assert first == second
        assert first


def test_dice_are_those_of_random() -> None:
    """A history draws what `random` would draw from its seed, only faster: old seeds stay what they were."""
    plain, dice = Random(0), Dice(0)
    for seed in range(200):
        plain.seed(seed)
        dice.begin(seed)
        many = list(range(seed % 7 + 1))
        assert [plain.choice(many) for _ in range(5)] == [dice.choice(many) for _ in range(5)]
        shuffled = list(many)
        plain.shuffle(many)
        dice.shuffle(shuffled)
        assert (many, plain.random()) == (shuffled, dice.random())


REACHED = (
    "on_lost",
    "loses power",
    "has left",
    "the disk refused a write",
    "the disk refused a sync",
    "a handler outlived its partition",
    "refused (old-epoch)",
    "dies at 'cut'",
    "dies at 'written'",
    "dies at 'synced'",
    "dies at 'told'",
    "dies at 'published'",
    "dies at 'committed'",
    "dies at 'acked'",
    "already-settled",
    "stale-retry-copy",
    "duplicate succeeded",
    "duplicate quarantined",
    "review_resolved:sequence-gap",
    "review_opened:sequence-stale",
    "review_opened:effect-conflict",
    "review_opened:attempts-exhausted",
    "review_opened:unclassified-failure",
    "review_opened:rejected",
    "review_opened:review-requested",
    "review_opened:unknown-contract-version",
    "quarantined invalid-payload",
    "quarantined tombstone",
    "skipped tombstone",
    "handler ends: offset N Wait",
    "handler is cut off: offset N",
    "retry_wait handler-timeout",
    "dies at 'begun'",
    "dies at 'sent'",
    "dies at 'offsets'",
    "dies at 'applied'",
    "dies at 'commit transaction'",
    "dies at 'transaction committed'",
    "dies at 'reader consume'",
    "transaction of process N timed out",
    "the state directory of its machine is deleted",
    "moves the ledger aside: it was last up to date",
    "review_opened:outcome-unknown",
    "offsets of the changelog were deleted",
    "the changelog of its ledger is empty",
)


def test_the_histories_reach_what_they_are_for() -> None:
    """Every step boundary, kind of end and way to lose a partition occurs in a few hundred seeds."""
    missing = set(REACHED)
    for seed in range(LOOKED_AT):
        world = happen(make_plan(seed), trace=True)[0]
        told = "\n".join(re.sub(r"(offset|process) \d+", r"\1 N", text) for *_, text in world.trace or ())
        missing = {words for words in missing if words not in told}
        if not missing:
            return
    assert not missing
