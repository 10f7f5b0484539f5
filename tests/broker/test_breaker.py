"""What a breaker found on a real broker: work that was lost, stuck or not told of, each as a promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneway.errors import LanewayError
from tests.broker import recording
from tests.broker.cluster import Cluster, ClusterError, Outgoing
from tests.broker.conftest import Names
from tests.broker.journal_checks import events_of
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

    def worker(self, *, name: str = "worker", state: str = "state", **tables: Any) -> WorkerProcess:
        """A worker over the recording pipeline, with its companion topics."""
        settings = settings_of(self.bootstrap, self.names, self.directory / state, **tables)
        create_companions(settings, self.directory)
        environment = recording.environment(self.directory / "runs")
        return WorkerProcess(
            recording.APP, settings, directory=self.directory, name=name, environment=environment
        )

    def make(self, kind: str) -> bool:
        """Makes a deleted topic as `laneway topics create` does; False while its old self still goes."""
        try:
            if kind == "source":
                self.cluster.create_topic(self.names.source, 1)
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
