"""The watch over partition counts."""

from __future__ import annotations

import threading

from laneway.consumer.settings.load import load
from laneway.consumer.shape import ShapeWatch


def _watch(notice: threading.Event) -> ShapeWatch:
    flags = {"group": "g", "sources": ["orders"], "ledger.replication": "local"}
    return ShapeWatch(load(flags=flags, env={}).settings, {"orders": 3}, notice.set)


def test_a_source_that_grew_stops_the_worker_with_the_page_to_read() -> None:
    """More partitions than at the start is a refusal that names the source, both counts and the way out."""
    told = threading.Event()
    watch = _watch(told)
    watch._compare({"orders": 6})
    assert told.is_set()
    assert watch.failure is not None
    assert watch.failure.exit_code == 4
    assert "3 partitions" in str(watch.failure)
    assert "6 now" in str(watch.failure)
    assert "docs/operations/partition-count.md" in str(watch.failure)


def test_an_unchanged_or_unseen_source_is_no_news() -> None:
    """The same count, or a source that the answer leaves out, stops nobody."""
    told = threading.Event()
    watch = _watch(told)
    watch._compare({"orders": 3})
    watch._compare({})
    assert watch.failure is None
    assert not told.is_set()
