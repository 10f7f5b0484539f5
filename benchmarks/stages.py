"""CPU time of one record by stage, rules and ledger on one thread: `python -m benchmarks.stages`.

No Kafka, no journal, no hand-over between threads: what is left is ours. CPU time of the thread, so that
other work on the machine disturbs it little.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import chain
from pathlib import Path

import msgspec
from pydantic import BaseModel

from laneway import Delivery, Pipeline
from laneway.lanes.board import Board
from laneway.lanes.envelope import Envelope, EnvelopeRules
from laneway.lanes.forward import Home
from laneway.lanes.record import Channel, Record
from laneway.lanes.settling import Rules
from laneway.pipeline import Processor
from laneway.store.ledger import Ledger
from laneway.store.port import StoreIdentity

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
    """Adds the CPU time since the last look to a stage."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._last = time.thread_time()

    def start(self) -> None:
        """Forget what was before."""
        self._last = time.thread_time()

    def stop(self, stage: str) -> None:
        """What was spent since the last look belongs to `stage`."""
        now = time.thread_time()
        self.spent[stage] = self.spent.get(stage, 0.0) + now - self._last
        self._last = now


def one_round(encoded: list[bytes], ledger: Ledger, clock: Clock) -> None:
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
        ledger.apply(chain.from_iterable(done.entries for done in cut.settlements), cut.meta, ())
        clock.stop("write the ledger")
        board.committed(cut)
        clock.stop("after the commit")


def main() -> None:
    """Print the table."""
    encoded = values()
    rounds: list[dict[str, float]] = []
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            ledger = Ledger.open(Path(folder) / "store", StoreIdentity("g", TOPIC, number))
            clock = Clock()
            one_round(encoded, ledger, clock)
            ledger.close()
            rounds.append(clock.spent)
    print(f"{RECORDS:,} records, {KEYS:,} keys, medians of {ROUNDS} rounds, CPU us for each record")
    total = 0.0
    for stage in rounds[0]:
        spent = statistics.median(found[stage] for found in rounds) / RECORDS * 1e6
        total += spent
        print(f"{stage:<32} {spent:6.2f}")
    print(f"{'all of it':<32} {total:6.2f}")


if __name__ == "__main__":
    main()
