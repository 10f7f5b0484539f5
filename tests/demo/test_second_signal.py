"""A worker that is told twice to stop."""

from __future__ import annotations

from pathlib import Path

from laneway.cli.child import Child, write_settings
from laneway.consumer.embedded import EmbeddedCluster, on_embedded
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.settings.load import load
from laneway.consumer.topics import Kind, topic_names
from tests.demo.test_dev import event
from tests.waiting import eventually

DEADLINE_S = 60.0
ENDLESS = """
import pathlib, time
def handle(delivery):
    pathlib.Path("began").touch()
    time.sleep(3600)
"""


def test_a_second_signal_ends_it_with_one_sentence(tmp_path: Path) -> None:
    """A handler that does not come back: the second SIGTERM ends the worker and says what that means."""
    with EmbeddedCluster() as kafka:
        wanted = load(flags={"group": "g", "sources": ["s"]}, env={}, inspect=True).settings
        settings = on_embedded(
            wanted, kafka.bootstrap, group="g", sources=("s",), state_dir=tmp_path / "state"
        )
        with Cluster(settings) as cluster:
            # Being asked for is what makes a topic here.
            names = topic_names(settings, "s")
            cluster.partition_counts(["s", *(names.of(kind) for kind in Kind)])
        kafka.publish("s", 0, event("k", 1), key=b"k")
        kafka.flush()
        (tmp_path / "app.py").write_text(ENDLESS)
        write_settings(settings, tmp_path)
        with Child("./app.py:handle", tmp_path, journal="journal.ndjson") as worker:
            eventually((tmp_path / "began").exists, DEADLINE_S, "the handler to run")

            def ended() -> bool:
                # Again and again: two signals that come together are one.
                if worker.exit_code() is None:
                    worker.terminate()
                return worker.exit_code() is not None

            eventually(ended, DEADLINE_S, "the worker to end")
            assert worker.exit_code() == 1
            assert worker.last_words().splitlines()[-1] == (
                "laneway: ended at once; what handlers were running comes again, marked redelivered"
            )
