"""RocksDB behind a dozen typed calls on bytes. The boundary to rocksdict: options, opening, errors.

Nothing here knows what the bytes mean. rocksdict is used in raw mode only, raises bare `Exception`
for everything, and has traps; each is dealt with here and nowhere else:

- a live iterator keeps the lock of a closed store: iterators never leave a method, not even in the
  traceback of an error;
- an iterator ends at a damaged block as if at the end: its status is asked before "no more" is believed;
- `close` beside a thread inside `flush_wal` can abort the process: they exclude each other;
- a secondary's try_catch_up_with_primary now and then gets stuck for good beside a busy writer, and
  says nothing; so it is not used, see `reader`;
- a store that is there already is opened with the column family options it was left with, less those
  that have no text form: no shared cache, no filters. So the family is always named, with ours;
- opening for reading makes a missing path: it is looked for first. It also writes rocksdict's own
  `rocksdict-config.json` anew; the content of that file does not matter, raw mode is always named.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NoReturn

import rocksdict

from laneway.errors import LedgerError, LedgerFormatError, LedgerLockedError
from laneway.store.port import Change

BLOCK_CACHE_BYTES: Final = 128 * 1024 * 1024
"""Shared by all stores of the process: data blocks, and every index and bloom filter block."""

MEMTABLES_BYTES: Final = 128 * 1024 * 1024
"""Shared by all stores of the process: unflushed writes. Beyond it the largest are flushed early."""

WRITE_BUFFER_BYTES: Final = 8 * 1024 * 1024
"""Of one store. It is also what a reopening replays at most, three times over."""

BLOOM_BITS_PER_KEY: Final = 10
OPEN_FILES_PER_STORE: Final = 256
"""Tables kept open; 10 million effects are about 70. A store of tens of thousands needs a handful."""
LOG_FILE_BYTES: Final = 1024 * 1024
LOG_FILES: Final = 2

_FAMILY: Final = "default"
_MERGES: Final = ("num-running-compactions", "compaction-pending")
_KEY: Final = itemgetter(0)


class Rocks:
    """One open store.

    Everything but `sync` belongs to one thread at a time. `sync` may run beside any call from
    another thread; `close` waits for it.
    """

    def __init__(self, db: rocksdict.Rdict, path: Path, *, writes: bool) -> None:
        self._db: rocksdict.Rdict | None = db
        self._path = path
        self._writes = writes
        self._syncing = threading.Lock()
        # Whether something was written that is in no log, so that only a flush makes it durable.
        self._unlogged = False

    @property
    def path(self) -> Path:
        """The directory of the store."""
        return self._path

    def get(self, key: bytes) -> bytes | None:
        """One value."""
        try:
            value: bytes | None = self._open().get(key)
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            _raise(error, self._path)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of the keys, in one call into RocksDB."""
        if not keys:
            return []
        try:
            values: Any = self._open().get(list(keys))
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            _raise(error, self._path)
        found: list[bytes | None] = values
        return found

    def put(self, key: bytes, value: bytes) -> None:
        """One unsynced write."""
        try:
            self._open().put(key, value)
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            _raise(error, self._path)

    def write(self, changes: Iterable[Change], *, logged: bool = True) -> None:
        """All changes or none, unsynced; of two changes of one key the later stands.

        Args:
            logged: False spares the write-ahead log. Then a crash of the process, too, forgets what
                was not flushed yet: the last batches, each of them whole.
        """
        batch = rocksdict.WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        # In key order each finds its place from its neighbour: half the time of a large batch, which
        # holds the GIL. The order of the changes of one key stays.
        for key, value in sorted(changes, key=_KEY):
            if value is None:
                delete(key)
            else:
                put(key, value)
        how = None
        if not logged:
            how = rocksdict.WriteOptions()
            how.disable_wal = True  # type: ignore[method-assign, assignment]  # a property, whatever the stub says
            self._unlogged = True
        try:
            self._open().write(batch, how)
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            _raise(error, self._path)

    def scan(self, first: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Entries of [first, end) in key order, at most `limit`."""
        found: list[tuple[bytes, bytes]] = []
        iterator: rocksdict.RdictIter | None = None
        try:
            iterator = self._iterator(end)
            iterator.seek(first)
            while len(found) < limit and iterator.valid():
                found.append((iterator.key(), iterator.value()))
                iterator.next()
            iterator.status()
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            _raise(error, self._path)
        finally:
            del iterator
        return found

    def skip_scan(self, first: bytes, end: bytes, skip: Callable[[bytes], bytes]) -> list[bytes]:
        """The first key of [first, end), then the first at or beyond skip(key), and so on: one seek each."""
        found: list[bytes] = []
        iterator: rocksdict.RdictIter | None = None
        try:
            iterator = self._iterator(end)
            iterator.seek(first)
            while iterator.valid():
                key: bytes = iterator.key()
                found.append(key)
                iterator.seek(skip(key))
            iterator.status()
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            _raise(error, self._path)
        finally:
            del iterator
        return found

    def last_key(self, first: bytes, end: bytes) -> bytes | None:
        """The highest key of [first, end)."""
        key: bytes | None = None
        iterator: rocksdict.RdictIter | None = None
        try:
            iterator = self._iterator(end)
            iterator.seek_to_last()
            if iterator.valid():
                key = iterator.key()
            iterator.status()
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            _raise(error, self._path)
        finally:
            del iterator
        return key if key is not None and key >= first else None

    def sync(self) -> None:
        """All that was written to the disk, outside the GIL. From any thread."""
        with self._syncing:
            try:
                self._make_durable(self._open())
            except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
                _raise(error, self._path)

    def estimated_keys(self) -> int:
        """RocksDB's estimate of the keys stored."""
        try:
            return self._open().property_int_value("rocksdb.estimate-num-keys") or 0
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            _raise(error, self._path)

    def is_merging(self) -> bool:
        """Whether RocksDB merges tables in the background, or is about to: CPU and disk of its own."""
        try:
            asked = (self._open().property_int_value(f"rocksdb.{name}") for name in _MERGES)
            return any(asked)
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            _raise(error, self._path)

    def close(self) -> None:
        """Sync what may be written, then let go of files and lock. Twice is once."""
        with self._syncing:
            db, self._db = self._db, None
            if db is None:
                return
            try:
                try:
                    if self._writes:
                        self._make_durable(db)
                finally:
                    # It flushes too, so behind a full disk it raises what the flush has raised before.
                    db.close()
            except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
                _raise(error, self._path)

    def _make_durable(self, db: rocksdict.Rdict) -> None:
        if self._unlogged:
            # Before the flush: what another thread writes meanwhile is for the next time.
            self._unlogged = False
            try:
                db.flush()
            except BaseException:
                self._unlogged = True
                raise
        db.flush_wal(True)

    def _open(self) -> rocksdict.Rdict:
        if self._db is None:
            raise LedgerError("the ledger is closed", where=str(self._path))
        return self._db

    def _iterator(self, end: bytes) -> rocksdict.RdictIter:
        # Without the bound an iterator runs through the tombstones and entries of what follows.
        bounded = rocksdict.ReadOptions()
        bounded.set_iterate_upper_bound(end)
        return self._open().iter(bounded)


def open_primary(path: Path) -> Rocks:
    """Open for reading and writing, alone. Makes a missing store in an existing directory.

    Raises:
        LedgerLockedError: somebody, perhaps this process, has it open.
        LedgerFormatError: it is damaged.
        LedgerError: the system refused.
    """
    options = _options()
    options.create_if_missing(True)
    options.set_max_open_files(OPEN_FILES_PER_STORE)
    # By default 64 shards, of which each would keep hardly more than one table.
    options.set_table_cache_num_shard_bits(2)
    try:
        db = rocksdict.Rdict(str(path), options, column_families={_FAMILY: options})
        return Rocks(db, path, writes=True)
    except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
        _raise(error, path)


def open_secondary(path: Path, scratch: Path) -> Rocks:
    """Open for reading beside a primary, which notices nothing.

    Args:
        scratch: a directory of its own for RocksDB's log.

    Raises:
        LedgerError: there is no store, or it changed while it was being opened.
        LedgerFormatError: it is damaged.
    """
    if not exists(path):
        raise LedgerError("there is no ledger here", where=str(path), mend="check the state directory")
    options = _options()
    options.create_if_missing(False)
    # Its files must stay open, or the primary's compaction would take them away.
    options.set_max_open_files(-1)
    access = rocksdict.AccessType.secondary(str(scratch))
    try:
        db = rocksdict.Rdict(str(path), options, {_FAMILY: options}, access)
        return Rocks(db, path, writes=False)
    except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
        _raise(error, path)


def exists(path: Path) -> bool:
    """True when a store was made here and got as far as a manifest."""
    return (path / "CURRENT").is_file()


def check_unlocked(path: Path) -> None:
    """Raise when somebody has the store open; whatever else is wrong with it does not matter here.

    Raises:
        LedgerLockedError: some process, perhaps this one, has it.
    """
    if not exists(path):
        return
    # Never by the lock file: to open and close it would drop the lock that this process may hold.
    try:
        open_primary(path).close()
    except LedgerLockedError:
        raise
    except LedgerError:
        return


def layout(path: Path) -> tuple[bytes, int]:
    """Changes whenever a primary opened the store, or a table was added or removed.

    The name of the manifest, and its size: a manifest only grows, by one record for each change.
    """
    try:
        name = (path / "CURRENT").read_bytes()
        return name, (path / name.decode().strip()).stat().st_size
    except (OSError, ValueError):
        return b"", 0


def written(path: Path) -> tuple[tuple[str, int], ...]:
    """Changes whenever something was written to the store's log: its files and their sizes."""
    try:
        return tuple(sorted((log.name, log.stat().st_size) for log in path.glob("*.log")))
    except OSError:  # one of them went away at this moment, which is a change
        return ()


@cache
def _block_cache() -> rocksdict.Cache:
    return rocksdict.Cache(BLOCK_CACHE_BYTES)


@cache
def _memtables() -> rocksdict.WriteBufferManager:
    # Never stall writers: the limit starts flushes, the bound of one store stops its own writes.
    return rocksdict.WriteBufferManager(MEMTABLES_BYTES, allow_stall=False)


def _options() -> rocksdict.Options:
    table = rocksdict.BlockBasedOptions()
    # Whole keys are in the filters (RocksDB's default without a prefix extractor): most effects asked
    # for are new, and a filter answers for them without a read.
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    table.set_block_cache(_block_cache())
    # In the cache they count against its bound; outside they would grow with the keys ever seen.
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_block_size(8 * 1024)
    table.set_format_version(5)
    table.set_checksum_type(rocksdict.ChecksumType.xxh3())

    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_manager(_memtables())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(3)
    # Threads that flush and compact, shared by all stores of the process.
    options.set_max_background_jobs(4)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_bytes_for_level_base(4 * WRITE_BUFFER_BYTES)
    # A build of RocksDB without the right library could not read compressed blocks.
    options.set_compression_type(rocksdict.DBCompressionType.none())
    options.set_paranoid_checks(True)
    # A record cut short at the very end is what a crash leaves, and opens. Any other damage is
    # refused: the default, point in time, would silently forget everything behind it.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_is_fd_close_on_exec(True)
    # RocksDB's own LOG says little and would otherwise be kept a thousand times.
    options.set_max_log_file_size(LOG_FILE_BYTES)
    options.set_keep_log_file_num(LOG_FILES)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_max_manifest_file_size(4 * 1024 * 1024)
    return options


def _raise(error: Exception, path: Path) -> NoReturn:
    """Turn what rocksdict raised into an error of ours. Its texts name files and checksums, no data."""
    if isinstance(error, LedgerError):
        raise error
    text, where = str(error), str(path)
    # Any other trouble with the lock file (NFS without locks) does not end by waiting.
    taken = "While lock file" in text and "Resource temporarily unavailable" in text
    if taken or "lock hold by current process" in text:
        raise LedgerLockedError(
            "the store is in use",
            where=where,
            mend="wait for the worker that has it to let go; it is tried again",
        ) from error
    lost_file = "No such file or directory" in text and exists(path)
    if lost_file or text.startswith("Corruption") or "does not match existing comparator" in text:
        raise LedgerFormatError(
            f"the store is damaged ({text})",
            where=where,
            mend="keep a copy; restore it, or move it aside and start with --accept-empty-ledger "
            "once you know which effects may run again",
        ) from error
    raise LedgerError(
        f"RocksDB refused ({text})",
        where=where,
        mend="check free space, limits on open files, and permissions",
    ) from error
