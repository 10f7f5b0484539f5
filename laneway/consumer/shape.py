"""Watches the sources' partition counts while a worker runs.

A source that grows sends keys to other partitions than those whose ledgers hold their lanes. The watch
asks on a thread and with a client of its own: the consumer lets in one call at a time, and the poll loop
must not wait for a question about metadata.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.settings.model import Settings
from laneway.errors import LanewayError, RefusedError

EVERY_S: Final = 30.0


class ShapeWatch:
    """Asks every half minute until stopped.

    Args:
        expected: partitions by source, as they were when the worker was built.
        notice: called from the watch's thread when a source has another count now.
    """

    def __init__(
        self,
        settings: Settings,
        expected: Mapping[str, int],
        notice: Callable[[], None],
        *,
        every_s: float = EVERY_S,
    ) -> None:
        self._settings = settings
        self._expected = expected
        self._notice = notice
        self._every_s = every_s
        self._stopped = threading.Event()
        self.failure: RefusedError | None = None

    def start(self) -> None:
        """Begin to watch; a daemon, so that a question without an answer keeps nobody."""
        threading.Thread(target=self._watch, name="laneway-shape", daemon=True).start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()

    def _watch(self) -> None:
        while self.failure is None and not self._stopped.wait(self._every_s):
            try:
                with Cluster(self._settings) as cluster:
                    found = cluster.partition_counts(list(self._expected))
            except LanewayError:
                continue  # a cluster that does not answer is the poll loop's business
            self._compare(found)

    def _compare(self, found: Mapping[str, int]) -> None:
        for source, expected in self._expected.items():
            now = found.get(source, expected)
            if now == expected:
                continue
            self.failure = other_count(source, expected, now)
            self._notice()


def other_count(source: str, expected: int, now: int) -> RefusedError:
    """The refusal, whoever notices first: this watch, or an assignment."""
    return RefusedError(
        f"the topic had {expected} partitions when this worker started and has {now} now, so keys "
        "may have moved to partitions that do not hold their lanes",
        where=source,
        mend="read docs/operations/partition-count.md before starting again",
    )
