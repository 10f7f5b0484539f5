"""The client's errors become ours at one boundary, with the place kept and the right exit code."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from laneway.consumer.kafka.clients import consumer_config, new_consumer, producer_config
from laneway.consumer.kafka.cluster import Cluster, PartitionOffsets
from laneway.consumer.kafka.errors import ErrorClass, classify, kafka_errors, position, to_laneway
from laneway.consumer.settings.load import load
from laneway.consumer.settings.model import Settings
from laneway.errors import ConfigError, KafkaClientError, LanewayError, TopicError, UnreachableError


def settings(**flags: object) -> Settings:
    """Settings of a group `g` on source `s`."""
    return load(flags={"group": "g", "sources": ["s"], **flags}, env={}, inspect=True).settings


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address on this machine where nobody answers."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._TRANSPORT, ErrorClass.UNREACHABLE),
        (KafkaError._ALL_BROKERS_DOWN, ErrorClass.UNREACHABLE),
        (KafkaError._TIMED_OUT, ErrorClass.UNREACHABLE),
        (KafkaError._RESOLVE, ErrorClass.UNREACHABLE),
        (KafkaError._AUTHENTICATION, ErrorClass.UNAUTHORISED),
        (KafkaError.SASL_AUTHENTICATION_FAILED, ErrorClass.UNAUTHORISED),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ErrorClass.UNAUTHORISED),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, ErrorClass.UNAUTHORISED),
        (KafkaError.REBALANCE_IN_PROGRESS, ErrorClass.NOT_COMMITTED),
        (KafkaError.ILLEGAL_GENERATION, ErrorClass.NOT_COMMITTED),
        (KafkaError.UNKNOWN_MEMBER_ID, ErrorClass.NOT_COMMITTED),
        (KafkaError.FENCED_INSTANCE_ID, ErrorClass.NOT_COMMITTED),
        (KafkaError._ASSIGNMENT_LOST, ErrorClass.NOT_COMMITTED),
        (KafkaError.STALE_MEMBER_EPOCH, ErrorClass.NOT_COMMITTED),
        (KafkaError._STATE, ErrorClass.NOT_COMMITTED),
        (KafkaError.MSG_SIZE_TOO_LARGE, ErrorClass.TOO_LARGE),
        # A topic that was made compacted says this of a record without a key, whatever its size.
        (KafkaError.INVALID_RECORD, ErrorClass.OTHER),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, ErrorClass.MISSING),
        (KafkaError.PRODUCER_FENCED, ErrorClass.FENCED),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, ErrorClass.RETRIABLE),
        (KafkaError.INVALID_MSG, ErrorClass.OTHER),
    ],
)
def test_each_code_has_one_meaning(code: int, expected: ErrorClass) -> None:
    """A code of the client means one thing to every caller."""
    assert classify(KafkaError(code)) is expected


def test_a_fatal_error_is_fatal_whatever_its_code() -> None:
    """A fenced static member is told so fatally: its client is of no more use."""
    assert classify(KafkaError(KafkaError.FENCED_INSTANCE_ID, fatal=True)) is ErrorClass.FATAL


def test_an_unknown_retriable_error_is_retriable() -> None:
    """A code no table names keeps what the client says of it."""
    assert classify(KafkaError(KafkaError.UNKNOWN, retriable=True)) is ErrorClass.RETRIABLE
    assert classify(KafkaError(KafkaError.UNKNOWN)) is ErrorClass.OTHER


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._TRANSPORT, UnreachableError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, UnreachableError),
        (KafkaError._UNKNOWN_TOPIC, TopicError),
        (KafkaError._INVALID_ARG, ConfigError),
        (KafkaError.REBALANCE_IN_PROGRESS, KafkaClientError),
        (KafkaError.UNKNOWN, KafkaClientError),
    ],
)
def test_the_boundary_keeps_the_place(code: int, expected: type[LanewayError]) -> None:
    """Topic, partition and offset stand in the error that leaves, and the cause behind it."""
    with pytest.raises(expected) as caught, kafka_errors(position("s", 3, 17), mend="do this"):
        raise KafkaException(KafkaError(code))
    assert (caught.value.where, caught.value.mend) == ("s[3]@17", "do this")
    assert isinstance(caught.value.__cause__, KafkaException)


def test_other_exceptions_pass_the_boundary() -> None:
    """A mistake of ours is not dressed up as Kafka's."""
    with pytest.raises(RuntimeError, match="ours"), kafka_errors("s"):
        raise RuntimeError("ours")
    with pytest.raises(KafkaClientError), kafka_errors("s"):
        raise RuntimeError("Consumer closed")


def test_no_broker_is_unreachable_in_bounded_time(
    closed_port: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """An address where nobody answers: exit 3 within the timeout, naming it, and no line of librdkafka."""
    start_s = time.monotonic()
    with pytest.raises(UnreachableError, match="Connection refused") as caught:
        Cluster(settings(bootstrap=closed_port), timeout_s=1).topics(["s"])
    assert time.monotonic() - start_s < 4
    assert closed_port in caught.value.where
    assert "check that the broker runs" in caught.value.mend
    assert capfd.readouterr() == ("", "")


def test_log_lines_go_to_a_logger(
    closed_port: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What librdkafka logs arrives at laneway.kafka and nowhere else."""
    with caplog.at_level(logging.INFO, logger="laneway.kafka"):
        consumer = new_consumer(settings(bootstrap=closed_port))
        deadline_s = time.monotonic() + 5
        while not caplog.records and time.monotonic() < deadline_s:
            consumer.poll(0.1)
        consumer.close()
    assert any("Connect to" in record.getMessage() for record in caplog.records)
    assert capfd.readouterr() == ("", "")


def test_a_key_librdkafka_does_not_know_is_a_configuration_error() -> None:
    """[kafka] is passed on, and what the client refuses is named as configuration."""
    with pytest.raises(ConfigError, match=r"bogus\.key"):
        new_consumer(settings(**{"kafka.bogus.key": "1"}))


def test_owned_keys_are_laid_over_what_passes_through() -> None:
    """A worker never commits by itself, never jumps, reads committed records and waits for all replicas."""
    consumer = consumer_config(settings(instance_id="me", **{"kafka.client.id": "mine"}))
    assert consumer["enable.auto.commit"] is False
    assert consumer["auto.offset.reset"] == "error"
    assert consumer["isolation.level"] == "read_committed"
    assert consumer["partition.assignment.strategy"] == "range"
    assert (consumer["group.instance.id"], consumer["client.id"]) == ("me", "mine")
    assert "partition.assignment.strategy" not in consumer_config(settings(group_protocol="consumer"))
    producer = producer_config(settings(), max_message_bytes=5_000_000)
    assert (producer["acks"], producer["batch.size"]) == ("all", 1_000_000)
    assert producer_config(settings(), max_message_bytes=200_000)["batch.size"] == 200_000


def test_lag_is_never_negative_and_counts_from_the_start_without_a_commit() -> None:
    """A commit read before the end may pass it by a moment; no commit is not lag 0."""
    assert PartitionOffsets("s", 0, committed=12, start=0, end=10).lag == 0
    assert PartitionOffsets("s", 0, committed=None, start=4, end=10).lag == 6


@pytest.fixture
def embedded() -> Iterator[str]:
    """The address of librdkafka's own mock cluster."""
    mock = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
    broker = next(iter(mock.list_topics(timeout=5).brokers.values()))
    yield f"{broker.host}:{broker.port}"
    mock.flush(1)


def test_the_embedded_cluster_is_recognised(embedded: str) -> None:
    """The mock is known for what it is; what it cannot tell is None, its offsets are real."""
    with Cluster(settings(bootstrap=embedded), timeout_s=5) as cluster:
        assert cluster.embedded
        assert cluster.group("g") is None
        assert cluster.topics(["s"])["s"].partitions == 4
        (offsets,) = cluster.offsets("g", [("s", 0)])
    assert (offsets.committed, offsets.start, offsets.end) == (None, 0, 0)


@pytest.mark.parametrize(
    ("said", "where", "shown"),
    [
        (
            "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused "
            "(after 1ms in state CONNECT)",
            "127.0.0.1:1",
            "Connection refused",
        ),
        (
            "ssl://kafka:9092/bootstrap: Connect to ipv6#[::1]:9092 failed: Connection refused",
            "kafka:9092, topic invoices",
            "connect to [::1]:9092 failed: Connection refused",
        ),
        (
            "inner:9092/1: Connect to ipv4#10.0.0.7:9092 failed: No route to host (after 9ms)",
            "outer:9092",
            "inner:9092: connect to 10.0.0.7:9092 failed: No route to host",
        ),
    ],
)
def test_an_address_is_told_once(said: str, where: str, shown: str) -> None:
    """An unreachable broker's address stands in front; a listener or IP that differs from it is kept."""
    error = to_laneway(KafkaError(KafkaError._TRANSPORT, said), where)
    assert str(error).splitlines()[0] == f"{where}: {shown} (unreachable, _TRANSPORT)"
