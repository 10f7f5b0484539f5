"""Dead letters again at a real group: typed as a person would, seen in what the handler did (case 29)."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.cases_page import lines_of, typed_line
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.kafka import REPOSITORY, KafkaBroker
from tests.broker.operating import CANARY, Desk, desk, note, typed
from tests.cli.command import Said
from tests.waiting import eventually

REFUSED = "is refused"
FIXED = "release-is-fixed"
BULK = 400


@pytest.fixture(scope="module")
def at_desk(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A group whose keys move past what is refused, at work; each test has keys of its own."""
    tag = uuid.uuid4().hex[:10]
    at = desk(
        Cluster(kafka.bootstrap),
        Names(source=f"src-{tag}", group=f"grp-{tag}"),
        tmp_path_factory.mktemp("letters"),
        lanes={"after_reject": "pass", "max_replays": 2},
    )
    with at.worker.start():
        yield at


def letters(at: Desk) -> list[dict[str, Any]]:
    """The dead letters, as a list has them."""
    said = at.laneway("dlq", "list", "--limit", "10000", "-o", "json")
    assert said.code == 0, said
    return said.items


def letter_of(at: Desk, key: str) -> str:
    """Wait until a key has a dead letter; the id of the newest."""

    def there() -> str:
        found = [row["id"] for row in letters(at) if row["key"] == key]
        assert found
        return str(found[0])

    return eventually(there, 30, f"a dead letter of {key}; the worker said:\n{at.worker.stderr()[-2000:]}")


def replay(at: Desk, *words: str) -> Said:
    """Replay without being asked, with what is known on this machine."""
    return at.local("dlq", "replay", *words, "--reason", "release 12", "--actor", "ann", "-y", "-o", "json")


def refused(at: Desk, *records: Outgoing) -> None:
    """Publish what a release refuses; then there is a better one."""
    at.mark(FIXED, there=False)
    before = len(dead(at))
    at.publish(*records)
    wanted = before + sum(REFUSED.encode() in (record.value or b"") for record in records)
    eventually(lambda: len(dead(at)) == wanted, 30, f"dead letters\n{at.worker.stderr()[-2000:]}")
    at.mark(FIXED)


def test_each_line_of_the_page_works_as_it_stands(at_desk: Desk) -> None:
    """docs/operations/dead-letters.md, executed: look, then one, a corrected one, and all the others."""
    keys = ("one", "corrected", "many", "more")
    refused(at_desk, *(note(f"page-{key}", 1, REFUSED) for key in keys))
    corrected = at_desk.directory / "page.json"
    corrected.write_bytes(note("page-corrected", 1, "corrected").value or b"")
    lines = lines_of((REPOSITORY / "docs/operations/dead-letters.md").read_text(encoding="utf-8"))
    assert len(lines) == 7
    for line in lines:
        key = "page-corrected" if "--with" in line else "page-one"
        words = typed_line(
            line.replace("ID", letter_of(at_desk, key)),
            bootstrap=at_desk.cluster.bootstrap,
            group=at_desk.names.group,
            file=corrected,
        )
        said = typed(*words)
        assert said.code == 0, (line, said)
        assert CANARY not in said.out + said.err
    at_desk.did("page-one", "1 is refused")
    at_desk.did("page-corrected", "1 corrected")
    for key in keys[2:]:
        at_desk.did(f"page-{key}", "1 is refused")


def test_a_letter_runs_again_in_its_own_lane(at_desk: Desk) -> None:
    """One by its place or its message id: in the lane of its group, never through the source topic (case 29).

    Out of order it needs a word for it; twice it is refused, with who replayed it; every line that is
    suggested works; nothing that is printed or written quotes a payload.
    """
    said: list[Said] = []
    refused(
        at_desk,
        note("late", 1),
        note("late", 2, REFUSED),
        note("late", 3),
        note("k", 1),
        note("k", 2, REFUSED),
    )
    late, last = letter_of(at_desk, "late"), letter_of(at_desk, "k")
    at_desk.did("late", "1", "3")
    source = at_desk.cluster.end_offsets(at_desk.names.source)

    shown = at_desk.laneway("dlq", "show", last)
    line = next(line for line in shown.out.splitlines() if line.startswith("laneway dlq replay"))
    said += [shown, at_desk.paste(line)]
    assert said[-1].code == 0, said[-1]
    at_desk.did("k", "1", "2 is refused")

    unasked = at_desk.local("dlq", "replay", late, "--out-of-order", "--reason", "x")
    assert (unasked.code, "no terminal" in unasked.err) == (2, True)
    said += [unasked, replay(at_desk, late), replay(at_desk, "m-late-2")]
    for each in said[-2:]:
        assert each.code == 4
        assert "it would run out of order: its key has moved on to sequence 3" in each.err
        assert "--out-of-order" in each.err
    said.append(replay(at_desk, "m-late-2", "--out-of-order", "--dry-run"))
    assert [row["result"] for row in said[-1].items] == ["would-send"]
    assert "OUT OF ORDER" in said[-1].err
    said.append(replay(at_desk, "m-late-2", "--out-of-order"))
    [row] = said[-1].items
    assert (row["result"], row["outcome"], row["replays"]) == ("applied", "succeeded", 1), row
    at_desk.did("late", "1", "3", "2 is refused")

    said.append(replay(at_desk, late, "--out-of-order"))
    assert said[-1].code == 4
    assert "replayed already, by ann: succeeded" in said[-1].err
    shown = at_desk.laneway("dlq", "show", late)
    assert "replay-letter by ann (release 12): applied, its delivery: succeeded" in shown.out
    assert "laneway dlq replay" not in shown.out, "nothing is offered for what is over"
    at_desk.publish(note("late", 4), note("k", 3))
    at_desk.did("late", "1", "3", "2 is refused", "4")
    at_desk.did("k", "1", "2 is refused", "3")
    assert at_desk.cluster.end_offsets(at_desk.names.source)[0] == source[0] + 2, "two of ours only"
    events = [line for line in at_desk.worker.journal() if line["event"] == "letter_replayed"]
    events = [line for line in events if line["sequenceKey"] in {"k", "late"}]
    assert sorted(line["effectKey"] for line in events) == ["k/2", "late/2"]
    assert all(line["reason"] and line["attempt"] == 2 for line in events)
    for each in said:
        assert CANARY not in each.out + each.err
    review = at_desk.cluster.read_topic(f"{at_desk.names.source}.{at_desk.names.group}.review")
    assert not [m for m in review if CANARY.encode() in (m.value() or b"")]


def test_an_open_case_comes_first_and_what_nobody_could_read_goes_nowhere(
    cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """The case of the key is named and leads on; garbage has no key to go back to, and is told what to do."""
    at = desk(cluster, names, tmp_path)
    at.publish(note("k", 1), note("k", 2, REFUSED), note("k", 3), Outgoing(b"\xff", b"k", partition=0))
    with at.worker.start():
        ident, case = letter_of(at, "k"), at.case("k", "rejected")
        shown = at.laneway("dlq", "show", ident)
        assert "case open" in shown.out
        assert f"laneway review show {case}" in shown.out
        assert "laneway dlq replay" not in shown.out
        for ask in (at.laneway, at.local):
            said = ask("dlq", "replay", ident, "--reason", "x", "-y")
            assert said.code == 4
            assert f"case {case} of its key is open" in said.err
            assert f"laneway review show {case}" in said.err
            assert "runs once more" not in said.err, "nothing is promised that is refused"
        many = at.local("dlq", "replay", "--key", "k", "--reason", "x", "-y", "-o", "json")
        assert (json.loads(many.out)["not_permitted"], json.loads(many.out)["chosen"]) == (1, 0)
        assert case in many.err
        [garbage] = [row["id"] for row in letters(at) if row["effect_key"] is None]
        said = replay(at, garbage)
        assert said.code == 4
        assert "nobody could read whose it is" in said.err
        assert "have its publisher send it again" in said.err
        assert at.resolve(case, "skip").code == 0
        at.did("k", "1", "3")
        at.mark(FIXED)
        assert [row["state"] for row in of_key(at, "k")] == ["open"]
        assert "out of order" in replay(at, ident).err
        assert replay(at, ident, "--out-of-order").items[0]["outcome"] == "succeeded"
        at.did("k", "1", "3", "2 is refused")


def test_a_correction_is_compared_and_runs(at_desk: Desk) -> None:
    """--with FILE: places that differ are told, values only when asked for; another effect is refused."""
    at_desk.publish(note("c", 1), note("c", 2, 7))
    corrected = at_desk.directory / "corrected.json"
    ident = letter_of(at_desk, "c")
    corrected.write_bytes(note("c", 2, "corrected", effect="c/9").value or b"")
    said = replay(at_desk, ident, "--with", str(corrected))
    assert (said.code, "another effect key" in said.err) == (4, True)
    corrected.write_bytes(note("c", 2, "corrected").value or b"")
    said = replay(at_desk, ident, "--with", str(corrected))
    assert said.code == 0, said
    assert "~ /payload/text" in said.err
    assert CANARY not in said.out + said.err
    assert "corrected" not in said.err.replace("corrected.json", "")
    at_desk.did("c", "1", "2 corrected")


def test_a_loop_of_replays_ends(at_desk: Desk) -> None:
    """Refused again and again: each letter names the one before and its number, then no more (case 29)."""
    at_desk.publish(note("loop", 1), note("loop", 2, 7))
    ids = [letter_of(at_desk, "loop")]
    for number in (1, 2):
        said = replay(at_desk, ids[-1])
        assert said.code == 0, said
        assert said.items[0]["outcome"] == "quarantined"
        eventually(lambda: letter_of(at_desk, "loop") not in ids, 30, "the next letter")
        ids.append(letter_of(at_desk, "loop"))
        again = replay(at_desk, ids[-2])
        assert (again.code, "replayed already" in again.err) == (4, True)
        assert [row["earlier_replays"] for row in of_key(at_desk, "loop")] == list(range(number, -1, -1))
    states = [(row["state"], row["replays"]) for row in of_key(at_desk, "loop")]
    assert states == [("open", 0), ("replayed", 1), ("replayed", 1)]
    chain = {row["id"]: row for row in of_key(at_desk, "loop")}
    assert [chain[i]["replay_of"] for i in ids] == [None, *(chain[i]["forward_id"] for i in ids[:-1])]
    said = replay(at_desk, ids[-1])
    assert said.code == 4
    assert "replayed 2 times and refused each time (lanes.max_replays = 2)" in said.err
    # Whoever has another configuration sends it, and the owner refuses.
    said = at_desk.laneway("dlq", "replay", ids[-1], "-X", "lanes.max_replays=9", "--reason", "x", "-y")
    assert (said.code, "lanes.max_replays = 2" in said.err) == (4, True)
    at_desk.did("loop", "1")
    places = {int(ident.rpartition("@")[2]) for ident in ids[1:]}
    headers = [m.headers() or [] for m in dead(at_desk) if m.offset() in places]
    assert len({sum(len(value or b"") for _, value in each) for each in headers}) == 1, "headers do not grow"


def of_key(at: Desk, key: str) -> list[dict[str, Any]]:
    """The dead letters of a key, the newest first."""
    return [row for row in letters(at) if row["key"] == key]


def dead(at: Desk) -> list[Any]:
    """The DLQ topic."""
    return at.cluster.read_topic(f"{at.names.source}.{at.names.group}.dlq")


def test_a_killed_bulk_replay_goes_on(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """Killed (-9) in the middle and typed again: each letter runs once, the rest is told (case 29)."""
    at = desk(
        cluster,
        names,
        tmp_path,
        partitions=2,
        ledger={"replication": "changelog"},
        lanes={"after_reject": "pass"},
        journal={"level": "exceptions"},
    )
    at.publish(
        *(
            Outgoing(each.value, each.key, (), number % 2)
            for number in range(BULK)
            for each in [note(f"k{number}", 1, REFUSED)]
        ),
        note("late", 1, REFUSED),
        note("late", 2),
        note("other", 1, 7),
    )
    with at.worker.start():
        eventually(lambda: len(dead(at)) == BULK + 2, 60, f"the letters\n{at.worker.stderr()[-2000:]}")
        by_error = at.laneway("dlq", "list", "--group-by", "fingerprint", "-o", "json").items
        assert [(row["name"], row["letters"], bool(row["fingerprint"])) for row in by_error] == [
            ("refused", BULK + 1, True),
            ("invalid-payload", 1, False),
        ]
        assert by_error[0]["keys"]
        assert by_error[0]["first_ms"] <= by_error[0]["last_ms"]
        # Nothing more comes for them, and the count comes all the same.
        counted = f"{BULK} more dead letters: refused; `laneway dlq list --reason refused`"
        eventually(
            lambda: counted in at.worker.stderr(), 30, "the count of those that were not told", poll_s=0.2
        )
        at.mark(FIXED)
        words = ("dlq", "replay", "--fingerprint", by_error[0]["fingerprint"], "--rate", "100")
        arguments = [*words, "--reason", "fixed", "--actor", "ann", "-y", "-o", "json"]
        where = ["-b", cluster.bootstrap, "-g", names.group]
        planned = typed(*arguments, *where, "--limit", "3", "--dry-run")
        assert json.loads(planned.out)["chosen"] == 3
        assert len(at.runs()) == 1, "a dry run changes nothing"
        command = [sys.executable, "-m", "laneway.cli.main", *arguments, *where]
        started = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            eventually(lambda: len(at.runs()) > BULK // 8, 60, "some of them", poll_s=0.1)
        finally:
            started.kill()
            started.communicate()
        assert len(at.runs()) < BULK, "it was to be killed in the middle"
        arguments[arguments.index("--rate") + 1] = "5000"
        done = typed(*arguments, *where)
        if done.code == 5:
            # What the first had queued when it was killed was still being applied.
            done = typed(*arguments, *where)
        told = json.loads(done.out)
        assert done.code == 0, done
        assert (told["refused"], told["unanswered"], told["gone"]) == (0, 0, 0)
        assert told["not_permitted"] == 1, "the late one needs a word for it"
        assert told["over"] > BULK // 8
        eventually(lambda: len(at.runs()) == BULK + 1, 60, "every letter", poll_s=0.2)
        at.settled()
        at.worker.stop()
    assert set(Counter(at.runs()).values()) == {1}
    again = typed(*arguments, *where)
    assert (again.code, json.loads(again.out)["over"], json.loads(again.out)["chosen"]) == (0, BULK, 0)
