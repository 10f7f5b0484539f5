"""Operators: people who decide cases, pause and resume, on what they last saw, which may be long ago.

What they will do is drawn before the history begins (`deeds`); on whom it falls shows when the time comes.
Once faults have stopped they resume everything and decide every case that is open, until none is left. What
their commands explain (a second run, an effect that somebody has ended, a number passed) stands here.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.lanes.case import Case
from laneway.lanes.command import ACTIONS, COMMAND_FORMAT, Command, encode_command
from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.forward import CommandAnswer, Forward, ReviewNews
from laneway.lanes.record import Record
from laneway.lanes.view import Entry, PutCase
from tests.invariants import Broken, headers_of
from tests.simulation.broker import Stored
from tests.simulation.deeds import Deed
from tests.simulation.letters import Letters, correction_of
from tests.simulation.setup import NAMES, SOURCE

if TYPE_CHECKING:
    from tests.simulation.world import World

GARBAGE = (None, b"", b"\xff\xfe", b"[]", b'{"format":1,"commandId":"x"}', b"[" * 3000)
PATIENCE = 3
"""After so many rounds nobody asks for another run: what fails for ever is given up."""


class Operators:
    """The people of one history.

    Attributes:
        paused: by partition and lane, what somebody has ever paused; "" for the partition itself.
        commands: by partition and position, what was sent.
        corrections: by partition and source offset, values that may stand for the published one.
        ended: by partition and source offset, what somebody wanted the effect of that delivery to be.
        decided: by partition and source offset, records whose case a command has closed.
        passed: by partition and lane, numbers that a command has let the lane move past.
        reopened: by partition and effect key, effects that a command has run.
        replayed: by partition and source offset, records that somebody wanted to run again.
        renewed: by partition and source offset, the attempts before the last replay.
        letters: the dead letters that they send back.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[int, list[Case]] = {}
        self.paused: set[tuple[int, str]] = set()
        self._rounds = 0
        self._numbers = 0
        self.commands: dict[tuple[int, int], Command | None] = {}
        self._by_id: dict[str, Command] = {}
        self.corrections: set[tuple[int, int, bytes]] = set()
        self.ended: set[tuple[int, int, EffectState]] = set()
        self.judged: set[tuple[int, str]] = set()
        self.decided: set[tuple[int, int]] = set()
        self.passed: set[tuple[int, str, int]] = set()
        self.reopened: set[tuple[int, str]] = set()
        self.renewed: dict[tuple[int, int], int] = {}
        self.replayed: set[tuple[int, int]] = set()
        self._finished: set[tuple[int, str, bytes]] = set()
        self._answers: dict[tuple[int, int], str] = {}
        self.letters = Letters(world, self)

    # -- what they do

    def do(self, deed: Deed) -> None:
        """One deed, at its time."""
        random = Random(deed.dice)
        getattr(self, f"_do_{deed.kind}")(deed.partition, random)

    def be_calm(self) -> None:
        """From here on everything that was ever paused is resumed, whether it still is or not."""
        if self._world.plan.deeds is None:
            return
        for partition, lane in sorted(self.paused):
            self.send(partition, "resume", lane=lane)

    def finish(self) -> bool:
        """At rest: decide what is open. Returns whether there was anything."""
        if self._world.plan.deeds is None:
            return False
        self._rounds += 1
        before = len(self.commands)
        for partition in range(self._world.plan.config.partitions):
            state = self._world.watch.truth(partition)
            random = Random(f"{self._world.plan.seed} {partition} {self._rounds}")
            for case in list(state.cases.values()):
                actions = case.actions
                if self._rounds > PATIENCE:
                    actions = tuple(a for a in actions if not ACTIONS[a].runs and a != "set-next")
                self._decide(partition, case, random.choice(actions), random)
        return len(self.commands) > before

    def _do_look(self, partition: int, _: Random) -> None:
        self._seen[partition] = list(self._world.watch.truth(partition).cases.values())

    def _do_decide(self, partition: int, random: Random) -> None:
        if random.random() < 0.7:
            self._do_look(partition, random)
        cases = self._seen.get(partition)
        if cases:
            case = random.choice(cases)
            self._decide(partition, case, random.choice(case.actions), random)

    def _do_try(self, partition: int, random: Random) -> None:
        """What may well be forbidden, or about another lane, or an older version."""
        if not self._seen.get(partition):
            self._do_look(partition, random)
        cases = self._seen.get(partition)
        if not cases:
            return
        case = random.choice(cases)
        if random.random() < 0.2:
            case = msgspec.structs.replace(case, lane=random.choice(("ka", "kb", "ezz")))
        if random.random() < 0.2:
            case = msgspec.structs.replace(case, version=case.version + 1)
        action = random.choice([name for name, rule in ACTIONS.items() if rule.needs_case])
        self._decide(partition, case, action, random)

    def _do_again(self, partition: int, random: Random) -> None:
        """A command is sent twice, or once more after days."""
        log = self._world.cluster.log(NAMES.commands, partition)
        known = [offset for number, offset in self.commands if number == partition]
        if known:
            offset = random.choice(known)
            stored = log.records[offset]
            assert stored is not None
            self.commands[partition, log.append(stored)] = self.commands[partition, offset]

    def _do_pause(self, partition: int, random: Random) -> None:
        records = [letter.record for letter in self._world.plan.letters]
        lanes = sorted({r.lane for r in records if r.lane and r.partition == partition})
        if lanes:
            lane = random.choice(lanes)
            self.paused.add((partition, lane))
            self.send(partition, "pause", lane=lane)

    def _do_resume(self, partition: int, random: Random) -> None:
        lanes = sorted(lane for number, lane in self.paused if number == partition and lane)
        if lanes:
            self.send(partition, "resume", lane=random.choice(lanes))

    def _do_pause_all(self, partition: int, _: Random) -> None:
        self.paused.add((partition, ""))
        self.send(partition, "pause")

    def _do_resume_all(self, partition: int, _: Random) -> None:
        self.send(partition, "resume")

    def _do_replay_letter(self, partition: int, random: Random) -> None:
        self.letters.send(partition, random)

    def _do_garbage(self, partition: int, random: Random) -> None:
        log = self._world.cluster.log(NAMES.commands, partition)
        value = random.choice(GARBAGE)
        offset = log.append(Stored(None, value, (), self._world.clock.now_ms))
        self.commands[partition, offset] = None

    def _decide(self, partition: int, case: Case, action: str, random: Random) -> None:
        members: dict[str, Any] = {}
        if action == "set-next":
            members["sequence"] = case.sequence + random.choice((1, 1, 2, 3))
        elif action == "mark-done":
            members["result_key"] = random.choice((None, "found"))
        elif action == "replay-with":
            members["value"] = correction_of(case.record.value if case.record is not None else None)
            self.corrections.add((partition, case.offset, members["value"]))
        if ACTIONS[action].runs:
            self.replayed.add((partition, case.offset))
        else:
            end = EffectState.SUCCEEDED if action == "mark-done" else EffectState.DISCARDED
            self.ended.add((partition, case.offset, end))
        self.send(partition, action, lane=case.lane, case_id=case.case_id, version=case.version, **members)

    def send(self, partition: int, action: str, **members: Any) -> None:
        """A command goes to the owner of a partition."""
        self._numbers += 1
        command = Command(
            COMMAND_FORMAT,
            f"command-{self._numbers}",
            action,
            "ann",
            "because",
            self._world.settings.group,
            SOURCE,
            partition,
            **members,
        )
        log = self._world.cluster.log(NAMES.commands, partition)
        offset = log.append(Stored(None, encode_command(command), (), self._world.clock.now_ms))
        self.commands[partition, offset] = self._by_id[command.command_id] = command
        if self._world.trace is not None:
            about = f" {command.case_id}" if command.case_id else ""
            text = f"an operator sends at {offset}: {action}{about}"
            self._world.tell(None, text, partition, command.lane)

    # -- what is seen of it

    def begins(self, partition: int, record: Record) -> str:
        """A run that a command asked for begins; returns the case that it is about."""
        command = record.command
        if command is None:
            return ""
        self.reopened.add((partition, record.effect_key))
        return command.case_id

    def intended(self, partition: int, effect_key: str, effect: Effect) -> None:
        """A run is about to be announced; perhaps the one that a command asked for."""
        if (partition, effect.offset) in self.replayed:
            self.reopened.add((partition, effect_key))

    def finished(self, partition: int, effect_key: str, effect: Effect) -> None:
        """An effect is about to be finished: by its handler, or by who decided about this very delivery."""
        self._finished.add((partition, effect_key, effect.payload_hash))
        by_command = effect.reason == "mark-done" or effect.state is EffectState.DISCARDED
        if by_command and (partition, effect.offset, effect.state) not in self.ended:
            what = f"nobody has decided about offset {effect.offset}, and it is {effect.state.name}"
            raise Broken(3, f"effect {effect_key!r}: {what}", partition=partition, lane=effect.lane)
        if by_command:
            self.judged.add((partition, effect_key))

    def explains(self, partition: int, offset: int, effect_key: str, payload_hash: bytes) -> bool:
        """Whether a command is why the ledger does not explain a record by itself."""
        if (partition, offset) in self.decided:
            return True
        # It was a duplicate of an effect that a command has opened again since.
        known = (partition, effect_key, payload_hash) in self._finished
        return known and (partition, effect_key) in self.reopened

    def has_passed(self, partition: int, lane: str, number: int) -> bool:
        """Whether a command is why a lane is past a number, or why its effect is not finished any more."""
        if (partition, lane, number) in self.passed:
            return True
        records = self._world.watch.books.of_number(partition, lane, number)
        return any(
            (partition, r.effect_key) in self.reopened
            and (partition, r.effect_key, r.payload_hash) in self._finished
            for r in records
        )

    def check_written(self, partition: int, entries: Sequence[Entry]) -> None:
        """Cases that a cycle opens: nobody is told that attempts are over while some are left (13)."""
        delays = len(self._world.plan.config.delays_ms)
        for entry in entries:
            if not isinstance(entry, PutCase) or entry.case is None:
                continue
            case = entry.case
            if case.reason == "attempts-exhausted":
                made = case.attempts - self.renewed.get((partition, case.offset), 0)
                if made != 1 + delays:
                    what = f"attempts of {case.effect_key!r} are said to be exhausted after {made}"
                    raise Broken(13, what, partition=partition, lane=case.lane)

    def settled(self, partition: int, forward: Forward) -> None:
        """News, or an answer, is about to be true together with what it tells."""
        own = headers_of(forward)
        if own.get("kind") == "answer":
            answer = msgspec.json.decode(forward.value or b"", type=CommandAnswer)
            place = (partition, answer.offset)
            if place not in self.commands:
                raise Broken(6, f"an answer to a command that nobody sent: {answer}", partition=partition)
            if self._answers.setdefault(place, forward.forward_id) != forward.forward_id:
                raise Broken(6, f"the command at {answer.offset} has two answers", partition=partition)
            command = self.commands[place]
            if command is not None and command.letter is not None and not answer.why:
                self.letters.answered(partition, answer, command.letter)
            return
        news = msgspec.json.decode(forward.value or b"", type=ReviewNews)
        if news.event == "resolved" and news.command_id:
            self._resolved(partition, news)

    def _resolved(self, partition: int, news: ReviewNews) -> None:
        command = self._by_id[news.command_id]
        if news.reason != "sequence-gap":
            self.decided.add((partition, news.offset))
        if ACTIONS[command.action].runs:
            # Also where the record was refused unseen, and no handler ran.
            self.reopened.add((partition, news.effect_key))
            self.renewed[partition, news.offset] = news.attempts
        if not news.holds or ACTIONS[command.action].runs:
            return
        end = command.sequence if command.action == "set-next" else news.sequence + 1
        assert end is not None
        parked = self._world.watch.truth(partition).parked.get(command.lane, {})
        for number in range(news.sequence, end):
            if any(sequence == number for sequence, _ in parked) and command.action == "set-next":
                what = f"set-next {end} passes over {number}, which is parked"
                raise Broken(1, what, partition=partition, lane=command.lane)
            self.passed.add((partition, command.lane, number))

    def check_passed(self, partition: int, first: int, end: int) -> None:
        """A commit passes commands: each has its answer."""
        for offset in range(first, end):
            if (partition, offset) in self.commands and (partition, offset) not in self._answers:
                raise Broken(4, f"the commit passed the command at {offset} unanswered", partition=partition)

    def check_end(self, partition: int) -> None:
        """Every command was answered; where people decide, nothing is left open, held or paused (8)."""
        self.letters.check_end(partition)
        landed = self._world.watch.forwarded.ids
        for number, offset in self.commands:
            if number == partition and self._answers.get((number, offset)) not in landed:
                raise Broken(6, f"the command at {offset} has no answer", partition=partition)
        if self._world.plan.deeds is None:
            return
        state = self._world.watch.truth(partition)
        if state.cases:
            raise Broken(8, f"cases are left: {list(state.cases)}", partition=partition)
        if state.meta is not None and state.meta.pause is not None:
            raise Broken(8, "the partition is still paused", partition=partition)
        for lane, stored in state.lanes.items():
            if stored.hold is not None or stored.pause is not None or stored.parked:
                raise Broken(8, f"nothing is open, and still: {stored}", partition=partition, lane=lane)
