"""The records that every subject reads: made once for a measurement, the same bytes for all of them.

Each record is the envelope of Laneway's defaults around a payload of four fields, with its sequence
key as the Kafka key and one header. Keys come in random order from a fixed seed; the sequence numbers
of a key ascend without holes.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from confluent_kafka import Producer

from tests.broker.cluster import Cluster, ClusterError, Outgoing

SEED = 20_240_229
PRODUCE_DEADLINE_S = 120.0
_TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def publish(cluster: Cluster, topic: str, *, partitions: int, records: int, keys: int) -> float:
    """Make the topic and fill it.

    Returns:
        The mean size of a value in bytes.
    """
    cluster.create_topic(topic, partitions)
    total = 0
    # Without a report each, unlike Cluster.produce: millions are made for a long measurement.
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": int(PRODUCE_DEADLINE_S * 1000),
            "log_level": 0,
        }
    )
    for record in made(records, keys):
        total += len(record.value or b"")
        while True:
            try:
                producer.produce(topic, record.value, record.key, headers=list(record.headers))
            except BufferError:
                producer.poll(0.05)
            else:
                break
    left = producer.flush(PRODUCE_DEADLINE_S)
    written = sum(cluster.end_offsets(topic).values())
    if left or written != records:
        raise ClusterError(f"{topic}: {written} of {records} records were written, {left} had no answer")
    return total / records


def remove(cluster: Cluster, *words: str) -> None:
    """Delete the topics that have all of these in their names, as far as they are still there."""
    for name in cluster.topics():
        if all(word in name for word in words):
            # A broker lists a topic for a moment after it was deleted.
            with suppress(ClusterError):
                cluster.delete_topic(name)


def made(records: int, keys: int) -> Iterator[Outgoing]:
    """The records themselves."""
    chance = random.Random(SEED)
    last: Counter[int] = Counter()
    for number in range(records):
        key = chance.randrange(keys)
        last[key] += 1
        sequence_key = f"customer-{key:06}"
        value = {
            "messageId": f"m-{number:08}",
            "effectKey": f"reminder-{key:06}-{last[key]}",
            "sequenceKey": sequence_key,
            "sequence": last[key],
            "version": 1,
            "payload": {
                "invoice": f"invoice-{number:08}",
                "amount_cents": chance.randrange(1, 1_000_000),
                "currency": "EUR",
                "is_final": number % 3 == 0,
            },
        }
        yield Outgoing(
            json.dumps(value, separators=(",", ":")).encode(),
            key=sequence_key.encode(),
            headers=[("traceparent", _TRACE)],
        )
