"""`laneway preview` of live topics: what it says, and that it leaves no trace at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from laneway.consumer.kafka.cluster import Cluster as Asked
from laneway.consumer.settings.load import load
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.permits import EVENTS, GAPS, GARBAGE, permits, workload
from tests.cli.command import Said, run

CANARY = "hunter2"
EVIL = "k\x1b[2J\r\nevil"

APP = """
from pathlib import Path
from pydantic import BaseModel
from laneway import Pipeline

class Note(BaseModel):
    text: str

pipeline = Pipeline(payload=Note)
anything = Pipeline()

@anything.handler
@pipeline.handler
def handle(delivery):
    Path("ran").touch()
"""


def note(key: str, sequence: int, partition: int, *, text: object = CANARY, **other: object) -> Outgoing:
    """A good record, unless something else is said of it."""
    body = {
        "messageId": f"m-{key}-{sequence}",
        "effectKey": f"{key}/{sequence}",
        "sequenceKey": key,
        "sequence": sequence,
        "version": 1,
        "payload": {"text": text, CANARY: CANARY},
        **other,
    }
    headers = [("token", CANARY.encode())]
    return Outgoing(json.dumps(body).encode(), key.encode(), headers, partition=partition)


def preview(tmp_path: Path, kafka: KafkaBroker, names: Names, *arguments: str, app: str = "pipeline") -> Said:
    """The command, in a directory with an application."""
    (tmp_path / "notes.py").write_text(APP)
    return run(
        tmp_path,
        *("preview", f"./notes.py:{app}", "-b", kafka.bootstrap, "-g", names.group),
        *("--source", names.source, *arguments),
    )


def leave_no_trace(tmp_path: Path, cluster: Cluster, names: Names, ends: dict[int, int]) -> None:
    """No handler ran, no topic, no record, no group, no offset and no state came into being."""
    assert {each.name for each in tmp_path.iterdir()} <= {"notes.py", "__pycache__"}
    ours = {name for name in cluster.topics() if names.source in name or names.group in name}
    assert ours == {names.source}
    assert cluster.end_offsets(names.source) == ends
    assert set(cluster.committed(names.group, names.source).values()) == {None}
    flags = {"bootstrap": cluster.bootstrap, "group": names.group}
    with Asked(load(flags=flags, env={}, inspect=True).settings) as asked:
        group = asked.group(names.group)
    assert group is not None
    assert (group.state, group.members) == ("dead", ())


def test_permits(kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """Thousands of permits: the counts are what two workers make of the very same workload (test_permits)."""
    load_ = workload(permits(), seed=2)
    cluster.create_topic(names.source, 6)
    cluster.produce(names.source, load_.records)
    ends = cluster.end_offsets(names.source)
    said = preview(tmp_path, kafka, names, "-o", "json", app="anything")
    assert said.code == 0, said.err
    document = json.loads(said.out)
    fates: dict[str, int] = {}
    for row in said.items:
        fates[row["what"]] = fates.get(row["what"], 0) + row["records"]
    parked = sum(len(waiting) for waiting in load_.parked.values())
    assert fates["effect"] == load_.effects
    assert fates["dlq"] == document["unreadable"] == len(GARBAGE)
    assert fates["parked"] == document["parked"] == parked
    assert sum(fates.values()) == document["records"] == len(load_.records)
    assert fates["duplicate"] == len(load_.records) - load_.effects - len(GARBAGE) - parked
    assert (document["gaps"], document["open_cases"], document["order"]) == (GAPS, GAPS, "broken")
    assert document["keys"] == len({event["sequenceKey"] for event in permits()})
    assert document["effects"] == EVENTS - GAPS
    assert 'order = "contiguous"' in "\n".join(document["settings"])
    leave_no_trace(tmp_path, cluster, names, ends)


def test_a_topic_of_every_kind_of_trouble(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """Gaps, late and double records, conflicts, poison, split keys: each is told, no payload is."""
    cluster.create_topic(names.source, 3)
    records = [
        note("a", 1, 0),
        note("a", 1, 0),
        note("a", 1, 0, payload={"text": "other"}),
        note("a", 3, 0),
        note("a", 2, 0),
        note("b", 1, 0),
        note("b", 3, 0),
        note("b", 4, 0),
        note("c", 9, 0),
        note("a", 2, 0, effectKey="stale"),
        note("bad", 1, 1, text=[CANARY]),
        note("bad", 2, 1, text=[CANARY]),
        note("new", 1, 1, version=7),
        note("a", 4, 1),
        note(EVIL, 2, 1),
        Outgoing(f"no json, {CANARY}".encode(), partition=1),
        Outgoing(json.dumps({"messageId": 5, CANARY: CANARY}).encode(), partition=1),
        Outgoing(None, b"gone", partition=1),
        note("large", 1, 2, text="x" * 100_000),
    ]
    cluster.produce(names.source, records)
    aborted(cluster, names.source, note("never", 1, 2))
    ends = cluster.end_offsets(names.source)
    for form in ("json", "table", "yaml"):
        said = preview(tmp_path, kafka, names, "-o", form)
        assert said.code == 0, said.err
        assert CANARY not in said.out + said.err
        assert "\x1b" not in said.out + said.err
    document = json.loads(preview(tmp_path, kafka, names, "-o", "json").out)
    fates = {(row["what"], row["reason"]): row["records"] for row in document["items"]}
    assert fates == {
        ("effect", None): 5,
        ("dlq", "invalid-payload"): 1,
        ("dlq", "unknown-contract-version"): 1,
        ("dlq", "undecodable-json"): 1,
        ("dlq", "mistyped-field: message_id at json:/messageId is a number"): 1,
        ("dlq", "tombstone"): 1,
        ("duplicate", "succeeded"): 1,
        ("review", "effect-conflict"): 1,
        ("review", "sequence-stale"): 1,
        ("parked", "behind rejected"): 1,
        ("parked", "behind sequence-gap"): 5,
    }
    assert {row["reason"]: row["records"] for row in document["cases"]} == {
        "effect-conflict": 1,
        "sequence-gap": 5,
        "sequence-stale": 1,
        "rejected": 2,
    }
    facts: dict[str, Any] = document
    assert (facts["records"], facts["keys"], facts["longest_key"]) == (19, 7, "a")
    assert (facts["keys_in_two_partitions"], facts["gaps_healed"], facts["first_sequences"]) == (1, 1, 3)
    examples = {(row["what"], row["key"]): row for row in document["examples"]}
    assert examples["key-in-two-partitions", "a"]["about"] == "partitions 0, 1"
    assert examples["sequence-gap", "b"]["about"] == "2 is missing before 3"
    assert [(row["place"], row["records"]) for row in document["payloads"]] == [("text: string_type", 2)]
    assert {(row["what"], row["version"]) for row in document["versions"]} == {
        ("accepted", "1"),
        ("unknown", "7"),
    }
    largest = {row["limit"]: row["largest_record_bytes"] for row in document["limits"]}
    assert 100_000 < largest[f"{names.source} max.message.bytes"] < 100_500
    leave_no_trace(tmp_path, cluster, names, ends)


def aborted(cluster: Cluster, topic: str, record: Outgoing) -> None:
    """A record of a transaction that is taken back: no reader of what is committed sees it."""
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "transactional.id": f"{topic}-abort", "log_level": 0}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, record.value, record.key, partition=record.partition or 0)
    producer.flush(30)
    producer.abort_transaction(30)


def test_where_it_begins_and_ends(kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """--limit, --from and --partition choose what is read; a topic that is missing is refused with 4."""
    assert preview(tmp_path, kafka, names).code == 4
    cluster.create_topic(names.source, 2)
    hour_ms = 3_600_000
    first_ms = 1_700_000_000_000
    cluster.produce(
        names.source,
        [
            Outgoing(
                note(f"k{number % 2}", number // 2 + 1, 0).value,
                partition=number % 2,
                timestamp_ms=first_ms + number // 2 * hour_ms,
            )
            for number in range(20)
        ],
    )

    def spans(*arguments: str) -> list[tuple[int, int]]:
        document = json.loads(preview(tmp_path, kafka, names, "-o", "json", *arguments).out)
        return [(row["from"], row["to"]) for row in document["partitions"]]

    assert spans() == [(0, 10), (0, 10)]
    assert spans("--limit", "6") == [(0, 3), (0, 3)]
    assert spans("--limit", "6", "--from", "latest") == [(7, 10), (7, 10)]
    assert spans("--from", f"@{first_ms + 8 * hour_ms - 1}") == [(8, 10), (8, 10)]
    assert spans("--from", "@2023-11-15T06:13:20Z", "--partition", "1") == [(8, 10)]
    assert spans("--from", "@2099-01-01T00:00Z") == [(10, 10), (10, 10)]
    said = preview(tmp_path, kafka, names, "--limit", "6")
    assert "14 offsets behind not read" in said.err
    assert preview(tmp_path, kafka, names, "--partition", "2").code == 2
