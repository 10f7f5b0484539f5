"""From produce to effect, and to committed: an open loop, so that a slow worker is not spared its records.

Every record has a time at which it is to be sent, and its latency counts from then, whether or not the
producer was in time. When its handler was through is noted in the worker. When its offset was committed is
read from the group's own log, `__consumer_offsets`, as a reader of committed transactions sees it: the moment
at which another member would begin behind it. All clocks are one, that of this machine.

The maximum, of which the loads are shares, is what the worker does while a producer beside it sends as much
as the worker handles without one.
"""

from __future__ import annotations

import json
import math
import struct
import threading
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks import load
from benchmarks.environments import own
from benchmarks.peers.work import Task
from benchmarks.plan import CONCURRENCY, KEYS, PARTITIONS
from benchmarks.supervise import Subject, SubjectFailedError, started
from tests.broker.cluster import Cluster, Outgoing

SHARES: Final = (0.1, 0.5, 0.9)
FINDING: Final = 2.0
"""Times as long as a load takes the run that finds the maximum."""
LINGER_MS: Final = 5
"""What the client does by default."""
FIRST: Final = 200
"""Records that are through before the clock runs: by then the worker is there."""
DEADLINE_S: Final = 120.0
OFFSETS: Final = "__consumer_offsets"


class Percentiles(msgspec.Struct, frozen=True):
    """Milliseconds."""

    p50: float
    p99: float
    p999: float


class Latency(msgspec.Struct, frozen=True):
    """One load.

    Attributes:
        share: of the maximum; 0 is the run that found the maximum.
        per_second: records that were to be sent; `handled_per_second`: handled in the second half of it.
        late: how late the producer itself was; it is part of the other figures.
    """

    share: float
    per_second: float
    records: int
    handled_per_second: float
    effect: Percentiles
    committed: Percentiles
    late: Percentiles


class Commits:
    """Hears the commits of one group on one topic, from the log of the coordinator."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._wanted = (group.encode(), topic.encode())
        self._heard: dict[int, list[tuple[float, int]]] = {}
        self._stopping = False
        self._reader = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{group}-observer",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        found = self._reader.list_topics(OFFSETS, timeout=10).topics[OFFSETS].partitions
        places = [TopicPartition(OFFSETS, number) for number in found]
        for place in places:
            place.offset = self._reader.get_watermark_offsets(place, timeout=10)[1]
        self._reader.assign(places)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stopping:
            message = self._reader.poll(0.1)
            if message is None or message.error() is not None:
                continue
            key, value = message.key(), message.value()
            place = _place(key or b"")
            if value is not None and place is not None and place[:2] == self._wanted:
                # Behind the version of the value stands the offset, in all versions there are.
                self._heard.setdefault(place[2], []).append(
                    (time.monotonic(), struct.unpack_from(">q", value, 2)[0])
                )

    def up_to(self) -> dict[int, int]:
        """By partition, the last offset that was committed."""
        return {number: heard[-1][1] for number, heard in list(self._heard.items())}

    def stop(self) -> dict[int, list[tuple[float, int]]]:
        """By partition, when which offset was committed."""
        self._stopping = True
        self._thread.join()
        self._reader.close()
        return self._heard


def _place(key: bytes) -> tuple[bytes, bytes, int] | None:
    """Group, topic and partition of a key that is about an offset."""
    if len(key) < 2 or struct.unpack_from(">h", key)[0] not in (0, 1):
        return None
    names, at = [], 2
    for _ in range(2):
        (size,) = struct.unpack_from(">h", key, at)
        names.append(key[at + 2 : at + 2 + size])
        at += 2 + size
    return names[0], names[1], struct.unpack_from(">i", key, at)[0]


def measure_latency(
    cluster: Cluster, tag: str, *, seconds: float, about: float, say: Callable[[str], None]
) -> list[Latency]:
    """The maximum, then each share of it.

    Args:
        about: records a second that the worker handles where nothing is produced, roughly.

    Raises:
        SubjectFailedError: there is no figure.
    """
    found = [one_load(cluster, tag, 0.0, about, seconds * FINDING)]
    maximum = found[0].handled_per_second
    say(f"latency  maximum beside its producer: {maximum:,.0f} records/s")
    for share in SHARES:
        one = one_load(cluster, tag, share, maximum * share, seconds)
        found.append(one)
        say(
            f"latency  at {share:.0%}: effect p50 {one.effect.p50:.1f} ms, p99 {one.effect.p99:.1f}; "
            f"committed p50 {one.committed.p50:.1f}, p99 {one.committed.p99:.1f}"
        )
    return found


def one_load(cluster: Cluster, tag: str, share: float, per_second: float, seconds: float) -> Latency:
    """So many records a second for so long."""
    records = list(load.made(FIRST + int(per_second * seconds), KEYS))
    topic = f"{tag}-latency-{uuid.uuid4().hex[:6]}"
    group = f"{topic}-g"
    cluster.create_topic(topic, PARTITIONS)
    with TemporaryDirectory(prefix="laneway-bench-") as directory:
        trace = Path(directory, "trace.json")
        task = Task(
            "changelog",
            cluster.bootstrap,
            topic,
            group,
            len(records),
            FIRST,
            "none",
            CONCURRENCY,
            DEADLINE_S,
            directory,
            trace=str(trace),
        )
        commits = Commits(cluster.bootstrap, group, topic)
        try:
            with started(own("benchmarks.subject"), task) as subject:
                began_s, late_s = _produce(cluster.bootstrap, topic, records, per_second, subject)
                while "handled" not in subject.hear():
                    pass
                _until_committed(commits, cluster.end_offsets(topic))
                subject.end()
        finally:
            heard = commits.stop()
        effects = json.loads(trace.read_text(encoding="ascii"))
    # What was sent before the clock ran says nothing.
    counted = [tuple(each) for each in effects if each[0] >= FIRST]
    window_s = (began_s + seconds / 2, began_s + seconds)
    within = sum(window_s[0] <= at_s < window_s[1] for *_, at_s in counted)
    effect, committed = since_meant(counted, heard, lambda number: began_s + (number - FIRST) / per_second)
    return Latency(
        share,
        per_second,
        len(counted),
        within / (window_s[1] - window_s[0]),
        percentiles(effect),
        percentiles(committed),
        percentiles(late_s),
    )


def since_meant(
    effects: Sequence[tuple[int, int, int, float]],
    commits: Mapping[int, Sequence[tuple[float, int]]],
    meant_s: Callable[[int], float],
) -> tuple[list[float], list[float]]:
    """Seconds from the time a record was to be sent to its effect, and to the first commit behind it.

    Args:
        effects: number, partition, offset, and when its handler was through.
        commits: by partition, when which offset was committed, in that order.
        meant_s: when the record of that number was to be sent.
    """
    to_effect, to_committed = [], []
    for number, partition, offset, at_s in effects:
        there = commits[partition]
        first = bisect_right(there, offset, key=lambda commit: commit[1])
        to_effect.append(at_s - meant_s(number))
        to_committed.append(there[first][0] - meant_s(number))
    return to_effect, to_committed


def _produce(
    bootstrap: str, topic: str, records: Sequence[Outgoing], per_second: float, subject: Subject
) -> tuple[float, list[float]]:
    """Send each record when it is due; returns when the first was, and how late each was sent."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": LINGER_MS, "log_level": 0}
    )

    def send(record: Outgoing) -> None:
        while True:
            try:
                return producer.produce(topic, record.value, record.key, headers=list(record.headers))
            except BufferError:
                producer.poll(0.01)

    for record in records[:FIRST]:
        send(record)
    producer.flush(30)
    while "begun" not in subject.hear():
        pass
    late_s: list[float] = []
    began_s, sent, rest = time.monotonic() + 0.2, 0, records[FIRST:]
    while sent < len(rest):
        now_s = time.monotonic()
        due = min(len(rest), math.floor((now_s - began_s) * per_second) + 1)
        for number in range(sent, due):
            send(rest[number])
            late_s.append(time.monotonic() - began_s - number / per_second)
        sent = max(sent, due)
        producer.poll(0)
        wait_s = began_s + sent / per_second - time.monotonic()
        if wait_s > 0:
            time.sleep(min(wait_s, 0.05))
    if producer.flush(30):
        raise SubjectFailedError("latency: the broker did not take all records")
    return began_s, late_s


def _until_committed(commits: Commits, ends: dict[int, int]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while any(commits.up_to().get(number, 0) < end for number, end in ends.items()):
        if time.monotonic() > deadline_s:
            raise SubjectFailedError("latency: not everything was committed in time")
        time.sleep(0.01)


def percentiles(seconds: Sequence[float]) -> Percentiles:
    """Of these, in milliseconds: the smallest that so many do not exceed."""
    ordered = sorted(seconds)

    def at(part: float) -> float:
        return 1000 * ordered[max(0, math.ceil(part * len(ordered)) - 1)]

    return Percentiles(at(0.5), at(0.99), at(0.999))
