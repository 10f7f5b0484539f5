"""`laneway run` with one crash point armed: it kills or freezes itself behind the n-th time of a step.

python -m tests.broker.crashing_worker APP laneway.toml STEP:N[:settling][:freeze]
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from laneway.app import load_app
from laneway.consumer.settings.load import load
from laneway.consumer.start import build_worker
from laneway.consumer.worker import Worker


class Crash:
    """Kills or freezes this process, with SIGKILL or SIGSTOP, when the step is done for the given time."""

    def __init__(self, where: str) -> None:
        self._step, number, *how = where.split(":")
        self._left = int(number)
        self._only_settling = "settling" in how
        self._signal = signal.SIGSTOP if "freeze" in how else signal.SIGKILL
        self.worker: Worker | None = None

    def __call__(self, step: str) -> None:
        """The crash point of the settler."""
        if step != self._step or (self._only_settling and not self._settles()):
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._signal)

    def _settles(self) -> bool:
        # The crash point is told the step alone; what the cycle holds is nobody else's business.
        cycle = self.worker._settler._cycle if self.worker is not None else None
        return cycle is not None and any(part.cut and part.cut.settlements for part in cycle.parts)


def main(app: str, config: str, where: str) -> None:
    """Run the worker until it kills itself, or is told to stop."""
    # As `laneway run` does: tests read there which partitions are live.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-8s %(message)s")
    crash = Crash(where)
    worker = build_worker(load(Path(config)).settings, load_app(app), crash_point=crash)
    crash.worker = worker
    signal.signal(signal.SIGTERM, lambda *_: worker.request_stop())
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
