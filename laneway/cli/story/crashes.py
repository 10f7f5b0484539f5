"""kill -9 at the two places that matter: behind the saved result, and before it.

Between `result_saved` and the ack: the next process only acks. Between the effect and its result: nobody
can know that it happened, so it runs again with the same effect key, marked redelivered, and the world
ends up the same because the report lies at a path that follows from that key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from laneway.cli.story.stage import Promise, Stage, seen

LANE = "invoice-3"


def _publish(stage: Stage, number: int, act: str = "write") -> None:
    task = {"text": f"page {number}", "act": act}
    stage.publish(f"{LANE}:{number}", task, lane=LANE, sequence=number)


class Receipt:
    """The process dies between result_saved and ack."""

    name = "receipt"
    tables: ClassVar[Mapping[str, object]] = {}

    def play(self, stage: Stage) -> None:
        """Die when the second result is saved, go on in another process."""
        for number in (1, 2, 3):
            _publish(stage, number)
        stage.wait_for_end(stage.start(crash_after=("told", f"{LANE}:2")), "the crash")
        stage.tell("kill -9 between result_saved and ack; a second process takes over")
        second = stage.start()
        # Its offset may be committed before it is read again: the ledger is ahead.
        stage.wait("the second page again", lambda: stage.journal("duplicate_suppressed", f"{LANE}:2"))
        stage.wait("the commits", lambda: stage.lag() == 0)
        stage.stop(second)

    def observe(self, stage: Stage) -> Sequence[Promise]:
        """An ack only; one result."""
        return [
            seen(
                "receipt.ack-only",
                "a crash between result_saved and ack leads to an ack only",
                "before: result_saved, no ack; after: duplicate_suppressed, ack_sent",
                lambda: _before_and_after(stage, f"{LANE}:2"),
            ),
            seen(
                "receipt.one-result",
                "no effect ran a second time, and all ran in order",
                "ran 1, 2, 3; 3 reports",
                lambda: f"ran {', '.join(map(str, stage.runs_of(LANE)))}; {len(stage.reports())} reports",
            ),
        ]


class Effect:
    """The process dies between the effect and its result."""

    name = "effect"
    tables: ClassVar[Mapping[str, object]] = {}

    def play(self, stage: Stage) -> None:
        """The handler kills its own process behind the second effect."""
        first = stage.start()
        _publish(stage, 1)
        # Settled by itself: what shares a run with the crash is repeated with it.
        stage.wait("the first page to be acked", lambda: stage.journal("ack_sent"))
        _publish(stage, 2, "die-once")
        _publish(stage, 3)
        stage.wait_for_end(first, "the crash")
        stage.tell("kill -9 between the effect and its result; a second process takes over")
        second = stage.start()
        stage.wait("the commits", lambda: stage.lag() == 0)
        stage.stop(second)

    def observe(self, stage: Stage) -> Sequence[Promise]:
        """Again, with the same key, marked; the world is the same."""
        return [
            seen(
                "effect.again-and-marked",
                "a crash between effect and result runs it again, with the same key, marked redelivered",
                "invoice-3:2 ran 2 times, redelivered: no, yes",
                lambda: _marked(stage, f"{LANE}:2"),
            ),
            seen(
                "effect.one-report",
                "the second run leaves the world as it was, and the lane goes on in order",
                "ran 1, 2, 2, 3; 3 reports",
                lambda: f"ran {', '.join(map(str, stage.runs_of(LANE)))}; {len(stage.reports())} reports",
            ),
        ]


def _before_and_after(stage: Stage, effect_key: str) -> str:
    before, after = (
        [line["event"] for line in life if line["effectKey"] == effect_key] for life in stage.lives()
    )
    saved = "result_saved" if "result_saved" in before else "no result"
    acked = "an ack" if "ack_sent" in before else "no ack"
    ends = [event for event in after if event != "received"]
    return f"before: {saved}, {acked}; after: {', '.join(ends) or 'nothing'}"


def _marked(stage: Stage, effect_key: str) -> str:
    marks = ["yes" if run["redelivered"] else "no" for run in stage.runs() if run["effectKey"] == effect_key]
    return f"{effect_key} ran {len(marks)} times, redelivered: {', '.join(marks)}"
