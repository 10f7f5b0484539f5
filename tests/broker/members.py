"""A cluster of three brokers whose members can be stopped, paused, killed and started again one by one.

Every topic has three copies and a write needs two of them: with one member away everything goes on, with
two away nothing is acknowledged. Where a JVM runs them they are small; each is controller too, so one may
be away and the others still elect.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from confluent_kafka.admin import AdminClient, PartitionMetadata  # type: ignore[attr-defined]

from tests.broker.kafka import (
    JvmBroker,
    KafkaStartError,
    OwnBroker,
    docker_answers,
    free_ports,
    random_uuid,
    require_jvm,
    start_together,
)

MEMBERS = 3
HEAP_MB = 256
DEADLINE_S = 60.0

SETTINGS: Mapping[str, str] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # One partition each, so that a test knows who coordinates: its leader.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    # A copy that fell behind is left out after this time, and a write waits for it until then.
    "replica.lag.time.max.ms": "4000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
    # Else brokers wait half a minute for the answer of a frozen controller, and every write with them.
    "controller.socket.timeout.ms": "3000",
}


class ThreeBrokers:
    """Three members, numbered from 1 as Kafka numbers them.

    Attributes:
        bootstrap: the addresses of all three.
    """

    def __init__(self, members: Iterable[OwnBroker]) -> None:
        self._members = dict(enumerate(members, start=1))
        self.bootstrap = ",".join(member.bootstrap for member in self._members.values())

    def __getitem__(self, number: int) -> OwnBroker:
        return self._members[number]

    def leader_of(self, topic: str, partition: int) -> int:
        """The number of the member that leads a partition; one that just died may still be named."""
        return int(self._partitions(topic)[partition].leader)

    def await_in_sync(self, topic: str) -> None:
        """Returns once every copy of every partition of a topic has caught up."""
        deadline = time.monotonic() + DEADLINE_S
        while any(len(part.isrs) < len(part.replicas) for part in self._partitions(topic).values()):
            _wait(deadline, f"all copies of {topic} to catch up")

    def stop(self) -> None:
        """Ends all members for good."""
        for member in self._members.values():
            member.stop()

    def _partitions(self, topic: str) -> dict[int, PartitionMetadata]:
        """What a member says of a topic; one that has just come back may not know it for a moment."""
        deadline = time.monotonic() + DEADLINE_S
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        while True:
            found = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic]
            if found.error is None and all(part.leader >= 0 for part in found.partitions.values()):
                return dict(found.partitions)
            _wait(deadline, f"a leader of each partition of {topic}")


def _wait(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise KafkaStartError(f"waited {DEADLINE_S:g} s for {what}")
    time.sleep(0.05)


def start_three(settings: Mapping[str, str] | None = None) -> ThreeBrokers:
    """Starts a cluster of three side by side, by Docker or in JVMs. From the main thread.

    Raises:
        NoKafkaError: neither exists here.
        KafkaStartError: a member did not come up.
    """
    lines = [{**SETTINGS, **(settings or {}), "node.id": str(number)} for number in range(1, MEMBERS + 1)]
    members = _containers(lines) if docker_answers() else _jvms(lines)
    start_together(members)
    return ThreeBrokers(members)


def _jvms(lines: list[dict[str, str]]) -> list[OwnBroker]:
    require_jvm()
    ports = free_ports(2 * MEMBERS)
    addresses = [f"127.0.0.1:{port}" for port in ports[MEMBERS:]]
    voters = ",".join(f"{number}@{address}:{random_uuid()}" for number, address in enumerate(addresses, 1))
    storage = ["--initial-controllers", voters, "-t", random_uuid()]
    for each in lines:
        each["controller.quorum.bootstrap.servers"] = ",".join(addresses)
    pairs = zip(ports[:MEMBERS], ports[MEMBERS:], strict=True)
    return [JvmBroker(each, HEAP_MB, pair, storage) for each, pair in zip(lines, pairs, strict=True)]


def _containers(lines: list[dict[str, str]]) -> list[OwnBroker]:
    # Imported here: see tests/broker/kafka.py.
    from testcontainers.core.network import Network  # noqa: PLC0415

    from tests.broker.docker import DockerBroker  # noqa: PLC0415

    network = Network().create()
    voters = ",".join(f"{number}@member-{number}:9093" for number in range(1, MEMBERS + 1))
    return [
        DockerBroker({**each, "controller.quorum.voters": voters}, network, f"member-{each['node.id']}")
        for each in lines
    ]
