"""The root of the `laneway` command, and `run`, for which nothing else is loaded.

The other commands are registered in `commands`.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer

from laneway.cli.run import run
from laneway.lanes import board


def new_app() -> typer.Typer:
    """The command with `run` alone."""
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
    app.callback()(_root)
    app.command(
        name="run",
        epilog="Example: laneway run ./reminders.py:pipeline -c laneway.toml --journal journal.ndjson",
    )(run)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        how = "interpreted" if (board.__file__ or "").endswith(".py") else "compiled"
        sys.stdout.write(f"laneway {version()} ({how} rules)\n")
        raise typer.Exit


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
