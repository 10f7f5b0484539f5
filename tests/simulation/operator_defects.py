"""Planted defects of operator commands: each switches one rule of design 4.7 off.

As in `defects`; what stands in the code's place while one is planted stands here beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

import laneway.lanes.forward as forward_module
import laneway.lanes.judging as judging_module
import laneway.lanes.record as record_module
import laneway.lanes.resolving as resolving_module
import laneway.lanes.settling as settling_module
from laneway.lanes.admission import Order
from laneway.lanes.board import Board
from laneway.lanes.books import Books
from laneway.lanes.case import REASONS, Case, case_id
from laneway.lanes.command import Command, Letter
from laneway.lanes.dead_letter import refusal_of_letter
from laneway.lanes.effect import FINISHED, Effect, EffectState, Replay
from laneway.lanes.judging import Judging
from laneway.lanes.lane import Lane
from laneway.lanes.record import Record, replay_of
from laneway.lanes.resolving import Resolving
from laneway.lanes.settlement import Settled, Settlement
from laneway.lanes.settling import Settling
from laneway.lanes.view import PutCase
from laneway.lanes.work import Work
from tests.simulation.defect import Defect
from tests.simulation.planting import Change


def _command_does_not_wait() -> Sequence[Change]:
    def at_once(self: Board, record: Record, now_ms: int) -> None:
        command = record.command
        if command is None or not command.lane or command.rule.runs:
            waits(self, record, now_ms)
            return
        work = self._lanes.of([command.lane])[0]
        barrier, work.barrier = work.barrier, 0
        done = self._judging._judge_command(work, record, {}, now_ms)
        work.barrier = max(barrier, work.barrier)
        if done is None:
            self._lanes.command(record)
        self._lanes.wake(work)

    waits = Board._command
    return [(Board, "_command", at_once)]


def _attempts_do_not_tell_cases_apart() -> Sequence[Change]:
    named = case_id

    def by_position(reason: str, topic: str, partition: int, lane: str, about: str) -> str:
        return named(reason, topic, partition, lane, about.split("/", maxsplit=1)[0])

    return [(settling_module, "case_id", by_position)]


def _case_settles_before_verdict() -> Sequence[Change]:
    run_again, settle, closed_by = Judging._run_again, Books.settle, Judging.closed_by
    early: dict[int, Record] = {}

    def case_first(
        self: Judging, work: Work, record: Record, case: Case, effect: Any, now_ms: int
    ) -> bool | None:
        starts = run_again(self, work, record, case, effect, now_ms)
        if starts and id(record) not in early:
            done = Settlement(record, Settled.SKIPPED, [PutCase(case.case_id, None)], "replay")
            self._settling._answer(done, record, None, now_ms)
            self._settling.close(done, case, record, "replay", now_ms)
            settle(self._books, done, None, None)
            early[id(record)] = record
        return starts

    def without_offset(self: Books, settlement: Settlement, after: Any, work: Any, **named: Any) -> None:
        record = settlement.record
        if early.get(id(record)) is not record:
            settle(self, settlement, after, work, **named)
            return
        record.parked = True
        settlement.forwards = [f for f in settlement.forwards if b'"commandId"' not in (f.value or b"")]
        settle(self, settlement, after, work, **named)
        record.parked = False

    def of_others(self: Judging, record: Record, lane: Lane) -> Case | None:
        return None if early.get(id(record)) is record else closed_by(self, record, lane)

    return [
        (Judging, "_run_again", case_first),
        (Books, "settle", without_offset),
        (Judging, "closed_by", of_others),
    ]


def _replay_does_not_renew() -> Sequence[Change]:
    return [(settling_module, "_base", lambda record, lane: 0)]


def _loose_cases_run() -> Sequence[Change]:
    return [
        (REASONS, reason, msgspec.structs.replace(REASONS[reason], loose=(*REASONS[reason].loose, "replay")))
        for reason in ("sequence-stale", "effect-conflict")
    ]


def _any_effect_is_discarded() -> Sequence[Change]:
    after = Resolving._effect_after

    def whosever(
        record: Record, command: Command, case: Case, effect: Any, lane: Lane, now_ms: int
    ) -> object:
        if effect is not None and command.action != "mark-done":
            case = msgspec.structs.replace(case, offset=effect.offset, holds=True)
        return after(record, command, case, effect, lane, now_ms)

    return [(Resolving, "_effect_after", staticmethod(whosever))]


def _set_next_anywhere() -> Sequence[Change]:
    refusal = resolving_module.refusal_of_next

    def whatever_is_parked(sequence: int, lane: Lane, first: int | None, _: int | None) -> str:
        return refusal(sequence, lane, first, None)

    return [(judging_module, "refusal_of_next", whatever_is_parked)]


def _replays_unbounded() -> Sequence[Change]:
    def without_bound(
        letter: Letter, lane_id: str, effect: Effect | None, lane: Lane, order: Order, _: int
    ) -> str:
        return refusal_of_letter(letter, lane_id, effect, lane, order, 10**6)

    return [(judging_module, "refusal_of_letter", without_bound)]


def _lineage_is_lost() -> Sequence[Change]:
    def of_commands_only(record: Record) -> Replay | None:
        return replay_of(record) if record.command is not None else None

    modules = (forward_module, settling_module, record_module)
    return [(module, "replay_of", of_commands_only) for module in modules]


def _letter_is_replayed_twice() -> Sequence[Change]:
    def whatever_became_of_it(
        letter: Letter, lane_id: str, effect: Effect | None, lane: Lane, order: Order, most: int
    ) -> str:
        if effect is not None and effect.offset == letter.offset and effect.state in FINISHED:
            effect = msgspec.structs.replace(effect, state=EffectState.QUARANTINED, attempt=letter.attempt)
        return refusal_of_letter(letter, lane_id, effect, lane, order, most)

    return [(judging_module, "refusal_of_letter", whatever_became_of_it)]


def _replayed_beside_a_case() -> Sequence[Change]:
    def whoever_holds(
        letter: Letter, lane_id: str, effect: Effect | None, lane: Lane, order: Order, most: int
    ) -> str:
        return refusal_of_letter(
            letter, lane_id, effect, msgspec.structs.replace(lane, hold=None), order, most
        )

    return [(judging_module, "refusal_of_letter", whoever_holds)]


def _late_replay_moves_back() -> Sequence[Change]:
    moved_past = settling_module.Settling.moved_past

    def to_its_number(self: Settling, done: Settlement, record: Record, lane: Lane) -> Lane:
        return moved_past(self, done, record, msgspec.structs.replace(lane, last=None))

    return [(settling_module.Settling, "moved_past", to_its_number)]


OPERATOR_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "command-does-not-wait",
        "4.7 †",
        "a command is applied while a delivery of its lane is in flight",
        _command_does_not_wait,
        within=1500,
        breaks=frozenset({2, 3, 4, 6, 8, 9}),
    ),
    Defect(
        "old-command-hits-new-case",
        "4.7 †",
        "the id of a case does not tell its attempt",
        _attempts_do_not_tell_cases_apart,
        within=1500,
        breaks=frozenset({6, 9}),
    ),
    Defect(
        "case-settles-before-verdict",
        "4.7 †",
        "a replay's case and command settle as it starts",
        _case_settles_before_verdict,
        within=1000,
        breaks=frozenset({1, 2, 3, 4, 8, 9}),
    ),
    Defect(
        "replay-does-not-renew",
        "4.7 †",
        "a replay has only what is left of its attempts",
        _replay_does_not_renew,
        within=1500,
        breaks=frozenset({9, 13}),
    ),
    Defect(
        "replay-of-loose-case",
        "4.7 †",
        "a case that holds nothing may be run",
        _loose_cases_run,
        within=1000,
        breaks=frozenset({2, 3, 4, 8, 9}),
    ),
    Defect(
        "discard-any-effect",
        "4.7 †",
        "skip and discard end an effect whosever it is",
        _any_effect_is_discarded,
        within=2000,
        breaks=frozenset({3, 4, 8, 9}),
    ),
    Defect(
        "set-next-over-parked",
        "4.7 †",
        "a lane may be told to wait for a number beyond one that is parked",
        _set_next_anywhere,
        within=1000,
        breaks=frozenset({1}),
    ),
    Defect(
        "replays-unbounded",
        "4.7, 0007",
        "a dead letter may be replayed for ever",
        _replays_unbounded,
        within=1500,
        breaks=frozenset({14}),
    ),
    Defect(
        "lineage-is-lost",
        "4.7, 0007",
        "retries and cases of a replay do not say where it came from",
        _lineage_is_lost,
        within=3000,
        breaks=frozenset({14}),
        start=25_000,
    ),
    Defect(
        "letter-replayed-twice",
        "4.7, 0007",
        "a dead letter is replayed whatever became of its effect",
        _letter_is_replayed_twice,
        within=1000,
        breaks=frozenset({3, 14}),
    ),
    Defect(
        "replay-beside-case",
        "4.7, 0007",
        "a dead letter is replayed while its lane waits",
        _replayed_beside_a_case,
        within=1000,
        breaks=frozenset({2, 4, 8, 9}),
    ),
    Defect(
        "late-replay-moves-back",
        "4.7, 0007",
        "a lane goes back to the number of a replayed dead letter",
        _late_replay_moves_back,
        within=1500,
        breaks=frozenset({2, 4, 5, 8, 9}),
    ),
)
