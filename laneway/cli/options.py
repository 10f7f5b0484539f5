"""The options that commands share, and what they mean together.

A command takes the typed options it needs and calls `load_settings`; a command that changes
something calls `confirm` before it does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from laneway.cli.output import Format, Table, emit, say
from laneway.consumer.settings.load import Loaded, load
from laneway.errors import UsageError

_CLEAR: Final = "\x1b[H\x1b[2J"

ConfigFile = Annotated[
    Path | None,
    typer.Option("-c", "--config", metavar="FILE", help="Configuration file.  [default: ./laneway.toml]"),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("-X", metavar="KEY=VALUE", help="Set one key, such as -X lanes.workers=8; repeatable."),
]
Bootstrap = Annotated[
    str | None, typer.Option("-b", "--bootstrap", metavar="HOST:PORT", help="Brokers, separated by commas.")
]
GroupId = Annotated[str | None, typer.Option("-g", "--group", metavar="ID", help="Consumer group.")]
Sources = Annotated[
    list[str] | None, typer.Option("--source", metavar="TOPIC", help="Source topic; repeatable.")
]
Output = Annotated[Format, typer.Option("-o", "--output", help="Format of the data on standard output.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do it without asking.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long reading a topic may take.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show at most this many.")]
Watch = Annotated[
    float | None,
    typer.Option("--watch", metavar="SECONDS", min=0.1, help="Print it again every so often, until Ctrl+C."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done and change nothing.")]
KeyOfMany = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Many: those of this sequence or effect key.")
]
AtMost = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Many: at most N, the oldest first.")
]
Rate = Annotated[
    float, typer.Option("--rate", metavar="R", min=0.1, help="Many: at most R commands a second.")
]
ShowDifference = Annotated[
    bool, typer.Option("--show-payload", help="Show the values of a difference too. They may be secret.")
]


def load_settings(
    config: Path | None,
    sets: Sequence[str] | None,
    *,
    bootstrap: str | None = None,
    group: str | None = None,
    sources: Sequence[str] | None = None,
    inspect: bool = False,
    flags: Mapping[str, object] | None = None,
) -> Loaded:
    """The settings these options ask for.

    Args:
        flags: a command's own flags by dotted key; None means not given.
        inspect: for commands that need only `-b` and `-g`; see `settings.load.load`.
    """
    given: dict[str, object] = {
        "bootstrap": bootstrap,
        "group": group,
        "sources": list(sources) if sources else None,
        **(flags or {}),
    }
    return load(config, flags=given, sets=sets or (), inspect=inspect)


def require_sources(loaded: Loaded) -> None:
    """Refuse a command that works on source topics when nobody named one.

    Raises:
        UsageError: neither --source nor a configuration names a source.
    """
    if not loaded.settings.sources:
        raise UsageError("no source topic is named", mend="give --source TOPIC, or -c FILE with sources")


def require_utf8(text: str, what: str) -> None:
    """Refuse a key that no ledger could hold: a shell may hand over any bytes.

    Raises:
        UsageError: it is not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{what} is not UTF-8", mend="give it as the envelope has it") from None


def show(look: Callable[[], Table], form: Format, watch_s: float | None) -> None:
    """Print what `look` sees; with an interval again and again, until the reader has had enough.

    A terminal is cleared for each table, a pipe gets them one after the other. A look that fails ends
    it: what stood there a moment ago must not pass for what is.
    """
    if watch_s is None:
        emit(look(), form)
        return
    try:
        while True:
            table = look()
            if sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            emit(table, form)
            time.sleep(watch_s)
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # The reader, such as `head`, has gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is changed; return only on a yes.

    Raises:
        UsageError: there is no terminal to ask on and no -y.
        typer.Exit: with 1, declined.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"cannot ask: {question}", where="no terminal", mend="give -y to do it unasked")
    if not typer.confirm(question, err=True):
        say("declined, nothing was changed")
        raise typer.Exit(1)
