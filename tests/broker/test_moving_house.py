"""Moving house: the ledger follows its partition, whatever happens to the workers and their disks.

A story of ten events is part of every run of the tests. `make soak` (LANEWAY_TEST_SOAK=1) tells the whole
one: all permits and thirty events.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.broker import recording
from tests.broker.changelog import check_stores, ledgers_of, read_changelog
from tests.broker.cluster import Cluster
from tests.broker.conftest import SOAK, Names
from tests.broker.journal_checks import (
    check_contiguous,
    check_lane_order,
    check_once,
    check_saved_before_acked,
)
from tests.broker.kafka import KafkaBroker
from tests.broker.moving import (
    Event,
    House,
    Tenant,
    check_no_false_gap,
    check_reasons,
    check_second_runs,
    runs_in,
    work_on,
)
from tests.broker.permits import check_end, part_of, permits, workload
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

PARTITIONS = 6
WORKERS = 3
THREADS = 4
SESSION_MS = 2000
TRANSACTION_MS = 3000
BETWEEN_EVENTS_S = 2.0
REST_DEADLINE_S = 90.0


@dataclass(frozen=True)
class Story:
    """How long it is, and under which seed; the seed is chosen so that every kind of event happens."""

    group_protocol: str
    events: int
    records: int
    seed: int


SHORT = [
    Story("classic", events=10, records=2000, seed=29),
    Story("consumer", events=10, records=2000, seed=42),
]
WHOLE = [
    Story(protocol, events=30, records=10_000, seed=seed)
    for protocol, seed in (("classic", 63), ("consumer", 187))
]
STORIES = WHOLE if SOAK else SHORT


@pytest.mark.parametrize("story", STORIES, ids=lambda story: f"{story.group_protocol}-{story.events}")
def test_moving_house(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path, story: Story
) -> None:
    """Workers join, leave, die, freeze and lose their disks: every permit ends once, in order, without a gap.

    Shows S11, S16, S21, S22, S25 and S26, and cases 9, 13, 15, 30 and 35.
    """
    load = workload(part_of(permits(), story.records), story.seed)
    runs_dir = tmp_path / "runs"
    emitted = f"{names.source}.emitted"
    cluster.create_topic(names.source, PARTITIONS)
    cluster.create_topic(emitted, 2)
    records = [replace(each, headers=[*each.headers, ("emit", emitted.encode())]) for each in load.records]

    def settings(state_dir: Path) -> dict[str, Any]:
        tables: dict[str, Any] = {
            "lanes": {"workers": THREADS},
            "retry": {"delays_ms": [300]},
            "ledger": {"replication": "changelog"},
            "kafka": {"transaction.timeout.ms": TRANSACTION_MS},
        }
        if story.group_protocol == "classic":
            tables["kafka"]["session.timeout.ms"] = SESSION_MS
        return settings_of(kafka.bootstrap, names, state_dir, story.group_protocol, **tables)

    create_companions(settings(tmp_path / "state-0"), tmp_path)
    with ExitStack() as stack:
        tenants = []
        for number in range(WORKERS):
            state_dir = tmp_path / f"state-{number}"
            worker = WorkerProcess(
                recording.APP,
                settings(state_dir),
                directory=tmp_path / "workers",
                name=f"worker-{number}",
                environment=recording.environment(runs_dir),
            )
            tenants.append(Tenant(stack.enter_context(worker), state_dir))
        chance = random.Random(story.seed)
        house = House(tenants, PARTITIONS, chance, lambda pid: runs_in(runs_dir, pid))
        share = len(records) // story.events + 1
        for start in range(0, len(records), share):
            house.step(partial(cluster.produce, names.source, records[start : start + share]))
            work_on(lambda: runs_in(runs_dir), runs_in(runs_dir) + share // 2, BETWEEN_EVENTS_S)
        house.settle_down()

        def is_done() -> bool:
            """Every effect has happened and everything is committed."""
            house.check_alive()
            happened = {run.effect_key for run in recording.read_runs(runs_dir) if run.outcome == "effect"}
            assert len(happened) >= load.effects, f"{len(happened)} of {load.effects} effects"
            shares = [len(tenant.worker.live()) for tenant in tenants]
            assert shares == [PARTITIONS // WORKERS] * WORKERS, f"they share the partitions {shares}"
            check_no_lag(cluster, names)
            return True

        eventually(is_done, REST_DEADLINE_S, f"the end of all permits; {house.account()}", poll_s=0.3)
        house.leave()

    print(house.account())
    assert set(house.seen) == set(Event), f"this seed tells too little: {house.seen}"
    journal_of = house.journals()
    runs = recording.read_runs(runs_dir)
    check_lane_order(runs)
    check_contiguous(runs, load.last)
    for journal in journal_of.values():
        check_saved_before_acked(journal)
    print(check_second_runs(runs, house.killed, journal_of))
    check_no_false_gap(journal_of, load.parked)
    check_reasons(journal_of, {"sequence-gap"})

    companions = f"{names.source}.{names.group}"
    entries = read_changelog(cluster, f"{companions}.ledger")
    ledgers = ledgers_of(entries, load.effect_keys, list(load.last))
    retries, dead, review = (
        cluster.read_topic(f"{companions}.{kind}") for kind in ("retry", "dlq", "review")
    )
    for messages in (retries, dead, review):
        check_once(messages)
    check_end(load, ledgers, dead, review)
    out = [(message.value() or b"").decode() for message in cluster.read_topic(emitted)]
    assert Counter(out) == dict.fromkeys(ledgers.effects, 1)
    for key, group in groupby(sorted(out, key=_lane_of), key=_lane_of):
        in_order = [int(effect_key.rpartition(":")[2]) for effect_key in group]
        assert in_order == sorted(in_order), f"{key} was emitted out of order: {in_order}"
    for tenant in tenants:
        check_stores(tenant.state_dir, names.source, entries, load.effect_keys, list(load.last))


def check_no_lag(cluster: Cluster, names: Names) -> None:
    """All of the source and of its retry topic is committed, and no transaction hangs in any topic."""
    companions = f"{names.source}.{names.group}"
    for topic in (names.source, f"{companions}.retry"):
        committed, ends = cluster.committed(names.group, topic), cluster.end_offsets(topic)
        assert {number: committed[number] or 0 for number in ends} == ends, topic
    for kind in ("retry", "dlq", "review", "ledger"):
        topic = f"{companions}.{kind}"
        assert cluster.stable_offsets(topic) == cluster.end_offsets(topic), f"open transaction in {topic}"


def _lane_of(effect_key: str) -> str:
    return effect_key.rpartition(":")[0]
