"""The least rights a worker needs on a cluster that checks them, as arguments of `kafka-acls`.

A worker reads its sources and never writes them. With `replication = "changelog"` it also keeps its ledger in
a topic, and settles in transactions: their ids begin with `transactional_id_prefix`, which is what the right
is given for. Since Kafka 2.8 the right to write a topic is enough for an idempotent producer; an older
broker wants IdempotentWrite on the cluster besides, unless there is a transactional id.
"""

from __future__ import annotations

from collections.abc import Iterator

from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import all_topic_names


def transactional_id_prefix(group: str) -> str:
    """What the transactional ids of all workers of a group begin with."""
    return f"laneway-{group}-"


def acls(settings: Settings, principal: str = "User:laneway") -> tuple[str, ...]:
    """The least rights a worker needs, one line per resource."""
    return tuple(f"--add --allow-principal {principal} {line}" for line in _lines(settings))


def _lines(settings: Settings) -> Iterator[str]:
    replicated = settings.ledger.replication == "changelog"
    yield f"--operation Read --operation Describe --group {settings.group}"
    if replicated:
        yield (
            "--operation Write --operation Describe "
            f"--transactional-id {transactional_id_prefix(settings.group)} --resource-pattern-type prefixed"
        )
    read = "--operation Read --operation Describe --operation DescribeConfigs"
    write = "--operation Write --operation Describe --operation DescribeConfigs"
    both = f"{read} --operation Write"
    for names in all_topic_names(settings):
        yield f"{read} --topic {names.source}"
        yield f"{both} --topic {names.retry}"
        yield f"{read} --topic {names.commands}"
        yield f"{write} --topic {names.dlq}"
        yield f"{write} --topic {names.review}"
        if replicated:
            yield f"{both} --topic {names.ledger}"
