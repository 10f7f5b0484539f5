"""The settings of one worker: every key of `laneway.toml`, typed, frozen, passed explicitly.

This module says what a key is called, what it may hold and what it holds when nobody wrote it.
Where values come from (flags, `-X`, environment, file) and how a mistake is reported is
`settings/load.py`. A key exists only once it works, so an unknown key is always an error.

Envelope places stay strings here; `lanes/envelope.py` turns them into readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from laneway.consumer.settings import values

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
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, use_attribute_docstrings=True
    )


class EnvelopeSettings(_Table):
    """Where one source's records carry their identity. No `sequence_key`: no order, deduplication only.

    The values below hold when the file has no `[envelope]` table. Where it has one, `sequence_key`
    and `sequence` hold only if they are written in it: whoever describes his records says whether
    they are ordered. The other keys keep their default. `"none"` switches `sequence_key` (and with
    it `sequence`) or the check of the contract `version` off, also for one source or by `-X`.
    """

    message_id: IdPlace = "json:/messageId"
    """Where the message id is read: it names the message to people and never decides anything."""
    effect_key: IdPlace = "json:/effectKey"
    """Where the effect key is read: one recorded effect for each. `position` suppresses redeliveries only."""
    sequence_key: FieldPlace | None = "json:/sequenceKey"
    """Where the key of the lane is read. Absent: no order, deduplication only."""
    sequence: FieldPlace | None = "json:/sequence"
    """Where the number inside the lane is read. Not needed with `lanes.order = "arrival"`."""
    version: FieldPlace | None = "json:/version"
    """Where the contract version is read; `none` checks no version."""
    payload: PayloadPlace = "json:/payload"
    """Where the payload is read; `value` is the whole value of the record."""
    accepts: Annotated[tuple[int, ...], Field(min_length=1)] = (1,)
    """Contract versions that the handler understands."""
    tombstones: Literal["reject", "deliver", "skip"] = "reject"
    """What happens to a record without a value."""


class SourceSettings(_Table):
    """What one source has of its own; already merged with the common tables."""

    envelope: EnvelopeSettings = EnvelopeSettings()


class RetrySettings(_Table):
    """Temporary failures: how often, how far apart, and which exceptions count."""

    delays_ms: Annotated[tuple[DelayMs, ...], Field(max_length=100)] = (1000, 4000)
    """Fixed delays between attempts, in ms; attempts = 1 + their number. Empty: no retry."""
    max_waiting_per_partition: Count = 10_000
    """Retries waiting in memory; at the bound the retry partition is paused."""
    temporary: tuple[ClassName, ...] = ("builtins.TimeoutError", "builtins.ConnectionError")
    """Exception classes that count as temporary, beside those of the pipeline."""


class LanesSettings(_Table):
    """The order inside a lane, and the bounds on everything that can pile up."""

    order: Literal["contiguous", "increasing", "arrival"] = "contiguous"
    """`contiguous`: N+1 after N. `increasing`: holes allowed, never backwards; with
    `ledger.on_unknown_outcome = "run-again"` a number whose outcome was lost with its process has not
    happened, so a lower one that came behind it may still run. `arrival`: by offset."""
    first_sequence: FirstSequence = 1
    """What a new key starts with; `any` adopts the first sequence seen."""
    after_reject: Literal["hold", "pass"] = "hold"
    """`hold` stops the lane at a rejected record until a person decides; `pass` moves on."""
    max_parked_per_lane: Count = 100_000
    """Followers parked for one lane; at the bound the source partition is paused."""
    max_parked_bytes_per_partition: SizeBytes = 2**30
    """Bytes parked in one partition; at the bound its source is paused."""
    max_in_flight: Count = 2000
    """Records of sources in hand in one process; at the bound it stops reading. As many again may be settled
    and wait for their commit."""
    max_in_flight_bytes: SizeBytes = 256 * 2**20
    """Bytes (key, value, headers) of these, and of those that wait for their commit; at the bound it stops
    reading."""
    max_open_cases_per_partition: Count = 100
    """Open cases of one partition; at the bound its source is paused."""
    max_replays: Count = 3
    """How often the dead letters of one effect may be replayed; beyond it a replay is refused."""
    workers: Annotated[int, Field(ge=1, le=1024)] = 16
    """Threads that run handlers written as `def`: so many records, or batches, at once."""
    max_running: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Handlers written as `async def` that are under way at once: so many records, or batches."""
    handler_timeout_ms: DurationMs = 60_000
    """After this an `async def` handler is cancelled; any other is reported as overdue, and its lane waits
    for it."""
    on_overdue: Literal["exit"] = "exit"
    """What happens when an overdue handler has also lost its partition: the process ends."""
    on_unknown_version: Literal["reject", "hold"] = "reject"
    """`reject` sends it to the DLQ in its turn, `hold` keeps it in a case for a release that knows it."""


class CycleSettings(_Table):
    """How much is settled and committed together."""

    max_ms: Annotated[int, Field(ge=1, le=60_000)] = 50
    """Age at which settlements are made durable and committed together."""
    max_records: Count = 2000
    """Their number at which that happens at once."""


class LedgerSettings(_Table):
    """The store of one source partition."""

    replication: Literal["changelog", "local"] = "changelog"
    """`changelog`: the ledger follows its partition through a topic. `local`: it stays on this machine."""
    on_unknown_outcome: Literal["run-again", "review"] = "run-again"
    """What a crash between effect and settlement leads to: the handler runs again with the same effect key,
    or a person decides. `review` needs `replication = "changelog"`."""
    retention_ms: DurationMs = Field(30 * 86_400_000, alias="retention")
    """How long finished effects are remembered: the horizon of deduplication."""
    min_free_bytes: SizeBytes = Field(2 * 2**30, alias="min_free")
    """Free space on the disk of `state_dir` below which sources are paused."""


class JournalSettings(_Table):
    """The JSON lines a worker writes about every delivery; `path = "-"` is standard output."""

    path: str = "-"
    """A file, where `{pid}` becomes the process id, or `-` for standard output."""
    level: Literal["all", "exceptions", "off"] = "all"
    """`exceptions` leaves out received, running, result_saved and ack_sent."""
    keys: Literal["plain", "hash"] = "plain"
    """`hash` writes short hashes instead of business keys, which can be personal data."""


class TopicsSettings(_Table):
    """Templates of the companion topics' names; `topics.py` fills and validates them."""

    retry: Template = "{source}.{group}.retry"
    """Due redeliveries."""
    commands: Template = "{source}.{group}.commands"
    """Operator commands."""
    dlq: Template = "{source}.{group}.dlq"
    """Rejected records."""
    review: Template = "{source}.{group}.review"
    """Cases opened and resolved."""
    ledger: Template = "{source}.{group}.ledger"
    """The changelog of the ledgers; needed with `replication = "changelog"` only."""


class Settings(_Table):
    """Everything a worker was told. Build it with `settings.load.load`.

    Relative paths are relative to the directory the process was started in.
    """

    group: Annotated[str, AfterValidator(values.group_id)]
    """The consumer group. Required."""
    sources: tuple[TopicName, ...]
    """The topics to work on. Required."""
    bootstrap: Annotated[str, AfterValidator(values.bootstrap_servers)] = "127.0.0.1:9092"
    """Brokers, `host:port`, separated by commas."""
    state_dir: FilePath = Path("state")
    """Directory of the ledgers, for one group on one cluster. Its workers on this machine share it."""
    start: Start = "earliest"
    """Where a group without a commit begins: `earliest`, `latest`, or an instant."""
    group_protocol: Literal["classic", "consumer"] = "classic"
    """`consumer` needs Kafka 4+; other partitions go on during a rebalance."""
    instance_id: Annotated[str, Field(min_length=1)] | None = None
    """Static membership; `env:NAME` reads it from the environment."""
    envelope: EnvelopeSettings = EnvelopeSettings()
    source: Mapping[str, SourceSettings] = Field(default_factory=dict)
    retry: RetrySettings = RetrySettings()
    lanes: LanesSettings = LanesSettings()
    cycle: CycleSettings = CycleSettings()
    ledger: LedgerSettings = Field(default_factory=lambda: LedgerSettings.model_validate({}))
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
