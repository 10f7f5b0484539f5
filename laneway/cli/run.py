"""`laneway run`: one worker process of the group, until it is told to stop."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from laneway.app import load_app
from laneway.cli import options
from laneway.cli.processes import run_many
from laneway.cli.profile import table_of
from laneway.consumer.interpreter import tune_interpreter
from laneway.consumer.profile import NO_PROFILE, CycleProfile
from laneway.consumer.settings.order import held_orders
from laneway.consumer.start import build_worker
from laneway.consumer.worker import Worker

SECOND_SIGNAL = 1
MOST_PROCESSES = 256
ENDED_AT_ONCE = b"laneway: ended at once; what handlers were running comes again, marked redelivered\n"

_log = logging.getLogger("laneway")


def run(
    app: Annotated[str, typer.Argument(help="module:attr or ./file.py:attr: a Pipeline or a function.")],
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    journal: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where the journal goes; - is standard output.")
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long a stop waits for running handlers.")
    ] = 25.0,
    accept_empty_ledger: Annotated[
        bool,
        typer.Option(
            "--accept-empty-ledger",
            help="Start although offsets are committed and their ledger is not here: effects may repeat.",
        ),
    ] = False,
    processes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=MOST_PROCESSES,
            help="So many workers, each in a process of its own.",
        ),
    ] = 1,
    profile_cycle: Annotated[
        bool,
        typer.Option("--profile-cycle", help="At the end, tell where the CPU time of a record went."),
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Log warnings and errors only.")] = False,
) -> None:
    """Run a handler as one worker of its consumer group.

    SIGTERM or Ctrl+C stops it: what runs is finished and settled first, and the exit code is 0. A second
    signal ends it at once; what was in hand comes again, marked redelivered. Standard output is the
    journal's: what a handler prints goes to standard error.

    With --processes N so many workers run below one parent, share state_dir, and say who they are by [1],
    [2]. They end with the parent. When one ends by itself, the others finish what runs and end too, with its
    exit code: restart the whole. Each takes its number behind instance_id. More than partitions have nothing
    to do.
    """
    _log_to_stderr(logging.WARNING if quiet else logging.INFO)
    signal.signal(signal.SIGTERM, _end_at_once)
    loaded = options.load_settings(
        config,
        sets,
        bootstrap=bootstrap,
        group=group,
        sources=sources,
        flags={"journal.path": journal},
    )
    if processes > 1:
        words = ["run", app, *_words(config, sets, bootstrap, group, sources, journal)]
        words += ["--drain-timeout", str(drain_timeout)]
        words += ["--accept-empty-ledger"] if accept_empty_ledger else []
        words += ["--profile-cycle"] if profile_cycle else []
        words += ["--quiet"] if quiet else []
        raise typer.Exit(run_many(list(_one_each(words, loaded.settings.instance_id, processes))))
    for order in held_orders(loaded):
        _log.log(logging.INFO if order.is_meant else logging.WARNING, "%s", order.text)
    # An application is imported and run: the journal has standard output for itself.
    with _own_stdout() as stdout:
        pipeline = load_app(app)
        profile = CycleProfile() if profile_cycle else None
        worker = build_worker(
            loaded.settings,
            pipeline,
            drain_timeout_s=drain_timeout,
            accept_empty_ledger=accept_empty_ledger,
            stdout=stdout,
            profile=profile or NO_PROFILE,
        )
        _stop_on_signals(worker)
        tune_interpreter()
        try:
            worker.run()
        finally:
            if profile is not None:
                Console(stderr=True).print(table_of(profile))


def _words(
    config: Path | None,
    sets: Sequence[str] | None,
    bootstrap: str | None,
    group: str | None,
    sources: Sequence[str] | None,
    journal: str | None,
) -> Iterator[str]:
    """What was written on the command line, for a worker to read it again."""
    yield from ("-c", str(config)) if config is not None else ()
    for item in sets or ():
        yield from ("-X", item)
    yield from ("-b", bootstrap) if bootstrap is not None else ()
    yield from ("-g", group) if group is not None else ()
    for source in sources or ():
        yield from ("--source", source)
    yield from ("--journal", journal) if journal is not None else ()


def _one_each(words: Sequence[str], instance_id: str | None, count: int) -> Iterator[Sequence[str]]:
    """A command line for each worker. A static member has a name of its own, the same at every start."""
    for number in range(1, count + 1):
        yield words if instance_id is None else [*words, "-X", f"instance_id={instance_id}-{number}"]


def _end_at_once(_number: int, _: FrameType | None) -> None:
    """Before there is a worker there is nothing to finish, and whoever imports may swallow an exception."""
    os._exit(0)


def _stop_on_signals(worker: Worker) -> None:
    stopping = False

    def stop(_number: int, _: FrameType | None) -> None:
        nonlocal stopping
        if stopping:
            # Not through `sys.stderr`: the signal may have come while that is being written to.
            with contextlib.suppress(OSError):
                os.write(2, ENDED_AT_ONCE)
            os._exit(SECOND_SIGNAL)
        stopping = True
        worker.request_stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


@contextlib.contextmanager
def _own_stdout() -> Iterator[int]:
    """Standard output for us alone: what anybody else writes there, a child process too, goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            ours = os.dup(1)
        except OSError:  # it was closed before we began
            yield 1
            return
        try:
            with contextlib.suppress(OSError):  # a closed stderr
                os.dup2(2, 1)
            yield ours
        finally:
            os.dup2(ours, 1)
            os.close(ours)


def _log_to_stderr(level: int) -> None:
    """People read standard error; standard output belongs to the journal."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(message)s"))
    root = logging.getLogger("laneway")
    root.addHandler(handler)
    root.setLevel(level)
    root.propagate = False
