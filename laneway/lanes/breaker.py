"""The breaker: when many lanes find a dependency unavailable, all of them wait for one to try.

Without it each lane would go on asking by itself, and the source would be read until memory is full of
records that cannot run. While it is open nothing starts but one probe at a time; no attempt is spent.
(The pattern is Michael Nygard's circuit breaker, Release It!, 2007.)
"""

from __future__ import annotations


class Breaker:
    """Counts lanes that cannot go on, and lets one try.

    Args:
        lanes: so many different lanes, with no other answer between, open it.

    Attributes:
        reason: what the last one said that found it unavailable while it was closed.
    """

    __slots__ = ("_asked_ms", "_lanes", "_limit", "_probe", "_probe_at_ms", "reason", "since_ms")

    def __init__(self, lanes: int) -> None:
        self._limit = lanes
        self._lanes: set[str] = set()
        self._probe: str | None = None
        self._probe_at_ms = 0
        self._asked_ms = 0
        self.since_ms = 0
        self.reason = ""

    @property
    def is_open(self) -> bool:
        """Whether all lanes wait."""
        return self.since_ms > 0

    @property
    def is_counting(self) -> bool:
        """Whether any lane waits; while none does, an answer is no news."""
        return bool(self._lanes)

    def unavailable(self, lane: str, until_ms: int, now_ms: int, reason: str = "") -> None:
        """A handler says that nothing can be done before that time, and why."""
        self._lanes.add(lane)
        if not self.is_open:
            self.reason = reason
        if not self.is_open and len(self._lanes) >= self._limit:
            self.since_ms = max(1, now_ms)
        if self.is_open:
            self._probe_at_ms, self._asked_ms = until_ms, now_ms
        if self._probe == lane:
            self._probe = None

    def answered(self) -> bool:
        """A handler came to a verdict, whatever it is: the dependency is there.

        Returns:
            Whether the breaker was open until now.
        """
        was_open = self.is_open
        self._lanes.clear()
        self._probe = None
        self.since_ms = 0
        return was_open

    def lets(self, lane: str, now_ms: int) -> bool:
        """Whether this lane may start something; while the breaker is open, a yes makes it the probe."""
        if not self.is_open:
            return True
        if not self.may_probe(now_ms):
            return False
        self._probe = lane
        return True

    def may_probe(self, now_ms: int) -> bool:
        """Whether it is time for one lane to try, and none is trying."""
        # A clock that was set back must not make everybody wait as much longer.
        return self._probe is None and not self._asked_ms <= now_ms < self._probe_at_ms

    def came_back(self, lane: str) -> None:
        """A run is back without an answer; another may try."""
        if self._probe == lane:
            self._probe = None

    @property
    def next_due_ms(self) -> int | None:
        """When the next probe may start; None while one is out, or there is no need."""
        return self._probe_at_ms if self.is_open and self._probe is None else None
