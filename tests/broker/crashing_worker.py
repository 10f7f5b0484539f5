"""`laneway run` with one crash point armed: the process kills itself behind the n-th time of a step.

python -m tests.broker.crashing_worker APP laneway.toml STEP:N
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from laneway.app import load_app
from laneway.consumer.settings_sources import load
from laneway.consumer.start import build_worker


def crash_point(step: str, occurrence: int) -> Callable[[str], None]:
    """Kills this process, as kill -9 does, when the step is done for the given time."""
    left = occurrence

    def at(name: str) -> None:
        nonlocal left
        if name == step:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return at


def main(app: str, config: str, where: str) -> None:
    """Run the worker until it kills itself, or is stopped."""
    step, _, occurrence = where.partition(":")
    worker = build_worker(
        load(Path(config)).settings, load_app(app), crash_point=crash_point(step, int(occurrence or 1))
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.request_stop())
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
