"""`laneway demo`: the whole promise, kept under real kill -9, with no service needed."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Annotated, Final

import typer

from laneway.cli import options
from laneway.cli.columns import Column, listed
from laneway.cli.output import Format, emit, say
from laneway.cli.story.stage import Promise
from laneway.cli.story.telling import SCENARIOS, tell_all
from laneway.errors import UsageError

_COLUMNS: Final = (
    # A window has room for three sentences side by side and one word before them, not for whole names.
    Column[Promise]("id", lambda each: each.id, ""),
    Column[Promise]("scenario", lambda each: each.scenario),
    Column[Promise]("promise", lambda each: each.promise),
    Column[Promise]("expected", lambda each: each.expected),
    Column[Promise]("observed", lambda each: each.observed),
    Column[Promise]("ok", lambda each: each.ok),
)
FAILED = 1
INTERRUPTED = 130


def demo(
    output: options.Output = Format.TABLE,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep journals, effects and ledgers in this new directory."),
    ] = None,
) -> None:
    """Show the whole promise on an embedded cluster: no Kafka, no Docker, no Java.

    Real worker processes are killed at the worst moments. What was seen of each promise is read from
    journals, topics, ledgers and effect files. Exit 1 when one of them was not kept.
    """
    try:
        promises = _in_directory(keep)
    except KeyboardInterrupt:
        say("interrupted; every process of the demo has ended")
        raise typer.Exit(INTERRUPTED) from None
    table = listed("demo", _COLUMNS, promises, output)
    emit(dataclasses.replace(table, items="scenarios"), output)
    broken = [each for each in promises if not each.ok]
    for each in broken:
        say(f"NOT KEPT  {each.id}: {each.promise}; expected {each.expected}; observed {each.observed}")
    say(f"{len(SCENARIOS)} scenarios, {len(promises) - len(broken)} of {len(promises)} promises kept")
    if broken:
        raise typer.Exit(FAILED)


def _in_directory(keep: Path | None) -> list[Promise]:
    lock = threading.Lock()

    def tell(sentence: str) -> None:
        with lock:
            say(sentence)

    if keep is not None:
        try:
            keep.mkdir(parents=True)
        except OSError as error:
            raise UsageError(
                f"cannot make this directory ({error.strerror})", where=str(keep), mend="name a new one"
            ) from error
        return tell_all(keep.resolve(), tell)
    directory = Path(tempfile.mkdtemp(prefix="laneway-demo-"))
    try:
        return tell_all(directory, tell)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
