"""A measurement as a value: under which conditions, and every single run of it."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import confluent_kafka
import msgspec

from benchmarks.latency import Latency
from benchmarks.plan import Case, Form
from benchmarks.processes import Together
from benchmarks.restore import Restored
from benchmarks.supervise import Failed, Measured, Skipped

SCHEMA: Final = 3
CONDITIONS: Final = (
    "replication as the subject says, pydantic payload of 4 fields, journal `exceptions`, 16 worker threads, "
    "classic group protocol, other settings at their defaults"
)


class Report(msgspec.Struct):
    """A measurement.

    Attributes:
        command: that made it.
        load_before: load average over a minute when it began: a busy machine makes poor figures.
        runs: by case, in the order of the rounds.
        restore: None when it was left out.
        failures: what was begun and gave no figure.
    """

    schema: int
    command: str
    taken_at: str
    form: Form
    machine: str
    cpus: int
    memory_gib: int
    load_before: float
    broker: str
    versions: dict[str, str]
    conditions: str
    value_bytes: dict[int, int] = {}
    cases: list[Case] = []
    runs: dict[str, list[Measured | Skipped | Failed]] = {}
    processes: list[Together] = []
    latency: list[Latency] = []
    restore: Restored | None = None
    failures: list[str] = []
    load_after: float = 0.0
    seconds: float = 0.0


def describe(command: str, broker: str, form: Form) -> Report:
    """A report without runs: what is known before the first."""
    return Report(
        schema=SCHEMA,
        command=command,
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        form=form,
        machine=f"{_cpu()}, {platform.system()} {platform.machine()}",
        cpus=os.cpu_count() or 0,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        load_before=load_average(),
        broker=broker,
        versions={
            "python": platform.python_version(),
            "librdkafka": confluent_kafka.libversion()[0],
            **{
                name: version(name)
                for name in ("laneway", "confluent-kafka", "msgspec", "pydantic", "rocksdict")
            },
            **_peers(),
        },
        conditions=CONDITIONS,
    )


def load_average() -> float:
    """Over the last minute."""
    return round(os.getloadavg()[0], 2)


def _peers() -> dict[str, str]:
    """The versions that the pinned environments of the peers name."""
    peers = Path(__file__).with_name("peers")
    found = {}
    for file, package in (("pyrallel.txt", "pyrallel-consumer"), ("quix.txt", "quixstreams")):
        for line in (peers / file).read_text(encoding="utf-8").splitlines():
            name, _, number = line.partition("==")
            if name == package:
                found[name] = number
    pom = (peers / "java" / "pom.xml").read_text(encoding="utf-8")
    core = pom.partition("parallel-consumer-core</artifactId>")[2]
    found["parallel-consumer-core"] = core.partition("<version>")[2].partition("<")[0]
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown CPU"
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else "unknown CPU"
