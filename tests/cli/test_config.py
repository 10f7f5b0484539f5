"""`laneway config`, and the frame of every command: exit codes, streams, help."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from laneway.cli import config
from laneway.cli.commands import app
from laneway.cli.main import main
from tests.cli.command import run

GOOD = """\
group = "reminders"
sources = ["invoices"]
[ledger]
replication = "local"
[kafka]
"sasl.password" = "hunter2"
"linger.ms" = 5
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs in a directory of its own with no LANEWAY_ variables."""
    monkeypatch.chdir(tmp_path)
    for name in ("LANEWAY_GROUP", "LANEWAY_SOURCES", "LANEWAY_BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)


def written(text: str = GOOD) -> None:
    """./laneway.toml with this text."""
    Path("laneway.toml").write_text(text)


def commands(group: typer.Typer = app, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every command, read from the app itself."""
    for command in group.registered_commands:
        assert command.callback is not None
        yield (*path, command.name or command.callback.__name__.replace("_", "-"))
    for sub in group.registered_groups:
        assert sub.typer_instance is not None
        yield from commands(sub.typer_instance, (*path, sub.name or ""))


def test_show_prints_values_with_origins_and_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    """Every key with its value and where it came from; what may be secret is ***."""
    written()
    assert main(["config", "show", "-X", "lanes.workers=8"]) == 0
    out, err = capsys.readouterr()
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert lines["lanes.workers"] == ["8", "-X"]
    assert lines["group"] == ["reminders", "laneway.toml"]
    assert lines["kafka.sasl.password"] == ["***", "laneway.toml"]
    assert lines["kafka.linger.ms"] == ["5", "laneway.toml"]
    assert "hunter2" not in out
    assert err == ""


@pytest.mark.parametrize(("form", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_json_and_yaml_carry_a_schema_version(
    form: str,
    parse: type,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A script can rely on schema, kind and items, in both formats alike."""
    written()
    assert main(["config", "show", "-o", form]) == 0
    document = parse(capsys.readouterr().out)
    assert (document["schema"], document["kind"]) == (1, "config.show")
    items = {item["key"]: item for item in document["items"]}
    assert items["retry.delays_ms"]["value"] == ["1000", "4000"]
    assert items["instance_id"]["value"] is None


def test_validate_says_so_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A valid file is exit 0 and no data."""
    written()
    assert main(["config", "validate"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "valid" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "[lanes]\nworker = 3\n", "laneway.toml:9: unknown key lanes.worker"),
        (GOOD.replace('"linger.ms" = 5', '"acks" = 1'), "[kafka] acks belongs to Laneway"),
        (GOOD.replace('"local"', '"remote"'), "'changelog' or 'local'"),
        (GOOD + '[topics]\ndlq = "{source}.{group}.retry"\n', "would also be the retry of invoices"),
        ("group = [", "is not TOML"),
    ],
)
def test_a_wrong_file_is_exit_2_with_one_message(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What, where and what to do, on standard error, without a traceback."""
    written(text)
    assert main(["config", "validate"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "next: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "invoices: contiguous order by json:/sequenceKey"),
        (
            '[envelope]\nmessage_id = "json:/id"\n',
            "invoices: NO ORDER: [envelope] is written without sequence_key; "
            'write sequence_key = "json:/sequenceKey", or "none" on purpose',
        ),
        ('[envelope]\nsequence_key = "none"\n', 'invoices: no order, as sequence_key = "none" says'),
        (
            '[lanes]\norder = "arrival"\n[source.invoices.envelope]\nsequence_key = "key"\n',
            "invoices: arrival order by key",
        ),
    ],
)
def test_the_order_of_each_source_is_said(
    table: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody loses order by a table without sequence_key and does not hear of it, here and in `run`."""
    written(GOOD + table)
    assert main(["config", "validate"]) == 0
    assert said in capsys.readouterr().err.splitlines()
    level = "WARNING" if "NO ORDER" in said else "INFO"
    err = run(tmp_path, "run", "no_such_module:pipeline").err
    assert [line.split()[2] for line in err.splitlines() if line.endswith(said)] == [level]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ('"linger.sm" = 5', 'laneway.toml:9: [kafka] linger.sm: No such configuration property: "linger.sm"'),
        ('"linger.ms" = "soon"', "laneway.toml:7: [kafka] linger.ms: Invalid value"),
        ('"security.protocol" = "SASL_PLAINTEXT"\n"sasl.mechanism" = "PLAIN"', "sasl.username and"),
    ],
)
def test_the_kafka_client_judges_its_own_table(
    key: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A key or value that librdkafka refuses is found without a cluster, and nothing else is printed."""
    text = GOOD if "linger.ms" not in key else GOOD.replace('"linger.ms" = 5', key)
    if "sasl" in key:
        text = text.replace('"sasl.password" = "hunter2"\n', "")
    written(text if "linger.ms" in key else text + '"client.id" = "x"\n' + key + "\n")
    assert main(["config", "validate"]) == 2
    out, err = capfd.readouterr()
    assert said in err
    assert out == ""
    assert len(err.splitlines()) == 2


def test_a_refused_kafka_value_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """What may be a secret stays out of the client's own words too."""
    written(GOOD + '"queuing.strategy" = "hunter4"\n')
    assert main(["config", "validate"]) == 2
    err = capsys.readouterr().err
    assert '[kafka] queuing.strategy: Invalid value "***"' in err
    assert "hunter" not in err


def test_show_says_not_set(capsys: pytest.CaptureFixture[str]) -> None:
    """A key that nobody set and that has no default is not a dash."""
    written()
    assert main(["config", "show"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["instance_id", "not", "set", "default"] in lines


def test_usage_errors_are_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown command and an unknown option are usage errors."""
    assert main(["no-such-command"]) == 2
    assert main(["config", "show", "--no-such-option"]) == 2
    assert capsys.readouterr().out == ""


def test_an_interrupt_is_exit_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control-C leaves with the shell's own code and no traceback."""
    monkeypatch.setattr(config, "all_topic_names", _raising(KeyboardInterrupt()))
    written()
    assert main(["config", "validate"]) == 130


def test_a_bug_is_exit_1_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody expected is told whole, on standard error."""
    monkeypatch.setattr(config, "all_topic_names", _raising(ZeroDivisionError("a bug")))
    written()
    assert main(["config", "validate"]) == 1
    assert "ZeroDivisionError: a bug" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`laneway --version` is one line."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("laneway ")


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_has_help_with_an_example(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader of `--help` sees a line to copy."""
    assert main([*path, "--help"]) == 0
    assert f"Example: laneway {' '.join(path)}" in " ".join(capsys.readouterr().out.split())


def _raising(error: BaseException) -> object:
    def stand_in(*_: object) -> None:
        raise error

    return stand_in


def test_the_program_runs_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without arguments of its own, main reads the command line."""
    monkeypatch.setattr(sys, "argv", ["laneway", "--version"])
    assert main() == 0
