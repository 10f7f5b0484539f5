"""Reading a ledger while a worker owns it: `LedgerReading` over a RocksDB *secondary*.

A secondary takes no lock, changes nothing of the store's content, and sees every write of the primary
that reached the operating system, synced or not; it never sees half a cycle. It keeps a log of its own in a
temporary directory. When the primary restarts, a secondary goes stale without a word; `refresh`
notices by the store's CURRENT file and opens anew.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from laneway.errors import LedgerError
from laneway.store import rocks
from laneway.store.ledger import LedgerReads
from laneway.store.port import StoreIdentity

# A primary that opens, flushes or compacts at this moment may take files away under an opening.
_TRIES: Final = 5
_PAUSE_S: Final = 0.01


class LedgerReader(LedgerReads):
    """A read-only view as of the last `refresh`. Use as a context manager, or call `close`."""

    def __init__(self, path: Path) -> None:
        """Open the store at `path`.

        Raises:
            LedgerError: there is none; nothing is made.
            StateDirError: its format is unknown to this release.
            LedgerFormatError: it is damaged.
        """
        self._path = path
        self._scratch = Path(tempfile.mkdtemp(prefix="laneway-reader-"))
        try:
            self._generation, store = self._open()
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        super().__init__(store)
        try:
            self.owner: StoreIdentity | None = self.identity()
        except BaseException:
            self.close()
            raise

    def refresh(self) -> None:
        """Take in what the owner wrote since; open anew when the owner restarted.

        Raises:
            LedgerError: the store is gone or cannot be read; the old view stays.
        """
        if rocks.generation(self._path) == self._generation:
            try:
                self._store.catch_up()
            except LedgerError:
                pass  # files went away while it caught up: opening anew tells whether that is all
            else:
                return
        generation, store = self._open()
        stale, self._store, self._generation = self._store, store, generation
        stale.close()
        self.owner = self.identity()

    def close(self) -> None:
        """Let go of the files and of the temporary directory."""
        self._store.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> LedgerReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> tuple[tuple[int, int, int], rocks.Rocks]:
        for left in reversed(range(_TRIES)):
            # Taken first: a restart in between is then seen by the next refresh.
            generation = rocks.generation(self._path)
            try:
                scratch = Path(tempfile.mkdtemp(dir=self._scratch))
                return generation, rocks.open_secondary(self._path, scratch)
            except LedgerError:
                if left == 0 or not rocks.exists(self._path):
                    raise
                time.sleep(_PAUSE_S)
        raise AssertionError("the last try returns or raises")
