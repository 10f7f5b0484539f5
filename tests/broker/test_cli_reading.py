"""How the looking commands read a topic: to its end as of now, over holes, within a deadline."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from laneway.consumer.inspection import dead_letters as inspect_dead_letters
from laneway.consumer.inspection.topics import StoredRecord, extents, read
from laneway.consumer.kafka.cluster import Cluster as Asked
from laneway.consumer.kafka.cluster import Committed, Watermarks
from laneway.consumer.settings.load import load
from laneway.consumer.settings.model import Settings
from laneway.errors import IncompleteError, RefusedError, TopicError
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.kafka import REPOSITORY


@pytest.fixture
def settings(cluster: Cluster, names: Names) -> Settings:
    """Settings for looking at this test's group."""
    return load(
        Path("/dev/null"), flags={"bootstrap": cluster.bootstrap, "group": names.group}, env={}, inspect=True
    ).settings


@pytest.fixture
def asked(settings: Settings) -> Iterator[Asked]:
    """The cluster as commands ask it."""
    with Asked(settings) as cluster:
        yield cluster


def letter(group: str, number: int) -> Outgoing:
    """A dead letter as far as its headers go."""
    own = {"group": group, "kind": "dlq", "format": "1", "reason": "r", "forward-id": f"f{number}"}
    headers = [(f"laneway-{name}", text.encode()) for name, text in own.items()]
    return Outgoing(b"v%d" % number, headers=headers, partition=0)


def abort(cluster: Cluster, topic: str, records: int) -> None:
    """Leave that many offsets that no reader of committed records ever sees, and a marker behind them."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}-abort", "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(records):
        producer.produce(topic, b"aborted", partition=0)
    producer.flush(30)
    producer.abort_transaction(30)


def test_the_newest_are_found_behind_a_hole(
    cluster: Cluster, names: Names, settings: Settings, asked: Asked
) -> None:
    """A long end of aborted records and markers neither hides what lies before it nor hangs the reader."""
    cluster.create_topic(names.source, 2)
    cluster.produce(names.source, [letter(names.group, n) for n in range(5)])
    abort(cluster, names.source, 1000)
    found = inspect_dead_letters.newest(settings, asked, [names.source], limit=2, timeout_s=20)
    assert [each.record.value for each in found.letters] == [b"v4", b"v3"]


def test_a_position_without_a_record_is_none(
    cluster: Cluster, names: Names, settings: Settings, asked: Asked
) -> None:
    """Nothing is shown in place of a record that is not there, however near the next one is."""
    cluster.create_topic(names.source, 1)
    abort(cluster, names.source, 1)
    cluster.produce(names.source, [letter(names.group, 1)])
    topic = (names.source, 0)
    assert inspect_dead_letters.find(settings, asked, topic, 2, timeout_s=20).record.value == b"v1"
    for offset in (0, 1, 3):
        with pytest.raises(RefusedError, match="no record there"):
            inspect_dead_letters.find(settings, asked, topic, offset, timeout_s=20)
    cluster.delete_records(names.source, {0: 2})
    with pytest.raises(RefusedError, match="begins at offset 2, retention"):
        inspect_dead_letters.find(settings, asked, topic, 1, timeout_s=20)


def test_reading_ends_where_the_log_ended_when_it_was_asked(
    cluster: Cluster, names: Names, settings: Settings, asked: Asked
) -> None:
    """What is written meanwhile is not read, so a busy topic has an end."""
    cluster.create_topic(names.source, 3)
    cluster.produce(names.source, [Outgoing(b"%d" % n, partition=n % 2) for n in range(10)])
    spans = extents(asked, [names.source])
    cluster.produce(names.source, [Outgoing(b"late", partition=n) for n in (0, 1, 2)])
    seen: dict[int, list[bytes | None]] = {}
    for record in read(settings, spans, timeout_s=20):
        seen.setdefault(record.partition, []).append(record.value)
    assert seen == {0: [b"0", b"2", b"4", b"6", b"8"], 1: [b"1", b"3", b"5", b"7", b"9"]}


def test_reading_has_a_deadline(cluster: Cluster, names: Names, settings: Settings, asked: Asked) -> None:
    """An answer that would take too long is exit 5 with what to give instead; no half of it is believed."""
    cluster.create_topic(names.source, 1)
    cluster.produce(names.source, [Outgoing(b"x", partition=0)] * 5)
    with pytest.raises(IncompleteError, match="--timeout"):
        list(read(settings, extents(asked, [names.source]), timeout_s=0))


def test_what_an_open_transaction_hides_is_waited_for(
    cluster: Cluster, names: Names, settings: Settings, asked: Asked
) -> None:
    """A committed record behind an open transaction is never left out without a word: exit 5, or shown."""
    cluster.create_topic(names.source, 1)
    cluster.produce(names.source, [Outgoing(b"before", partition=0)])
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{names.source}-open", "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(names.source, b"open", partition=0)
    producer.flush(30)
    cluster.produce(names.source, [Outgoing(b"behind", partition=0)])
    spans = extents(asked, [names.source])
    with pytest.raises(IncompleteError, match="at 1 an open transaction hides what follows"):
        list(read(settings, spans, timeout_s=1))
    producer.abort_transaction(30)
    assert [record.value for record in read(settings, spans, timeout_s=20)] == [b"before", b"behind"]


def test_committed_offsets_are_told_while_a_transaction_is_about_to_change_them(
    cluster: Cluster, names: Names, asked: Asked
) -> None:
    """Looking waits for nobody's transaction: it shows what is committed, as long as that is open too."""
    cluster.create_topic(names.source, 1)
    cluster.commit(names.group, names.source, {0: 3})
    bootstrap = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
    outsider = Consumer({**bootstrap, "group.id": names.group})
    producer = Producer({**bootstrap, "transactional.id": f"{names.source}-offsets"})
    producer.init_transactions(30)
    producer.begin_transaction()
    moved = [TopicPartition(names.source, 0, 4)]
    producer.send_offsets_to_transaction(moved, outsider.consumer_group_metadata(), 30)
    outsider.close()
    place = (names.source, 0)
    assert asked.committed(names.group, [place]) == {place: Committed(3)}
    producer.commit_transaction(30)
    assert asked.committed(names.group, [place]) == {place: Committed(4)}


def test_a_missing_topic_is_named(names: Names, settings: Settings, asked: Asked) -> None:
    """Looking at a topic that is not there says so, and does not make it."""
    for _ in range(2):
        with pytest.raises(TopicError, match=f"(?s){names.source}.*does not exist"):
            extents(asked, [names.source])


def test_reading_leaves_no_trace_in_the_group(
    cluster: Cluster, names: Names, settings: Settings, asked: Asked
) -> None:
    """A reader joins no group and commits nothing: the group it looks at is still unknown afterwards."""
    cluster.create_topic(names.source, 1)
    cluster.produce(names.source, [Outgoing(b"x", partition=0)] * 5)
    records: list[StoredRecord] = list(read(settings, {(names.source, 0): Watermarks(0, 5)}, timeout_s=20))
    assert len(records) == 5
    assert cluster.committed(names.group, names.source) == {0: None}
    group = asked.group(names.group)
    assert group is not None
    assert (group.state, group.members) == ("dead", ())


_COUNT = """
import resource, sys, time
from pathlib import Path
from laneway.consumer.inspection.topics import extents, read
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.settings.load import load

def peak_bytes():
    if sys.platform == "linux":  # where ru_maxrss still holds what the parent had at the fork
        status = Path("/proc/self/status").read_text().split()
        return int(status[status.index("VmHWM:") + 1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

flags = {"bootstrap": sys.argv[1], "group": "g"}
settings = load(Path("/dev/null"), flags=flags, env={}, inspect=True).settings
with Cluster(settings) as cluster:
    spans = extents(cluster, [sys.argv[2]])
before, total = peak_bytes(), 0
for record in read(settings, spans, timeout_s=50):
    if not total:
        time.sleep(2)  # a reader that looks away: the client goes on fetching for as long as it may
    total += len(record.value or b"")
print(total, peak_bytes() - before)
"""


def test_a_large_topic_is_read_in_bounded_memory(cluster: Cluster, names: Names) -> None:
    """A topic of 160 MB is read through with a buffer, never as a whole."""
    cluster.create_topic(names.source, 2)
    megabyte = bytes(900_000)
    cluster.produce(names.source, [Outgoing(megabyte, partition=n % 2) for n in range(180)])
    done = subprocess.run(
        [sys.executable, "-c", _COUNT, cluster.bootstrap, names.source],
        cwd=REPOSITORY,
        capture_output=True,
        timeout=60,
        check=True,
    )
    total, grown = (int(word) for word in done.stdout.split())
    assert total == 180 * len(megabyte)
    assert grown < 80 * 2**20
