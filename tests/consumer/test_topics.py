"""Companion topics: names, the plan, the check and its mending commands, on a fake cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from laneway.consumer import rights, topics
from laneway.consumer.settings.load import load
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import Finding, Kind
from laneway.errors import ConfigError, IncompleteError, RefusedError, TopicError
from tests.consumer.fake_cluster import FakeCluster, source

LOCAL = "ledger.replication=local"


def settings(sources: Sequence[str] = ("invoices",), group: str = "reminders", *sets: str) -> Settings:
    """Settings for these sources, with ledgers on one machine unless `sets` say otherwise."""
    flags: dict[str, object] = {"group": group, "sources": list(sources), "bootstrap": "b:9092"}
    return load(flags=flags, sets=[LOCAL, *sets], env={}, inspect=True).settings


def ready(*sets: str) -> FakeCluster:
    """A cluster on which everything is as planned."""
    cluster = FakeCluster({"invoices": source()})
    topics.create(settings(("invoices",), "reminders", *sets), cluster)
    return cluster


CHANGELOG = "ledger.replication=changelog"


def broken(
    kind: Kind, partitions: int | None = None, sets: Sequence[str] = (), **configs: str
) -> list[Finding]:
    """The findings when one companion topic has another shape."""
    cluster = ready(*sets)
    name = f"invoices.reminders.{kind}"
    was = cluster.has[name]
    merged = {**was.configs, **{key.replace("_", "."): value for key, value in configs.items()}}
    cluster.has[name] = replace(was, partitions=partitions or was.partitions, configs=merged)
    return list(topics.check(settings(("invoices",), "reminders", *sets), cluster))


def test_names_come_from_the_templates() -> None:
    """Each source of a group has its own companions."""
    (names,) = topics.all_topic_names(settings())
    assert [names.of(kind) for kind in Kind] == [
        "invoices.reminders.retry",
        "invoices.reminders.commands",
        "invoices.reminders.dlq",
        "invoices.reminders.review",
        "invoices.reminders.ledger",
    ]
    (own,) = topics.all_topic_names(settings(("invoices",), "g", "topics.dlq=dead-{group}-{source}"))
    assert own.dlq == "dead-g-invoices"


@pytest.mark.parametrize(
    ("sources", "group", "sets", "said"),
    [
        (["invoices"], "g" * 240, [], "at most 249"),
        (["invoices"], "g", ["topics.dlq={source}.{group}.retry"], "would also be the retry of invoices"),
        (["a", "b"], "g", ["topics.review={group}.review"], "would also be the review of a"),
        (["a.b", "a_b"], "g", [], "collides with a.b.g.retry"),
        (["a", "a.g.retry"], "g", [], "would also be the source"),
    ],
)
def test_names_that_cannot_stand_beside_each_other_are_refused(
    sources: list[str], group: str, sets: list[str], said: str
) -> None:
    """Illegal names, one name for two kinds, and names that differ only in . and _ end the start."""
    with pytest.raises(ConfigError, match=said):
        topics.all_topic_names(settings(sources, group, *sets))


def test_the_plan_follows_the_source() -> None:
    """Partitions, replication and the largest record are the source's, with room for our headers."""
    cluster = FakeCluster({"invoices": source(partitions=12, **{"max.message.bytes": "5000000"})})
    planned = topics.plan(settings(), cluster)
    assert {(topic.partitions, topic.replication) for topic in planned} == {(12, 3)}
    assert {topic.configs["max.message.bytes"] for topic in planned} == {str(5_000_000 + 64 * 1024)}
    assert {topic.configs["cleanup.policy"] for topic in planned} == {"delete"}
    kept = {topic.kind: topic.configs["retention.ms"] for topic in planned}
    assert kept[Kind.DLQ] == kept[Kind.REVIEW] == "-1"
    assert kept[Kind.RETRY] == str(30 * 86_400_000)


def test_a_retry_outlives_its_delay() -> None:
    """A short ledger retention never plans a retry topic that forgets records before they are due."""
    short = settings(("invoices",), "g", "ledger.retention=1h", "retry.delays_ms=[600000000]")
    planned = topics.plan(short, FakeCluster({"invoices": source()}))
    assert planned[0].configs["retention.ms"] == str(600_000_000 + 86_400_000)


def test_a_missing_source_is_not_made_here() -> None:
    """The source is its producers' topic; the refusal says how it would be made."""
    with pytest.raises(TopicError, match="source topic invoices does not exist") as caught:
        topics.plan(settings(), FakeCluster())
    assert "kafka-topics.sh" in caught.value.mend
    (finding,) = topics.check(settings(), FakeCluster())
    assert finding.topic == "invoices"


def test_create_makes_only_what_is_missing_and_then_the_check_is_clean() -> None:
    """A second create changes nothing."""
    cluster = FakeCluster({"invoices": source()})
    assert len(topics.create(settings(), cluster)) == 4
    assert topics.create(settings(), cluster) == ()
    assert topics.check(settings(), cluster) == ()


def test_create_reads_back() -> None:
    """A broker that made something else is found out at once."""
    with pytest.raises(IncompleteError, match="1 partitions"):
        topics.create(settings(), FakeCluster({"invoices": source()}, partitions_made=1))


def test_a_missing_companion_names_the_command() -> None:
    """What is missing is made by `laneway topics create` with the same group and sources."""
    findings = topics.check(settings(), FakeCluster({"invoices": source()}))
    assert len(findings) == 4
    made = "laneway topics create -b b:9092 -g reminders --source invoices"
    assert findings[0].command == f"{made} -X {LOCAL}"


def test_fewer_partitions_than_the_source_are_found() -> None:
    """A DLQ with fewer partitions (spring-kafka 1700) is refused with the command that mends it."""
    (finding,) = broken(Kind.DLQ, partitions=1)
    assert "1 partitions, its source invoices has 6" in finding.problem
    assert "--alter --topic invoices.reminders.dlq --partitions 6" in finding.command


def test_more_partitions_than_the_source_are_found() -> None:
    """A topic cannot shrink, so the command makes it anew."""
    (finding,) = broken(Kind.RETRY, partitions=7)
    assert "cannot shrink" in finding.problem
    assert "--delete --topic invoices.reminders.retry" in finding.command


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compaction_is_found(policy: str) -> None:
    """Compaction would remove retries and dead letters that share a key."""
    (finding,) = broken(Kind.DLQ, cleanup_policy=policy)
    assert f"cleanup.policy is {policy}" in finding.problem
    assert finding.command.endswith("--add-config cleanup.policy=delete")


def test_a_topic_too_small_for_the_largest_record_is_found() -> None:
    """A dead letter with our headers must fit wherever its record fitted."""
    (finding,) = broken(Kind.DLQ, max_message_bytes="1048588")
    assert finding.command.endswith(f"max.message.bytes={1048588 + 64 * 1024}")


def test_a_retry_topic_that_forgets_too_early_is_found() -> None:
    """Retention shorter than the longest delay loses work."""
    (finding,) = broken(Kind.RETRY, retention_ms="3000")
    assert "before its retry is due" in finding.problem


def test_require_refuses_with_the_first_finding() -> None:
    """A worker that may not start says what, where, the mending command, and how much more there is."""
    with pytest.raises(TopicError) as caught:
        topics.require(settings(), FakeCluster({"invoices": source()}))
    assert caught.value.exit_code == 4
    assert "b:9092, topic invoices.reminders.retry" in caught.value.where
    assert "and 3 more" in caught.value.what
    topics.require(settings(), ready())


def test_the_embedded_cluster_tells_nothing() -> None:
    """Where any topic exists a check finds nothing and says so, and create is refused."""
    cluster = FakeCluster(embedded=True)
    assert not topics.is_telling(cluster)
    assert topics.check(settings(), cluster) == ()
    with pytest.raises(RefusedError, match="embedded"):
        topics.create(settings(), cluster)


def test_the_ledger_topic_is_planned_where_the_ledger_follows_its_partition() -> None:
    """`changelog` plans a compacted topic that keeps its tombstones for a week; `local` plans none."""
    cluster = FakeCluster({"invoices": source(partitions=12, **{"min.insync.replicas": "2"})})
    assert Kind.LEDGER not in {topic.kind for topic in topics.plan(settings(), cluster)}
    planned = topics.plan(settings(("invoices",), "reminders", CHANGELOG), cluster)
    (ledger,) = [topic for topic in planned if topic.kind is Kind.LEDGER]
    assert (ledger.name, ledger.partitions, ledger.replication) == ("invoices.reminders.ledger", 12, 3)
    assert ledger.configs == {
        "cleanup.policy": "compact",
        "delete.retention.ms": "604800000",
        "max.message.bytes": str(1048588 + 64 * 1024),
        "min.insync.replicas": "2",
    }


def test_a_missing_ledger_topic_is_found_with_a_command_that_makes_it() -> None:
    """The command says which names are not the usual ones; a changelog is usual."""
    own = settings(("invoices",), "reminders", CHANGELOG, "topics.ledger={source}.{group}.state")
    cluster = ready()
    (finding,) = topics.check(own, cluster)
    assert (finding.topic, finding.problem) == ("invoices.reminders.state", "the ledger topic does not exist")
    assert finding.command == (
        "laneway topics create -b b:9092 -g reminders --source invoices "
        "-X 'topics.ledger={source}.{group}.state'"
    )
    topics.create(own, cluster)
    assert topics.check(own, cluster) == ()


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_ledger_topic_that_forgets_idle_keys_is_found(policy: str) -> None:
    """Anything but pure compaction removes effects that nobody touched for a while."""
    (finding,) = broken(Kind.LEDGER, sets=[CHANGELOG], cleanup_policy=policy)
    assert f"cleanup.policy is {policy}" in finding.problem
    assert finding.command.endswith("--add-config cleanup.policy=compact")
    assert not finding.warning


@pytest.mark.parametrize(("kept_ms", "warning"), [(3_599_999, False), (3_600_000, True), (604_799_999, True)])
def test_tombstones_that_go_early_are_found(kept_ms: int, warning: bool) -> None:
    """Below an hour no worker starts; below a week it is told, with the same mending command."""
    (finding,) = broken(Kind.LEDGER, sets=[CHANGELOG], delete_retention_ms=str(kept_ms))
    assert finding.warning is warning
    assert f"delete.retention.ms is {kept_ms}" in finding.problem
    assert finding.command.endswith("--add-config delete.retention.ms=604800000")
    assert broken(Kind.LEDGER, sets=[CHANGELOG], delete_retention_ms="604800000") == []


def test_a_ledger_topic_of_another_shape_than_its_source_is_found() -> None:
    """Partition N of it is the ledger of partition N, so the counts are the same or nothing starts."""
    (finding,) = broken(Kind.LEDGER, partitions=5, sets=[CHANGELOG])
    assert "5 partitions, its source invoices has 6" in finding.problem


def test_require_returns_what_only_deserves_a_warning() -> None:
    """A ledger topic with Kafka's own day for tombstones stops no worker, and is told."""
    cluster = ready(CHANGELOG)
    name = "invoices.reminders.ledger"
    configs = {**cluster.has[name].configs, "delete.retention.ms": "86400000"}
    cluster.has[name] = replace(cluster.has[name], configs=configs)
    own = settings(("invoices",), "reminders", CHANGELOG)
    (warning,) = topics.require(own, cluster)
    assert warning.topic == name
    cluster.has[name] = replace(cluster.has[name], configs={**configs, "delete.retention.ms": "5"})
    with pytest.raises(TopicError, match=r"delete\.retention\.ms is 5"):
        topics.require(own, cluster)


def test_acls_of_a_changelog_name_transactions_and_the_ledger_topic() -> None:
    """Two lines more: transactional ids by prefix, and the ledger topic; no right on the whole cluster."""
    plain = rights.acls(settings())
    lines = rights.acls(settings(("invoices",), "reminders", CHANGELOG))
    transactions, ledger = [line for line in lines if line not in plain]
    assert transactions.endswith(
        "--operation Write --operation Describe --transactional-id laneway-reminders- "
        "--resource-pattern-type prefixed"
    )
    for operation in ("Read", "Write", "Describe"):
        assert f"--operation {operation} " in ledger
    assert ledger.endswith("--topic invoices.reminders.ledger")
    assert not any("--cluster" in line for line in lines)


def test_acls_name_the_least_rights() -> None:
    """A worker reads its sources and never writes them."""
    lines = rights.acls(settings(), "User:worker")
    assert any("--group reminders" in line for line in lines)
    (own,) = [line for line in lines if line.endswith("--topic invoices")]
    assert "Write" not in own
    assert all("User:worker" in line for line in lines)
