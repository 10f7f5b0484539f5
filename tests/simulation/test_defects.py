"""The simulation can fail: each rule, switched off, is missed within a stated number of seeds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.defect import Defect, planted
from tests.simulation.defects import DEFECTS
from tests.simulation.planting import fence_is_gone
from tests.simulation.report import explain, failure_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "simulation.md"


@pytest.fixture(scope="session")
def missed() -> dict[str, tuple[int, int]]:
    """By defect: which invariant missed the rule, and after how many seeds."""
    command = [sys.executable, "-m", "tests.simulation", "--plant", "all", "--near"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not run.stderr, run.stderr
    found = re.findall(r"^(\S+): invariant (\d+) after (\d+) seeds from \d+, by", run.stdout, re.MULTILINE)
    return {name: (int(number), int(seeds)) for name, number, seeds in found}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: str(defect.name))
def test_a_rule_that_is_switched_off_is_missed(defect: Defect, missed: dict[str, tuple[int, int]]) -> None:
    """With the rule switched off, a promise that hangs on it is broken within the stated seeds."""
    assert defect.name in missed, f"{defect.what}: nothing noticed within {defect.within} seeds"
    number, seeds = missed[defect.name]
    assert number in defect.breaks
    assert seeds <= defect.within


def test_a_deposed_owner_breaks_nothing_while_its_epoch_is_checked() -> None:
    """Without the lock a handler may outlive its ownership: its completion is refused, and all else holds.

    What `no-epoch` breaks is thereby shown to hang on the epoch.
    """
    fence = Defect("fence-is-gone", "", "", fence_is_gone, within=300, breaks=frozenset())
    with planted(fence):
        broken = {seed: str(found) for seed in range(fence.within) if (found := failure_of(seed)) is not None}
    assert not broken


def test_every_defect_stands_in_the_docs() -> None:
    """The table for people has a row for each defect, and no other."""
    rows = re.findall(r"^\| `([a-z-]+)` \|", DOCS.read_text(), re.MULTILINE)
    assert rows == [defect.name for defect in DEFECTS]


def test_a_failing_seed_is_explained() -> None:
    """Of a failing seed people get the seed, a shorter history, the words, and the log of the lane."""
    defect = next(defect for defect in DEFECTS if defect.name == "follower-is-gap")
    with planted(defect):
        seed = next(seed for seed in range(defect.within) if failure_of(seed) is not None)
        story = explain(seed)
    assert story.startswith(
        f"seed {seed} breaks invariant 5 (a gap is never declared over a record that is there"
    )
    assert f"make simulate FROM={seed} SEEDS=1" in story
    assert "gap" in story.splitlines()[0]
    assert "received: offset" in story
