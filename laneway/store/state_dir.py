"""The state directory of one group on one cluster: whose it is, and where each store lives.

    PATH/laneway.json                   the marker: format, group, cluster
    PATH/.claim.lock                    held for the moment of claiming
    PATH/stores/TOPIC/PARTITION/        one RocksDB each

The worker processes of a group share it; what two of them must not share, a partition, is fenced by
the lock of its store, not here.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from laneway.errors import LedgerFormatError, StateDirError, TopicError
from laneway.store import codec, rocks
from laneway.store.files import DIRECTORY_MODE, FILE_MODE, keep_private, make_private_dir, write_whole
from laneway.store.ledger import Ledger
from laneway.store.port import StoreIdentity
from laneway.store.reader import LedgerReader

_MARKER: Final = "laneway.json"
_LOCK: Final = ".claim.lock"
_STORES: Final = "stores"
# What Kafka allows; "." and ".." it refuses, and here they would lead out of the directory.
_TOPIC: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}", re.ASCII)
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class _Marker(msgspec.Struct, frozen=True):
    format: int
    group: str
    cluster_id: str


class StateDir:
    """A claimed (or inspected) state directory. Holds no file open."""

    def __init__(
        self, path: Path, group: str, cluster_id: str, topic_ids: Mapping[str, tuple[str, str]] | None = None
    ) -> None:
        self.path = path
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
                    write_whole(path / _MARKER, _encode(group, cluster_id))
                else:
                    _compare(path, marker, group, cluster_id)
            make_private_dir(path / _STORES)
            keep_private(path / _STORES)
        except OSError as error:
            raise StateDirError(
                f"the state directory cannot be used ({error.strerror or error})",
                where=str(path),
                mend="name a directory that this user may write, in state_dir",
            ) from error
        return cls(path, group, cluster_id, topic_ids)

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
        return cls(path, marker.group, marker.cluster_id)

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
        topic_id, retry_id = self._topic_ids.get(topic, ("", ""))
        identity = StoreIdentity(self.group, topic, partition, topic_id, retry_id)
        return Ledger.open(self.store_path(topic, partition), identity)

    def read_store(self, topic: str, partition: int) -> LedgerReader:
        """Read the ledger of a source partition beside its owner; see `LedgerReader`."""
        return LedgerReader(self.store_path(topic, partition))


@contextmanager
def _claiming(path: Path) -> Iterator[None]:
    """One claim at a time, across processes and threads. The lock goes with its holder."""
    handle = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _encode(group: str, cluster_id: str) -> bytes:
    return msgspec.json.encode(_Marker(codec.FORMAT, group, cluster_id)) + b"\n"


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
