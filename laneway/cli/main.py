"""The `laneway` command: its parts, and how an error becomes a message and an exit code.

Each group of commands is a Typer app in a file of its own, registered below. Commands raise
`LanewayError`s and return; only `main` writes them to standard error and knows exit codes:
0 ok · 1 failed or declined · 2 usage, configuration, import · 3 unreachable or unauthorised ·
4 refused precondition · 5 incomplete · 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, NoReturn

import typer

from laneway.cli import config, dlq, lanes, ledger, offsets, retry, review, topics
from laneway.cli.demo import demo
from laneway.cli.dev import dev
from laneway.cli.output import say
from laneway.cli.pause import pause, resume
from laneway.cli.preview import preview
from laneway.cli.replay import replay
from laneway.cli.rerun import rerun
from laneway.cli.resolve import resolve
from laneway.cli.run import run
from laneway.errors import LanewayError

INTERRUPTED = 130

app = typer.Typer(
    name="laneway",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    # A traceback with local variables would print payloads and secrets.
    pretty_exceptions_enable=False,
    help="A Kafka consumer for work that must happen in order, once, per business key.",
    epilog="Example: laneway topics check -b localhost:9092 -g reminders --source invoices",
)

# One line per command or group of commands, in the order of `laneway --help`.
app.command(
    name="run",
    epilog="Example: laneway run ./reminders.py:pipeline -c laneway.toml --journal journal.ndjson",
)(run)
app.command(name="demo", epilog="Example: laneway demo")(demo)
app.command(name="dev", epilog="Example: laneway dev ./reminders.py:pipeline records.ndjson.gz --limit 1000")(
    dev
)
app.command(
    name="preview",
    epilog="Example: laneway preview ./reminders.py:pipeline -b localhost:9092 -g reminders "
    "--source invoices",
)(preview)
app.add_typer(offsets.app, name="offsets")
app.add_typer(lanes.app, name="lanes")
app.command(
    name="pause",
    epilog="Example: laneway pause --lane customer-17 --reason 'bad address' -b localhost:9092 -g reminders",
)(pause)
app.command(
    name="resume",
    epilog="Example: laneway resume --lane customer-17 --reason 'corrected' -b localhost:9092 -g reminders",
)(resume)
app.command(
    name="rerun",
    epilog="Example: laneway rerun --from @2026-03-01T06:00Z --to @2026-03-01T07:00Z --reason 'wrong VAT' "
    "-b localhost:9092 -g reminders",
)(rerun)
app.add_typer(retry.app, name="retry")
review.app.command(
    epilog="Example: laneway review resolve sequence-gap-0123456789ab --action skip --reason 'never sent' "
    "-b localhost:9092 -g reminders"
)(resolve)
app.add_typer(review.app, name="review")
dlq.app.command(
    epilog="Example: laneway dlq replay --where reason=invalid-payload --reason 'release 12 reads them' "
    "-b localhost:9092 -g reminders"
)(replay)
app.add_typer(dlq.app, name="dlq")
app.add_typer(ledger.app, name="ledger")
app.add_typer(topics.app, name="topics")
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"laneway {version()}\n")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version."),
    ] = False,
) -> None:
    """Runs before every command; only --version lives here."""


def version() -> str:
    """The installed version."""
    try:
        return metadata.version("laneway")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        app(args=None if argv is None else list(argv), prog_name="laneway")
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
