"""A team's own files may be called what ours are: consumer.py, store.py, cli.py, lanes.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker import recording
from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

NAMES = ("cli", "consumer", "lanes", "store")

# Each file holds a pipeline, and its handler meets the other three: a name of ours found in their place
# would have no MARK.
FILE = """
from laneway import Pipeline

MARK = "{name} of the team"
pipeline = Pipeline()


@pipeline.handler
def handle(delivery):
    import cli, consumer, lanes, store

    return ", ".join([__file__, *(module.MARK for module in (cli, consumer, lanes, store))])
"""


@pytest.mark.parametrize(
    "app",
    ["./consumer.py:pipeline", "consumer:pipeline", "./store.py:pipeline", "cli:pipeline", "lanes:pipeline"],
)
def test_a_handler_in_a_file_named_like_our_parts_works(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path, app: str
) -> None:
    """`laneway run` takes the team's file, and the files beside it, whatever they are called."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(FILE.format(name=name))
    cluster.create_topic(names.source, 1)
    settings = settings_of(kafka.bootstrap, names, tmp_path / "state")
    create_companions(settings, tmp_path)
    cluster.produce(names.source, [recording.event("k", 1)])
    with WorkerProcess(app, settings, directory=tmp_path) as worker:
        worker.start()
        eventually(lambda: cluster.committed(names.group, names.source) == {0: 1}, 30, "a commit", poll_s=0.2)
        worker.stop()
    saved = [line["resultKey"] for line in worker.journal() if line["event"] == "result_saved"]
    own = tmp_path / f"{Path(app.partition(':')[0]).stem}.py"
    assert saved == [", ".join([str(own), *(f"{name} of the team" for name in NAMES)])]
