"""The main job: thousands of building permits through two workers, one of which is killed again and again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.broker import recording
from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.journal_checks import (
    by_forward_id,
    check_contiguous,
    check_lane_order,
    check_saved_before_acked,
    check_second_runs,
    events_of,
    place_of,
    read_ledgers,
)
from tests.broker.kafka import KafkaBroker
from tests.broker.permits import EVENTS, GAPS, check_end, permits, workload
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

PARTITIONS = 6
KILLS = 3
EFFECTS_BEFORE_A_KILL = 60
THREADS = 4


def test_permits(
    kafka: KafkaBroker, cluster: Cluster, names: Names, group_protocol: str, tmp_path: Path
) -> None:
    """Two workers, one killed three times in mid-run, bring every permit to its end, once and in order.

    Shows S16, S25 and S26; the kills S11 and S21; the garbage S9 and case 26; the gaps case 6's first half.
    """
    load = workload(permits(), seed=2)
    assert len(load.effect_keys) == EVENTS
    assert len(load.parked) == GAPS
    state_dir, runs_dir = tmp_path / "state", tmp_path / "runs"
    cluster.create_topic(names.source, PARTITIONS)
    settings = settings_of(
        kafka.bootstrap,
        names,
        state_dir,
        group_protocol,
        lanes={"workers": THREADS},
        retry={"delays_ms": [300]},
    )
    create_companions(settings, tmp_path)

    def worker(name: str) -> WorkerProcess:
        environment = recording.environment(runs_dir)
        return WorkerProcess(
            recording.APP, settings, directory=tmp_path / "workers", name=name, environment=environment
        )

    share = len(load.records) // (KILLS + 1) + 1
    killed: list[int] = []
    with worker("steady") as steady, worker("killed") as victim:
        steady.start()
        for start in range(0, len(load.records), share):
            victim.start()
            # Each part is published once the partitions are shared, so that every life has work in hand.
            eventually(lambda: len(victim.live()) == PARTITIONS // 2, 40, "half of the partitions")
            # What it had found there may be done by now.
            enough = runs_of(runs_dir, victim.pid) + EFFECTS_BEFORE_A_KILL
            cluster.produce(names.source, load.records[start : start + share])
            if len(killed) < KILLS:
                eventually(lambda: runs_of(runs_dir, victim.pid) >= enough, 40, "work in hand")  # noqa: B023
                victim.kill()
                killed.append(victim.pid)

        def is_done() -> bool:
            """Every effect has happened and everything is committed."""
            happened = {run.effect_key for run in recording.read_runs(runs_dir) if run.outcome == "effect"}
            assert len(happened) >= load.effects, f"{len(happened)} of {load.effects} effects"
            for topic in (names.source, f"{names.source}.{names.group}.retry"):
                committed, ends = cluster.committed(names.group, topic), cluster.end_offsets(topic)
                assert {n: committed[n] or 0 for n in ends} == ends, topic
            return True

        eventually(is_done, 60, "the end of all permits", poll_s=0.2)
        steady.stop()
        victim.stop()

    journal_of = {pid: each.journal(pid) for each in (steady, victim) for pid in each.pids}
    runs = recording.read_runs(runs_dir)
    check_lane_order(runs)
    check_contiguous(runs, load.last)
    for journal in journal_of.values():
        check_saved_before_acked(journal)
    check_second_runs(runs, killed, journal_of)
    for pid in killed:
        assert in_hand(journal_of[pid]), "this kill found nothing in hand, so it showed nothing"
    failures = [run for run in runs if run.outcome == "temporary"]
    runnable = {
        key for key in load.failing if int(key.rpartition(":")[2]) <= load.last[key.rpartition(":")[0]]
    }
    assert {run.effect_key for run in failures} == runnable
    assert {run.attempt for run in failures} == {1}
    ledgers = read_ledgers(state_dir, names.source, load.effect_keys, list(load.last))
    assert ledgers.outbox == 0
    dead = by_forward_id(cluster.read_topic(f"{names.source}.{names.group}.dlq"))
    review = by_forward_id(cluster.read_topic(f"{names.source}.{names.group}.review"))
    check_end(load, ledgers, dead.values(), review.values())


def runs_of(directory: Path, pid: int) -> int:
    """How often the handler of one process has run so far."""
    path = directory / f"{pid}.runs"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def in_hand(journal: list[dict[str, Any]]) -> set[Any]:
    """Positions that were handed to the handler and had no outcome when the journal ended."""
    running = {place_of(line) for line in events_of(journal, "running")}
    return running - {place_of(line) for line in events_of(journal, "result_saved", "retry_scheduled")}
