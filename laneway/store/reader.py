"""Reading a ledger while a worker owns it: `LedgerReading` over a RocksDB *secondary*.

A secondary takes no lock, changes nothing of the store's content, and sees every write of the primary
that reached the operating system, synced or not. It keeps a log of its own in a temporary directory.

What it shows is whole. An opening reads first the list of tables, then the log; were the log turned
into a table in between, the reader would miss what was in it. So an opening counts only if the list
of tables is the same before and after. `refresh` opens anew too, when anything was written: asked to
catch up, a secondary gets stuck now and then, without an error (tests/store/test_reader.py).
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
_TRIES: Final = 20
_PAUSE_S: Final = 0.01

_Seen = tuple[tuple[bytes, int], tuple[tuple[str, int], ...]]


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
            self._seen, store = self._open()
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
        """Take in what the owner wrote since, also when it restarted.

        Raises:
            LedgerError: the store is gone or cannot be read; the old view stays.
        """
        if self._seen == (rocks.layout(self._path), rocks.written(self._path)):
            return
        old = list(self._scratch.iterdir())
        seen, store = self._open()
        stale, self._store, self._seen = self._store, store, seen
        stale.close()
        for scratch in old:
            shutil.rmtree(scratch, ignore_errors=True)
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

    def _open(self) -> tuple[_Seen, rocks.Rocks]:
        problem = LedgerError(
            "it changes faster than it can be read", where=str(self._path), mend="try again"
        )
        for _ in range(_TRIES):
            # Both are taken first: what is written during the opening is then seen by the next refresh.
            before, written = rocks.layout(self._path), rocks.written(self._path)
            scratch = Path(tempfile.mkdtemp(dir=self._scratch))
            try:
                store = rocks.open_secondary(self._path, scratch)
            except LedgerError as error:
                if not rocks.exists(self._path):
                    raise
                problem = error
            else:
                if rocks.layout(self._path) == before:
                    return (before, written), store
                store.close()
            shutil.rmtree(scratch, ignore_errors=True)
            time.sleep(_PAUSE_S)
        raise problem
