"""Memory follows the limits, not the keys: a worker that has seen many is no larger than one that saw few."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Producer

from tests.broker.cluster import Cluster
from tests.broker.conftest import SOAK, Names
from tests.broker.kafka import KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

KEYS = 1_000_000 if SOAK else 150_000
PARTITIONS = 4
DONE_S = 900.0 if SOAK else 120.0
IN_FLIGHT = 4_000
GROWTH_MIB = 160
"""For what is in memory at once, RocksDB's buffers and caches, and the client's queues."""
LATE_GROWTH_MIB = 24
"""In the second half of the keys: what follows them doubles there."""

APP = """
import laneway.store.rocks as rocks
from laneway import Pipeline

# Their bounds are for the process and do not depend on keys, but to fill them takes millions: made small,
# so that what is left is what could grow.
rocks.BLOCK_CACHE_BYTES = 8 * 2**20
rocks.MEMTABLES_BYTES = 16 * 2**20

pipeline = Pipeline()


@pipeline.handler
def nothing(delivery):
    return None
"""


def test_memory_is_bounded_by_the_limits_not_by_the_keys(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """One record for each of many keys: resident memory before, at its peak and after."""
    cluster.create_topic(names.source, PARTITIONS)
    (tmp_path / "app.py").write_text(APP)
    settings = settings_of(
        kafka.bootstrap,
        names,
        tmp_path / "state",
        ledger={"replication": "changelog"},
        lanes={"max_in_flight": IN_FLIGHT},
        kafka={"queued.max.messages.kbytes": 8 * 2**10},
        journal={"level": "exceptions"},
    )
    create_companions(settings, tmp_path)
    with WorkerProcess("./app.py:pipeline", settings, directory=tmp_path) as worker:
        worker.start()
        _feed(kafka, names, 0, 1_000)
        eventually(lambda: _settled(cluster, names) == 1_000, 60, "the first commits", poll_s=0.2)
        before = _resident_mib(worker)
        seen: dict[int, float] = {}

        def is_through() -> bool:
            settled = _settled(cluster, names)
            seen[settled] = _resident_mib(worker)
            return settled == KEYS

        _feed(kafka, names, 1_000, KEYS)
        eventually(is_through, DONE_S, "every commit", poll_s=0.2)
        after = _resident_mib(worker)
        worker.stop()
    first_half = max(size for settled, size in seen.items() if settled <= KEYS // 2)
    peak = max(seen.values())
    words = (
        f"{KEYS:,} keys: {before:.0f} MiB before, {first_half:.0f} at most in the first half, {peak:.0f} at "
        f"most, {after:.0f} after"
    )
    print(words)
    assert peak - before < GROWTH_MIB, words
    assert peak - first_half < LATE_GROWTH_MIB, words


def _feed(kafka: KafkaBroker, names: Names, first: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 50, "log_level": 0})
    for number in range(first, end):
        value = (
            f'{{"messageId":"m{number}","effectKey":"effect-{number}","sequenceKey":"key-{number}",'
            f'"sequence":1,"version":1,"payload":{{"number":{number}}}}}'
        )
        while True:
            try:
                producer.produce(names.source, value.encode(), f"key-{number}".encode())
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0


def _settled(cluster: Cluster, names: Names) -> int:
    return sum(offset or 0 for offset in cluster.committed(names.group, names.source).values())


def _resident_mib(worker: WorkerProcess) -> float:
    for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the system does not tell how large a process is")
