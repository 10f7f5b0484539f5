"""Quix Streams: `python -m benchmarks.peers.quix TASK`, in its own environment.

Records of a partition one after another. An effect key that its state knows is passed over; the state has a
changelog topic, and a checkpoint of both is made every 100 ms, at least once. What a person must decide,
retries and gaps are nobody's business here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quixstreams import Application, State  # type: ignore[import-not-found]

from benchmarks.peers.work import Clock, blocking, read_task


def main() -> None:
    """Do one task."""
    task = read_task()
    handle = blocking(task.handler)
    clock = Clock(task)

    def once(value: dict[str, Any], state: State) -> None:
        key = value["effectKey"]
        if state.get(key) is None:
            handle()
            state.set(key, 1)
        clock.done()

    app = Application(
        broker_address=task.bootstrap,
        consumer_group=task.group,
        auto_offset_reset="earliest",
        commit_interval=0.1,
        # Its loop looks at the interval between two polls, and one without records waits this long.
        consumer_poll_timeout=0.05,
        state_dir=Path(task.directory, "state"),
        loglevel="ERROR",
    )
    frame = app.dataframe(app.topic(task.topic, value_deserializer="json"))
    frame.apply(once, stateful=True)
    app.run()


if __name__ == "__main__":
    main()
