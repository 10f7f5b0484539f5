"""`laneway retry list`, and --watch, beside a worker on the embedded cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneway.cli.child import Child, read_journal, write_settings
from laneway.cli.story.stage import APP
from laneway.consumer.embedded import EmbeddedCluster, on_embedded
from laneway.consumer.inspection.retries import fold
from laneway.consumer.inspection.topics import StoredRecord
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import Kind, topic_names
from tests.demo.command import DEADLINE_S, environment
from tests.waiting import eventually

GROUP, SOURCE = "waiting-group", "jobs"
DELAY_MS = 600_000


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An embedded cluster where a worker has two records waiting for their retry, ten minutes from now."""
    directory = tmp_path_factory.mktemp("worker")
    told: dict[str, Any] = {"ledger": {"replication": "local"}, "retry": {"delays_ms": (DELAY_MS,)}}
    with EmbeddedCluster() as cluster:
        settings = on_embedded(
            Settings.model_validate({"group": GROUP, "sources": (SOURCE,), **told}),
            cluster.bootstrap,
            group=GROUP,
            sources=(SOURCE,),
            state_dir=directory / "state",
        )
        write_settings(settings, directory)
        names = topic_names(settings, SOURCE)
        with Cluster(settings) as asking:
            asking.partition_counts([SOURCE, *(names.of(kind) for kind in Kind)])
        for number, act in enumerate(("fail-once", "fail-once", "write")):
            value = {
                "messageId": f"m-{number}",
                "effectKey": f"e-{number}",
                "sequenceKey": f"k-{number}",
                "sequence": 1,
                "version": 1,
                "payload": {"text": "t", "act": act},
            }
            cluster.publish(SOURCE, number, json.dumps(value).encode())
        cluster.flush()
        with Child(APP, directory, journal="journal.ndjson") as worker:
            eventually(
                lambda: sum(line["event"] == "ack_sent" for line in read_journal(worker.journal_path)) == 3,
                DEADLINE_S,
                "three acks",
                poll_s=0.1,
            )
            yield cluster.bootstrap


def command(bootstrap: str, *arguments: str) -> list[str]:
    """The command line of a list."""
    return [sys.executable, "-m", "laneway.cli.main", *arguments, "-b", bootstrap, "-g", GROUP]


def test_retry_list_shows_what_waits(bootstrap: str, tmp_path: Path) -> None:
    """Each waiting record is shown once with its effect key, the attempt to come, when it is due and why it
    failed; one that succeeded is not (S8, S17)."""
    done = subprocess.run(
        command(bootstrap, "retry", "list", "-o", "json"),
        check=True,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    items = json.loads(done.stdout)["items"]
    assert sorted(item["effect_key"] for item in items) == ["e-0", "e-1"]
    for item in items:
        assert item["attempt"] == 2
        assert item["reason"] == "archive-not-reachable"
        assert 0 < item["due_in_ms"] <= DELAY_MS
        assert item["due_ms"] - item["first_failed_ms"] == DELAY_MS
        assert item["origin"] == f"{SOURCE}/{item['effect_key'][-1]}@0"


@pytest.mark.parametrize("name", ["retry list", "offsets show", "review list", "dlq list"])
def test_watch_prints_again_until_interrupted(bootstrap: str, tmp_path: Path, name: str) -> None:
    """--watch prints the list again and again, each time as it is then; Ctrl+C ends it with exit 0."""
    process = subprocess.Popen(
        command(bootstrap, *name.split(), "-o", "json", "--watch", "0.1"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            seen += '"schema": 1' in line
            if seen == 3:
                break
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert seen == 3, err
    assert process.returncode == 0, err


def retry(
    offset: int, origin: int, attempt: int, *, group: str = GROUP, kind: str = "retry", due_ms: str = "5"
) -> StoredRecord:
    """A record as the worker forwards it."""
    own = {
        "format": "1",
        "kind": kind,
        "group": group,
        "forward-id": f"{origin}-{attempt}",
        "origin-topic": SOURCE,
        "origin-partition": "0",
        "origin-offset": str(origin),
        "attempt": str(attempt),
        "due-at": due_ms,
    }
    headers = tuple((f"laneway-{name}", text.encode()) for name, text in own.items())
    return StoredRecord(f"{SOURCE}.{GROUP}.retry", 0, offset, 0, b"k", b"v", headers)


def test_only_the_latest_attempt_of_a_record_waits() -> None:
    """Copies and earlier attempts of a record are one entry, in the order of their due times; what another
    group or a stranger wrote is counted and not believed (case 24)."""
    found = fold(
        [
            retry(0, 7, 2, due_ms="900"),
            retry(1, 8, 2, due_ms="800"),
            retry(2, 7, 3, due_ms="700"),
            retry(3, 7, 3, due_ms="700"),
            retry(4, 9, 2, group="others"),
            retry(5, 9, 2, kind="dlq"),
            retry(6, 9, 2, due_ms="-1"),
            StoredRecord("t", 0, 7, 0, None, None),
        ],
        GROUP,
    )
    assert [(each.origin_offset, each.attempt, each.due_ms) for each in found.retries] == [
        (7, 3, 700),
        (8, 2, 800),
    ]
    assert found.strangers == 4
