"""A single-threaded driver of the board: the whole protocol of `local` without Kafka, threads or a disk.

Every act that a worker, a broker or a crash performs is one method, so a test can stop between any two:

    produce ─► poll ─► hand_out ─► step (one record in the handler) ─► finish
                         write ─► sync ─► publish ─► commit          crash, at any point

The ledger is the in-memory twin, the clock is a number, and a retry comes back through a topic as it
would from Kafka. While it drives, it checks what must hold at every moment and fails on the spot.
What operators send and hear is in `operated`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from laneway.lanes.board import Board, Cut
from laneway.lanes.canonical import payload_hash
from laneway.lanes.command_record import read_command
from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.envelope import Envelope, EnvelopeRules
from laneway.lanes.forward import Forward, ForwardKind, Home, read_retry
from laneway.lanes.lane import Lane
from laneway.lanes.record import Channel, Headers, Record, keyed_lane
from laneway.lanes.rules import Rules
from laneway.lanes.run import Run
from laneway.lanes.settlement import Settled, Settlement
from laneway.lanes.verdict import ACK, Ack, Outcome
from laneway.store.memory import MemoryLedger

HOME = Home("reminders", "invoices", 3)
START_MS = 1_000_000
MANY = 1_000_000

Handler = Callable[[Record], Outcome]


class Stored(NamedTuple):
    """One record as a topic keeps it."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 5


class Act(NamedTuple):
    """One record in the handler's hands."""

    effect_key: str
    lane: str
    sequence: int
    offset: int
    attempt: int
    redelivered: bool
    epoch: int
    verdict: str


class End(NamedTuple):
    """One durable settlement, by the source position it belongs to."""

    offset: int
    how: Settled
    reason: str


def value_of(
    lane: str | None = "a",
    sequence: int | None = 1,
    *,
    effect: str | None = None,
    message: str | None = None,
    payload: object = None,
    version: int = 1,
) -> bytes:
    """A good value; by default one effect for each number of a lane."""
    effect = effect if effect is not None else f"{lane}{sequence}"
    members: dict[str, object] = {
        "messageId": message or f"m-{effect}",
        "effectKey": effect,
        "version": version,
        "payload": payload if payload is not None else {"of": effect},
    }
    if lane is not None:
        members["sequenceKey"] = lane
    if sequence is not None:
        members["sequence"] = sequence
    return msgspec.json.encode(members)


def always(outcome: Outcome) -> Handler:
    """A handler with one answer."""
    return lambda _: outcome


class Driver:
    """One source partition with its retry, DLQ and review topics, and whoever owns it now.

    Attributes:
        topics: records by offset; None is an offset without a record (a marker, a compacted one).
        acts: what the handler was given, in order.
        ends: settlements known to be durable, in order.
        out: runs handed out and not taken back.
        pending: the cut that is written and not synced.
        refuses: whether the cluster does not take a forward; its settlement is then held back.
        commanded: durable settlements of commands, by their own position.
    """

    def __init__(
        self,
        rules: Rules | None = None,
        envelope: EnvelopeRules | None = None,
        handler: Handler | None = None,
        *,
        decode: Callable[[bytes], object] | None = None,
        home: Home = HOME,
    ) -> None:
        self.rules = rules or Rules()
        self.envelope = Envelope(envelope or EnvelopeRules(), decode)
        self.handler = handler or always(ACK)
        self.home = home
        self.now_ms = START_MS
        self.topics: dict[Channel, list[Stored | None]] = {channel: [] for channel in Channel}
        self.dlq: list[Forward] = []
        self.review: list[Forward] = []
        self.committed: dict[Channel, int] = dict.fromkeys(Channel, 0)
        self.acts: list[Act] = []
        self.ends: list[End] = []
        self.commanded: list[End] = []
        self.refuses: Callable[[Forward], bool] = lambda _: False
        self._runs_by_command: Counter[int] = Counter()
        self.ledger = MemoryLedger()
        self.epoch = 0
        self._happened: set[str] = set()
        self._last_first: dict[str, int] = {}
        self.open()

    # -- the world

    def produce(
        self,
        lane: str | None = "a",
        sequence: int | None = 1,
        *,
        effect: str | None = None,
        message: str | None = None,
        payload: object = None,
        version: int = 1,
        key: bytes | None = b"k",
        headers: Headers = (),
    ) -> int:
        """Append a good record to the source; returns its offset."""
        value = value_of(lane, sequence, effect=effect, message=message, payload=payload, version=version)
        return self.produce_raw(value, key, headers)

    def produce_raw(self, value: bytes | None, key: bytes | None = b"k", headers: Headers = ()) -> int:
        """Append any bytes to the source; returns their offset."""
        self.topics[Channel.SOURCE].append(Stored(key, value, headers))
        return len(self.topics[Channel.SOURCE]) - 1

    def produce_many(self, lane: str, *sequences: int) -> None:
        """Append these numbers of one lane."""
        for sequence in sequences:
            self.produce(lane, sequence)

    # -- ownership

    def open(self, writer: str = "") -> None:
        """A new owner: it knows what the ledger and the group's offsets say, and nothing else.

        Args:
            writer: a process that owned the partition before; else a new one.
        """
        self.epoch += 1
        opening = self.ledger.opening()
        self.outbox = dict(opening.outbox)
        self.durable = dict(self.committed)
        for channel, mark in (opening.meta.marks if opening.meta is not None else {}).items():
            self.durable[channel] = max(self.durable[channel], mark.frontier)
        self.board = Board(
            self.home,
            self.rules,
            self.envelope,
            self.ledger,
            opening,
            epoch=self.epoch,
            writer=writer or f"writer-{self.epoch}",
            starts=dict(self.committed),
        )
        self.position = dict(self.committed)
        self.out: list[Run] = []
        self.pending: Cut | None = None
        self._acked: set[str] = set()
        self._polled: set[int] = set()

    def crash(self, *, lose_unsynced: bool = False) -> None:
        """The owner dies, and the next one opens what is left.

        Args:
            lose_unsynced: the machine lost power; else only the process was killed.
        """
        if self.pending is not None and not lose_unsynced:
            self._note(self.pending)
        self.ledger = self.ledger.crash(lose_unsynced=lose_unsynced)
        self.open()

    # -- one act each

    def poll(self, limit: int = MANY) -> int:
        """Read up to `limit` records of each channel that may be read now; returns how many came."""
        blocked = self.board.blocked()
        came = 0
        for channel, log in self.topics.items():
            if channel in blocked:
                continue
            start = self.position[channel]
            end = min(len(log), start + limit)
            batch = [self._record(channel, offset) for offset in range(start, end) if log[offset] is not None]
            self.position[channel] = end
            if channel is Channel.SOURCE:
                self._polled.update(record.offset for record in batch)
            self.board.admit(batch, self.now_ms)
            if end == len(log):
                self.board.reached(channel, end)
            came += end - start
        return came

    def hand_out(self, budget: int = 1000) -> list[Run]:
        """Let due retries in, judge, and take what may start."""
        self.board.tick(self.now_ms)
        runs = self.board.next_runs(budget, self.now_ms)
        self.ledger.note_handed_over(self.board.handed_over)
        self.out += runs
        lanes = [run.lane for run in self.out]
        assert len(lanes) == len(set(lanes)), f"two runs of one lane are out: {lanes}"
        keys = [record.effect_key for run in self.out for record in run.records]
        assert len(keys) == len(set(keys)), f"two deliveries of one effect are out: {keys}"
        return runs

    def step(self, run: Run) -> bool:
        """Give the next record of a run to the handler; False when the run has ended."""
        over = bool(run.outcomes) and not isinstance(run.outcomes[-1].verdict, Ack)
        if over or run.stop or len(run.outcomes) == len(run.records):
            return False
        record = run.records[len(run.outcomes)]
        effect = self.effect(record.effect_key)
        over = effect is not None and effect.state is EffectState.SUCCEEDED and record.command is None
        assert not over, f"{record} has succeeded before"
        if record.command is not None:
            self._acked.discard(record.effect_key)  # a person wants it once more
        if not record.payload_hash:
            record.payload_hash = payload_hash(record.payload, record.value)
        outcome = self.handler(record)
        run.outcomes.append(outcome)
        self.acts.append(
            Act(
                record.effect_key,
                record.lane,
                record.sequence,
                record.origin_offset,
                record.attempt,
                record.redelivered,
                self.epoch,
                type(outcome.verdict).__name__,
            )
        )
        if isinstance(outcome.verdict, Ack):
            self._effect_happened(record)
        return True

    def finish(self, run: Run) -> None:
        """Take a run back, as far as it came."""
        self.out.remove(run)
        assert self.board.settle(run, self.now_ms)

    def write(self) -> bool:
        """Cut what is settled and write it to the ledger, unsynced; False when there is nothing."""
        assert self.pending is None, "one cycle at a time"
        cut = self.board.cut(self.now_ms)
        if cut is None:
            return False
        for done in list(cut.settlements):
            if done in cut.settlements and any(map(self.refuses, done.forwards)):
                cut = self.board.hold_back(cut, done, self.now_ms)
        forwards = [forward for done in cut.settlements for forward in done.forwards]
        keys = self.ledger.apply(cut.entries(), cut.meta, forwards)
        self.outbox.update(zip(keys, forwards, strict=True))
        self.pending = cut
        return True

    def sync(self) -> None:
        """What was written is durable, and the board is told."""
        self.ledger.sync()
        cut, self.pending = self.pending, None
        if cut is not None:
            for channel, mark in cut.meta.marks.items():
                self.durable[channel] = mark.frontier
            self._note(cut)
            self.board.committed(cut)

    def publish(self, limit: int = MANY, *, clear: bool = True) -> None:
        """Publish forwards of the outbox, oldest first; with `clear` they leave it for good."""
        assert self.pending is None, "a forward is published only when it is durable"
        for key, forward in list(self.outbox.items())[:limit]:
            if forward.kind is ForwardKind.RETRY:
                self.topics[Channel.RETRY].append(Stored(forward.key, forward.value, forward.headers))
            elif forward.kind is ForwardKind.DLQ:
                self.dlq.append(forward)
            else:
                self.review.append(forward)
            if clear:
                del self.outbox[key]
                self.ledger.clear_outbox([key])

    def commit(self) -> None:
        """Commit the offsets that may be: durable, and not past a forward that is still owed."""
        settled = {end.offset for end in self.ends}
        for channel, offset in self.durable.items():
            owed = [f.offset for f in self.outbox.values() if f.channel == channel and f.offset >= 0]
            assert offset >= self.committed[channel], f"the ledger of {channel.name} is behind its commit"
            target = min([offset, *owed])
            if target < self.committed[channel]:
                continue  # a forward is sent again whose leaving of the outbox a crash has lost
            assert target <= len(self.topics[channel]), f"the commit of {channel.name} passes the log's end"
            if channel is Channel.SOURCE:
                passed = range(self.committed[channel], target)
                lost = [o for o in passed if self.topics[channel][o] is not None and o not in settled]
                assert not lost, f"the commit passes unsettled offsets {lost}"
            self.committed[channel] = target

    # -- many acts

    def work(self) -> None:
        """Run whatever may run, and settle it in memory, until nothing more may start."""
        while runs := self.hand_out():
            for run in runs:
                while self.step(run):
                    pass
                self.finish(run)

    def settle(self) -> None:
        """One whole cycle."""
        if self.pending is None:
            self.write()
        self.sync()
        self.publish()
        self.commit()

    def turn(self) -> None:
        """Read, work, settle: one calm turn at the present time."""
        self.poll()
        for run in list(self.out):
            while self.step(run):
                pass
            self.finish(run)
        self.work()
        self.settle()

    def rest(self, *, wait: bool = True) -> None:
        """Go on in calm until nothing is left to do, letting time pass for retries when `wait`."""
        idle = 0
        for _ in range(10_000):
            before = self._progress()
            self.turn()
            # What one turn makes durable may wake a lane, which only the next one sees.
            idle = idle + 1 if self._progress() == before else 0
            if idle < 2:
                continue
            due_ms = self.board.next_due_ms
            if due_ms is None or not wait:
                return
            self.now_ms, idle = max(self.now_ms, due_ms), 0
        raise AssertionError("the partition never comes to rest")

    def _progress(self) -> tuple[object, ...]:
        # An intent that became durable has done nothing yet, and lets something start.
        done = (len(self.acts), len(self.ends), len(self.commanded), self.board._books.cycle)
        return (dict(self.position), done, dict(self.committed), self.now_ms)

    # -- questions

    def effect(self, effect_key: str) -> Effect | None:
        """What the ledger says of an effect."""
        return self.ledger.effects([effect_key])[0]

    def lane(self, lane: str) -> Lane | None:
        """What the ledger says of the lane of a sequence key."""
        return self.ledger.lanes([keyed_lane(lane)])[0]

    def cases(self) -> list[str]:
        """The reasons of the open cases, sorted."""
        return sorted(case.reason for case in self.ledger.cases(limit=MANY))

    def effects(self) -> list[str]:
        """The effects in the order they happened, repeats included."""
        return [act.effect_key for act in self.acts if act.verdict == "Ack"]

    def ends_of(self, offset: int) -> list[tuple[Settled, str]]:
        """How a source position settled, step by step."""
        return [(end.how, end.reason) for end in self.ends if end.offset == offset]

    def check_at_rest(self) -> None:
        """What must hold once faults have stopped and nothing more can be done (invariants 1, 4, 5)."""
        board, ledger = self.board, self.ledger
        assert not self.out
        assert (board.in_memory, board.in_memory_bytes, board.retries_waiting) == (0, 0, 0)
        assert len(board._books.lanes) == 0, "an idle lane costs memory"
        assert len(board._books.in_hand) == 0, "an effect is in hand for ever"
        source = self.topics[Channel.SOURCE]
        if Channel.SOURCE not in board.blocked():
            assert self.committed[Channel.SOURCE] == len(source), "lag is left"
        assert self.committed[Channel.RETRY] == len(self.topics[Channel.RETRY]), "retry lag is left"
        assert self.committed[Channel.COMMANDS] == len(self.topics[Channel.COMMANDS]), "command lag is left"
        meta = ledger.opening().meta
        parked: set[int] = set()
        size = 0
        for lane in ledger.opening().lanes_with_parked:
            state = ledger.lanes([lane])[0]
            found = ledger.parked(lane, None, MANY)
            assert state is not None
            if state.pause is None:
                assert state.hold is not None, f"the free lane {lane} rests with parked records"
                assert state.hold.case_id, f"the lane {lane} waits for a retry that never comes"
                assert ledger.case(state.hold.case_id) is not None, f"the lane {lane} is held by no case"
            assert (state.parked, state.parked_bytes) == (
                len(found),
                sum(p.raw.size_bytes() for _, p in found),
            )
            parked |= {key[2] for key, _ in found}
            size += state.parked_bytes
        if meta is not None:
            counted = (meta.open_cases, meta.parked, meta.parked_bytes)
            assert counted == (len(ledger.cases(limit=MANY)), len(parked), size)
        self._check_accounts(parked)

    def _check_accounts(self, parked: set[int]) -> None:
        ended = Counter(end.offset for end in self.ends if end.how in FINAL)
        twice = {offset: n for offset, n in ended.items() if n > 1 + self._runs_by_command[offset]}
        assert not twice, f"positions ended twice: {[(o, self.ends_of(o)) for o in twice]}"
        for offset, stored in enumerate(self.topics[Channel.SOURCE][: self.position[Channel.SOURCE]]):
            if stored is not None:
                assert (offset in ended) is not (offset in parked), f"{offset}: {self.ends_of(offset)}"

    # -- behind the acts

    def _record(self, channel: Channel, offset: int) -> Record:
        stored = self.topics[channel][offset]
        assert stored is not None
        record = Record(channel, offset, stored.key, stored.value, stored.headers, stored.timestamp_ms)
        if channel is Channel.COMMANDS:
            read_command(record, self.home)
            return record
        self.envelope.read(record, self.home.topic, self.home.partition)
        if channel is Channel.RETRY:
            record.skip = ""
            latest_ms = self.now_ms + max(self.rules.delays_ms, default=0)
            read_retry(record, self.home, record.fault, latest_due_ms=latest_ms)
        return record

    def _effect_happened(self, record: Record) -> None:
        key = record.effect_key
        assert key not in self._acked, f"{record} happened twice under one ownership"
        self._acked.add(key)
        if key not in self._happened:
            self._happened.add(key)
            if record.sequence_key is not None:
                arrival = self.rules.order.value == "arrival"
                place = record.origin_offset if arrival else record.sequence
                before = self._last_first.get(record.lane, -1)
                assert before < place, f"{record} happened after {before} of its lane"
                self._last_first[record.lane] = place

    def _note(self, cut: Cut) -> None:
        for done in cut.settlements:
            record = done.record
            if record.channel is Channel.COMMANDS:
                if done.reason == "already-settled":
                    continue
                self.commanded.append(End(record.offset, done.how, done.reason))
                if done.how is not Settled.SKIPPED:
                    self._runs_by_command[record.origin_offset] += 1
                    self.ends.append(_end(done))
            elif not _is_copy(done):
                self.ends.append(_end(done))


FINAL = frozenset(
    {Settled.SUCCEEDED, Settled.DUPLICATE, Settled.QUARANTINED, Settled.IN_REVIEW, Settled.SKIPPED}
)


def _end(done: Settlement) -> End:
    return End(done.record.origin_offset, done.how, done.reason)


def _is_copy(done: Settlement) -> bool:
    """A second sight of something that settled elsewhere, or a change of the lane only."""
    record = done.record
    lane_only = record.parked and not done.ends
    foreign = record.channel is Channel.RETRY and bool(record.fault)
    return lane_only or foreign or done.reason in {"already-settled", "stale-retry-copy"}
