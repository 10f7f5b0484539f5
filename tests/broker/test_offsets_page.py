"""docs/operations/offsets.md, executed from its first line to its last."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.broker.cases_page import lines_of
from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.kafka import REPOSITORY
from tests.broker.operating import CANARY, desk, note, typed
from tests.broker.test_offsets_reset import at_rest, committed

PAGE = REPOSITORY / "docs" / "operations" / "offsets.md"
KEY = "customer-17"


def test_each_line_works_as_it_stands(
    cluster: Cluster, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Export, a rerun beside the work, resets of the stopped group and back to the file: each is 0."""
    at = desk(cluster, names, tmp_path, leaves=True, ledger={"replication": "changelog"})
    monkeypatch.chdir(tmp_path)
    at.publish(note(KEY, 1), note(KEY, 2), note("other", 1))
    lines = lines_of(PAGE.read_text(encoding="utf-8"))
    with at.worker.start():
        at.did("other", "1")
        at.settled()
        before = committed(at)
        for line in lines:
            stays = {"localhost:9092": cluster.bootstrap, "reminders": names.group}
            words = [stays.get(word, word) for word in shlex.split(line)[1:]]
            if words[0] == "rerun" or words[1] == "reset":
                words.append("-y")
            if words[1] == "reset" and at.worker.running:
                at_rest(at)
            said = typed(*words)
            assert said.code == 0, (line, said)
            assert CANARY not in said.out + said.err
            if "--key" in words:
                at.did(KEY, "1", "2", "1", "2")
                assert "run 1: 2 effects of 1 key" in said.err
            if "-1" in words:
                assert committed(at) == cluster.end_offsets(names.source)[0] - 1
    assert len(lines) == 9
    assert committed(at) == before
