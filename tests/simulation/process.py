"""One worker process of the simulation: the real `Worker` over a fake Kafka, disk, clock, and threads.

The worker is driven turn by turn, as its own `run` does. A process may die at any act that leaves it
(`pulse`), and whatever waits inside it (a drain in a rebalance) lets the rest of the world go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from laneway.consumer.journal import Journal, Place
from laneway.consumer.partition import Partition, State
from laneway.consumer.worker import Worker
from laneway.errors import LanewayError, LedgerError, RefusedError
from laneway.lanes.record import Channel, Record
from laneway.lanes.settlement import Settled, Settlement
from laneway.store.state_dir import StateDir
from tests.invariants import Broken
from tests.simulation.clients import FakeConsumer
from tests.simulation.disk import Host
from tests.simulation.idleness import is_idle
from tests.simulation.producers import FakeProducer, FakeTransactionalProducer
from tests.simulation.setup import NAMES, SOURCE
from tests.simulation.strands import Strand

if TYPE_CHECKING:
    from tests.simulation.batches import Batches
    from tests.simulation.threads import Threads
    from tests.simulation.world import World

IDLE_MS = 500
"""The longest time between two turns of a process that has nothing to do: it may hang on time alone."""

_IDLE_ACTS = frozenset({"consume", "producer poll", "journal"})


class Died(BaseException):
    """The process ends at this very act."""


class Answer:
    """The future of a background call, as the world's one thread needs it: without locks."""

    __slots__ = ("_error", "_result", "_then", "is_over")

    def __init__(self) -> None:
        self.is_over = False
        self._result: Any = None
        self._error: Exception | None = None
        self._then: list[Callable[[Answer], object]] = []

    def come(self, result: object, error: Exception | None) -> None:
        """The call is over."""
        self._result, self._error, self.is_over = result, error, True
        for then in self._then:
            then(self)

    def done(self) -> bool:
        """See `Future`."""
        return self.is_over

    def result(self) -> Any:
        """See `Future`; nobody waits here."""
        assert self.is_over
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self) -> Exception | None:
        """See `Future`; nobody waits here."""
        assert self.is_over
        return self._error

    def add_done_callback(self, then: Callable[[Answer], object]) -> None:
        """See `Future`."""
        self._then.append(then)
        if self.is_over:
            then(self)


class Job(NamedTuple):
    """A call for a background thread."""

    answer: Answer
    call: Callable[[], Any]
    may_wait: bool


class Process:
    """One start of a worker process.

    Attributes:
        ident: of this start; a restart is another process.
        fuse: acts until it dies; None while nobody has lit it.
        takes_power: whether the whole machine goes with it.
        frozen: world steps for which it does not run.
        is_busy: it is on the stack, waiting for others.
        is_waiting: so it is, and in a drain.
        disk: of the machine that it runs on.
        waiting: background calls that pause in their middle.
    """

    def __init__(self, world: World, ident: int, slot: int) -> None:
        self.world = world
        self.ident = ident
        self.slot = slot
        self.disk = world.disks[slot % len(world.disks)]
        self.is_dead = False
        self.is_busy = False
        self.is_waiting = False
        self.fuse: int | None = None
        self.takes_power = False
        self.frozen = 0
        self.jobs: deque[Job] = deque()
        self.waiting: deque[Strand] = deque()
        self.threads: Threads | Batches | None = None
        self._waits = 0
        self._idle_acts = 0
        self._quiet_turns = 0
        self._turned_ms = 0
        self.journal = SimJournal(self)
        self.consumer: FakeConsumer
        self.producer: FakeProducer | FakeTransactionalProducer | None = None
        world.acting = self
        self.worker = Worker(
            world.settings,
            world.pipeline,
            names={SOURCE: NAMES},
            partitions={SOURCE: world.plan.config.partitions},
            state_dir=cast("StateDir", _StateDir(self)),
            journal=cast("Journal", self.journal),
            drain_timeout_s=1.0,
            crash_point=self.pulse,
        )

    def __repr__(self) -> str:
        return f"process {self.ident}"

    # -- what the scheduler does

    def start(self) -> None:
        """Join the group."""
        self._doing(self.worker._ownership.subscribe)

    def turn(self) -> None:
        """One turn of the owner thread, or the end of it; none where it could do nothing.

        One more is made after the last that could: what that has ended, it tidies up.
        """
        now_ms = self.world.clock.now_ms
        self._quiet_turns = self._quiet_turns + 1 if is_idle(self) else 0
        if self._quiet_turns <= 1 or not 0 <= now_ms - self._turned_ms < IDLE_MS:
            self._turned_ms = now_ms
            self._doing(self._or_end, self.worker._turn)

    def settle(self) -> None:
        """What a turn does that finds nothing to read: the cycle goes on."""
        if self.worker._settler.idle:
            return
        if not self.is_waiting:
            self._doing(self._or_end, self._settle)
            return
        # It stands in its drain, below somebody who waits for its transaction; in truth it would not.
        before, self.world.acting = self.world.acting, self
        try:
            self._settle()
        finally:
            self.world.acting = before

    def stop(self) -> None:
        """SIGTERM: finish what runs, settle, leave."""
        self._doing(self._end, None)

    def partitions(self) -> list[Partition]:
        """What it owns."""
        return self.worker._ownership.owned()

    def is_live(self, number: int) -> bool:
        """Whether it reads and runs this partition."""
        return any(p.partition == number and p.state is State.LIVE for p in self.partitions())

    @property
    def has_jobs(self) -> bool:
        """Whether a background thread has anything to do."""
        return bool(self.jobs or self.waiting)

    def do_job(self) -> bool:
        """One of the background threads does one call, or goes on with it; returns whether that is over."""
        world = self.world
        before, world.acting = world.acting, self
        try:
            if self.waiting and (not self.jobs or world.random.random() < 0.5):
                strand = self.waiting.popleft()
            else:
                job = self.jobs.popleft()
                if not job.may_wait:
                    self._work(job)
                    return True
                strand = Strand.of(lambda: self._work(job))
            strand.resume()
            if not strand.is_over:
                self.waiting.append(strand)
            return strand.is_over
        finally:
            world.acting = before

    def unwind(self) -> None:
        """It is dead: calls that wait end at their next act."""
        while self.waiting:
            strand = self.waiting.popleft()
            while not strand.is_over:
                strand.resume()

    def _work(self, job: Job) -> None:
        try:
            result = job.call()
        except Died:
            return
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asks the future
            if isinstance(error, Broken):
                self.world.broken = self.world.broken or error
            job.answer.come(None, error)
        else:
            job.answer.come(result, None)

    # -- what leaves it

    def pulse(self, act: str) -> None:
        """An act that leaves the process: it may be its last."""
        if self.is_dead:
            raise Died
        if self.fuse is not None:
            if act in _IDLE_ACTS:
                # They are most of all acts, and a death there is the dullest.
                self._idle_acts += 1
                if self._idle_acts % 6:
                    return
            self.fuse -= 1
            if self.fuse < 0:
                self.world.tell(self, f"dies at {act!r}")
                self.world.die(self)
                raise Died

    def note(self, text: str, partition: int) -> None:
        """A line of the event log."""
        self.world.tell(self, text, partition)

    def serving(self, callback: Callable[[], None]) -> None:
        """A rebalance callback, which may wait."""
        self._waits += 1
        try:
            callback()
        finally:
            self._waits -= 1

    def wait(self) -> None:
        """The owner thread waits: inside a drain nobody else schedules the others."""
        if self.is_dead:
            raise Died
        if self._waits:
            self.is_waiting = True
            try:
                self.world.meanwhile()
            finally:
                self.is_waiting = False
            if self.is_dead:
                raise Died

    def wait_beside(self, timeout_s: float) -> None:
        """A background thread waits."""
        if Strand.here() is None:
            self.world.clock.advance(50)
        else:
            self.world.sleep(min(timeout_s, 0.05) if timeout_s >= 0 else 0.05)
        if self.is_dead:
            raise Died

    # -- behind it

    def _doing(self, act: Callable[..., None], *what: object) -> None:
        if self.is_dead:
            return
        self.is_busy = True
        world = self.world
        before, world.acting = world.acting, self
        try:
            act(*what)
        except Died:
            pass
        finally:
            self.is_busy = False
            world.acting = before

    def _settle(self) -> None:
        self.worker._settler.advance(self.worker._ownership.owned(), self.world.clock.now_ms)

    def _or_end(self, act: Callable[[], None]) -> None:
        try:
            act()
            failure = self.worker._ownership.failure()
        except LanewayError as error:
            failure = error
        if failure is not None:
            self._expected(failure)
            self.world.tell(self, f"ends: {failure.what}")
            self._end(failure)

    def _end(self, failure: LanewayError | None) -> None:
        self._waits += 1
        try:
            self.worker._end(failure)
        except LanewayError as error:
            self._expected(error)
        finally:
            self._waits -= 1
        self.world.tell(self, "has left")
        self.world.over(self)

    @staticmethod
    def _expected(failure: LanewayError) -> None:
        injected = isinstance(failure, LedgerError) and failure.what.startswith("the disk refused")
        truncated = isinstance(failure, RefusedError) and "log" in failure.what
        if not (injected or truncated):
            raise Broken(9, f"a worker stopped by itself: {type(failure).__name__}: {failure.what}")


class SimJournal:
    """A journal that checks what it is told: saved before acknowledged, acknowledged after the commit."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._saved: dict[int, Settlement] = {}

    def received(self, place: Place, records: Iterable[Record]) -> None:
        """Not checked."""
        self._tell("received", place, records)

    def running(self, place: Place, records: Iterable[Record]) -> None:
        """Not checked."""
        self._tell("running", place, records)

    def released(self, place: Place, records: Iterable[Record]) -> None:
        """Not checked."""
        self._tell("released", place, records)

    def refused(self, place: Place, records: Iterable[Record], reason: str) -> None:
        """Not checked."""
        self._tell(f"refused ({reason})", place, records)

    def settled(self, place: Place, settlements: Iterable[Settlement]) -> None:
        """Outcomes are durable."""
        for done in settlements:
            self._saved[id(done)] = done
            if self._process.world.trace is not None:
                words = [
                    done.how.name.lower(),
                    done.reason,
                    *(f"{event}:{what}" for event, what in done.events),
                ]
                self._tell(" ".join(word for word in words if word), place, (done.record,))

    def acked(self, place: Partition, settlements: Iterable[Settlement]) -> None:
        """Offsets are committed."""
        world = self._process.world
        for done in settlements:
            record = done.record
            if self._saved.pop(id(done), None) is not done:
                raise Broken(4, f"{record} is acknowledged before it is saved", partition=place.partition)
            if not record.parked:
                committed = world.group.committed.get((place.topic_of(record.channel), place.partition), 0)
                # What is settled above the frontier is told when the group has all that it can have.
                if record.offset >= committed < place.committable(record.channel):
                    what = f"{record} is acknowledged and the group has offset {committed}"
                    raise Broken(4, what, partition=place.partition, lane=record.lane)
            for forward in done.forwards:
                if forward.forward_id not in world.watch.forwarded.ids:
                    what = f"{record} is acknowledged before its {forward.kind.name} is published"
                    raise Broken(6, what, partition=place.partition, lane=record.lane)
            if world.trace is not None and done.how is not Settled.PARKED:
                self._tell("acked", place, (record,))

    def flush(self) -> None:
        """The lines reach the system."""
        self._process.pulse("journal")

    def close(self) -> None:
        """The last flush."""

    def _tell(self, event: str, place: Place, records: Iterable[Record]) -> None:
        world = self._process.world
        if world.trace is not None:
            for record in records:
                channel = "" if record.channel is Channel.SOURCE else f" ({record.channel.name.lower()})"
                text = (
                    f"{event}: offset {record.offset}{channel} sequence {record.sequence} #{record.attempt}"
                )
                world.tell(self._process, text, place.partition, record.lane)


class _StateDir:
    """The state directory as one process sees it."""

    path = Path("sim")

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def state_id(self) -> str:
        """Of the machine's directory, as long as nobody deletes it."""
        disk = self._process.disk
        return f"state{self._process.world.disks.index(disk)}-{disk.memory}"

    def worker_slot(self) -> _Slot:
        """The first number that no living process of the machine has."""
        slots = self._process.disk.slots
        number = next(n for n in range(len(slots) + 1) if n not in slots or slots[n].is_dead)
        slots[number] = self._process
        return _Slot(number, slots)

    def exists(self, topic: str, partition: int) -> bool:
        """Whether a store was ever made."""
        return self._process.disk.exists(partition)

    def topic_ids(self, topic: str) -> tuple[str, str]:
        """Nobody makes a source anew here."""
        return ("", "")

    def open_store(self, topic: str, partition: int) -> object:
        """Open and lock it."""
        return self._process.disk.open(partition, self._process)

    def move_aside(self, topic: str, partition: int, why: str) -> Path:
        """Out of the way."""
        self._process.pulse("move aside")
        self._process.note(f"moves the ledger aside: {why}", partition)
        self._process.disk.move_aside(partition)
        return self.path


class _Slot:
    """See `state_dir.WorkerSlot`."""

    def __init__(self, number: int, slots: dict[int, Host]) -> None:
        self.number = number
        self._slots = slots

    def release(self) -> None:
        """The next process may have the number."""
        self._slots.pop(self.number, None)
