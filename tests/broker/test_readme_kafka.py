"""README.md, done as printed: what needs a Kafka. Only address, group and topic are this test's own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.readme import commands, write_files
from tests.waiting import eventually


def ours(text: str, names: Names, bootstrap: str) -> str:
    """README's text with this test's address, group and source topic."""
    replaced = text.replace("127.0.0.1:9092", bootstrap).replace('"invoices"', f'"{names.source}"')
    return replaced.replace('group = "reminders"', f'group = "{names.group}"')


def laneway(command: str, folder: Path) -> subprocess.Popen[str]:
    """One command of README, in the reader's directory."""
    words = shlex.split(command)[1:]
    return subprocess.Popen(
        [sys.executable, "-m", "laneway.cli.main", *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(command: str, folder: Path) -> str:
    """What a command that ends printed; it ends well."""
    process = laneway(command, folder)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, f"{command}\n{err}"
    return out


def test_readme_on_a_real_kafka(tmp_path: Path, cluster: Cluster, names: Names) -> None:
    """From the source topic to the lists: each command of README works, in its order, as printed."""
    write_files(tmp_path)
    for name in ("laneway.toml", "publish.py"):
        file = tmp_path / name
        file.write_text(ours(file.read_text(), names, cluster.bootstrap))
    shown = [command for command in commands() if not command.startswith("laneway dev")]
    run = next(command for command in shown if command.startswith("laneway run"))
    cluster.create_topic(names.source, 6)
    finished(shown[0], tmp_path)
    assert shown[0].startswith("laneway topics create")
    worker = laneway(run, tmp_path)
    try:
        subprocess.run([sys.executable, "publish.py"], cwd=tmp_path, timeout=60, check=True)
        eventually(
            lambda: 1 in cluster.committed(names.group, names.source).values(),
            60,
            "the record of README to be committed",
        )
        lists = [command for command in shown if command.endswith((" show", " list"))]
        assert len(lists) == 4
        printed = [finished(command, tmp_path) for command in lists]
        assert names.source in printed[0]
    finally:
        worker.terminate()
        _, told = worker.communicate(timeout=60)
    assert worker.returncode == 0, told
    assert "reminding of 7, idempotency key invoice-7:1" in told
    journal = (tmp_path / "journal.ndjson").read_text()
    assert '"event":"result_saved"' in journal
