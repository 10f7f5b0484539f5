"""`python -m benchmarks`: the no-op pipeline beside bare loops, and a restore, in rounds on one broker.

Every round runs every subject once, one after another, each in a process of its own; a ratio is taken
inside a round, and the table shows medians over the rounds. Everything is bounded: records, rounds, and
seconds for each subject. Only brokers on loopback are measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks import load
from benchmarks.report import Case, Report, describe, render
from benchmarks.restore import FULL_WINDOW_S, WINDOW_S, measure_restore
from benchmarks.subject import Measured, Task
from benchmarks.supervise import SubjectFailedError, measure
from tests.broker.cluster import Cluster
from tests.broker.kafka import KafkaBroker, KafkaStartError, NoKafkaError, find_kafka

COMMIT_EACH_RECORDS = 2_000
DEADLINE_S = 90.0
_LOOPBACK = ("127.", "localhost", "[::1]")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the JSON."""
    options = _options(arguments)
    try:
        broker = find_kafka()
    except (NoKafkaError, KafkaStartError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 3
    try:
        if not broker.bootstrap.startswith(_LOOPBACK):
            print(f"benchmarks: {broker.bootstrap} is not on loopback; refused", file=sys.stderr)
            return 4
        report = _measure(broker, options)
    except SubjectFailedError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    finally:
        broker.stop()
    print(render(report))
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the long form; the defaults below are short")
    parser.add_argument("--records", type=_count(1_000, 2_000_000), help="in each topic; 40,000 or 200,000")
    parser.add_argument("--rounds", type=_count(1, 50), help="medians are taken over them; 3 or 5")
    parser.add_argument("--keys", type=_counts(1, 1_000_000), help="1000; or 1000,100000")
    parser.add_argument("--partitions", type=_count(1, 64), default=4)
    parser.add_argument(
        "--restore", type=_count(0, 20_000_000), help="entries; 200,000 or 5,000,000; 0: none"
    )
    parser.add_argument("--restore-rounds", type=_count(1, 9), help="3, or 1")
    parser.add_argument("--only-restore", action="store_true", help="leave the loops out")
    parser.add_argument("--json", type=Path, help="also write everything, each single run included, here")
    options = parser.parse_args(arguments)
    forms = {
        "records": (40_000, 200_000),
        "rounds": (3, 5),
        "keys": ((1_000,), (1_000, 100_000)),
        "restore": (200_000, 5_000_000),
        "restore_rounds": (3, 1),
    }
    for name, (short, full) in forms.items():
        if getattr(options, name) is None:
            setattr(options, name, full if options.full else short)
    return options


def _count(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text.replace("_", ""))
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{least} to {most}")
        return value

    return number


def _counts(least: int, most: int) -> Callable[[str], tuple[int, ...]]:
    number = _count(least, most)
    return lambda text: tuple(number(part) for part in text.split(","))


def _cases(options: argparse.Namespace) -> list[Case]:
    if options.only_restore:
        return []
    cases = []
    for keys in options.keys:
        cases += [
            Case("bare-json", "", keys, options.records),
            Case("bare-msgspec", "", keys, options.records),
            Case("changelog", "exceptions", keys, options.records),
            Case("local", "exceptions", keys, options.records),
        ]
        if options.full:
            cases += [Case("changelog", level, keys, options.records) for level in ("off", "all")]
    return [*cases, Case("commit-each", "", options.keys[0], min(COMMIT_EACH_RECORDS, options.records))]


def _measure(broker: KafkaBroker, options: argparse.Namespace) -> Report:
    cluster = Cluster(broker.bootstrap)
    tag = f"laneway-bench-{uuid.uuid4().hex[:8]}"
    topics = {keys: f"{tag}-{keys}" for keys in options.keys if not options.only_restore}
    report = describe(
        broker.source, options.records, options.partitions, options.rounds, short=not options.full
    )
    try:
        for keys, topic in topics.items():
            say(f"filling {topic}: {options.records} records, {keys} keys")
            report.value_bytes[keys] = round(
                load.publish(
                    cluster, topic, partitions=options.partitions, records=options.records, keys=keys
                )
            )
        ends = {keys: cluster.end_offsets(topic) for keys, topic in topics.items()}
        report.runs = {case.name: [] for case in _cases(options)}
        report.cases = _cases(options)
        for number in range(1, options.rounds + 1):
            for case in report.cases:
                measured = _run_once(cluster, tag, topics[case.keys], ends[case.keys], case)
                report.runs[case.name].append(measured)
                say(f"round {number}/{options.rounds}  {case.name:32}{measured.per_second:>10,.0f} records/s")
        if options.restore:
            report.restore = measure_restore(
                cluster,
                tag,
                entries=options.restore,
                rounds=options.restore_rounds,
                window_s=FULL_WINDOW_S if options.full else WINDOW_S,
                say=say,
            )
        report.load_after = round(os.getloadavg()[0], 2)
    finally:
        for name in cluster.topics():
            if name.startswith(tag):
                cluster.delete_topic(name)
    return report


def _run_once(cluster: Cluster, tag: str, topic: str, ends: dict[int, int], case: Case) -> Measured:
    # A fresh group and an empty ledger each time: nothing is a duplicate.
    group = f"g{uuid.uuid4().hex[:8]}"
    task = Task(
        case.subject,
        cluster.bootstrap,
        topic,
        group,
        ends,
        case.records,
        DEADLINE_S,
        journal=case.journal or "exceptions",
    )
    try:
        return measure(task)
    finally:
        for name in cluster.topics():
            if name.startswith(tag) and group in name:
                cluster.delete_topic(name)


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
