"""`laneway demo`: it keeps every promise, it can fail, and it leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.demo import defects
from tests.waiting import eventually

REPOSITORY = Path(__file__).resolve().parents[2]
# A machine with busy cores included; without, it takes less than half a minute.
DEADLINE_S = 90.0

TRAINING_INVARIANTS = 10
# Runs at the start of every Python process; only workers are harmed, only the demo itself loses its patience.
_SITE = """
import sys
if "laneway.cli.tethered" in sys.orig_argv:
    from tests.demo.defects import {defect}
    {defect}()
elif "demo" in sys.orig_argv:
    from laneway.cli.story.telling import tell_all
    tell_all.__kwdefaults__["limit_s"] = {limit_s}
"""
# A story that a defect keeps from its end is over for us long before the shipped limit.
BROKEN_STORY_S = 25.0


@contextmanager
def demo(*arguments: str, defect: str = "", directory: Path) -> Iterator[subprocess.Popen[str]]:
    """The shipped command in a process of its own, a defect planted into its workers if one is named."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}
    if defect:
        site = directory / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITE.format(defect=defect, limit_s=BROKEN_STORY_S))
        environment["PYTHONPATH"] = os.pathsep.join((str(site), str(REPOSITORY)))
    process = subprocess.Popen(
        [sys.executable, "-m", "laneway.cli.main", "demo", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=directory,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def told(directory: Path, defect: str = "") -> tuple[int, dict[str, Any], str]:
    """Exit code, document and standard error of a whole demo."""
    with demo("-o", "json", "--keep", str(directory / "kept"), defect=defect, directory=directory) as process:
        out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, json.loads(out), err


def worker_pids(directory: Path) -> set[int]:
    """The workers that ran a handler, as they noted it themselves."""
    lines = [line for path in directory.glob("*/runs.ndjson") for line in path.read_text().splitlines()]
    return {json.loads(line)["pid"] for line in lines}


def processes() -> dict[int, int]:
    """Every process that lives, with its parent; a zombie that waits for its parent's look does not live."""
    command = ["ps", "-A", "-o", "pid=,ppid=,stat="]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    fields = [line.split() for line in lines]
    return {int(pid): int(parent) for pid, parent, state in fields if not state.startswith("Z")}


def children_of(process: subprocess.Popen[str]) -> set[int]:
    """What it has started and not ended."""
    return {pid for pid, parent in processes().items() if parent == process.pid}


def test_the_demo_keeps_every_promise(tmp_path: Path) -> None:
    """The demo ends well, with the training story and its ten invariants, the homework, both kinds of
    crash, gap, duplicates and retry observed as promised (S11, S15, S24, S25)."""
    code, document, err = told(tmp_path)
    scenarios = document["scenarios"]
    assert code == 0, err
    assert document["schema"] == 1
    assert [each["id"] for each in scenarios if not each["ok"]] == []
    fields = {"id", "scenario", "promise", "expected", "observed", "ok"}
    assert all(each.keys() == fields for each in scenarios)
    names = {each["scenario"] for each in scenarios} - {"all"}
    total = len(scenarios)
    assert err.splitlines()[-1] == f"{len(names)} scenarios, {total} of {total} promises kept"
    assert len(names) == 9
    parts = [each["id"].partition(".")[0] for each in scenarios]
    assert set(parts) == {
        "training",
        "receipt",
        "effect",
        "homework",
        "gap",
        "duplicates",
        "retry",
        "all",
    }
    assert parts.count("training") == 1 + TRAINING_INVARIANTS
    assert len({each["id"] for each in scenarios}) == len(scenarios)
    assert not worker_pids(tmp_path / "kept") & processes().keys()


@pytest.mark.parametrize(
    ("defect", "broken"),
    [
        (defects.ack_before_the_result, {"all.result-before-ack", "receipt.ack-only"}),
        (defects.followers_pass_a_retry, {"retry.order"}),
        (defects.a_ledger_that_forgets, {"duplicates.trace"}),
    ],
)
def test_the_demo_can_fail(tmp_path: Path, defect: Any, broken: set[str]) -> None:
    """With a defect planted into its workers the demo exits 1 and names the promise that was broken, and
    what it saw comes from the evidence and not from what the scenario meant to do."""
    code, document, err = told(tmp_path, defect.__name__)
    not_kept = {each["id"]: each for each in document["scenarios"] if not each["ok"]}
    assert code == 1
    assert broken <= not_kept.keys(), err
    total = len(document["scenarios"])
    assert f" {total - len(not_kept)} of {total} promises kept" in err.splitlines()[-1]
    for each in not_kept.values():
        assert f"NOT KEPT  {each['id']}: {each['promise']}" in err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)], ids=["Ctrl+C", "kill -9"]
)
def test_its_processes_end_with_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Every process that the demo started ends with it, also on Ctrl+C and when it is itself killed."""
    kept = tmp_path / "kept"
    with demo("--keep", str(kept), directory=tmp_path) as process:
        eventually(lambda: worker_pids(kept) if kept.exists() else set(), DEADLINE_S, "a running worker")
        pids = eventually(lambda: children_of(process), 10, "workers that it started")
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == code
        eventually(lambda: not pids & processes().keys(), 10, "the workers to end with the demo")
