"""Fixtures of a real Kafka: one broker for the session; fresh topics and a fresh group for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.broker.cluster import Cluster
from tests.broker.kafka import KafkaBroker, NoKafkaError, find_kafka, start_kafka


@dataclass(frozen=True)
class Names:
    """A source topic and a group that no other test uses. Neither exists yet."""

    source: str
    group: str


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """The session's broker; without a source of one the test is skipped with the sentence that mends it."""
    try:
        broker = find_kafka()
    except NoKafkaError as error:
        pytest.skip(str(error))
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def own_kafka(kafka: KafkaBroker) -> Iterator[KafkaBroker]:
    """A broker that may be paused, killed and restarted: the session's, unless somebody else runs that one.

    A test that stops it must bring it back before it ends.
    """
    if kafka.ours:
        yield kafka
        return
    try:
        broker = start_kafka()
    except NoKafkaError as error:
        pytest.skip(str(error))
    yield broker
    broker.stop()


@pytest.fixture
def cluster(kafka: KafkaBroker) -> Cluster:
    """Topics, records and offsets of the session's broker."""
    return Cluster(kafka.bootstrap)


@pytest.fixture
def names() -> Names:
    """Names for this test alone."""
    tag = uuid.uuid4().hex[:10]
    return Names(source=f"src-{tag}", group=f"grp-{tag}")


@pytest.fixture(params=["classic", "consumer"])
def group_protocol(request: pytest.FixtureRequest) -> str:
    """Runs the test once under each group protocol."""
    protocol = request.param
    assert isinstance(protocol, str)
    return protocol
