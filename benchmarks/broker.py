"""The broker that everything is measured on: found as the tests find theirs, and on loopback only."""

from __future__ import annotations

import os
from typing import Final

from tests.broker.kafka import (
    JvmBroker,
    KafkaBroker,
    KafkaStartError,
    docker_answers,
    find_kafka,
    random_uuid,
    require_jvm,
    start_together,
)

HEAP_MB: Final = 1024
_LOOPBACK: Final = ("127.", "localhost", "[::1]")


def find_broker() -> KafkaBroker:
    """One named by the environment, one in Docker, or one in a JVM; only the last has share groups for sure.

    Raises:
        NoKafkaError: there is none.
        KafkaStartError: it does not work, or is not on this machine.
    """
    if os.environ.get("LANEWAY_TEST_BOOTSTRAP") or docker_answers():
        broker = find_kafka()
    else:
        require_jvm()
        # Share groups are a feature that a Kafka 4.1 has to be formatted with.
        storage = ("--standalone", "-t", random_uuid(), "--feature", "share.version=1")
        own = JvmBroker({}, HEAP_MB, storage=storage, for_speed=True)
        start_together([own])
        broker = own
    if not broker.bootstrap.startswith(_LOOPBACK):
        broker.stop()
        raise KafkaStartError(f"{broker.bootstrap} is not on loopback; refused")
    return broker
