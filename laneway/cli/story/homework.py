"""The homework, without a sequence key: five messages and one of them empty, Ctrl+C in mid-work, and acks
ten at a time with a crash in the middle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from laneway.cli.story.app import GO_ON
from laneway.cli.story.stage import Promise, Stage, judged, seen

_NO_ORDER: Mapping[str, object] = {
    "envelope": {"sequence_key": None, "sequence": None},
    "lanes": {"workers": 1},
}


class Poison:
    """Five messages, one empty."""

    name = "homework-poison"
    tables: ClassVar[Mapping[str, object]] = _NO_ORDER

    def play(self, stage: Stage) -> None:
        """The third message is empty."""
        for number in range(1, 6):
            if number == 3:
                stage.publish_bytes(b"")
            else:
                stage.publish(f"message-{number}", {"text": f"number {number}"})
        worker = stage.start()
        stage.wait("the commits", lambda: stage.lag() == 0 and stage.committed() == 5)
        stage.tell("four messages were acked, the empty one went to the DLQ")
        stage.stop(worker)

    def observe(self, stage: Stage) -> Sequence[Promise]:
        """Rejected without return; four acked."""
        return [
            seen(
                "homework.poison",
                "an empty message is rejected without return, the four others are acked",
                "1 dead letter after 1 attempt, 0 retries, 4 reports, 5 of 5 committed",
                lambda: _rejected(stage),
            )
        ]


class Interrupted:
    """Ctrl+C while the first of five is in work."""

    name = "homework-ctrl-c"
    tables: ClassVar[Mapping[str, object]] = _NO_ORDER

    def play(self, stage: Stage) -> None:
        """Interrupt, let the running one finish, start again."""
        for number in range(1, 6):
            act = "wait" if number == 1 else "slow"
            stage.publish(f"message-{number}", {"text": f"number {number}", "act": act})
        first = stage.start()
        stage.wait("the first message to be in work", stage.runs)
        stage.tell("Ctrl+C in mid-work")
        first.interrupt()
        stage.wait("the worker to hear it", lambda: "stopping" in first.last_words())
        (stage.directory / GO_ON).touch()
        stage.wait_for_end(first, "the worker's end")
        stage.tell("the running message was finished; a second process takes the rest")
        second = stage.start()
        stage.wait("the commits", lambda: stage.lag() == 0)
        stage.stop(second)

    def observe(self, stage: Stage) -> Sequence[Promise]:
        """What ran was acked; the rest came back, marked."""
        return [
            seen(
                "homework.ctrl-c",
                "Ctrl+C finishes and acks what runs; the rest comes back, marked redelivered",
                "exit 0; finished: all acked; the rest: all redelivered; runs per message: 1",
                lambda: _interrupted(stage),
            )
        ]


class Tens:
    """Twenty-five messages, settled ten at a time; the process dies in the fifteenth."""

    name = "homework-tens"
    tables: ClassVar[Mapping[str, object]] = {**_NO_ORDER, "cycle": {"max_records": 10, "max_ms": 5000}}

    def play(self, stage: Stage) -> None:
        """Kill -9 behind the fifteenth effect, when the first ten are acked."""
        for number in range(1, 26):
            task: dict[str, object] = {"text": f"number {number}"}
            if number == 15:
                task |= {"act": "die-once", "after_acks": 10}
            stage.publish(f"message-{number}", task)
        stage.wait_for_end(stage.start(), "the crash")
        stage.tell("kill -9 in the middle of ten; a second process takes over")
        second = stage.start()
        stage.wait("all reports", lambda: len(stage.reports()) == 25)
        # The last five are no ten: they are settled when their cycle is old enough, or now.
        stage.stop(second)

    def observe(self, stage: Stage) -> Sequence[Promise]:
        """At most nine again, harmlessly."""
        return [
            judged(
                "homework.tens",
                "a crash inside a batch of ten repeats at most nine done jobs, all marked redelivered",
                "at most 9 ran twice, no acked one, all marked; 25 reports, 25 of 25 committed",
                lambda: _tens(stage),
            )
        ]


def _rejected(stage: Stage) -> str:
    letters = stage.dead_letters()
    attempts = ", ".join(sorted({str(letter.attempt) for letter in letters}))
    return (
        f"{len(letters)} dead letter after {attempts} attempt, {len(stage.retries())} retries, "
        f"{len(stage.reports())} reports, {stage.committed()} of 5 committed"
    )


def _interrupted(stage: Stage) -> str:
    first, second = stage.lives()
    finished = {line["effectKey"] for line in first if line["event"] == "result_saved"}
    acked = {line["effectKey"] for line in first if line["event"] == "ack_sent"}
    rest = {line["effectKey"]: line["redelivered"] for line in second if line["event"] == "running"}
    runs = sorted(set(Counter(run["effectKey"] for run in stage.runs()).values()))
    done = "all acked" if finished and finished == acked else f"{len(acked)} of {len(finished)} acked"
    marked = "all redelivered" if rest and all(rest.values()) else f"{sum(rest.values())} of {len(rest)}"
    return (
        f"exit {stage.exit_codes()[0]}; finished: {done}; the rest: {marked}; "
        f"runs per message: {', '.join(map(str, runs))}"
    )


def _tens(stage: Stage) -> tuple[str, bool]:
    acked = {line["effectKey"] for line in stage.lives()[0] if line["event"] == "ack_sent"}
    runs = Counter(run["effectKey"] for run in stage.runs())
    twice = {effect_key for effect_key, times in runs.items() if times > 1}
    marked = {run["effectKey"] for run in stage.runs() if run["redelivered"]}
    reports, committed = len(stage.reports()), stage.committed()
    text = (
        f"{len(twice)} ran twice, {len(twice & acked)} of them acked before, "
        f"{len(twice & marked)} marked; {reports} reports, {committed} of 25 committed"
    )
    harmless = 1 <= len(twice) <= 9 and not twice & acked and twice <= marked and max(runs.values()) == 2
    return text, harmless and reports == committed == 25
