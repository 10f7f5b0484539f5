"""What the looking commands print about a real group: beside its live worker, and after it is gone.

One small story is told twice: a gap, two kinds of poison, a temporary failure that waits, a duplicate,
and a key that would like to take over the terminal.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.cli.command import Said, run
from tests.waiting import eventually

APP = """
from pydantic import BaseModel
from laneway import Delivery, Pipeline, TemporaryFailure

class Note(BaseModel):
    text: str

pipeline = Pipeline(payload=Note)

@pipeline.handler
def handle(delivery: Delivery[Note]) -> str:
    if delivery.payload.text == "not yet":
        raise TemporaryFailure("calendar-closed")
    return f"notes/{delivery.effect_key}"
"""

EVIL = "k\x1b[2J\r\nevil\u202e\x07"
CANARY = "hunter2"
RETRY_DELAY_MS = 600_000
GARBAGE = f"not json, token {CANARY} \x1b[31m".encode() + b"\xff"
POISON_PARTITION = 1


def note(key: str, sequence: int, text: object = "hello") -> Outgoing:
    """A good record, unless `text` is no text."""
    body = {
        "messageId": f"m-{key}-{sequence}",
        "effectKey": f"{key}/{sequence}",
        "sequenceKey": key,
        "sequence": sequence,
        "version": 1,
        "payload": {"text": text},
    }
    return Outgoing(json.dumps(body).encode(), key.encode(), [("token", CANARY.encode())], partition=0)


@dataclass(frozen=True)
class Story:
    """A group that has something to look at. `worker` is alive or gone, as the phase says."""

    phase: str
    names: Names
    bootstrap: str
    directory: Path
    worker: WorkerProcess
    answers: dict[tuple[str, ...], Said] = field(default_factory=dict)

    @property
    def state_dir(self) -> Path:
        """Where its ledgers are."""
        return self.directory / "state"

    def laneway(self, *arguments: str) -> Said:
        """Run a command as it stands."""
        return run(self.directory, *arguments)

    def asked(self, *arguments: str, again: bool = False) -> Said:
        """Run a command that needs the cluster, with -b and -g only.

        Nothing happens any more, so an answer is kept; `again` asks anew.
        """
        if again or arguments not in self.answers:
            self.answers[arguments] = self.laneway(*arguments, "-b", self.bootstrap, "-g", self.names.group)
        return self.answers[arguments]

    def rows(self, *arguments: str, again: bool = False) -> list[dict[str, Any]]:
        """Its rows; it ended well and said nothing besides."""
        said = self.asked(*arguments, "-o", "json", again=again)
        assert (said.code, said.err) == (0, ""), said
        return said.items


@pytest.fixture(scope="module", params=["live", "gone"])
def story(
    request: pytest.FixtureRequest, kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    """The story, told to its end; then its worker lives on, or is stopped."""
    tag = uuid.uuid4().hex[:10]
    names = Names(source=f"src-{tag}", group=f"grp-{tag}")
    directory = tmp_path_factory.mktemp(request.param)
    cluster = Cluster(kafka.bootstrap)
    cluster.create_topic(names.source, 2)
    settings = settings_of(kafka.bootstrap, names, directory / "state", retry={"delays_ms": [RETRY_DELAY_MS]})
    create_companions(settings, directory)
    (directory / "notes.py").write_text(APP)
    cluster.produce(
        names.source,
        [
            *(note("fine", n) for n in (1, 2, 3)),
            note("fine", 2),
            note("gap", 1),
            note("gap", 3),
            note("gap", 4),
            note("poison", 1, text=7),
            note("late", 1, text="not yet"),
            note(EVIL, 2),
            Outgoing(GARBAGE, b"\x1bkey", [("token", CANARY.encode())], partition=POISON_PARTITION),
        ],
    )
    with WorkerProcess(directory / "notes.py:pipeline", settings, directory=directory / "w") as worker:
        worker.start()
        told = Story(request.param, names, kafka.bootstrap, directory, worker)

        def is_told() -> bool:
            """All is settled, committed, and said in the note beside the offset."""
            said = told.asked("offsets", "show", "-o", "json", again=True)
            if said.code != 0 or "committed" not in said.out:
                return False
            first, second = said.items
            return bool(first["lag"] == second["lag"] == 0 and first["parked"] == 3 and first["retries"] == 1)

        eventually(is_told, 30, f"the end of the story; the worker said:\n{worker.stderr()}", poll_s=0.2)
        if request.param == "gone":
            worker.stop()
            told.answers.clear()
        yield told


def test_offsets_show_needs_only_bootstrap_and_group(story: Story) -> None:
    """-b and -g are enough: sources are found by themselves, counts come from the commit's metadata."""
    first, second = story.rows("offsets", "show")
    assert [first["topic"], first["partition"], second["partition"]] == [story.names.source, 0, 1]
    assert [first["committed"], first["log_start"], first["log_end"], first["lag"]] == [10, 0, 10, 0]
    assert [second["committed"], second["log_end"]] == [1, 1]
    assert [first["running"], first["parked"], first["retries"], first["open_cases"]] == [0, 3, 1, 3]
    assert first["age_ms"] is None, "there is no lag to have an age"
    live = story.phase == "live"
    assert (first["member"], first["host"]) == (
        (f"laneway-{story.names.group}", "127.0.0.1") if live else (None, None)
    )


def test_offsets_show_as_text(story: Story) -> None:
    """Design 5: the columns by name, in their order; a member is its client id and host."""
    said = story.asked("offsets", "show")
    assert (said.code, said.err) == (0, "")
    table, _, further = said.out.partition("\nNEXT-COMMANDS\n")
    assert further.startswith("laneway review list ")
    heading, first, _ = table.splitlines()
    columns = "TOPIC PARTITION COMMITTED LOG-START LOG-END LAG RUNNING PARKED BLOCKED-BY AGE MEMBER"
    assert heading.split() == columns.split()
    member = f"laneway-{story.names.group}/127.0.0.1" if story.phase == "live" else "-"
    cases = ["3", "open", "cases"]
    assert first.split() == [story.names.source, "0", "10", "0", "10", "0", "0", "3", *cases, "-", member]


def test_offsets_show_all_adds_the_companions(story: Story) -> None:
    """--all: the retry and commands partitions too; of commands a worker commits where it began to read."""
    rows = story.rows("offsets", "show", "--all")
    by_topic = {(row["topic"].rpartition(".")[2], row["partition"]): row for row in rows}
    assert len(rows) == 6
    commands = by_topic["commands", 0]
    assert (commands["committed"], commands["lag"]) == (0, 0)
    retry = by_topic["retry", 0]
    # The retry waits in memory: its offset is unsettled until it ran.
    assert (retry["log_end"], retry["lag"]) == (1, 1)
    if story.phase == "live":
        assert retry["member"] == f"laneway-{story.names.group}"


def test_review_list_shows_the_open_cases(story: Story) -> None:
    """S16, S18: one row for each open case; nothing else is in review."""
    rows = {row["key"]: row for row in story.rows("review", "list")}
    assert {key: row["reason"] for key, row in rows.items()} == {
        "gap": "sequence-gap",
        EVIL: "sequence-gap",
        "poison": "rejected",
    }
    gap = rows["gap"]
    assert [gap["sequence"], gap["topic"], gap["partition"], gap["offset"], gap["holds"]] == (
        [2, story.names.source, 0, 5, True]
    )
    assert rows["poison"]["effect_key"] == "poison/1"
    assert rows["poison"]["attempts"] == 1


def test_review_list_is_filtered(story: Story) -> None:
    """--reason and --key narrow the list; --limit says what it left out; an unknown reason is refused."""
    assert [row["key"] for row in story.rows("review", "list", "--reason", "rejected")] == ["poison"]
    assert [row["reason"] for row in story.rows("review", "list", "--key", "gap")] == ["sequence-gap"]
    said = story.asked("review", "list", "--limit", "1")
    assert len(said.out.partition("\nNEXT-COMMANDS\n")[0].splitlines()) == 2
    assert "1 of 3 open cases" in said.err
    assert story.asked("review", "list", "--reason", "no-such").code == 2


def test_review_show_tells_a_person_everything(story: Story) -> None:
    """S18: id, effect key, reason, attempts, required check, permitted actions, and the next step."""
    (listed,) = story.rows("review", "list", "--key", "poison")
    said = story.asked("review", "show", listed["case"], "-o", "json")
    (case,) = said.items
    assert said.code == 0
    assert case["effect_key"] == "poison/1"
    assert case["reason"] == "rejected"
    assert case["attempts"] == 1
    assert "poison/1" in case["required_check"]
    assert case["actions"] == ["replay", "replay-with", "skip", "discard", "mark-done"]
    assert "dlq list" in case["next"]
    assert "parked" in case["next"]
    text = story.asked("review", "show", listed["case"])
    fields = dict(line.split(maxsplit=1) for line in text.out.partition("\n\n")[0].splitlines()[1:])
    assert fields["required-check"] == case["required_check"]
    assert fields["actions"] == "replay,replay-with,skip,discard,mark-done"


def test_review_show_of_an_unknown_case(story: Story) -> None:
    """An id that nobody has is exit 4, with where to look; nothing goes to standard output."""
    said = story.asked("review", "show", "sequence-gap-000000000000")
    assert (said.code, said.out) == (4, "")
    assert "there is no case 'sequence-gap-000000000000'" in said.err
    assert "review list" in said.err


def test_dlq_list_says_why_and_from_where(story: Story) -> None:
    """S9: each rejected record once, with what is needed to match it to its job."""
    rows = {row["origin"]: row for row in story.rows("dlq", "list")}
    source = story.names.source
    assert set(rows) == {f"{source}/0@7", f"{source}/1@0"}
    poison, garbage = rows[f"{source}/0@7"], rows[f"{source}/1@0"]
    assert poison["effect_key"] == "poison/1"
    assert [poison["attempt"], poison["key"], poison["sequence"]] == [1, "poison", 1]
    assert poison["case"].startswith("rejected-")
    assert garbage["effect_key"] is None
    assert garbage["sha256"] == hashlib.sha256(GARBAGE).hexdigest()
    assert garbage["size_bytes"] == len(GARBAGE) + len(b"\x1bkey")
    assert all(
        row["reason"] and abs(row["failed_ms"] - time.time() * 1000) < 120_000 for row in rows.values()
    )


def test_dlq_list_takes_the_newest(story: Story) -> None:
    """--limit counts records over all partitions, and --reason finds the one it names."""
    rows = story.rows("dlq", "list")
    assert story.rows("dlq", "list", "--limit", "1") == rows[:1]
    assert story.rows("dlq", "list", "--reason", rows[1]["reason"]) == rows[1:]


def test_dlq_list_counts_by_reason(story: Story) -> None:
    """--group-by reason gives a row for each reason, with an example that dlq show takes."""
    listed = {row["reason"]: row["id"] for row in story.rows("dlq", "list")}
    counted = story.rows("dlq", "list", "--group-by", "reason")
    assert {row["name"]: row["example"] for row in counted} == listed
    assert [row["letters"] for row in counted] == [1, 1]


@pytest.mark.parametrize("short", [False, True])
def test_dlq_show_takes_what_the_list_prints(story: Story, short: bool) -> None:
    """The id of the list leads to the record; PARTITION@OFFSET is enough where there is one topic."""
    (listed,) = [row for row in story.rows("dlq", "list") if row["key"] == "poison"]
    ident = listed["id"].rpartition("/")[2] if short else listed["id"]
    (shown,) = story.rows("dlq", "show", ident)
    assert {**shown, **listed} == shown
    assert shown["header_names"] == ["token"]
    assert "payload" not in shown


@pytest.mark.parametrize(
    ("ident", "code", "sentence"),
    [
        ("0@99", 4, "no record there"),
        ("7@0", 4, "no such partition"),
        ("somewhere/0@0", 2, "no DLQ topic of this group"),
        ("first", 2, "no id of a dead letter"),
    ],
)
def test_dlq_show_of_what_is_not_there(story: Story, ident: str, code: int, sentence: str) -> None:
    """An id that leads nowhere says what is wrong with it."""
    said = story.asked("dlq", "show", ident)
    assert (said.code, said.out) == (code, "")
    assert sentence in said.err


def test_the_payload_is_shown_only_when_asked_for(story: Story) -> None:
    """S9: no list and no show prints payload or header values by itself; asked for, they come escaped."""
    quiet = [
        story.asked(*command, "-o", "json")
        for command in (("dlq", "list"), ("dlq", "show", "1@0"), ("review", "list", "--all"))
    ]
    assert all(said.code == 0 for said in quiet)
    assert not [said for said in quiet if CANARY in said.out + said.err]
    shown = story.asked("dlq", "show", "1@0", "--show-payload")
    assert f"not json, token {CANARY} \\x1b[31m\\xff" in shown.out
    assert f"token={CANARY}" in shown.out
    (whole,) = story.rows("dlq", "show", "1@0", "--show-payload")
    assert whole["payload"] is None, "the bytes are no text"
    assert whole["record_key"] == "\x1bkey"


def test_nothing_a_stranger_wrote_reaches_the_terminal(story: Story) -> None:
    """Control characters of keys and payloads come out escaped, in every format and on both streams."""
    evil = next(row["case"] for row in story.rows("review", "list") if row["key"] == EVIL)
    for command in (
        ("review", "list"),
        ("review", "show", evil),
        ("review", "show", EVIL),
        ("dlq", "show", "1@0", "--show-payload"),
        ("dlq", "show", "1@0", "--show-payload", "-o", "yaml"),
        ("dlq", "show", EVIL),
    ):
        said = story.asked(*command)
        assert all(char.isprintable() or char == "\n" for char in said.out + said.err), command


@pytest.mark.parametrize(
    ("effect_key", "state", "more"),
    [
        ("fine/2", "succeeded", {"result_key": "notes/fine/2", "attempt": 1, "offset": 1, "sequence": 2}),
        ("poison/1", "quarantined", {"attempt": 1, "result_key": None, "offset": 7}),
        ("late/1", "retry_wait", {"attempt": 1, "reason": "calendar-closed", "offset": 8, "lane": "late"}),
    ],
)
def test_ledger_lookup_beside_a_live_worker(
    story: Story, effect_key: str, state: str, more: dict[str, Any]
) -> None:
    """S8, S14, case 39: state, attempt, reason of the last transition, due time, and where it was found."""
    said = story.laneway("ledger", "lookup", effect_key, "--state-dir", str(story.state_dir), "-o", "json")
    assert (said.code, said.err) == (0, ""), said
    (found,) = said.items
    assert found["state"] == state
    assert {name: found[name] for name in more} == more
    assert (found["topic"], found["partition"]) == (story.names.source, 0)
    due_in_ms = (found["due_ms"] or 0) - found["changed_ms"]
    assert due_in_ms == RETRY_DELAY_MS if state == "retry_wait" else found["due_ms"] is None


def test_ledger_lookup_knows_the_limit_from_the_configuration(story: Story) -> None:
    """S8: with the workers' configuration it also tells how many attempts there may be."""
    config = str(story.worker.config)
    said = story.laneway("ledger", "lookup", "late/1", "-c", config)
    assert said.code == 0, said
    fields = dict(line.split(maxsplit=1) for line in said.out.splitlines()[1:])
    assert fields["attempt"] == "1 of 2"
    assert fields["reason"] == "calendar-closed"
    other = story.laneway("ledger", "lookup", "late/1", "-c", config, "-g", "another")
    assert (other.code, other.out) == (4, "")
    assert f"belongs to group '{story.names.group}'" in other.err


def test_ledger_lookup_of_an_unknown_effect(story: Story) -> None:
    """An effect that no store knows is exit 1, and the stores that were asked are named."""
    said = story.laneway("ledger", "lookup", "fine/99", "--state-dir", str(story.state_dir))
    source = story.names.source
    assert (said.code, said.out) == (1, "")
    where, otherwise = said.err.splitlines()
    assert where == f"not found in 2 stores: {source}-0, {source}-1"
    assert "laneway lanes explain KEY" in otherwise


def test_ledger_stats(story: Story) -> None:
    """Each store's sizes and progress, beside the worker that owns it."""
    said = story.laneway("ledger", "stats", "--state-dir", str(story.state_dir), "-o", "json")
    assert (said.code, said.err) == (0, "")
    document = json.loads(said.out)
    assert document["group"] == story.names.group
    first, second = document["items"]
    assert [first["parked"], first["open_cases"], first["frontier"], first["settled_ranges"]] == [3, 3, 10, 0]
    assert [second["parked"], second["open_cases"], second["frontier"]] == [0, 0, 1]
    assert first["parked_bytes"] > 0
    assert first["disk_bytes"] > 0
    assert first["entries"] > 10
    assert abs(first["written_ms"] - time.time() * 1000) < 120_000


def test_looking_disturbs_nobody(story: Story) -> None:
    """Case 39: none of these commands joined the group, committed, or took a lock: a live worker goes on."""
    before = story.rows("offsets", "show", "--all", again=True)
    for command in (("review", "list"), ("dlq", "list")):
        story.rows(*command, again=True)
    story.laneway("ledger", "stats", "--state-dir", str(story.state_dir))
    after = story.rows("offsets", "show", "--all", again=True)
    assert [(row["committed"], row["member_id"]) for row in after] == (
        [(row["committed"], row["member_id"]) for row in before]
    )
    assert story.worker.running == (story.phase == "live")
