"""`laneway run --processes N`: so many workers of one group below one parent.

    parent: starts them ─► hands on signals ─► passes on what they say, line by line ─► ends with them

The parent imports no application and asks no broker. Its workers are ordinary ones, tied to it by their
standard input: they end with it, however it ends. When one of them ends by itself the others are stopped in
order, so that whoever restarts a service restarts all of it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import IO, Final

from laneway.cli.output import say

_CHUNK: Final = 1 << 16
_HEARD_S: Final = 5.0
"""How long the parent waits for the last words of workers that are gone."""
KILLED: Final = 1
_OUT, _ERR = threading.Lock(), threading.Lock()


class _Worker:
    """One worker process, and the threads that pass on what it says."""

    def __init__(self, number: int, words: Sequence[str], ended: queue.SimpleQueue[_Worker]) -> None:
        self.number = number
        self.told = False
        self.process = subprocess.Popen(
            [sys.executable, "-m", "laneway.cli.tethered", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Ctrl+C is for the parent, which hands it on.
            start_new_session=True,
        )
        out, err = self.process.stdout, self.process.stderr
        assert out is not None and err is not None
        prefix = f"[{number}] ".encode()
        self.threads = [
            threading.Thread(target=_pass_on, args=(out, 1, b"", _OUT), daemon=True),
            threading.Thread(target=_pass_on, args=(err, 2, prefix, _ERR), daemon=True),
        ]
        for thread in self.threads:
            thread.start()
        threading.Thread(target=self._await, args=(ended,), daemon=True).start()

    def _await(self, ended: queue.SimpleQueue[_Worker]) -> None:
        self.process.wait()
        ended.put(self)

    def __str__(self) -> str:
        return f"worker {self.number} (process {self.process.pid})"


def run_many(commands: Sequence[Sequence[str]]) -> int:
    """Run a worker for each of these command lines until all have ended. From the main thread.

    Returns:
        The exit code of the first that ended with another one than 0; 1 for one that was killed.
    """
    return _Group().run(commands)


class _Group:
    """The workers of one parent, and whether they were told to stop."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []
        self._told = False
        self._signalled = False

    def run(self, commands: Sequence[Sequence[str]]) -> int:
        ended: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        for number, words in enumerate(commands, 1):
            if not self._told:
                self._workers.append(_Worker(number, words, ended))
        if self._told:
            # It may have come between the start of one and its place in the list.
            self._tell()
        results = [self._ended(ended.get()) for _ in self._workers]
        for worker in self._workers:
            for thread in worker.threads:
                thread.join(_HEARD_S)
        return next(filter(None, results), 0)

    def _on_signal(self, _number: int, _: FrameType | None) -> None:
        if self._signalled:
            for worker in self._workers:
                worker.told = False
        self._signalled = True
        self._tell()

    def _tell(self) -> None:
        """Tell each to stop, once: to a worker a second signal means at once, and only people mean that."""
        self._told = True
        for worker in self._workers:
            if not worker.told:
                worker.told = True
                worker.process.send_signal(signal.SIGTERM)

    def _ended(self, worker: _Worker) -> int:
        result = worker.process.returncode
        if self._told:
            # Told before it could listen: nothing had begun.
            return 0 if result == -signal.SIGTERM else result if result >= 0 else KILLED
        how = f"exit code {result}" if result >= 0 else f"signal {-result}"
        say(f"laneway: {worker} ended by itself, with {how}; the others finish what runs, and end")
        self._tell()
        return result if result >= 0 else KILLED


def _pass_on(pipe: IO[bytes], to: int, prefix: bytes, turn: threading.Lock) -> None:
    """Pass on whole lines: those of several processes must not come to stand inside each other."""
    rest = b""
    # Closed when nobody reads what we write: then the worker hears of it as if it wrote there itself.
    with pipe, contextlib.suppress(OSError):
        while data := os.read(pipe.fileno(), _CHUNK):
            lines, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                _write(to, lines + newline, prefix, turn)
        if rest:
            _write(to, rest + b"\n", prefix, turn)


def _write(to: int, lines: bytes, prefix: bytes, turn: threading.Lock) -> None:
    if prefix:
        lines = b"".join(prefix + line for line in lines.splitlines(keepends=True))
    left = memoryview(lines)
    with turn:
        while left:
            left = left[os.write(to, left) :]
