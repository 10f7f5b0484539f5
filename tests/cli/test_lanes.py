"""`laneway lanes` over real stores that an owner holds open at the same time."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from laneway.cli.main import main
from laneway.consumer.inspection import stores
from laneway.lanes.case import REASONS, Case
from laneway.lanes.effect import EffectState
from laneway.lanes.lane import Hold, HoldKind, Lane, Pause
from laneway.lanes.view import Entry, PutCase, PutEffect, PutLane
from laneway.store.ledger import Ledger
from laneway.store.state_dir import StateDir
from tests.store.builders import case, effect, meta, parked, put_parked

NOW_MS = time.time_ns() // 1_000_000
HOUR_MS = 3_600_000
EVIL = "k\x1b[2J\r\nevil\u202e\x07"
CANARY = b"hunter2"


def held(kind: HoldKind, *, case_id: str = "", since_ms: int = NOW_MS - HOUR_MS, due_ms: int = 0) -> Hold:
    """A hold at sequence 3."""
    reason = {HoldKind.GAP: "sequence-gap", HoldKind.RETRY: "temporary", HoldKind.CASE: "rejected"}[kind]
    return Hold(kind, "e/3", 3, 30, 2, reason, case_id, since_ms, due_ms)


def of_case(case_id: str, lane: str, reason: str, *, holds: bool = True, effect_key: str = "e/3") -> Case:
    """An open case at sequence 3."""
    check = REASONS[reason].required_check.format(effect_key=effect_key, sequence=3, lane=lane)
    return msgspec.structs.replace(
        case(case_id),
        reason=reason,
        cause="Boom",
        lane=lane,
        sequence=3,
        effect_key=effect_key,
        holds=holds,
        attempts=2,
        required_check=check,
        record=parked(value=CANARY).raw,
        note="told so",
    )


def lane(name: str, **fields: Any) -> PutLane:
    """A lane whose last in order is 2."""
    return PutLane(name, Lane(2, **fields))


ENTRIES: list[Entry] = [
    lane("kfree"),
    lane("kgap", hold=held(HoldKind.GAP, case_id="gap-1", since_ms=NOW_MS - 2 * HOUR_MS), parked=2),
    PutCase("gap-1", of_case("gap-1", "kgap", "sequence-gap", effect_key="")),
    *put_parked(("kgap", 5, 50), ("kgap", 6, 60)),
    lane("kretry", hold=held(HoldKind.RETRY, since_ms=NOW_MS - 1000, due_ms=NOW_MS + 10 * HOUR_MS)),
    lane(f"k{EVIL}", hold=held(HoldKind.CASE, case_id="rejected-1")),
    PutCase("rejected-1", of_case("rejected-1", f"k{EVIL}", "rejected")),
    lane("kpaused", pause=Pause("ann", "wrong address", NOW_MS - 3 * HOUR_MS)),
    PutCase("stale-1", of_case("stale-1", "kfree", "sequence-stale", holds=False)),
    *(
        PutEffect(f"free/{n}", msgspec.structs.replace(effect(offset=n), lane="kfree", sequence=n))
        for n in range(1, 13)
    ),
    PutEffect("gap/2", msgspec.structs.replace(effect(EffectState.SUCCEEDED), lane="kgap", sequence=2)),
    PutEffect("order/1", msgspec.structs.replace(effect(), lane="eorder/1", sequence=0)),
]


@pytest.fixture
def owned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Ledger]]:
    """Two stores under ./state, both locked by their owner for the whole test; all keys are in the second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stores, "AT_ONCE", 3)
    directory = StateDir.claim(Path("state"), "reminders", "cluster-1")
    ledgers = [directory.open_store("invoices", number) for number in (0, 1)]
    ledgers[0].apply([lane("kother")], meta(1), [])
    ledgers[1].apply(ENTRIES, meta(1), [])
    yield ledgers
    for ledger in ledgers:
        ledger.close()


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    """What a command says in JSON, and in text."""
    assert main(["lanes", *words, "--state-dir", "state", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(["lanes", *words, "--state-dir", "state"]) == 0
    text = capsys.readouterr().out
    assert CANARY.decode() not in text + json.dumps(document)
    assert all(char.isprintable() or char == "\n" for char in text)
    return document, text


def test_the_longest_waiting_comes_first(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """S18, case 39: beside the owner's lock, what does not move is listed with what it waits for."""
    document, _ = told(capsys, "list")
    rows = [(row["key"], row["state"], row["waits_for"], row["parked"]) for row in document["items"]]
    assert rows == [
        ("paused", ["paused"], None, 0),
        ("gap", ["held", "parked"], "gap", 2),
        (EVIL, ["held"], "case", 0),
        ("retry", ["held"], "retry", 0),
    ]
    assert {row["partition"] for row in document["items"]} == {1}


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("--state", "held"), ["gap", EVIL, "retry"]),
        (("--state", "paused"), ["paused"]),
        (("--state", "parked"), ["gap"]),
        (("--older", "90m"), ["paused", "gap"]),
        (("--older", "30m", "--state", "held"), ["gap", EVIL]),
        (("--partition", "0"), []),
        (("--limit", "1"), ["paused"]),
    ],
)
def test_a_list_is_narrowed(
    owned: list[Ledger], capsys: pytest.CaptureFixture[str], words: tuple[str, ...], keys: list[str]
) -> None:
    """By state, by age, by partition, by number."""
    document, _ = told(capsys, "list", *words)
    assert [row["key"] for row in document["items"]] == keys


def test_a_paused_partition_is_said(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """A pause of the whole partition is told before the lanes, and as the reason of each key in it."""
    pause = Pause("bob", "moving house", NOW_MS)
    owned[1].apply([], msgspec.structs.replace(meta(2), pause=pause), [])
    assert main(["lanes", "list", "--state-dir", "state"]) == 0
    assert "invoices-1 is paused" in capsys.readouterr().err
    document, text = told(capsys, "explain", "free")
    assert "The partition was paused by bob" in text
    assert document["items"][0]["state"] == ["paused"]
    assert document["items"][0]["since_ms"] == NOW_MS
    assert "moving house" in document["items"][0]["why"]
    assert document["next_commands"][0].startswith("laneway resume --partition 1 --reason WHY")


def test_an_effect_that_began_is_not_called_free(
    owned: list[Ledger], capsys: pytest.CaptureFixture[str]
) -> None:
    """With on_unknown_outcome "review" the ledger knows what began: running since when, or unknown."""
    began = msgspec.structs.replace(
        effect(EffectState.RUNNING, offset=70), lane="kfree", sequence=3, changed_ms=NOW_MS - HOUR_MS
    )
    owned[1].apply([PutEffect("free/3", began)], meta(2), [])
    document, text = told(capsys, "explain", "free")
    [row] = document["items"]
    assert (row["state"], row["since_ms"]) == (["running"], NOW_MS - HOUR_MS)
    assert "Effect free/3 at offset 70 is running, or its outcome is unknown: since 20" in text
    assert "a worker that dies leaves a case" in text
    assert "nothing holds it" not in text


def test_a_gap_is_explained(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """S18: where it stands, why, since when, what is parked behind it, and the commands that move it."""
    document, text = told(capsys, "explain", "gap")
    [row] = document["items"]
    assert (row["topic"], row["partition"], row["last"], row["case"]) == ("invoices", 1, 2, "gap-1")
    assert row["why"] == "Sequence 3 has not come, and offset 30 lies behind it"
    assert row["required_check"].startswith("Was sequence 3 of this key ever published?")
    assert [(each["sequence"], each["offset"]) for each in document["parked_records"]] == [(5, 50), (6, 60)]
    assert [each["effect_key"] for each in document["recent"]] == ["gap/2"]
    assert document["next_commands"] == [
        "laneway review resolve gap-1 --action skip --reason WHY -b HOST:PORT -g reminders",
        "laneway review resolve gap-1 --action set-next 5 --reason WHY -b HOST:PORT -g reminders",
    ]
    assert "2 records, sequences 5 to 6, offsets 50 to 60" in text
    Path("laneway.toml").write_text('bootstrap = "broker:9092"\n')
    document, _ = told(capsys, "explain", "gap")
    assert document["next_commands"][0].endswith("--reason WHY -g reminders")
    assert re.search(r"\b2h\d\dm ago", text)


def test_a_held_record_is_explained(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """Its reason, cause and the handler's own words; its bytes only when somebody asks for them."""
    document, _ = told(capsys, "explain", EVIL)
    [row] = document["items"]
    assert row["why"] == "Sequence 3 waits for a person after 2 attempts: rejected (Boom: told so)"
    assert len(document["next_commands"]) == len(REASONS["rejected"].holding)
    assert "payload" not in row
    assert main(["lanes", "explain", EVIL, "--state-dir", "state", "--show-payload", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"][0]["payload"] == CANARY.decode()


def test_a_retry_needs_nobody(
    owned: list[Ledger], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that waits for its retry says when it is due, and that nothing is to be done, until late."""
    document, _ = told(capsys, "explain", "retry")
    [row] = document["items"]
    assert row["why"].startswith("Sequence 3 failed (temporary); attempt 2 is due in 9h")
    assert row["next"] == "Nothing: it runs by itself when it is due."
    monkeypatch.setattr("laneway.cli.lanes._now_ms", lambda: NOW_MS + 10 * HOUR_MS + 61_000)
    [row] = told(capsys, "explain", "retry")[0]["items"]
    assert "If `retry list` has it, its worker is busy or down" in row["next"]


def test_a_free_key_tells_what_it_did_last(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """The last records of a key with sequence, offset, attempts, state and times; and its loose cases."""
    document, text = told(capsys, "explain", "free", "--recent", "3")
    assert [each["effect_key"] for each in document["recent"]] == ["free/12", "free/11", "free/10"]
    assert document["items"][0]["other_cases"] == ["stale-1"]
    assert document["items"][0]["state"] == ["free"]
    assert "As of the last commit nothing holds it: sequence 3 runs when it comes" in text
    assert "What a worker has in hand is not known here; `offsets show` tells RUNNING" in text
    assert [line.split()[3:6] for line in document["next_commands"]] == [
        ["stale-1", "--action", "mark-done"],
        ["stale-1", "--action", "discard"],
    ]


def test_a_record_without_a_key_is_found_by_its_effect(
    owned: list[Ledger], capsys: pytest.CaptureFixture[str]
) -> None:
    """A lane of one is asked for by its effect key, and no sequence is made up for it."""
    document, text = told(capsys, "explain", "order/1")
    assert [each["effect_key"] for each in document["recent"]] == ["order/1"]
    assert "sequence 3" not in text


def test_a_key_that_nobody_knows(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1, and which ledgers were asked; a beginning of a key is not the key."""
    for key in ("nobody", "fre", "free2"):
        assert main(["lanes", "explain", key, "--state-dir", "state"]) == 1
        assert "known to 2 stores: invoices-0, invoices-1" in capsys.readouterr().err


def test_a_damaged_ledger_hides_no_other(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """What can be read is shown, what cannot is named, and the exit is 5."""
    owned[0]._store.put(b"lkbroken", b"\x01\x90\x90")
    assert main(["lanes", "list", "--state-dir", "state", "-o", "json"]) == 5
    said = capsys.readouterr()
    assert len(json.loads(said.out)["items"]) == 4
    assert "not the whole answer: invoices-0" in said.err
