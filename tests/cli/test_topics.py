"""`laneway topics`: what it prints, when it asks, and with which code it leaves; on a fake cluster."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from laneway.cli import topics as command
from laneway.cli.main import main
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.settings.model import Settings
from tests.consumer.fake_cluster import FakeCluster, source

WHO = ["-b", "b:9092", "-g", "reminders", "--source", "invoices", "-X", "ledger.replication=local"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCluster:
    """The cluster every command of this file talks to; it has the source topic."""
    monkeypatch.chdir(tmp_path)
    fake = FakeCluster({"invoices": source()})

    def connect(settings: Settings) -> FakeCluster:
        assert settings.bootstrap == "b:9092"
        return fake

    monkeypatch.setattr(command, "Cluster", connect)
    return fake


class Terminal(io.StringIO):
    """Standard input with a person at it who types this."""

    def isatty(self) -> bool:
        """It is a terminal."""
        return True


def test_plan_shows_topics_and_rights_and_changes_nothing(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """-b, -g and --source are enough; each topic with its settings, then the ACLs."""
    assert main(["topics", "plan", *WHO]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:4] == ["TOPIC", "KIND", "SOURCE", "PARTITIONS"]
    assert out.splitlines()[1].split()[0] == "invoices.reminders.retry"
    assert "--topic invoices.reminders.dlq" in out
    assert list(cluster.has) == ["invoices"]


def test_plan_as_json(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A script reads numbers as numbers and the ACLs as a list."""
    assert main(["topics", "plan", *WHO, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    assert {item["partitions"] for item in document["items"]} == {6}
    assert len(document["acls"]) == 6


CHANGELOG = ["-X", "ledger.replication=changelog"]


def test_plan_of_a_changelog(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The ledger topic stands among the others, with how long it keeps tombstones and no retention."""
    assert main(["topics", "plan", *WHO, *CHANGELOG, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    ledger = document["items"][-1]
    assert (ledger["topic"], ledger["cleanup_policy"]) == ("invoices.reminders.ledger", "compact")
    assert (ledger["retention_ms"], ledger["delete_retention_ms"]) == (None, 604_800_000)
    assert {item["delete_retention_ms"] for item in document["items"][:-1]} == {None}
    assert any("--transactional-id laneway-reminders- " in line for line in document["acls"])


def test_a_check_with_warnings_only_is_exit_0(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stops no worker stops no script either, and stands in the data with its level and command."""
    main(["topics", "create", *WHO, *CHANGELOG, "-y"])
    ledger = cluster.has["invoices.reminders.ledger"]
    configs = {**ledger.configs, "delete.retention.ms": "86400000"}
    cluster.has[ledger.name] = replace(ledger, configs=configs)
    capsys.readouterr()
    assert main(["topics", "check", *WHO, *CHANGELOG, "-o", "json"]) == 0
    out, err = capsys.readouterr()
    (item,) = json.loads(out)["items"]
    assert (item["level"], item["topic"]) == ("warning", ledger.name)
    assert item["command"].endswith("delete.retention.ms=604800000")
    assert "would start" in err
    cluster.has[ledger.name] = replace(ledger, configs={**configs, "cleanup.policy": "delete"})
    assert main(["topics", "check", *WHO, *CHANGELOG]) == 4


def test_no_source_named_is_a_usage_error(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a source there is nothing to plan."""
    assert main(["topics", "plan", "-b", "b:9092", "-g", "reminders"]) == 2
    assert "--source" in capsys.readouterr().err


def test_create_asks_and_yes_creates(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person sees what will be made, says yes, and the data says created."""
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert main(["topics", "create", *WHO]) == 0
    out, err = capsys.readouterr()
    assert "create 4 topics at b:9092?" in err
    assert out.count("created") == 4
    assert len(cluster.has) == 5


def test_create_declined_is_exit_1_and_changes_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No is no."""
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main(["topics", "create", *WHO]) == 1
    assert list(cluster.has) == ["invoices"]


def test_create_without_a_terminal_needs_y(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that forgot -y is told so with exit 2; nothing is changed."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert main(["topics", "create", *WHO]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "-y" in err
    assert list(cluster.has) == ["invoices"]
    assert main(["topics", "create", *WHO, "-y"]) == 0
    assert len(cluster.has) == 5


def test_create_dry_run_changes_nothing(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """--dry-run shows what would be made, asks nobody."""
    assert main(["topics", "create", *WHO, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("would-create") == 4
    assert list(cluster.has) == ["invoices"]


def test_check_is_clean_after_create(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """What create made, check accepts; a second create has nothing to do."""
    assert main(["topics", "create", *WHO, "-y"]) == 0
    assert main(["topics", "check", *WHO]) == 0
    assert main(["topics", "create", *WHO]) == 0
    assert "nothing to create" in capsys.readouterr().err


def test_check_leaves_with_4_and_the_mending_command(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each finding stands in the data with the command that mends it."""
    main(["topics", "create", *WHO, "-y"])
    dlq = cluster.has["invoices.reminders.dlq"]
    cluster.has[dlq.name] = replace(dlq, partitions=2)
    capsys.readouterr()
    assert main(["topics", "check", *WHO, "-o", "json"]) == 4
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert item["topic"] == "invoices.reminders.dlq"
    assert "--partitions 6" in item["command"]


def test_a_missing_source_topic_is_exit_4(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan cannot be made without the source's shape, and says how the source is made."""
    cluster.has.clear()
    assert main(["topics", "plan", *WHO]) == 4
    assert "the source topic invoices does not exist" in capsys.readouterr().err


def test_the_embedded_cluster_is_named(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A check that means nothing says so, and create is refused."""
    cluster.embedded = True
    assert main(["topics", "check", *WHO, "-o", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["embedded"] is True
    assert "says nothing" in err
    assert main(["topics", "create", *WHO, "-y"]) == 4


def test_an_unreachable_broker_is_exit_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real client against an address where nobody answers: one message, in bounded time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "Cluster", lambda settings: Cluster(settings, timeout_s=1))
    assert main(["topics", "check", "-b", "127.0.0.1:1", *WHO[2:]]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("laneway: 127.0.0.1:1")
