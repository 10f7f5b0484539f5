"""Order inside a key: a gap and its late predecessor, publisher duplicates, a retry and its followers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from laneway.cli.story.stage import Promise, Stage, judged, seen


class Gap:
    """1, 2, 4, 5 arrive; 3 comes late."""

    name = "gap"
    tables: ClassVar[Mapping[str, object]] = {}
    lane = "order-17"

    def play(self, stage: Stage) -> None:
        """Wait for the case, then let the predecessor arrive."""
        for number in (1, 2, 4, 5):
            self._publish(stage, number)
        worker = stage.start()
        stage.wait("the case", stage.news)
        stage.wait("the followers to be parked", lambda: stage.committed() == 4)
        stage.tell("3 is missing: 4 and 5 are parked behind a case; now 3 arrives late")
        self._publish(stage, 3)
        stage.wait("the late predecessor and its followers", lambda: len(stage.runs()) >= 5)
        stage.wait("the commits", lambda: stage.lag() == 0 and len(stage.news()) >= 2)
        stage.stop(worker)

    def observe(self, stage: Stage) -> Sequence[Promise]:
        """The case, the order, the end of the case."""
        return [
            seen(
                "gap.case",
                "a missing sequence opens one case for a person, and is not retried",
                "case sequence-gap, missing 3; 0 retries",
                lambda: _case(stage),
            ),
            seen(
                "gap.order",
                "nothing behind the gap runs before the late predecessor",
                "ran 1, 2, 3, 4, 5",
                lambda: f"ran {', '.join(map(str, stage.runs_of(self.lane)))}",
            ),
            seen(
                "gap.closed",
                "the case closes by itself when the predecessor has run",
                "opened, resolved (predecessor-arrived)",
                lambda: ", ".join(
                    news.event if news.resolution is None else f"{news.event} ({news.resolution})"
                    for news in stage.news()
                ),
            ),
        ]

    def _publish(self, stage: Stage, number: int) -> None:
        stage.publish(f"{self.lane}:{number}", {"text": f"step {number}"}, lane=self.lane, sequence=number)


class Duplicates:
    """A publisher that sends again, and message ids that mean nothing."""

    name = "duplicates"
    tables: ClassVar[Mapping[str, object]] = {}
    lane = "account-5"

    def play(self, stage: Stage) -> None:
        """One effect three times under two message ids; two effects under one message id."""
        first, second, third = (f"{self.lane}:{number}" for number in (1, 2, 3))
        worker = stage.start()
        stage.publish(first, {"text": "one"}, message_id="m-1", lane=self.lane, sequence=1)
        # Only an effect that is settled can be found in the ledger.
        stage.wait("the first to be acked", lambda: stage.journal("ack_sent"))
        for message_id in ("m-1", "m-2"):
            stage.publish(first, {"text": "one"}, message_id=message_id, lane=self.lane, sequence=1)
        stage.publish(second, {"text": "two"}, message_id="m-3", lane=self.lane, sequence=2)
        stage.publish(third, {"text": "three"}, message_id="m-3", lane=self.lane, sequence=3)
        stage.wait("the commits", lambda: stage.lag() == 0 and stage.committed() == 5)
        stage.tell("one effect came three times and ran once")
        stage.stop(worker)

    def observe(self, stage: Stage) -> Sequence[Promise]:
        """Once per effect key, whatever the message id."""
        return [
            seen(
                "duplicates.once",
                "an effect that is published again runs once; a message id may have several effects",
                "runs: account-5:1 1, account-5:2 1, account-5:3 1",
                lambda: _runs(stage),
            ),
            seen(
                "duplicates.trace",
                "each suppressed duplicate leaves a trace of where it was found, and is acked",
                "suppressed and acked at offsets 1, 2; cases: 0",
                lambda: _traces(stage),
            ),
        ]


class Retry:
    """2 of five fails once; 3, 4 and 5 wait for it."""

    name = "retry"
    tables: ClassVar[Mapping[str, object]] = {}
    lane = "order-9"

    def play(self, stage: Stage) -> None:
        """Another lane is not held up meanwhile."""
        for number in range(1, 6):
            act = "fail-once" if number == 2 else "write"
            task = {"text": f"step {number}", "act": act}
            stage.publish(f"{self.lane}:{number}", task, lane=self.lane, sequence=number)
        stage.publish("order-10:1", {"text": "unrelated"}, lane="order-10", sequence=1)
        worker = stage.start()
        stage.wait("the failure", lambda: stage.journal("retry_scheduled"))
        stage.tell("2 waits for its retry, 3, 4 and 5 wait for 2")
        stage.wait("the commits", lambda: stage.lag() == 0 and stage.retries() and stage.committed() == 6)
        stage.wait("the followers", lambda: self._all_acked(stage))
        stage.stop(worker)

    def observe(self, stage: Stage) -> Sequence[Promise]:
        """In order, after the delay, nobody asked."""
        return [
            seen(
                "retry.order",
                "followers of a record that waits for its retry wait with it, and run in order",
                "ran 1, 2, 3, 4, 5",
                lambda: f"ran {', '.join(map(str, stage.runs_of(self.lane)))}",
            ),
            seen(
                "retry.no-case",
                "a follower of a waiting record is never a gap",
                "cases: 0, dead letters: 0",
                lambda: f"cases: {len(stage.news())}, dead letters: {len(stage.dead_letters())}",
            ),
            judged(
                "retry.others-go-on",
                "another key is not held up by the wait",
                "order-10 ran before the retry",
                lambda: self._others(stage),
            ),
        ]

    def _all_acked(self, stage: Stage) -> bool:
        waiting = {line["effectKey"] for line in stage.journal("parked")}
        return waiting <= {line["effectKey"] for line in stage.journal("ack_sent")}

    def _others(self, stage: Stage) -> tuple[str, bool]:
        at_ms = {(run["effectKey"], run["attempt"]): run["atMs"] for run in stage.runs()}
        early_ms = at_ms[f"{self.lane}:2", 2] - at_ms["order-10:1", 1]
        return f"order-10 ran {early_ms} ms before the retry", early_ms > 0


def _case(stage: Stage) -> str:
    opened = [news for news in stage.news() if news.event == "opened"]
    cases = ", ".join(f"{news.reason}, missing {news.sequence}" for news in opened)
    return f"case {cases}; {len(stage.retries())} retries"


def _runs(stage: Stage) -> str:
    runs = Counter(run["effectKey"] for run in stage.runs())
    return "runs: " + ", ".join(f"{effect_key} {times}" for effect_key, times in sorted(runs.items()))


def _traces(stage: Stage) -> str:
    suppressed = [line["offset"] for line in stage.journal("duplicate_suppressed")]
    acked = {line["offset"] for line in stage.journal("ack_sent")}
    found = ", ".join(str(offset) for offset in sorted(suppressed) if offset in acked)
    return f"suppressed and acked at offsets {found}; cases: {len(stage.news())}"
