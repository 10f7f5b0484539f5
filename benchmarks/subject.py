"""One measured subject in a process of its own: `python -m benchmarks.subject JSON` prints one JSON line.

The clock runs from the first record to the answer that every partition is committed to its end. The
first record is, for a bare loop, the first that the client hands over; for Laneway the first call of the
handler, so that polling and judging the first batch (at most 2,000 records) is not counted. Import,
joining the group, the assignment and opening the ledgers come before. All read one monotonic clock. CPU
time is that of the whole process over the same span, its client threads included.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

import msgspec
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from pydantic import BaseModel

from laneway import Delivery, Pipeline
from laneway.consumer import topics
from laneway.consumer.collector import calm_collector
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.settings.model import JournalSettings, LanesSettings, LedgerSettings, Settings
from laneway.consumer.start import build_worker

Name = Literal["bare-json", "bare-msgspec", "commit-each", "local", "changelog"]
BATCH: Final = 1000
ASK_EVERY_S: Final = 0.002


class Task(msgspec.Struct, frozen=True):
    """What one process has to do.

    Attributes:
        ends: by partition, the offset behind its last record.
        limit: records after which it stops by itself.
        deadline_s: after which it gives up, from its start.
        journal, workers: level of the journal and threads; Laneway only.
    """

    subject: Name
    bootstrap: str
    topic: str
    group: str
    ends: dict[int, int]
    limit: int
    deadline_s: float
    journal: Literal["all", "exceptions", "off"] = "exceptions"
    workers: int = 16


class Measured(msgspec.Struct, frozen=True):
    """What it took."""

    records: int
    elapsed_s: float
    cpu_s: float

    @property
    def per_second(self) -> float:
        """Records per second of wall time."""
        return self.records / self.elapsed_s


class SubjectError(Exception):
    """The subject did not do what it was to do; there is no figure."""


@dataclass
class _Span:
    """Wall and CPU clock of one stretch."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def start(self) -> None:
        self.wall_s, self.cpu_s = time.monotonic(), time.process_time()

    def measured(self, records: int) -> Measured:
        return Measured(records, time.monotonic() - self.wall_s, time.process_time() - self.cpu_s)


# --- the bare loops -------------------------------------------------------------------------------


def _consumer(task: Task) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": task.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def _bare(task: Task, parse: Callable[[bytes], object]) -> Measured:
    """Read key, value and headers, parse the value, and commit once, at the end."""
    consumer = _consumer(task)
    consumer.subscribe([task.topic])
    deadline = time.monotonic() + task.deadline_s
    span = _Span()
    seen = 0
    while seen < task.limit:
        messages = consumer.consume(BATCH, 1.0)
        if messages and not seen:
            span.start()
        for message in messages:
            _raise_on(message.error())
            message.key()
            message.headers()
            value = message.value()
            assert value is not None
            parse(value)
        seen += len(messages)
        _check(deadline, seen)
    consumer.commit(asynchronous=False)
    measured = span.measured(seen)
    consumer.close()
    return measured


def _commit_each(task: Task) -> Measured:
    """The loop that people write first: handle one record, commit it, take the next."""
    consumer = _consumer(task)
    consumer.subscribe([task.topic])
    deadline = time.monotonic() + task.deadline_s
    span = _Span()
    seen = 0
    while seen < task.limit:
        message: Message | None = consumer.poll(1.0)
        _check(deadline, seen)
        if message is None:
            continue
        if not seen:
            span.start()
        _raise_on(message.error())
        message.key()
        message.headers()
        value = message.value()
        assert value is not None
        json.loads(value)
        consumer.commit(message=message, asynchronous=False)
        seen += 1
    measured = span.measured(seen)
    consumer.close()
    return measured


def _raise_on(error: KafkaError | None) -> None:
    if error is not None:
        raise SubjectError(error.str())


def _check(deadline: float, seen: int) -> None:
    if time.monotonic() > deadline:
        raise SubjectError(f"the time is over after {seen} records")


# --- Laneway --------------------------------------------------------------------------------------


class Reminder(BaseModel):
    """The payload: four fields."""

    invoice: str
    amount_cents: int
    currency: str
    is_final: bool


def _laneway(task: Task) -> Measured:
    """A whole worker, `local` or `changelog`, with a handler that does nothing."""
    span = _Span()
    all_handled = threading.Event()
    calls = count(1)
    expected = task.limit

    def count_call() -> None:
        call = next(calls)
        if call == 1:
            span.start()
        if call >= expected:
            all_handled.set()

    pipeline = no_op(count_call)
    with TemporaryDirectory(prefix="laneway-bench-") as directory:
        settings = worker_settings(
            Path(directory),
            bootstrap=task.bootstrap,
            group=task.group,
            sources=(task.topic,),
            replication=task.subject,
            journal=task.journal,
            workers=task.workers,
        )
        with Cluster(settings) as cluster:
            topics.create(settings, cluster)
        worker = build_worker(settings, pipeline)
        found: list[Measured | SubjectError] = []

        def watch() -> None:
            try:
                _wait_until_committed(task, all_handled)
                found.append(span.measured(task.limit))
            except SubjectError as error:
                found.append(error)
            worker.request_stop()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        # As `laneway run` does.
        calm_collector()
        worker.run()
        watcher.join()
    if isinstance(found[0], SubjectError):
        raise found[0]
    return found[0]


def no_op(count_call: Callable[[], None]) -> Pipeline[Any]:
    """A pipeline that validates its payload and does nothing with it, but count."""
    pipeline: Pipeline[Any] = Pipeline(payload=Reminder)

    @pipeline.handler
    def remind(delivery: Delivery[Reminder]) -> None:  # noqa: ARG001 - that is what no-op means
        count_call()

    return pipeline


def worker_settings(
    directory: Path,
    *,
    bootstrap: str,
    group: str,
    sources: tuple[str, ...],
    replication: str,
    journal: Literal["all", "exceptions", "off"] = "exceptions",
    workers: int = 16,
) -> Settings:
    """The defaults, but for what every start must write. State and journal go to `directory`."""
    return Settings(
        bootstrap=bootstrap,
        group=group,
        sources=sources,
        state_dir=directory / "state",
        lanes=LanesSettings(workers=workers),
        ledger=LedgerSettings.model_validate({"replication": replication, "min_free": 64 * 2**20}),
        journal=JournalSettings(path=str(directory / "journal.ndjson"), level=journal),
    )


def _wait_until_committed(task: Task, all_handled: threading.Event) -> None:
    """Ask the coordinator, and only once the last handler was called: asking takes time from the subject."""
    deadline = time.monotonic() + task.deadline_s
    if not all_handled.wait(task.deadline_s):
        raise SubjectError("the time is over and not every record was handled")
    asker = _consumer(task)
    wanted = [TopicPartition(task.topic, number) for number in task.ends]
    while True:
        answers = asker.committed(wanted, timeout=5.0)
        if all(answer.offset == task.ends[answer.partition] for answer in answers):
            break
        if time.monotonic() > deadline:
            raise SubjectError("the time is over and not every offset is committed")
        time.sleep(ASK_EVERY_S)
    asker.close()


def main() -> int:
    """Do one task; print what it took."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    match task.subject:
        case "bare-json":
            measured = _bare(task, json.loads)
        case "bare-msgspec":
            measured = _bare(task, msgspec.json.decode)
        case "commit-each":
            measured = _commit_each(task)
        case "local" | "changelog":
            measured = _laneway(task)
    print(msgspec.json.encode(measured).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
