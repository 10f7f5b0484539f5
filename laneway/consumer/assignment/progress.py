"""How far a restore has come, for the log and for whoever looks at a partition meanwhile."""

from __future__ import annotations

import msgspec


class RestoreProgress(msgspec.Struct):
    """One restore of one partition. The thread that restores writes it, any other may read it.

    Attributes:
        first, target: offsets of the changelog, where it begins and how far it has to come.
        position: the offset it has come to.
        entries: how many were read; fewer than offsets where compaction has been.
        began_s, seen_s: monotonic seconds, of the beginning and of `position`.
    """

    first: int
    target: int
    position: int
    began_s: float
    seen_s: float
    entries: int = 0

    @property
    def percent(self) -> int:
        """Of the way, by offsets; 100 only when it is done."""
        if self.position >= self.target:
            return 100
        return 100 * (self.position - self.first) // (self.target - self.first)

    @property
    def rate(self) -> float:
        """Entries per second so far."""
        took_s = self.seen_s - self.began_s
        return self.entries / took_s if took_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """Seconds left at the pace so far; None while there is none."""
        done = self.position - self.first
        if done <= 0:
            return None
        return (self.seen_s - self.began_s) / done * max(0, self.target - self.position)

    def __str__(self) -> str:
        left = "" if self.left_s is None else f", {self.left_s:.0f} s left"
        return f"{self.percent} %, {_count(self.entries)} entries{left}, {_count(int(self.rate))}/s"


def _count(number: int) -> str:
    if number < 10_000:
        return str(number)
    return f"{number / 1000:.0f} k" if number < 1_000_000 else f"{number / 1_000_000:.1f} M"
