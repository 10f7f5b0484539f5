"""The `laneway` command: how an error becomes a message and an exit code.

Which commands there are stands in `commands`. They raise `LanewayError`s and return; only `main` writes
them to standard error and knows exit codes:
0 ok · 1 failed or declined · 2 usage, configuration, import · 3 unreachable or unauthorised ·
4 refused precondition · 5 incomplete · 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import NoReturn

import typer

from laneway.cli.output import say
from laneway.cli.root import new_app
from laneway.errors import LanewayError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        _app_of(words)(args=words, prog_name="laneway")
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else 0 if done.code is None else 1
    except LanewayError as error:
        say(f"laneway: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception:  # noqa: BLE001 - the last resort of the program: a bug, told whole
        traceback.print_exc()
        return 1
    return 0


def _app_of(words: Sequence[str]) -> typer.Typer:
    """A worker loads nothing of what people ask with: it is there sooner, and smaller."""
    if words[:1] == ["run"]:
        return new_app()
    from laneway.cli.commands import app  # noqa: PLC0415

    return app


def leave(code: int) -> NoReturn:
    """End the process with an exit code.

    A thread that is stuck (in a handler, a disk, a broker) is killed by the interpreter's end wherever it
    stands, and killed inside a library that is not written in Python it takes the process down with
    SIGABRT. With such a thread left, the process ends without that end.
    """
    if any(thread.name.startswith("laneway-") for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def console() -> NoReturn:
    """The `laneway` command."""
    leave(main())


if __name__ == "__main__":
    console()
