"""Planted defects of async and batch handlers: see `defects`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import laneway.consumer.running.batching as batching_module
import laneway.consumer.running.pool as pool_module
from laneway.consumer.running.batching import Batch, Batching
from laneway.lanes.run import Run
from laneway.lanes.verdict import ACK, Outcome
from laneway.processing import Processor
from tests.simulation.defect import Defect
from tests.simulation.planting import Change


def _cut_off_is_done() -> Sequence[Change]:
    return [(pool_module, "unknown_of", lambda _: ACK)]


def _cut_off_runs_again() -> Sequence[Change]:
    """In `review` too: as if every target honoured the effect key."""
    unknown_of = pool_module.unknown_of

    def run_again(settings: Any) -> Outcome:
        ledger = settings.ledger.model_copy(update={"on_unknown_outcome": "run-again"})
        return unknown_of(settings.model_copy(update={"ledger": ledger}))

    return [(pool_module, "unknown_of", run_again)]


def _answers_of_the_next() -> Sequence[Change]:
    end = Batch.end

    def shifted(self: Batch, answers: Sequence[Outcome | None]) -> tuple[list[Run], list[Run]]:
        return end(self, [*answers[1:], *answers[:1]])

    return [(Batch, "end", shifted)]


def _unstarted_is_done() -> Sequence[Change]:
    end = Batch.end

    def all_done(self: Batch, answers: Sequence[Outcome | None]) -> tuple[list[Run], list[Run]]:
        return end(self, [ACK if answer is None else answer for answer in answers])

    return [(Batch, "end", all_done)]


def _answers_behind_a_failure_count() -> Sequence[Change]:
    def all_of_them(answers: Sequence[Outcome | None], _: Run) -> list[Outcome]:
        return [answer for answer in answers if answer is not None]

    return [(batching_module, "_in_order", all_of_them)]


def _order_inside_a_batch() -> Sequence[Change]:
    begin = Batching._begin

    def mixed(self: Batching, parts: Sequence[tuple[Run, int]], now_ms: int) -> Batch:
        batch = begin(self, parts, now_ms)
        batch.deliveries.reverse()
        batch.runs.reverse()
        return batch

    return [(Batching, "_begin", mixed)]


def _unknown_is_done() -> Sequence[Change]:
    def acked(self: Processor, _: BaseException, deliveries: Sequence[Any], __: Outcome) -> list[Outcome]:
        return [ACK] * len(deliveries)

    return [(Processor, "_batch_failed", acked)]


HANDLER_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "cut-off-is-done",
        "4.6",
        "a handler that was cancelled for taking too long counts as done",
        _cut_off_is_done,
        within=1000,
        breaks=frozenset({3}),
    ),
    Defect(
        "cut-off-runs-again",
        "4.3",
        "with `review` too, what was cut off runs again",
        _cut_off_runs_again,
        within=2000,
        breaks=frozenset({3}),
    ),
    Defect(
        "answers-of-the-next",
        "3",
        "each delivery of a batch gets the answer of the one behind it",
        _answers_of_the_next,
        within=500,
        breaks=frozenset({3, 6}),
    ),
    Defect(
        "unstarted-is-done",
        "3",
        "what a batch handler never came to counts as done",
        _unstarted_is_done,
        within=500,
        breaks=frozenset({3, 6}),
    ),
    Defect(
        "answers-behind-a-failure-count",
        "3",
        "in a batch, a lane goes on behind a record that did not succeed",
        _answers_behind_a_failure_count,
        within=2000,
        breaks=frozenset({2, 4, 8, 9}),
    ),
    Defect(
        "order-inside-a-batch",
        "3",
        "the records of a lane do not stand in their order in a batch",
        _order_inside_a_batch,
        within=500,
        breaks=frozenset({2}),
    ),
    Defect(
        "unknown-is-done",
        "3",
        "a batch handler that raised has done them all",
        _unknown_is_done,
        within=500,
        breaks=frozenset({3, 6}),
    ),
)
