"""What was measured, as a value, and as a table for people."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Final, Literal

import confluent_kafka
import msgspec

from benchmarks.restore import Alone, Beside, Restored
from benchmarks.subject import Measured, Name

SCHEMA: Final = 2
_BASE: Final = "bare-json"


class Case(msgspec.Struct, frozen=True):
    """One subject over one topic."""

    subject: Name
    journal: Literal["all", "exceptions", "off", ""]
    keys: int
    records: int

    @property
    def name(self) -> str:
        """How the table and the JSON call it."""
        journal = f" journal={self.journal}" if self.journal else ""
        return f"{self.subject}{journal} keys={self.keys}"


class Report(msgspec.Struct):
    """A measurement: under which conditions, and every single run of it.

    Attributes:
        load_before: load average over a minute when it began: a busy machine makes poor figures.
        runs: by case, in the order of the rounds.
        load_after: the same at the end.
        restore: None when it was left out.
    """

    schema: int
    taken_at: str
    short: bool
    machine: str
    cpus: int
    memory_gib: int
    load_before: float
    broker: str
    versions: dict[str, str]
    conditions: str
    records: int
    partitions: int
    rounds: int
    value_bytes: dict[int, int] = {}
    cases: list[Case] = []
    runs: dict[str, list[Measured]] = {}
    load_after: float = 0.0
    restore: Restored | None = None


def describe(broker: str, records: int, partitions: int, rounds: int, *, short: bool) -> Report:
    """A report without runs: what is known before the first."""
    return Report(
        schema=SCHEMA,
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        short=short,
        machine=f"{_cpu()}, {platform.system()} {platform.machine()}",
        cpus=os.cpu_count() or 0,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        load_before=round(os.getloadavg()[0], 2),
        broker=broker,
        versions={
            "python": platform.python_version(),
            "librdkafka": confluent_kafka.libversion()[0],
            **{
                name: version(name)
                for name in ("laneway", "confluent-kafka", "msgspec", "pydantic", "rocksdict")
            },
        },
        conditions="one process, replication as the subject says, pydantic payload of 4 fields, sync no-op "
        "handler, 16 worker threads, empty ledger, classic group protocol; other settings at their defaults",
        records=records,
        partitions=partitions,
        rounds=rounds,
    )


def render(report: Report) -> str:
    """The table."""
    loads = ", ".join(f"{keys:,} keys: values of {size} bytes" for keys, size in report.value_bytes.items())
    lines = [
        f"taken    {report.taken_at}" + ("   SHORT FORM: a look, no figure" if report.short else ""),
        f"machine  {report.machine}, {report.cpus} CPUs, {report.memory_gib} GiB, "
        f"load {report.load_before} before it began, {report.load_after} at the end",
        f"broker   {report.broker}, on the same machine",
        "versions " + ", ".join(f"{name} {number}" for name, number in report.versions.items()),
        f"laneway  {report.conditions}",
    ]
    if report.cases:
        lines += [
            f"load     {report.records:,} records on {report.partitions} partitions; {loads}",
            f"medians of {report.rounds} rounds; every ratio is taken inside a round",
            "",
            f"{'subject':<36}{'records/s':>11}{'wall us':>9}{'cpu us':>9}{'x bare json':>13}"
            f"{'x bare msgspec':>16}{'x commit each':>15}",
        ]
    for case in report.cases:
        runs = report.runs[case.name]
        wall_us = median(1e6 / run.per_second for run in runs)
        cpu_us = median(1e6 * run.cpu_s / run.records for run in runs)
        lines.append(
            f"{case.name:<36}{1e6 / wall_us:>11,.0f}{wall_us:>9.2f}{cpu_us:>9.2f}"
            f"{_ratio(report, case, _BASE):>13}{_ratio(report, case, 'bare-msgspec'):>16}"
            f"{_ratio(report, case, 'commit-each'):>15}"
        )
    if report.restore is not None:
        lines += ["", *_restore_lines(report.restore)]
    return "\n".join(lines)


def _restore_lines(restored: Restored) -> list[str]:
    """The restore: its rate, its memory, and what the live partition beside it did."""
    alone, beside = restored.alone, restored.beside

    def of_alone(figure: Callable[[Alone], float]) -> str:
        return f"{median(map(figure, alone)):,.0f}"

    def of_beside(figure: Callable[[Beside], float]) -> str:
        return f"{median(map(figure, beside)):,.0f}"

    def cpus(figure: Callable[[Beside], float]) -> str:
        return f"{median(map(figure, beside)):.2f}"

    ratio = median(2 * run.during_per_s / (run.before_per_s + run.after_per_s) for run in beside)
    return [
        f"restore of {alone[0].entries:,} changelog entries, medians of {len(alone)} round(s)",
        f"{'alone':<36}{of_alone(lambda run: run.entries / run.restore_s):>11} entries/s; resident MiB "
        f"{of_alone(lambda run: run.before_mib)} before, {of_alone(lambda run: run.peak_mib)} at most",
        f"{'beside a live partition':<36}{of_beside(lambda run: run.entries / run.restore_s):>11} entries/s; "
        f"resident MiB {of_beside(lambda run: run.before_mib)} before, "
        f"{of_beside(lambda run: run.peak_mib)} at most, {of_beside(lambda run: run.after_mib)} after",
        f"{'that live partition':<36}{of_beside(lambda run: run.during_per_s):>11} records/s; "
        f"{of_beside(lambda run: run.before_per_s)} before, {of_beside(lambda run: run.after_per_s)} after "
        f"({restored.window_s:g} s each): {ratio:.2f} of what it does without",
        f"{'CPUs the worker had meanwhile':<36}{cpus(lambda run: run.during_cpus):>11}; "
        f"{cpus(lambda run: run.before_cpus)} before, {cpus(lambda run: run.after_cpus)} after",
    ]


def _ratio(report: Report, case: Case, base: str) -> str:
    """Median over the rounds of how many times the base's records per second this one does."""
    found = [
        other
        for other in report.cases
        if other.subject == base and (other.keys == case.keys or base == "commit-each")
    ]
    if not found or found[0] == case:
        return "-"
    pairs = zip(report.runs[case.name], report.runs[found[0].name], strict=True)
    return f"{median(run.per_second / other.per_second for run, other in pairs):.3f}"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown CPU"
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else "unknown CPU"
