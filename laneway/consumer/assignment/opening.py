"""Opening the ledger of a partition that was just assigned. Off the owner thread.

An opener is handed a partition whose starts and committed offsets are known, and gives back its open
ledger and what a board must know first. `LocalOpener` knows the ledger of this machine only, so it
refuses where that ledger cannot be the one whose offsets the group has committed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Protocol

import msgspec

from laneway.consumer.partition import Partition, reset_line
from laneway.errors import LedgerFormatError, RefusedError
from laneway.lanes.frontier import reopened
from laneway.lanes.record import Channel
from laneway.lanes.view import ChannelMark, Meta, Opening
from laneway.store.port import LedgerStore
from laneway.store.state_dir import StateDir

log = logging.getLogger("laneway")

Opened = tuple[LedgerStore, Opening]


class Opener(Protocol):
    """How the ledger of a partition comes to be open.

    Attributes:
        keeps_open: a ledger that was just let go of may be handed to `open` again, still open.
    """

    @property
    def keeps_open(self) -> bool: ...

    def has_ledger(self, topic: str, number: int) -> bool:
        """Whether a ledger of this source partition was ever begun. Asked on the owner thread."""
        ...

    def open(self, partition: Partition, kept: LedgerStore | None) -> Opened:
        """Open the ledger, off the owner thread. May take long; ends early once the partition is CLOSED.

        Args:
            kept: the ledger of an earlier ownership, still open. It is the opener's from here on.

        Raises:
            LedgerLockedError: somebody still holds it; it is tried again.
            LanewayError: the partition cannot be taken live.
        """
        ...

    def is_store_of(self, partition: Partition, where: str) -> bool:
        """Whether an error that names this place is about the store of this partition."""
        ...

    def found_damaged(self, partition: Partition, error: LedgerFormatError) -> None:
        """The store of a partition was found damaged while it was at work; it is closed by now."""
        ...


class LocalOpener:
    """The ledger is on this machine or nowhere.

    Args:
        writer: this start of the process, for the meta entry of a new ledger.
        accept_empty_ledger: go on although offsets are committed and the ledger is not here.
    """

    # The lock is the only fence here: who has no partition holds none.
    keeps_open = False

    def __init__(self, state_dir: StateDir, *, writer: str, accept_empty_ledger: bool) -> None:
        self._state_dir = state_dir
        self._writer = writer
        self._accept_empty_ledger = accept_empty_ledger

    def has_ledger(self, topic: str, number: int) -> bool:
        """Whether this machine has it."""
        return self._state_dir.exists(topic, number)

    def open(self, partition: Partition, kept: LedgerStore | None) -> Opened:
        """Open, or begin, the ledger of this machine; see `Opener.open`."""
        assert kept is None
        if not self._state_dir.exists(partition.topic, partition.partition):
            self._refuse_empty(partition)
        ledger = self._state_dir.open_store(partition.topic, partition.partition)
        try:
            if ledger.changelog_mark() is not None:
                self._refuse_follower(partition)
                ledger.leave_changelog()
                ledger.sync()
            opening = ledger.opening()
            if opening.meta is None:
                self._refuse_empty(partition)
                # Born before anything is committed: from now on a commit without a ledger means a loss.
                ledger.apply((), self._first_meta(partition), ())
                ledger.sync()
                opening = ledger.opening()
            elif any(start > frontier(opening.meta, channel) for channel, start in partition.starts.items()):
                self._refuse_stale(partition, opening.meta)
                # At once: the next commit would stand beyond a ledger that still knows nothing of it.
                ledger.apply((), _passed_over(opening.meta, partition.starts), ())
                ledger.sync()
                opening = ledger.opening()
        except BaseException:
            ledger.close()
            raise
        return ledger, opening

    def is_store_of(self, partition: Partition, where: str) -> bool:
        """Whether it is the path of its store."""
        return where == str(self._state_dir.store_path(partition.topic, partition.partition))

    def found_damaged(self, partition: Partition, error: LedgerFormatError) -> None:
        """It stays where it is: what can be read of it is all there is."""

    def _refuse_empty(self, partition: Partition) -> None:
        committed = partition.committed[Channel.SOURCE]
        if committed is None or self._accept_empty_ledger:
            return
        if partition.reset is not None and not partition.reset.after_worker:
            return
        raise RefusedError(
            f"the group has committed offset {committed} and its ledger is not in this state directory: "
            "without it nobody knows which effects have happened",
            where=f"{partition}, {self._state_dir.path.resolve()}",
            mend="run on the machine (or volume) that has the ledger; or, if effects may be repeated "
            "and lanes may begin anew, start with --accept-empty-ledger",
        )

    def _refuse_follower(self, partition: Partition) -> None:
        """What happens from here on would be known to this machine only, and its changelog fall behind."""
        if self._accept_empty_ledger:
            return
        raise RefusedError(
            'the ledger has followed a changelog until now, and ledger.replication is "local": what is '
            "settled here would be missing there, and effects could be repeated after a move or a loss of "
            "this disk",
            where=f"{partition}, {self._state_dir.path}",
            mend='write replication = "changelog" (the default); or, if this machine is to keep the ledger '
            "for good, start once with --accept-empty-ledger",
        )

    def _refuse_stale(self, partition: Partition, meta: Meta) -> None:
        """Refuse a ledger that a worker has gone beyond with another one; an operator may go on."""
        if not self._accept_empty_ledger:
            refuse_lost_retries(partition, meta)
        knows, start = frontier(meta, Channel.SOURCE), partition.starts[Channel.SOURCE]
        if start <= knows:
            return
        refuse_gone_unread(partition, meta)
        committed = partition.committed[Channel.SOURCE]
        if not partition.is_worker_commit or self._accept_empty_ledger:
            log.warning(
                "%s: offsets %d to %d are passed over, as %s", partition, knows, start, partition.told_by()
            )
            return
        raise RefusedError(
            f"a worker of the group has committed offset {committed}, and the ledger in this state directory "
            f"ends at {knows}: it is an old one, and nobody here knows which effects have happened since",
            where=f"{partition}, {self._state_dir.path.resolve()}",
            mend="run on the machine (or volume) that has the current ledger; or, if effects may be repeated "
            "and lanes may begin where this ledger ends, start with --accept-empty-ledger",
        )

    def _first_meta(self, partition: Partition) -> Meta:
        marks = {channel: ChannelMark(start) for channel, start in partition.starts.items()}
        return Meta(
            writer=self._writer,
            cycle=0,
            marks=marks,
            open_cases=0,
            parked_bytes=0,
            written_ms=time.time_ns() // 1_000_000,
        )


def refuse_gone_unread(partition: Partition, meta: Meta) -> None:
    """Refuse when the group has no offset, and the log begins behind what the ledger has settled.

    With an offset it is seen before any ledger is opened.
    """
    knows, start = frontier(meta, Channel.SOURCE), partition.starts[Channel.SOURCE]
    if partition.committed[Channel.SOURCE] is not None or start <= knows:
        return
    raise RefusedError(
        f"the ledger has settled up to offset {knows}, the group has no offset any more, and the log "
        f"begins at {start}: {start - knows} positions are gone unread",
        where=str(partition),
        mend="find out what they held; then set the group's offset to the log's start on purpose: "
        f"{reset_line(partition.topic, partition.partition, 'start')}",
    )


def refuse_lost_retries(partition: Partition, meta: Meta) -> None:
    """Refuse when retries were deleted unread: lanes would wait for them for ever, and nobody knew."""
    knows, start = frontier(meta, Channel.RETRY), partition.starts[Channel.RETRY]
    committed = partition.committed[Channel.RETRY]
    if start <= max(knows, committed or 0):
        return
    raise RefusedError(
        f"{start - knows} retries are gone unread: the ledger has settled up to offset {knows}, "
        f"and the log begins at {start}",
        where=f"{partition.names.retry}-{partition.partition}",
        mend="find out who deleted them, and which lanes wait (`laneway lanes list`); those stay held "
        "when you start with --accept-empty-ledger",
    )


def frontier(meta: Meta, channel: Channel) -> int:
    """How far the ledger has settled a channel."""
    mark = meta.marks.get(channel)
    return 0 if mark is None else mark.frontier


def _passed_over(meta: Meta, starts: Mapping[Channel, int]) -> Meta:
    marks = {channel: reopened(start, meta.marks.get(channel)).mark() for channel, start in starts.items()}
    return msgspec.structs.replace(meta, marks={**meta.marks, **marks})
