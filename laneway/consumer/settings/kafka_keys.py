"""The `[kafka]` table: what passes straight to librdkafka, what Laneway owns, what may be shown.

Two lists of names as data. A key that Laneway owns is refused by name with what to write instead:
silently winning over it would be a lie, silently obeying it would break a promise. A key may be
shown only when it is on the list of names that never hold a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_COMMITS: Final = "an offset is committed only after its effect is durable, and only Laneway knows when"
_WRITES: Final = "a settlement counts only when the cluster has acknowledged all its forwards"
_FENCING: Final = "the id of its transactions is what fences a deposed owner: laneway-GROUP-..."
_CALLBACK: Final = "callbacks are Laneway's"

OWNED: Final[Mapping[str, str]] = {
    "bootstrap.servers": "write bootstrap at the top of the file",
    "metadata.broker.list": "write bootstrap at the top of the file",
    "group.id": "write group at the top of the file",
    "group.protocol": "write group_protocol at the top of the file",
    "group.protocol.type": "Laneway's members are consumers",
    "group.instance.id": "write instance_id at the top of the file",
    "enable.auto.commit": _COMMITS,
    "auto.commit.enable": _COMMITS,
    "auto.commit.interval.ms": _COMMITS,
    "enable.auto.offset.store": _COMMITS,
    "offset.store.method": _COMMITS,
    "auto.offset.reset": "write start at the top of the file: it is resolved once and committed",
    "isolation.level": "aborted records must never reach a handler",
    "partition.assignment.strategy": "retry and commands partitions must move with their source partition",
    "enable.partition.eof": "Laneway asks for end-of-partition events where it needs them",
    "allow.auto.create.topics": "run `laneway topics create`: nothing relies on auto-creation",
    "transactional.id": _FENCING,
    "enable.idempotence": _WRITES,
    "enable.gapless.guarantee": _WRITES,
    "acks": _WRITES,
    "request.required.acks": _WRITES,
    "on_commit": _CALLBACK,
    "on_delivery": _CALLBACK,
    "logger": "the client's log lines go to the Python logger laneway.kafka",
    "log.queue": "the client's log lines go to the Python logger laneway.kafka",
    "test.mock.num.brokers": "it would replace bootstrap by an embedded cluster without saying so",
}

_CONSUMER_PROTOCOL: Final = 'with group_protocol = "consumer" the broker decides it'
_REFUSED_BY_CONSUMER_PROTOCOL: Final = frozenset({"session.timeout.ms", "heartbeat.interval.ms"})

SHOWN: Final = frozenset(
    {
        "api.version.request", "batch.num.messages", "batch.size", "broker.address.family",
        "broker.address.ttl", "client.dns.lookup", "client.id", "client.rack", "compression.codec",
        "compression.level", "compression.type", "connections.max.idle.ms", "debug",
        "delivery.timeout.ms", "fetch.error.backoff.ms", "fetch.max.bytes", "fetch.message.max.bytes",
        "fetch.min.bytes", "fetch.queue.backoff.ms", "fetch.wait.max.ms", "group.remote.assignor",
        "heartbeat.interval.ms", "linger.ms", "log_level", "max.in.flight",
        "max.in.flight.requests.per.connection", "max.partition.fetch.bytes", "max.poll.interval.ms",
        "message.max.bytes", "message.timeout.ms", "metadata.max.age.ms", "queue.buffering.max.kbytes",
        "queue.buffering.max.messages", "queue.buffering.max.ms", "queued.max.messages.kbytes",
        "queued.min.messages", "receive.message.max.bytes", "reconnect.backoff.max.ms",
        "reconnect.backoff.ms", "request.timeout.ms", "retries", "retry.backoff.max.ms",
        "retry.backoff.ms", "sasl.mechanism", "sasl.mechanisms", "sasl.oauthbearer.method",
        "security.protocol", "session.timeout.ms", "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable", "socket.nagle.disable", "socket.timeout.ms", "ssl.ca.location",
        "ssl.certificate.location", "ssl.endpoint.identification.algorithm", "ssl.key.location",
        "statistics.interval.ms", "topic.metadata.refresh.interval.ms", "transaction.timeout.ms",
        "enable.ssl.certificate.verification", "check.crcs",
    }
)  # fmt: skip


def refusal(name: str, value: object, group_protocol: object) -> str:
    """Why this key may not stand in `[kafka]`; empty when it may."""
    if name == "partition.assignment.strategy" and "cooperative" in str(value):
        return (
            "cooperative-sticky is refused: with it members of a group stayed without partitions; "
            'write group_protocol = "consumer" for rebalances that stop only what moves'
        )
    if name in OWNED:
        return f"belongs to Laneway: {OWNED[name]}"
    if name.endswith("_cb"):
        return f"belongs to Laneway: {_CALLBACK}"
    if group_protocol == "consumer" and name in _REFUSED_BY_CONSUMER_PROTOCOL:
        return f"cannot be set: {_CONSUMER_PROTOCOL}"
    return ""


def shown(name: str, written: object) -> object:
    """The value as `config show` prints it: a reference to a secret is no secret, anything unknown is."""
    if name in SHOWN or (isinstance(written, str) and written.startswith(("env:", "file:"))):
        return written
    return "***"
