"""The world of one history: clock, scheduler, processes and faults. What is seen of it is `watch`'s business.

One thread. Every few steps the random number generator is seeded anew with the step's number, so that
leaving out a fault or a record disturbs as little as possible of what follows.

    safety phase    steps: publish, strike, act (a turn, a thread, a background call, the network, the clock)
    calm phase      no faults any more: everything must come to rest, and then everything is accounted for
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from laneway.consumer.partition import Partition, State
from laneway.lanes.envelope import Envelope
from laneway.lanes.rules import Rules
from laneway.pipeline import Pipeline
from tests.invariants import Broken
from tests.simulation.applications import PIPELINES, current, play
from tests.simulation.broker import Group, Stored
from tests.simulation.cluster import Cluster
from tests.simulation.dice import Dice
from tests.simulation.disk import Disk
from tests.simulation.faults import Faults
from tests.simulation.operators import Operators
from tests.simulation.plan import Plan
from tests.simulation.process import Died, Process
from tests.simulation.seams import seams
from tests.simulation.setup import NAMES, SOURCE, settings_of
from tests.simulation.strands import Strand
from tests.simulation.watch import Watch

START_MS = 1_000_000
CALM_ROUNDS = 1500
MAX_DEPTH = 3
STEPS_AT_ONCE = 9
SEEDED_EVERY = 4
PACES = {False: (0.45, 0.72, 0.84), True: (0.35, 0.65, 0.84)}
"""How often a turn, a thread, a background call is next; the rest is the network's, and the clock's."""


class Clock:
    """Steady milliseconds, and those of the wall clock, which an operator may set: asked all the time."""

    def __init__(self) -> None:
        self.steady_ms = self.now_ms = START_MS

    def set_wall(self, by_ms: int) -> None:
        """Somebody sets the wall clock."""
        self.now_ms += by_ms

    def advance(self, ms: int) -> None:
        """Time passes."""
        self.steady_ms += ms
        self.now_ms += ms


class World:
    """One history.

    Args:
        trace: keep an event log, for people.
    """

    def __init__(self, plan: Plan, *, trace: bool = False) -> None:
        self.plan = plan
        self.trace: list[tuple[int, str, int, str, str]] | None = [] if trace else None
        self.names = NAMES
        self.clock = Clock()
        self.random = Dice(plan.seed)
        config = plan.config
        self.settings = settings_of(config)
        self.operators = Operators(self)
        self.watch = Watch(self)
        self.group = Group(config.protocol, config.partitions, self.watch.on_commit)
        self.cluster = Cluster(
            self.group,
            self.random,
            lambda: self.clock.steady_ms,
            self.watch.on_decided,
            self.watch.on_expired,
        )
        self.cluster.lost_answers = config.lost_answers
        watch = self.watch
        self.disks = [
            Disk(watch.on_write, watch.on_apply, watch.outside.forgets) for _ in range(config.machines)
        ]
        self.faults = Faults(self)
        self.pipeline: Pipeline[object] = PIPELINES[config.handler, config.decodes]
        self.envelope: Envelope | None = None
        self.rules: Rules | None = None
        self.processes: list[Process] = []
        self.acting: Process | None = None
        self.broken: Broken | None = None
        self.step = 0
        self._ids = 0
        self._depth = 0
        self._gone: list[tuple[int, int]] = []
        self._returns: list[tuple[int, int]] = []
        self.writes_until = -1
        self._moved = False

    def __enter__(self) -> None:
        """It lasts for as long as it is told about."""

    def __exit__(self, *_: object) -> None:
        """No call of anybody stays on its strand."""
        for process in self.processes:
            process.is_dead = True
            process.unwind()

    # -- the two phases

    def run(self) -> None:
        """Let it all happen.

        Raises:
            Broken: an invariant does not hold.
        """
        play(self)  # the seams of the worker's module have to find their world
        plan = self.plan
        letters, faults = list(plan.letters), sorted(plan.faults, key=lambda fault: fault.step)
        deeds = list(plan.deeds or ())
        for slot in range(plan.config.processes):
            self._launch(slot)
        for step in range(plan.steps):
            self.step = step
            if step % SEEDED_EVERY == 0:
                self.random.begin(plan.seed * 1_000_003 + step)
            self._publish(letters, step)
            while faults and faults[0].step <= step:
                self.faults.strike(faults.pop(0))
            while deeds and deeds[0].step <= step:
                self.operators.do(deeds.pop(0))
            self._housekeeping(step)
            self._act()
            if self.broken is not None:
                raise self.broken
        self._publish(letters, plan.steps)
        self._heal()
        self._rest()
        self.watch.check_end()

    def _publish(self, letters: list[Any], step: int) -> None:
        while letters and letters[0].step <= step:
            letter = letters.pop(0)
            partition = letter.record.partition
            log = self.cluster.log(SOURCE, partition)
            if self.random.random() < 0.06:
                log.append(None)  # a marker, or a record that compaction took before anybody came
            offset = log.append(Stored(letter.record.key, letter.record.value, (), letter.timestamp_ms))
            record = replace(letter.record, offset=offset)
            self.watch.books.add(record)
            self.watch.fates.setdefault((partition, record.effect_key), letter.fate)
            if self.trace is not None:
                what = "garbage" if record.fault else f"sequence {record.sequence} effect {record.effect_key}"
                text = f"published: offset {offset} {what} {letter.fate.kind} x{letter.fate.times}"
                self.tell(None, text, partition, record.lane)

    def _housekeeping(self, step: int) -> None:
        self._moved = False
        if step >= self.writes_until:
            self.cluster.refuses_writes = False
        self.faults.pass_by(step)
        for process in self.processes:
            if process.frozen:
                process.frozen -= 1
        if self._gone:
            for ident, at in self._gone:
                if at <= step:
                    self.group.leave(ident)
            self._gone = [(ident, at) for ident, at in self._gone if at > step]
        if self._returns:
            back = [slot for slot, at in self._returns if at <= step]
            self._returns = [(slot, at) for slot, at in self._returns if at > step]
            for slot in back:
                self._launch(slot)
        if self.group.is_waiting and self.random.random() < 0.03:
            self.group.expel_the_late()

    def _act(self) -> None:
        """Anything that may happen next."""
        random = self.random
        awake = [p for p in self.processes if not p.is_dead and not p.frozen]
        self.clock.advance(random.choice((0, 1, 5, 20)))
        free = [p for p in awake if not p.is_busy]
        dice = random.random()
        turn, thread, job = PACES[self.plan.config.changelog]
        if free and dice < turn:
            self._turn(random.choice(free))
        elif awake and dice < thread:
            process = random.choice(awake)
            movable = process.threads.can_move() if process.threads is not None else []
            for slot in movable[: random.choice((1, 3))]:
                self._move_thread(process, slot)
        elif awake and dice < job:
            process = random.choice(awake)
            if process.has_jobs:
                process.do_job()
        elif dice < 0.96:
            self._net(random.choice(self.processes) if self.processes else None)
        else:
            self.clock.advance(random.choice((50, 300, 1000)))

    def _turn(self, process: Process) -> None:
        """One turn; where a cycle takes many calls that block, mostly a few of both."""
        process.turn()
        if not self.plan.config.changelog:
            return
        for _ in range(self.random.choice((0, 2, 4, 8))):
            if process.has_jobs and not process.is_dead and self.random.random() < 0.8:
                process.do_job()
            if not process.is_dead and not process.is_busy:
                process.turn()
            self.clock.advance(self.random.choice((0, 1, 5)))

    def _move_thread(self, process: Process, slot: Any) -> None:
        assert process.threads is not None
        for _ in range(self.random.choice((1, 2, 4, 9))):
            if process.is_dead or slot not in process.threads.can_move():
                return
            process.threads.move(slot)
            self._moved = True

    def _net(self, process: Process | None) -> None:
        """Something that travels arrives."""
        if process is None:
            return
        for _ in range(self.random.choice((1, 2, 5))):
            if self.cluster.coordinator.on_the_way and self.random.random() < 0.5:
                self.cluster.coordinator.mark_one()
            elif self.cluster.late_ends and self.random.random() < 0.3:
                self.cluster.land_late_end()
            elif process.consumer.on_the_way and self.random.random() < 0.5:
                process.consumer.land_one()
            elif process.producer is not None and process.producer.on_the_way:
                process.producer.land_one()
            self._moved = True

    def meanwhile(self) -> None:
        """Somebody waits: the others go on."""
        self.clock.advance(self.random.choice((5, 20, 60)))
        if self.cluster.is_calm:
            self._round(nested=True)
            return
        if self._depth >= MAX_DEPTH:
            return
        self._depth += 1
        try:
            for _ in range(self.random.choice((1, 2, 4))):
                self._act()
        finally:
            self._depth -= 1

    def _heal(self) -> None:
        """From here on nothing goes wrong any more."""
        self.tell(None, "calm from here on")
        for process in self.processes:
            while process.producer is not None and process.producer.on_the_way:
                process.producer.land_one()
        self.cluster.is_calm = True
        self.watch.decisions.calm_ms = self.clock.steady_ms
        if self.plan.config.changelog:
            self.faults.bring_back()
            self.faults.last_compaction()
        self.cluster.refuses_writes = False
        for disk in self.disks:
            disk.failing.clear()
        for ident, _ in self._gone:
            self.group.leave(ident)
        self._gone = []
        for process in self.processes:
            process.fuse = None
            process.frozen = 0
            process.consumer.blind = 0
        for slot, _ in self._returns:
            self._launch(slot)
        self._returns = []
        self.operators.be_calm()

    def _rest(self) -> None:
        quiet = 0
        for _ in range(CALM_ROUNDS):
            self.step += 1
            self._moved = False
            self._round(nested=False)
            if self.broken is not None:
                raise self.broken
            quiet = quiet + 1 if not self._moved and not self.watch.unrest() else 0
            if quiet == 2:
                return
            if quiet == 1 and self.operators.finish():
                quiet = 0
            self.clock.advance(25 if self._moved else self._pause_ms())
        raise Broken(8, f"it never comes to rest: {self.watch.unrest()}")

    def _round(self, *, nested: bool) -> None:
        """Everybody does all there is to do."""
        for process in list(self.processes):
            if not process.is_busy and not process.is_dead:
                process.turn()
            self._finish(process)
        for ident, _ in self._gone:
            self.group.leave(ident)
        self._gone = []
        if not nested:
            for slot, _ in self._returns:
                self._launch(slot)
            self._returns = []

    def sleep(self, seconds: float) -> None:
        """Somebody sleeps; the others go on meanwhile, and so do the other threads of its process."""
        strand, sleeper = Strand.here(), self.acting
        if strand is None or not self.cluster.is_calm:
            self.clock.advance(int(seconds * 1000) + 1)
        if strand is not None:
            strand.pause()
        elif self.plan.config.changelog and sleeper is not None:
            self.meanwhile()
            if sleeper.has_jobs:
                sleeper.do_job()
            if sleeper.is_dead:
                raise Died

    def _finish(self, process: Process) -> None:
        """All that is under way in a process ends; as many steps of a cycle as hang on nothing else."""
        threads = process.threads
        while not process.is_dead and threads is not None and (movable := threads.can_move()):
            for slot in movable:
                if slot in threads.can_move():
                    threads.move(slot)
            self._moved = True
        for _ in range(STEPS_AT_ONCE):
            if not self._land(process) or process.is_dead or process.is_busy > process.is_waiting:
                return
            self._moved = True
            process.settle()

    def _land(self, process: Process) -> bool:
        """Everything arrives that a process has sent, and its background calls are made."""
        moved = False
        while process.jobs:
            moved |= process.do_job()
        for _ in range(len(process.waiting)):
            moved |= process.do_job()
        while process.consumer.on_the_way:
            process.consumer.land_one()
            moved = True
        while process.producer is not None and process.producer.on_the_way:
            process.producer.land_one()
            moved = True
        self.cluster.coordinator.mark_all()
        return moved

    def _pause_ms(self) -> int:
        """How long nothing will happen by itself."""
        now_ms = self.clock.now_ms
        pauses = [1000]
        for partition in self.live():
            assert partition.board is not None
            due_ms = partition.board.next_due_ms
            if due_ms is not None:
                pauses.append(max(1, due_ms - now_ms))
        for process in self.processes:
            until_ms = (
                process.threads.next_ms() if process.threads is not None and not process.is_dead else None
            )
            if until_ms is not None:
                pauses.append(max(1, until_ms - self.clock.steady_ms))
        return min(pauses)

    # -- processes

    def _launch(self, slot: int) -> None:
        self._ids += 1
        process = Process(self, self._ids, slot)
        self.processes = [p for p in self.processes if not p.is_dead or p.consumer.on_the_way] + [process]
        self.tell(process, "starts")
        process.start()

    def die(self, process: Process) -> None:
        """A process is killed, and perhaps its machine loses power."""
        if process.takes_power:
            self.tell(process, "the machine loses power")
            victims = [p for p in self.processes if not p.is_dead and p.disk is process.disk]
            for victim in victims:
                self.end(victim)
            self.watch.power_losses += 1
            process.disk.lose_power(self.random if self.plan.config.changelog else None)
            if not self.plan.config.changelog:
                self.watch.outside.unrecords(
                    lambda partition, effect_key: effect_key not in self.watch.truth(partition).effects
                )
        else:
            self.end(process)

    def end(self, process: Process) -> None:
        """A process is killed."""
        if process.is_dead:
            return
        self.over(process)
        # Its session goes on for a while, and what it has sent may still arrive.
        self._gone.append((process.ident, self.step + self.random.randint(0, 25)))
        if self.random.random() < 0.5:
            process.consumer._travelling.clear()
            if process.producer is not None:
                process.producer._travelling.clear()

    def over(self, process: Process) -> None:
        """A process is over, for whatever reason; it comes back later."""
        if process.is_dead:
            return
        process.is_dead = True
        process.disk.lose_process(process)
        process.unwind()
        if process.disk.is_doomed and all(p.is_dead or p.disk is not process.disk for p in self.processes):
            self.tell(process, "the state directory of its machine is deleted")
            process.disk.forget()
        self.watch.outside.dies(process.ident)
        self._returns.append((process.slot, self.step + self.random.randint(1, 30)))

    def alive(self, target: int) -> Process | None:
        alive = [p for p in self.processes if not p.is_dead]
        return alive[target % len(alive)] if alive else None

    def live(self) -> list[Partition]:
        """The partitions that read and run, whoever has them."""
        return [
            partition
            for process in self.processes
            if not process.is_dead
            for partition in process.partitions()
            if partition.state is State.LIVE
        ]

    def tell(self, process: Process | None, text: str, partition: int = -1, lane: str = "") -> None:
        """A line of the event log."""
        if self.trace is not None:
            self.trace.append(
                (self.step, repr(process) if process is not None else "", partition, lane, text)
            )


def happen(plan: Plan, *, trace: bool = False) -> tuple[World, Broken | None]:
    """Let a history happen; returns its world, and the promise that it broke."""
    world = World(plan, trace=trace)
    with seams(current, world.clock), world:
        try:
            world.run()
        except Broken as broken:
            return world, broken
        except Died:
            raise AssertionError("a dead process acts on") from None
        except Exception as error:  # noqa: BLE001 - whatever it is, the code under test contradicts itself
            found = Broken(9, f"{type(error).__name__}: {error}")
            found.__cause__ = error
            return world, found
    return world, None
