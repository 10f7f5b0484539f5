"""`laneway rerun` on a group at work: workers and the command itself are killed, and the stream goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import SOAK, Names
from tests.broker.operating import typed
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

APP = """
import os, time
from pathlib import Path
from laneway import Delivery, Pipeline

HERE = Path(__file__).parent
pipeline = Pipeline()

@pipeline.handler
def handle(delivery: Delivery[object]) -> str:
    if delivery.run:
        time.sleep(0.02)
    line = f"{delivery.run} {delivery.sequence_key} {delivery.sequence}\\n"
    handle = os.open(HERE / "runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, line.encode())
    os.close(handle)
    return f"{delivery.effect_key}/{delivery.run}"
"""
KEYS = ("a", "b", "c", "d", "e")
NUMBERS = range(1, 8)


def record(key: str, sequence: int) -> Outgoing:
    """One of a key; keys are spread over two partitions."""
    body = {
        "messageId": f"m-{key}-{sequence}",
        "effectKey": f"{key}/{sequence}",
        "sequenceKey": key,
        "sequence": sequence,
        "version": 1,
        "payload": {"secret": "hunter2"},
    }
    return Outgoing(json.dumps(body).encode(), key.encode(), partition=KEYS.index(key) % 2)


def of_run(file: Path, number: int) -> list[tuple[str, int]]:
    """Key and sequence of what the handlers did in a run, in order."""
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(key, int(sequence)) for run_number, key, sequence in lines if int(run_number) == number]


def in_order(done: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    """By key the numbers as they came first."""
    found: dict[str, list[int]] = {}
    for key, sequence in done:
        numbers = found.setdefault(key, [])
        if sequence not in numbers:
            numbers.append(sequence)
    return found


@pytest.mark.parametrize("replication", ["changelog", "local"] if SOAK else ["changelog"])
def test_each_effect_once_more_through_every_crash(
    cluster: Cluster, names: Names, tmp_path: Path, replication: str
) -> None:
    """A rerun outlives its command and its workers, in order and once; the stream beside it is intact."""
    cluster.create_topic(names.source, 2)
    settings = settings_of(cluster.bootstrap, names, tmp_path / "state", ledger={"replication": replication})
    create_companions(settings, tmp_path)
    (tmp_path / "app.py").write_text(APP)
    runs = tmp_path / "runs"
    cluster.produce(names.source, [record(key, number) for number in NUMBERS for key in KEYS])
    app = tmp_path / "app.py:pipeline"
    first = WorkerProcess(app, settings, directory=tmp_path / "w", name="first")
    second = WorkerProcess(app, settings, directory=tmp_path / "w", name="second")
    total = len(KEYS) * len(NUMBERS)
    words = ["rerun", "-c", str(first.config), "--reason", "wrong VAT", "-o", "json"]

    def happened(number: int, count: int) -> None:
        def seen() -> bool:
            done = of_run(runs, number)
            assert len(done) >= count, (len(done), second.stderr()[-1500:])
            return True

        eventually(seen, 40, f"{count} effects of run {number}")

    with first, second:
        first.start()
        happened(0, total)

        def settled() -> bool:
            assert cluster.committed(names.group, names.source) == cluster.end_offsets(names.source)
            return True

        eventually(settled, 30, "the commit", poll_s=0.1)
        words += ["--to", f"@{time.time_ns() // 1_000_000}"]
        laneway = str(Path(sys.executable).with_name("laneway"))
        command = subprocess.Popen(
            [sys.executable, laneway, *words, "-y", "--rate", "40"], cwd=tmp_path, stdout=subprocess.DEVNULL
        )
        try:
            happened(1, 8)
            command.kill()
        finally:
            command.wait()
        first.kill()
        # What comes meanwhile is taken in its turn.
        cluster.produce(names.source, [record(key, NUMBERS.stop) for key in KEYS])
        second.start()
        more = typed(*words, "-y", "--run", "1", "--wait", "40")
        assert more.code == 0, more
        said = json.loads(more.out)
        assert said["run"] == 1
        assert said["left_done"] + said["left_queued"] + said["succeeded"] == total
        assert said["succeeded"] < total
        assert "hunter2" not in more.out + more.err
        happened(0, total + len(KEYS))

    # A handler may have been killed between its effect and the settlement: that one runs again, as ever.
    again = Counter(of_run(runs, 1))
    assert set(again) == {(key, number) for key in KEYS for number in NUMBERS}
    assert sum(again.values()) - total <= len(KEYS)
    assert all(numbers == list(NUMBERS) for numbers in in_order(of_run(runs, 1)).values())
    assert Counter(of_run(runs, 0)) == Counter((key, n) for key in KEYS for n in range(1, NUMBERS.stop + 1))

    # Once for each number: the same run has nothing left, a new one is a new number.
    none_left = typed(*words, "-y", "--run", "1")
    assert none_left.code == 0, none_left
    assert json.loads(none_left.out)["chosen"] == 0
    unknown = typed(*words, "-y", "--run", "99")
    assert unknown.code == 4, "a slip of a finger is no new run"
    assert "there is no run 99" in unknown.err
    assert "go on with one that exists: 1" in unknown.err
    nothing = typed(*words, "-y", "--key", "nosuch")
    assert (nothing.code, "nothing was found" in nothing.err) == (1, True), nothing
    fresh = json.loads(typed(*words, "--dry-run").out)
    assert (fresh["run"], fresh["chosen"], fresh["keys"]) == (2, total, len(KEYS))
    assert typed(*words).code == 2, "nobody is there to be asked"
    one = json.loads(typed(*words, "--key", "a", "--dry-run").out)
    assert (one["run"], one["chosen"], one["keys"]) == (2, len(NUMBERS), 1)
    result = typed("ledger", "lookup", "a/1", "-c", str(first.config), "-o", "json")
    assert '"a/1/1"' in result.out, result
