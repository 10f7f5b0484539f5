"""Where the CPU time of a record goes in a whole worker: `python -m benchmarks.profile [local]`.

The same as `laneway run --profile-cycle`, over the records and the no-op handler of the other benchmarks. The
worker stops by itself behind the last record.
"""

from __future__ import annotations

import sys
import threading
import uuid
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console

from benchmarks import load
from benchmarks.subject import no_op, worker_settings
from laneway.cli.profile import table_of
from laneway.consumer import topics
from laneway.consumer.interpreter import tune_interpreter
from laneway.consumer.kafka.cluster import Cluster as Admin
from laneway.consumer.profile import CycleProfile
from laneway.consumer.start import build_worker
from tests.broker.cluster import Cluster
from tests.broker.kafka import KafkaStartError, NoKafkaError, find_kafka

RECORDS: Final = 200_000
KEYS: Final = 1_000
PARTITIONS: Final = 4


def main() -> int:
    """Measure once, and print the table."""
    if sys.argv[1:] not in ([], ["local"]):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        broker = find_kafka()
    except (NoKafkaError, KafkaStartError) as error:
        print(f"profile: {error}", file=sys.stderr)
        return 3
    topic = f"laneway-bench-{uuid.uuid4().hex[:8]}"
    cluster = Cluster(broker.bootstrap)
    try:
        load.publish(cluster, topic, partitions=PARTITIONS, records=RECORDS, keys=KEYS)
        profile = _work(broker.bootstrap, topic, sys.argv[1] if sys.argv[1:] else "changelog")
    finally:
        load.remove(cluster, topic)
        broker.stop()
    Console().print(table_of(profile))
    return 0


def _work(bootstrap: str, topic: str, replication: str) -> CycleProfile:
    handled, through = count(1), threading.Event()

    def done() -> None:
        if next(handled) == RECORDS:
            through.set()

    with TemporaryDirectory(prefix="laneway-bench-") as directory:
        settings = worker_settings(
            Path(directory), bootstrap=bootstrap, group=topic, sources=(topic,), replication=replication
        )
        with Admin(settings) as admin:
            topics.create(settings, admin)
        profile = CycleProfile()
        worker = build_worker(settings, no_op(done), profile=profile)

        def stop() -> None:
            through.wait(300)
            worker.request_stop()

        threading.Thread(target=stop, daemon=True).start()
        tune_interpreter()
        worker.run()
    return profile


if __name__ == "__main__":
    sys.exit(main())
