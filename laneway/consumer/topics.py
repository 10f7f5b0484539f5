"""The companion topics of each source: their names, the plan that makes them, the check that refuses.

    {source}.{group}.retry      due redeliveries           partition = source partition
    {source}.{group}.commands   operator commands          partition = source partition
    {source}.{group}.dlq        rejected records           partition = source partition
    {source}.{group}.review     cases and command results
    {source}.{group}.ledger     the changelog of the ledgers   partition = source partition

The last is compacted, and needed with `replication = "changelog"` only. A check is a list of findings, each
with the command that mends it; nothing here prints or asks. Rights on these topics are in `rights.py`.
The cluster is a small port: `kafka.Cluster` is the real one, tests bring a fake.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from laneway.consumer.settings.model import LedgerSettings, Settings, TopicsSettings
from laneway.consumer.settings.values import topic_name
from laneway.errors import ConfigError, IncompleteError, RefusedError, TopicError

ENVELOPE_ROOM_BYTES: Final = 64 * 1024
"""Room for our headers beside the largest record of a source (max.message.bytes counts both)."""

KEEP_FOREVER: Final = -1
_DAY_MS: Final = 86_400_000
DELETE_RETENTION_MS: Final = 7 * _DAY_MS
"""How long the ledger topic keeps a tombstone. A store that was away for half of it is built anew."""
LEAST_DELETE_RETENTION_MS: Final = 3_600_000
_BROKER_MAX_MESSAGE_BYTES: Final = 1_048_588


class Kind(StrEnum):
    """What a companion topic carries."""

    RETRY = "retry"
    COMMANDS = "commands"
    DLQ = "dlq"
    REVIEW = "review"
    LEDGER = "ledger"


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The companions of one source in one group."""

    source: str
    retry: str
    commands: str
    dlq: str
    review: str
    ledger: str = ""

    def of(self, kind: Kind) -> str:
        """The topic of one kind."""
        return {
            Kind.RETRY: self.retry,
            Kind.COMMANDS: self.commands,
            Kind.DLQ: self.dlq,
            Kind.REVIEW: self.review,
            Kind.LEDGER: self.ledger,
        }[kind]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the cluster has it. `configs` and `topic_id` are empty where the cluster does not tell."""

    name: str
    partitions: int
    replication: int
    configs: Mapping[str, str]
    topic_id: str = ""

    @property
    def max_message_bytes(self) -> int:
        """The largest batch it takes."""
        return int(self.configs.get("max.message.bytes", _BROKER_MAX_MESSAGE_BYTES))

    @property
    def delete_retention_ms(self) -> int:
        """How long compaction leaves a tombstone."""
        return int(self.configs.get("delete.retention.ms", _DAY_MS))


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """A companion topic as it has to be."""

    name: str
    kind: Kind
    source: str
    partitions: int
    replication: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as the protocol needs it, and the command that mends it.

    Attributes:
        warning: a worker starts all the same.
    """

    topic: str
    problem: str
    command: str
    warning: bool = False


class ClusterPort(Protocol):
    """What planning needs of a cluster."""

    @property
    def embedded(self) -> bool:
        """Whether this is librdkafka's built-in mock: any topic asked for exists there."""

    def topics(self, names: Sequence[str]) -> Mapping[str, TopicInfo]:
        """Those of the topics that exist; asking never creates one."""

    def create_topics(self, topics: Sequence[PlannedTopic]) -> None:
        """Create them and wait until the cluster shows them."""


# --- names -------------------------------------------------------------------------------------


def kinds_of(settings: Settings) -> tuple[Kind, ...]:
    """The companions that a worker with these settings needs."""
    replicated = settings.ledger.replication == "changelog"
    return tuple(kind for kind in Kind if kind is not Kind.LEDGER or replicated)


def topic_names(settings: Settings, source: str) -> TopicNames:
    """The companions of one source; validated by `all_topic_names`."""
    filled = {
        kind: getattr(settings.topics, kind).replace("{source}", source).replace("{group}", settings.group)
        for kind in Kind
    }
    return TopicNames(
        source,
        retry=filled[Kind.RETRY],
        commands=filled[Kind.COMMANDS],
        dlq=filled[Kind.DLQ],
        review=filled[Kind.REVIEW],
        ledger=filled[Kind.LEDGER],
    )


def all_topic_names(settings: Settings) -> tuple[TopicNames, ...]:
    """The companions of every source, refused where two would share a topic or a metric name.

    Raises:
        ConfigError: naming the template and the two topics that collide.
    """
    result = tuple(topic_names(settings, source) for source in settings.sources)
    taken: dict[str, tuple[str, str]] = {}
    for source in settings.sources:
        taken[_metric_name(source)] = (source, "source")
    for names in result:
        for kind in kinds_of(settings):
            name = names.of(kind)
            where = f"[topics] {kind}"
            try:
                topic_name(name)
            except ValueError as error:
                raise ConfigError(
                    f"{name!r} {error}", where=where, mend=f"write {kind} = ... under [topics]"
                ) from None
            other = taken.setdefault(_metric_name(name), (name, f"{kind} of {names.source}"))
            if other != (name, f"{kind} of {names.source}"):
                raise ConfigError(_collision(name, *other), where=where, mend="give each topic its own name")
    return result


def _metric_name(name: str) -> str:
    # A broker refuses a topic whose name differs from another's only in "." and "_".
    return name.replace(".", "_")


def _collision(name: str, other: str, role: str) -> str:
    if name == other:
        return f"the topic {name} would also be the {role}"
    return f'the topic {name} collides with {other} ({role}): to a broker "." and "_" are the same here'


# --- the plan ----------------------------------------------------------------------------------


def plan(settings: Settings, cluster: ClusterPort) -> tuple[PlannedTopic, ...]:
    """Every companion topic with the shape its source asks for.

    Raises:
        TopicError: a source topic does not exist; it is the producers' and not made here.
    """
    names = all_topic_names(settings)
    present = cluster.topics(settings.sources)
    missing = [source for source in settings.sources if source not in present]
    if missing:
        raise TopicError(
            f"the source topic {missing[0]} does not exist",
            where=settings.bootstrap,
            mend=_create_source(settings, missing[0]),
        )
    return _planned(settings, names, present)


def _planned(
    settings: Settings, names: Iterable[TopicNames], sources: Mapping[str, TopicInfo]
) -> tuple[PlannedTopic, ...]:
    return tuple(
        PlannedTopic(
            name=each.of(kind),
            kind=kind,
            source=each.source,
            partitions=source.partitions,
            replication=source.replication,
            configs=_configs(settings, kind, source),
        )
        for each in names
        if (source := sources.get(each.source)) is not None
        for kind in kinds_of(settings)
    )


def _configs(settings: Settings, kind: Kind, source: TopicInfo) -> dict[str, str]:
    configs = {"max.message.bytes": str(source.max_message_bytes + ENVELOPE_ROOM_BYTES)}
    if kind is Kind.LEDGER:
        configs |= {"cleanup.policy": "compact", "delete.retention.ms": str(DELETE_RETENTION_MS)}
    else:
        configs |= {"cleanup.policy": "delete", "retention.ms": str(_retention_ms(settings, kind))}
    if "min.insync.replicas" in source.configs:
        configs["min.insync.replicas"] = source.configs["min.insync.replicas"]
    return configs


def _retention_ms(settings: Settings, kind: Kind) -> int:
    if kind in {Kind.DLQ, Kind.REVIEW}:
        # What waits for a person must not disappear because nobody looked for a month.
        return KEEP_FOREVER
    return max(settings.ledger.retention_ms, _least_retry_retention_ms(settings))


def _least_retry_retention_ms(settings: Settings) -> int:
    return max(settings.retry.delays_ms, default=0) + _DAY_MS


# --- the check ---------------------------------------------------------------------------------


def check(settings: Settings, cluster: ClusterPort) -> tuple[Finding, ...]:
    """Everything that is not as the protocol needs it, warnings included.

    On the embedded cluster this says nothing: call `is_telling` first and say so.
    """
    names = all_topic_names(settings)
    if not is_telling(cluster):
        return ()
    wanted = [*settings.sources, *(each.of(kind) for each in names for kind in kinds_of(settings))]
    present = cluster.topics(wanted)
    findings = [
        Finding(source, "the source topic does not exist", _create_source(settings, source))
        for source in settings.sources
        if source not in present
    ]
    for planned in _planned(settings, names, present):
        findings.extend(_judge(settings, planned, present.get(planned.name)))
    return tuple(findings)


def is_telling(cluster: ClusterPort) -> bool:
    """Whether a check on this cluster means anything: on the embedded one every topic exists."""
    return not cluster.embedded


def require(settings: Settings, cluster: ClusterPort) -> tuple[Finding, ...]:
    """Refuse to start where `check` finds more than warnings; returns those.

    Raises:
        TopicError: the first finding, with the command that mends it.
    """
    findings = check(settings, cluster)
    refusals = [finding for finding in findings if not finding.warning]
    if refusals:
        first, more = refusals[0], len(refusals) - 1
        also = f" (and {more} more: laneway topics check)" if more else ""
        raise TopicError(
            f"{first.problem}{also}", where=f"{settings.bootstrap}, topic {first.topic}", mend=first.command
        )
    return findings


def _judge(settings: Settings, planned: PlannedTopic, found: TopicInfo | None) -> Iterator[Finding]:
    name = planned.name
    if found is None:
        yield Finding(name, f"the {planned.kind} topic does not exist", _laneway_create(settings))
        return
    if found.partitions < planned.partitions:
        yield Finding(
            name,
            f"it has {found.partitions} partitions, its source {planned.source} has {planned.partitions}",
            f"kafka-topics.sh --bootstrap-server {settings.bootstrap} --alter --topic {name} "
            f"--partitions {planned.partitions}",
        )
    if found.partitions > planned.partitions:
        yield Finding(
            name,
            f"it has {found.partitions} partitions, its source {planned.source} only {planned.partitions}; "
            "a topic cannot shrink",
            f"kafka-topics.sh --bootstrap-server {settings.bootstrap} --delete --topic {name} "
            f"(once it is drained), then {_laneway_create(settings)}",
        )
    policy = found.configs.get("cleanup.policy", "delete")
    if policy != planned.configs["cleanup.policy"]:
        lost = "the ledger of an idle key" if planned.kind is Kind.LEDGER else "records that share a key"
        verb = "retention" if planned.kind is Kind.LEDGER else "compaction"
        yield Finding(
            name,
            f"its cleanup.policy is {policy}: {verb} removes {lost}",
            _alter(settings, name, f"cleanup.policy={planned.configs['cleanup.policy']}"),
        )
    needed = int(planned.configs["max.message.bytes"])
    if found.configs and found.max_message_bytes < needed:
        yield Finding(
            name,
            f"its max.message.bytes is {found.max_message_bytes}; the source's largest record and our "
            f"headers need {needed}",
            _alter(settings, name, f"max.message.bytes={needed}"),
        )
    kept_ms = int(found.configs.get("retention.ms", KEEP_FOREVER))
    least_ms = _least_retry_retention_ms(settings)
    if planned.kind is Kind.RETRY and 0 <= kept_ms < least_ms:
        yield Finding(
            name,
            f"its retention.ms is {kept_ms}: a record could be deleted before its retry is due",
            _alter(settings, name, f"retention.ms={planned.configs['retention.ms']}"),
        )
    if planned.kind is Kind.LEDGER:
        yield from _judge_tombstones(settings, name, found)


def _judge_tombstones(settings: Settings, name: str, found: TopicInfo) -> Iterator[Finding]:
    kept_ms = found.delete_retention_ms
    if kept_ms >= DELETE_RETENTION_MS:
        return
    refused = kept_ms < LEAST_DELETE_RETENTION_MS
    why = (
        f"below {LEAST_DELETE_RETENTION_MS} what is removed while a ledger is read could stay in it"
        if refused
        else "a store that was away for longer than half of it is read from the start again"
    )
    yield Finding(
        name,
        f"its delete.retention.ms is {kept_ms}: {why}",
        _alter(settings, name, f"delete.retention.ms={DELETE_RETENTION_MS}"),
        warning=not refused,
    )


def create(settings: Settings, cluster: ClusterPort) -> tuple[PlannedTopic, ...]:
    """Make the companion topics that are missing; those that exist are left as they are.

    Raises:
        TopicError: a source topic is missing.
        RefusedError: the cluster is the embedded one, which cannot create topics.
        IncompleteError: a created topic reads back in another shape.
    """
    refuse_embedded(settings, cluster)
    missing = to_create(settings, cluster)
    cluster.create_topics(missing)
    present = cluster.topics([topic.name for topic in missing])
    for topic in missing:
        found = _judge(settings, topic, present.get(topic.name))
        wrong = [finding for finding in found if not finding.warning]
        if wrong:
            raise IncompleteError(
                f"created, but reads back wrong: {wrong[0].problem}",
                where=f"{settings.bootstrap}, topic {topic.name}",
                mend=wrong[0].command,
            )
    return missing


def refuse_embedded(settings: Settings, cluster: ClusterPort) -> None:
    """Refuse to create topics where none can be created.

    Raises:
        RefusedError: the cluster is the embedded one.
    """
    if not is_telling(cluster):
        raise RefusedError(
            "the embedded cluster creates no topics: any topic asked for is there, with its own shape",
            where=settings.bootstrap,
            mend="point bootstrap at a real broker",
        )


def to_create(settings: Settings, cluster: ClusterPort) -> tuple[PlannedTopic, ...]:
    """The part of the plan that does not exist yet."""
    planned = plan(settings, cluster)
    present = cluster.topics([topic.name for topic in planned])
    return tuple(topic for topic in planned if topic.name not in present)


# --- the commands that mend --------------------------------------------------------------------


def _laneway_create(settings: Settings) -> str:
    sources = "".join(f" --source {source}" for source in settings.sources)
    sets = "".join(f" -X {shlex.quote(one)}" for one in _shaping(settings))
    return f"laneway topics create -b {settings.bootstrap} -g {settings.group}{sources}{sets}"


def _shaping(settings: Settings) -> Iterator[str]:
    """What else the command must be told to make the topics that these settings ask for."""
    if settings.ledger.replication != LedgerSettings.model_fields["replication"].default:
        yield f"ledger.replication={settings.ledger.replication}"
    usual = TopicsSettings()
    for kind in kinds_of(settings):
        template = getattr(settings.topics, kind)
        if template != getattr(usual, kind):
            yield f"topics.{kind}={template}"


def _create_source(settings: Settings, source: str) -> str:
    return f"kafka-topics.sh --bootstrap-server {settings.bootstrap} --create --topic {source} --partitions 6"


def _alter(settings: Settings, name: str, config: str) -> str:
    return (
        f"kafka-configs.sh --bootstrap-server {settings.bootstrap} --alter --entity-type topics "
        f"--entity-name {name} --add-config {config}"
    )
