"""The articles' homework and training stories, as they stand there, with a real worker.

Without a sequence key: five independent jobs, one of them poison; a stop in mid-work; ten at a time with a
crash in the middle; reports that are written once.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from laneway.lanes.effect import EffectState
from tests.broker import recording
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.journal_checks import check_saved_before_acked, events_of, read_ledgers
from tests.broker.kafka import KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

NO_ORDER = {"sequence_key": "none", "sequence": "none"}

REPORTS = """
import csv, os, time
from pathlib import Path

from laneway import Pipeline

pipeline = Pipeline()


@pipeline.handler
def report(delivery):
    path = Path("reports") / f"{delivery.effect_key}.csv"
    path.parent.mkdir(exist_ok=True)
    half = path.with_suffix(".half")
    with half.open("w", newline="") as file:
        rows = csv.writer(file)
        for number in range(delivery.payload["rows"]):
            rows.writerow([delivery.effect_key, number])
            file.flush()
            time.sleep(0.002)
    os.replace(half, path)
    return str(path)
"""


@dataclass(frozen=True)
class Job:
    """One topic with one partition, a group, and where its workers keep things."""

    bootstrap: str
    cluster: Cluster
    names: Names
    directory: Path

    def worker(self, app: str = recording.APP, **tables: Any) -> WorkerProcess:
        """A worker without order; its topics are made, nothing runs yet."""
        settings = settings_of(
            self.bootstrap, self.names, self.directory / "state", envelope=NO_ORDER, **tables
        )
        self.cluster.create_topic(self.names.source, 1)
        create_companions(settings, self.directory)
        environment = recording.environment(self.runs)
        return WorkerProcess(app, settings, directory=self.directory, environment=environment)

    def send(self, records: Sequence[Outgoing]) -> None:
        """Produces to the source."""
        self.cluster.produce(self.names.source, records)

    def await_commit(self, offset: int) -> None:
        """Until the group has committed this far."""
        eventually(
            lambda: self.cluster.committed(self.names.group, self.names.source) == {0: offset},
            40,
            f"offset {offset} to be committed",
            poll_s=0.2,
        )

    @property
    def runs(self) -> Path:
        """Where the handler writes what it did."""
        return self.directory / "runs"

    def effects(self) -> Counter[str]:
        """How often each effect happened."""
        return Counter(run.effect_key for run in recording.read_runs(self.runs) if run.outcome == "effect")


def interrupt(worker: WorkerProcess) -> None:
    """Ctrl+C."""
    os.kill(worker.pid, signal.SIGINT)


@pytest.fixture
def job(kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path) -> Job:
    """Nothing exists yet."""
    return Job(kafka.bootstrap, cluster, names, tmp_path)


def test_five_messages_and_one_of_them_is_empty(job: Job) -> None:
    """The poison is rejected without return, the four others are acknowledged, each once (S24, S19)."""
    with job.worker() as worker:
        records = [recording.event("k", number) for number in range(1, 6)]
        records[2] = Outgoing(b"", b"poison")
        job.send(records)
        worker.start()
        job.await_commit(5)
        worker.stop()
    assert job.effects() == dict.fromkeys(("k:1", "k:2", "k:4", "k:5"), 1)
    journal = worker.journal()
    check_saved_before_acked(journal)
    assert [line["offset"] for line in events_of(journal, "quarantined")] == [2]
    assert sorted(line["offset"] for line in events_of(journal, "ack_sent")) == [0, 1, 2, 3, 4]
    letters = job.cluster.read_topic(f"{job.names.source}.{job.names.group}.dlq")
    assert [(letter.key(), letter.value()) for letter in letters] == [(b"poison", b"")]
    assert job.cluster.read_topic(f"{job.names.source}.{job.names.group}.retry") == []
    assert job.cluster.read_topic(f"{job.names.source}.{job.names.group}.review") == []


def test_ctrl_c_in_mid_work_finishes_what_runs_and_leaves_the_rest(job: Job) -> None:
    """After SIGINT the job in hand is done and settled; the rest come back, marked redelivered (S24)."""
    with job.worker(lanes={"workers": 1}) as worker:
        job.send([recording.event("k", number, work_ms=700) for number in range(1, 6)])
        worker.start()
        eventually(lambda: sum(job.effects().values()) == 1, 30, "the first effect")
        interrupt(worker)
        assert worker.wait() == 0, worker.stderr()
        done = set(job.effects())
        assert 1 <= len(done) < 5
        committed = job.cluster.committed(job.names.group, job.names.source)
        assert committed == {0: len(done)}, "what was done is settled, and nothing else"
        worker.start()
        job.await_commit(5)
        worker.stop()
    assert job.effects() == {f"k:{number}": 1 for number in range(1, 6)}
    again = events_of(worker.journal(worker.pid), "running")
    assert {line["effectKey"] for line in again} == {f"k:{n}" for n in range(1, 6)} - done
    assert all(line["redelivered"] for line in again)


def test_a_second_ctrl_c_ends_at_once(job: Job) -> None:
    """A second signal does not wait for the handler; what was in hand comes again, marked redelivered."""
    with job.worker() as worker:
        job.send([recording.event("k", 1, act="hang")])
        worker.start()
        eventually(lambda: recording.read_runs(job.runs), 30, "the handler to hang")
        interrupt(worker)
        eventually(lambda: "finishing what runs" in worker.stderr(), 10, "the first signal to be noticed")
        interrupt(worker)
        assert worker.wait(3) == 1
        assert job.cluster.committed(job.names.group, job.names.source)[0] in {None, 0}
        worker.start()
        job.await_commit(1)
        worker.stop()
    runs = recording.read_runs(job.runs)
    assert [(run.outcome, run.redelivered) for run in runs] == [("hanging", False), ("effect", True)]


def test_a_drain_deadline_that_passes_is_exit_5(job: Job) -> None:
    """SIGTERM with a handler that does not end: exit 5 after --drain-timeout, and a sentence that says so."""
    with job.worker() as worker:
        worker.arguments = ("--drain-timeout", "0.5")
        job.send([recording.event("k", 1, act="hang"), recording.event("k", 2)])
        worker.start()
        eventually(lambda: job.effects()["k:2"], 30, "the other job")
        worker.terminate()
        assert worker.wait(10) == 5
    assert "drain deadline" in worker.stderr()
    assert "--drain-timeout" in worker.stderr()
    assert "Traceback" not in worker.stderr()
    assert job.cluster.committed(job.names.group, job.names.source) == {0: 0}


def test_a_crash_in_a_batch_of_ten_redelivers_and_harms_nothing(job: Job) -> None:
    """Ten are settled together; a kill when nine are done redelivers ten and harms nothing (S20)."""
    with job.worker(cycle={"max_records": 10, "max_ms": 60_000}) as worker:
        job.send([recording.event("k", n, act="hang" if n == 10 else "") for n in range(1, 11)])
        worker.start()
        eventually(lambda: len(recording.read_runs(job.runs)) == 10, 30, "nine effects and one that hangs")
        worker.kill()
        assert job.cluster.committed(job.names.group, job.names.source)[0] in {None, 0}
        worker.start()
        job.await_commit(10)
        # The same jobs once more, as a publisher that did not get his answer sends them.
        job.send([recording.event("k", number) for number in range(1, 11)])
        job.await_commit(20)
        worker.stop()
    second = worker.journal(worker.pid)
    redelivered = [line["offset"] for line in events_of(second, "running") if line["redelivered"]]
    assert sorted(redelivered) == list(range(10)), "all ten come again, nine of them were done"
    assert job.effects() == {**{f"k:{n}": 2 for n in range(1, 10)}, "k:10": 1}
    assert sorted(line["effectKey"] for line in events_of(second, "result_saved")) == sorted(job.effects())
    suppressed = [line["offset"] for line in events_of(second, "duplicate_suppressed")]
    assert sorted(suppressed) == list(range(10, 20)), "known by effect from now on (S25)"


def test_reports_are_whole_and_where_they_belong_after_kill_9(job: Job) -> None:
    """Each job's file is reports/{job}.csv, whole, and its path stands in the ledger with the state (S6)."""
    with job.worker("app:pipeline", lanes={"workers": 4}) as worker:
        (job.directory / "app.py").write_text(REPORTS)
        job.send([recording.event("job", number, payload={"rows": 30}) for number in range(1, 41)])
        worker.start()
        reports = job.directory / "reports"
        for least in (8, 20):
            await_files(reports, least)
            worker.kill()
            for path in reports.glob("*.csv"):
                assert len(path.read_text().splitlines()) == 30, f"{path.name} is half a report"
            worker.start()
        job.await_commit(40)
        worker.stop()
    keys = [f"job:{number}" for number in range(1, 41)]
    assert {path.name for path in reports.iterdir()} == {f"{key}.csv" for key in keys}
    # Not in the journal: a kill between the two leaves the outcome known and its line unwritten.
    kept = read_ledgers(job.directory / "state", job.names.source, keys, []).effects
    assert {key: (effect.state, effect.result_key) for key, effect in kept.items()} == {
        key: (EffectState.SUCCEEDED, f"reports/{key}.csv") for key in keys
    }


def await_files(directory: Path, least: int) -> None:
    """Until that many reports are there."""
    eventually(lambda: len(list(directory.glob("*.csv"))) >= least, 30, f"{least} reports")


@pytest.mark.parametrize("how", ["signal", "value"])
def test_a_redrive_of_what_never_completed_is_not_swallowed(job: Job, how: str) -> None:
    """Only finished effects suppress: a job that was rejected runs when a corrected copy comes (case 28)."""
    rejected = recording.event("k", 1, act="reject")
    if how == "value":
        rejected = Outgoing(b"{}", rejected.key)
    with job.worker() as worker:
        job.send([rejected])
        worker.start()
        job.await_commit(1)
        corrected = json.loads(recording.event("k", 1).value or b"")
        corrected["payload"] = {"corrected": True}
        job.send([Outgoing(json.dumps(corrected).encode(), b"k")])
        job.await_commit(2)
        worker.stop()
    assert job.effects() == {"k:1": 1}
