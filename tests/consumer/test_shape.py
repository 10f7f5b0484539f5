"""The watch over partition counts and topic ids."""

from __future__ import annotations

import threading

from laneway.consumer.settings.load import load
from laneway.consumer.shape import ShapeWatch
from laneway.consumer.topics import TopicInfo


def _watch(notice: threading.Event) -> ShapeWatch:
    flags = {"group": "g", "sources": ["orders"], "ledger.replication": "local"}
    ids = {"orders": "A1", "retry": ""}
    return ShapeWatch(load(flags=flags, env={}).settings, {"orders": 3}, notice.set, ids=ids)


def _found(partitions: int, topic_id: str = "A1", name: str = "orders") -> dict[str, TopicInfo]:
    return {name: TopicInfo(name, partitions, 1, {}, topic_id)}


def test_a_source_that_grew_stops_the_worker_with_the_page_to_read() -> None:
    """More partitions than at the start is a refusal that names the source, both counts and the way out."""
    told = threading.Event()
    watch = _watch(told)
    watch._compare(_found(6))
    assert told.is_set()
    assert watch.failure is not None
    assert watch.failure.exit_code == 4
    assert "3 partitions" in str(watch.failure)
    assert "6 now" in str(watch.failure)
    assert "docs/operations/partition-count.md" in str(watch.failure)


def test_an_unchanged_or_unseen_source_is_no_news() -> None:
    """The same count and id, a source that nobody tells of, an id that nobody tells: no reason to stop."""
    told = threading.Event()
    watch = _watch(told)
    watch._compare(_found(3))
    watch._compare(_found(3, ""))
    watch._compare(_found(3, "B2", "retry"))
    watch._compare({})
    assert watch.failure is None
    assert not told.is_set()


def test_a_source_that_was_made_anew_stops_the_worker() -> None:
    """Made again between two polls it looks the same to a consumer, which passes over what stands in it."""
    told = threading.Event()
    watch = _watch(told)
    watch._compare(_found(3, "B2"))
    assert told.is_set()
    assert watch.failure is not None
    assert watch.failure.exit_code == 4
    assert "made anew" in str(watch.failure)
