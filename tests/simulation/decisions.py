"""What is checked where the truth is the changelog: as a transaction is decided, and as a ledger follows.

A decision is the one moment at which entries, forwards and offsets become true together, so what must hold
between them is checked at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.consumer.assignment.restore import NEVER_CURRENT_MS
from laneway.lanes.effect import EffectState
from laneway.lanes.forward import Forward, ForwardKind
from laneway.lanes.lane import HoldKind
from laneway.lanes.record import Channel
from laneway.lanes.view import Meta
from laneway.store.memory import _State
from laneway.store.port import ChangelogMark
from tests.invariants import Broken, headers_of
from tests.simulation.broker import Transaction
from tests.simulation.changelogs import Changelogs, check_fold
from tests.simulation.disk import Handle
from tests.simulation.forwards import forward_of
from tests.simulation.producers import FakeTransactionalProducer
from tests.simulation.setup import EMITTED, LEDGER, NAMES, SOURCE

if TYPE_CHECKING:
    from tests.simulation.watch import Watch
    from tests.simulation.world import World

_TOPICS = {Channel.SOURCE: SOURCE, Channel.RETRY: NAMES.retry, Channel.COMMANDS: NAMES.commands}


class Decisions:
    """Sees every transaction as it is decided."""

    def __init__(self, world: World, watch: Watch) -> None:
        self._world = world
        self._watch = watch
        self.changelogs = Changelogs()
        self.calm_ms: int | None = None

    def committed(self, transaction: Transaction) -> None:
        """It is about to be true."""
        parts = sorted(number for topic, number in transaction.places if topic == LEDGER)
        emitted = self._emitted(transaction)
        for number in parts:
            self._world.tell(None, f"transaction of process {transaction.who} commits", number)
            self._watch.check_owner(transaction.who, number)
            if (LEDGER, number) in self._world.cluster.put_away:
                raise Broken(9, "somebody goes on over a changelog that was made anew", partition=number)
            records = self._world.cluster.log(LEDGER, number).of(transaction)
            entries = self.changelogs.commit(number, records)
            self._world.operators.check_written(number, [e for e in entries if not isinstance(e, Meta)])
            self._watch.check_entries(transaction.who, number, entries, emitted.get(number, ()))
        # A partition without entries may come along, to refresh what people see beside its offset.
        if not {number for _, number in transaction.offsets} >= set(parts):
            raise Broken(9, f"offsets of other partitions than the entries: {transaction.offsets}, {parts}")
        for topic, number in transaction.places:
            if topic != LEDGER:
                self._check_forwards(transaction, topic, number)
        for number in sorted({number for _, number in transaction.offsets}):
            self._check_offsets(transaction, number)

    def expired(self, transaction: Transaction) -> None:
        """The coordinator has aborted it: it was open for too long."""
        self._world.tell(None, f"transaction of process {transaction.who} timed out")
        process = next(
            (p for p in self._world.processes if p.ident == transaction.who and not p.is_dead), None
        )
        if process is None:
            return
        if self.calm_ms is not None and transaction.began_ms > self.calm_ms:
            raise Broken(8, f"a transaction of {process} hangs")
        # Nobody can read past it meanwhile, and an end that comes late is believed.
        if isinstance(process.producer, FakeTransactionalProducer) and (
            process.producer.name != transaction.producer
        ):
            raise Broken(8, f"a transaction of {process} was left open by a producer of another name")

    def applied(self, handle: Handle, before: ChangelogMark | None, mark: ChangelogMark) -> None:
        """A ledger has followed.

        In the middle of a restore it claims nothing: one that takes too long misses what was deleted
        meanwhile, and is begun anew at its end.
        """
        number = handle.partition
        log = self._world.cluster.log(LEDGER, number)
        if mark.next_offset > log.end:
            raise Broken(9, f"the ledger is at {mark.next_offset}, beyond its changelog", partition=number)
        claims = mark.current_ms != (NEVER_CURRENT_MS if before is None else before.current_ms)
        if claims and mark.next_offset >= log.compacted_below:
            check_fold(number, handle.state, self.changelogs.at(number, mark.next_offset))

    def _emitted(self, transaction: Transaction) -> dict[int, list[Forward]]:
        """By partition, what handlers emit with this transaction."""
        found: dict[int, list[Forward]] = {}
        for topic, number in transaction.places:
            if topic == EMITTED:
                for _, stored in self._world.cluster.log(topic, number).of(transaction):
                    partition, forward = forward_of(topic, stored)
                    found.setdefault(partition, []).append(forward)
        return found

    def _check_forwards(self, transaction: Transaction, topic: str, number: int) -> None:
        """Each exists exactly once, and exactly because a settlement of this transaction says so."""
        watch = self._watch
        for offset, stored in self._world.cluster.log(topic, number).of(transaction):
            partition, forward = forward_of(topic, stored)
            watch.settled(partition, forward)
            if forward.forward_id in watch.forwarded.ids:
                what = f"{forward.kind.name} {forward.forward_id} is there twice"
                raise Broken(6, what, partition=partition)
            watch.landed(topic, partition, offset, forward)
            if forward.kind is ForwardKind.RETRY:
                own = headers_of(forward)
                self._check_awaited(partition, int(own["origin-offset"]), int(own["attempt"]))

    def _check_awaited(self, partition: int, offset: int, attempt: int) -> None:
        for lane in self.changelogs.truth(partition).lanes.values():
            hold = lane.hold
            if hold is None or hold.kind is not HoldKind.RETRY:
                continue
            if (hold.offset, hold.attempt) == (offset, attempt):
                return
        what = f"attempt {attempt} of offset {offset} is published, and no lane waits for it"
        raise Broken(6, what, partition=partition)

    def _check_offsets(self, transaction: Transaction, number: int) -> None:
        meta = self.changelogs.truth(number).meta
        marks = meta.marks if meta is not None else {}
        for channel in (Channel.SOURCE, Channel.RETRY):
            place = (_TOPICS[channel], number)
            offset, mark = transaction.offsets.get(place), marks.get(channel)
            if offset is None:
                raise Broken(7, f"a transaction without an offset of {place[0]}", partition=number)
            if mark is not None and mark.frontier != offset:
                what = f"offset {offset} of {place[0]} is committed, its entries say {mark.frontier}"
                raise Broken(4, what, partition=number)
        for place, offset in transaction.offsets.items():
            if place[1] == number:
                before = self._world.group.committed.get(place)
                self._watch.on_commit(transaction.who, place, before, offset)

    def check_followed(self, number: int, ledger: _State) -> None:
        """At rest a live owner's ledger is the whole fold."""
        truth = self.changelogs.truth(number)
        check_fold(number, ledger, truth)
        self._check_asked(number, truth)

    def _check_asked(self, number: int, truth: _State) -> None:
        """What may have happened is asked of a person, unless its record waits for its turn, or is gone."""
        asked = {(case.effect_key, case.offset) for case in truth.cases.values()}
        asked |= {
            (follower.effect_key, offset)
            for followers in truth.parked.values()
            for (_, offset), follower in followers.items()
        }
        committed = self._world.group.committed.get((SOURCE, number), 0)
        for key, effect in truth.effects.items():
            if effect.state is not EffectState.RUNNING or effect.offset >= committed:
                continue
            record = self._watch.books.by_place.get((number, effect.offset))
            if (key, effect.offset) not in asked and record is not None and not record.gone:
                raise Broken(1, f"nobody asks what became of {key!r}", partition=number, lane=effect.lane)
