"""`laneway offsets reset` and `export` on a group with a ledger: what is said before is what happens then."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from laneway.consumer.kafka.cluster import Cluster as KafkaAdmin
from laneway.consumer.kafka.cluster import Committed
from laneway.consumer.operations import reset
from laneway.errors import RefusedError
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.operating import CANARY, Desk, desk, note
from tests.broker.worker_process import SESSION_TIMEOUT_MS, load_settings
from tests.cli.command import Said
from tests.waiting import eventually

BY = ("--reason", "an exercise", "--actor", "ann")


def move(at: Desk, *words: str) -> Said:
    """Run `offsets reset` where the ledger is, unasked."""
    said = at.local("offsets", "reset", *words, *BY, "-y", "-o", "json")
    assert CANARY not in said.out + said.err
    return said


def moved(at: Desk, *words: str) -> dict[str, Any]:
    """The same, of one partition, and done."""
    said = move(at, *words)
    assert said.code == 0, said
    [row] = said.items
    return row


def at_rest(at: Desk) -> None:
    """Stop the worker and wait until the group has no member."""
    at.worker.stop()
    nobody(at)


def nobody(at: Desk) -> None:
    """Wait until the group has no member; one that was killed stays until its session is over."""

    def empty() -> bool:
        rows = at.laneway("offsets", "show", "-o", "json").items
        assert not any(row["member"] for row in rows)
        return True

    eventually(empty, 3 * SESSION_TIMEOUT_MS / 1000 + 10, "the group to be empty", poll_s=0.2)


def committed(at: Desk, partition: int = 0) -> int | None:
    """What the group has committed."""
    return at.cluster.committed(at.names.group, at.names.source)[partition]


@pytest.mark.parametrize("replication", ["changelog", "local"])
def test_back_and_forward(cluster: Cluster, names: Names, tmp_path: Path, replication: str) -> None:
    """Case 40: back repeats nothing, forward loses what was said, and the worker starts again after each.

    The offset is read back, a worker tells who set it, and it starts also when it was killed just after.
    """
    at = desk(cluster, names, tmp_path, partitions=2, leaves=True, ledger={"replication": replication})
    at.publish(*(note("a", number) for number in (1, 2, 3)), second(note("b", 1)))
    with at.worker.start():
        at.did("a", "1", "2", "3")
        at.settled()
        at_rest(at)
        row = moved(at, "--to", "start", "--partition", "0")
        end = cluster.end_offsets(names.source)[0]
        assert (row["before"], row["after"], row["now"], row["result"]) == (end, 0, 0, "set")
        assert (row["again"], row["suppressed"], row["runs"], row["lost"]) == (3, 3, 0, 0)
        assert committed(at) == 0
        shown, _ = at.laneway("offsets", "show", "-o", "json").items
        assert "offset set by ann: an exercise" in shown["blocked_by"]

        # Three records that nobody has seen: one key misses a number then, another begins too late.
        at.publish(note("a", 4), *map(second, (note("b", 2), note("b", 3), note("c", 1))))
        wanted = cluster.end_offsets(names.source)[1]
        at.publish(*map(second, (note("b", 4), note("d", 1))))
        to = ("--partition", "1", "--to")
        dry = at.local("offsets", "reset", *to, str(wanted), *BY, "--dry-run", "-o", "json")
        assert dry.code == 0
        assert committed(at, 1) == wanted - 3
        row = moved(at, *to, str(wanted))
        assert {**row, "result": "would-set", "now": None} == dry.items[0]
        assert (row["lost"], row["gaps"], row["gaps_now"]) == (3, 2, 1)
        assert row["lost_at"] == [wanted - 3, wanted - 2, wanted - 1]
        # Not yet lost: nothing has started there.
        assert moved(at, *to, str(wanted - 3))["runs"] == 3
        moved(at, *to, "+3")

        at.worker.start()
        at.did("d", "1")
        at.did("a", "1", "2", "3", "4")
        case_id = at.case("b", "sequence-gap")
        at.settled()
        said = f"offsets {wanted - 3} to {wanted} are passed over, as 'ann' said: 'an exercise'"
        assert said in at.worker.stderr()
        said = f"{names.source}-0: that offset is no worker's: 'ann' said: 'an exercise'"
        assert said in at.worker.stderr()
        if replication == "changelog":
            # The first offset that this worker has committed stands beyond what its ledger began with.
            at.worker.kill()
            at.worker.start()
        assert at.resolve(case_id, "set-next", "4").code == 0
        at.did("b", "1", "4")
        at.settled()
        at_rest(at)
        # The ledger knows by now that they were passed over: no way back brings them.
        row = moved(at, *to, "start")
        assert (row["again"], row["suppressed"], row["runs"]) == (6, 6, 0)


def second(record: Outgoing) -> Outgoing:
    """The same in partition 1."""
    return dataclasses.replace(record, partition=1)


def test_a_live_group_is_left_alone(
    cluster: Cluster, names: Names, tmp_path: Path, group_protocol: str
) -> None:
    """Case 40: with members it is exit 4; of one that joins after the last look the brokers know."""
    at = desk(cluster, names, tmp_path, leaves=True, group_protocol=group_protocol)
    at.publish(note("a", 1), note("a", 2))
    with at.worker.start():
        at.did("a", "1", "2")
        at.settled()
        before = committed(at)
        said = move(at, "--to", "start")
        assert (said.code, said.out) == (4, "")
        assert "the group is live: 1 member" in said.err
        settings = load_settings(at_settings(at), tmp_path)
        with KafkaAdmin(settings) as admin:
            with pytest.raises(RefusedError, match="joined the group meanwhile"):
                admin.commit(names.group, {(names.source, 0): Committed(0)})
            moves = reset.planned(admin, names.group, [names.source], [], reset.goal_of("start"))
            with pytest.raises(RefusedError, match="the group is live"):
                reset.write(admin, names.group, moves, "ann", "an exercise")
        assert committed(at) == before
        at_rest(at)
        assert moved(at, "--to", "-1")["after"] == (before or 0) - 1
        # Somebody else was faster than the answer to the question.
        with KafkaAdmin(settings) as admin:
            moves = reset.planned(admin, names.group, [names.source], [], reset.goal_of("start"))
            cluster.commit(names.group, names.source, {0: 2})
            with pytest.raises(RefusedError, match="has moved meanwhile"):
                reset.write(admin, names.group, moves, "ann", "an exercise")
        assert committed(at) == 2


def at_settings(at: Desk) -> dict[str, Any]:
    """What the worker of a desk is configured with, as far as an operator needs it."""
    return {"bootstrap": at.cluster.bootstrap, "group": at.names.group, "sources": [at.names.source]}


def test_an_old_ledger_has_a_way_out(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """A worker's offset beyond its ledger is refused at start; one set on purpose lets it go on there."""
    at = desk(cluster, names, tmp_path, leaves=True, ledger={"replication": "local"})
    at.publish(note("a", 1), note("b", 1))
    with at.worker.start():
        at.did("a", "1")
        at.settled()
        at_rest(at)
        at.publish(note("b", 2))
        # As a worker on another machine would have left it.
        with KafkaAdmin(load_settings(at_settings(at), tmp_path)) as admin:
            assert not admin.commit(names.group, {(names.source, 0): Committed(3, '{"movedMs":1}')})
        at.worker.start()
        assert at.worker.wait() == 4
        nobody(at)
        said = move(at, "--to", "start")
        assert said.code == 4
        assert "it is an old one" in said.err
        assert committed(at) == 3
        said = move(at, "--to", "+0")
        assert said.code == 0
        assert "the ledger ends at 2" in said.err
        at.publish(note("a", 2))
        at.worker.start()
        at.did("a", "1", "2")
        assert at.runs("b") == ["ran b/1 hello"]
        # Without a ledger at all nobody can say what would be repeated, unless asked to go on blindly.
        at_rest(at)
        shutil.rmtree(tmp_path / "state")
        said = move(at, "--to", "start")
        assert said.code == 4, said
        assert "--blind" in said.err
        assert committed(at) == 4
        assert moved(at, "--to", "start", "--blind")["runs"] is None


def test_a_new_group_begins_where_it_is_told(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """Where no worker ever committed there is no ledger to miss: it starts at the offset that was set."""
    at = desk(
        cluster,
        names,
        tmp_path,
        leaves=True,
        ledger={"replication": "local"},
        lanes={"first_sequence": "any"},
    )
    at.publish(note("a", 1), note("a", 2))
    [row] = move(at, "--to", "1", "--source", names.source).items
    assert (row["before"], row["now"], row["ledger"], row["lost"]) == (None, 1, None, 1)
    with at.worker.start():
        at.did("a", "2")
        at.settled()


def test_a_file_there_and_back(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """What export wrote is set again; a file of another group, of a topic made anew, or none is refused."""
    at = desk(cluster, names, tmp_path, leaves=True, partitions=2)
    at.publish(note("a", 1), note("a", 2))
    cluster.commit(names.group, names.source, {0: 1})
    file = tmp_path / "offsets.json"
    assert at.laneway("offsets", "export", str(file)).code == 0
    written = json.loads(file.read_text())
    assert [(row["partition"], row["offset"]) for row in written["items"]] == [(0, 1), (1, None)]
    assert (written["schema"], written["group"]) == (1, names.group)
    assert json.loads(at.laneway("offsets", "export", "-").out)["items"] == written["items"]

    assert moved(at, "--to", "end", "--partition", "0")["now"] == 2
    row = moved(at, "--from-file", str(file))
    assert (row["partition"], row["before"], row["now"]) == (0, 2, 1)

    def refused(code: int, words: str, **changed: Any) -> None:
        other = tmp_path / "other.json"
        other.write_text(json.dumps({**written, **changed}))
        said = move(at, "--from-file", str(other))
        assert (said.code, said.out) == (code, ""), said
        assert words in said.err
        assert committed(at) == 1

    refused(4, "offsets of group", group="another")
    refused(4, "offsets of cluster", cluster_id="another")
    refused(4, "made anew since", items=[{**written["items"][0], "topic_id": "x"}])
    refused(4, "is outside the log", items=[{**written["items"][0], "offset": 9}])
    refused(2, "no file of", kind="topics.plan")
    refused(2, "schema 2", schema=2)
    refused(2, "twice", items=[written["items"][0]] * 2)
    refused(2, "cannot be understood", items=[{"topic": 3}])

    for words, code in (
        (("--to", "7"), 4),
        (("--to", "yesterday"), 2),
        (("--to", "start", "--partition", "9"), 2),
        ((), 2),
        (("--to", "start", "--from-file", str(file)), 2),
    ):
        assert move(at, *words).code == code, words
    asked = at.local("offsets", "reset", "--to", "start", *BY)
    assert (asked.code, asked.out) == (2, "")
    assert "give -y" in asked.err
    assert committed(at) == 1
