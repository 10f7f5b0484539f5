"""Worker processes of a command that runs its own: started, watched, signalled, ended with it.

The parent's side; `tethered.py` is the child's. Settings travel as a laneway.toml in the child's
directory, the journal comes back as a file or through a pipe, what it says to people lands in a file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from laneway.consumer.settings.model import NO_PLACE, Settings

STDERR_TAIL_LINES: Final = 20
_GONE_S: Final = 10.0
_HEARD_DRAIN_S: Final = 5
"""Who watches a worker, of which nothing is kept, wants it to end soon after Ctrl+C."""


class Child:
    """One worker process. Use as a context manager: it never outlives the `with` block.

    Args:
        app: as `laneway run` takes it.
        directory: where its laneway.toml lies, and its journal and worker.stderr will.
        journal: a file name, or "-" to read it from `stdout`.
        cwd: where it runs; None is the directory.
        is_heard: what it says to people goes to our own standard error, not to worker.stderr; it then says
            only what is a warning or worse, names no command to look further, as nothing of it is kept, and
            does not wait long for handlers when it ends.
        crash_after: (step, effect key): see `tethered`.
    """

    def __init__(
        self,
        app: str,
        directory: Path,
        *,
        journal: str,
        cwd: Path | None = None,
        is_heard: bool = False,
        crash_after: tuple[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.journal_path = directory / journal
        told = str(self.journal_path) if journal != "-" else journal
        command = ["run", app, "-c", str(directory / "laneway.toml"), "--journal", told]
        if is_heard:
            command = ["--nothing-kept", *command, "--quiet", "--drain-timeout", str(_HEARD_DRAIN_S)]
        if crash_after is not None:
            command = ["--crash-after", *crash_after, *command]
        with (directory / "worker.stderr").open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "laneway.cli.tethered", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if journal == "-" else subprocess.DEVNULL,
                stderr=None if is_heard else stderr,
                cwd=cwd or directory,
                env=_environment(),
                # Ctrl+C is for the parent, which ends its children itself.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def stdout(self) -> IO[bytes]:
        """The journal of a child that was started with "-"."""
        assert self._process.stdout is not None, "its journal goes to a file"
        return self._process.stdout

    def exit_code(self) -> int | None:
        """None while it runs; -9 after a kill."""
        return self._process.poll()

    def interrupt(self) -> None:
        """What Ctrl+C does to `laneway run`."""
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """What an orchestrator does."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Kill it if it runs, and see it gone. Safe from any thread, and more than once."""
        self._process.kill()
        self._process.wait(_GONE_S)

    def last_words(self) -> str:
        """The end of what it said to people."""
        path = self.directory / "worker.stderr"
        return "\n".join(path.read_text(errors="replace").splitlines()[-STDERR_TAIL_LINES:])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The lines of a journal so far; one that is being written at this moment is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines() if line]


def _environment() -> dict[str, str]:
    """Ours without what would configure a worker: it obeys the file beside it alone."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}


# --- settings as a file --------------------------------------------------------------------------


def write_settings(settings: Settings, directory: Path) -> Path:
    """Write a laneway.toml that a worker reads as these very settings."""
    path = directory / "laneway.toml"
    path.write_text("\n".join(_lines((), _tables(settings))) + "\n", encoding="utf-8")
    # It may hold what somebody wrote under [kafka].
    path.chmod(0o600)
    return path


def _tables(settings: Settings) -> dict[str, Any]:
    tables = settings.model_dump(mode="json", by_alias=True)
    # JSON has null where the file has either nothing or the word that switches a place off.
    for envelope in (tables["envelope"], *(own["envelope"] for own in tables["source"].values())):
        envelope.update({name: NO_PLACE for name, place in envelope.items() if place is None})
        if envelope["sequence_key"] == NO_PLACE:
            del envelope["sequence"]
    return tables


def _lines(prefix: tuple[str, ...], table: Mapping[str, Any]) -> list[str]:
    lines = [f"[{'.'.join(json.dumps(name) for name in prefix)}]"] if prefix else []
    # Strings, numbers, booleans and arrays are written in TOML as in JSON.
    lines += [
        f"{json.dumps(name)} = {json.dumps(value)}"
        for name, value in table.items()
        if not isinstance(value, Mapping) and value is not None
    ]
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += _lines((*prefix, name), value)
    return lines
