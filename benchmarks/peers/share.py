"""Kafka's share consumer: `python -m benchmarks.peers.share TASK`. No order; records are acknowledged.

Records of a poll are accepted together, with a commit that waits for the broker's answer.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

# Public names, yet not re-exported for type checkers.
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)

from benchmarks.peers.work import Clock, Task, blocking, read_task, skip, stay


def from_the_start(task: Task) -> None:
    """A share group begins at the end of the log unless its own configuration says otherwise."""
    admin = AdminClient({"bootstrap.servers": task.bootstrap, "log_level": 0})
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ConfigResource.Type.GROUP, task.group, incremental_configs=[earliest])
    for answer in admin.incremental_alter_configs([group]).values():
        answer.result(10)
    # The controller has it; a broker that has not heard of it yet would begin at the end.
    asked = ConfigResource(ConfigResource.Type.GROUP, task.group)
    while True:
        (heard,) = admin.describe_configs([asked]).values()
        if heard.result(10)["share.auto.offset.reset"].value == "earliest":
            return
        time.sleep(0.02)


class _MemberId(logging.Handler):
    """Hears which member id the client drew; its log is the only place that tells."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = ""

    def emit(self, record: logging.LogRecord) -> None:
        before, found, after = record.getMessage().partition("updating member id")
        if found and before:
            self.drawn = after


def joined(task: Task, kind: Callable[[dict[str, Any]], Any]) -> tuple[Any, Any]:
    """A consumer with its first poll.

    Every second one would never get a record: the client draws its member id in plain base64, and a broker of
    Kafka 4.1 answers only to those that are base64 for URLs too. Such a one is closed before it has fetched.
    """
    while True:
        ear, log = _MemberId(), logging.getLogger(f"share.{time.monotonic_ns()}")
        log.setLevel(logging.DEBUG)
        log.propagate = False
        log.addHandler(ear)
        consumer = kind(
            {"bootstrap.servers": task.bootstrap, "group.id": task.group, "debug": "cgrp", "logger": log}
        )
        consumer.subscribe([task.topic])
        messages = consumer.poll(0.1)
        if "+" not in ear.drawn and "/" not in ear.drawn:
            return consumer, messages
        consumer.close()


def work(task: Task) -> None:
    """Poll, handle, commit."""
    kind = getattr(confluent_kafka, "ShareConsumer", None)
    if kind is None:
        skip(f"confluent-kafka {confluent_kafka.__version__} has no ShareConsumer")
    handle = blocking(task.handler)
    from_the_start(task)
    clock = Clock(task)
    consumer, messages = joined(task, kind)
    seen = 0
    while seen < task.records:
        for message in messages:
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            message.key()
            message.headers()
            json.loads(message.value())
            handle()
            seen += 1
            # Not behind the batch: with few slow records the first one may hold them all.
            if seen == task.warm:
                clock.begin()
        refused = [error for error in consumer.commit_sync(10.0).values() if error is not None]
        if refused:
            raise KafkaException(refused[0])
        # Not behind the last one: an empty poll takes its whole time.
        messages = consumer.poll(1.0) if seen < task.records else ()
    clock.handled(committed=True)
    stay()


def main() -> None:
    """Do one task."""
    task = read_task()
    try:
        work(task)
    except KafkaException as exception:
        if exception.args[0].code() == KafkaError.UNSUPPORTED_VERSION:
            skip("the broker has share groups switched off (its feature share.version is 0)")
        raise


if __name__ == "__main__":
    main()
