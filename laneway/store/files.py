"""Directories and files that only this user may read, written whole or not at all.

Nothing here knows about ledgers.

Who may read. Directories are 0700, so nobody else reaches a file in them whatever its mode. RocksDB
itself opens files with mode 0644, at any time and from threads of its own, so a umask set and reset
around a call would race with it and with everybody else's files. A *default ACL* on the directory is
inherited by all that is made below and takes part in no race: new files come out 0600 and the files
of the team's handlers keep the modes they ask for. Where the file system knows no ACLs, the umask of
the process is set to 077, once, when the state directory is claimed, and stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Final

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600

# Version 2 of the ACL attribute, then (tag, permissions, id): owner rwx, group and others nothing.
_OWNER_ONLY: Final = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, mode, 0xFFFFFFFF) for tag, mode in ((0x01, 7), (0x04, 0), (0x20, 0))
)


def make_private_dir(path: Path) -> None:
    """Make `path` and its missing parents, 0700, with their names on the disk. There already: fine."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_private_dir(path.parent)
    with contextlib.suppress(FileExistsError):  # another worker of the group was faster
        path.mkdir(mode=DIRECTORY_MODE)
    sync_dir(path.parent)


def keep_private(path: Path) -> None:
    """See to it that files made below this directory from now on, by any thread, are 0600."""
    try:
        os.setxattr(path, "system.posix_acl_default", _OWNER_ONLY)
    except (OSError, AttributeError):  # the file system, or the system, has no such attribute
        os.umask(0o077)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a reader, and a reopening after a crash, sees all of it or nothing."""
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    sync_dir(path.parent)


def sync_dir(path: Path) -> None:
    """Bring the names in a directory to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def free_bytes(path: Path) -> int:
    """Bytes an unprivileged process may still write where `path` is, or will be."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def tree_bytes(path: Path) -> int:
    """Size of the files directly in a directory; files that vanish meanwhile count nothing."""
    total = 0
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(path):
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    return total
