"""Watches the shape of the topics while a worker runs.

A source that grows sends keys to other partitions than those whose ledgers hold their lanes. A topic that is
deleted and made anew has other records at the offsets that the ledger knows as settled. The watch asks on a
thread and with a client of its own: the consumer lets in one call at a time, and the poll loop must not wait
for a question about metadata.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import TopicInfo
from laneway.errors import LanewayError, RefusedError

EVERY_S: Final = 30.0


class ShapeWatch:
    """Asks every half minute until stopped.

    Args:
        expected: partitions by source, as they were when the worker was built.
        notice: called from the watch's thread when a source has another count now, or a topic another id.
        ids: of topics, as they were then; "" where the cluster gives none.
    """

    def __init__(
        self,
        settings: Settings,
        expected: Mapping[str, int],
        notice: Callable[[], None],
        *,
        ids: Mapping[str, str],
        every_s: float = EVERY_S,
    ) -> None:
        self._settings = settings
        self._expected = expected
        self._notice = notice
        self._ids = ids
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
                    found = cluster.topics([*self._expected, *self._ids])
            except LanewayError:
                continue  # a cluster that does not answer is the poll loop's business
            self._compare(found)

    def _compare(self, found: Mapping[str, TopicInfo]) -> None:
        for name, topic in found.items():
            count, topic_id = self._expected.get(name, topic.partitions), self._ids.get(name, "")
            # Where the cluster does not tell, on one side, nothing follows.
            if topic_id and topic.topic_id and topic.topic_id != topic_id:
                self.failure = made_anew(name)
            elif topic.partitions != count:
                self.failure = other_count(name, count, topic.partitions)
            else:
                continue
            self._notice()
            return


def made_anew(topic: str) -> RefusedError:
    """The refusal of a topic that is another one under the same name."""
    return RefusedError(
        "the topic was deleted and made anew under this worker, so the offsets that its ledgers know as "
        "settled belong to records that are gone, and what stands at them now may have been passed over",
        where=topic,
        mend="find out what the old topic still held, and what was written to the new one",
    )


def other_count(source: str, expected: int, now: int) -> RefusedError:
    """The refusal, whoever notices first: this watch, or an assignment."""
    return RefusedError(
        f"the topic had {expected} partitions when this worker started and has {now} now, so keys "
        "may have moved to partitions that do not hold their lanes",
        where=source,
        mend="read docs/operations/partition-count.md before starting again",
    )
