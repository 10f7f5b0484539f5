"""The handlers by themselves: `python -m benchmarks.peers.alone TASK`. No Kafka, no record, no promise.

As many at a time as the others have, on threads or on an event loop, one call behind the other: what the
interpreter could do at most, were there nothing else to do.
"""

from __future__ import annotations

import asyncio
import threading
from itertools import count

from benchmarks.peers.work import Clock, Task, blocking, millis, read_task, stay


def on_threads(task: Task, clock: Clock) -> None:
    """Handlers that block."""
    handle = blocking(task.handler)
    calls = count(1)

    def work() -> None:
        while next(calls) <= task.records:
            handle()
            clock.done()

    for _ in range(task.concurrency):
        threading.Thread(target=work, daemon=True).start()
    stay()


async def on_a_loop(task: Task, clock: Clock) -> None:
    """Handlers that await."""
    seconds = millis(task.handler) / 1000
    calls = count(1)

    async def work() -> None:
        while next(calls) <= task.records:
            await asyncio.sleep(seconds)
            clock.done()

    await asyncio.gather(*(work() for _ in range(task.concurrency)))


def main() -> None:
    """Do one task."""
    task = read_task()
    clock = Clock(task, commits=False)
    if task.handler.startswith("async-"):
        asyncio.run(on_a_loop(task, clock))
        stay()
    else:
        on_threads(task, clock)


if __name__ == "__main__":
    main()
