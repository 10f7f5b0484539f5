"""Commits offsets, all on the owner thread, and brings the group's answer back.

Not on a thread of its own: the client lets in one call at a time, so a commit beside a poll begins when
that poll has ended; and a poll that serves a rebalance ends when its partitions are settled, which waits
for the commit. So a commit is sent without waiting, and its answer comes with a later poll. That may be
much later: it stands behind all that the client has prefetched, and a worker that waits for it may have
no room to read that. So after a moment (at once inside a rebalance, and while the worker stops) the group
is asked what it has: to the coordinator the question goes behind the commit.

Boundary: offsets in, the positions that are known to be committed out. What a missing answer means for
a record is `local_truth`'s business.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from laneway.consumer.kafka.errors import ErrorClass, classify

log = logging.getLogger("laneway")

ASK_TIMEOUT_S: Final = 2.0
ASK_AFTER_S: Final = 0.005
"""A commit has mostly been answered by then, so the question is a short one."""
ASK_POLLED_TIMEOUT_S: Final = 0.1
"""How long a question may keep the owner from its poll; it is put again while there is no answer."""

Committed = set[tuple[str, int]]
Answer = tuple[KafkaError | None, list[TopicPartition]]


class Committer:
    """One commit at a time. Belongs to the owner thread.

    Args:
        answers: where the client's commit callback, which runs inside poll, leaves what it is told.

    Attributes:
        is_polled: whether the owner polls the consumer before it asks for an answer again.
    """

    def __init__(self, consumer: Consumer, answers: deque[Answer]) -> None:
        self._consumer = consumer
        self._answers = answers
        self.is_polled = True
        self._asked: list[TopicPartition] = []
        # Answers come in the order of the commits; one that was read back still comes, and is passed over.
        self._sent = 0
        self._sent_s = 0.0
        self._answered = 0
        self._answer: Committed | None = None

    def begin(self, offsets: Sequence[tuple[str, int, int, str]]) -> None:
        """Send (topic, partition, offset, metadata) to the group."""
        self._answer = None
        self._asked = [TopicPartition(topic, number, offset, note) for topic, number, offset, note in offsets]
        try:
            self._consumer.commit(offsets=self._asked, asynchronous=True)
        except KafkaException as error:
            self._refused(error.args[0])
            self._answer = set()
        except RuntimeError:
            self._answer = set()  # the consumer was closed meanwhile
        else:
            self._sent += 1
            self._sent_s = time.monotonic()

    def answer(self) -> Committed | None:
        """The positions that are committed; None while that is not known. An error is "not committed"."""
        while self._answers:
            error, places = self._answers.popleft()
            self._answered += 1
            if self._answered == self._sent and self._answer is None:
                self._answer = self._told(error, places)
        if self._answer is None and not self.is_polled:
            self._answer = self._read_back(ASK_TIMEOUT_S) or set()
        elif self._answer is None and time.monotonic() - self._sent_s >= ASK_AFTER_S:
            self._answer = self._read_back(ASK_POLLED_TIMEOUT_S)
        return self._answer

    def _told(self, error: KafkaError | None, places: list[TopicPartition]) -> Committed:
        if error is not None:
            self._refused(error)
            return set()
        return {(tp.topic, tp.partition) for tp in places if tp.error is None}

    def _read_back(self, timeout_s: float) -> Committed | None:
        """What of the last commit the group has; None when it did not say."""
        asked = [TopicPartition(tp.topic, tp.partition) for tp in self._asked]
        try:
            found = self._consumer.committed(asked, timeout=timeout_s)
        except KafkaException as error:
            if error.args[0].code() == KafkaError._TIMED_OUT:
                return None
            self._refused(error.args[0])
            return set()
        except RuntimeError:
            return set()
        has = {(tp.topic, tp.partition): tp.offset for tp in found if tp.error is None}
        return {
            (tp.topic, tp.partition) for tp in self._asked if has.get((tp.topic, tp.partition)) == tp.offset
        }

    @staticmethod
    def _refused(error: KafkaError) -> None:
        if classify(error) is not ErrorClass.NOT_COMMITTED:
            log.warning("offsets are not committed yet: %s", error.str())
