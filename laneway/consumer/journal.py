"""The journal: JSON lines that answer "was the ack before the result?", with one set of fields (S10).

    ts event group topic partition offset messageId effectKey sequenceKey sequence attempt redelivered
    reason resultKey

Position is that of the topic the record was read from: a retry's line names the retry topic. What a
record does not have is null. There is never a payload, a key of the record, a header or a message of a
foreign exception.

Order: callers tell things as they become true, and lines keep that order. `settled` is told once the
ledger holds the outcome, `acked` once all that may be committed is, so `result_saved` stands before
`ack_sent`. (An offset above one that still runs is acked too: the ledger answers for it.)
A parked record gets its `ack_sent` with its own later settlement.

Lines are collected, and reach the operating system together by one write: when `flush` is called, and
whenever a few thousand have come together. A journal that cannot be written (disk full, reader gone) raises
and loses nothing: the lines stay collected, continue where the write broke off, and the worker, which
stops with exit 1, finds ledger and offsets as they were. Standard output is not rotated, and a slow
reader of it slows the worker.

Used by the owner thread only.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import select
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from laneway.errors import ConfigError, LanewayError
from laneway.lanes.record import Channel, Record
from laneway.lanes.settlement import Settled, Settlement

# Named for every record: to look up an enum's member costs a dozen times what a global does (Python 3.11).
_SOURCE: Final = Channel.SOURCE
_IN_REVIEW: Final = Settled.IN_REVIEW
_SKIPPED: Final = Settled.SKIPPED

Level = Literal["all", "exceptions", "off"]
Keys = Literal["plain", "hash"]

MAX_BYTES: Final = 256 * 2**20
KEEP_FILES: Final = 5
_MAX_LINES: Final = 4096
_SETTLE_S: Final = 0.05

# The happy path: left out by level `exceptions`.
_COMMON: Final = frozenset({"received", "running", "result_saved", "ack_sent"})

_encoder: Final = msgspec.json.Encoder()

_Told = tuple[str, Record, str, str | None]
"""An event, the record that it is about, its reason and a result key."""


class _Line(msgspec.Struct, rename="camel", gc=False):
    """One line. The order of the fields is the order in the file."""

    ts: str
    event: str
    group: str
    topic: str
    partition: int
    offset: int
    message_id: str | None
    effect_key: str | None
    sequence_key: str | None
    sequence: int | None
    attempt: int
    redelivered: bool
    reason: str | None
    result_key: str | None


class Place(Protocol):
    """Where a record was read: a source partition and the topics that live with it."""

    @property
    def partition(self) -> int:
        """The partition number, the same in all of its topics."""
        ...

    def topic_of(self, channel: Channel) -> str:
        """The topic that positions of this channel belong to."""
        ...


class Journal:
    """Writes the lines of one process. Build it with `open`; `close` writes what is left."""

    def __init__(
        self,
        path: str,
        level: Level,
        keys: Keys,
        group: str,
        *,
        clock: Callable[[], int],
        max_bytes: int,
        keep: int,
        stdout: int,
    ) -> None:
        self._level = level
        self._hash = keys == "hash"
        self._group = group
        self._clock = clock
        self._max_bytes = max_bytes
        self._keep = keep
        self._stdout = stdout
        self._lines: list[_Line] = []
        self._buffer = bytearray()
        self._path = "" if path == "-" else path.replace("{pid}", str(os.getpid()))
        self._fd = -1
        self._second = -1
        self._second_text = ""
        self._half_written = False
        if level != "off":
            self.reopen()
            if self._path and _ends_in_half_a_line(self._path):
                # A process died of a full disk here: keep its last line from swallowing our first one.
                self._buffer += b"\n"

    @classmethod
    def open(
        cls,
        path: str,
        level: Level = "all",
        keys: Keys = "plain",
        group: str = "",
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        max_bytes: int = MAX_BYTES,
        keep: int = KEEP_FILES,
        stdout: int = 1,
    ) -> Journal:
        """Open a journal, appending to what is there.

        Args:
            path: a file, where `{pid}` becomes the process id, or "-" for standard output. Two processes
                may share a file: each batch of lines is one append.
            level: "all", "exceptions" (without received, running, result_saved, ack_sent) or "off".
            keys: "hash" replaces business keys (message id, effect key, sequence key, result key) by a
                short hash, the same for the same key.
            clock: epoch milliseconds.
            max_bytes: a file beyond it is renamed to `path.1`, that one to `path.2`, and so on.
            keep: how many renamed files are kept; at least 1.
            stdout: the descriptor that "-" means; the caller keeps it open.

        Raises:
            ConfigError: the directory is missing, or the file cannot be opened for writing.
        """
        return cls(path, level, keys, group, clock=clock, max_bytes=max_bytes, keep=keep, stdout=stdout)

    # What happens to records

    def received(self, place: Place, records: Iterable[Record]) -> None:
        """Records were read and admitted to the process."""
        if self._level == "all":
            self._tell("received", place, records)

    def running(self, place: Place, records: Iterable[Record]) -> None:
        """Records are about to be handed to the handler; `flush` before it starts."""
        if self._level == "all":
            self._tell("running", place, records)

    def settled(self, place: Place, settlements: Iterable[Settlement]) -> None:
        """Outcomes are in the ledger: the line of each one's end, then its further events."""
        if self._level != "off":
            self._add(place, _ends(settlements, everything=self._level == "all"))

    def acked(self, place: Place, settlements: Iterable[Settlement]) -> None:
        """The broker was told: all that may be committed by now is, and their forwards are published."""
        if self._level == "all":
            self._add(place, (("ack_sent", s.record, "", s.result_key) for s in settlements if s.ends))

    def released(self, place: Place, records: Iterable[Record]) -> None:
        """Parked records left their waiting place and are judged again."""
        if self._level != "off":
            self._tell("released", place, records)

    def refused(self, place: Place, records: Iterable[Record], reason: str) -> None:
        """Completions that came too late or twice were dropped: `completion_refused`."""
        if self._level != "off":
            self._tell("completion_refused", place, records, reason)

    # The file

    def flush(self) -> None:
        """Hand the collected lines to the operating system, by one write.

        Raises:
            LanewayError: the file or pipe does not take them. Nothing is lost: they are still collected.
        """
        if self._lines:
            self._encode_lines()
        buffer = self._buffer
        if not buffer:
            return
        try:
            if self._path and not self._half_written:
                self._rotate_when_full()
            while buffer:
                # More than one round only after a short write: a full disk, or a pipe with no room.
                try:
                    written = os.write(self._fd, buffer)
                except BlockingIOError:
                    select.select([], [self._fd], [], 1.0)
                    continue
                del buffer[:written]
                self._half_written = bool(buffer)
        except OSError as error:
            raise LanewayError(
                f"the journal cannot be written: {_strerror(error)}",
                where=self._path or "standard output",
                mend="make room or mend the reader, then start again; ledger and offsets are intact",
            ) from error

    def reopen(self) -> None:
        """Open the path again, after something else has moved the file away.

        Raises:
            ConfigError: the file cannot be opened for writing.
        """
        if not self._path:
            self._fd = self._stdout
            return
        try:
            # Business keys can be personal data: for the owner's eyes only.
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            fd = os.open(self._path, flags, 0o600)
        except FileNotFoundError as error:
            raise ConfigError(
                "the directory of the journal does not exist",
                where=f"journal.path = {self._path}",
                mend=f"mkdir -p {Path(self._path).parent}",
            ) from error
        except OSError as error:
            raise ConfigError(
                f"the journal cannot be opened: {_strerror(error)}",
                where=f"journal.path = {self._path}",
                mend="name a file that this user may write, or '-' for standard output",
            ) from error
        # The old one is closed last: a number of a closed file could be anybody's by the next write.
        self._close_file()
        self._fd = fd

    def close(self) -> None:
        """Write what is left and close the file.

        Raises:
            LanewayError: as `flush`; the file is closed all the same.
        """
        try:
            self.flush()
        finally:
            self._close_file()
            self._level = "off"

    def _close_file(self) -> None:
        if self._path and self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _rotate_when_full(self) -> None:
        status = os.fstat(self._fd)
        if status.st_size < self._max_bytes or not stat.S_ISREG(status.st_mode):
            return
        # The lock is on the file itself: of two processes that share it, one renames, both reopen.
        # Never waited for: a process that is stopped with the lock in hand must not stop the others.
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if _is_still_at(self._path, status):
            for number in range(self._keep, 0, -1):
                older = f"{self._path}.{number - 1}" if number > 1 else self._path
                if os.path.exists(older):
                    os.replace(older, f"{self._path}.{number}")
        self.reopen()

    # The lines

    def _tell(self, event: str, place: Place, records: Iterable[Record], reason: str = "") -> None:
        self._add(place, ((event, record, reason, None) for record in records))

    def _add(self, place: Place, told: Iterable[_Told]) -> None:
        # Four lines for each record pass here, so what is the same for all of them is asked once.
        ts, group, partition, hashes = self._now(), self._group, place.partition, self._hash
        channel, topic = _SOURCE, place.topic_of(_SOURCE)
        lines = self._lines
        for event, record, reason, result in told:
            if record.channel is not channel:
                channel, topic = record.channel, place.topic_of(record.channel)
            message_id, effect_key, sequence_key = record.message_id, record.effect_key, record.sequence_key
            if hashes:
                message_id = message_id and _hashed(message_id)
                effect_key = effect_key and _hashed(effect_key)
                sequence_key = None if sequence_key is None else _hashed(sequence_key)
            lines.append(
                _Line(
                    ts,
                    event,
                    group,
                    topic,
                    partition,
                    record.offset,
                    message_id or None,
                    effect_key or None,
                    sequence_key,
                    None if sequence_key is None else record.sequence,
                    record.attempt,
                    record.redelivered,
                    reason or None,
                    # It is mostly made of the effect key.
                    _hashed(result) if hashes and result is not None else result,
                )
            )
        if len(lines) >= _MAX_LINES:
            self.flush()

    def _encode_lines(self) -> None:
        try:
            text = _encoder.encode_lines(self._lines)
        except UnicodeEncodeError:
            text = _encoder.encode_lines([_encodable(line) for line in self._lines])
        self._buffer += text
        self._lines.clear()

    def _now(self) -> str:
        """UTC, ISO 8601 with milliseconds."""
        second, ms = divmod(self._clock(), 1000)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{ms:03d}Z"


def _ends(settlements: Iterable[Settlement], *, everything: bool) -> Iterator[_Told]:
    """How deliveries ended, each with what came of it besides."""
    for settlement in settlements:
        how = settlement.how
        if how is not _IN_REVIEW and how is not _SKIPPED:
            event = how._value_
            if everything or event not in _COMMON:
                yield event, settlement.record, settlement.reason, settlement.result_key
        for event, reason in settlement.events:
            yield event, settlement.record, reason, None


def _hashed(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _encodable(line: _Line) -> _Line:
    """The line with every lone surrogate made visible: those have no UTF-8."""
    texts = {name: text for name in line.__struct_fields__ if isinstance(text := getattr(line, name), str)}
    return msgspec.structs.replace(
        line, **{name: text.encode("utf-8", "backslashreplace").decode() for name, text in texts.items()}
    )


def _ends_in_half_a_line(path: str) -> bool:
    """True when the last line was left unfinished, and not when somebody is just writing it."""
    # A pipe is not opened for reading: it would count as a reader.
    if not Path(path).is_file():
        return False
    size_before = -1
    while True:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if not size or os.pread(file.fileno(), 1, size - 1) == b"\n":
                    return False
        except (FileNotFoundError, PermissionError):
            return False  # renamed meanwhile, or a file that may be written and not read
        if size == size_before:
            return True
        size_before = size
        time.sleep(_SETTLE_S)


def _strerror(error: OSError) -> str:
    return os.strerror(error.errno or 0).lower()


def _is_still_at(path: str, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.stat(path), status)
    except FileNotFoundError:
        return False
