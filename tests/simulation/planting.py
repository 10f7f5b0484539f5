"""How a rule is switched off: for each planted defect, what stands in the code's place while it is planted.

Boundary: it changes the code under test and puts it back. Which rule that is, and who notices, is `defects`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec

import laneway.lanes.books as books_module
import laneway.lanes.judging as judging_module
import laneway.lanes.settling as settling_module
from laneway.consumer.assignment.ownership import Ownership
from laneway.consumer.intake import Intake
from laneway.consumer.partition import Partition, State
from laneway.consumer.settler import Cycle, Step
from laneway.consumer.settling.local_truth import LocalTruth
from laneway.consumer.worker import Worker
from laneway.lanes.admission import IN_TURN, Action, Decision, Standing
from laneway.lanes.board import Board
from laneway.lanes.effect import Effect
from laneway.lanes.envelope import Envelope
from laneway.lanes.forward import Forward, Forwarder
from laneway.lanes.frontier import Frontier
from laneway.lanes.judging import Judging
from laneway.lanes.lane import HoldKind, Lane
from laneway.lanes.record import Channel, Record, lane_of_one
from laneway.lanes.settlement import Settlement
from laneway.lanes.settling import Settling
from laneway.lanes.verdict import Ack, Emitted, Outcome
from laneway.lanes.view import ChannelMark
from laneway.lanes.work import EffectsInHand, Work
from laneway.store.memory import MemoryLedger
from tests.outside import HandlerRun, Outside

Change = tuple[Any, Any, Any]
"""(class, module or dict; attribute or key; what stands there while the defect is planted)"""


def offsets_before_ledger() -> Sequence[Change]:
    write, steps = LocalTruth._write, LocalTruth.steps

    def eager_write(self: LocalTruth, cycle: Cycle) -> bool:
        done = write(self, cycle)
        for part in cycle.parts:
            if part.cut is not None:
                for channel, mark in part.cut.meta.marks.items():
                    part.partition.durable[channel] = mark.frontier
        return done

    def reordered(self: LocalTruth) -> Sequence[tuple[str, Step]]:
        found = dict(steps.fget(self))  # type: ignore[attr-defined]
        order = ("written", "committed", "synced", "told", "published", "acked")
        return [(name, found[name]) for name in order]

    return [(LocalTruth, "_write", eager_write), (LocalTruth, "steps", property(reordered))]


def highest_seen() -> Sequence[Change]:
    return [(Frontier, "mark", lambda self: ChannelMark(self.position, ()))]


def header_attempts() -> Sequence[Change]:
    def any_attempt(lane: Lane, effect_key: str, *_: int) -> bool:
        hold = lane.hold
        return hold is not None and hold.kind is HoldKind.RETRY and hold.effect_key == effect_key

    return [(judging_module, "may_run_held", any_attempt)]


def by_message_id() -> Sequence[Change]:
    read = Envelope.read

    def by_message(self: Envelope, record: Record, topic: str, partition: int) -> None:
        read(self, record, topic, partition)
        if record.effect_key:
            record.effect_key = record.message_id
            if record.sequence_key is None:
                record.lane = lane_of_one(record.effect_key)

    return [(Envelope, "read", by_message)]


def random_ids() -> Sequence[Change]:
    numbers = count()
    return [(Forwarder, "_forward_id", lambda *_: f"random-{next(numbers)}")]


def no_epoch() -> Sequence[Change]:
    def take_finished(self: Worker, now_ms: int) -> int:
        runs = self._workers.finished()
        for run in runs:
            partition = run.owner
            assert isinstance(partition, Partition)
            now = self._ownership.find(partition.topic, partition.partition)
            board = now[0].board if now is not None else None
            if board is None or now is None or now[0].state is State.CLOSED:
                board = partition.board
            assert board is not None
            work = board._lanes.get(run.lane)
            if work is None and board is not partition.board:
                work = board._lanes.of([run.lane])[0]
            if work is None:
                continue
            if partition.board is not None and partition.board is not board:
                partition.board.abandon(run)
            # Whoever has the partition now takes the completion, whichever ownership handed it out.
            work.run = run
            run.epoch = board._epoch
            board.settle(run, now_ms)
        if self._ownership.lingering:
            self._ownership.tidy()
        return len(runs)

    return [*fence_is_gone(), (Worker, "_take_finished", take_finished)]


def no_positions() -> Sequence[Change]:
    return [(books_module, "reopened", lambda start, _: Frontier(start))]


def misfits_out_of_turn() -> Sequence[Change]:
    read = Envelope.read

    def at_once(self: Envelope, record: Record, topic: str, partition: int) -> None:
        read(self, record, topic, partition)
        if record.channel is Channel.SOURCE and record.misfit and not record.fault:
            record.fault, record.lane = record.misfit, ""

    return [(Envelope, "read", at_once)]


def cell(table: dict[Any, Any], key: object, value: object) -> Callable[[], Sequence[Change]]:
    return lambda: [(table, key, value)]


def parked_by_number() -> Sequence[Change]:
    return [(settling_module, "_parked_key", lambda record: (record.lane, record.sequence, 0))]


def payload_before_effect() -> Sequence[Change]:
    decide = Judging._decide

    def misfit_first(self: Judging, record: Record, effect: Effect | None, in_turn: bool) -> Decision:
        if in_turn and record.misfit:
            return Decision(Action.RUN)
        return decide(self, record, effect, in_turn)

    return [(Judging, "_decide", misfit_first)]


def duplicate_stays() -> Sequence[Change]:
    duplicate = Settling.duplicate

    def stays(self: Settling, *args: Any, in_turn: bool, now_ms: int) -> tuple[Settlement, Lane]:
        return duplicate(self, *args, in_turn=False, now_ms=now_ms)

    return [(Settling, "duplicate", stays)]


def source_before_parked() -> Sequence[Change]:
    def only_without_others(work: Work) -> bool:
        return work.state.is_free and work.state.parked > 0 and not work.waiting

    return [(Judging, "_parked_come_first", staticmethod(only_without_others))]


def all_channels_pause() -> Sequence[Change]:
    blocked = Board.blocked

    def all_of_it(self: Board) -> dict[Channel, str]:
        found = blocked(self)
        if Channel.SOURCE in found:
            found[Channel.RETRY] = found[Channel.SOURCE]
        return found

    return [(Board, "blocked", all_of_it)]


def no_outbox() -> Sequence[Change]:
    apply = MemoryLedger.apply

    def without(self: MemoryLedger, entries: Any, meta: Any, outbox: Any, cleared: Any = ()) -> list[bytes]:
        keys = [b"o" + number.to_bytes(8, "big") for number in range(10**6, 10**6 + len(outbox))]
        apply(self, entries, meta, (), cleared)
        return keys

    return [(MemoryLedger, "apply", without)]


def commits_go_back() -> Sequence[Change]:
    offsets_of = LocalTruth._offsets_of

    def any_offset(self: LocalTruth, partition: Partition, now_ms: int) -> list[tuple[str, int, int, str]]:
        kept = partition.committed
        partition.committed = {
            channel: None if offset is not None and partition.committable(channel) < offset else offset
            for channel, offset in kept.items()
        }
        try:
            return offsets_of(self, partition, now_ms)
        finally:
            partition.committed = kept

    return [(LocalTruth, "_offsets_of", any_offset)]


def no_barrier() -> Sequence[Change]:
    start = Judging._start

    def at_once(self: Judging, work: Work, record: Record, now_ms: int) -> bool | None:
        work.barrier = 0
        return start(self, work, record, now_ms)

    return [(Judging, "_start", at_once)]


def news_in_any_order() -> Sequence[Change]:
    news = Forwarder.news

    def unordered(self: Forwarder, *args: Any, **named: Any) -> Forward:
        return msgspec.structs.replace(news(self, *args, **named), order_key="")

    return [(Forwarder, "news", unordered)]


def memory_is_kept() -> Sequence[Change]:
    build = Worker._build_board
    kept: dict[tuple[int, int], Board] = {}

    def same_board(self: Worker, partition: Partition, ledger: Any, opening: Any) -> Board:
        board = kept.get((id(self), partition.partition))
        if board is None:
            board = kept[id(self), partition.partition] = build(self, partition, ledger, opening)
            # The worker stays alive with its board, so its id is not given to another one.
            kept_alive.append(self)
        board._ledger._view = ledger
        board._epoch, board._owner = partition.epoch, partition
        return board

    kept_alive: list[Worker] = []
    return [(Worker, "_build_board", same_board)]


def lock_goes_early() -> Sequence[Change]:
    def let_go(self: Ownership, partition: Partition) -> None:
        partition.state = State.CLOSED
        if partition.ledger is not None:
            partition.ledger.close()
            partition.ledger = None

    return [(Ownership, "let_go", let_go)]


def fence_is_gone() -> Sequence[Change]:
    """Not a defect by itself: what a deposed owner may do where no lock keeps the next one waiting.

    In `local` the lock of the ledger comes before every other fence, and hides what those are for.
    """

    def apart(self: Outside, run: HandlerRun) -> None:
        open_runs = self._open
        self._open = [other for other in open_runs if other.owner == run.owner]
        try:
            alone(self, run)
        finally:
            self._open = open_runs

    alone = Outside._check_alone
    return [*lock_goes_early(), (Outside, "_check_alone", apart)]


def outbox_holds_nothing() -> Sequence[Change]:
    return [(Partition, "committable", lambda self, channel: self.durable[channel])]


def effects_not_in_hand() -> Sequence[Change]:
    return [(EffectsInHand, "__contains__", lambda *_: False)]


def retries_at_once() -> Sequence[Change]:
    read = Intake._read

    def due_now(self: Intake, record: Record, partition: Partition, now_ms: int) -> bool:
        done = read(self, record, partition, now_ms)
        record.due_ms = 0
        return done

    return [(Intake, "_read", due_now)]


def emits_on_failure() -> Sequence[Change]:
    verdict = Settling.verdict

    def whatever_it_is(
        self: Settling, record: Record, outcome: Outcome, *args: Any
    ) -> tuple[Settlement, Lane]:
        done, after = verdict(self, record, outcome, *args)
        if not isinstance(outcome.verdict, Ack):
            emitted = (Emitted("reminded", b"k", b"0", ()),)
            done.forwards += [self._forward.emitted(record, at, each) for at, each in enumerate(emitted)]
        return done, after

    return [(Settling, "verdict", whatever_it_is)]


def emits_nothing() -> Sequence[Change]:
    verdict = Settling.verdict

    def mute(self: Settling, record: Record, outcome: Outcome, *args: Any) -> tuple[Settlement, Lane]:
        return verdict(self, record, msgspec.structs.replace(outcome, emitted=()), *args)

    return [(Settling, "verdict", mute)]


def no_hand_over() -> Sequence[Change]:
    return [(MemoryLedger, "note_handed_over", lambda self, marks: None)]


def corrections_everywhere() -> Sequence[Change]:
    return [(IN_TURN, Standing.QUARANTINED_OTHER, Decision(Action.RUN))]


def parked_from_the_end() -> Sequence[Change]:
    parked = MemoryLedger.parked

    def from_the_end(self: MemoryLedger, lane: str, after: Any, limit: int) -> Any:
        return parked(self, lane, after, 10**6)[::-1][:limit]

    return [(MemoryLedger, "parked", from_the_end)]
