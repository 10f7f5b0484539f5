"""The loops that people write: `python -m benchmarks.peers.loops TASK`. Order by partition, no memory.

bare-json      consume(1000), read key, value and headers, json.loads; one commit, at the very end
bare-msgspec   the same with a fast parser
commit-each    poll, json.loads, and a synchronous commit for each record
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final

import msgspec
from confluent_kafka import Consumer, KafkaException, Message

from benchmarks.peers.work import Clock, Task, blocking, read_task, stay

BATCH: Final = 1000
Parse = Callable[[bytes], object]


def bare(task: Task, consumer: Consumer, parse: Parse) -> None:
    """Handle all, commit once."""
    clock = Clock(task)
    # Counted by batch: a call for each record would cost this loop a tenth of its speed.
    handle = None if task.handler == "none" else blocking(task.handler)
    seen, begun = 0, False
    while seen < task.records:
        for message in consumer.consume(BATCH, 1.0):
            parse(_read(message))
            seen += 1
            if handle is not None:
                handle()
            if not begun and seen >= task.warm:
                begun = True
                clock.begin()
    consumer.commit(asynchronous=False)
    clock.handled(committed=True)


def commit_each(task: Task, consumer: Consumer) -> None:
    """Handle one, commit it, take the next."""
    clock = Clock(task)
    handle = blocking(task.handler)
    for number in range(1, task.records + 1):
        while (message := consumer.poll(1.0)) is None:
            time.sleep(0)
        json.loads(_read(message))
        handle()
        consumer.commit(message=message, asynchronous=False)
        if number == task.warm:
            clock.begin()
    clock.handled(committed=True)


def _read(message: Message) -> bytes:
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    message.key()
    message.headers()
    value = message.value()
    assert value is not None
    return value


def main() -> None:
    """Do one task."""
    task = read_task()
    consumer = Consumer(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": task.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([task.topic])
    if task.subject == "commit-each":
        commit_each(task, consumer)
    else:
        bare(task, consumer, json.loads if task.subject == "bare-json" else msgspec.json.decode)
    stay()


if __name__ == "__main__":
    main()
