"""A person decides: commands typed at a real group, applied by its worker, seen in what its handler did."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.broker.cluster import Cluster, Outgoing
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
    """Nobody answers: exit 5, and how to look; the command waits, and the key's next owner applies it."""
    at_desk.publish(note("k", 1), note("k", 3))
    with at_desk.worker.start():
        gap = at_desk.case("k", "sequence-gap")
        at_desk.settled()
        at_desk.worker.stop()
        said = at_desk.resolve(gap, "skip", "--wait", "0.5")
        assert said.code == 5
        assert said.items[0]["result"] == "queued"
        assert f"laneway review show {gap}" in said.err
        assert "stays queued for the worker that owns the partition" in said.err
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
    # Only where the transaction was never committed the outcome is unknown, and it runs with the same key.
    assert at.runs("k").count("ran k/2 needs the calendar") == (2 if step == "offsets" else 1)
    resolved = [
        json.loads(message.value() or b"")
        for message in cluster.read_topic(f"{names.source}.{names.group}.review")
        if b'"event":"resolved"' in (message.value() or b"")
    ]
    assert {each["caseId"] for each in resolved} == {case}
    if replication == "changelog":
        assert len(resolved) == 1


def test_what_is_refused_before_it_is_sent(at_desk: Desk, tmp_path: Path) -> None:
    """An action that a reason does not permit is exit 4 and names the permitted ones; no terminal is exit 2.

    A corrected value is compared by the paths of its members, never a value unless asked for; one that
    cannot stand for the record is refused. Nothing of all this reaches the commands topic.
    """
    at_desk.publish(note("k", 1), note("k", 2, 7))
    right, wrong = tmp_path / "right.json", tmp_path / "wrong.json"
    right.write_bytes(note("k", 2, "corrected", version=1).value or b"")
    wrong.write_bytes(note("k", 3, "corrected", effect="k/2").value or b"")
    with at_desk.worker.start():
        case = at_desk.case("k", "rejected")
        words = ("review", "resolve", case, "--reason", "r", "--action")
        refused = at_desk.laneway(*words, "run-again", "-y")
        assert refused.code == 4
        assert "permitted: replay, replay-with, skip, discard, mark-done" in refused.err
        assert at_desk.laneway(*words, "skip").code == 2
        assert "no case 'nobody'" in at_desk.resolve("nobody", "skip").err
        compared = at_desk.laneway(*words, "replay-with", str(right), "--dry-run")
        assert (compared.code, "~ /payload/text" in compared.err) == (0, True)
        assert "corrected" not in compared.err.replace("corrected value", "")
        assert CANARY not in compared.out + compared.err
        told = at_desk.laneway(*words, "replay-with", str(right), "--dry-run", "--show-payload")
        assert "~ /payload/text  7 -> 'corrected'" in told.err
        other = at_desk.laneway(*words, "replay-with", str(wrong), "-y")
        assert (other.code, "another sequence" in other.err) == (4, True)
        unread = at_desk.laneway(
            *words, "replay-with", str(wrong), "--dry-run", "-X", "envelope.message_id=header:id"
        )
        assert (unread.code, "the worker judges" in unread.err) == (0, True)
        assert at_desk.cluster.end_offsets(f"{at_desk.names.source}.{at_desk.names.group}.commands") == {0: 0}


def test_a_key_is_found_on_any_machine(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """With a changelog -b and -g are enough to explain a key, and to pause it where it lives."""
    at = desk(cluster, names, tmp_path, partitions=3, ledger={"replication": "changelog"})
    evil = "k\x1b[2J\u202e"
    records = [note(evil, 1), note(evil, 3), note("other", 1)]
    at.publish(*(Outgoing(each.value, each.key, each.headers, 2) for each in records))
    with at.worker.start():
        at.case(evil, "sequence-gap")
        at.settled()
        explained = at.laneway("lanes", "explain", evil)
        assert explained.code == 0, explained
        assert "partition       2" in explained.out
        assert all(char.isprintable() or char == "\n" for char in explained.out + explained.err)
        line = next(line for line in explained.out.splitlines() if "--action skip" in line)
        assert at.paste(line).code == 0
        at.did(evil, "1", "3")
        paused = at.laneway("pause", "--lane", evil, "--reason", "wrong address", "-y", "-o", "json")
        assert [(row["partition"], row["result"]) for row in paused.items] == [(2, "applied")]
        at.publish(Outgoing(note(evil, 4).value, b"k", (), 2), Outgoing(note("other", 2).value, b"k", (), 2))
        at.did("other", "1", "2")
        [row] = at.laneway("lanes", "list", "-o", "json").items
        assert (row["key"], row["parked"], row["paused_because"]) == (evil, 1, "wrong address")
        resumed = at.laneway("resume", "--lane", evil, "--reason", "corrected", "-y", "-o", "json")
        assert [row["partition"] for row in resumed.items] == [2]
        at.did(evil, "1", "3", "4")
        again = at.laneway("resume", "--lane", evil, "--reason", "twice", "-y")
        assert (again.code, "not paused" in again.err) == (4, True)
    assert CANARY not in explained.out + paused.out


def test_a_key_that_is_not_known_is_paused_everywhere(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """Where no ledger can be read every partition is told, and the first record of the key waits."""
    at = desk(cluster, names, tmp_path, partitions=3)
    with at.worker.start():
        paused = at.laneway(
            "pause", "--lane", "new", "--reason", "not yet", "-y", "-o", "json", "--wait", "30"
        )
        assert [row["partition"] for row in paused.items] == [0, 1, 2]
        assert "every partition is told" in paused.err
        at.publish(note("new", 1), note("k", 1))
        at.did("k", "1")
        assert at.runs("new") == []
        resumed = at.laneway("resume", "--lane", "new", "--reason", "now", "-y", "-o", "json")
        assert [row["result"] for row in resumed.items] == ["applied"] * 3
        at.did("new", "1")
        assert at.laneway("pause", "--partition", "3", "--reason", "x", "-y").code == 2
        one = at.laneway("pause", "--partition", "1", "--reason", "x", "-y", "-o", "json", "--dry-run")
        assert [(row["partition"], row["result"]) for row in one.items] == [(1, "would-send")]
