"""What became of the records of a file, told from the worker's journal as it comes in.

Boundary: journal lines in, counts and line numbers out. It neither asks the cluster nor prints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from laneway.cli.dev_feed import Feeder

KINDS: Final = {
    "duplicate_suppressed": "duplicates",
    "retry_scheduled": "retries",
    "quarantined": "dlq",
}
"""Journal events that are listed, and what the summary calls them."""

Line = Mapping[str, Any]


class Account:
    """The account of one run. `take` is called from one thread, the rest after it or under one lock.

    Args:
        by_arrival: the order inside a key is that of the lines, not of numbers.
        keep: how many of the first lines of each kind and reason are kept.

    Attributes:
        effects: outcomes saved.
        counts: by kind and reason.
        examples: by kind and reason, the first (line number, what it was).
        misplaced: effects that came behind a later one of their key; must be none.
        misplaced_lines: the first of them.
    """

    def __init__(self, feeder: Feeder, source: str, *, by_arrival: bool, keep: int) -> None:
        self._feeder = feeder
        self._source = source
        self._by_arrival = by_arrival
        self._keep = keep
        self.effects = 0
        self.resolved = 0
        self.counts: Counter[tuple[str, str]] = Counter()
        self.examples: dict[tuple[str, str], list[tuple[int, str]]] = {}
        self.misplaced = 0
        self.misplaced_lines: list[int] = []
        self._last: dict[str, int] = {}
        self._running: set[tuple[str, int, int]] = set()
        self._parked: dict[tuple[int, int], str] = {}
        self._parked_of: Counter[str] = Counter()
        self._held: set[str] = set()
        self._retrying: dict[tuple[int, str], int] = {}

    def take(self, line: Line) -> None:
        """One line of the journal."""
        event = line["event"]
        place = (line["topic"], line["partition"], line["offset"])
        if event == "running":
            self._running.add(place)
        elif event in _ENDS:
            # Parked too: a run that stopped gives its other records back, and they wait.
            self._running.discard(place)
        if event == "result_saved":
            self.effects += 1
            self._check_order(line)
        elif event in KINDS:
            self._note(KINDS[event], line)
        elif event == "review_resolved":
            self.resolved += 1
        self._follow_lane(line)

    def _follow_lane(self, line: Line) -> None:
        """Who waits behind whom, and which record comes again."""
        event, partition, offset, key = line["event"], line["partition"], line["offset"], line["sequenceKey"]
        if event == "parked":
            self._parked[partition, offset] = key
            self._parked_of[key] += 1
            self._feeder.settle(partition, offset)
        elif event in {"lane_held", "gap_detected"}:
            self._held.add(key)
        elif event == "lane_released":
            self._held.discard(key)
        elif event == "retry_scheduled":
            self._retrying[partition, line["effectKey"]] = self._line_number(line)
        elif event == "ack_sent" and line["topic"] == self._source:
            self._acked(partition, offset)

    @property
    def is_quiet(self) -> bool:
        """Nothing runs, nothing is unread, and no lane that is free has followers to run."""
        free = any(count and key not in self._held for key, count in self._parked_of.items())
        return not (self._running or free or self._feeder.unsettled)

    def total(self, kind: str) -> int:
        """How many of a kind, whatever the reason."""
        return sum(count for (other, _), count in self.counts.items() if other == kind)

    def parked_lines(self) -> list[int]:
        """The lines of followers that wait behind something, in order."""
        return sorted(self._feeder.line_of(*place) for place in self._parked)

    def _acked(self, partition: int, offset: int) -> None:
        self._feeder.settle(partition, offset)
        key = self._parked.pop((partition, offset), None)
        if key is not None:
            self._parked_of[key] -= 1
            if not self._parked_of[key]:
                del self._parked_of[key]

    def _check_order(self, line: Line) -> None:
        key = line["sequenceKey"]
        if key is None:
            return
        number = self._line_number(line)
        place = number if self._by_arrival else line["sequence"]
        if place <= self._last.get(key, -1):
            self.misplaced += 1
            self.misplaced_lines += [number][: self._keep - len(self.misplaced_lines)]
        self._last[key] = max(place, self._last.get(key, -1))

    def _note(self, kind: str, line: Line) -> None:
        entry = (kind, line["reason"] or "-")
        self.counts[entry] += 1
        kept = self.examples.setdefault(entry, [])
        number = self._line_number(line)
        if len(kept) < self._keep and number not in {other for other, _ in kept}:
            kept.append(
                (number, f"effect {line['effectKey']}" if line["effectKey"] else "no usable envelope")
            )

    def _line_number(self, line: Line) -> int:
        partition: int = line["partition"]
        if line["topic"] == self._source:
            return self._feeder.line_of(partition, line["offset"])
        # A retry is the same record; it was scheduled from a position of the source.
        return self._retrying.get((partition, line["effectKey"]), 0)


_ENDS: Final = frozenset(
    {
        "result_saved",
        "duplicate_suppressed",
        "retry_scheduled",
        "quarantined",
        "review_opened",
        "ack_sent",
        "parked",
        "completion_refused",
    }
)
