"""What goes wrong, one method for each kind of fault (`plan.FAULTS` and `plan.CHANGELOG_FAULTS`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.plan import Fault
from tests.simulation.setup import DELETE_RETENTION_MS, LEDGER, NAMES, SOURCE

if TYPE_CHECKING:
    from tests.simulation.world import World


class Faults:
    """Strikes a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._damaged_until = -1
        self._broke_a_restore = False
        self._hours = 0

    def strike(self, fault: Fault) -> None:
        """It goes wrong now."""
        self._world.tell(None, f"fault: {fault.kind} {fault.target} {fault.amount}")
        strike: Callable[[Fault], None] = getattr(self, f"_{fault.kind}")
        strike(fault)

    def _kill(self, fault: Fault) -> None:
        process = self._world.alive(fault.target)
        if process is not None and process.fuse is None:
            process.fuse = fault.amount

    def _power(self, fault: Fault) -> None:
        process = self._world.alive(fault.target)
        if process is not None and process.fuse is None:
            process.fuse = fault.amount
            process.takes_power = True

    def _freeze(self, fault: Fault) -> None:
        process = self._world.alive(fault.target)
        if process is not None:
            process.frozen = fault.amount
            if fault.amount > 15:
                self._world.group.leave(process.ident)

    def _blind(self, fault: Fault) -> None:
        process = self._world.alive(fault.target)
        if process is not None:
            process.consumer.blind = fault.amount % 8
            self._world.group.leave(process.ident)

    def _stop(self, fault: Fault) -> None:
        process = self._world.alive(fault.target)
        if process is not None and not process.is_busy:
            process.stop()

    def _rebalance(self, _: Fault) -> None:
        self._world.group._changed()

    def _write_fails(self, fault: Fault) -> None:
        self._world.disks[0].failing[fault.target % self._world.plan.config.partitions] = True

    def _write_is_lost(self, fault: Fault) -> None:
        self._world.disks[0].failing[fault.target % self._world.plan.config.partitions] = False

    def _refuse_writes(self, fault: Fault) -> None:
        self._world.cluster.refuses_writes = True
        self._world.writes_until = self._world.step + fault.amount

    def _clock(self, fault: Fault) -> None:
        self._world.watch.clock_jumped = True
        self._world.clock.set_wall((fault.amount - 20) * 100)

    def _compact(self, fault: Fault) -> None:
        partition = fault.target % self._world.plan.config.partitions
        log = self._world.cluster.log(SOURCE, partition)
        committed = self._world.group.committed.get((SOURCE, partition), 0)
        for offset in log.compact(min(log.end, fault.amount)):
            if offset >= committed:
                self._world.watch.books.take_away(partition, offset)

    def _retain(self, fault: Fault) -> None:
        partition = fault.target % self._world.plan.config.partitions
        for topic in (SOURCE, NAMES.retry):
            committed = self._world.group.committed.get((topic, partition), 0)
            self._world.cluster.log(topic, partition).retain_from(min(committed, fault.amount))

    def _compact_changes(self, fault: Fault) -> None:
        # Tombstones go early or late; a store that is older than half of that is not trusted anyway.
        number = fault.target % self._world.plan.config.partitions
        log = self._world.cluster.log(LEDGER, number)
        log.compact_changes(self._world.clock.steady_ms, DELETE_RETENTION_MS)

    def _forget_state(self, fault: Fault) -> None:
        """The next time that no process of the machine runs, its state directory is deleted."""
        disk = self._world.disks[fault.target % len(self._world.disks)]
        disk.is_doomed = True

    def _depose(self, fault: Fault) -> None:
        """Frozen past its session, and then it goes on and hears of nothing for a while."""
        process = self._world.alive(fault.target)
        if process is not None:
            process.frozen = fault.amount % 12
            process.consumer.blind = fault.amount
            self._world.group.leave(process.ident)

    def _night(self, fault: Fault) -> None:
        """Nothing happens for long: transactions time out, stores grow old, tombstones may go.

        The log cleaner comes by at its beginning and at its end. Some nights wait for a restore, and fall
        into its middle; another in the restore that has to follow is beyond any bound.
        """
        self._hours = DELETE_RETENTION_MS // (1 + fault.amount % 2) + 500
        if fault.amount % 3:
            self._fall()

    def _fall(self) -> None:
        if self._restores():
            if self._broke_a_restore:
                return
            self._broke_a_restore = True
        self._clean()
        self._world.clock.advance(self._hours)
        self._hours = 0
        self._clean()

    def _restores(self) -> bool:
        return any(process.waiting for process in self._world.processes)

    def _truncate(self, fault: Fault) -> None:
        """Somebody deletes the beginning of a changelog: who has no ledger of it must refuse."""
        world = self._world
        if self._restores():
            return
        log = world.cluster.log(LEDGER, fault.target % world.plan.config.partitions)
        log.start = min(log.stable, log.end * 2 // 3)
        self._damaged_until = world.step + fault.amount

    def _recreate(self, fault: Fault) -> None:
        """While nothing runs, a changelog is made anew, and empty: everybody must refuse it."""
        world = self._world
        number = fault.target % world.plan.config.partitions
        if (SOURCE, number) not in world.group.committed:
            return
        for process in world.processes:
            world.end(process)
        world.cluster.make_anew(LEDGER, number)
        self._damaged_until = world.step + fault.amount

    def pass_by(self, step: int) -> None:
        """What goes by itself has gone."""
        if step == self._damaged_until:
            self.bring_back()
        if self._hours and self._restores():
            self._fall()

    def bring_back(self) -> None:
        """Somebody restores what was deleted."""
        cluster = self._world.cluster
        cluster.bring_back(LEDGER)
        for number in range(self._world.plan.config.partitions):
            cluster.log(LEDGER, number).start = 0

    def last_compaction(self) -> None:
        """The log cleaner comes at last to every changelog."""
        self._clean()

    def _clean(self) -> None:
        for number in range(self._world.plan.config.partitions):
            log = self._world.cluster.log(LEDGER, number)
            log.compact_changes(self._world.clock.steady_ms, DELETE_RETENTION_MS)
