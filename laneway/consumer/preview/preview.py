"""A preview of topics: reads a window of them once, and gives each partition its trial.

The reader is in no group and commits nothing; no handler runs; no topic and no state is written. The
pipeline's `decode` and the validators of its models do run. Memory is bounded by the window and by
`MAX_KEPT_BYTES`: at the bound reading ends, and the report says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from laneway.consumer.inspection import topics as inspect_topics
from laneway.consumer.intake import record_of
from laneway.consumer.kafka.cluster import Partition, Watermarks
from laneway.consumer.preview.findings import Numbers
from laneway.consumer.preview.trial import Seen, Trial
from laneway.consumer.preview.window import Window
from laneway.consumer.rules import envelope_of, rules_of, temporary_of
from laneway.consumer.settings.model import Settings
from laneway.errors import IncompleteError
from laneway.lanes.failures import HandlerSignal, read_again_ms
from laneway.lanes.forward import Home
from laneway.lanes.record import Channel, Record
from laneway.pipeline import Pipeline

MAX_KEPT_BYTES: Final = 1 << 30
AT_ONCE: Final = 500
DECODER_WAIT_S: Final = 30.0
"""How long a decoder may say in a row that it cannot read now."""

Batches = Iterable[tuple[Partition, list[Record]]]


class Read(Protocol):
    """How records are read; see `batches_of`."""

    def __call__(
        self, settings: Settings, spans: Mapping[Partition, Watermarks], *, timeout_s: float
    ) -> Batches: ...


@dataclass(slots=True)
class Report:
    """What a preview has found.

    Attributes:
        seen: by source.
        trials: by partition.
        keep: how many of the first positions of each kind are kept.
        unfinished: why reading ended before the window did; None when it did not.
    """

    window: Window
    seen: Mapping[str, Seen]
    trials: Mapping[Partition, Trial]
    keep: int
    unfinished: IncompleteError | None = None

    @property
    def records(self) -> int:
        """How many were read."""
        return sum(seen.records for seen in self.seen.values())

    @property
    def kept_bytes(self) -> int:
        """Roughly, what is held in memory."""
        return sum(trial.kept_bytes for trial in self.trials.values())

    @property
    def unreadable(self) -> int:
        """Records that have no usable envelope, and go to the DLQ whatever their turn."""
        return sum(seen.unreadable for seen in self.seen.values())

    @property
    def other_firsts(self) -> int:
        """Keys that do not begin, everywhere, with the number that is configured."""
        return sum(len(seen.other_firsts) for seen in self.seen.values())

    @property
    def order(self) -> str:
        """`kept`; or `broken`, by a number that is missing or came too late, or between two partitions."""
        broken = any(
            seen.keys.split
            or seen.other_firsts
            or seen.cases.of("case", "sequence-gap")
            or seen.cases.of("case", "sequence-stale")
            for seen in self.seen.values()
        )
        return "broken" if broken else "kept"

    def longest_key(self) -> tuple[int, str | None]:
        """The key with the most records in one partition, and how many; nothing where there are no keys."""
        found = [(each.records, key) for s in self.seen for _, key, each in self.numbers(s)]
        return max(found, key=lambda entry: entry[0], default=(0, None))

    def numbers(self, source: str) -> Iterator[tuple[Partition, str, Numbers]]:
        """Each sequence key of a source in each of its partitions."""
        for place, trial in self.trials.items():
            if place[0] == source:
                for key, numbers in trial.numbers.items():
                    yield place, key, numbers


class Preview:
    """One preview.

    Args:
        keep: how many of the first positions and examples of each kind are kept.
        clock: epoch milliseconds.

    Raises:
        ConfigError: a place of the envelope, or a class of retry.temporary, cannot be used.
        AppImportError: pydantic cannot validate a payload type.
    """

    def __init__(
        self,
        settings: Settings,
        pipeline: Pipeline[object],
        window: Window,
        *,
        keep: int,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        max_kept_bytes: int = MAX_KEPT_BYTES,
    ) -> None:
        rules = rules_of(settings)
        processor = pipeline.compile_reading(temporary_of(settings))
        sources = dict.fromkeys(topic for topic, _ in window.spans)
        envelopes = {source: envelope_of(settings, source, pipeline.decode) for source in sources}
        seen = {source: Seen(keep) for source in sources}
        self._max_kept_bytes = max_kept_bytes
        self.report = Report(
            window,
            seen,
            {
                (topic, number): Trial(
                    Home(settings.group, topic, number),
                    rules,
                    envelopes[topic],
                    processor,
                    seen[topic],
                    start=span.start,
                    is_numbered=is_numbered(settings, topic),
                    clock=clock,
                )
                for (topic, number), span in window.spans.items()
            },
            keep,
        )

    def work_through(self, batches: Batches, tell: Callable[[Report], None]) -> None:
        """Take batches until they end, time or memory is up.

        Args:
            tell: called after each batch.
        """
        report = self.report
        try:
            for place, records in batches:
                trial = report.trials[place]
                for record in records:
                    _read_patiently(trial, record)
                trial.take(records)
                tell(report)
                if report.kept_bytes > self._max_kept_bytes:
                    raise IncompleteError(
                        f"memory for more is not allowed: {report.kept_bytes >> 20} MiB are kept of "
                        f"{report.records} records",
                        mend="look at less at once: --partition N, a smaller --limit, or --from latest",
                    )
        except IncompleteError as error:
            report.unfinished = error


def batches_of(settings: Settings, spans: Mapping[Partition, Watermarks], *, timeout_s: float) -> Batches:
    """What lies in these spans, as far as it is committed, in the order of each partition.

    Raises:
        IncompleteError: the deadline passed before every end was reached.
        UnreachableError: the cluster went away, or does not let us read.
    """
    at: Partition | None = None
    records: list[Record] = []
    for place, _, message in inspect_topics.messages(settings, spans, timeout_s=timeout_s, at_once=AT_ONCE):
        if records and at is not None and (place != at or len(records) >= AT_ONCE):
            yield at, records
            records = []
        at = place
        records.append(record_of(message, Channel.SOURCE))
    if records and at is not None:
        yield at, records


def is_numbered(settings: Settings, source: str) -> bool:
    """Whether lanes of this source count."""
    places = settings.envelope_of(source)
    return places.sequence_key is not None and settings.lanes.order != "arrival"


def _read_patiently(trial: Trial, record: Record) -> None:
    deadline_s = time.monotonic() + DECODER_WAIT_S
    while True:
        try:
            trial.read(record)
        except HandlerSignal as signal:
            wait_s = read_again_ms(signal) / 1000
            if time.monotonic() + wait_s > deadline_s:
                home = trial.home
                raise IncompleteError(
                    f"the pipeline's decode says that it cannot read now, for {DECODER_WAIT_S:g} s",
                    where=f"{home.topic}/{home.partition}@{record.offset}",
                    mend="see to what it depends on, such as the schema registry, then look again",
                ) from None
            time.sleep(wait_s)
        else:
            return
