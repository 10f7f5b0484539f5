"""The main workload: building permits in all their steps, with what a real publisher adds to them.

Duplicates, garbage, gaps and temporary failures are sown from a seed, and the workload knows what must become
of each. The data is read where it is found; elsewhere events of the same shape are made.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Message

from tests.broker import recording
from tests.broker.cluster import Outgoing
from tests.broker.journal_checks import Ledgers, header
from tests.broker.kafka import REPOSITORY

DATA = REPOSITORY.parent / "shared" / "data" / "permits.ndjson.gz"
EVENTS = 8577
GAPS = 10
WORK_MS = 4

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
    garbage: list[bytes | None] = field(default_factory=list)

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


def part_of(events: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The whole histories of as many permits as it takes to have `count` events, in the order published."""
    lengths = Counter(event["sequenceKey"] for event in events)
    chosen: set[str] = set()
    for key in dict.fromkeys(event["sequenceKey"] for event in events):
        if sum(lengths[each] for each in chosen) >= count:
            break
        chosen.add(key)
    return [event for event in events if event["sequenceKey"] in chosen]


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
            load.garbage.append(garbage[index])
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


def check_end(load: Workload, ledgers: Ledgers, dead: Iterable[Message], review: Iterable[Message]) -> None:
    """Ledgers, DLQ and review topic say the same: each effect once, garbage dead, a case for each gap."""
    assert set(ledgers.homes.values()) == {1}, "an effect is recorded in two ledgers"
    assert len(ledgers.effects) == load.effects
    assert {effect.state.name for effect in ledgers.effects.values()} == {"SUCCEEDED"}
    retried = {key for key, effect in ledgers.effects.items() if effect.attempt == 2}
    assert retried == load.failing & ledgers.effects.keys()
    assert {key: lane.last or 0 for key, lane in ledgers.lanes.items()} == load.last

    parked: dict[str, list[int]] = defaultdict(list)
    for lane, sequence, _ in ledgers.parked:
        parked[lane[1:]].append(sequence)
    assert {key: sorted(found) for key, found in parked.items()} == {
        key: sorted(waiting) for key, waiting in load.parked.items()
    }
    assert sorted(case.lane[1:] for case in ledgers.cases) == sorted(load.parked)
    assert {(case.reason, case.holds) for case in ledgers.cases} == {("sequence-gap", True)}
    assert all(case.sequence == load.last[case.lane[1:]] + 1 for case in ledgers.cases)

    assert Counter(message.value() for message in dead) == Counter(load.garbage)
    told = sorted(header(message, "case-id") for message in review)
    assert told == sorted(case.case_id for case in ledgers.cases)
