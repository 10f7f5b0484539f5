"""The state directory of one group on one cluster: whose it is, and where each store lives.

    PATH/laneway.json                   the marker: format, group, cluster, and a random id of its own
    PATH/.claim.lock                    held for the moment of claiming
    PATH/worker-N.lock                  held by the Nth worker process for as long as it lives
    PATH/stores/TOPIC/PARTITION/        one RocksDB each
    PATH/stores/TOPIC/PARTITION.aside-N/    one that was moved aside, with the reason in `laneway-aside.txt`

The worker processes of a group share it; what two of them must not share, a partition, is fenced by
the lock of its store, not here.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from laneway.errors import LedgerFormatError, StateDirError, TopicError
from laneway.store import codec, rocks
from laneway.store.files import (
    DIRECTORY_MODE,
    FILE_MODE,
    keep_private,
    make_private_dir,
    sync_dir,
    write_whole,
)
from laneway.store.ledger import Ledger
from laneway.store.port import StoreIdentity
from laneway.store.reader import LedgerReader

_MARKER: Final = "laneway.json"
_LOCK: Final = ".claim.lock"
_STORES: Final = "stores"
# What Kafka allows; "." and ".." it refuses, and here they would lead out of the directory.
_TOPIC: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}", re.ASCII)
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


_ASIDE: Final = re.compile(r"(0|[1-9][0-9]{0,9})\.aside-([1-9][0-9]*)", re.ASCII)
_WHY: Final = "laneway-aside.txt"

KEPT_ASIDE: Final = 2
"""Stores of one partition that are kept after they were moved aside; older ones are removed."""


class _Marker(msgspec.Struct, frozen=True):
    format: int
    group: str
    cluster_id: str
    state_id: str = ""


class WorkerSlot:
    """The number of a worker process among those that share a state directory; its own while it is held.

    The lock goes with the process, however that ends, and does not pass to the processes it starts.
    """

    def __init__(self, number: int, handle: int) -> None:
        self.number = number
        self._handle: int | None = handle

    def release(self) -> None:
        """Let the next worker have the number. Twice is once."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __enter__(self) -> WorkerSlot:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class StateDir:
    """A claimed (or inspected) state directory. Holds no file open.

    Attributes:
        state_id: drawn when the directory was first claimed, and never changed; "" when a directory is
            only inspected that an older release made.
    """

    def __init__(
        self,
        path: Path,
        group: str,
        cluster_id: str,
        topic_ids: Mapping[str, tuple[str, str]] | None = None,
        state_id: str = "",
    ) -> None:
        self.path = path
        self.state_id = state_id
        self._topic_ids = topic_ids or {}
        self.group = group
        self.cluster_id = cluster_id

    @classmethod
    def claim(
        cls,
        path: Path,
        group: str,
        cluster_id: str,
        topic_ids: Mapping[str, tuple[str, str]] | None = None,
    ) -> StateDir:
        """Make the directory and mark it, or check that it is marked for this group and cluster.

        Safe between processes that claim at the same time. From here on files below `path/stores`
        come out 0600: see `files` for how, and for when the umask of the process is set instead.

        Args:
            topic_ids: by source, the cluster's id of that topic and of its retry topic, where it gives one.

        Raises:
            StateDirError: it is another's, of an unknown format, or holds other things; or the
                system does not let us in. Nothing in it was changed.
        """
        try:
            make_private_dir(path)
            with _claiming(path):
                marker = _read(path)
                if marker is None:
                    _refuse_foreign_content(path)
                    path.chmod(DIRECTORY_MODE)
                    marker = _Marker(codec.FORMAT, group, cluster_id, _new_id())
                    write_whole(path / _MARKER, _encode(marker))
                else:
                    _compare(path, marker, group, cluster_id)
                    if not marker.state_id:
                        marker = msgspec.structs.replace(marker, state_id=_new_id())
                        write_whole(path / _MARKER, _encode(marker))
            make_private_dir(path / _STORES)
            keep_private(path / _STORES)
        except OSError as error:
            raise StateDirError(
                f"the state directory cannot be used ({error.strerror or error})",
                where=str(path),
                mend="name a directory that this user may write, in state_dir",
            ) from error
        return cls(path, group, cluster_id, topic_ids, marker.state_id)

    @classmethod
    def inspect(cls, path: Path) -> StateDir:
        """Look at a directory without claiming, making or changing anything.

        Raises:
            StateDirError: there is no state directory, or its format is unknown.
        """
        try:
            marker = _read(path)
        except OSError as error:
            raise StateDirError(
                f"the state directory cannot be read ({error.strerror or error})",
                where=str(path),
                mend="run as the user of the workers",
            ) from error
        if marker is None:
            raise StateDirError(
                "this is no state directory of Laneway",
                where=str(path),
                mend="name the directory that state_dir names in the workers' laneway.toml",
            )
        return cls(path, marker.group, marker.cluster_id, state_id=marker.state_id)

    def store_path(self, topic: str, partition: int) -> Path:
        """Where the store of a source partition is, or would be.

        Raises:
            TopicError: Kafka has no topic of this name.
        """
        if not _TOPIC.fullmatch(topic) or not _PARTITION.fullmatch(str(partition)):
            raise TopicError(
                "this is not a topic and partition that Kafka can have", where=f"{topic!r} [{partition}]"
            )
        return self.path / _STORES / topic / str(partition)

    def topic_ids(self, topic: str) -> tuple[str, str]:
        """The cluster's ids of a source and of its retry topic, as they were claimed with; "" for none."""
        return self._topic_ids.get(topic, ("", ""))

    def exists(self, topic: str, partition: int) -> bool:
        """True when a store was ever made for this partition; it may still be without a cycle."""
        return rocks.exists(self.store_path(topic, partition))

    def list_stores(self) -> list[tuple[str, int]]:
        """The source partitions that have a store here, sorted."""
        found = [
            (store.parent.name, int(store.name))
            for store in (self.path / _STORES).glob("*/*")
            if _TOPIC.fullmatch(store.parent.name)
            and _PARTITION.fullmatch(store.name)
            and rocks.exists(store)
        ]
        return sorted(found)

    def open_store(self, topic: str, partition: int) -> Ledger:
        """Open, or make, the ledger of a source partition and lock it; see `Ledger.open`."""
        topic_id, retry_id = self.topic_ids(topic)
        identity = StoreIdentity(self.group, topic, partition, topic_id, retry_id)
        return Ledger.open(self.store_path(topic, partition), identity)

    def read_store(self, topic: str, partition: int) -> LedgerReader:
        """Read the ledger of a source partition beside its owner; see `LedgerReader`."""
        return LedgerReader(self.store_path(topic, partition))

    def move_aside(self, topic: str, partition: int, why: str) -> Path:
        """Put the store of a partition out of the way, closed as it must be, and say why beside it.

        The last `KEPT_ASIDE` are kept; an older one is removed.

        Returns:
            Where it is now.

        Raises:
            LedgerLockedError: somebody has it open.
            StateDirError: the system refused.
        """
        store = self.store_path(topic, partition)
        rocks.check_unlocked(store)
        try:
            aside = self._aside(store)
            target = store.with_name(f"{store.name}.aside-{max(aside, default=0) + 1}")
            store.rename(target)
            write_whole(target / _WHY, f"{why}\n".encode())
            sync_dir(store.parent)
            for number in sorted(aside, reverse=True)[KEPT_ASIDE - 1 :]:
                shutil.rmtree(aside[number])
        except OSError as error:
            raise StateDirError(
                f"the store cannot be moved aside ({error.strerror or error})",
                where=str(store),
                mend="move or remove it by hand, with the workers of this state directory stopped",
            ) from error
        return target

    def worker_slot(self) -> WorkerSlot:
        """Take the lowest number that no other worker process on this directory holds.

        Raises:
            StateDirError: the system refused.
        """
        number = 0
        try:
            while True:
                handle = os.open(
                    self.path / f"worker-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE
                )
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(handle)
                    number += 1
                except BaseException:
                    os.close(handle)
                    raise
                else:
                    return WorkerSlot(number, handle)
        except OSError as error:
            raise StateDirError(
                f"the worker cannot take a number ({error.strerror or error})",
                where=str(self.path),
                mend="name a directory on a file system with locks, that this user may write, in state_dir",
            ) from error

    @staticmethod
    def _aside(store: Path) -> dict[int, Path]:
        found = ((_ASIDE.fullmatch(path.name), path) for path in store.parent.iterdir())
        return {int(name[2]): path for name, path in found if name and name[1] == store.name}


def _new_id() -> str:
    # Part of a transactional id: short, and of letters that every tool takes.
    return secrets.token_hex(8)


@contextmanager
def _claiming(path: Path) -> Iterator[None]:
    """One claim at a time, across processes and threads. The lock goes with its holder."""
    handle = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _encode(marker: _Marker) -> bytes:
    return msgspec.json.encode(marker) + b"\n"


def _read(path: Path) -> _Marker | None:
    try:
        data = (path / _MARKER).read_bytes()
    except FileNotFoundError:
        return None
    try:
        codec.marker_format(data, str(path / _MARKER))
        return msgspec.json.decode(data, type=_Marker)
    except (msgspec.DecodeError, UnicodeDecodeError, LedgerFormatError) as error:
        raise StateDirError(
            "the marker of the state directory cannot be read, it is damaged or not ours",
            where=str(path / _MARKER),
            mend="restore it from a copy, or name another directory in state_dir",
        ) from error


def _compare(path: Path, marker: _Marker, group: str, cluster_id: str) -> None:
    for what, theirs, ours in (
        ("group", marker.group, group),
        ("cluster", marker.cluster_id, cluster_id),
    ):
        if theirs != ours:
            raise StateDirError(
                f"the state directory belongs to {what} {theirs!r}, not to {ours!r}",
                where=str(path),
                mend="name another directory in state_dir; each group on each cluster has its own",
            )


def _refuse_foreign_content(path: Path) -> None:
    """A directory without a marker must be empty, but for what mounts and editors leave in one."""
    # "stores" without a marker is a state directory that lost it: guessing whose it was is not safe.
    content = [name for name in os.listdir(path) if not name.startswith(".") and name != "lost+found"]
    if content:
        raise StateDirError(
            f"the directory is not marked as a state directory and is not empty ({len(content)} entries)",
            where=str(path),
            mend="name a new or an empty directory in state_dir",
        )
