"""The main job: thousands of building permits through two workers, one of which is killed again and again."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.broker import recording
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.journal_checks import (
    by_forward_id,
    check_contiguous,
    check_lane_order,
    check_saved_before_acked,
    check_second_runs,
    events_of,
    header,
    place_of,
    read_ledgers,
)
from tests.broker.kafka import REPOSITORY, KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

DATA = REPOSITORY.parent / "shared" / "data" / "permits.ndjson.gz"
EVENTS = 8577
PARTITIONS = 6
KILLS = 3
EFFECTS_BEFORE_A_KILL = 200
GAPS = 10
WORK_MS = 4
THREADS = 4

GARBAGE = (
    b"",
    b"\xff\xfe not text",
    b"not json",
    b"[1,2,3]",
    b"{}",
    b'{"messageId":"g","effectKey":"g","sequenceKey":"g","sequence":"1","version":1,"payload":{}}',
    b'{"messageId":"g","effectKey":"g","sequenceKey":"g","sequence":-1,"version":1,"payload":{}}',
    None,
)


@dataclass
class Workload:
    """What is published, and what must become of it.

    Attributes:
        last: by sequence key, the last sequence that can run.
        parked: by sequence key behind a gap, the sequences that wait, copies included.
        failing: effect keys that fail temporarily at their first attempt.
    """

    records: list[Outgoing] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)
    parked: dict[str, list[int]] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    effect_keys: list[str] = field(default_factory=list)

    @property
    def effects(self) -> int:
        """How many effects happen in the end."""
        return sum(self.last.values())


def permits() -> list[dict[str, Any]]:
    """The events of the data set; where it is absent, events of the same shape."""
    path = Path(os.environ.get("LANEWAY_PERMITS", DATA))
    if path.is_file():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    chance = random.Random(8577)
    lengths: list[int] = []
    while sum(lengths) < EVENTS:
        lengths.append(min(chance.choice((1, 6, 6, 6, 6, 6, 6, 8, 10, 18)), EVENTS - sum(lengths)))
    waiting = [(f"case-{number}", length) for number, length in enumerate(lengths)]
    at: Counter[str] = Counter()
    events = []
    while waiting:
        # A few dozen permits are under way at any time.
        index = chance.randrange(min(40, len(waiting)))
        key, length = waiting[index]
        at[key] += 1
        events.append(
            {
                "messageId": f"{key}/{at[key]}",
                "effectKey": f"{key}:{at[key]}",
                "sequenceKey": key,
                "sequence": at[key],
                "version": 1,
                "payload": {"activity": f"step {at[key]}", "resource": "Resource26"},
            }
        )
        if at[key] == length:
            waiting.pop(index)
    return events


def workload(events: list[dict[str, Any]], seed: int) -> Workload:
    """The events with 5 % publisher duplicates, 1 % temporary failures, garbage and gaps."""
    chance = random.Random(seed)
    lengths = Counter(event["sequenceKey"] for event in events)
    gaps = {
        key: chance.randrange(1, lengths[key])
        for key in chance.sample(sorted(key for key, length in lengths.items() if length > 1), GAPS)
    }
    load = Workload(parked=defaultdict(list))
    load.last = {key: gaps.get(key, length + 1) - 1 for key, length in lengths.items()}
    behind: dict[int, list[Outgoing]] = defaultdict(list)
    garbage = dict(zip(chance.sample(range(len(events)), len(GARBAGE)), GARBAGE, strict=True))
    for index, event in enumerate(events):
        key, sequence = event["sequenceKey"], event["sequence"]
        load.effect_keys.append(event["effectKey"])
        if index in garbage:
            load.records.append(Outgoing(garbage[index], f"garbage-{index}".encode()))
        if sequence != gaps.get(key):
            fails = chance.random() < 0.01
            if fails:
                load.failing.add(event["effectKey"])
            record = Outgoing(
                json.dumps(event).encode(),
                key.encode(),
                recording.headers("fail:1" if fails else "", WORK_MS),
            )
            copies = 1
            load.records.append(record)
            if chance.random() < 0.05:
                copies = 2
                behind[index + chance.randrange(40)].append(record)
            if key in gaps and sequence > gaps[key]:
                load.parked[key] += [sequence] * copies
        load.records += behind.pop(index, [])
    for late in behind.values():
        load.records += late
    return load


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
            cluster.produce(names.source, load.records[start : start + share])
            if len(killed) < KILLS:
                eventually(lambda: runs_of(runs_dir, victim.pid) >= EFFECTS_BEFORE_A_KILL, 40, "work in hand")
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
    check_end(cluster, names, load, state_dir)


def check_end(cluster: Cluster, names: Names, load: Workload, state_dir: Path) -> None:
    """Ledgers, DLQ and review topic say the same: each effect once, eight dead letters, ten cases."""
    ledgers = read_ledgers(state_dir, names.source, load.effect_keys, list(load.last))
    assert set(ledgers.homes.values()) == {1}, "an effect is recorded in two ledgers"
    assert len(ledgers.effects) == load.effects
    assert {effect.state.name for effect in ledgers.effects.values()} == {"SUCCEEDED"}
    retried = {key for key, effect in ledgers.effects.items() if effect.attempt == 2}
    assert retried == load.failing & ledgers.effects.keys()
    assert {key: lane.last or 0 for key, lane in ledgers.lanes.items()} == load.last
    assert ledgers.outbox == 0

    parked: dict[str, list[int]] = defaultdict(list)
    for lane, sequence, _ in ledgers.parked:
        parked[lane[1:]].append(sequence)
    assert {key: sorted(found) for key, found in parked.items()} == {
        key: sorted(waiting) for key, waiting in load.parked.items()
    }
    assert sorted(case.lane[1:] for case in ledgers.cases) == sorted(load.parked)
    assert {(case.reason, case.holds) for case in ledgers.cases} == {("sequence-gap", True)}
    assert all(case.sequence == load.last[case.lane[1:]] + 1 for case in ledgers.cases)

    dead = by_forward_id(cluster.read_topic(f"{names.source}.{names.group}.dlq"))
    assert Counter(message.value() for message in dead.values()) == Counter(GARBAGE)
    review = by_forward_id(cluster.read_topic(f"{names.source}.{names.group}.review"))
    told = sorted(header(message, "case-id") for message in review.values())
    assert told == sorted(case.case_id for case in ledgers.cases)


def runs_of(directory: Path, pid: int) -> int:
    """How often the handler of one process has run so far."""
    path = directory / f"{pid}.runs"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def in_hand(journal: list[dict[str, Any]]) -> set[Any]:
    """Positions that were handed to the handler and had no outcome when the journal ended."""
    running = {place_of(line) for line in events_of(journal, "running")}
    return running - {place_of(line) for line in events_of(journal, "result_saved", "retry_scheduled")}
