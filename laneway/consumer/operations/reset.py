"""Setting a group's offsets by hand: where to, whether it may be done, the writing, and the reading back.

Nothing here knows what a ledger will make of it; that is `foreseen`'s business. Offsets are written as a
client that never joins: brokers take that of a group without members only, so a worker that joins between the
last look and the write makes the write fail, not the worker.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

import msgspec

from laneway.consumer.inspection.topics import Marks, extents
from laneway.consumer.kafka.cluster import Committed, Group, Partition, Watermarks
from laneway.consumer.operations.offset_file import OffsetFile
from laneway.consumer.partition import ResetNote, read_reset
from laneway.consumer.settings import values
from laneway.errors import RefusedError, UsageError

AT_REST: Final = frozenset({"empty", "dead"})
MAX_NOTE: Final = 500
"""Characters of a name or a reason that are kept beside an offset; brokers take 4 KiB of metadata."""

_TIME: Final = "2026-11-30T19:00Z"
_NUMBER: Final = re.compile(r"[+-]?\d{1,18}")


class ResetPort(Marks, Protocol):
    """What is asked of a cluster."""

    def group(self, group: str) -> Group | None:
        """State and members; None where the cluster cannot tell."""

    def committed(
        self, group: str, partitions: Sequence[Partition], *, settled: bool = False
    ) -> Mapping[Partition, Committed | None]:
        """Committed offsets with their metadata."""

    def offsets_at(self, partitions: Sequence[Partition], at_ms: int) -> Mapping[Partition, int]:
        """The first offset that is not older; absent where there is none."""

    def commit(self, group: str, offsets: Mapping[Partition, Committed]) -> Mapping[Partition, str]:
        """Set offsets; answers why one was not taken."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Where offsets go.

    Attributes:
        word: start, end, offset, by, time or file.
        number: of `offset` and `by` as it is, of `time` in epoch milliseconds.
    """

    word: str
    number: int = 0
    file: OffsetFile | None = None


def goal_of(text: str, option: str = "--to", *, relative: bool = True) -> Goal:
    """`start`, `end`, `N`, `+N`, `-N` or `@TIME`.

    Args:
        option: where the reader wrote it.
        relative: whether it may be counted from where the group is.

    Raises:
        UsageError: it is none of these.
    """
    if text in {"start", "end"}:
        return Goal(text)
    if _NUMBER.fullmatch(text) and (relative or text[0] not in "+-"):
        return Goal("by" if text[0] in "+-" else "offset", int(text))
    by = ", +N or -N from where it is" if relative else ""
    mend = f"write start, end, an offset{by}, or @{_TIME}"
    if text.startswith("@"):
        try:
            found = values.start_instant(text[1:])
            if isinstance(found, int):
                return Goal("time", found)
        except ValueError:
            if _is_time(text[1:]):
                mend = f"a time needs a zone: @{_TIME}"
    elif _is_time(text):
        mend = f"a time is written @{_TIME}"
    raise UsageError(f"{text!r} is no place in a log", where=option, mend=mend)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Move:
    """One partition that is set.

    Attributes:
        before: what was committed; None where nothing was.
        after_worker: a worker has committed there before, so a ledger has to exist.
        remark: where the goal lay outside the log, "".
        by_worker: it was a worker who committed `before`, so its ledger has settled as much.
    """

    place: Partition
    before: int | None
    after: int
    log: Watermarks
    after_worker: bool
    remark: str = ""
    by_worker: bool = False

    @property
    def origin(self) -> int:
        """Where the group would read on: what it committed, or the start of the log."""
        return self.log.start if self.before is None else min(max(self.before, self.log.start), self.log.end)


def require_at_rest(cluster: ResetPort, group: str) -> None:
    """Refuse while somebody works in the group: its offsets are in its workers' hands.

    Raises:
        RefusedError: it has members, or this cluster does not tell.
    """
    found = cluster.group(group)
    where = f"group {group}"
    if found is None:
        raise RefusedError("the embedded cluster does not tell whether the group is live", where=where)
    if found.members:
        names = sorted({f"{member.client_id}/{member.host}" for member in found.members})
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise RefusedError(
            f"the group is live: {len(found.members)} member{'s' if len(found.members) > 1 else ''} "
            f"({', '.join(names[:3])}{more})",
            where=where,
            mend="stop its workers, then again; one that was killed counts until its session is over "
            "(session.timeout.ms)",
        )
    if found.state not in AT_REST:
        raise RefusedError(f"the group is {found.state}", where=where, mend="wait a moment, then again")


def planned(
    cluster: ResetPort, group: str, sources: Sequence[str], partitions: Sequence[int], goal: Goal
) -> list[Move]:
    """What would be set: nothing is written.

    Args:
        partitions: only these; all of them when it is empty.

    Raises:
        UsageError: no source has a partition of that number.
        RefusedError: the goal is no place in a log, or cannot be counted from nothing.
    """
    everywhere = extents(cluster, sources)
    logs = {place: log for place, log in everywhere.items() if not partitions or place[1] in partitions}
    beyond = [number for number in partitions if not any(place[1] == number for place in everywhere)]
    if beyond:
        raise UsageError(f"there is no partition {beyond[0]}", where="--partition", mend="check the number")
    if goal.file is not None:
        logs = {place: log for place, log in logs.items() if goal.file.offsets.get(place) is not None}
        if not logs:
            raise UsageError("the file names none of these partitions", where="--from-file")
    committed = cluster.committed(group, list(logs), settled=True)
    at = cluster.offsets_at(list(logs), goal.number) if goal.word == "time" else {}
    moves = []
    for place, log in sorted(logs.items()):
        found = committed[place]
        before = None if found is None else found.offset
        after, remark = _target(goal, place, before, log, at)
        by_worker = found is not None and bool(found.metadata) and read_reset(found.metadata) is None
        moves.append(Move(place, before, after, log, _is_after_worker(found), remark, by_worker))
    return moves


def _is_after_worker(found: Committed | None) -> bool:
    if found is None:
        return False
    reset = read_reset(found.metadata)
    return bool(found.metadata) if reset is None else reset.after_worker


def _target(
    goal: Goal, place: Partition, before: int | None, log: Watermarks, at: Mapping[Partition, int]
) -> tuple[int, str]:
    if goal.word == "start":
        return log.start, ""
    if goal.word == "end":
        return log.end, ""
    if goal.word == "time":
        if place not in at:
            return log.end, "nothing is that new: the end"
        return max(log.start, at[place]), ""
    where = f"{place[0]}/{place[1]}"
    if goal.word == "by":
        if before is None:
            raise RefusedError(
                "nothing was committed, so there is nothing to count from",
                where=where,
                mend="give --to start, end, an offset or a time",
            )
        wanted = before + goal.number
        after = min(max(wanted, log.start), log.end)
        edge = "the start of the log" if wanted < after else "the end of the log"
        return after, "" if after == wanted else f"{wanted} is outside: {edge}"
    wanted = goal.number
    if goal.file is not None:
        of_file = goal.file.offsets[place]
        assert of_file is not None
        wanted = of_file
    if not log.start <= wanted <= log.end:
        raise RefusedError(
            f"offset {wanted} is outside the log, which has {log.start} to {log.end}",
            where=where,
            mend="give --to start or end, or an offset inside; --partition N sets one partition only",
        )
    return wanted, ""


@dataclass(frozen=True, slots=True)
class Written:
    """What came of it.

    Attributes:
        now: what was read back, by partition; None where nothing is committed.
        refused: why the brokers did not take one.
    """

    now: Mapping[Partition, int | None]
    refused: Mapping[Partition, str] = field(default_factory=dict)

    def is_set(self, move: Move) -> bool:
        """Whether it stands where it was to go."""
        return self.now.get(move.place) == move.after


def write(cluster: ResetPort, group: str, moves: Sequence[Move], actor: str, reason: str) -> Written:
    """Set the offsets of a group at rest, and read them back.

    Raises:
        RefusedError: the group is live, or an offset is not where it was when this was planned.
    """
    require_at_rest(cluster, group)
    places = [move.place for move in moves]
    found = cluster.committed(group, places, settled=True)
    for move in moves:
        at = found[move.place]
        if (None if at is None else at.offset) != move.before:
            raise RefusedError(
                f"the committed offset has moved meanwhile, from {move.before} to {at and at.offset}",
                where=f"{move.place[0]}/{move.place[1]}",
                mend="somebody works in the group, or sets it too: look, then again",
            )
    now_ms = time.time_ns() // 1_000_000
    offsets = {}
    for move in moves:
        note = ResetNote(_cut(actor), _cut(reason), now_ms, move.after_worker)
        offsets[move.place] = Committed(move.after, msgspec.json.encode(note).decode())
    refused = cluster.commit(group, offsets)
    back = cluster.committed(group, places, settled=True)
    return Written({place: None if at is None else at.offset for place, at in back.items()}, refused)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_NOTE else text[: MAX_NOTE - 1] + "…"
