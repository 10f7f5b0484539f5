"""Moving house: the ledger follows its partition, whatever happens to the workers and their disks.

Two stories of ten events are part of every run of the tests. `make soak` (LANEWAY_TEST_SOAK=1) tells the
whole ones: all permits and thirty events.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
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
from tests.broker.operator import Operator
from tests.broker.permits import Workload, check_end, part_of, permits, workload
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


SHORT = Story("consumer", events=10, records=2000, seed=42)
SHORT_REVIEWED = Story("classic", events=10, records=2000, seed=29)
WHOLE = [
    Story(protocol, events=30, records=10_000, seed=seed)
    for protocol, seed in (("classic", 63), ("consumer", 187))
]
STORIES = WHOLE if SOAK else [SHORT]


@dataclass(frozen=True)
class Told:
    """What a story leaves behind, when all is done and everybody has left."""

    load: Workload
    house: House
    runs: list[recording.Run]
    emitted: list[str]
    companions: str

    def emitted_in_order(self) -> bool:
        """Whether readers got the effects of each key in its order."""
        by_key = groupby(sorted(self.emitted, key=_lane_of), key=_lane_of)
        numbers = [[int(effect_key.rpartition(":")[2]) for effect_key in group] for _, group in by_key]
        return all(each == sorted(each) for each in numbers)


def live_through(
    kafka: KafkaBroker,
    cluster: Cluster,
    names: Names,
    tmp_path: Path,
    story: Story,
    ledger: Mapping[str, str],
    look_after: Callable[[set[str]], None] = lambda _: None,
) -> Told:
    """Let a story happen, until every effect has happened, all is committed, and everybody has left.

    Args:
        look_after: called again and again in the calm behind the story, with the effects that have happened.
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
            "ledger": {"replication": "changelog", **ledger},
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
            look_after(happened)
            assert len(happened) >= load.effects, f"{len(happened)} of {load.effects} effects"
            shares = [len(tenant.worker.live()) for tenant in tenants]
            assert shares == [PARTITIONS // WORKERS] * WORKERS, f"they share the partitions {shares}"
            check_no_lag(cluster, names)
            return True

        eventually(is_done, REST_DEADLINE_S, f"the end of all permits; {house.account()}", poll_s=0.3)
        house.leave()

    print(house.account())
    assert set(house.seen) == set(Event), f"this seed tells too little: {house.seen}"
    out = [(message.value() or b"").decode() for message in cluster.read_topic(emitted)]
    companions = f"{names.source}.{names.group}"
    return Told(load, house, recording.read_runs(runs_dir), out, companions)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: f"{story.group_protocol}-{story.events}")
def test_moving_house(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path, story: Story
) -> None:
    """Workers join, leave, die, freeze and lose their disks: every permit ends once, in order, without a gap.

    Shows S11, S16, S21, S22, S25 and S26, and cases 9, 13, 15, 30 and 35.
    """
    told = live_through(kafka, cluster, names, tmp_path, story, {})
    load, house, runs = told.load, told.house, told.runs
    journal_of = house.journals()
    check_lane_order(runs)
    check_contiguous(runs, load.last)
    for journal in journal_of.values():
        check_saved_before_acked(journal)
    print(check_second_runs(runs, house.killed, journal_of))
    check_no_false_gap(journal_of, load.parked)
    check_reasons(journal_of, {"sequence-gap"})

    entries = read_changelog(cluster, f"{told.companions}.ledger")
    ledgers = ledgers_of(entries, load.effect_keys, list(load.last))
    retries, dead, review = (
        cluster.read_topic(f"{told.companions}.{kind}") for kind in ("retry", "dlq", "review")
    )
    for messages in (retries, dead, review):
        check_once(messages)
    check_end(load, ledgers, dead, review)
    assert Counter(told.emitted) == dict.fromkeys(ledgers.effects, 1)
    assert told.emitted_in_order()
    for tenant in house.tenants:
        check_stores(tenant.state_dir, names.source, entries, load.effect_keys, list(load.last))


REVIEWED = WHOLE[0] if SOAK else SHORT_REVIEWED


def test_moving_house_without_a_second_run(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """With unknown outcomes in review the same story runs no effect twice; a person decides the rest (S7).

    What was in hand when a worker died, or was deposed, becomes a case. The operator looks whether the effect
    is there: then it is done, and else it is run again. At the end every permit has happened exactly once.
    """
    operator = Operator(cluster, names)
    told = live_through(
        kafka, cluster, names, tmp_path, REVIEWED, {"on_unknown_outcome": "review"}, operator.decide
    )
    load, house = told.load, told.house
    print(f"{dict(operator.decided)} decided")
    assert operator.decided, "the story asks nothing"
    happened = Counter(run.effect_key for run in told.runs if run.outcome == "effect")
    assert len(happened) == load.effects
    assert set(happened.values()) == {1}, f"ran twice: {[k for k, n in happened.items() if n > 1]}"
    check_lane_order(told.runs)
    check_contiguous(told.runs, load.last)
    journal_of = house.journals()
    check_no_false_gap(journal_of, load.parked)
    check_reasons(journal_of, {"sequence-gap", "outcome-unknown"})

    entries = read_changelog(cluster, f"{told.companions}.ledger")
    ledgers = ledgers_of(entries, load.effect_keys, list(load.last))
    assert len(ledgers.effects) == load.effects
    assert {effect.state.name for effect in ledgers.effects.values()} == {"SUCCEEDED"}
    assert {case.reason for case in ledgers.cases} == {"sequence-gap"}
    for kind in ("retry", "dlq", "review"):
        check_once(cluster.read_topic(f"{told.companions}.{kind}"))
    # Of an effect whose settlement was lost with its process, what it emitted is lost too.
    assert set(Counter(told.emitted).values()) == {1}
    assert load.effects - len(told.emitted) <= operator.decided["mark-done"]
    assert told.emitted_in_order()


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
