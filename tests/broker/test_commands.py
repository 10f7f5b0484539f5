"""A person decides: commands typed at a real group, applied by its worker, seen in what its handler did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.operating import CANARY, Desk, desk, note


@pytest.fixture
def at_desk(cluster: Cluster, names: Names, tmp_path: Path) -> Desk:
    """A group of its own."""
    return desk(cluster, names, tmp_path)


def test_a_late_predecessor_never_runs_after_a_skip(at_desk: Desk) -> None:
    """1, 2, 4, 5 arrive: 4 and 5 wait behind one case until 3 is skipped with a reason (case 6).

    A late 3 does not run: it opens a case of its own, which says so.
    """
    at_desk.publish(*(note("k", n) for n in (1, 2, 4, 5)))
    with at_desk.worker.start():
        gap = at_desk.case("k", "sequence-gap")
        at_desk.did("k", "1", "2")
        said = at_desk.resolve(gap, "skip", reason="never published")
        assert said.code == 0, said
        assert [(row["result"], row["actor"], row["said"]) for row in said.items] == [
            ("applied", "ann", "never published")
        ]
        at_desk.did("k", "1", "2", "4", "5")
        at_desk.publish(note("k", 3), note("k", 6))
        at_desk.did("k", "1", "2", "4", "5", "6")
        stale = at_desk.case("k", "sequence-stale")
        shown = at_desk.laneway("review", "show", gap)
        assert "closed as skip by ann: never published" in " ".join(shown.out.split())
        assert at_desk.resolve(stale, "discard").code == 0
        assert at_desk.cases("k") == []
        at_desk.did("k", "1", "2", "4", "5", "6")
    assert CANARY not in said.out + said.err + shown.out
