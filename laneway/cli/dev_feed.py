"""Lines of a file become records of a source topic: which key, which partition, and how fast.

One line is one record value, byte for byte without its end. The key is the sequence key where the
configured envelope can read one, else the effect key, so that what belongs together meets in one
partition. The feeder stays close ahead of the commits: an embedded cluster keeps little.
"""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from laneway.consumer.embedded import KEPT_BYTES, MAX_RECORD_BYTES, PARTITIONS, EmbeddedCluster
from laneway.consumer.rules import envelope_of
from laneway.consumer.settings.model import Settings
from laneway.errors import LanewayError, UsageError
from laneway.lanes.failures import HandlerSignal
from laneway.lanes.record import Channel, Record
from laneway.pipeline import Pipeline

AHEAD_BYTES: Final = KEPT_BYTES // 4
AHEAD_RECORDS: Final = 2000
"""How far ahead of the commits a partition is fed."""

_GZIP: Final = b"\x1f\x8b"


class Feeder:
    """Publishes a file line by line, and remembers which line became which position.

    Attributes:
        published: records handed to the cluster.
        blank: lines without anything in them; they are no records.
        oversized: numbers of lines that are too large for the embedded cluster; they are not published.
        ended: the file, or the limit, was reached.
        begins_with_array: the first line that is not blank begins as a JSON array does.
    """

    def __init__(
        self,
        path: Path,
        cluster: EmbeddedCluster,
        settings: Settings,
        pipeline: Pipeline[object],
        *,
        limit: int | None,
    ) -> None:
        self._source = settings.sources[0]
        self._cluster = cluster
        self._envelope = envelope_of(settings, self._source, pipeline.decode)
        self._limit = limit
        self._lines = numbered_lines(path)
        self._held: tuple[int, bytes, int, bytes | None] | None = None
        self._line_of = [array("Q") for _ in range(PARTITIONS)]
        self._size_of = [array("Q") for _ in range(PARTITIONS)]
        self._settled = [bytearray() for _ in range(PARTITIONS)]
        self._ahead_bytes = [0] * PARTITIONS
        self._ahead = [0] * PARTITIONS
        self.published = 0
        self.blank = 0
        self.oversized: list[int] = []
        self.ended = False
        self.begins_with_array = False

    def feed(self) -> int:
        """Publish as far as there is room; returns how many records that were."""
        before = self.published
        while not self.ended:
            if self._held is None and not self._take_line():
                self._cluster.flush()
                self.ended = True
            elif not self._publish_held():
                break
        return self.published - before

    def settle(self, partition: int, offset: int) -> None:
        """The offset of this record is committed, or need not be waited for."""
        settled = self._settled[partition]
        if not settled[offset]:
            settled[offset] = 1
            self._ahead[partition] -= 1
            self._ahead_bytes[partition] -= self._size_of[partition][offset]

    @property
    def unsettled(self) -> int:
        """Records published and not settled."""
        return sum(self._ahead)

    def line_of(self, partition: int, offset: int) -> int:
        """The number of the line, from 1, that became this position."""
        return self._line_of[partition][offset]

    def _take_line(self) -> bool:
        """Hold the next line that becomes a record; False when there is none."""
        while self._limit is None or self.published < self._limit:
            number, value = next(self._lines, (0, b""))
            if not number:
                return False
            if not value.strip():
                self.blank += 1
                continue
            if not (self.published or self.oversized):
                self.begins_with_array = value.lstrip().startswith(b"[")
            if len(value) > MAX_RECORD_BYTES:
                self.oversized.append(number)
            else:
                key = self._key_of(value)
                partition = (number if key is None else zlib.crc32(key)) % PARTITIONS
                self._held = (number, value, partition, key)
                return True
        return False

    def _key_of(self, value: bytes) -> bytes | None:
        record = Record(Channel.SOURCE, 0, None, value)
        try:
            self._envelope.read(record, self._source, 0)
        except HandlerSignal:
            return None
        text = record.effect_key if record.sequence_key is None else record.sequence_key
        return text.encode("utf-8", "surrogatepass") if text and not record.fault else None

    def _publish_held(self) -> bool:
        assert self._held is not None
        number, value, partition, key = self._held
        size = len(value) + len(key or b"")
        full = self._ahead_bytes[partition] + size > AHEAD_BYTES or self._ahead[partition] >= AHEAD_RECORDS
        if full and self._ahead[partition]:
            return False
        # Nobody else writes here, and the client keeps the order: the next record has the next offset.
        self._line_of[partition].append(number)
        self._size_of[partition].append(size)
        self._settled[partition].append(0)
        self._ahead[partition] += 1
        self._ahead_bytes[partition] += size
        self._cluster.publish(self._source, partition, value, key=key)
        self.published += 1
        self._held = None
        return True


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line of a file, plain or gzipped, without its end; numbered from 1.

    Raises:
        LanewayError: the file cannot be read to its end.
    """
    number = 0
    try:
        with _opened(path) as file:
            for line in file:
                number += 1
                yield number, line.rstrip(b"\r\n")
    except (OSError, EOFError, zlib.error) as error:
        raise LanewayError(
            f"cannot be read ({error})", where=f"{path}, behind line {number}", mend="repair or shorten it"
        ) from error


def _opened(path: Path) -> BinaryIO:
    file = path.open("rb")
    if file.peek(2)[:2] != _GZIP:
        return file
    file.close()
    return cast("BinaryIO", gzip.open(path, "rb"))


def require_identity_in_the_value(settings: Settings) -> None:
    """A line has neither key nor headers, so nothing can be read from there.

    Raises:
        UsageError: the envelope reads one of its fields there.
    """
    envelope = settings.envelope_of(settings.sources[0])
    for name in ("message_id", "effect_key", "sequence_key", "sequence", "version"):
        place = getattr(envelope, name)
        if place is not None and (place == "key" or place.startswith("header:")):
            raise UsageError(
                "a line of a file has no key and no headers: it is the value of a record",
                where=f"envelope.{name} = {place}",
                mend=f"for this run give a place inside the line, such as -X envelope.{name}=json:/{name}",
            )
