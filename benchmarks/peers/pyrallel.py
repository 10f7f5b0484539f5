"""Pyrallel Consumer: `python -m benchmarks.peers.pyrallel TASK`, in its own environment.

Order by key, commits of what is done without a gap, no memory of what has happened. Its handlers are
coroutines on one event loop, so `sleep-MS` is an awaited sleep here. Settings are its defaults, but for
the number of handlers at the same time where the handler takes any time.
"""

from __future__ import annotations

import asyncio
import json
import logging

from pyrallel_consumer import KafkaConfig, PyrallelConsumer, WorkItem  # type: ignore[import-not-found]

from benchmarks.peers.work import Clock, blocking, millis, read_task


async def run() -> None:
    """Do one task."""
    task = read_task()
    clock = Clock(task)
    waits_s = millis(task.handler) / 1000 if task.handler.startswith(("sleep-", "async-")) else 0.0
    handle = blocking("none" if waits_s else task.handler)

    async def work(item: WorkItem) -> None:
        json.loads(item.payload)
        if waits_s:
            await asyncio.sleep(waits_s)
        else:
            handle()
        clock.done()

    logging.disable(logging.WARNING)
    config = KafkaConfig(BOOTSTRAP_SERVERS=[task.bootstrap], CONSUMER_GROUP=task.group, dlq_enabled=False)
    if waits_s:
        config.parallel_consumer.execution.max_in_flight = task.concurrency
    consumer = PyrallelConsumer(config, work, topic=task.topic)
    await consumer.start()
    await consumer.wait_closed()


if __name__ == "__main__":
    asyncio.run(run())
