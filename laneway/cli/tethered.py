"""A worker process that ends with the process that started it: what `demo`, `dev` and `--processes` run.

    python -m laneway.cli.tethered run APP -c laneway.toml --journal PATH
    python -m laneway.cli.tethered --nothing-kept run APP -c laneway.toml --journal PATH
    python -m laneway.cli.tethered --crash-after STEP EFFECT_KEY run APP -c laneway.toml --journal PATH

The first is `laneway run`, nothing else; the second names no command that would look into topics which
are gone with it. The third is the same worker with a crash point armed, and
the only place outside the tests where one is: it kills itself, as kill -9 does, behind the first STEP of
a settling cycle that comes after the journal holds `result_saved` of EFFECT_KEY.

The tether is standard input: a pipe whose other end only the parent has. When the parent is gone, in
whatever way, the pipe ends, and so does this process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from laneway.app import load_app
from laneway.cli.child import read_journal
from laneway.cli.main import leave
from laneway.cli.main import main as laneway
from laneway.consumer import notices
from laneway.consumer.settings.load import load
from laneway.consumer.settler import CrashPoint
from laneway.consumer.start import build_worker

CRASH_AFTER: Final = "--crash-after"
NOTHING_KEPT: Final = "--nothing-kept"
UNTETHERED: Final = 3


def main(arguments: Sequence[str]) -> int:
    """Tie this process to its parent, then run the worker until it stops or is stopped."""
    threading.Thread(target=_end_with_the_parent, name="laneway-tether", daemon=True).start()
    if arguments[0] == CRASH_AFTER:
        _, step, effect_key, _, app, _, config, _, journal = arguments
        return _run_armed(app, Path(config), Path(journal), step, effect_key)
    if arguments[0] == NOTHING_KEPT:
        notices.log.addFilter(without_next_step)
        arguments = arguments[1:]
    return laneway(arguments)


def without_next_step(record: logging.LogRecord) -> bool:
    """Take the next step off a message: a filter that lets every record through."""
    record.msg = record.getMessage().removesuffix(getattr(record, notices.NEXT_STEP, ""))
    record.args = ()
    return True


def _end_with_the_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(UNTETHERED)


def _run_armed(app: str, config: Path, journal: Path, step: str, effect_key: str) -> int:
    settings = load(config, flags={"journal.path": str(journal)}).settings
    worker = build_worker(settings, load_app(app), crash_point=_after(step, effect_key, journal))
    signal.signal(signal.SIGTERM, lambda *_: worker.request_stop())
    worker.run()
    return 0


def _after(step: str, effect_key: str, journal: Path) -> CrashPoint:
    def at(name: str) -> None:
        # The journal was flushed by the step itself, so it tells of this very cycle.
        if name == step and any(
            line["event"] == "result_saved" and line["effectKey"] == effect_key
            for line in read_journal(journal)
        ):
            os.kill(os.getpid(), signal.SIGKILL)

    return at


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
