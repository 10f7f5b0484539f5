"""How the clients of confluent-kafka are configured and made.

`[kafka]` passes through as written; the keys that Laneway owns are laid over it here and nowhere else. Log
lines of librdkafka go to the Python logger `laneway.kafka`, never to standard output or error by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from laneway.consumer.kafka.errors import kafka_errors
from laneway.consumer.kafka.log import logger
from laneway.consumer.settings import kafka_keys
from laneway.consumer.settings.mistakes import together
from laneway.consumer.settings.model import KafkaValue, Settings
from laneway.errors import ConfigError, LanewayError

Hook = Callable[..., None]
ClientConfig = dict[str, KafkaValue]

TRANSACTION_TIMEOUT_MS: Final = 10_000
MESSAGE_SHARE_PERCENT: Final = 80
"""How much of its transaction's timeout a message may take."""
READER_QUEUE_KB: Final = 16_384
READER_WAIT_MS: Final = 50
QUEUE_BACKOFF_MS: Final = 10
_OF_MEMBERS: Final = ("group.protocol", "partition.assignment.strategy", "group.instance.id")

_MEND: Final = "correct it, or take it out: the names are those of librdkafka's CONFIGURATION.md"
# A key by itself may be refused only because another belongs to it; that is judged with all of them.
_ONLY_TOGETHER: Final = "Failed to create"


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
    # Its own second after each full queue: a few large records would be all that comes in it.
    config.setdefault("fetch.queue.backoff.ms", QUEUE_BACKOFF_MS)
    return config


def producer_config(settings: Settings, *, max_message_bytes: int | None = None) -> ClientConfig:
    """The producer's own keys laid over the shared ones. `max_message_bytes`: of the largest topic.

    A topic's limit counts compressed bytes, the client's counts plain ones: what came compressed must fit
    again on its way back, so we compress too and leave the judgement to the broker.
    """
    shared = {"compression.type": "zstd", "partitioner": "murmur2_random", **client_config(settings)}
    if max_message_bytes is not None:
        shared.setdefault("batch.size", min(1_000_000, max_message_bytes))
        shared["message.max.bytes"] = 1_000_000_000
    return {**shared, "acks": "all", "enable.idempotence": True}


def transactional_config(
    settings: Settings, transactional_id: str, *, max_message_bytes: int | None = None
) -> ClientConfig:
    """The transactional producer's keys. A transaction that hangs longer than its timeout stops readers.

    A message must not outlive its transaction, so its own timeout ends before: what `[kafka]` says is cut.
    """
    config = producer_config(settings, max_message_bytes=max_message_bytes)
    config.setdefault("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS)
    config["transactional.id"] = transactional_id
    longest_ms = int(config["transaction.timeout.ms"]) * MESSAGE_SHARE_PERCENT // 100
    asked_ms = int(config.pop("delivery.timeout.ms", config.get("message.timeout.ms", 0)))
    config["message.timeout.ms"] = min(asked_ms or longest_ms, longest_ms)
    return config


def reader_config(settings: Settings, *, committed: bool) -> ClientConfig:
    """The keys of a client that reads by itself, beside the group: it never joins and commits nothing."""
    config = consumer_config(settings, partition_eof=True)
    for name in _OF_MEMBERS:
        config.pop(name, None)
    config.setdefault("queued.max.messages.kbytes", READER_QUEUE_KB)
    return {
        **config,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        # The broker would hold an empty answer this long, and with it the word that this is the end.
        "fetch.wait.max.ms": READER_WAIT_MS,
    }


def new_consumer(settings: Settings, *, partition_eof: bool = False, **hooks: Hook) -> Consumer:
    """A consumer of the group, not yet subscribed; its log lines and hooks are served by poll()."""
    with kafka_errors("[kafka]"):
        return Consumer({**consumer_config(settings, partition_eof=partition_eof), "logger": logger, **hooks})


def new_producer(settings: Settings, *, max_message_bytes: int | None = None) -> Producer:
    """An idempotent producer; its log lines are served by poll() and flush()."""
    with kafka_errors("[kafka]"):
        return Producer({**producer_config(settings, max_message_bytes=max_message_bytes), "logger": logger})


def new_transactional_producer(
    settings: Settings, transactional_id: str, *, max_message_bytes: int | None = None, **hooks: Hook
) -> Producer:
    """A transactional producer before `init_transactions`; poll() and flush() serve its log and its hooks."""
    config = transactional_config(settings, transactional_id, max_message_bytes=max_message_bytes)
    with kafka_errors("[kafka]"):
        return Producer({**config, "logger": logger, **hooks})


def new_reader(settings: Settings, *, committed: bool) -> Consumer:
    """A consumer for `assign` alone; it tells where a partition ends.

    Args:
        committed: reads what is committed, as far as the last stable offset. Otherwise it reads all there
            is, and its watermark is the true end of the log, open transactions included.
    """
    with kafka_errors("[kafka]"):
        return Consumer({**reader_config(settings, committed=committed), "logger": logger})


def new_admin(settings: Settings, on_error: Callable[[KafkaError], None]) -> AdminClient:
    """An admin client. It is polled only to learn why a call failed, so it queues no log lines."""
    with kafka_errors("[kafka]"):
        # The stub's dict type leaves callbacks out.
        config: dict[str, KafkaValue] = {**client_config(settings), "log_level": 0}
        return AdminClient({**config, "error_cb": on_error})  # type: ignore[dict-item]


def require_kafka_keys(settings: Settings, place_of: Callable[[str], str]) -> None:
    """Let the client judge `[kafka]` here and now. Nothing is connected: the clients know no broker.

    Args:
        place_of: where a key was written, for the message.

    Raises:
        ConfigError: the client refuses a key, a value, or what they are together.
    """
    mistakes = []
    for name, value in settings.kafka.items():
        if said := _refused({name: value}, settings, alone=True):
            mistakes.append(ConfigError(f"[kafka] {name}: {said}", where=place_of(name), mend=_MEND))
    if mistakes:
        raise together(mistakes)
    if said := _refused(settings.kafka, settings, alone=False):
        raise ConfigError(f"[kafka] {said}", where=place_of(""), mend=_MEND)


def _refused(keys: Mapping[str, KafkaValue], settings: Settings, *, alone: bool) -> str:
    """What the client says against these keys, without a value that may be secret; empty when nothing."""
    ours: ClientConfig = {} if alone else {**consumer_config(settings), **producer_config(settings)}
    ours = {name: value for name, value in ours.items() if name not in settings.kafka}
    ours.pop("bootstrap.servers", None)
    config = {**ours, "group.id": settings.group, **keys, "log_level": 0, "logger": logger}
    try:
        with kafka_errors("[kafka]"):
            Consumer(config).close()
            if not alone:
                Producer(config).flush(0)
    except LanewayError as error:
        said = error.what.removesuffix(" (refused-config, _INVALID_ARG)")
        for name, value in keys.items():
            if str(value) and kafka_keys.shown(name, value) == "***":
                said = said.replace(str(value), "***")
        return "" if alone and said.startswith(_ONLY_TOGETHER) else said
    return ""
