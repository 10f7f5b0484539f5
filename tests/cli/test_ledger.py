"""`laneway ledger` over real stores that an owner holds open at the same time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from laneway.cli.main import main
from laneway.lanes.effect import EffectState
from laneway.lanes.view import PutEffect
from laneway.store.ledger import Ledger
from laneway.store.state_dir import StateDir
from tests.store.builders import effect, meta


@pytest.fixture
def owned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Ledger]]:
    """Two stores under ./state, both locked by their owner for the whole test."""
    monkeypatch.chdir(tmp_path)
    directory = StateDir.claim(Path("state"), "reminders", "cluster-1")
    ledgers = [directory.open_store("invoices", number) for number in (0, 1)]
    ledgers[0].apply([PutEffect("a", effect(offset=5))], meta(1), [])
    ledgers[1].apply([PutEffect("b", effect(EffectState.QUARANTINED))], meta(1), [])
    yield ledgers
    for ledger in ledgers:
        ledger.close()


def test_lookup_finds_the_store_that_knows(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """Case 39, S14: beside the locks of its owners; the row says where it was found."""
    assert main(["ledger", "lookup", "a", "--state-dir", "state", "-o", "json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert (item["topic"], item["partition"], item["offset"]) == ("invoices", 0, 5)
    assert (item["state"], item["result_key"], item["lane"]) == ("succeeded", "reminders/1", "customer-1")
    assert (item["due_ms"], item["max_attempts"]) == (None, None)


def test_one_effect_in_two_stores_is_shown_twice(
    owned: list[Ledger], capsys: pytest.CaptureFixture[str]
) -> None:
    """S13: two partitions may know one effect key; neither hides the other, --source narrows."""
    owned[1].apply([PutEffect("a", effect(EffectState.RETRY_WAIT))], meta(2), [])
    assert main(["ledger", "lookup", "a", "--state-dir", "state"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[1] for line in out.splitlines() if line.startswith("state")] == (
        ["succeeded", "retry_wait"]
    )
    assert main(["ledger", "lookup", "a", "--state-dir", "state", "--source", "orders"]) == 1
    assert "no store" in capsys.readouterr().err


def test_the_configuration_is_enough(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """-g with the default state_dir, and the attempts that its delays allow."""
    assert main(["ledger", "lookup", "b", "-g", "reminders", "-X", "retry.delays_ms=[5]"]) == 0
    assert "1 of 2" in capsys.readouterr().out


def test_attempts_of_replays_are_not_counted_against_one_budget(
    owned: list[Ledger], capsys: pytest.CaptureFixture[str]
) -> None:
    """A replay counts on and has a budget of its own, so nothing is ever "9 of 2"."""
    again = msgspec.structs.replace(effect(EffectState.RETRY_WAIT), attempt=9)
    owned[0].apply([PutEffect("r", again)], meta(2), [])
    assert main(["ledger", "lookup", "r", "-g", "reminders", "-X", "retry.delays_ms=[5]"]) == 0
    out = capsys.readouterr().out
    assert "9 (up to 2 since the last replay)" in out
    assert "9 of" not in out


def test_what_is_not_found_may_be_parked(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """A parked record has no effect yet: the command that shows it behind its key is named."""
    assert main(["ledger", "lookup", "nosuch", "-g", "reminders"]) == 1
    assert "parked behind its key: laneway lanes explain KEY -g reminders" in capsys.readouterr().err


def test_another_groups_directory_is_refused(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """Looking into the wrong directory would say "not found" of everything: exit 4 instead."""
    assert main(["ledger", "stats", "-g", "others"]) == 4
    assert "belongs to group 'reminders', not to 'others'" in capsys.readouterr().err


def test_no_state_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path without a ledger is exit 4, and stays as it is."""
    assert main(["ledger", "stats", "--state-dir", str(tmp_path / "none")]) == 4
    assert "no state directory" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_messages_are_escaped_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that would clear the screen comes out readable on standard error."""
    assert main(["ledger", "stats", "--state-dir", str(tmp_path / "\x1b[2J\u202e")]) == 4
    err = capsys.readouterr().err
    assert "\\x1b[2J\\u202e" in err
    assert all(char.isprintable() or char == "\n" for char in err)


def test_a_store_that_cannot_be_read_hides_no_other(
    owned: list[Ledger], capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are looked at and the damage is told: in an answer that was found, and instead of one."""
    manifest = next(Path("state/stores/invoices/0").glob("MANIFEST*"))
    whole = manifest.read_bytes()
    manifest.write_bytes(b"\xff" * len(whole))
    try:
        assert main(["ledger", "lookup", "b", "--state-dir", "state"]) == 5
        out, err = capsys.readouterr()
        assert "quarantined" in out
        assert "damaged" in err
        assert main(["ledger", "lookup", "a", "--state-dir", "state"]) == 5
        out, err = capsys.readouterr()
        assert out == ""
        assert "not the whole answer: invoices-0" in err, "the damaged store may well know it"
        assert main(["ledger", "stats", "--state-dir", "state"]) == 5
        assert len(capsys.readouterr().out.splitlines()) == 2
    finally:
        manifest.write_bytes(whole)


def test_a_key_that_is_no_text_is_refused(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes of a shell that are not UTF-8 are a usage error, not a crash."""
    assert main(["ledger", "lookup", os.fsdecode(b"\xff"), "--state-dir", "state"]) == 2
    assert "UTF-8" in capsys.readouterr().err


def test_stats_of_each_store(owned: list[Ledger], capsys: pytest.CaptureFixture[str]) -> None:
    """Frontier, ranges above it, open cases and the age of the last cycle, by store."""
    assert main(["ledger", "stats", "--state-dir", "state", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["group"], document["cluster_id"]) == ("reminders", "cluster-1")
    first = document["items"][0]
    assert (first["frontier"], first["settled_ranges"], first["open_cases"]) == (10, 2, 1)
    assert first["written_ms"] == 4000
    assert main(["ledger", "stats", "--state-dir", "state"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[-1] == "WRITTEN"
