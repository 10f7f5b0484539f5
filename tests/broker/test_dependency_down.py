"""A dependency is down for a while: nothing is judged by it, and everything waits in its place (case 25)."""

from __future__ import annotations

from pathlib import Path

from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.operating import desk, note
from tests.waiting import eventually

KEYS = 40
RECORDS = 5
DOWN = "bank-is-down"
PATIENCE_MS = 200
"""How long the handler of `operating` asks to be left alone each time."""


def test_an_outage_spends_no_attempt_and_dead_letters_nothing(
    cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """Many keys need what is down: the breaker pauses intake, few ask, none is retried or refused (case 25).

    Why it stands still is told beside its lag. Once it is up again, each record runs once, in order.
    """
    at = desk(cluster, names, tmp_path)
    companions = [f"{names.source}.{names.group}.{kind}" for kind in ("retry", "dlq", "review")]
    at.mark(DOWN)
    with at.worker.start():
        at.publish(*(note(f"k{key}", n, "needs the bank") for n in (1, 2) for key in range(KEYS)))

        def stands_still() -> bool:
            shown = at.laneway("offsets", "show", "-o", "json")
            assert shown.code == 0, shown
            row = shown.items[0]
            assert "a dependency is unavailable to many lanes" in (row["blocked_by"] or ""), row
            return True

        eventually(stands_still, 30, f"the breaker\n{at.worker.stderr()[-2000:]}", poll_s=0.2)
        asked = len(at.runs())
        # Ten times as long as a lane waits: each of them would have spent its attempts by now.
        at.publish(*(note(f"k{key}", n, "needs the bank") for n in (3, 4, 5) for key in range(KEYS)))
        eventually(lambda: len(at.runs()) >= asked + 10, 30, "some that ask again", poll_s=0.1)
        assert {line.split()[0] for line in at.runs()} == {"asked"}
        assert stands_still()
        assert len(at.runs()) < KEYS * 10, "one at a time asks, not all of them"
        at.mark(DOWN, there=False)
        eventually(lambda: len(ran(at.runs())) == KEYS * RECORDS, 60, "everything", poll_s=0.2)
        at.settled()
        at.worker.stop()
    for key in range(KEYS):
        assert ran(at.runs(f"k{key}")) == [f"k{key}/{n}" for n in range(1, RECORDS + 1)]
    journal = [line for line in at.worker.journal() if line["event"] in {"running", "result_saved"}]
    assert {line["attempt"] for line in journal} == {1}, "an outage spends no attempt"
    assert {topic: sum(cluster.end_offsets(topic).values()) for topic in companions} == dict.fromkeys(
        companions, 0
    )


def ran(lines: list[str]) -> list[str]:
    """Effects that happened, in order."""
    return [line.split()[1] for line in lines if line.startswith("ran ")]
