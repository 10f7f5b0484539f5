"""A worker in a process of its own: `laneway run`, or the same worker with an armed crash point.

Start it, kill it, stop it, start it again; its settings, journal and standard error stay in one directory
and grow over all its starts. It ends with the test: by its pid when the `with` block is left, and by the
kernel (Linux) when the test process itself is killed. Start it from the main thread only: the kernel
counts the thread that started a process as its parent.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from laneway.consumer import topics
from laneway.consumer.kafka.cluster import Cluster as KafkaAdmin
from laneway.consumer.settings.load import load
from laneway.consumer.settings.model import Settings
from tests.broker.conftest import Names
from tests.broker.kafka import REPOSITORY

DEADLINE_S = 30.0
SESSION_TIMEOUT_MS = 3000
TRANSACTION_TIMEOUT_MS = 3000

# Replaces itself by the worker, after asking the kernel to end it with the test. A launcher, because
# `preexec_fn` is not safe in a process with threads. arguments: parent's pid, command...
_LAUNCHER = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent has gone")
os.execv(command[0], command)
"""

_LIVE = re.compile(r" INFO +(\S+): live from offset ")
_GONE = re.compile(r" INFO +(?:revoked|lost): (.+)")

Table = Mapping[str, Any]


def settings_of(
    bootstrap: str, names: Names, state_dir: Path, group_protocol: str = "classic", **tables: Any
) -> dict[str, Any]:
    """What a laneway.toml of a test holds: nested tables; those given by name are merged in.

    The session is short, so that the partitions of a killed worker move within seconds; under the
    `consumer` protocol the broker decides that. So is a transaction, which a killed worker leaves open.
    """
    settings: dict[str, Any] = {
        "bootstrap": bootstrap,
        "group": names.group,
        "sources": [names.source],
        "state_dir": str(state_dir),
        "group_protocol": group_protocol,
        "ledger": {"replication": "local", "min_free": "1MiB"},
    }
    if group_protocol == "classic":
        settings["kafka"] = {"session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": 300}
    for name, value in tables.items():
        old = settings.get(name)
        settings[name] = {**old, **value} if isinstance(old, dict) else value
    if settings["ledger"]["replication"] == "changelog":
        short = {"transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
        settings["kafka"] = short | settings.get("kafka", {})
    return settings


def create_companions(settings: Table, directory: Path) -> None:
    """Creates the companion topics, as `laneway topics create` does. The source topic must exist."""
    loaded = load_settings(settings, directory)
    with KafkaAdmin(loaded) as admin:
        topics.create(loaded, admin)


def load_settings(settings: Table, directory: Path) -> Settings:
    """The settings as a worker sees them; writes a laneway.toml into the directory."""
    return load(_write_toml(directory / "loaded.toml", settings), env={}).settings


class WorkerEndedError(Exception):
    """The process that a test waits for has ended by itself."""


class WorkerProcess:
    """One worker of the group. Use as a context manager; `start` begins it, again after every end.

    Attributes:
        crash_at: "STEP:N" ends the process by SIGKILL behind the N-th time the settler did that step;
            "STEP:N:settling" counts only cycles that settle something; with ":freeze" behind it the
            process stops itself, as `pause` does. Read at every `start`; None is the plain `laneway run`.
        arguments: appended to the command line of `laneway run`; not for an armed one.
    """

    def __init__(
        self,
        app: str | Path,
        settings: Table,
        *,
        directory: Path,
        name: str = "worker",
        crash_at: str | None = None,
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare it; nothing runs yet.

        Args:
            app: module:attr or a path with :attr, as `laneway run` takes it.
            settings: nested tables of laneway.toml; see `settings_of`.
            directory: where settings, journal and standard error are kept; the working directory too.
            name: tells the workers of one directory apart.
            environment: added to that of the test, whose own LANEWAY_* variables are left out.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.app = str(app)
        self.name = name
        self.crash_at = crash_at
        self.arguments = arguments
        self.directory = directory
        self.config = directory / f"{name}.toml"
        self.stderr_path = directory / f"{name}.stderr"
        self.pids: list[int] = []
        journal = {**settings.get("journal", {}), "path": str(self._journal_path("{pid}"))}
        _write_toml(self.config, {**settings, "journal": journal})
        # What configures Laneway on this machine, or the test suite, must not configure this worker.
        ours = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}
        self._environment = {**ours, "PYTHONFAULTHANDLER": "1", **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._said_before = 0

    def start(self) -> WorkerProcess:
        """Start it; returns at once, long before it has partitions."""
        assert not self.running, f"{self.name} is running"
        if self.crash_at is None:
            laneway = str(Path(sys.executable).with_name("laneway"))
            command = [sys.executable, laneway, "run", self.app, "-c", str(self.config), *self.arguments]
            environment = self._environment
        else:
            driver = [sys.executable, "-m", "tests.broker.crashing_worker"]
            command = [*driver, self.app, str(self.config), self.crash_at]
            path = os.pathsep.join(filter(None, (str(REPOSITORY), self._environment.get("PYTHONPATH"))))
            environment = {**self._environment, "PYTHONPATH": path}
        with self.stderr_path.open("ab") as stderr:
            self._said_before = stderr.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCHER, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                cwd=self.directory,
                env=environment,
            )
        self.pids.append(self._process.pid)
        return self

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process started last."""
        return self.pids[-1]

    def kill(self) -> None:
        """End it as kill -9 does, and wait until it is gone."""
        self._signal(signal.SIGKILL)
        self.wait()

    @property
    def frozen(self) -> bool:
        """Whether it was stopped, by `pause` or by itself, and has not been told to go on."""
        command = ["ps", "-o", "stat=", "-p", str(self.pid)]
        state = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        return state.startswith("T")

    def pause(self) -> None:
        """Freeze it with SIGSTOP: it says nothing more, and its connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on, with SIGCONT."""
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to stop, as an orchestrator does; see `wait`."""
        self._signal(signal.SIGTERM)

    def stop(self, deadline_s: float = DEADLINE_S) -> None:
        """Ask it to stop and see that it ended in order."""
        self.terminate()
        code = self.wait(deadline_s)
        assert code == 0, f"{self.name} ended with {code}:\n{self.stderr()}"

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Its exit code, -9 after a kill; fails when it does not end in time."""
        assert self._process is not None, f"{self.name} was never started"
        try:
            return self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            words = self.last_words()
            raise AssertionError(f"{self.name} did not end in {deadline_s:g} s:\n{words}") from None

    def last_words(self) -> str:
        """End it, and return what it had said to people and what each of its threads was doing."""
        assert self._process is not None, f"{self.name} was never started"
        self._signal(signal.SIGABRT)
        self._signal(signal.SIGCONT)
        self._process.wait(DEADLINE_S)
        return self.stderr()

    def journal(self, pid: int | None = None) -> list[dict[str, Any]]:
        """The journal's lines so far, of one start or of all; a line just being written is left out."""
        lines: list[dict[str, Any]] = []
        for each in self.pids if pid is None else [pid]:
            path = self._journal_path(str(each))
            data = path.read_bytes() if path.exists() else b""
            lines += [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines() if line]
        return lines

    def stderr(self) -> str:
        """What it said to people, over all starts."""
        return self.stderr_path.read_text(errors="replace") if self.stderr_path.exists() else ""

    def said(self) -> str:
        """What the start of it that runs, or ran last, has said to people."""
        if not self.stderr_path.exists():
            return ""
        return self.stderr_path.read_bytes()[self._said_before :].decode(errors="replace")

    def live(self) -> set[str]:
        """The partitions ("topic-number") that this start of it works on, as it says itself.

        Raises:
            WorkerEndedError: it is not running any more; waiting for it would be in vain.
        """
        if not self.running:
            raise WorkerEndedError(f"{self.name} has ended:\n{self.stderr()}")
        live: set[str] = set()
        for line in self.said().splitlines():
            if found := _LIVE.search(line):
                live.add(found[1])
            elif found := _GONE.search(line):
                live -= set(found[1].split(", "))
        return live

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            self.kill()

    def _journal_path(self, pid: str) -> Path:
        return self.directory / f"{self.name}.{pid}.journal.ndjson"

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self.name} was never started"
        self._process.send_signal(number)


def _write_toml(path: Path, settings: Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_toml_lines((), settings)) + "\n", encoding="utf-8")
    return path


def _toml_lines(prefix: tuple[str, ...], table: Table) -> list[str]:
    lines = [f"[{'.'.join(map(_quoted, prefix))}]"] if prefix else []
    lines += [f"{_quoted(name)} = {_quoted(v)}" for name, v in table.items() if not isinstance(v, Mapping)]
    for name, value in table.items():
        if isinstance(value, Mapping):
            lines += _toml_lines((*prefix, name), value)
    return lines


def _quoted(value: object) -> str:
    # JSON's strings, numbers, booleans and arrays are TOML's too.
    return json.dumps(value, ensure_ascii=False)
