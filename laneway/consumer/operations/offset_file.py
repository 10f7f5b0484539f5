"""The file of `offsets export` and `offsets reset --from-file`: a group's offsets, topic by topic.

A topic that was made anew since has other records at the same offsets, so each line carries the id of its
topic, and a file is not taken for another one.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from laneway.consumer.kafka.cluster import Partition
from laneway.errors import LanewayError, RefusedError, UsageError

SCHEMA: Final = 1
KIND: Final = "offsets.export"
MAX_FILE_BYTES: Final = 64 << 20


class _Line(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int | None
    topic_id: str = ""


class _Document(msgspec.Struct, frozen=True):
    schema: int
    kind: str
    group: str
    cluster_id: str
    items: list[_Line]


_decode: Final = msgspec.json.Decoder(_Document).decode
_decode_kind: Final = msgspec.json.Decoder(dict[str, object]).decode


@dataclass(frozen=True, slots=True)
class OffsetFile:
    """What a file says.

    Attributes:
        offsets: by partition; None where nothing was committed when it was written.
        topic_ids: by topic; "" where the cluster did not tell.
    """

    path: Path
    group: str
    cluster_id: str
    offsets: Mapping[Partition, int | None]
    topic_ids: Mapping[str, str]

    def refuse_others(self, group: str, cluster_id: str, topic_ids: Mapping[str, str]) -> None:
        """Refuse offsets of another group or cluster, and of topics that were made anew.

        Raises:
            RefusedError: they are.
        """
        where = f"--from-file {self.path}"
        if self.group != group:
            raise RefusedError(
                f"these are offsets of group {self.group!r}, not of {group!r}", where=where, mend="check -g"
            )
        if self.cluster_id != cluster_id:
            raise RefusedError(
                f"these are offsets of cluster {self.cluster_id}, and this is {cluster_id}",
                where=where,
                mend="check -b",
            )
        for topic, was in self.topic_ids.items():
            now = topic_ids.get(topic, was)
            if was and now and was != now:
                raise RefusedError(
                    f"topic {topic} was made anew since (id {was}, now {now}): other records stand at these "
                    "offsets",
                    where=where,
                )


def read(path: Path) -> OffsetFile:
    """Read a file.

    Raises:
        UsageError: it is not there, or none of ours.
    """
    where = f"--from-file {path}"
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"it is larger than {MAX_FILE_BYTES >> 20} MiB", where=where)
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"it cannot be read ({error.strerror or error})", where=where) from error
    mend = "`laneway offsets export` writes one"
    try:
        head = _decode_kind(content)
        if head.get("kind") != KIND:
            raise UsageError("this is no file of `offsets export`", where=where, mend=mend)
        if head.get("schema") != SCHEMA:
            raise UsageError(
                f"it has schema {head.get('schema')}, and this release reads {SCHEMA}",
                where=where,
                mend="use the release that wrote it, or export again",
            )
        document = _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"it cannot be understood: {error}", where=where, mend=mend) from error
    offsets: dict[Partition, int | None] = {}
    topic_ids: dict[str, str] = {}
    for line in document.items:
        place = (line.topic, line.partition)
        if place in offsets:
            raise UsageError(f"{line.topic}/{line.partition} stands in it twice", where=where)
        if (line.offset is not None and line.offset < 0) or line.partition < 0:
            raise UsageError(f"{line.topic}/{line.partition} has a negative number", where=where)
        if topic_ids.setdefault(line.topic, line.topic_id) != line.topic_id:
            raise UsageError(f"topic {line.topic} has two ids in it", where=where)
        offsets[place] = line.offset
    return OffsetFile(path, document.group, document.cluster_id, offsets, topic_ids)


def write(path: Path, document: Mapping[str, object]) -> None:
    """Write a document in one go: whoever looks finds the old file or the new one, never half of one.

    Raises:
        LanewayError: it cannot be written; what was there before is there still.
    """
    content = json.dumps(document, indent=2).encode() + b"\n"
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise LanewayError(f"it cannot be written ({error.strerror or error})", where=str(path)) from error
