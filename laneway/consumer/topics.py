"""The companion topics of each source: their names, the plan that makes them, the check that refuses.

    {source}.{group}.retry      due redeliveries           partition = source partition
    {source}.{group}.commands   operator commands          partition = source partition
    {source}.{group}.dlq        rejected records           partition = source partition
    {source}.{group}.review     cases and command results

A check is a list of findings, each with the command that mends it; nothing here prints or asks.
The cluster is a small port: `kafka.Cluster` is the real one, tests bring a fake.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from laneway.consumer.settings.model import Settings
from laneway.consumer.settings.values import topic_name
from laneway.errors import ConfigError, IncompleteError, RefusedError, TopicError

ENVELOPE_ROOM_BYTES: Final = 64 * 1024
"""Room for our headers beside the largest record of a source (max.message.bytes counts both)."""

KEEP_FOREVER: Final = -1
_DAY_MS: Final = 86_400_000
_BROKER_MAX_MESSAGE_BYTES: Final = 1_048_588


class Kind(StrEnum):
    """What a companion topic carries."""

    RETRY = "retry"
    COMMANDS = "commands"
    DLQ = "dlq"
    REVIEW = "review"


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The companions of one source in one group."""

    source: str
    retry: str
    commands: str
    dlq: str
    review: str

    def of(self, kind: Kind) -> str:
        """The topic of one kind."""
        return {
            Kind.RETRY: self.retry,
            Kind.COMMANDS: self.commands,
            Kind.DLQ: self.dlq,
            Kind.REVIEW: self.review,
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
    """One thing that is not as the protocol needs it, and the command that mends it."""

    topic: str
    problem: str
    command: str


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
        for kind in Kind:
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
        for kind in Kind
    )


def _configs(settings: Settings, kind: Kind, source: TopicInfo) -> dict[str, str]:
    configs = {
        "cleanup.policy": "delete",
        "max.message.bytes": str(source.max_message_bytes + ENVELOPE_ROOM_BYTES),
        "retention.ms": str(_retention_ms(settings, kind)),
    }
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


def acls(settings: Settings, principal: str = "User:laneway") -> tuple[str, ...]:
    """The least rights a worker needs, as `kafka-acls` arguments, one line per resource."""
    start = f"--add --allow-principal {principal}"
    lines = [f"{start} --operation Read --operation Describe --group {settings.group}"]
    for names in all_topic_names(settings):
        read = "--operation Read --operation Describe --operation DescribeConfigs"
        both = f"{read} --operation Write"
        lines.append(f"{start} {read} --topic {names.source}")
        lines.append(f"{start} {both} --topic {names.retry}")
        lines.append(f"{start} {read} --topic {names.commands}")
        write = "--operation Write --operation Describe --operation DescribeConfigs"
        lines.extend(f"{start} {write} --topic {name}" for name in (names.dlq, names.review))
    return tuple(lines)


# --- the check ---------------------------------------------------------------------------------


def check(settings: Settings, cluster: ClusterPort) -> tuple[Finding, ...]:
    """Everything that is not as the protocol needs it; empty when a worker may start.

    On the embedded cluster this says nothing: call `is_telling` first and say so.
    """
    names = all_topic_names(settings)
    if not is_telling(cluster):
        return ()
    wanted = [*settings.sources, *(each.of(kind) for each in names for kind in Kind)]
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


def require(settings: Settings, cluster: ClusterPort) -> None:
    """Refuse to start where `check` finds anything.

    Raises:
        TopicError: the first finding, with the command that mends it.
    """
    findings = check(settings, cluster)
    if findings:
        first, more = findings[0], len(findings) - 1
        also = f" (and {more} more: laneway topics check)" if more else ""
        raise TopicError(
            f"{first.problem}{also}", where=f"{settings.bootstrap}, topic {first.topic}", mend=first.command
        )


def _judge(settings: Settings, planned: PlannedTopic, found: TopicInfo | None) -> Iterable[Finding]:
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
    if policy != "delete":
        yield Finding(
            name,
            f"its cleanup.policy is {policy}: compaction removes records that share a key",
            _alter(settings, name, "cleanup.policy=delete"),
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
        wrong = list(_judge(settings, topic, present.get(topic.name)))
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
    return f"laneway topics create -b {settings.bootstrap} -g {settings.group}{sources}"


def _create_source(settings: Settings, source: str) -> str:
    return f"kafka-topics.sh --bootstrap-server {settings.bootstrap} --create --topic {source} --partitions 6"


def _alter(settings: Settings, name: str, config: str) -> str:
    return (
        f"kafka-configs.sh --bootstrap-server {settings.bootstrap} --alter --entity-type topics "
        f"--entity-name {name} --add-config {config}"
    )
