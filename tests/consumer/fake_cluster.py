"""A cluster in memory for tests of topics: it has what it was given and creates what it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from laneway.consumer.topics import PlannedTopic, TopicInfo


@dataclass
class FakeCluster:
    """Behaves like `kafka.Cluster` for topics; `partitions_made` is a broker with its own idea."""

    has: dict[str, TopicInfo] = field(default_factory=dict)
    embedded: bool = False
    partitions_made: int | None = None

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def topics(self, names: Sequence[str]) -> Mapping[str, TopicInfo]:
        """Those it has; all of them, when it is the embedded one."""
        if self.embedded:
            return {name: TopicInfo(name, 4, 1, {}) for name in names}
        return {name: self.has[name] for name in names if name in self.has}

    def create_topics(self, topics: Sequence[PlannedTopic]) -> None:
        """Creates them with the shape they ask for."""
        for topic in topics:
            partitions = self.partitions_made or topic.partitions
            self.has[topic.name] = TopicInfo(topic.name, partitions, topic.replication, dict(topic.configs))


def source(name: str = "invoices", partitions: int = 6, **configs: str) -> TopicInfo:
    """A source topic as brokers have it."""
    default = {"max.message.bytes": "1048588", "cleanup.policy": "delete"}
    return TopicInfo(name, partitions, 3, {**default, **configs})
