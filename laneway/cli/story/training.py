"""The training story: three deliveries of one message, and a poison beside it that shares its message id.

The first delivery fails temporarily and waits 1000 ms. The second writes the effect and loses the
receipt: the process is killed when the result is saved and before the broker is told. The third is
acked after a look into the ledger. The poison has a payload that nobody can read; it goes to the DLQ
and its lane to a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from laneway.cli.story.app import report_path
from laneway.cli.story.stage import Line, Promise, Stage, judged, seen
from laneway.lanes.case import REASONS

MESSAGE = "job-7"
REPORT = "job-7:report"
POISON = "job-7:letter"
OUTCOMES = "controlled-retry, effect-written-receipt-unknown, ack-after-ledger-check"


class Training:
    """See the module."""

    name = "training"
    tables: ClassVar[Mapping[str, object]] = {}

    def play(self, stage: Stage) -> None:
        """Three deliveries, two processes."""
        stage.publish(
            REPORT, {"text": "first", "act": "fail-once"}, message_id=MESSAGE, lane="customer-1", sequence=1
        )
        stage.publish(POISON, {"txet": "?"}, message_id=MESSAGE, lane="customer-2", sequence=1)
        first = stage.start(crash_after=("told", REPORT))
        stage.wait("the first delivery", lambda: stage.journal("retry_scheduled", REPORT))
        stage.tell("the first delivery failed temporarily; it waits 1000 ms")
        stage.wait_for_end(first, "the lost receipt")
        stage.tell("kill -9: the effect is written, its receipt is lost; a second process takes over")
        second = stage.start()
        # Its offset may be committed before it is read again: the ledger is ahead.
        stage.wait("the third delivery", lambda: stage.journal("duplicate_suppressed", REPORT))
        stage.wait("the commits", lambda: stage.lag() == 0)
        stage.tell("the third delivery was acked after a look into the ledger")
        stage.stop(second)

    def observe(self, stage: Stage) -> Sequence[Promise]:
        """The order of the outcomes, and the ten invariants."""
        return [
            seen(
                "training.outcomes", "the three deliveries end in order", OUTCOMES, lambda: _outcomes(stage)
            ),
            seen(
                "training.one-message-id",
                "both branches carry one message id",
                f"journal: {MESSAGE}; DLQ: {MESSAGE}; case: {MESSAGE}",
                lambda: _message_ids(stage),
            ),
            judged(
                "training.controlled-delay",
                "the retry comes after its fixed delay, never before",
                "due 1000 ms after the failure, run no earlier",
                lambda: _delay(stage),
            ),
            seen(
                "training.no-effect-on-retry",
                "the delivery that failed left no effect",
                "attempts with an effect: 2",
                lambda: f"attempts with an effect: {_attempts_with_effect(stage)}",
            ),
            seen(
                "training.one-ledger-entry",
                "the ledger knows one finished effect",
                f"succeeded, attempt 2, {report_path(REPORT)}",
                lambda: _ledger_entry(stage),
            ),
            seen(
                "training.duplicate-suppressed",
                "the third delivery ran nothing and left a trace",
                "duplicate_suppressed, 0 runs in the second process",
                lambda: _suppressed(stage),
            ),
            seen(
                "training.terminal-decision",
                "the duplicate itself is acked, for good",
                "duplicate_suppressed then ack_sent, nothing waits",
                lambda: _terminal(stage),
            ),
            seen(
                "training.poison-no-effect",
                "the poison has no result in the ledger and ran nowhere",
                "quarantined, no result, 0 runs",
                lambda: _poison(stage),
            ),
            seen(
                "training.manual-route",
                "the poison went to the DLQ once, and its lane to a person",
                "1 dead letter (invalid-payload), 1 open case (rejected)",
                lambda: _manual_route(stage),
            ),
            seen(
                "training.bounded-decision",
                "a person is told what to check, and may choose from a list",
                f"a question; {', '.join(REASONS['rejected'].holding)}",
                lambda: _choices(stage),
            ),
            seen(
                "training.branches-apart",
                "the branches do not touch",
                "lanes: customer-1, customer-2; common effects: 0; reports: 1",
                lambda: _apart(stage),
            ),
        ]


def _outcomes(stage: Stage) -> str:
    first, second = stage.lives()
    mine = [line for line in first if line["effectKey"] == REPORT]
    deliveries = []
    if _events(mine, attempt=1)[-3:] == ["retry_scheduled", "lane_held", "ack_sent"]:
        deliveries.append("controlled-retry")
    told = _events(mine, attempt=2)
    if "result_saved" in told and "ack_sent" not in told and stage.exit_codes()[0] == -9:
        deliveries.append("effect-written-receipt-unknown")
    if _events([line for line in second if line["effectKey"] == REPORT], attempt=2)[1:] == [
        "duplicate_suppressed",
        "ack_sent",
    ]:
        deliveries.append("ack-after-ledger-check")
    return ", ".join(deliveries) or "none of them"


def _events(lines: Sequence[Line], attempt: int) -> list[str]:
    return [line["event"] for line in lines if line["attempt"] == attempt]


def _message_ids(stage: Stage) -> str:
    found = {
        "journal": {line["messageId"] for line in stage.journal()},
        "DLQ": {letter.message_id for letter in stage.dead_letters()},
        "case": {news.message_id for news in stage.news()},
    }
    return "; ".join(f"{where}: {', '.join(sorted(map(str, ids)))}" for where, ids in found.items())


def _delay(stage: Stage) -> tuple[str, bool]:
    own = stage.retries()[0].own_headers()
    due_ms = int(own["due-at"])
    delay_ms = due_ms - int(own["first-failed-at"])
    late_ms = next(run["atMs"] for run in stage.runs() if run["attempt"] == 2) - due_ms
    return f"due {delay_ms} ms after the failure, run {late_ms} ms later", delay_ms == 1000 and late_ms >= 0


def _attempts_with_effect(stage: Stage) -> str:
    return ", ".join(str(run["attempt"]) for run in stage.runs() if run["effectKey"] == REPORT)


def _ledger_entry(stage: Stage) -> str:
    effect = stage.effects(REPORT)[0]
    if effect is None:
        return "nothing"
    return f"{effect.state.name.lower()}, attempt {effect.attempt}, {effect.result_key}"


def _suppressed(stage: Stage) -> str:
    second = stage.lives()[1]
    runs = sum(line["event"] == "running" for line in second)
    traces = {line["event"] for line in second if line["event"] == "duplicate_suppressed"}
    return f"{', '.join(traces) or 'no trace'}, {runs} runs in the second process"


def _terminal(stage: Stage) -> str:
    ends = [
        line["event"]
        for line in stage.lives()[1]
        if line["effectKey"] == REPORT and line["event"] in {"duplicate_suppressed", "ack_sent"}
    ]
    lag = stage.lag()
    return f"{' then '.join(ends)}, {'nothing waits' if lag == 0 else f'{lag} wait'}"


def _poison(stage: Stage) -> str:
    effect = stage.effects(POISON)[0]
    state = "unknown" if effect is None else effect.state.name.lower()
    result = "no result" if effect is None or effect.result_key is None else effect.result_key
    runs = sum(run["effectKey"] == POISON for run in stage.runs())
    return f"{state}, {result}, {runs} runs"


def _manual_route(stage: Stage) -> str:
    letters = [letter for letter in stage.dead_letters() if letter.effect_key == POISON]
    cases = [news for news in stage.news() if news.effect_key == POISON and news.event == "opened"]
    return (
        f"{len(letters)} dead letter ({', '.join(sorted({str(letter.reason) for letter in letters}))}), "
        f"{len(cases)} open case ({', '.join(sorted({news.reason for news in cases}))})"
    )


def _choices(stage: Stage) -> str:
    case = next(news for news in stage.news() if news.effect_key == POISON)
    return (
        f"{'a question' if case.required_check.endswith('?') else 'no question'}; {', '.join(case.actions)}"
    )


def _apart(stage: Stage) -> str:
    effects: dict[str, set[str]] = {}
    for line in stage.journal():
        effects.setdefault(line["sequenceKey"], set()).add(line["effectKey"])
    common = set.intersection(*effects.values())
    return (
        f"lanes: {', '.join(sorted(effects))}; common effects: {len(common)}; reports: {len(stage.reports())}"
    )
