"""The cluster as the rest sees it: topics, groups, offsets, watermarks.

Every call has a timeout; no broker means `UnreachableError` within it. The answers are values of ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Self, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)

# The package lists no exports for these; they are its documented API.
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    ConfigResource,
    ConsumerGroupDescription,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from laneway.consumer.kafka.clients import client_config, new_admin
from laneway.consumer.kafka.errors import ErrorClass, classify, kafka_errors, position, to_laneway
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import PlannedTopic, TopicInfo
from laneway.errors import IncompleteError, LanewayError, RefusedError, UnreachableError

DEFAULT_TIMEOUT_S: Final = 10.0
TRANSACTION_S: Final = 30.0
"""How long the transaction of a worker that was killed may still be open."""
_POLL_S: Final = 0.1
_NO_OUTSIDERS: Final = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.FENCED_INSTANCE_ID,
    }
)
_EMBEDDED_PREFIX: Final = "mockCluster"
_T = TypeVar("_T")
Partition = tuple[str, int]
"""(topic, partition)."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Where a partition's log starts and ends (the end is the next offset to be written)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset, and what its committer wrote beside it; "" where it wrote nothing."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """One partition as `offsets show` sees it. `committed` is None where nothing was committed."""

    topic: str
    partition: int
    committed: int | None
    start: int
    end: int
    metadata: str = ""

    @property
    def lag(self) -> int:
        """Records not passed yet, never negative; without a commit counted from the log's start."""
        return max(0, self.end - (self.start if self.committed is None else self.committed))


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group and what it owns."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A group as its coordinator describes it. A group nobody knows is `dead` without members."""

    group: str
    state: str
    protocol: str
    members: tuple[Member, ...]

    def owners(self) -> Mapping[Partition, Member]:
        """Each assigned partition and its owner."""
        return {partition: member for member in self.members for partition in member.partitions}


class Cluster:
    """The cluster behind `bootstrap`; answers with values, raises Laneway's errors only.

    Every call returns or raises within `timeout_s`. Asking about a topic never creates it.
    """

    def __init__(self, settings: Settings, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._settings = settings
        self._timeout_s = timeout_s
        self._complaints: list[KafkaError] = []
        self._admin = new_admin(settings, self._complaints.append)
        self._cluster_id: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Serve what the client still wants to say; its threads end with the object."""
        self._admin.poll(0)

    def cluster_id(self) -> str:
        """The cluster's id: the first answer of the cluster, so also the test that it is there."""
        if self._cluster_id is None:
            with self._asking():
                self._cluster_id = self._admin.cluster_id(timeout=self._timeout_s)
        return self._cluster_id

    @property
    def embedded(self) -> bool:
        """Whether this is librdkafka's built-in mock cluster."""
        return self.cluster_id().startswith(_EMBEDDED_PREFIX)

    def topics(self, names: Sequence[str]) -> Mapping[str, TopicInfo]:
        """Those of the topics that exist, with partitions, replication and configs."""
        wanted = list(dict.fromkeys(names))
        if self.embedded:
            return {name: TopicInfo(name, self._embedded_partitions(name), 1, {}) for name in wanted}
        found = self._shapes(wanted)
        configs = self._configs(found)
        return {
            name: TopicInfo(name, partitions, replication, configs.get(name, {}), topic_id)
            for name, (partitions, replication, topic_id) in found.items()
        }

    def partition_counts(self, names: Sequence[str]) -> Mapping[str, int]:
        """Those of the topics that exist, with their partitions; needs no right to read their settings."""
        wanted = list(dict.fromkeys(names))
        if self.embedded:
            return {name: self._embedded_partitions(name) for name in wanted}
        return {name: partitions for name, (partitions, _, _) in self._shapes(wanted).items()}

    def all_partition_counts(self) -> Mapping[str, int]:
        """Every topic that this client may see and that is not Kafka's own, in one request."""
        with self._asking():
            listed = self._admin.list_topics(timeout=self._timeout_s).topics
        return {name: len(topic.partitions) for name, topic in listed.items() if not name.startswith("__")}

    def _shapes(self, names: list[str]) -> Mapping[str, tuple[int, int, str]]:
        """Partitions, replication and id of those that exist."""
        if not names:
            return {}
        with self._asking():
            answers = self._admin.describe_topics(TopicCollection(names), request_timeout=self._timeout_s)
        found = {}
        for name, future in answers.items():
            described = self._unless_missing(future, name)
            if described is not None:
                partitions = described.partitions
                replication = len(partitions[0].replicas) if partitions else 0
                found[name] = (len(partitions), replication, str(described.topic_id or ""))
        return found

    def _embedded_partitions(self, name: str) -> int:
        with self._asking(name):
            metadata = self._admin.list_topics(name, timeout=self._timeout_s)
        return len(metadata.topics[name].partitions)

    def _configs(self, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        if not resources:
            return {}
        with self._asking():
            answers = self._admin.describe_configs(resources, request_timeout=self._timeout_s)
        result = {}
        for resource, future in answers.items():
            entries = self._unless_missing(future, resource.name)
            if entries is not None:
                result[resource.name] = {
                    name: entry.value for name, entry in entries.items() if entry.value is not None
                }
        return result

    def create_topics(self, topics: Sequence[PlannedTopic]) -> None:
        """Create them and wait until the cluster shows each of them.

        Raises:
            IncompleteError: created, but not visible before the timeout.
        """
        if not topics:
            return
        with self._asking():
            answers = self._admin.create_topics(
                [
                    NewTopic(
                        topic.name,
                        num_partitions=topic.partitions,
                        replication_factor=topic.replication,
                        config=dict(topic.configs),
                    )
                    for topic in topics
                ],
                request_timeout=self._timeout_s,
                operation_timeout=self._timeout_s,
            )
        for name, future in answers.items():
            try:
                self._answer(future, name)
            except LanewayError as error:
                # Two operators at once: the other's topic is as good, its shape is read back.
                if not _is_code(error, KafkaError.TOPIC_ALREADY_EXISTS):
                    raise
        self._await_topics([topic.name for topic in topics])

    def _await_topics(self, names: Sequence[str]) -> None:
        deadline = time.monotonic() + self._timeout_s
        missing = list(names)
        while missing:
            present = self.topics(missing)
            missing = [name for name in missing if name not in present]
            if missing and time.monotonic() > deadline:
                raise IncompleteError(
                    f"created, but not visible after {self._timeout_s:g} s",
                    where=position(missing[0]),
                    mend="run `laneway topics check`",
                )
            if missing:
                time.sleep(0.1)

    def group(self, group: str) -> Group | None:
        """The group's state and members; None on the embedded cluster, which cannot tell."""
        if self.embedded:
            return None
        try:
            described = self._patiently(lambda: self._described(group))
        except LanewayError as error:
            if _is_code(error, KafkaError.GROUP_ID_NOT_FOUND):
                return Group(group, "dead", "", ())
            raise
        return Group(
            group,
            described.state.name.lower(),
            described.type.name.lower(),
            tuple(
                Member(
                    member.member_id,
                    member.client_id,
                    member.host.lstrip("/"),
                    member.group_instance_id or None,
                    tuple((tp.topic, tp.partition) for tp in member.assignment.topic_partitions),
                )
                for member in described.members
            ),
        )

    def _described(self, group: str) -> ConsumerGroupDescription:
        with self._asking(f"group {group}"):
            answers = self._admin.describe_consumer_groups([group], request_timeout=self._timeout_s)
        future: Future[ConsumerGroupDescription] = answers[group]
        return self._answer(future, f"group {group}")

    def watermarks(self, partitions: Sequence[Partition]) -> Mapping[Partition, Watermarks]:
        """Log start and log end of many partitions in two requests.

        Raises:
            TopicError: one of them does not exist.
        """
        if not partitions:
            return {}
        start = self._offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        end = self._offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {each: Watermarks(start[each], end[each]) for each in partitions}

    def offsets_at(self, partitions: Sequence[Partition], at_ms: int) -> Mapping[Partition, int]:
        """The first offset of each partition whose record is not older; absent where there is none.

        Args:
            at_ms: epoch milliseconds, compared with the records' own timestamps.
        """
        if not partitions:
            return {}
        found = self._offsets(partitions, OffsetSpec.for_timestamp(at_ms))
        return {each: offset for each, offset in found.items() if offset >= 0}

    def _offsets(self, partitions: Sequence[Partition], spec: OffsetSpec) -> Mapping[Partition, int]:
        request = {TopicPartition(topic, number): spec for topic, number in partitions}
        with self._asking():
            answers = self._admin.list_offsets(request, request_timeout=self._timeout_s)
        return {
            (tp.topic, tp.partition): self._answer(future, position(tp.topic, tp.partition)).offset
            for tp, future in answers.items()
        }

    def committed(
        self, group: str, partitions: Sequence[Partition], *, settled: bool = False
    ) -> Mapping[Partition, Committed | None]:
        """The group's committed offsets; None where nothing was committed.

        Args:
            settled: wait for the end of a transaction that may still change them.

        Reads as a client that never joins the group. (AdminClient.list_consumer_group_offsets of
        confluent-kafka 2.16 ends the process when the coordinator answers "not yet".)
        """
        if not partitions:
            return {}
        # The first question goes to the admin client: it can say why nobody answers.
        self.cluster_id()
        answers = self._patiently(lambda: self._fetch_committed(group, partitions, settled=settled))
        result: dict[Partition, Committed | None] = {}
        for answer in answers:
            if answer.error is not None:
                raise to_laneway(answer.error, position(answer.topic, answer.partition))
            found = Committed(answer.offset, answer.metadata or "") if answer.offset >= 0 else None
            result[answer.topic, answer.partition] = found
        return result

    def _fetch_committed(
        self, group: str, partitions: Sequence[Partition], *, settled: bool
    ) -> list[TopicPartition]:
        # read_uncommitted: what is committed now, although a transaction may be about to change it.
        places = [TopicPartition(topic, number) for topic, number in partitions]
        timeout_s = max(self._timeout_s, TRANSACTION_S) if settled else self._timeout_s
        with self._outsider(group, "read_committed" if settled else "read_uncommitted") as reader:
            return reader.committed(places, timeout=timeout_s)

    def commit(self, group: str, offsets: Mapping[Partition, Committed]) -> Mapping[Partition, str]:
        """Set offsets of a group without members; of one with members the brokers do not take it from here.

        Returns:
            Why one was not taken, by partition; nothing where it was.

        Raises:
            RefusedError: the group has members.
            UnreachableError: no answer in time; the offsets may be set or not.
        """
        answers: list[tuple[KafkaError | None, list[TopicPartition]]] = []
        places = [
            TopicPartition(topic, number, each.offset, each.metadata)
            for (topic, number), each in offsets.items()
        ]
        # Not the call that waits: with the coordinator away that one has no end.
        told = {"on_commit": lambda error, done: answers.append((error, done))}
        with self._outsider(group, "read_committed", told) as writer:
            deadline_s = time.monotonic() + self._timeout_s
            writer.commit(offsets=places, asynchronous=True)
            while not answers:
                if time.monotonic() > deadline_s:
                    raise UnreachableError(
                        "the group's coordinator does not answer: the offsets may be set or not",
                        where=f"{self._settings.bootstrap}, group {group}",
                        mend="`laneway offsets show` tells",
                    )
                writer.poll(_POLL_S)
        error, done = answers[0]
        refused = {(each.topic, each.partition): each.error for each in done if each.error is not None}
        if any(each.code() in _NO_OUTSIDERS for each in (error, *refused.values()) if each is not None):
            raise RefusedError(
                "a worker has joined the group meanwhile, so nothing was set",
                where=f"group {group}",
                mend="stop the workers first",
            )
        if error is not None and not refused:
            raise to_laneway(error, f"group {group}")
        return {place: each.str() for place, each in refused.items()}

    @contextmanager
    def _outsider(
        self, group: str, isolation: str, hooks: Mapping[str, Callable[..., None]] = MappingProxyType({})
    ) -> Iterator[Consumer]:
        """A client that knows the group and never joins it; membership and protocol do not matter to it."""
        config = {
            **client_config(self._settings),
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": isolation,
        }
        with self._asking(f"group {group}"):
            client = Consumer({**config, **hooks, "log_level": 0})
            try:
                yield client
            finally:
                client.close()

    def offsets(self, group: str, partitions: Sequence[Partition]) -> tuple[PartitionOffsets, ...]:
        """Committed, start and end of each partition, read in the order that keeps lag ≥ 0."""
        committed = self.committed(group, partitions)
        marks = self.watermarks(partitions)
        found = []
        for (topic, number), mark in sorted(marks.items()):
            at = committed[topic, number]
            offset, metadata = (None, "") if at is None else (at.offset, at.metadata)
            found.append(PartitionOffsets(topic, number, offset, mark.start, mark.end, metadata))
        return tuple(found)

    # --- asking --------------------------------------------------------------------------------

    @contextmanager
    def _asking(self, subject: str = "") -> Iterator[None]:
        where = f"{self._settings.bootstrap}, {subject}" if subject else self._settings.bootstrap
        self._complaints.clear()
        try:
            with kafka_errors(where):
                yield
        except UnreachableError as error:
            raise self._explained(error, where) from error.__cause__

    def _explained(self, error: UnreachableError, where: str) -> LanewayError:
        """A timeout says nothing; what the client complained of meanwhile does."""
        self._admin.poll(0)
        telling = [e for e in self._complaints if e.code() != KafkaError._ALL_BROKERS_DOWN]
        # Refused credentials end as a timeout too, and need another mend.
        telling.sort(key=lambda e: classify(e) is not ErrorClass.UNAUTHORISED)
        return to_laneway(telling[0], where) if telling else error

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        """Ask again while the answer is "not yet": a cluster's first group makes its offsets topic."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                return ask()
            except LanewayError as error:
                if _class_of(error) is not ErrorClass.RETRIABLE or time.monotonic() > deadline_s:
                    raise
            time.sleep(0.2)

    def _answer(self, future: Future[_T], subject: str) -> _T:
        with self._asking(subject):
            try:
                return future.result(self._timeout_s + 1)
            except TimeoutError:
                # The client has its own timeout; this one is for the day it forgets it.
                raise UnreachableError(
                    f"no answer within {self._timeout_s:g} s", where=self._settings.bootstrap
                ) from None

    def _unless_missing(self, future: Future[_T], subject: str) -> _T | None:
        try:
            return self._answer(future, subject)
        except LanewayError as error:
            if _class_of(error) is ErrorClass.MISSING:
                return None
            raise


def _kafka_error(error: LanewayError) -> KafkaError | None:
    cause = error.__cause__
    if isinstance(cause, KafkaException) and cause.args and isinstance(cause.args[0], KafkaError):
        return cause.args[0]
    return None


def _is_code(error: LanewayError, code: int) -> bool:
    kafka_error = _kafka_error(error)
    return kafka_error is not None and kafka_error.code() == code


def _class_of(error: LanewayError) -> ErrorClass:
    kafka_error = _kafka_error(error)
    return ErrorClass.OTHER if kafka_error is None else classify(kafka_error)
