"""CPU time of one record by stage, rules and ledger on one thread.

    python -m benchmarks.stages                the ledger is the truth: no Kafka
    python -m benchmarks.stages changelog      each cycle is a transaction on a real Kafka

No journal, no hand-over to handlers: what is left is ours. CPU time of the thread, so that other work on
the machine disturbs it little. Of what the transaction's own thread waits for, wall time is shown as well.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
from confluent_kafka import Consumer
from pydantic import BaseModel

from benchmarks.broker import find_broker
from benchmarks.subject import worker_settings
from laneway import Delivery, Pipeline
from laneway.consumer import topics
from laneway.consumer.background import DaemonExecutor
from laneway.consumer.interpreter import tune_interpreter
from laneway.consumer.kafka import clients
from laneway.consumer.kafka.cluster import Cluster as Admin
from laneway.consumer.settling.transactions import Fate, Transactions
from laneway.lanes.board import Board, Cut
from laneway.lanes.envelope import Envelope, EnvelopeRules
from laneway.lanes.forward import Home
from laneway.lanes.record import Channel, Record
from laneway.lanes.rules import Rules
from laneway.pipeline import Processor
from laneway.store.ledger import Ledger
from laneway.store.port import ChangelogMark, StoreIdentity
from tests.broker.cluster import Cluster
from tests.broker.kafka import KafkaStartError, NoKafkaError

RECORDS = 40_000
KEYS = 1_000
BATCH = 2_000
ROUNDS = 5
TOPIC = "stages"
NOW_MS = 1_000


class Payload(BaseModel):
    """Four fields, as in the other benchmarks."""

    name: str
    number: int
    text: str
    amount: float


def processor() -> Processor:
    """A handler that does nothing."""
    pipeline = Pipeline(payload=Payload)

    @pipeline.handler
    def nothing(delivery: Delivery[Payload]) -> None:
        del delivery

    return pipeline.compile()


def values() -> list[bytes]:
    """The records' values, keys in turn."""
    return [
        msgspec.json.encode(
            {
                "messageId": f"m{number}",
                "effectKey": f"e{number}",
                "sequenceKey": f"k{number % KEYS}",
                "sequence": number // KEYS + 1,
                "version": 1,
                "payload": {"name": "x" * 20, "number": number, "text": "hello", "amount": 1.5},
            }
        )
        for number in range(RECORDS)
    ]


class Clock:
    """Adds the CPU time since the last look to a stage, and the wall time of each cycle in it."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.walls: dict[str, list[float]] = {}
        self._last, self._last_wall = time.thread_time(), time.monotonic()

    def start(self) -> None:
        """Forget what was before."""
        self._last, self._last_wall = time.thread_time(), time.monotonic()

    def stop(self, stage: str) -> None:
        """What was spent since the last look belongs to `stage`."""
        now = time.thread_time()
        self.spent[stage] = self.spent.get(stage, 0.0) + now - self._last
        wall = time.monotonic()
        self.walls.setdefault(stage, []).append(wall - self._last_wall)
        self._last, self._last_wall = now, wall


Settle = Callable[[Ledger, Cut, Clock], None]
"""Makes a cut durable, and says what that took."""


def local(ledger: Ledger, cut: Cut, clock: Clock) -> None:
    """The ledger takes it; the sync has a thread of its own and is left out."""
    ledger.apply(chain.from_iterable(done.entries for done in cut.settlements), cut.meta, ())
    clock.stop("write the ledger")


class Changelog:
    """One transaction for each cut, as a worker makes it; but this thread waits for each of its calls."""

    waits: Final = ("wait: delivered", "wait: offsets joined", "wait: committed")

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._topic = f"laneway-stages-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(self._topic, 1)
        settings = worker_settings(
            directory, bootstrap=cluster.bootstrap, group="g", sources=(self._topic,), replication="changelog"
        )
        with Admin(settings) as admin:
            topics.create(settings, admin)
        self._cluster = cluster
        self._ledger_topic = topics.topic_names(settings, self._topic).ledger
        self._consumer: Consumer = clients.new_consumer(settings)
        self._answered = threading.Event()
        self._transactions = Transactions(
            f"laneway-{self._topic}",
            lambda on_error: clients.new_transactional_producer(
                settings, f"laneway-{self._topic}", error_cb=on_error
            ),
            lambda: clients.new_reader(settings, committed=True),
            prefix="laneway-",
            executor=DaemonExecutor(1, "laneway-tx"),
            notice=self._answered.set,
        )
        self._transactions.renew()
        self._wait()

    def _wait(self) -> None:
        while (answer := self._transactions.answer()) is None:
            self._answered.wait(0.01)
            self._answered.clear()
        if answer.fate is not Fate.DONE:
            raise SystemExit(f"stages: the transaction did not go on: {answer.text}")

    def settle(self, ledger: Ledger, cut: Cut, clock: Clock) -> None:
        """The steps of `laneway.consumer.settling.changelog_truth`, without what may go wrong."""
        transactions = self._transactions
        changes = ledger.changes(cut.entries(), cut.meta)
        clock.stop("encode the changelog entries")
        transactions.begin()
        taken, answer = transactions.produce_entries(self._ledger_topic, 0, changes, 0, len(changes))
        if taken != len(changes):
            raise SystemExit(f"stages: the client took {taken} of {len(changes)} entries: {answer.text}")
        clock.stop("hand them to the client")
        transactions.flush()
        self._wait()
        clock.stop(self.waits[0])
        # Not a member: Kafka takes these offsets and fences nothing. Never in a worker.
        metadata = self._consumer.consumer_group_metadata()
        transactions.send_offsets([(self._topic, 0, cut.meta.marks[Channel.SOURCE].frontier, "")], metadata)
        self._wait()
        clock.stop(self.waits[1])
        transactions.commit()
        self._wait()
        clock.stop(self.waits[2])
        ledger.apply_changes(changes, ChangelogMark("", 1, NOW_MS))
        clock.stop("write the ledger")

    def close(self) -> None:
        """Let go, and delete the topics."""
        self._transactions.close()
        self._consumer.close()
        for name in self._cluster.topics():
            if name.startswith(self._topic):
                self._cluster.delete_topic(name)


def one_round(encoded: list[bytes], ledger: Ledger, clock: Clock, settle: Settle) -> None:
    """All records through all stages, a batch at a time."""
    process = processor().process
    envelope = Envelope(EnvelopeRules())
    home = Home("g", TOPIC, 0)
    board = Board(
        home,
        Rules(),
        envelope,
        ledger,
        ledger.opening(),
        epoch=1,
        writer="w",
        starts={Channel.SOURCE: 0, Channel.RETRY: 0},
    )
    for first in range(0, RECORDS, BATCH):
        clock.start()
        records = [
            Record(Channel.SOURCE, offset, b"k", encoded[offset], (), 5)
            for offset in range(first, first + BATCH)
        ]
        for record in records:
            envelope.read(record, TOPIC, 0)
        clock.stop("record and envelope")
        board.admit(records, NOW_MS)
        clock.stop("admit")
        runs = board.next_runs(BATCH, NOW_MS)
        clock.stop("judge, effects read, runs made")
        for run in runs:
            for record in run.records:
                run.outcomes.append(process(record, TOPIC, 0, NOW_MS))
        clock.stop("hash, validate, handler")
        for run in runs:
            board.settle(run, NOW_MS)
        clock.stop("settle")
        cut = board.cut(NOW_MS)
        assert cut is not None
        clock.stop("cut")
        settle(ledger, cut, clock)
        board.committed(cut)
        clock.stop("after the commit")


def main() -> int:
    """Print the table."""
    if sys.argv[1:] not in ([], ["changelog"]):
        print(__doc__, file=sys.stderr)
        return 2
    if not sys.argv[1:]:
        _print(_rounds(local))
        return 0
    try:
        broker = find_broker()
    except (NoKafkaError, KafkaStartError) as error:
        print(f"stages: {error}", file=sys.stderr)
        return 3
    try:
        with tempfile.TemporaryDirectory() as folder:
            changelog = Changelog(Cluster(broker.bootstrap), Path(folder))
            try:
                _print(_rounds(changelog.settle))
            finally:
                changelog.close()
    finally:
        broker.stop()
    return 0


class Round:
    """One round: CPU of this thread by stage, wall seconds of each wait, CPU of all other threads."""

    def __init__(self, clock: Clock, others_s: float) -> None:
        self.spent = clock.spent
        self.walls = clock.walls
        self.others_s = others_s


def _rounds(settle: Settle) -> list[Round]:
    encoded = values()
    # As `laneway run` does.
    tune_interpreter()
    rounds = []
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            ledger = Ledger.open(Path(folder) / "store", StoreIdentity("g", TOPIC, number))
            clock = Clock()
            others_s = time.thread_time() - time.process_time()
            one_round(encoded, ledger, clock, settle)
            rounds.append(Round(clock, time.process_time() - time.thread_time() + others_s))
            ledger.close()
    return rounds


def _print(rounds: list[Round]) -> None:
    print(f"{RECORDS:,} records, {KEYS:,} keys, medians of {ROUNDS} rounds, CPU us for each record")
    total = 0.0
    for stage in rounds[0].spent:
        spent = statistics.median(found.spent[stage] for found in rounds) / RECORDS * 1e6
        total += spent
        wall = ""
        if stage in Changelog.waits:
            ms = 1000 * statistics.median(chain.from_iterable(found.walls[stage] for found in rounds))
            wall = f"   {ms:7.1f} ms of a cycle of {BATCH:,}; a worker reads on meanwhile"
        print(f"{stage:<32} {spent:6.2f}{wall}")
    print(f"{'all of it':<32} {total:6.2f}")
    others = statistics.median(found.others_s for found in rounds) / RECORDS * 1e6
    print(f"{'other threads, clients included':<32} {others:6.2f}")


if __name__ == "__main__":
    sys.exit(main())
