"""A person decides: commands typed at a real group, applied by its worker, seen in what its handler did."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.operating import CANARY, Desk, desk, note
from tests.cli.command import run
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


def test_a_failure_runs_once_the_handler_is_mended(at_desk: Desk) -> None:
    """A bug holds its key; another release of the handler is started, and the replay succeeds in order."""
    at_desk.publish(note("k", 1), note("k", 2, "meets a bug"), note("k", 3))
    with at_desk.worker.start():
        case = at_desk.case("k", "unclassified-failure")
        again = at_desk.resolve(case, "replay")
        assert again.items[0]["next_case"], again
        at_desk.worker.stop()
        app = at_desk.directory / "app" / "notes.py"
        app.write_text(app.read_text().replace('raise ValueError("a bug")', "text = 'mended'"))
        at_desk.worker.start()
        said = at_desk.resolve(again.items[0]["next_case"], "replay", "--wait", "30")
        assert (said.code, said.items[0]["outcome"], said.items[0]["next_case"]) == (0, "succeeded", None)
        at_desk.did("k", "1", "2 meets a bug", "3")


def test_nobody_home(at_desk: Desk) -> None:
    """Nobody answers: exit 5, and how to look; the command waits, and the next worker applies it."""
    at_desk.publish(note("k", 1), note("k", 3))
    with at_desk.worker.start():
        gap = at_desk.case("k", "sequence-gap")
        at_desk.settled()
        at_desk.worker.stop()
        said = at_desk.resolve(gap, "skip", "--wait", "0.5")
        assert said.code == 5
        assert said.items[0]["result"] == "queued"
        assert f"laneway review show {gap}" in said.err
        shown = at_desk.laneway("review", "show", gap)
        assert "queued: skip by ann (looked into it)" in shown.out
        many = (
            "review",
            "resolve",
            "--where",
            "reason=sequence-gap",
            "--action",
            "skip",
            "--reason",
            "x",
            "-y",
        )
        left = at_desk.laneway(*many, "-o", "json")
        assert (left.code, json.loads(left.out)["chosen"], json.loads(left.out)["queued_before"]) == (5, 0, 1)
        at_desk.worker.start()
        at_desk.did("k", "1", "3")
        at_desk.settled()
        shown = at_desk.laneway("review", "show", gap, "-o", "json")
    [row] = shown.items
    assert (row["state"], row["resolved_by"], row["said"]) == ("resolved", "ann", "looked into it")
    [line] = json.loads(shown.out)["commands"]
    assert line.endswith(" skip by ann (looked into it): applied")


def test_two_actions_at_once(at_desk: Desk) -> None:
    """Of two people who decide one case at the same time one is applied; the other is told, and exits 4."""
    at_desk.publish(note("k", 1), note("k", 2, "meets a bug"), note("k", 3))
    with at_desk.worker.start(), ThreadPoolExecutor(2) as people:
        case = at_desk.case("k", "unclassified-failure")
        at_desk.settled()
        at_desk.worker.stop()
        options = ("--reason", "r", "-y", "-o", "json", "--wait", "40")
        where = ("-b", at_desk.cluster.bootstrap, "-g", at_desk.names.group)
        both = [
            people.submit(
                run, at_desk.directory, "review", "resolve", case, "--action", action, *options, *where
            )
            for action in ("skip", "mark-done")
        ]
        commands = f"{at_desk.names.source}.{at_desk.names.group}.commands"
        eventually(lambda: at_desk.cluster.end_offsets(commands)[0] == 2, 30, "both commands", poll_s=0.2)
        at_desk.worker.start()
        said = [each.result() for each in both]
        at_desk.did("k", "1", "3")
    assert sorted(each.code for each in said) == [0, 4], said
    refused = next(each for each in said if each.code == 4)
    assert "is not open: it is resolved" in refused.err
    assert refused.items[0]["result"] == "refused"


@pytest.mark.parametrize(
    ("replication", "step"),
    [
        ("local", "written"),
        ("local", "synced"),
        ("changelog", "offsets"),
        ("changelog", "committed"),
    ],
)
def test_a_worker_dies_between_applying_and_answering(
    cluster: Cluster, names: Names, tmp_path: Path, replication: str, step: str
) -> None:
    """Killed behind a step of the cycle that applies a command: applied once, and its sender is answered."""
    at = desk(cluster, names, tmp_path, ledger={"replication": replication})
    at.publish(note("k", 1), note("k", 2, "needs the calendar"), note("k", 3))
    with at.worker.start(), ThreadPoolExecutor(1) as people:
        case = at.case("k", "attempts-exhausted")
        at.settled()
        at.worker.stop()
        at.mark("calendar-is-up")
        answer = people.submit(
            run,
            at.directory,
            *("review", "resolve", case, "--action", "replay", "--reason", "r", "-y", "-o", "json"),
            *("--wait", "50", "-b", cluster.bootstrap, "-g", names.group),
        )
        commands = f"{names.source}.{names.group}.commands"
        eventually(lambda: cluster.end_offsets(commands)[0] >= 1, 30, "the command", poll_s=0.2)
        at.worker.crash_at = f"{step}:1:settling"
        at.worker.start()
        assert at.worker.wait() == -9, at.worker.stderr()
        at.worker.crash_at = None
        at.worker.start()
        said = answer.result()
        assert (said.code, said.items[0]["outcome"]) == (0, "succeeded"), said
        at.settled()
        eventually(lambda: at.runs("k")[-1:] == ["ran k/3 hello"], 30, "the follower")
        at.worker.stop()
    # Where the outcome was not durable yet it runs again, with the same effect key; never after that.
    before_it_was_durable = step in ("written", "offsets")
    runs = at.runs("k").count("ran k/2 needs the calendar")
    assert runs in ((1, 2) if before_it_was_durable else (1,)), at.runs("k")
    resolved = [
        json.loads(message.value() or b"")
        for message in cluster.read_topic(f"{names.source}.{names.group}.review")
        if b'"event":"resolved"' in (message.value() or b"")
    ]
    assert {each["caseId"] for each in resolved} == {case}
    if replication == "changelog":
        assert len(resolved) == 1
