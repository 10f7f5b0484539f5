"""The profile of a cycle: every moment of the owner thread belongs to exactly one stage."""

from __future__ import annotations

import io
import threading
import time

import pytest
from rich.console import Console

from laneway.cli.profile import table_of
from laneway.consumer.profile import OF_STEP, CycleProfile, Stage
from laneway.consumer.settling.changelog_truth import ChangelogTruth
from laneway.consumer.settling.local_truth import LocalTruth


class Clock:
    """CPU seconds that a test moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Read it."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The CPU clock of the owner thread."""
    clock = Clock()
    monkeypatch.setattr("laneway.consumer.profile.time.thread_time", clock)
    return clock


def test_what_passes_in_a_stage_belongs_to_it(clock: Clock) -> None:
    """Entering a stage ends the one before; nothing is counted twice, and nothing is lost."""
    profile = CycleProfile()
    for stage, spent_s in ((Stage.POLL, 1.0), (Stage.JUDGE, 2.0), (Stage.POLL, 4.0)):
        profile.enter(stage)
        clock.now_s += spent_s
    profile.stop()
    assert profile.spent_s[Stage.POLL] == 5.0
    assert profile.spent_s[Stage.JUDGE] == 2.0
    assert sum(profile.spent_s.values()) == 7.0


def test_the_table_counts_for_each_record(clock: Clock) -> None:
    """Microseconds for each record stand in the table, and a run without records has none."""
    profile = CycleProfile()
    profile.count(1000)
    profile.enter(Stage.ADMIT)
    clock.now_s += 0.002
    profile.stop()
    assert "2.00" in _text(profile)
    assert _row(_text(profile), Stage.ADMIT.value)[-2] == "2.00"
    assert _row(_text(CycleProfile()), Stage.ADMIT.value)[-2] == "-"


def test_handlers_are_counted_beside_the_owner() -> None:
    """CPU time of the threads that run handlers is told apart from that of the owner."""
    done, go = threading.Event(), threading.Event()

    def busy() -> None:
        until_s = time.thread_time() + 0.05
        while time.thread_time() < until_s:
            pass
        done.set()
        go.wait(10)

    thread = threading.Thread(target=busy, name="laneway-worker-0", daemon=True)
    profile = CycleProfile()
    thread.start()
    try:
        assert done.wait(10)
        profile.stop()
    finally:
        go.set()
        thread.join(10)
    assert profile.beside_s["handlers"] >= 0.05


@pytest.mark.parametrize("strategy", [ChangelogTruth, LocalTruth])
def test_every_step_has_a_stage(strategy: type[ChangelogTruth | LocalTruth]) -> None:
    """No step of either truth is hidden in what is left over."""
    truth = strategy.__new__(strategy)
    assert {name for name, _ in truth.steps} <= OF_STEP.keys()


def _text(profile: CycleProfile) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table_of(profile))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _row(text: str, name: str) -> list[str]:
    return next(line for line in text.splitlines() if name in line).split()
