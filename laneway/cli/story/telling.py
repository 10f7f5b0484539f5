"""Plays all scenarios side by side on one embedded cluster, and collects what became of their promises."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from laneway.cli.story.crashes import Effect, Receipt
from laneway.cli.story.homework import Interrupted, Poison, Tens
from laneway.cli.story.order import Duplicates, Gap, Retry
from laneway.cli.story.stage import Clock, EndOfStoryError, Promise, Stage, judged
from laneway.cli.story.training import Training
from laneway.consumer.embedded import EmbeddedCluster
from laneway.errors import LanewayError

LIMIT_S: Final = 75.0
"""Far more than the story takes on a busy machine; a wait that lasts longer has failed."""
_JOIN_S: Final = 0.2

_ENDS: Final = frozenset(
    {"result_saved", "duplicate_suppressed", "retry_scheduled", "quarantined", "review_opened"}
)
"""One of these stands before the ack of every delivery."""


class Scenario(Protocol):
    """A part of the story."""

    @property
    def name(self) -> str:
        """Of its group, topic and directory."""

    @property
    def tables(self) -> Mapping[str, object]:
        """What it needs of laneway.toml."""

    def play(self, stage: Stage) -> None:
        """Publish, start, kill; wait until there is something to see."""

    def observe(self, stage: Stage) -> Sequence[Promise]:
        """Read the evidence."""


SCENARIOS: Final[Sequence[Callable[[], Scenario]]] = (
    Training,
    Receipt,
    Effect,
    Poison,
    Interrupted,
    Tens,
    Gap,
    Duplicates,
    Retry,
)


def tell_all(directory: Path, say: Callable[[str], None], *, limit_s: float = LIMIT_S) -> list[Promise]:
    """Play every scenario, each in a thread and a group of its own, and look at what they left.

    Raises:
        LanewayError: the embedded cluster does not start.
        KeyboardInterrupt: after every process has ended.
    """
    clock = Clock(limit_s)
    with EmbeddedCluster() as cluster:
        parts = [_Part(make(), cluster, directory, clock, say) for make in SCENARIOS]
        say(f"{len(parts)} scenarios, side by side on an embedded cluster at {cluster.bootstrap}")
        try:
            for part in parts:
                part.thread.start()
            for part in parts:
                while part.thread.is_alive():
                    part.thread.join(_JOIN_S)
        finally:
            clock.call_off()
            for part in parts:
                part.close()
        stages = [part.stage for part in parts]
        return [promise for part in parts for promise in part.promises] + [
            judged(
                "all.result-before-ack",
                "no delivery is acked before its outcome is saved",
                "0 acks without an outcome before them",
                lambda: _acks_in_order(stages),
            ),
            judged(
                "all.nothing-left",
                "every partition is committed to its end, and nothing waits",
                "lag 0 in every group",
                lambda: _nothing_left(stages),
            ),
        ]


class _Part:
    """One scenario on its stage."""

    def __init__(
        self,
        scenario: Scenario,
        cluster: EmbeddedCluster,
        directory: Path,
        clock: Clock,
        say: Callable[[str], None],
    ) -> None:
        self._scenario = scenario
        self._clock = clock
        self._say = say
        place = directory / scenario.name
        self.stage = Stage(scenario.name, cluster, place, clock, self._tell, scenario.tables)
        self.promises: list[Promise] = []
        self.thread = threading.Thread(target=self._play, name=f"demo-{scenario.name}")

    def close(self) -> None:
        """End the processes of the scenario, and its thread."""
        self.stage.close()
        if self.thread.ident is not None:
            self.thread.join()

    def _play(self) -> None:
        try:
            self._scenario.play(self.stage)
        except (EndOfStoryError, LanewayError) as end:
            self._tell(f"it did not come to its end: {end}")
        finally:
            self.stage.close()
        self.promises = [
            dataclasses.replace(each, scenario=self._scenario.name)
            for each in self._scenario.observe(self.stage)
        ]
        broken = sum(not promise.ok for promise in self.promises)
        self._tell("done" if not broken else f"done, with {broken} promises broken")

    def _tell(self, sentence: str) -> None:
        self._say(f"{self._clock.elapsed_s:5.1f} s  {self._scenario.name:16} {sentence}")


def _acks_in_order(stages: Sequence[Stage]) -> tuple[str, bool]:
    acks = early = 0
    for stage in stages:
        ended: set[tuple[str, int, int]] = set()
        for line in stage.journal():
            place = (line["topic"], line["partition"], line["offset"])
            if line["event"] in _ENDS:
                ended.add(place)
            elif line["event"] == "ack_sent":
                acks += 1
                early += place not in ended
    return f"{early} of {acks} acks without an outcome before them", early == 0 < acks


def _nothing_left(stages: Sequence[Stage]) -> tuple[str, bool]:
    left = {stage.settings.group: lag for stage in stages if (lag := stage.lag())}
    if not left:
        return f"lag 0 in {len(stages)} groups", True
    return ", ".join(f"{group}: {lag}" for group, lag in left.items()), False
