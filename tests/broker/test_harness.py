"""The harness itself: what the tests on a real Kafka take for granted holds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.broker import kafka as finder
from tests.broker.cluster import Cluster, ClusterError, Outgoing, Position
from tests.broker.conftest import Names
from tests.broker.kafka import (
    NOTHING_FOUND,
    ExternalBroker,
    JvmBroker,
    KafkaBroker,
    NoKafkaError,
    NotOurBrokerError,
)
from tests.waiting import eventually


def consumer_of(kafka: KafkaBroker, group: str, protocol: str = "classic") -> Consumer:
    """A member of a group that reads from the earliest offset and commits only when told to."""
    config: dict[str, Any] = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if protocol == "classic":  # under the other protocol the broker owns it
        config["session.timeout.ms"] = 4000
    return Consumer(config)


def read(consumer: Consumer, count: int) -> list[bytes]:
    """The next `count` values; fails when they do not come in time."""
    values: list[bytes] = []

    def has_all() -> bool:
        for message in consumer.consume(count - len(values), timeout=0.1):
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
        return len(values) == count

    eventually(has_all, 20, f"{count} records")
    return values


def test_records_come_back_as_they_were_sent(cluster: Cluster, names: Names) -> None:
    """Key, value (null and 5 MiB too), headers, timestamp and partition survive; positions are told."""
    cluster.create_topic(names.source, 3, {"max.message.bytes": str(8 * 1024 * 1024)})
    big = os.urandom(5 * 1024 * 1024)
    positions = cluster.produce(
        names.source,
        [
            Outgoing(
                b"one",
                b"k",
                headers=[("h", b"\xff\x00"), ("h", None)],
                partition=2,
                timestamp_ms=1_700_000_000_000,
            ),
            Outgoing(None, None, partition=0),
            Outgoing(big, b"big", partition=2),
        ],
    )
    assert positions == [Position(2, 0), Position(0, 0), Position(2, 1)]
    tombstone, one, five_mib = cluster.read_topic(names.source)
    assert (tombstone.partition(), tombstone.key(), tombstone.value()) == (0, None, None)
    assert (one.partition(), one.offset(), one.key(), one.value()) == (2, 0, b"k", b"one")
    assert one.headers() == [("h", b"\xff\x00"), ("h", None)]
    assert one.timestamp()[1] == 1_700_000_000_000
    assert five_mib.value() == big
    assert cluster.end_offsets(names.source) == {0: 1, 1: 0, 2: 2}


def test_a_group_reads_and_commits(
    kafka: KafkaBroker, cluster: Cluster, names: Names, group_protocol: str
) -> None:
    """A member under either protocol gets its partitions, reads them, and its commit can be read back."""
    cluster.create_topic(names.source, 2)
    cluster.produce(names.source, [Outgoing(b"%d" % n, partition=0) for n in range(10)])
    consumer = consumer_of(kafka, names.group, group_protocol)
    consumer.subscribe([names.source])
    try:
        assert read(consumer, 10) == [b"%d" % n for n in range(10)]
        assert cluster.committed(names.group, names.source) == {0: None, 1: None}
        consumer.commit(offsets=[TopicPartition(names.source, 0, 7)], asynchronous=False)
    finally:
        consumer.close()
    assert cluster.committed(names.group, names.source) == {0: 7, 1: None}


def test_a_second_member_takes_over_half(
    kafka: KafkaBroker, cluster: Cluster, names: Names, group_protocol: str
) -> None:
    """Rebalances are quick under either protocol: a join and a leave are through within seconds."""
    cluster.create_topic(names.source, 4)
    first = consumer_of(kafka, names.group, group_protocol)
    second = consumer_of(kafka, names.group, group_protocol)

    def shares(*wanted: int) -> Callable[[], bool]:
        def are_so() -> bool:
            for consumer in (first, second)[: len(wanted)]:
                consumer.poll(0.05)
            return tuple(len(c.assignment()) for c in (first, second)[: len(wanted)]) == wanted

        return are_so

    try:
        first.subscribe([names.source])
        eventually(shares(4), 15, "all four partitions at one member")
        second.subscribe([names.source])
        eventually(shares(2, 2), 15, "two partitions each")
        second.close()
        eventually(shares(4), 15, "all four partitions at the one left")
    finally:
        first.close()


def test_transactions_are_atomic(kafka: KafkaBroker, cluster: Cluster, names: Names) -> None:
    """Records and offsets of a committed transaction count, those of an aborted one do not."""
    cluster.create_topic(names.source, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": names.group})
    consumer = consumer_of(kafka, names.group)
    consumer.subscribe([names.source])
    eventually(lambda: consumer.poll(0.05) or consumer.assignment(), 15, "an assignment")
    try:
        producer.init_transactions(20)
        for value, offset in ((b"kept", 1), (b"dropped", 2)):
            producer.begin_transaction()
            producer.produce(names.source, value)
            position = TopicPartition(names.source, 0, offset)
            producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), 20)
            if value == b"kept":
                producer.commit_transaction(20)
            else:
                producer.flush(20)
                producer.abort_transaction(20)
    finally:
        consumer.close()
    assert [message.value() for message in cluster.read_topic(names.source)] == [b"kept"]
    everything = cluster.read_topic(names.source, committed_only=False)
    assert [message.value() for message in everything] == [b"kept", b"dropped"]
    assert cluster.end_offsets(names.source) == {0: 4}  # two records, two markers
    assert cluster.committed(names.group, names.source) == {0: 1}


def test_refusals_are_loud(cluster: Cluster, names: Names) -> None:
    """A topic that is missing or exists already is an error that names it; none is created by the way."""
    with pytest.raises(ClusterError, match=names.source):
        cluster.read_topic(names.source)
    with pytest.raises(ClusterError, match=names.source):
        cluster.produce(names.source, [Outgoing(b"x")], deadline_s=2)
    assert names.source not in cluster.topics()
    cluster.create_topic(names.source, 1, {"cleanup.policy": "compact"})
    assert cluster.topic_config(names.source)["cleanup.policy"] == "compact"
    with pytest.raises(ClusterError, match=names.source):
        cluster.create_topic(names.source, 1)


def test_the_prefix_of_a_log_can_be_deleted(cluster: Cluster, names: Names) -> None:
    """Deleted records move the log start, and reading begins there."""
    cluster.create_topic(names.source, 1)
    cluster.produce(names.source, [Outgoing(b"%d" % n) for n in range(5)])
    cluster.delete_records(names.source, {0: 3})
    assert cluster.start_offsets(names.source) == {0: 3}
    assert [message.value() for message in cluster.read_topic(names.source)] == [b"3", b"4"]


@pytest.mark.parametrize("how", ["clean", "kill"])
def test_restart_keeps_port_and_data(own_kafka: KafkaBroker, names: Names, how: str) -> None:
    """After a clean restart or a kill -9 the same address serves the same records and offsets."""
    cluster = Cluster(own_kafka.bootstrap, fails=True)
    cluster.create_topic(names.source, 2)
    cluster.produce(names.source, [Outgoing(b"kept", partition=1)])
    cluster.commit(names.group, names.source, {1: 1})
    if how == "kill":
        own_kafka.kill()
    own_kafka.restart()
    assert [message.value() for message in cluster.read_topic(names.source)] == [b"kept"]
    eventually(
        lambda: cluster.committed(names.group, names.source) == {0: None, 1: 1}, 15, "the committed offset"
    )


def test_a_paused_broker_answers_nothing_until_resumed(own_kafka: KafkaBroker, names: Names) -> None:
    """While paused a call runs into its deadline; after resume the broker goes on as if nothing had been."""
    cluster = Cluster(own_kafka.bootstrap, fails=True)
    cluster.create_topic(names.source, 1)
    own_kafka.pause()
    try:
        with pytest.raises(ClusterError):
            cluster.produce(names.source, [Outgoing(b"lost")], deadline_s=1)
    finally:
        own_kafka.resume()
    cluster.produce(names.source, [Outgoing(b"arrives")])
    assert cluster.read_topic(names.source)[-1].value() == b"arrives"


def test_without_any_source_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address, no Docker engine and no JVM give exactly the sentence that a skip shows."""
    monkeypatch.delenv("LANEWAY_TEST_BOOTSTRAP", raising=False)
    monkeypatch.setattr(finder, "docker_answers", lambda: False)
    monkeypatch.setattr(finder, "_find_java", lambda: "")
    with pytest.raises(NoKafkaError) as caught:
        finder.find_kafka()
    assert str(caught.value) == NOTHING_FOUND


def test_the_environment_comes_first(kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """With LANEWAY_TEST_BOOTSTRAP that cluster is used, and it is never paused, killed or restarted."""
    monkeypatch.setenv("LANEWAY_TEST_BOOTSTRAP", kafka.bootstrap)
    broker = finder.find_kafka()
    assert isinstance(broker, ExternalBroker)
    for verb in (broker.pause, broker.resume, broker.kill, broker.restart):
        with pytest.raises(NotOurBrokerError, match="LANEWAY_TEST_BOOTSTRAP"):
            verb()
    broker.stop()
    assert Cluster(broker.bootstrap).topics() is not None


STARTS_A_BROKER = """
import sys, time
from tests.broker.kafka import start_kafka
broker = start_kafka()
print(broker.pid, broker.directory, flush=True)
time.sleep(600)
"""


def test_the_broker_ends_with_a_killed_session(kafka: KafkaBroker) -> None:
    """After kill -9 of the session its JVM is gone, and the next start removes what it left."""
    if not isinstance(kafka, JvmBroker) or sys.platform != "linux":
        return  # containers are reaped by testcontainers; other systems than Linux have no such signal
    command = [sys.executable, "-c", STARTS_A_BROKER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=finder.REPOSITORY) as session:
        try:
            assert session.stdout is not None
            pid, directory = session.stdout.readline().split()
        finally:
            session.kill()
    eventually(lambda: not Path(f"/proc/{pid}/cmdline").exists() or _is_zombie(int(pid)), 10, "the JVM's end")
    assert Path(directory).is_dir()
    eventually(lambda: _swept(Path(directory)), 10, "the directory to be swept away")
    assert kafka.directory.is_dir(), "a living broker's directory was swept away"
    assert str(kafka.directory).startswith(tempfile.gettempdir())


def _swept(directory: Path) -> bool:
    finder._sweep_abandoned_directories()
    return not directory.exists()


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_reading_back_many_records_is_quick(cluster: Cluster, names: Names) -> None:
    """Ten thousand records on six partitions are produced, acknowledged and read back within seconds."""
    cluster.create_topic(names.source, 6)
    started = time.monotonic()
    sent = [Outgoing(b"%d" % n, b"key-%d" % (n % 100)) for n in range(10_000)]
    positions = cluster.produce(names.source, sent)
    came = cluster.read_topic(names.source)
    assert len(set(positions)) == 10_000
    assert {message.value() for message in came} == {record.value for record in sent}
    assert time.monotonic() - started < 20
