"""docs/operations/cases.md, executed: for every reason each permitted action, at real workers.

One key for each reason and action: its first record runs, its second opens the case, its third waits behind.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from laneway.lanes.case import REASONS
from tests.broker.cases_page import commands, lines_of, sections, typed_line
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.operating import CANARY, Desk, desk, note, typed
from tests.waiting import eventually

COMMANDS = commands()
OUTCOME_UNKNOWN = "outcome-unknown"
LOOSE = {"sequence-stale"}
# What the handler, the same as before, refuses again.
REFUSED_AGAIN = {("rejected", "replay"), ("unknown-contract-version", "replay")}

TROUBLE: dict[str, Callable[[str], list[Outgoing]]] = {
    "sequence-gap": lambda key: [],
    "sequence-stale": lambda key: [note(key, 2), note(key, 1, effect=f"{key}/again")],
    "effect-conflict": lambda key: [note(key, 2, "another", effect=f"{key}/1")],
    "outcome-unknown": lambda key: [note(key, 2, "hangs")],
    "attempts-exhausted": lambda key: [note(key, 2, "needs the calendar")],
    "unclassified-failure": lambda key: [note(key, 2, "meets a bug")],
    "review-requested": lambda key: [note(key, 2, "asks")],
    "rejected": lambda key: [note(key, 2, 7)],
    "unknown-contract-version": lambda key: [note(key, 2, version=2)],
}


def key_of(reason: str, action: str) -> str:
    """The key that has this case."""
    return f"{reason}.{action}"


def records_of(reason: str, action: str) -> list[Outgoing]:
    """Everything that is published for one case."""
    key = key_of(reason, action)
    if reason == "sequence-gap":
        return [note(key, 1), note(key, 3 if action == "skip" else 5)]
    return [note(key, 1), *TROUBLE[reason](key), note(key, 3)]


def effect_of(reason: str, key: str) -> str:
    """The effect that the case is about."""
    return {"sequence-stale": f"{key}/again", "effect-conflict": f"{key}/1"}.get(reason, f"{key}/2")


@dataclass
class Office:
    """A desk, and every case of the page open on it."""

    desk: Desk
    cases: dict[tuple[str, str], str]


def office(kafka: KafkaBroker, directory: Path, replication: str) -> Iterator[Office]:
    """Opens all cases; then the calendar is up, and the bug is fixed."""
    tag = uuid.uuid4().hex[:10]
    ledger: dict[str, str] = {"replication": replication}
    if replication == "changelog":
        ledger["on_unknown_outcome"] = "review"
    at = desk(
        Cluster(kafka.bootstrap),
        Names(source=f"src-{tag}", group=f"grp-{tag}"),
        directory,
        ledger=ledger,
        lanes={"on_unknown_version": "hold", "workers": 8},
    )
    wanted = [each for each in COMMANDS if each[0] != OUTCOME_UNKNOWN]
    hanging = [each for each in COMMANDS if each[0] == OUTCOME_UNKNOWN and replication == "changelog"]
    at.publish(*(record for each in wanted for record in records_of(*each)))
    with at.worker.start():
        eventually(at.worker.live, 30, "the worker")
        cases = eventually(
            lambda: opened(at, wanted), 60, f"the cases\n{at.worker.stderr()[-3000:]}", poll_s=0.5
        )
        if hanging:
            # One by one: what runs together has begun together, for all that a ledger can know.
            for number in (0, 1):
                at.publish(*(records_of(*each)[number] for each in hanging))
                eventually(partial(began, at, hanging, (number + 1) * len(hanging)), 30, "the handlers")
                at.settled() if number == 0 else at.worker.kill()
            at.mark("hangs-no-more")
            at.publish(*(records_of(*each)[2] for each in hanging))
            at.worker.start()
            cases = eventually(lambda: opened(at, wanted + hanging), 60, "the unknown outcomes", poll_s=0.5)
        at.mark("calendar-is-up")
        at.mark("bug-is-fixed")
        yield Office(at, cases)


def opened(at: Desk, wanted: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """The id of each case, once all of them are open."""
    rows = at.laneway("review", "list", "--limit", "1000", "-o", "json").items
    found = {row["key"]: row for row in rows}
    cases = {}
    for reason, action in wanted:
        row = found.get(key_of(reason, action), {"reason": None})
        assert row["reason"] == reason, (key_of(reason, action), row["reason"])
        cases[reason, action] = str(row["case"])
    return cases


def began(at: Desk, wanted: list[tuple[str, str]], runs: int) -> bool:
    """Whether the handler did so many things for some of the cases."""
    keys = {key_of(*each) for each in wanted}
    return sum(line.split()[1].rpartition("/")[0] in keys for line in at.runs()) == runs


@pytest.fixture(scope="module")
def local(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """All cases that a local ledger can have."""
    yield from office(kafka, tmp_path_factory.mktemp("local"), "local")


@pytest.fixture(scope="module")
def changelog(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    """All cases, unknown outcomes included."""
    yield from office(kafka, tmp_path_factory.mktemp("changelog"), "changelog")


def test_the_page_has_every_reason_and_every_permitted_action() -> None:
    """S18: each reason has its part: what happened, what to check, and a line for each permitted action."""
    parts = sections()
    assert sorted(set(parts) - {""}) == sorted(REASONS)
    permitted = {
        (reason, action) for reason, rule in REASONS.items() for action in (*rule.holding, *rule.loose)
    }
    assert set(COMMANDS) == permitted
    for reason in REASONS:
        assert "**What happened.**" in parts[reason]
        assert "**What to check.**" in parts[reason]


@pytest.mark.parametrize(
    ("reason", "action"), [each for each in COMMANDS if each[0] != OUTCOME_UNKNOWN], ids=str
)
def test_each_line_does_what_the_page_says_with_a_local_ledger(
    local: Office, tmp_path: Path, reason: str, action: str
) -> None:
    """S18: each action that a reason permits is applied, and its key goes on as the page says."""
    decide(local, tmp_path, reason, action)


@pytest.mark.parametrize(("reason", "action"), list(COMMANDS), ids=str)
def test_each_line_does_what_the_page_says_with_a_changelog(
    changelog: Office, tmp_path: Path, reason: str, action: str
) -> None:
    """The same where ledgers are in Kafka; there an unknown outcome is a case too, and waits to be told."""
    decide(changelog, tmp_path, reason, action)


def test_the_lines_that_look_are_as_the_page_has_them(local: Office) -> None:
    """What the page begins with runs as it stands, for a case and for many."""
    case_id = next(iter(local.cases.values()))
    for line in lines_of(sections()[""]):
        if "ACTION" in line:
            continue
        words = typed_line(
            line, bootstrap=local.desk.cluster.bootstrap, group=local.desk.names.group, case_id=case_id
        )
        said = typed(*words, *(["--dry-run"] if "resolve" in words else []))
        assert said.code == 0, (line, said)
        assert CANARY not in said.out + said.err


def decide(at: Office, directory: Path, reason: str, action: str) -> None:
    """Type the page's line for this case, and see what its key does then."""
    desk, key = at.desk, key_of(reason, action)
    corrected = directory / "corrected.json"
    effect = effect_of(reason, key)
    corrected.write_bytes(note(key, 2, "corrected", effect=effect).value or b"")
    before = desk.runs(key)
    line = COMMANDS[reason, action]
    words = typed_line(
        line,
        bootstrap=desk.cluster.bootstrap,
        group=desk.names.group,
        case_id=at.cases[reason, action],
        file=corrected,
    )
    said = typed(*words, "-o", "json", "--wait", "30")
    assert said.code == 0, said
    assert CANARY not in said.out + said.err
    [row] = json.loads(said.out)["items"]
    assert row["result"] == "applied"
    first, follower = f"ran {key}/1 hello", f"ran {key}/{5 if action == 'set-next' else 3} hello"
    if reason in LOOSE:
        assert desk.runs(key) == before == [first, f"ran {key}/2 hello", follower]
    elif (reason, action) in REFUSED_AGAIN:
        assert row["next_case"]
        assert desk.runs(key) == before == [first]
        assert [(each["case"], each["reason"]) for each in desk.cases(key)] == [(row["next_case"], reason)]
        return
    else:
        middle = {
            "replay": {
                "effect-conflict": "another",
                "attempts-exhausted": "needs the calendar",
                "unclassified-failure": "meets a bug",
                "review-requested": "asks",
            }.get(reason),
            "replay-with": "corrected",
            "run-again": "hangs",
        }.get(action)
        hangs = [f"hung {key}/2 hangs"] if reason == OUTCOME_UNKNOWN else []
        ran = [] if middle is None else [f"ran {effect} {middle}"]
        wanted = [first, *hangs, *ran, follower]

        def same() -> bool:
            assert desk.runs(key) == wanted
            return True

        eventually(same, 30, f"the runs of {key}")
    assert desk.cases(key) == []
