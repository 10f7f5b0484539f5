"""What is seen of a history, and checked: as it happens, and at its end.

The handlers' outside stands here too: how each delivery goes is decided by its effect's fate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import laneway
from laneway.consumer.partition import Partition
from laneway.lanes.case import Case
from laneway.lanes.effect import FINISHED, Effect, EffectState
from laneway.lanes.forward import Forward, ForwardKind
from laneway.lanes.record import Channel, Record, is_lane_of_one
from laneway.lanes.run import Run
from laneway.lanes.verdict import Ack, Outcome
from laneway.lanes.view import Entry, Meta, PutCase, PutEffect
from laneway.pipeline import Delivery
from laneway.store.memory import _State
from laneway.store.port import ChangelogMark
from tests.invariants import (
    Books,
    Broken,
    Forwarded,
    LedgerState,
    Published,
    check_counts,
    check_explained,
    check_forwarded,
    check_gap,
    check_holds,
    check_retries,
    headers_of,
)
from tests.outside import HandlerRun, Outside
from tests.simulation.broker import Place, Stored, Transaction
from tests.simulation.decisions import Decisions
from tests.simulation.disk import Handle
from tests.simulation.emitted import Emissions
from tests.simulation.forwards import forward_of
from tests.simulation.plan import Fate
from tests.simulation.process import Process
from tests.simulation.setup import EMITTED, NAMES, SOURCE

if TYPE_CHECKING:
    from tests.simulation.batches import Call
    from tests.simulation.world import World

_TOO_LARGE = b'"sequence":3,'


class Watch:
    """Sees everything that leaves a process, and knows what was published.

    Attributes:
        fates: by partition and effect key, how the handler takes it.
        clock_jumped: somebody set the clock, so nobody can say what is early.
        call: of the batch handler that is called now.
    """

    def __init__(self, world: World) -> None:
        config = world.plan.config
        self._world = world
        self.books = Books()
        self.outside = Outside(
            self.books,
            config.order,
            config.first_sequence,
            is_deposed=self._is_deposed if config.changelog else _nobody,
            once=config.review,
            passed=world.operators.has_passed,
            paused=lambda *lane: lane in world.operators.paused,
            late=lambda *effect: effect in world.operators.letters.late or effect in world.operators.judged,
        )
        self.decisions = Decisions(world, self)
        self.emissions = Emissions(world)
        self.forwarded = Forwarded(is_replayed=lambda place: place in world.operators.replayed)
        self.fates: dict[tuple[int, str], Fate] = {}
        self.clock_jumped = False
        self.call: Call
        self.power_losses = 0
        # By the attempt that failed: a write that is lost with its machine says nothing of the one before.
        self._due: dict[tuple[int, str, int], int] = {}
        # By partition and effect key: what stood before a run was announced, and whether one is.
        self._standing: dict[tuple[int, str], Effect | None] = {}
        self._announced: set[tuple[int, str]] = set()
        self._handled: Counter[tuple[int, str]] = Counter()
        self._in_hand: HandlerRun | None = None
        self._attempt = 1
        self._retries: dict[int, list[tuple[int, int, int]]] = {}
        self._corrected: set[tuple[int, str, bytes]] = set()
        self._begun: dict[tuple[int, int, int], tuple[tuple[int, int], tuple[int, int]]] = {}

    # -- the handlers' side

    def begins(
        self, process: Process, partition: Partition, run: Run, record: Record
    ) -> tuple[HandlerRun, int]:
        """A handler gets a record; returns the act, and how long it will take."""
        number = partition.partition
        published = self.books.by_place.get((number, record.origin_offset))
        correction = (number, record.origin_offset, record.value or b"")
        is_corrected = correction in self._world.operators.corrections
        if published is None or (record.value != published.value and not is_corrected):
            raise Broken(1, f"{record} is not what was published there", partition=number, lane=record.lane)
        ledger = process.disk.seen(number)
        case_id = self._world.operators.begins(number, record)
        letter = self._world.operators.letters.begins(number, record)
        act = HandlerRun((process.ident, run.epoch), number, published, record.attempt, case_id, letter)
        if self._world.trace is not None:
            place = f"offset {published.offset} sequence {published.sequence} #{record.attempt}"
            text = f"handler begins: {place}"
            self._world.tell(process, text, number, published.lane)
        self.outside.begins(act, ledger)
        if record.attempt > 1 and not (case_id or letter or self.clock_jumped):
            due_ms = self._due[number, published.effect_key, record.attempt - 1]
            if self._world.clock.now_ms < due_ms:
                raise Broken(
                    11, f"{record} runs {due_ms - self._world.clock.now_ms} ms early", partition=number
                )
        self._check_redelivered(process, act, record)
        key = (number, published.effect_key)
        self._handled[key] += 1
        self._in_hand, self._attempt = act, record.attempt
        # A handler that outlives its timeout is a fault too: in the end they are all quick.
        return act, 0 if self._world.cluster.is_calm else self.fates[key].duration_ms

    def _check_redelivered(self, process: Process, act: HandlerRun, record: Record) -> None:
        delivery = (act.partition, record.origin_offset, record.attempt)
        # The note is not synced: the machine may forget it; and another machine has it never. With a
        # changelog the last cycle tells enough, but not to one who was deposed and does not know.
        memory = (self._world.disks.index(process.disk), process.disk.memory)
        before = self._begun.setdefault(delivery, (act.owner, memory))
        follows = self._world.plan.config.changelog and not self._is_deposed(act.owner, act.partition)
        if before[0] != act.owner and (follows or before[1] == memory) and not record.redelivered:
            raise Broken(12, f"{record} comes again unmarked", partition=act.partition, lane=record.lane)
        self._begun[delivery] = (act.owner, memory)

    def ends(self, act: HandlerRun, outcome: Outcome) -> None:
        """The handler has answered."""
        self.outside.ends(act, acked=isinstance(outcome.verdict, Ack))
        if self._world.trace is not None:
            text = f"handler ends: offset {act.record.offset} {type(outcome.verdict).__name__}"
            self._world.tell(None, text, act.partition, act.record.lane)

    def cut_off(self, act: HandlerRun) -> None:
        """The handler was cancelled, or failed in a way that tells nothing."""
        self.outside.cut_off(act)
        self._world.tell(
            None, f"handler is cut off: offset {act.record.offset}", act.partition, act.record.lane
        )

    def steps_on(self, act: HandlerRun) -> None:
        """A batch handler has done this one, and takes the next of the lane."""
        self.outside.ends(act, acked=True)

    def ends_in_batch(self, act: HandlerRun, outcome: Outcome | None, *, is_known: bool) -> None:
        """A batch handler has answered."""
        if outcome is None or not is_known:
            self.cut_off(act)
        elif act.outcome:  # it had stepped on
            if not isinstance(outcome.verdict, Ack):
                self.cut_off(act)
        else:
            self.ends(act, outcome)

    def answer(self, delivery: Delivery[object]) -> str | None:
        """What the handler does with a delivery."""
        act = self._in_hand
        assert act is not None
        key = (act.partition, act.record.effect_key)
        fate = self.fates[key]
        self.emissions.emit(act.partition, delivery)
        count = self._attempt if fate.by_attempt else self._handled[key]
        if fate.kind == "fine" or count > fate.times:
            return delivery.effect_key
        payload = str(delivery.payload)
        match fate.kind:
            case "temporary":
                raise laneway.TemporaryFailure("later")
            case "listed":
                raise TimeoutError(payload)
            case "permanent":
                raise laneway.PermanentFailure("never")
            case "review":
                raise laneway.NeedsReview("Is it well?")
            case "unavailable":
                raise laneway.Unavailable(200)
            case _:
                raise RuntimeError(payload)

    # -- what leaves a process

    def refuses(self, topic: str, value: bytes | None) -> bool:
        """Dead letters of some records are too large for their topic."""
        return topic == NAMES.dlq and value is not None and _TOO_LARGE in value

    def on_sent(self, topic: str, stored: Stored) -> None:
        """A forward leaves a process."""
        partition, forward = forward_of(topic, stored)
        outbox = [held.forward_id for held in self.truth(partition).outbox.values()]
        self.forwarded.sent(partition, forward, outbox)

    def on_landed(self, topic: str, _: int, offset: int, stored: Stored) -> None:
        """A forward stands in its topic."""
        partition, forward = forward_of(topic, stored)
        self.landed(topic, partition, offset, forward)

    def landed(self, topic: str, partition: int, offset: int, forward: Forward) -> None:
        """A forward stands in its topic, for everybody to see."""
        if topic == EMITTED and forward.forward_id not in self.forwarded.ids:
            self.emissions.landed(partition, forward)
        self.forwarded.landed(partition, forward)
        if topic in {NAMES.dlq, NAMES.retry}:
            self._world.operators.letters.landed(partition, forward)
        if topic == NAMES.retry:
            own = headers_of(forward)
            place = (offset, int(own["origin-offset"]), int(own["attempt"]))
            self._retries.setdefault(partition, []).append(place)

    def on_commit(self, member: int, place: Place, before: int | None, offset: int) -> None:
        """The group is about to believe a commit."""
        topic, partition = place
        self._world.tell(None, f"commit of process {member}: {topic} {offset}", partition)
        if before is not None and offset < before:
            raise Broken(4, f"the commit of {topic} goes back from {before} to {offset}", partition=partition)
        if offset > self._world.cluster.log(topic, partition).end:
            raise Broken(4, f"the commit of {topic} passes the log's end: {offset}", partition=partition)
        self.check_owner(member, partition)
        if topic == SOURCE:
            self._check_passed(partition, before or 0, offset)
        elif topic == NAMES.retry:
            self._check_retries(partition, offset)
        else:
            self._world.operators.check_passed(partition, before or 0, offset)

    def check_owner(self, who: int, partition: int) -> None:
        """Nobody commits anything of a partition that has a new owner, and it is live."""
        for process in self._world.processes:
            if process.ident == who or process.is_dead or not process.is_live(partition):
                continue
            # Where no lock keeps the next owner waiting, one that was deposed may think it is live.
            if self._world.plan.config.changelog and self._is_deposed((process.ident, 0), partition):
                continue
            raise Broken(
                7, f"process {who} commits, and process {process.ident} is live", partition=partition
            )

    def truth(self, partition: int) -> _State:
        """What has happened, whoever knows of it: a synced ledger, or the committed changelog."""
        if self._world.plan.config.changelog:
            return self.decisions.changelogs.truth(partition)
        return self._world.disks[0].durable(partition)

    def _is_deposed(self, owner: tuple[int, int], partition: int) -> bool:
        """Whether the group has given the partition to somebody else, or to nobody."""
        member = self._world.group.members.get(owner[0])
        return member is None or partition not in member.owned

    def _check_passed(self, partition: int, first: int, end: int) -> None:
        durable = self.truth(partition)
        for offset in range(first, end):
            record = self.books.by_place.get((partition, offset))
            if record is not None:
                self._check_explained(record, durable)

    def _check_explained(self, record: Published, ledger: LedgerState) -> None:
        # Where nothing is ordered, a correction may have taken the place of the effect that explained it.
        was_refused = (record.partition, record.effect_key, record.payload_hash) in self._corrected
        by_command = self._world.operators.explains(
            record.partition, record.offset, record.effect_key, record.payload_hash
        )
        if not (by_command or (was_refused and is_lane_of_one(record.lane))):
            check_explained(record, ledger, self.forwarded, self.outside.forgotten)

    def _check_retries(self, partition: int, committed: int) -> None:
        durable = self.truth(partition)
        owed = set()
        for forward in durable.outbox.values():
            if forward.kind is ForwardKind.RETRY:
                own = headers_of(forward)
                owed.add((int(own["origin-offset"]), int(own["attempt"])))
        waiting = {(o, a) for offset, o, a in self._retries.get(partition, ()) if offset >= committed}
        check_retries(partition, durable, owed, waiting)

    def on_write(self, handle: Handle, entries: Sequence[Entry], outbox: Sequence[Forward]) -> None:
        """A cycle is about to be written."""
        process = handle.host
        assert isinstance(process, Process)
        self._world.operators.check_written(handle.partition, entries)
        self.check_entries(process.ident, handle.partition, entries, outbox)
        for forward in outbox:
            self.settled(handle.partition, forward)

    def settled(self, partition: int, forward: Forward) -> None:
        """A forward is about to be true together with what it tells of."""
        self.forwarded.settled(partition, forward)
        if forward.kind is ForwardKind.REVIEW:
            self._world.operators.settled(partition, forward)

    def check_entries(
        self,
        process: int,
        partition: int,
        entries: Sequence[Entry | Meta],
        forwards: Iterable[Forward],
    ) -> None:
        """Entries are about to be true, together with these forwards."""
        news = []
        for entry in entries:
            if isinstance(entry, PutCase):
                if entry.case is not None and entry.case.reason == "sequence-gap":
                    check_gap(self.books, partition, entry.case)
            elif isinstance(entry, PutEffect):
                if self._is_taken_back(partition, entry):
                    self.outside.taken_back(partition, entry.effect_key)
                    continue
                self._effect_recorded(process, partition, entry)
            news.append(entry)
        self.emissions.check(partition, news, forwards)

    def _is_taken_back(self, partition: int, entry: PutEffect) -> bool:
        """Whether this only says that an announced run has not happened, and all is as before."""
        key, effect = (partition, entry.effect_key), entry.effect
        if effect is not None and effect.state is EffectState.RUNNING:
            self._announced.add(key)
            return False
        was_announced = key in self._announced
        self._announced.discard(key)
        is_as_before = self._standing.get(key) == effect
        self._standing[key] = effect
        return was_announced and is_as_before

    def _effect_recorded(self, process: int, partition: int, entry: PutEffect) -> None:
        """An effect is about to be believed."""
        effect = entry.effect
        if effect is None:
            # Where the ledger is the truth, the disk tells what retention has taken.
            if self._world.plan.config.changelog:
                self.outside.forgets(partition, entry.effect_key)
            return
        if effect.state in FINISHED:
            self._world.operators.finished(partition, entry.effect_key, effect)
        elif effect.state is EffectState.RUNNING:
            self._world.operators.intended(partition, entry.effect_key, effect)
        if effect.state is EffectState.SUCCEEDED:
            if effect.reason != "mark-done":
                self.outside.check_recorded(process, partition, entry.effect_key)
        elif effect.state is EffectState.RETRY_WAIT:
            self._due[partition, entry.effect_key, effect.attempt] = effect.due_ms
        elif effect.state is EffectState.QUARANTINED:
            self._corrected.add((partition, entry.effect_key, effect.payload_hash))

    def on_decided(self, transaction: Transaction) -> None:
        """A transaction is about to be committed."""
        self.decisions.committed(transaction)

    def on_expired(self, transaction: Transaction) -> None:
        """A transaction was open for too long."""
        self.decisions.expired(transaction)

    def on_apply(self, handle: Handle, before: ChangelogMark | None, mark: ChangelogMark) -> None:
        """A ledger has followed its changelog."""
        self.decisions.applied(handle, before, mark)

    # -- rest, and the end

    def unrest(self) -> str:
        """What is still to be done; "" when nothing is."""
        live = self._world.live()
        if len(live) < self._world.plan.config.partitions or self._world.group.is_waiting:
            return "partitions without a live owner"
        self._world.cluster.coordinator.expire()
        if self._world.cluster.coordinator.pending():
            return "a transaction is open"
        for process in self._world.processes:
            if process.is_dead:
                continue
            assert process.threads is not None
            if process.threads.in_hand or not process.worker._settler.idle or process.has_jobs:
                return f"{process} has {process.threads.in_hand} runs in hand"
            for partition in process.partitions():
                found = self._unrest_of(process, partition)
                if found:
                    return f"{partition} {found}"
        return ""

    def _unrest_of(self, process: Process, partition: Partition) -> str:
        board = partition.board
        if board is None:
            return "is being opened"
        if partition in process.worker._intake._unread:
            return "waits for its decoder"
        if partition.is_behind() or board.pending:
            return "owes settlements or forwards"
        if board.in_memory or board.retries_waiting:
            return f"has {board.in_memory} records in memory, {board.retries_waiting} retries wait"
        for channel in Channel:
            place = (partition.topic_of(channel), partition.partition)
            end = self._world.cluster.log(*place).end
            if process.consumer.position(place) != end and channel not in partition.paused:
                return f"is not read to the end of {channel.name}"
        return ""

    def check_end(self) -> None:
        """Every record is accounted for, and nothing is left over."""
        config = self._world.plan.config
        faults = [record for record in self.books.by_place.values() if record.fault]
        for partition in self._world.live():
            number, board, ledger = partition.partition, partition.board, partition.ledger
            assert board is not None
            assert ledger is not None
            seen = self._seen(number)
            stopped = self._check_pauses(partition, seen.cases)
            for channel in Channel:
                place = (partition.topic_of(channel), number)
                lag = self._world.cluster.log(*place).end - self._world.group.committed.get(place, 0)
                if lag and not (channel is Channel.SOURCE and stopped):
                    raise Broken(8, f"{lag} of lag are left in {place[0]}", partition=number)
            if len(board._books.lanes) or len(board._books.in_hand):
                raise Broken(8, "an idle lane stays in memory", partition=number)
            committed = self._world.group.committed.get((SOURCE, number), 0)
            for (place_partition, offset), record in self.books.by_place.items():
                if place_partition == number and offset < committed:
                    self._check_explained(record, seen)
            meta = seen.meta
            counted = (meta.open_cases, meta.parked, meta.parked_bytes) if meta is not None else (0, 0, 0)
            if config.changelog:
                assert isinstance(ledger, Handle)
                self.decisions.check_followed(number, ledger.state)
            check_counts(number, seen, counted)
            check_holds(number, seen, partial(self._is_unread, number, committed if stopped else None))
            read = [record for record in faults if record.offset < committed]
            check_forwarded(number, seen, self.forwarded, read)
            self._world.operators.check_end(number)
        assert config.partitions == len(self._world.live())

    def _seen(self, number: int) -> _State:
        return self.truth(number) if self._world.plan.config.changelog else self._world.disks[0].seen(number)

    def _is_unread(self, number: int, stopped_at: int | None, offset: int) -> bool:
        record = self.books.by_place.get((number, offset))
        return (stopped_at is not None and offset >= stopped_at) or (record is not None and record.gone)

    def _check_pauses(self, partition: Partition, cases: dict[str, Case]) -> bool:
        """Whether the source stands still for a reason that is true; nothing else may."""
        config, number = self._world.plan.config, partition.partition
        seen = self._seen(number)
        lanes = seen.lanes.values()
        reason = (
            len(cases) >= config.max_open_cases
            or sum(lane.parked_bytes for lane in lanes) >= config.max_parked_bytes
            or any(lane.parked >= config.max_parked_per_lane for lane in lanes)
        )
        for channel in partition.paused:
            if channel is not Channel.SOURCE or not reason:
                raise Broken(8, f"{channel.name} is paused: {partition.paused[channel]}", partition=number)
        return reason


def _nobody(_: tuple[int, int], __: int) -> bool:
    """Where a lock keeps the next owner waiting, nobody is deposed while it runs."""
    return False
