"""The world outside: what handlers did to it, and what may not happen out there (invariants 2 and 3).

It belongs to `tests/invariants.py`, and like it knows nothing of where its values come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from laneway.lanes.admission import Order
from laneway.lanes.case import Case
from laneway.lanes.effect import FINISHED, Effect, EffectState
from laneway.lanes.lane import HoldKind
from laneway.lanes.record import is_lane_of_one
from tests.invariants import Books, Broken, LedgerState, Published


@dataclass(slots=True, eq=False)
class HandlerRun:
    """One record in a handler's hands, as the outside world sees it.

    Attributes:
        owner: process and ownership, so that two of them are told apart.
        case_id: of the open case whose record a person wants to run; "" for a delivery.
        letter: forward id of the dead letter that it is the replay of; "" for any other.
        outcome: "" while it runs, else `acked`, `failed`, or `unknown` for a run that died.
    """

    owner: tuple[int, int]
    partition: int
    record: Published
    attempt: int
    case_id: str = ""
    letter: str = ""
    outcome: str = ""


def _nobody(_: tuple[int, int], __: int) -> bool:
    return False


def _never(_: int, __: str, ___: int) -> bool:
    return False


def _not_paused(_: int, __: str) -> bool:
    return False


class Outside:
    """The world that handlers act on: who runs what, and what has happened to it (invariants 2 and 3).

    Args:
        is_deposed: whether an owner has lost a partition, and may not know. Nothing but a lock keeps its
            handlers from going on beside those of the new owner.
        once: what may have happened is not run again: an effect runs once, but where its handler said that
            it did not happen, and the ledger knows that.
        passed: whether a person has let a lane move past a number: (partition, lane, number). Somebody who
            was deposed may still be at it.
        paused: whether a person has ever paused a lane: (partition, lane).
        late: whether a person has let an effect happen out of order, or has said that it is done while
            somebody who was deposed is still at it: (partition, effect key).
    """

    def __init__(
        self,
        books: Books,
        order: Order,
        first_sequence: int | None,
        *,
        is_deposed: Callable[[tuple[int, int], int], bool] = _nobody,
        once: bool = False,
        passed: Callable[[int, str, int], bool] = _never,
        paused: Callable[[int, str], bool] = _not_paused,
        late: Callable[[int, str], bool] = _not_paused,
    ) -> None:
        self._late = late
        self._passed = passed
        self._paused = paused
        self._books = books
        self._is_deposed = is_deposed
        self._once = once
        self._last: dict[tuple[int, str], HandlerRun] = {}
        self._order = order
        self._first_sequence = first_sequence
        self.runs: list[HandlerRun] = []
        self._open: list[HandlerRun] = []
        self._acked: dict[tuple[int, str], set[tuple[int, int]]] = {}
        self._ackers: set[tuple[int, int, str]] = set()
        self._happened: set[tuple[int, str]] = set()
        self._recorded: set[tuple[int, str]] = set()
        self._last_first: dict[tuple[int, str], tuple[int, str]] = {}
        self.forgotten: set[tuple[int, str]] = set()

    def begins(self, run: HandlerRun, ledger: LedgerState | None) -> None:
        """A handler is about to get a record.

        Args:
            ledger: as it is at this moment; None where nobody can say.
        """
        self._check_alone(run)
        if run.case_id:
            # A person wants it once more: what happened before is no reason against it.
            self._acked.pop((run.partition, run.record.effect_key), None)
        owners = self._acked.get((run.partition, run.record.effect_key), set())
        if run.owner in owners:
            self._broken(
                3, f"effect {run.record.effect_key!r} runs again under the ownership that acked it", run
            )
        if ledger is not None:
            self._check_ledger(run, ledger)
            self._check_turn(run, ledger)
        if self._once:
            self._check_once(run)
        self.runs.append(run)
        self._open.append(run)

    def ends(self, run: HandlerRun, *, acked: bool) -> None:
        """The handler has answered."""
        self._open.remove(run)
        run.outcome = "acked" if acked else "failed"
        if not acked:
            return
        record = run.record
        key = (run.partition, record.effect_key)
        self._acked.setdefault(key, set()).add(run.owner)
        self._ackers.add((run.owner[0], *key))
        if key in self._happened:
            return
        self._happened.add(key)
        lane = (run.partition, record.lane)
        passed = self._passed(run.partition, record.lane, record.sequence)
        if is_lane_of_one(record.lane) or self._late(*key) or passed:
            return
        place = record.offset if self._order is Order.ARRIVAL else record.sequence
        before, effect_key = self._last_first.get(lane, (place - 1, ""))
        if place > before:
            self._last_first[lane] = place, record.effect_key
        elif not (
            self._books.is_thinned(*lane)
            or self._begins_anew(lane, effect_key)
            # A dead letter in turn, as far as the ledger knows: what ran behind it was lost, and comes again.
            or (run.letter and (lane[0], effect_key) not in self._recorded)
        ):
            self._broken(2, f"{place} happened after {before}", run)

    def cut_off(self, run: HandlerRun) -> None:
        """Nobody will ever know how a run went, whatever its handler has done by then."""
        key = (run.partition, run.record.effect_key)
        if run in self._open:
            self._open.remove(run)
        else:
            self._acked.get(key, set()).discard(run.owner)
            self._ackers.discard((run.owner[0], *key))
        run.outcome = "unknown"

    def _begins_anew(self, lane: tuple[int, str], effect_key: str) -> bool:
        """Whether a lane with holes has not come as far as its last effect, as far as its ledger knows.

        An owner began with the number it saw first, and nobody heard of it again. The next one found the
        lane paused and parked what came; parked records go by their numbers. And where an unknown outcome is
        run again, nothing tells of a higher number that was lost, when a lower one has come behind it.
        """
        if (lane[0], effect_key) in self._recorded:
            return False
        increasing = self._order is Order.INCREASING
        return (increasing and not self._once) or (
            (increasing or self._first_sequence is None) and self._paused(*lane)
        )

    def dies(self, process: int) -> None:
        """A process has ended: nobody will ever know how its runs went."""
        for run in [run for run in self._open if run.owner[0] == process]:
            run.outcome = "unknown"
            self._open.remove(run)

    def forgets(self, partition: int, effect_key: str) -> None:
        """Retention has taken an effect out of the ledger: it may run again."""
        self.forgotten.add((partition, effect_key))
        self._acked.pop((partition, effect_key), None)
        self._last.pop((partition, effect_key), None)

    def taken_back(self, partition: int, effect_key: str) -> None:
        """The ledger says that an announced run has not happened: its handler said so, or it never began."""
        last = self._last.get((partition, effect_key))
        if last is not None and last.outcome == "failed":
            del self._last[partition, effect_key]

    def has_happened(self, partition: int, effect_key: str) -> bool:
        """Whether an effect was ever acked."""
        return (partition, effect_key) in self._happened

    def unrecords(self, is_lost: Callable[[int, str], bool]) -> None:
        """What a ledger was written last went with its machine.

        Args:
            is_lost: whether a success (partition, effect key) is not in it any more.
        """
        self._recorded = {key for key in self._recorded if not is_lost(*key)}

    def check_recorded(self, process: int, partition: int, effect_key: str) -> None:
        """A success is recorded only by the process whose handler acked it."""
        # Also when retention has meanwhile forgotten what the effect was before.
        if (process, partition, effect_key) not in self._ackers:
            what = f"effect {effect_key!r} is recorded as succeeded and was not acked"
            raise Broken(3, what, partition=partition)
        self._recorded.add((partition, effect_key))

    def _check_alone(self, run: HandlerRun) -> None:
        for other in self._open:
            if other.partition != run.partition:
                continue
            if other.owner != run.owner and any(
                self._is_deposed(each.owner, run.partition) for each in (other, run)
            ):
                continue
            if other.record.lane == run.record.lane:
                self._broken(2, f"offset {other.record.offset} of the lane is still running", run)
            if other.record.effect_key == run.record.effect_key:
                self._broken(3, f"effect {run.record.effect_key!r} is running already", run)

    def _check_once(self, run: HandlerRun) -> None:
        key = (run.partition, run.record.effect_key)
        before = self._last.get(key)
        self._last[key] = run
        # Failed, and counted: another attempt, or a correction of what was refused.
        if (
            before is None
            or run.case_id
            or (
                before.outcome == "failed"
                and (before.attempt, before.record.offset) != (run.attempt, run.record.offset)
            )
        ):
            return
        if before.outcome != "failed" or before.owner != run.owner:
            how = before.outcome or "still under way"
            self._broken(3, f"effect {run.record.effect_key!r} runs again, the run before is {how}", run)

    def _check_ledger(self, run: HandlerRun, ledger: LedgerState) -> None:
        effect = ledger.effects.get(run.record.effect_key)
        state = effect.state if effect is not None else EffectState.QUEUED
        if self._once:
            intent = (state, effect.offset, effect.attempt) if effect is not None else None
            if intent != (EffectState.RUNNING, run.record.offset, run.attempt):
                self._broken(3, f"attempt {run.attempt} starts before it is known to: {intent}", run)
        elif run.case_id:
            self._check_case(run, ledger.cases.get(run.case_id))
        elif run.letter:
            self._check_letter(run, effect)
        elif run.attempt > 1:
            if effect is None or state is not EffectState.RETRY_WAIT or effect.attempt != run.attempt - 1:
                known = "nothing" if effect is None else f"{state.name}, {effect.attempt} attempts"
                self._broken(3, f"attempt {run.attempt} starts, the ledger says {known}", run)
        elif state is EffectState.QUARANTINED:
            if not is_lane_of_one(run.record.lane):
                self._broken(3, "a quarantined effect runs again", run)
        elif state is not EffectState.QUEUED:
            self._broken(3, f"a first attempt starts, the ledger says {state.name}", run)

    def _check_case(self, run: HandlerRun, case: Case | None) -> None:
        if case is None or not case.holds or case.attempts != run.attempt - 1:
            self._broken(3, f"attempt {run.attempt} starts for case {run.case_id}: {case}", run)

    def _check_letter(self, run: HandlerRun, effect: Effect | None) -> None:
        if effect is None and (run.partition, run.record.effect_key) in self.forgotten:
            return  # it was known when the record was judged
        if effect is None or (effect.state, effect.attempt) != (EffectState.QUARANTINED, run.attempt - 1):
            self._broken(3, f"attempt {run.attempt} of a dead letter starts, the ledger says {effect}", run)

    def _check_turn(self, run: HandlerRun, ledger: LedgerState) -> None:
        record = run.record
        lane = ledger.lanes.get(record.lane)
        hold = lane.hold if lane is not None else None
        if hold is not None:
            mine = (hold.kind is HoldKind.GAP and hold.sequence == record.sequence) or (
                hold.kind is HoldKind.RETRY
                and hold.effect_key == record.effect_key
                and hold.attempt == run.attempt
            )
            mine |= hold.kind is HoldKind.CASE and bool(run.case_id) and hold.case_id == run.case_id
            # An Ack need not be durable before its followers start: they run again together.
            over = run.owner in self._acked.get((run.partition, hold.effect_key), ())
            if not (mine or over):
                self._broken(2, f"a lane held by {hold.kind.name} ({hold.reason}) starts another record", run)
        first = self._first_sequence
        if self._order is not Order.CONTIGUOUS or first is None or is_lane_of_one(record.lane):
            return
        for number in range(first, record.sequence):
            if self._passed(run.partition, record.lane, number):
                continue
            if not any(self._is_resolved(other, ledger) for other in self._numbered(run, number)):
                self._broken(2, f"{record.sequence} starts before {number} is done", run)

    def _numbered(self, run: HandlerRun, number: int) -> list[Published]:
        return self._books.of_number(run.partition, run.record.lane, number)

    def _is_resolved(self, record: Published, ledger: LedgerState) -> bool:
        key = (record.partition, record.effect_key)
        effect = ledger.effects.get(record.effect_key)
        return (
            key in self._happened
            or key in self.forgotten
            or (effect is not None and effect.state in FINISHED)
        )

    @staticmethod
    def _broken(number: int, what: str, run: HandlerRun) -> None:
        record = run.record
        raise Broken(
            number,
            f"offset {record.offset}, lane {record.lane!r}, sequence {record.sequence}: {what}",
            partition=run.partition,
            lane=record.lane,
        )
