"""The proxy itself: what the tests of lost answers take for granted holds."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.broker.cluster import Cluster, ClusterError, Outgoing
from tests.broker.conftest import Names, ProxiedKafka
from tests.broker.proxy import END_TXN
from tests.waiting import eventually


def transactional(bootstrap: str, name: str) -> Producer:
    """A producer that has got its id; its first transaction may begin."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(20)
    return producer


def test_everything_passes(proxied_kafka: ProxiedKafka, names: Names) -> None:
    """Whoever comes in through the proxy stays behind it: records come back as on the direct way."""
    direct, proxied = Cluster(proxied_kafka.direct), Cluster(proxied_kafka.bootstrap)
    proxied.create_topic(names.source, 2)
    before = proxied_kafka.proxy.requests(0)
    big = b"x" * 3_000_000
    proxied.produce(names.source, [Outgoing(b"one", partition=0), Outgoing(big, partition=1)])
    assert proxied_kafka.proxy.requests(0) > before, "the producer went round the proxy"
    assert [message.value() for message in direct.read_topic(names.source)] == [b"one", big]
    assert [message.value() for message in proxied.read_topic(names.source)] == [b"one", big]


def test_a_commit_whose_answer_is_kept_back_is_in_the_log(proxied_kafka: ProxiedKafka, names: Names) -> None:
    """The client times out, the records are committed; when the answer comes the same call succeeds."""
    direct, proxy = Cluster(proxied_kafka.direct), proxied_kafka.proxy
    direct.create_topic(names.source, 1)
    producer = transactional(proxied_kafka.bootstrap, names.group)
    producer.begin_transaction()
    producer.produce(names.source, b"kept")
    producer.flush(10)
    proxy.withhold(END_TXN)
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(1)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
    assert proxy.kept_back == 1
    assert [message.value() for message in direct.read_topic(names.source)] == [b"kept"]
    proxy.release()
    producer.commit_transaction(10)
    assert proxy.kept_back == 0


def test_an_answer_kept_back_is_lost_by_a_cut(proxied_kafka: ProxiedKafka, names: Names) -> None:
    """After a cut the client never gets that answer, comes back and asks again."""
    direct, proxy = Cluster(proxied_kafka.direct), proxied_kafka.proxy
    direct.create_topic(names.source, 1)
    producer = transactional(proxied_kafka.bootstrap, names.group)
    producer.begin_transaction()
    producer.produce(names.source, b"kept")
    producer.flush(10)
    asked = proxy.requests(END_TXN)
    proxy.withhold(END_TXN)
    with pytest.raises(KafkaException):
        producer.commit_transaction(1)
    proxy.cut()
    proxy.release()
    producer.commit_transaction(10)
    assert proxy.requests(END_TXN) == asked + 2
    assert [message.value() for message in direct.read_topic(names.source)] == [b"kept"]


def test_nobody_comes_through_while_it_refuses(proxied_kafka: ProxiedKafka, names: Names) -> None:
    """While refusing, calls fail behind the proxy and nowhere else; released, all is well again."""
    direct, proxied = Cluster(proxied_kafka.direct), Cluster(proxied_kafka.bootstrap)
    direct.create_topic(names.source, 1)
    proxied_kafka.proxy.refuse()
    started = time.monotonic()
    with pytest.raises(ClusterError):
        proxied.produce(names.source, [Outgoing(b"lost")], deadline_s=1)
    assert time.monotonic() - started < 10
    direct.produce(names.source, [Outgoing(b"round it")])
    proxied_kafka.proxy.release()
    proxied.produce(names.source, [Outgoing(b"through it")])
    assert [message.value() for message in direct.read_topic(names.source)] == [b"round it", b"through it"]


def test_all_answers_can_be_kept_back(proxied_kafka: ProxiedKafka, names: Names) -> None:
    """With everything kept back a client gets no answer; released, it goes on as if it had been slow."""
    direct, proxy = Cluster(proxied_kafka.direct), proxied_kafka.proxy
    direct.create_topic(names.source, 1)
    producer = Producer({"bootstrap.servers": proxied_kafka.bootstrap, "enable.idempotence": True})
    producer.produce(names.source, b"first")
    assert producer.flush(10) == 0
    proxy.withhold()
    producer.produce(names.source, b"second")
    assert producer.flush(0.5) == 1, "an answer came through"
    eventually(lambda: len(direct.read_topic(names.source)) == 2, 10, "the request on the other side")
    proxy.release()
    assert producer.flush(10) == 0
