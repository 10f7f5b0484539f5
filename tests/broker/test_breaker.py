"""What a breaker found on a real broker: work that was lost, stuck or not told of, each as a promise."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import LanewayError
from tests.broker import recording
from tests.broker.cluster import Cluster, ClusterError, Outgoing
from tests.broker.conftest import Names
from tests.broker.journal_checks import events_of, header, text_headers
from tests.broker.kafka import KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually


class Place:
    """A source of one partition, a group, and a directory of this test's own."""

    def __init__(self, bootstrap: str, cluster: Cluster, names: Names, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.cluster = cluster
        self.names = names
        self.directory = directory
        cluster.create_topic(names.source, 1)

    def worker(
        self, *, app: str = recording.APP, name: str = "worker", state: str = "state", **tables: Any
    ) -> WorkerProcess:
        """A worker over the recording pipeline, with its companion topics."""
        settings = settings_of(self.bootstrap, self.names, self.directory / state, **tables)
        create_companions(settings, self.directory)
        environment = recording.environment(self.directory / "runs")
        return WorkerProcess(app, settings, directory=self.directory, name=name, environment=environment)

    def make(self, kind: str, config: Mapping[str, str] | None = None) -> bool:
        """Makes a deleted topic as `laneway topics create` does; False while its old self still goes."""
        try:
            if kind == "source":
                self.cluster.create_topic(self.names.source, 1, config)
            else:
                create_companions(settings_of(self.bootstrap, self.names, self.directory), self.directory)
        except (ClusterError, LanewayError):
            return False
        return True

    def send(self, *records: Outgoing, topic: str = "") -> None:
        """Produces to the source, or to another topic."""
        self.cluster.produce(topic or self.names.source, records)

    def runs(self) -> list[recording.Run]:
        """All runs of the handler."""
        return recording.read_runs(self.directory / "runs")

    def await_end(self, topic: str = "") -> None:
        """Until a topic is committed to its end."""
        topic = topic or self.names.source
        eventually(
            lambda: self.cluster.committed(self.names.group, topic) == self.cluster.end_offsets(topic),
            30,
            f"{topic} to be committed to its end",
            poll_s=0.1,
        )

    def of(self, kind: str) -> str:
        """A companion topic."""
        return f"{self.names.source}.{self.names.group}.{kind}"


@pytest.fixture
def place(kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path) -> Place:
    """A source without records."""
    return Place(kafka.bootstrap, cluster, names, tmp_path)


@pytest.mark.parametrize("kind", ["source", "retry"])
def test_a_topic_made_anew_is_refused_and_nothing_of_it_is_swallowed(place: Place, kind: str) -> None:
    """Another topic of the same name, source or retry, is exit 4: its offsets are not those settled."""
    topic = place.names.source if kind == "source" else place.of("retry")
    with place.worker() as worker:
        place.send(*(recording.event("k", number) for number in range(1, 6)))
        worker.start()
        place.await_end()
        worker.stop()
        place.cluster.delete_topic(topic)
        eventually(lambda: topic not in place.cluster.topics(), 20, f"{topic} to be gone")
        eventually(lambda: place.make(kind), 20, f"{topic} to be made anew", poll_s=0.2)
        place.send(*(recording.event("new", number) for number in range(1, 4)))
        worker.start()
        assert worker.wait() == 4
        assert "made anew" in worker.stderr()
        assert not events_of(worker.journal(worker.pid), "duplicate_suppressed", "ack_sent")


def test_a_journal_on_a_full_disk_ends_the_worker_at_once(place: Place) -> None:
    """Exit 1 with the reason, long before the drain deadline: judged is not yet running."""
    with place.worker() as worker:
        config = worker.config.read_text()
        worker.config.write_text(re.sub(r'"path" = ".*"', '"path" = "/dev/full"', config))
        place.send(*(recording.event("k", number) for number in range(1, 6)))
        worker.start()
        eventually(lambda: "stopping on an error" in worker.stderr(), 20, "the journal to be refused")
        assert worker.wait(10) == 1
        assert "the journal cannot be written" in worker.stderr()
    assert not place.cluster.committed(place.names.group, place.names.source)[0]


def test_a_partition_that_is_assigned_before_the_watch_has_seen_it_is_refused(place: Place) -> None:
    """A source that grew is exit 4 with both counts and the page, however soon the new partition comes."""
    with place.worker(group_protocol="consumer") as worker:
        worker.start()
        eventually(worker.live, 30, "the worker to be live")
        place.cluster.grow_topic(place.names.source, 2)
        assert worker.wait() == 4
        assert "had 1 partitions when this worker started and has 2 now" in worker.stderr()


def test_an_offset_beyond_the_end_is_refused_with_both_numbers(place: Place) -> None:
    """A committed offset that the log does not reach is exit 4 and says where either stands (case 11)."""
    with place.worker() as worker:
        place.send(recording.event("k", 1))
        worker.start()
        place.await_end()
        worker.stop()
        place.cluster.commit(place.names.group, place.names.source, {0: 500})
        worker.start()
        assert worker.wait() == 4
        assert "committed offset 500 and the log ends at 1" in worker.stderr()


def test_an_old_ledger_of_another_machine_is_refused(place: Place) -> None:
    """A ledger that a worker elsewhere has gone beyond is exit 4 with both offsets, unless accepted."""
    with place.worker() as here, place.worker(name="there", state="elsewhere") as there:
        place.send(*(recording.event("k", number) for number in range(1, 4)))
        here.start()
        place.await_end()
        here.stop()
        shutil.copytree(place.directory / "state", place.directory / "elsewhere")
        place.send(*(recording.event("k", number) for number in range(4, 6)))
        here.start()
        place.await_end()
        here.stop()
        there.start()
        assert there.wait() == 4
        assert "has committed offset 5, and the ledger in this state directory ends at 3" in there.stderr()
        there.arguments = ("--accept-empty-ledger",)
        there.start()
        eventually(there.live, 20, "the old ledger to be accepted")
        there.kill()
        there.arguments = ()  # accepted once is accepted
        there.start()
        eventually(there.live, 20, "the worker to be live")
        there.stop()


def test_a_ledger_that_followed_its_changelog_does_not_stay_behind_in_silence(place: Place) -> None:
    """From `changelog` to `local` and back: exit 4 each time, or effects could be repeated unseen."""
    follows, stays = {"replication": "changelog"}, {"replication": "local"}
    with place.worker(ledger=follows) as moving, place.worker(name="staying", ledger=stays) as staying:
        place.send(*(recording.event("k", number) for number in range(1, 4)))
        moving.start()
        place.await_end()
        moving.stop()
        staying.start()
        assert staying.wait() == 4
        assert "has followed a changelog until now" in staying.stderr()
        staying.arguments = ("--accept-empty-ledger",)
        staying.start()
        place.send(recording.event("k", 4))
        place.await_end()
        staying.stop()
        staying.arguments = ()  # accepted once is accepted
        staying.start()
        eventually(staying.live, 20, "the worker to be live")
        staying.stop()
        moving.start()
        assert moving.wait() == 4
        assert "committed offset" in moving.stderr()
    assert [run.effect_key for run in place.runs()] == ["k:1", "k:2", "k:3", "k:4"]


def test_offsets_moved_by_hand_are_obeyed_and_told_of(place: Place) -> None:
    """Forward passes over what lies between, with a warning; backward runs nothing again."""
    with place.worker(lanes={"order": "increasing"}) as worker:
        place.send(*(recording.event("k", number) for number in range(1, 4)))
        worker.start()
        place.await_end()
        worker.stop()
        place.send(*(recording.event("k", number) for number in range(4, 8)))
        place.cluster.commit(place.names.group, place.names.source, {0: 5})
        worker.start()
        place.await_end()
        worker.stop()
        assert "offsets 3 to 5 are passed over" in worker.stderr()
        place.cluster.commit(place.names.group, place.names.source, {0: 0})
        worker.start()
        place.await_end()
        worker.stop()
    assert [run.sequence for run in place.runs()] == [1, 2, 3, 6, 7]


def test_a_group_that_lost_its_offsets_goes_on_where_its_ledger_ends(place: Place) -> None:
    """Kafka forgets the offsets of a resting group; with start = "latest" nothing is passed over for it."""
    with place.worker(start="latest") as worker:
        worker.start()
        eventually(worker.live, 20, "the worker to be live")
        place.send(*(recording.event("k", number) for number in range(1, 4)))
        place.await_end()
        worker.stop()
        place.send(*(recording.event("k", number) for number in range(4, 6)))
        place.cluster.delete_group(place.names.group)
        assert place.cluster.committed(place.names.group, place.names.source) == {0: None}
        worker.start()
        place.await_end()
        worker.stop()
    assert [run.sequence for run in place.runs()] == [1, 2, 3, 4, 5]


def test_retries_that_were_deleted_unread_are_told_of(place: Place) -> None:
    """A lane whose retry is gone would wait for ever: exit 4 names the retry topic and how many (case 32)."""
    with place.worker(retry={"delays_ms": [60_000]}) as worker:
        place.send(recording.event("k", 1, act="fail:1"), recording.event("k", 2))
        worker.start()
        eventually(lambda: place.cluster.end_offsets(place.of("retry")) == {0: 1}, 20, "the retry")
        place.await_end()
        worker.stop()
        place.cluster.delete_records(place.of("retry"), {0: 1})
        worker.start()
        assert worker.wait() == 4
        assert "1 retries are gone unread" in worker.stderr()
        worker.arguments = ("--accept-empty-ledger",)
        worker.start()
        eventually(worker.live, 20, "the loss to be accepted")
        worker.stop()


def test_a_ledger_that_is_removed_under_the_worker_ends_it(place: Place) -> None:
    """Open files outlive their names, and would be gone with the process: exit 1, and no work goes on."""
    with place.worker() as worker:
        place.send(recording.event("k", 1))
        worker.start()
        place.await_end()
        shutil.rmtree(place.directory / "state")
        assert worker.wait(15) == 1
        assert "removed while it was open" in worker.stderr()


NOISY = """
import os, subprocess
print("noise of the import")
from laneway import Pipeline
pipeline = Pipeline()

@pipeline.handler
def handle(delivery):
    print("noise of print")
    os.write(1, b"noise below python\\n")
    subprocess.run(["echo", "noise of a child"])
"""


def test_only_the_journal_reaches_standard_output(place: Place) -> None:
    """With journal.path "-" stdout is JSON lines, whatever an application or its children print."""
    app = place.directory / "noisy.py"
    app.write_text(NOISY)
    with place.worker(app=f"{app}:pipeline") as worker, (place.directory / "out").open("wb") as out:
        place.send(recording.event("k", 1), recording.event("k", 2))
        laneway = str(Path(sys.executable).with_name("laneway"))
        command = [sys.executable, laneway, "run", worker.app, "-c", str(worker.config), "--journal", "-"]
        with subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE) as process:
            place.await_end()
            process.terminate()
            stderr = process.communicate(timeout=30)[1].decode()
        assert process.returncode == 0
    lines = [json.loads(line) for line in (place.directory / "out").read_text().splitlines()]
    assert len(events_of(lines, "ack_sent")) == 2
    for noise in ("of the import", "of print", "below python", "of a child"):
        assert f"noise {noise}" in stderr


def test_a_record_that_was_published_compressed_comes_back(place: Place) -> None:
    """A value beyond the topics' limit, which only its compression let in, is retried like any other."""
    small = {"max.message.bytes": "200000"}
    place.cluster.delete_topic(place.names.source)
    eventually(lambda: place.make("source", small), 20, "a source with a small limit", poll_s=0.2)
    big = recording.event("k", 1, act="fail:1", payload={"text": "a" * 1_500_000})
    with place.worker(retry={"delays_ms": [300]}) as worker:
        place.cluster.produce(place.names.source, [big, recording.event("k", 2)], compression="zstd")
        worker.start()
        eventually(lambda: [run.effect_key for run in place.runs()] == ["k:1", "k:1", "k:2"], 20, "the retry")
        place.await_end()
        place.await_end(place.of("retry"))
        worker.stop()


def test_a_forged_retry_leaves_nothing_in_the_ledger_that_it_cannot_hold(place: Place) -> None:
    """A retry with our identity and a timestamp of forty digits goes to the DLQ; the worker lives on."""
    with place.worker(retry={"delays_ms": [1500]}) as worker:
        place.send(recording.event("k", 1, act="fail:1"), recording.event("k", 2))
        worker.start()
        eventually(lambda: place.cluster.end_offsets(place.of("retry")) == {0: 1}, 20, "the retry")
        (real,) = place.cluster.read_topic(place.of("retry"))
        headers = [
            (name, b"9" * 40 if name == "laneway-origin-timestamp" else text.encode())
            for name, text in text_headers(real).items()
            if name != "act"
        ]
        forged = Outgoing(real.value(), real.key(), [*headers, ("act", b"review")], 0)
        place.send(forged, topic=place.of("retry"))
        place.await_end()
        place.await_end(place.of("retry"))
        assert worker.running
        worker.stop()
    assert [run.effect_key for run in place.runs() if run.outcome == "effect"] == ["k:1", "k:2"]
    (dead,) = place.cluster.read_topic(place.of("dlq"))
    assert header(dead, "reason") == "broken-retry-headers"
