"""Batch handlers on a real broker: the same promises as for any other."""

from __future__ import annotations

from pathlib import Path

from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.kinds import tell_the_story


def test_permits_through_batch_handlers(
    kafka: KafkaBroker, cluster: Cluster, names: Names, group_protocol: str, tmp_path: Path
) -> None:
    """A kill and a leave in the middle: every permit comes to its end, once and in order (S11, S16, S25).

    In threads with the classic protocol, on an event loop with the newer one. The first takes several of a
    lane, and says where it failed; the other answers for each.
    """
    app = "in_batches" if group_protocol == "classic" else "in_async_batches"
    tell_the_story(kafka, cluster, names, group_protocol, tmp_path, app)
