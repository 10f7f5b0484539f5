"""A ledger that follows its partition: the smallest run that shows it whole."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.broker import recording
from tests.broker.changelog import check_stores, ledgers_of, read_changelog
from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.journal_checks import (
    check_contiguous,
    check_lane_order,
    check_once,
    check_saved_before_acked,
    check_second_runs,
    events_of,
)
from tests.broker.kafka import KafkaBroker
from tests.broker.permits import check_end, part_of, permits, workload
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

PARTITIONS = 2
EVENTS = 600
EFFECTS_BEFORE_A_KILL = 150


def test_a_worker_that_lost_its_disk_goes_on(
    kafka: KafkaBroker, cluster: Cluster, names: Names, group_protocol: str, tmp_path: Path
) -> None:
    """Killed in mid-run, its state directory deleted, started again: nothing is lost, torn, or a false gap.

    Whoever reads what is committed sees each dead letter and each retry once. Shows S11, S25 and S26.
    """
    load = workload(part_of(permits(), EVENTS), seed=5)
    state_dir, runs_dir = tmp_path / "state", tmp_path / "runs"
    cluster.create_topic(names.source, PARTITIONS)
    settings = settings_of(
        kafka.bootstrap,
        names,
        state_dir,
        group_protocol,
        ledger={"replication": "changelog"},
        retry={"delays_ms": [100]},
    )
    create_companions(settings, tmp_path)
    companion = f"{names.source}.{names.group}."

    def effects() -> set[str]:
        return {run.effect_key for run in recording.read_runs(runs_dir) if run.outcome == "effect"}

    def is_done() -> bool:
        assert len(effects()) >= load.effects, f"{len(effects())} of {load.effects} effects"
        for topic in (names.source, f"{companion}retry", f"{companion}commands"):
            committed, ends = cluster.committed(names.group, topic), cluster.end_offsets(topic)
            assert {number: committed[number] or 0 for number in ends} == ends, topic
        return True

    environment = recording.environment(runs_dir)
    with WorkerProcess(recording.APP, settings, directory=tmp_path, environment=environment) as worker:
        worker.start()
        eventually(lambda: len(worker.live()) == PARTITIONS, 40, "the worker to be live")
        cluster.produce(names.source, load.records)
        eventually(lambda: len(effects()) >= EFFECTS_BEFORE_A_KILL, 40, "work in hand")
        worker.kill()
        killed = worker.pid
        shutil.rmtree(state_dir)
        worker.start()
        eventually(is_done, 60, "the end of all permits", poll_s=0.2)
        worker.stop()
        journal_of = {pid: worker.journal(pid) for pid in worker.pids}

    runs = recording.read_runs(runs_dir)
    check_lane_order(runs)
    check_contiguous(runs, load.last)
    check_second_runs(runs, [killed], journal_of)
    for journal in journal_of.values():
        check_saved_before_acked(journal)
    found = {line["reason"] for line in events_of(worker.journal(), "gap_detected")}
    entries = read_changelog(cluster, f"{companion}ledger")
    ledgers = ledgers_of(entries, load.effect_keys, list(load.last))
    dead = check_once(cluster.read_topic(f"{companion}dlq"))
    check_end(load, ledgers, dead, check_once(cluster.read_topic(f"{companion}review")))
    assert len(found) <= len(load.parked), f"a gap that was none: {found}"
    check_once(cluster.read_topic(f"{companion}retry"))
    assert check_stores(state_dir, names.source, entries, load.effect_keys, list(load.last)) == PARTITIONS
