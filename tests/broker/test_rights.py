"""The rights that `laneway topics plan` prints, on a broker that checks them: enough, and none too many.

The broker has an authorizer and a second listener on which clients give a name. Nobody but the worker comes
through it; what the test itself does comes by the first one, whose clients may do everything.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

# The package lists no exports for these; they are its documented API.
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from laneway.consumer import rights
from laneway.consumer.kafka import clients
from laneway.consumer.settings.model import Settings
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.kafka import JvmBroker, NoKafkaError, free_ports, require_jvm, start_together
from tests.broker.worker_process import WorkerProcess, create_companions, load_settings, settings_of
from tests.waiting import eventually

APP = """
from laneway import Delivery, Pipeline, TemporaryFailure

pipeline = Pipeline()

@pipeline.handler
def handle(delivery: Delivery[object]) -> None:
    if delivery.effect_key == "later" and delivery.attempt == 1:
        raise TemporaryFailure("not-yet")
    if delivery.effect_key == "odd":
        raise ValueError
"""
WORKER = "User:worker"
_KINDS = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
}
_OPERATIONS = {
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
}


@dataclass(frozen=True)
class Guarded:
    """A broker that checks rights: one address for those who may do everything, one for the worker."""

    bootstrap: str
    for_worker: str

    def grant(self, lines: Sequence[str]) -> None:
        """Give the worker exactly what these arguments of `kafka-acls` say."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.delete_acls([_everything()], request_timeout=20).values():
            future.result(20)
        wanted = [binding for line in lines for binding in bindings(line)]
        for future in admin.create_acls(wanted, request_timeout=20).values():
            future.result(20)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    """A broker of this file's own."""
    try:
        require_jvm()
    except NoKafkaError as error:
        pytest.skip(str(error))
    port, controller, named = free_ports(3)
    broker = JvmBroker(
        {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},NAMED://127.0.0.1:{named}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},NAMED://127.0.0.1:{named}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,NAMED:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.named.plain.sasl.jaas.config": (
                'org.apache.kafka.common.security.plain.PlainLoginModule required user_worker="secret";'
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        },
        heap_mb=384,
        ports=(port, controller),
    )
    start_together([broker])
    yield Guarded(broker.bootstrap, f"127.0.0.1:{named}")
    broker.stop()


def bindings(line: str) -> Iterator[AclBinding]:
    """One line of the plan as a client gives it to the broker."""
    words = shlex.split(line)
    assert words[:3] == ["--add", "--allow-principal", WORKER]
    (kind,) = [word for word in words if word in _KINDS]
    prefixed = "--resource-pattern-type" in words
    for index, word in enumerate(words):
        if word == "--operation":
            yield AclBinding(
                _KINDS[kind],
                words[words.index(kind) + 1],
                ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL,
                WORKER,
                "*",
                _OPERATIONS[words[index + 1]],
                AclPermissionType.ALLOW,
            )


def _everything() -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.ANY,
        None,  # type: ignore[arg-type]  # the stub forgets that a filter may leave it open
        ResourcePatternType.ANY,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )


def record(effect_key: str, version: int = 1) -> Outgoing:
    """A record of the default envelope in a lane of its own."""
    body: dict[str, Any] = {"messageId": effect_key, "effectKey": effect_key, "sequenceKey": effect_key}
    body |= {"sequence": 1, "version": version, "payload": {}}
    return Outgoing(json.dumps(body).encode(), partition=0)


def as_worker(guarded: Guarded, names: Names, directory: Path, replication: str) -> dict[str, Any]:
    """Settings with which a worker comes by the listener that asks for names."""
    return settings_of(
        guarded.for_worker,
        names,
        directory / "state",
        retry={"delays_ms": [50]},
        ledger={"replication": replication},
        kafka={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "worker",
            "sasl.password": "secret",
        },
    )


def prepared(
    guarded: Guarded, names: Names, directory: Path, replication: str
) -> tuple[dict[str, Any], Settings]:
    """All topics, made by somebody who may, and the settings of the worker."""
    Cluster(guarded.bootstrap).create_topic(names.source, 1)
    told = as_worker(guarded, names, directory, replication)
    by_operator = {**told, "bootstrap": guarded.bootstrap, "kafka": {}}
    create_companions(by_operator, directory)
    return told, load_settings(told, directory)


@pytest.mark.parametrize("replication", ["local", "changelog"])
def test_the_rights_of_the_plan_are_enough_for_a_worker(
    guarded: Guarded, names: Names, tmp_path: Path, replication: str
) -> None:
    """With these lines and no others a worker starts, retries, dead-letters, opens cases and commits."""
    told, settings = prepared(guarded, names, tmp_path, replication)
    guarded.grant(rights.acls(settings, WORKER))
    cluster = Cluster(guarded.bootstrap)
    (tmp_path / "app.py").write_text(APP)
    cluster.produce(names.source, [record("a"), record("later"), record("odd"), record("dead", version=99)])
    companion = f"{names.source}.{names.group}"
    with WorkerProcess(tmp_path / "app.py:pipeline", told, directory=tmp_path / "w") as worker:
        worker.start()
        eventually(
            lambda: (
                cluster.committed(names.group, names.source)[0] == 4
                and cluster.committed(names.group, f"{companion}.retry")[0] == 1
            ),
            30,
            "everything to be committed",
            poll_s=0.2,
        )
    assert len(cluster.read_topic(f"{companion}.dlq")) == 1
    assert len(cluster.read_topic(f"{companion}.review")) == 2, (
        "one failed for no known reason, one holds its lane"
    )


def cycle(settings: Settings) -> None:
    """What a changelog worker asks of the broker: membership, a transaction with all it holds, a restore."""
    group, source = settings.group, settings.sources[0]
    consumer = clients.new_consumer(settings)
    producer = clients.new_transactional_producer(settings, f"{rights.transactional_id_prefix(group)}pod-1")
    try:
        consumer.subscribe([source])
        eventually(lambda: consumer.poll(0.1) is None and consumer.assignment(), 30, "a partition")
        producer.init_transactions(20)
        producer.begin_transaction()
        refused: list[KafkaError] = []
        for kind in ("retry", "dlq", "review", "ledger"):
            producer.produce(
                f"{source}.{group}.{kind}",
                b"v",
                b"k",
                0,
                on_delivery=lambda error, _: refused.append(error) if error is not None else None,
            )
        assert producer.flush(20) == 0
        if refused:
            raise KafkaException(refused[0])
        places = [TopicPartition(f"{source}.{group}.{kind}", 0, 0) for kind in ("retry", "commands")]
        producer.send_offsets_to_transaction(
            [TopicPartition(source, 0, 0), *places], consumer.consumer_group_metadata(), 20
        )
        producer.commit_transaction(20)
    finally:
        consumer.close()
    reader = clients.new_reader(settings, committed=True)
    try:
        reader.assign([TopicPartition(f"{source}.{group}.ledger", 0, 0)])
        message = reader.poll(20)
        assert message is not None
        assert message.error() is None, message.error()
    finally:
        reader.close()


def test_the_rights_of_the_plan_are_enough_for_a_transaction(
    guarded: Guarded, names: Names, tmp_path: Path
) -> None:
    """With `changelog` they cover the whole cycle in one transaction, all offsets and the reading back."""
    _, settings = prepared(guarded, names, tmp_path, "changelog")
    guarded.grant(rights.acls(settings, WORKER))
    cycle(settings)


def test_each_right_of_a_changelog_is_needed(guarded: Guarded, names: Names, tmp_path: Path) -> None:
    """Without the line of transactions, or that of the ledger topic, the same cycle is refused."""
    _, settings = prepared(guarded, names, tmp_path, "changelog")
    lines = rights.acls(settings, WORKER)
    ledger = f"--topic {names.source}.{names.group}.ledger"
    for word, refused in (("--transactional-id", "TRANSACTIONAL_ID_AUTH"), (ledger, "TOPIC_AUTH")):
        fewer = [line for line in lines if word not in line]
        assert len(fewer) == len(lines) - 1
        guarded.grant(fewer)
        with pytest.raises(KafkaException, match=refused):
            cycle(settings)
