"""docs/operations/keys.md, executed from its first line to its last."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.broker.cases_page import lines_of, typed_line
from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.kafka import REPOSITORY
from tests.broker.operating import CANARY, Desk, desk, note, typed
from tests.waiting import eventually

PAGE = REPOSITORY / "docs" / "operations" / "keys.md"
KEY = "customer-17"


def test_each_line_works_as_it_stands(
    cluster: Cluster, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the key stands, what else stands, pause and resume of key, partition, group: each is 0."""
    at = desk(cluster, names, tmp_path, ledger={"replication": "changelog"})
    monkeypatch.chdir(tmp_path)
    at.publish(note(KEY, 1), note("gap", 1), note("gap", 3))
    lines = lines_of(PAGE.read_text(encoding="utf-8"))
    with at.worker.start():
        at.case("gap", "sequence-gap")
        at.settled()
        said = {}
        sequence = 1
        for line in lines:
            words = typed_line(line, bootstrap=cluster.bootstrap, group=names.group)
            said[line] = typed(*words)
            assert said[line].code == 0, (line, said[line])
            assert CANARY not in said[line].out + said[line].err
            if words[0] == "pause":
                before = at.runs(KEY)
                sequence += 1
                at.publish(note(KEY, sequence))
                if "--lane" in words:
                    at.settled()
                else:
                    why = words[words.index("--reason") + 1]
                    eventually(partial(blocked_by, at, why), 30, "the reason beside the lag", poll_s=0.2)
                assert at.runs(KEY) == before, line
            at.did(KEY, *(str(n) for n in range(1, sequence + (words[0] != "pause"))))
    assert len(lines) == 9
    assert "sequence 2 runs when it comes" in said[lines[0]].out
    assert "gap" in said[lines[1]].out
    # Nothing has waited for ten minutes.
    assert "gap" not in said[lines[2]].out


def blocked_by(at: Desk, reason: str) -> bool:
    """Whether there is lag, and this reason beside it."""
    [row] = at.laneway("offsets", "show", "-o", "json").items
    return bool(row["lag"]) and reason in (row["blocked_by"] or "")
