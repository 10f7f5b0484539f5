"""The settings of one worker: every key of `laneway.toml`, typed, frozen, passed explicitly.

This module says what a key is called, what it may hold and what it holds when nobody wrote it.
Where values come from (flags, `-X`, environment, file) and how a mistake is reported is
`settings_sources.py`. A key exists only once it works, so an unknown key is always an error.

Envelope places stay strings here; `lanes/envelope.py` turns them into readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from laneway.consumer import settings_values as values

SizeBytes = Annotated[int, BeforeValidator(values.size_bytes), Field(ge=0)]
DurationMs = Annotated[int, BeforeValidator(values.duration_ms), Field(ge=1)]
Start = Annotated[Literal["earliest", "latest"] | int, BeforeValidator(values.start_instant)]
FirstSequence = Annotated[
    Annotated[int, Field(ge=0)] | Literal["any"], BeforeValidator(values.number_or_word)
]
IdPlace = Annotated[str, AfterValidator(values.identity_place)]
FieldPlace = Annotated[str, AfterValidator(values.field_place)]
PayloadPlace = Annotated[str, AfterValidator(values.payload_place)]
TopicName = Annotated[str, AfterValidator(values.topic_name)]
Template = Annotated[str, AfterValidator(values.topic_template)]
ClassName = Annotated[str, AfterValidator(values.class_name)]
FilePath = Annotated[Path, BeforeValidator(lambda value: Path(value) if isinstance(value, str) else value)]
# A delay is a record held in memory and an offset that is not committed, so a week is the most.
DelayMs = Annotated[int, Field(ge=1, le=7 * 86_400_000)]
Count = Annotated[int, Field(ge=1)]
KafkaValue = str | int | float | bool

NO_PLACE: Final = "none"
"""Written for `sequence_key`, `sequence` or `version` to switch off what is otherwise inherited."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class EnvelopeSettings(_Table):
    """Where one source's records carry their identity. No `sequence_key`: no order, deduplication only.

    The values below hold when the file has no `[envelope]` table. Where it has one, `sequence_key`
    and `sequence` hold only if they are written in it: whoever describes his records says whether
    they are ordered. The other keys keep their default. `"none"` switches `sequence_key` (and with
    it `sequence`) or the check of the contract `version` off, also for one source or by `-X`.
    """

    message_id: IdPlace = "json:/messageId"
    effect_key: IdPlace = "json:/effectKey"
    sequence_key: FieldPlace | None = "json:/sequenceKey"
    sequence: FieldPlace | None = "json:/sequence"
    version: FieldPlace | None = "json:/version"
    payload: PayloadPlace = "json:/payload"
    accepts: Annotated[tuple[int, ...], Field(min_length=1)] = (1,)
    tombstones: Literal["reject", "deliver", "skip"] = "reject"


class SourceSettings(_Table):
    """What one source has of its own; already merged with the common tables."""

    envelope: EnvelopeSettings = EnvelopeSettings()


class RetrySettings(_Table):
    """Temporary failures: how often, how far apart, and which exceptions count."""

    delays_ms: Annotated[tuple[DelayMs, ...], Field(max_length=100)] = (1000, 4000)
    max_waiting_per_partition: Count = 10_000
    temporary: tuple[ClassName, ...] = ("builtins.TimeoutError", "builtins.ConnectionError")


class LanesSettings(_Table):
    """The order inside a lane, and the bounds on everything that can pile up."""

    order: Literal["contiguous", "increasing", "arrival"] = "contiguous"
    first_sequence: FirstSequence = 1
    after_reject: Literal["hold", "pass"] = "hold"
    max_parked_per_lane: Count = 100_000
    max_parked_bytes_per_partition: SizeBytes = 2**30
    max_in_flight: Count = 2000
    max_in_flight_bytes: SizeBytes = 256 * 2**20
    max_open_cases_per_partition: Count = 100
    workers: Annotated[int, Field(ge=1, le=1024)] = 16
    handler_timeout_ms: DurationMs = 60_000
    on_overdue: Literal["exit"] = "exit"
    on_unknown_version: Literal["reject", "hold"] = "reject"


class CycleSettings(_Table):
    """How much is settled and committed together."""

    max_ms: Annotated[int, Field(ge=1, le=60_000)] = 50
    max_records: Count = 2000


class LedgerSettings(_Table):
    """The store of one source partition."""

    replication: Literal["local"]
    retention_ms: DurationMs = Field(30 * 86_400_000, alias="retention")
    min_free_bytes: SizeBytes = Field(2 * 2**30, alias="min_free")


class JournalSettings(_Table):
    """The JSON lines a worker writes about every delivery; `path = "-"` is standard output."""

    path: str = "-"
    level: Literal["all", "exceptions", "off"] = "all"
    keys: Literal["plain", "hash"] = "plain"


class TopicsSettings(_Table):
    """Templates of the companion topics' names; `topics.py` fills and validates them."""

    retry: Template = "{source}.{group}.retry"
    commands: Template = "{source}.{group}.commands"
    dlq: Template = "{source}.{group}.dlq"
    review: Template = "{source}.{group}.review"


class Settings(_Table):
    """Everything a worker was told. Build it with `settings_sources.load`.

    Relative paths are relative to the directory the process was started in.
    """

    group: Annotated[str, AfterValidator(values.group_id)]
    sources: tuple[TopicName, ...]
    bootstrap: Annotated[str, AfterValidator(values.bootstrap_servers)] = "127.0.0.1:9092"
    state_dir: FilePath = Path("state")
    start: Start = "earliest"
    group_protocol: Literal["classic", "consumer"] = "classic"
    instance_id: Annotated[str, Field(min_length=1)] | None = None
    envelope: EnvelopeSettings = EnvelopeSettings()
    source: Mapping[str, SourceSettings] = Field(default_factory=dict)
    retry: RetrySettings = RetrySettings()
    lanes: LanesSettings = LanesSettings()
    cycle: CycleSettings = CycleSettings()
    ledger: LedgerSettings
    journal: JournalSettings = JournalSettings()
    topics: TopicsSettings = TopicsSettings()
    # Holds resolved secrets: never in a repr, a log line or a traceback.
    kafka: Mapping[str, KafkaValue] = Field(default_factory=dict, repr=False)

    @model_validator(mode="after")
    def _sources_are_distinct(self) -> Self:
        if len(set(self.sources)) != len(self.sources):
            raise ValueError("sources names a topic twice")
        return self

    def envelope_of(self, source: str) -> EnvelopeSettings:
        """The envelope rules of one source topic, overrides included."""
        own = self.source.get(source)
        return self.envelope if own is None else own.envelope
