"""The cluster of three itself: what the tests that take members away take for granted holds."""

from __future__ import annotations

from confluent_kafka import Producer

from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.members import ThreeBrokers
from tests.waiting import eventually

PARTITIONS = 3


def values(cluster: Cluster, topic: str) -> set[bytes | None]:
    """All that readers of committed records see."""
    return {message.value() for message in cluster.read_topic(topic)}


def one_each(word: str) -> list[Outgoing]:
    """A record for each partition."""
    return [Outgoing(f"{word} {number}".encode(), partition=number) for number in range(PARTITIONS)]


def test_a_killed_member_is_not_missed_and_comes_back(three_brokers: ThreeBrokers, names: Names) -> None:
    """With one member dead every partition takes and serves records; back again, it has them too."""
    cluster = Cluster(three_brokers.bootstrap, fails=True)
    cluster.create_topic(names.source, PARTITIONS)
    assert cluster.topic_config(names.source)["min.insync.replicas"] == "2"
    three_brokers.await_in_sync(names.source)
    cluster.produce(names.source, one_each("before"))
    victim = three_brokers.leader_of(names.source, 0)
    three_brokers[victim].kill()
    cluster.produce(names.source, one_each("while it is dead"))
    assert len(values(cluster, names.source)) == 2 * PARTITIONS
    assert three_brokers.leader_of(names.source, 0) != victim
    three_brokers[victim].restart()
    three_brokers.await_in_sync(names.source)


def test_a_transaction_outlives_its_coordinator(three_brokers: ThreeBrokers, names: Names) -> None:
    """A transaction that was begun before its coordinator was killed commits whole after it."""
    cluster = Cluster(three_brokers.bootstrap, fails=True)
    cluster.create_topic(names.source, PARTITIONS)
    three_brokers.await_in_sync(names.source)
    producer = Producer(
        {"bootstrap.servers": three_brokers.bootstrap, "transactional.id": names.group, "log_level": 0}
    )
    producer.init_transactions(30)
    three_brokers.await_in_sync("__transaction_state")
    producer.begin_transaction()
    for record in one_each("begun before"):
        producer.produce(names.source, record.value, partition=record.partition or 0)
    producer.flush(30)
    victim = three_brokers.leader_of("__transaction_state", 0)
    three_brokers[victim].kill()
    for record in one_each("ended after"):
        producer.produce(names.source, record.value, partition=record.partition or 0)
    producer.commit_transaction(60)
    assert len(values(cluster, names.source)) == 2 * PARTITIONS
    three_brokers[victim].restart()
    three_brokers.await_in_sync("__transaction_state")


def test_a_paused_member_is_left_behind_and_catches_up(three_brokers: ThreeBrokers, names: Names) -> None:
    """A frozen member delays writes until its copies are left out, and has them all after it went on."""
    cluster = Cluster(three_brokers.bootstrap, fails=True)
    cluster.create_topic(names.source, PARTITIONS)
    three_brokers.await_in_sync(names.source)
    frozen = three_brokers.leader_of(names.source, 1)
    three_brokers[frozen].pause()
    try:
        cluster.produce(names.source, one_each("while it is frozen"), deadline_s=60)
    finally:
        three_brokers[frozen].resume()
    eventually(lambda: len(values(cluster, names.source)) == PARTITIONS, 20, "all records")
    three_brokers.await_in_sync(names.source)
