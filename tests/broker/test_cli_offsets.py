"""`laneway offsets show` while a group is behind: counts, age and owner, under both group protocols."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.cli.command import Said, run
from tests.waiting import eventually

APP = """
import time
from laneway import Delivery, Pipeline

pipeline = Pipeline()

@pipeline.handler
def handle(delivery: Delivery[object]) -> None:
    if delivery.effect_key == "hang":
        time.sleep(600)
"""


def record(effect_key: str) -> Outgoing:
    """A record without order of its own."""
    body = {"messageId": effect_key, "effectKey": effect_key, "version": 1, "payload": {}}
    return Outgoing(json.dumps(body).encode(), partition=0)


def test_lag_has_an_age_a_cause_and_an_owner(
    cluster: Cluster, names: Names, tmp_path: Path, group_protocol: str
) -> None:
    """A record that runs is counted and its lag has an age; once its worker is gone, the row says so."""
    cluster.create_topic(names.source, 2)
    settings = settings_of(
        cluster.bootstrap,
        names,
        tmp_path / "state",
        group_protocol,
        envelope={"message_id": "json:/messageId", "effect_key": "json:/effectKey"},
    )
    create_companions(settings, tmp_path)
    (tmp_path / "hangs.py").write_text(APP)
    cluster.produce(names.source, [record("quick"), record("hang"), record("after")])

    def first_row() -> dict[str, Any]:
        said = run(tmp_path, "offsets", "show", "-b", cluster.bootstrap, "-g", names.group, "-o", "json")
        assert said.code == 0, said
        row = said.items[0]
        assert row["partition"] == 0
        return row

    with WorkerProcess(tmp_path / "hangs.py:pipeline", settings, directory=tmp_path / "w") as worker:
        worker.start()

        def running_row() -> dict[str, Any]:
            row = first_row()
            assert (row["committed"], row["running"]) == (1, 1)
            return row

        row = eventually(running_row, 30, "a running record in the note beside the offset", poll_s=0.2)
        assert (row["log_end"], row["lag"], row["blocked_by"]) == (3, 2, None)
        assert row["member"] == f"laneway-{names.group}"
        assert 0 < row["age_ms"] < 30_000
        worker.kill()

    def ownerless_row() -> dict[str, Any]:
        row = first_row()
        assert row["member"] is None
        return row

    row = eventually(ownerless_row, 30, "the group to lose its member", poll_s=0.2)
    assert (row["committed"], row["lag"], row["running"]) == (1, 2, 0)
    assert row["blocked_by"] == "no member owns it"


def show(directory: Path, bootstrap: str, group: str, *more: str) -> Said:
    """Run `offsets show`."""
    return run(directory, "offsets", "show", "-b", bootstrap, "-g", group, "-o", "json", *more)


def test_lag_of_a_partition_without_a_commit(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """Case 41: nothing committed is null, never 0, and its lag counts from where the log starts now."""
    cluster.create_topic(names.source, 2)
    cluster.produce(names.source, [Outgoing(b"x", partition=number) for number in (0, 1) for _ in range(5)])
    cluster.delete_records(names.source, {1: 2})
    cluster.commit(names.group, names.source, {0: 4})
    said = show(tmp_path, cluster.bootstrap, names.group)
    assert said.code == 0, said
    assert [(row["committed"], row["log_start"], row["lag"]) for row in said.items] == [
        (4, 0, 1),
        (None, 2, 3),
    ]
    assert [row["running"] for row in said.items] == [None, None], "no worker of ours wrote a note"


def test_lag_is_never_negative(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """Case 42: an offset committed beyond the log's end, as after a topic was made anew, is a lag of 0."""
    cluster.create_topic(names.source, 1)
    cluster.produce(names.source, [Outgoing(b"x", partition=0)])
    cluster.commit(names.group, names.source, {0: 9})
    (row,) = show(tmp_path, cluster.bootstrap, names.group).items
    assert (row["committed"], row["log_end"], row["lag"]) == (9, 1, 0)


def test_a_group_that_nobody_knows(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """A group without members and commits is exit 4 with a sentence, never a table that looks like work."""
    cluster.create_topic(names.source, 1)
    for more in ((), ("--source", names.source)):
        said = show(tmp_path, cluster.bootstrap, names.group, *more)
        assert (said.code, said.out) == (4, "")
        assert f"group {names.group}" in said.err
        assert "check -b and -g" in said.err
    missing = show(tmp_path, cluster.bootstrap, names.group, "--source", f"{names.source}-not")
    assert (missing.code, missing.out) == (4, "")
    assert "the source topic does not exist" in missing.err


def test_nobody_answers(tmp_path: Path) -> None:
    """Case 38: each command that needs the cluster leaves with 3 within its timeout when there is none."""
    commands = [("offsets", "show"), ("review", "list"), ("dlq", "list")]
    with ThreadPoolExecutor(len(commands)) as together:
        nobody = ("-b", "127.0.0.1:1", "-g", "g", "--source", "s")
        said = list(together.map(lambda command: run(tmp_path, *command, *nobody), commands))
    assert [(each.code, each.out) for each in said] == [(3, "")] * 3
    assert all(each.err.startswith("laneway: 127.0.0.1:1") for each in said)
