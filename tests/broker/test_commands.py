"""A person decides: commands typed at a real group, applied by its worker, seen in what its handler did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.operating import CANARY, Desk, desk, note
from tests.waiting import eventually


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


def test_a_paused_key_waits_and_goes_on(at_desk: Desk) -> None:
    """What comes for a paused key is parked, others go on; resumed, it runs in order; each is told (S18)."""
    at_desk.publish(note("quiet", 1), note("loud", 1))
    with at_desk.worker.start():
        at_desk.did("quiet", "1")
        paused = at_desk.laneway("pause", "--lane", "quiet", "--reason", "wrong address", "-y", "-o", "json")
        assert paused.code == 0, paused
        at_desk.publish(note("quiet", 2), note("quiet", 3), note("loud", 2))
        at_desk.did("loud", "1", "2")
        at_desk.settled()
        at_desk.did("quiet", "1")
        told = at_desk.local("lanes", "list", "--state", "paused", "-o", "json")
        assert [(row["key"], row["parked"], row["paused_because"]) for row in told.items] == [
            ("quiet", 2, "wrong address")
        ]
        explained = at_desk.local("lanes", "explain", "quiet")
        assert "wrong address" in explained.out
        again = at_desk.laneway("pause", "--lane", "quiet", "--reason", "again", "-y")
        assert (again.code, "paused already" in again.err) == (4, True)
        line = next(line for line in explained.out.splitlines() if line.startswith("laneway resume"))
        resumed = at_desk.paste(line)
        assert resumed.code == 0, resumed
        at_desk.did("quiet", "1", "2", "3")
    assert CANARY not in explained.out + told.out


def test_a_paused_group_says_why_where_its_lag_is_shown(at_desk: Desk) -> None:
    """The reason of a pause stands in BLOCKED-BY beside the lag, outlives the worker, and ends with it."""
    at_desk.publish(note("k", 1))
    with at_desk.worker.start():
        at_desk.did("k", "1")
        assert at_desk.laneway("pause", "--reason", "moving house", "-y").code == 0
        at_desk.worker.kill()
        at_desk.worker.start()
        at_desk.publish(note("k", 2))

        def told() -> bool:
            row = at_desk.laneway("offsets", "show", "-o", "json").items[0]
            assert row["lag"] == 1, row
            assert "moving house" in (row["blocked_by"] or ""), row
            return True

        eventually(told, 30, "the reason beside the lag", poll_s=0.2)
        assert at_desk.laneway("resume", "--reason", "moved", "-y").code == 0
        at_desk.did("k", "1", "2")
