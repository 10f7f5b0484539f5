"""`laneway run --profile-cycle`: where the time of a record went, on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway.consumer.profile import Stage
from tests.broker import recording
from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually


@pytest.mark.parametrize("replication", ["changelog", "local"])
def test_a_worker_tells_where_its_time_went(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path, replication: str
) -> None:
    """When it stops, every stage that a record passes has taken some of its time, and handlers have too."""
    cluster.create_topic(names.source, 1)
    settings = settings_of(kafka.bootstrap, names, tmp_path / "state", ledger={"replication": replication})
    create_companions(settings, tmp_path)
    cluster.produce(names.source, [recording.event("k", number) for number in range(1, 201)])
    environment = recording.environment(tmp_path / "runs")
    with WorkerProcess(
        recording.APP,
        settings,
        directory=tmp_path,
        environment=environment,
        arguments=("--profile-cycle",),
    ) as worker:
        worker.start()
        eventually(
            lambda: cluster.committed(names.group, names.source) == {0: 200}, 30, "the commit", poll_s=0.2
        )
        worker.stop()
        said = worker.stderr()
    assert "200 records in " in said
    for name in [*(stage.value for stage in Stage), "beside handlers", "all "]:
        row = next(line for line in said.splitlines() if name in line and line.rstrip().endswith("%"))
        assert float(row.split()[-2]) > 0, row
