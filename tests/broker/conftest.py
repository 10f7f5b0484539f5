"""Fixtures of a real Kafka: one broker for the session; fresh topics and a fresh group for each test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.broker.cluster import Cluster
from tests.broker.kafka import KafkaBroker, NoKafkaError, find_kafka, start_kafka
from tests.broker.members import ThreeBrokers, start_three
from tests.broker.proxy import Proxy

SOAK = bool(os.environ.get("LANEWAY_TEST_SOAK"))
"""Set by `make soak`: every variant of a long test, where `make test` takes the most telling ones."""


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


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[ThreeBrokers]:
    """Three members of a test file's own, each of which may be stopped, paused, killed and restarted.

    A test that takes one away must bring it back before it ends.
    """
    try:
        brokers = start_three()
    except NoKafkaError as error:
        pytest.skip(str(error))
    yield brokers
    brokers.stop()


@dataclass(frozen=True)
class ProxiedKafka:
    """A broker with a proxy before it.

    Attributes:
        bootstrap: whoever starts here goes through the proxy with everything.
        direct: whoever starts here goes round it.
    """

    broker: KafkaBroker
    proxy: Proxy

    @property
    def bootstrap(self) -> str:
        return self.proxy.address

    @property
    def direct(self) -> str:
        return self.broker.bootstrap


@pytest.fixture(scope="module")
def _kafka_behind_a_proxy() -> Iterator[ProxiedKafka]:
    with Proxy() as proxy:
        try:
            broker = start_kafka(proxy_port=proxy.port)
        except NoKafkaError as error:
            pytest.skip(str(error))
        proxy.stand_before(broker.behind_proxy)
        yield ProxiedKafka(broker, proxy)
        broker.stop()


@pytest.fixture
def proxied_kafka(_kafka_behind_a_proxy: ProxiedKafka) -> Iterator[ProxiedKafka]:
    """A broker of this file's own that may be paused, killed and restarted, behind a proxy that passes all.

    After each test the proxy passes all again.
    """
    yield _kafka_behind_a_proxy
    _kafka_behind_a_proxy.proxy.release()


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
