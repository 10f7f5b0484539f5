"""How the clients of confluent-kafka are configured and made.

`[kafka]` passes through as written; the keys that Laneway owns are laid over it here and nowhere else. Log
lines of librdkafka go to the Python logger `laneway.kafka`, never to standard output or error by themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from laneway.consumer.kafka.errors import kafka_errors
from laneway.consumer.kafka.log import logger
from laneway.consumer.settings.model import KafkaValue, Settings

Hook = Callable[..., None]
ClientConfig = dict[str, KafkaValue]


def client_config(settings: Settings) -> ClientConfig:
    """What every client of one worker shares: the address, and `[kafka]` as written."""
    return {
        "client.id": f"laneway-{settings.group}",
        "log.connection.close": False,
        **settings.kafka,
        "bootstrap.servers": settings.bootstrap,
    }


def consumer_config(settings: Settings, *, partition_eof: bool = False) -> ClientConfig:
    """The consumer's own keys laid over the shared ones; these are the keys Laneway owns."""
    config = {
        **client_config(settings),
        "group.id": settings.group,
        "group.protocol": settings.group_protocol,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        # A position that is not there is a question for the owner, never a silent jump.
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        "enable.partition.eof": partition_eof,
    }
    if settings.group_protocol == "classic":
        config["partition.assignment.strategy"] = "range"
    if settings.instance_id is not None:
        config["group.instance.id"] = settings.instance_id
    return config


def producer_config(settings: Settings, *, max_message_bytes: int | None = None) -> ClientConfig:
    """The producer's own keys laid over the shared ones. `max_message_bytes`: of the largest topic.

    A topic's limit counts compressed bytes, the client's counts plain ones: what came compressed must fit
    again on its way back, so we compress too and leave the judgement to the broker.
    """
    shared = {"compression.type": "zstd", **client_config(settings)}
    if max_message_bytes is not None:
        shared.setdefault("batch.size", min(1_000_000, max_message_bytes))
        shared["message.max.bytes"] = 1_000_000_000
    return {**shared, "acks": "all", "enable.idempotence": True}


def new_consumer(settings: Settings, *, partition_eof: bool = False, **hooks: Hook) -> Consumer:
    """A consumer of the group, not yet subscribed; its log lines and hooks are served by poll()."""
    with kafka_errors("[kafka]"):
        return Consumer({**consumer_config(settings, partition_eof=partition_eof), "logger": logger, **hooks})


def new_producer(settings: Settings, *, max_message_bytes: int | None = None) -> Producer:
    """An idempotent producer; its log lines are served by poll() and flush()."""
    with kafka_errors("[kafka]"):
        return Producer({**producer_config(settings, max_message_bytes=max_message_bytes), "logger": logger})


def new_admin(settings: Settings, on_error: Callable[[KafkaError], None]) -> AdminClient:
    """An admin client. It is polled only to learn why a call failed, so it queues no log lines."""
    with kafka_errors("[kafka]"):
        # The stub's dict type leaves callbacks out.
        config: dict[str, KafkaValue] = {**client_config(settings), "log_level": 0}
        return AdminClient({**config, "error_cb": on_error})  # type: ignore[dict-item]
