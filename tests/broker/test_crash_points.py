"""kill -9 behind every step of the settling cycle: a restart comes to the end of an undisturbed run."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.broker import recording
from tests.broker.changelog import check_stores, ledgers_of, read_changelog
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import SOAK, Names
from tests.broker.journal_checks import (
    by_forward_id,
    check_lane_order,
    check_saved_before_acked,
    check_second_runs,
    events_of,
    header,
    read_ledgers,
)
from tests.broker.kafka import KafkaBroker
from tests.broker.recording import Run, event, read_runs
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

STEPS = {
    "local": ("cut", "written", "synced", "told", "published", "committed", "acked"),
    "changelog": ("begun", "sent", "offsets", "committed", "told", "applied", "acked"),
}
EVERY_STEP = [
    (replication, step)
    for replication, steps in STEPS.items()
    for step in steps
    if SOAK or replication == "local" or step in {"offsets", "committed", "applied"}
]
# Where each life ends. The first part brings the failure, whose retry makes a second cycle sure.
KILLS = ("2:settling", "1:settling", "1:settling")
DELAY_MS = 150
SEQUENCE_KEYS = ["plain", "late", "twice", "bad", "gap", "asks"]
EFFECT_KEYS = [f"{key}:{sequence}" for key in SEQUENCE_KEYS for sequence in range(1, 8)]


def mixed() -> list[list[Outgoing]]:
    """Every kind of end in one partition, lanes interleaved; one part for each life of the worker."""
    lanes = [
        [event("plain", n) for n in range(1, 8)],
        # 2 fails once; 3 to 5 follow, and 3 comes twice.
        [event("late", n, act="fail:1" if n == 2 else "") for n in (1, 2, 3, 3, 4, 5)],
        # A duplicate of what is done, another of what is next.
        [event("twice", n) for n in (1, 2, 1, 3, 2)],
        # 2 is rejected: DLQ and a holding case, 3 is parked behind it.
        [event("bad", n, act="reject" if n == 2 else "") for n in (1, 2, 3)],
        # 2 never comes.
        [event("gap", n) for n in (1, 3, 4)],
        [event("asks", n, act="review" if n == 1 else "") for n in (1, 2)],
        [Outgoing(b"garbage", b"garbage")],
    ]
    rounds = [[record for record in turn if record is not None] for turn in zip_longest(*lanes)]
    return [list(chain.from_iterable(part)) for part in (rounds[:2], rounds[2:4], rounds[4:])]


@dataclass
class History:
    """One history: its worker, where it left what, and how to look at that."""

    worker: WorkerProcess
    cluster: Cluster
    names: Names
    state_dir: Path
    runs_dir: Path
    replication: str

    @property
    def retry_topic(self) -> str:
        """Where temporary failures wait."""
        return f"{self.names.source}.{self.names.group}.retry"

    def runs(self) -> list[Run]:
        """The handler's runs so far."""
        return read_runs(self.runs_dir)

    def check_committed(self) -> bool:
        """Source and retry topic are committed to their ends."""
        for topic in (self.names.source, self.retry_topic):
            committed, ends = self.cluster.committed(self.names.group, topic), self.cluster.end_offsets(topic)
            assert {n: committed[n] or 0 for n in ends} == ends, topic
        return True

    def ledger(self) -> dict[str, Any]:
        """What the ledger holds, without times and without what is derived from the topic's name."""
        if self.replication == "local":
            found = read_ledgers(self.state_dir, self.names.source, EFFECT_KEYS, SEQUENCE_KEYS)
        else:
            entries = read_changelog(self.cluster, f"{self.names.source}.{self.names.group}.ledger")
            found = ledgers_of(entries, EFFECT_KEYS, SEQUENCE_KEYS)
            check_stores(self.state_dir, self.names.source, entries, EFFECT_KEYS, SEQUENCE_KEYS)
        return {
            "effects": {
                key: (effect.state.name, effect.attempt, effect.offset, effect.result_key, effect.reason)
                for key, effect in found.effects.items()
            },
            "lanes": {
                key: (lane.last, lane.parked, lane.parked_bytes, lane.hold and lane.hold.reason)
                for key, lane in found.lanes.items()
            },
            "parked": sorted(found.parked),
            "cases": sorted(
                (c.reason, c.lane, c.sequence, c.offset, c.attempts, c.holds) for c in found.cases
            ),
            "outbox": found.outbox,
        }

    def forwards(self) -> dict[str, list[tuple[str, ...]]]:
        """What lies in retry, DLQ and review topic; copies with one forward id count once."""
        found = {}
        for kind in ("retry", "dlq", "review"):
            copies = self.cluster.read_topic(f"{self.names.source}.{self.names.group}.{kind}")
            messages = by_forward_id(copies).values()
            if self.replication == "changelog":
                assert len(copies) == len(messages), f"a forward is twice in {kind}"
            names = ("kind", "origin-offset", "attempt", "reason", "effect-key")
            found[kind] = sorted(tuple(header(message, name) for name in names) for message in messages)
        return found


def history(
    kafka: KafkaBroker,
    cluster: Cluster,
    names: Names,
    directory: Path,
    replication: str = "local",
    **tables: Any,
) -> History:
    """A worker on a source of one partition, not started yet.

    It is a static member: what is started again takes its place at once, where another would wait
    for the session of the killed one to end.
    """
    cluster.create_topic(names.source, 1)
    settings = settings_of(
        kafka.bootstrap,
        names,
        directory / "state",
        instance_id="the-worker",
        retry={"delays_ms": [DELAY_MS]},
        lanes={"workers": 2},
        ledger={"replication": replication},
        **tables,
    )
    create_companions(settings, directory)
    worker = WorkerProcess(
        recording.APP,
        settings,
        directory=directory / "worker",
        environment=recording.environment(directory / "runs"),
    )
    return History(worker, cluster, names, directory / "state", directory / "runs", replication)


@pytest.fixture(scope="module")
def undisturbed(
    kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any], Counter[tuple[str, int]]]:
    """Ledger, forwards and runs of the mixed workload when nobody is killed."""
    cluster = Cluster(kafka.bootstrap)
    tag = uuid.uuid4().hex[:10]
    names = Names(source=f"src-{tag}", group=f"grp-{tag}")
    run = history(kafka, cluster, names, tmp_path_factory.mktemp("undisturbed"))
    cluster.produce(names.source, chain.from_iterable(mixed()))
    with run.worker.start() as worker:
        # The last to run: a follower of the retry.
        eventually(lambda: ("late:5", 1) in count(run.runs()), 30, "the last effect")
        eventually(run.check_committed, 30, "the commit")
        worker.stop()
    return run.ledger(), run.forwards(), count(run.runs())


def count(runs: Iterable[Run]) -> Counter[tuple[str, int]]:
    """How often each attempt of each effect ran."""
    return Counter((run.effect_key, run.attempt) for run in runs)


def test_the_undisturbed_end_is_what_the_workload_says(undisturbed: Any) -> None:
    """The end that the crashes are compared with is itself right, so that equal to it means right."""
    ledger, forwards, runs = undisturbed
    assert set(runs.values()) == {1}
    assert {key: state for key, (state, *_) in ledger["effects"].items()} == {
        **{f"plain:{n}": "SUCCEEDED" for n in range(1, 8)},
        **{f"late:{n}": "SUCCEEDED" for n in range(1, 6)},
        **{f"twice:{n}": "SUCCEEDED" for n in range(1, 4)},
        "bad:1": "SUCCEEDED",
        "bad:2": "QUARANTINED",
        "gap:1": "SUCCEEDED",
        "asks:1": "IN_REVIEW",
    }
    assert ledger["effects"]["late:2"][1] == 2
    assert [(reason, lane) for reason, lane, *_ in ledger["cases"]] == [
        ("rejected", "kbad"),
        ("review-requested", "kasks"),
        ("sequence-gap", "kgap"),
    ]
    assert [(lane, sequence) for lane, sequence, _ in ledger["parked"]] == [
        ("kasks", 2),
        ("kbad", 3),
        ("kgap", 3),
        ("kgap", 4),
    ]
    assert ledger["outbox"] == 0
    assert [len(forwards[kind]) for kind in ("retry", "dlq", "review")] == [1, 2, 3]


@pytest.mark.parametrize(("replication", "step"), EVERY_STEP)
def test_a_restart_comes_to_the_same_end(
    kafka: KafkaBroker,
    cluster: Cluster,
    names: Names,
    tmp_path: Path,
    undisturbed: tuple[dict[str, Any], dict[str, Any], Counter[tuple[str, int]]],
    replication: str,
    step: str,
) -> None:
    """Killed behind this step, three times in a row, the work ends as if nobody had been killed (S4).

    A forward may be there twice, with the same id; never where it travels in the transaction. What ran again
    had no outcome when it was killed. Where the ledger is replicated the second life has lost its disk too.
    """
    run = history(kafka, cluster, names, tmp_path, replication, cycle={"max_records": 4})
    ledger, forwards, runs = undisturbed
    killed = []
    with run.worker as worker:
        for part, occurrence in zip(mixed(), KILLS, strict=True):
            cluster.produce(names.source, part)
            worker.crash_at = f"{step}:{occurrence}"
            worker.start()
            assert worker.wait() == -9, worker.stderr()
            killed.append(worker.pid)
            if replication == "changelog" and len(killed) == 1:
                shutil.rmtree(run.state_dir)
        worker.crash_at = None
        worker.start()
        eventually(worker.live, 30, "the last life")
        eventually(lambda: count(run.runs()).keys() >= runs.keys(), 30, "every run")
        eventually(run.check_committed, 30, "the commit")
        worker.stop()
    assert run.ledger() == ledger
    assert run.forwards() == forwards
    assert count(run.runs()).keys() == runs.keys()
    journal_of = {pid: worker.journal(pid) for pid in worker.pids}
    check_second_runs(run.runs(), killed, journal_of)
    check_lane_order(run.runs())
    for journal in journal_of.values():
        check_saved_before_acked(journal)


@pytest.mark.parametrize(
    ("step", "runs", "comes_again"),
    [
        ("cut", 2, True),
        ("written", 1, True),
        ("synced", 1, True),
        ("told", 1, True),
        ("published", 1, True),
        ("committed", 1, False),
        ("acked", 1, False),
    ],
)
def test_a_kill_between_ledger_and_commit_leads_to_an_ack_only(
    kafka: KafkaBroker,
    cluster: Cluster,
    names: Names,
    tmp_path: Path,
    step: str,
    runs: int,
    comes_again: bool,
) -> None:
    """Once the ledger has the outcome, a redelivery is suppressed and acknowledged and never runs (S11, S12).

    Before it the effect runs again, marked redelivered (S21); behind the commit nothing comes back.
    """
    run = history(kafka, cluster, names, tmp_path)
    cluster.produce(names.source, [event("one", 1)])
    with run.worker as worker:
        worker.crash_at = f"{step}:1:settling"
        worker.start()
        assert worker.wait() == -9, worker.stderr()
        worker.crash_at = None
        worker.start()
        eventually(run.check_committed, 30, "the commit")
        # One more, so that what has to stay quiet had its chance.
        cluster.produce(names.source, [event("one", 2)])
        eventually(
            lambda: len(events_of(worker.journal(worker.pid), "ack_sent")) > comes_again, 30, "its ack"
        )
        worker.stop()
        told = [line for line in worker.journal(worker.pid) if line["effectKey"] == "one:1"]
    first = [each for each in run.runs() if each.effect_key == "one:1"]
    assert [each.redelivered for each in first] == [False, True][:runs]
    events = [(line["event"], line["reason"], line["redelivered"]) for line in told]
    if not comes_again:
        assert events == []
    elif runs == 1:
        assert events[1:] == [("duplicate_suppressed", "already-settled", True), ("ack_sent", None, True)]
    else:
        assert [name for name, *_ in events] == ["received", "running", "result_saved", "ack_sent"]


def test_a_name_that_is_still_taken_ends_the_worker(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """A second holder of an instance id that the group refuses ends and says why; it never sits idle."""
    cluster.create_topic(names.source, 1)
    settings = settings_of(kafka.bootstrap, names, tmp_path / "state", "consumer", instance_id="the-worker")
    create_companions(settings, tmp_path)
    environment = recording.environment(tmp_path / "runs")
    with (
        WorkerProcess(
            recording.APP, settings, directory=tmp_path, name="a", environment=environment
        ) as first,
        WorkerProcess(
            recording.APP, settings, directory=tmp_path, name="b", environment=environment
        ) as second,
    ):
        first.start()
        eventually(first.live, 30, "the first worker")
        second.start()
        assert second.wait() == 1
        assert "instance ID is still used" in second.stderr()
        assert first.live()
        first.stop()
