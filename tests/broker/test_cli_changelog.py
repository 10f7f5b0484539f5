"""The looking commands where ledgers live in a changelog: from a machine that has nothing but -b and -g.

The changelog is written here by hand, in transactions and with the ledger's own encoding, so that each test
says exactly what was committed, what was aborted and what came last.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from laneway.consumer.inspection import changelog as inspect_changelog
from laneway.consumer.inspection.changelog import Progress
from laneway.consumer.kafka.cluster import Cluster as Asked
from laneway.consumer.partition import CommitNote
from laneway.consumer.settings.load import load
from laneway.consumer.settings.model import Settings
from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.forward import FORMAT, ReviewNews
from laneway.lanes.view import Meta, PutEffect
from laneway.store import codec
from laneway.store.state_dir import StateDir
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.worker_process import WorkerProcess, create_companions
from tests.broker.worker_process import settings_of as settings_of_worker
from tests.cli.command import Said, run
from tests.store.builders import effect, meta
from tests.waiting import eventually

CHANGELOG = ("-X", "ledger.replication=changelog")
Change = tuple[bytes, bytes | None]


class Writer:
    """Writes what a worker would: whole transactions, to any partition of the ledger topic."""

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self.topic = f"{names.source}.{names.group}.ledger"
        self.names = names
        self.bootstrap = cluster.bootstrap
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "transactional.id": f"laneway-{names.group}-0",
                "log_level": 0,
            }
        )
        self._producer.init_transactions(30)

    def write(self, partition: int, changes: Sequence[Change], *, commit: bool = True) -> None:
        """One transaction with these entries."""
        self._producer.begin_transaction()
        for key, value in changes:
            self._producer.produce(self.topic, value, key, partition)
        self._end(commit=commit)

    def forward(self, topic: str, records: Sequence[Outgoing], *, commit: bool = True) -> None:
        """One transaction with these records of another companion."""
        self._producer.begin_transaction()
        for record in records:
            assert record.partition is not None
            self._producer.produce(
                topic, record.value, record.key, record.partition, headers=dict(record.headers)
            )
        self._end(commit=commit)

    def commit_offset(self, offset: int, note: CommitNote) -> None:
        """One transaction with nothing but the source's offset and the note beside it."""
        outsider = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": self.names.group, "log_level": 0}
        )
        self._producer.begin_transaction()
        place = TopicPartition(self.names.source, 0, offset, msgspec.json.encode(note).decode())
        self._producer.send_offsets_to_transaction([place], outsider.consumer_group_metadata(), 30)
        outsider.close()
        self._end(commit=True)

    def _end(self, *, commit: bool) -> None:
        assert self._producer.flush(30) == 0
        if commit:
            self._producer.commit_transaction(30)
        else:
            self._producer.abort_transaction(30)


def of_effect(key: str, value: Effect | None) -> Change:
    """An effect's entry, or its tombstone."""
    return codec.effect_key(key), None if value is None else codec.encode(value)


def of_meta(value: Meta) -> Change:
    """The entry every cycle ends with."""
    return codec.META_KEY, codec.encode(value)


def retry(names: Names, number: int) -> Outgoing:
    """A record that waits for its retry."""
    own = {"group": names.group, "kind": "retry", "format": "1", "forward-id": f"f{number}", "attempt": "2"}
    own |= {"due-at": "4102444800000", "effect-key": f"effect-{number}", "reason": "temporary"}
    own |= {"origin-topic": names.source, "origin-partition": "0", "origin-offset": str(number)}
    return Outgoing(
        b"v", headers=[(f"laneway-{name}", text.encode()) for name, text in own.items()], partition=0
    )


def opened(names: Names, case_id: str) -> Outgoing:
    """News of a case that was opened."""
    news = ReviewNews(
        format=int(FORMAT),
        event="opened",
        case_id=case_id,
        reason="unclassified-failure",
        cause="",
        group=names.group,
        topic=names.source,
        partition=0,
        offset=1,
        sequence_key="k",
        sequence=1,
        effect_key="e",
        message_id="m",
        attempts=1,
        required_check="Did it happen?",
        actions=("mark-done",),
        holds=True,
        version=1,
        opened_ms=1000,
    )
    return Outgoing(msgspec.json.encode(news), case_id.encode(), partition=0)


def settings_of(writer: Writer) -> Settings:
    """Settings for looking at the writer's group."""
    flags = {"bootstrap": writer.bootstrap, "group": writer.names.group}
    return load(Path("/dev/null"), flags=flags, env={}, inspect=True).settings


@pytest.fixture
def writer(cluster: Cluster, names: Names) -> Writer:
    """A group with one source of three partitions whose ledgers are in a topic."""
    cluster.create_topic(names.source, 3)
    for kind in ("retry", "commands", "dlq", "review"):
        cluster.create_topic(f"{names.source}.{names.group}.{kind}", 3)
    cluster.create_topic(f"{names.source}.{names.group}.ledger", 3, {"cleanup.policy": "compact"})
    return Writer(cluster, names)


def asked(writer: Writer, directory: Path, *words: str) -> Said:
    """A command with nothing but -b and -g, in JSON."""
    return run(directory, *words, "-b", writer.bootstrap, "-g", writer.names.group, "-o", "json")


def test_lookup_reads_the_topic_from_any_machine(writer: Writer, tmp_path: Path) -> None:
    """Case 39, S14: where no state directory is, the last committed word of the exact key is found."""
    writer.write(1, [of_effect("a", effect(EffectState.RETRY_WAIT, offset=4)), of_meta(meta(1))])
    writer.write(1, [of_effect("a", effect(offset=5)), of_effect("ab", effect(offset=9)), of_meta(meta(2))])
    writer.write(1, [of_effect("a", effect(EffectState.QUARANTINED, offset=6))], commit=False)
    writer.write(2, [(codec.lane_key("a"), b"\x01\x90"), (codec.case_key("a"), b"\x01\x90")])
    said = asked(writer, tmp_path, "ledger", "lookup", "a")
    assert said.code == 0, said
    (item,) = said.items
    assert (item["topic"], item["partition"], item["offset"]) == (writer.names.source, 1, 5)
    assert item["state"] == "succeeded"
    assert f"from {writer.topic}: what was committed at 20" in said.err
    document = json.loads(said.out)
    assert document["ledger_topics"] == [writer.topic]
    assert document["as_of_ms"] > 1_600_000_000_000
    narrowed = asked(writer, tmp_path, "ledger", "lookup", "a", "--partition", "0", "--partition", "2")
    assert (narrowed.code, narrowed.out) == (1, "")


def test_an_effect_past_retention_is_not_found(writer: Writer, tmp_path: Path) -> None:
    """A tombstone is the last word: exit 1, and the ledgers that were looked into are named."""
    writer.write(0, [of_effect("gone", effect()), of_meta(meta(1))])
    writer.write(0, [of_effect("gone", None), of_meta(meta(2))])
    said = asked(writer, tmp_path, "ledger", "lookup", "gone", *CHANGELOG)
    source = writer.names.source
    assert (said.code, said.out) == (1, "")
    assert f"not found in 3 changelogs: {source}-0, {source}-1, {source}-2" in said.err


def test_two_partitions_that_know_one_effect_are_both_shown(writer: Writer, tmp_path: Path) -> None:
    """S13: neither ledger hides the other, in partition order."""
    writer.write(2, [of_effect("twice", effect(offset=2))])
    writer.write(0, [of_effect("twice", effect(offset=1))])
    said = asked(writer, tmp_path, "ledger", "lookup", "twice")
    assert [(item["partition"], item["offset"]) for item in said.items] == [(0, 1), (2, 2)]


def test_the_topic_is_believed_before_a_store(writer: Writer, tmp_path: Path) -> None:
    """A store that stayed behind when its partition moved says what it last knew only when it is named."""
    with Asked(settings_of(writer)) as cluster:
        directory = StateDir.claim(tmp_path / "state", writer.names.group, cluster.cluster_id())
    store = directory.open_store(writer.names.source, 0)
    store.apply([PutEffect("moved", effect(EffectState.RETRY_WAIT))], meta(1), [])
    store.close()
    writer.write(0, [of_effect("moved", effect(EffectState.SUCCEEDED))])

    def state(*words: str) -> list[str]:
        return [item["state"] for item in asked(writer, tmp_path, "ledger", "lookup", "moved", *words).items]

    assert state(*CHANGELOG) == ["succeeded"]
    assert state("--from-topic") == ["succeeded"]
    assert state(*CHANGELOG, "--state-dir", "state") == ["retry_wait"]
    assert state() == ["retry_wait"], "nothing said that this group keeps its ledgers elsewhere"


def test_stats_are_the_last_committed_meta_of_each_partition(writer: Writer, tmp_path: Path) -> None:
    """Progress without reading the whole: behind a long aborted tail as well, and null where nothing was."""
    writer.write(0, [of_effect("a", effect()), of_meta(meta(7, frontier=70))])
    tail = [of_effect(f"e{number}", effect()) for number in range(inspect_changelog.TAIL + 200)]
    writer.write(0, [*tail, of_meta(meta(8, frontier=80))], commit=False)
    writer.write(1, [of_meta(meta(3, frontier=30))])
    said = asked(writer, tmp_path, "ledger", "stats")
    assert said.code == 0, said
    told = [(item["partition"], item["cycle"], item["frontier"], item["writer"]) for item in said.items]
    assert told == [(0, 7, 70, "writer-1"), (1, 3, 30, "writer-1"), (2, 0, None, None)]
    first, _, last = said.items
    assert (first["open_cases"], first["parked_bytes"], first["written_ms"]) == (1, 99, 4000)
    assert (first["entries"], first["disk_bytes"], last["written_ms"]) == (None, None, None)
    narrowed = asked(writer, tmp_path, "ledger", "stats", "--partition", "1")
    assert [item["partition"] for item in narrowed.items] == [1]


def test_an_entry_that_cannot_be_read_hides_no_other(writer: Writer, tmp_path: Path) -> None:
    """An entry of a later release: its partition is named with exit 5, the others are shown."""
    writer.write(0, [of_meta(meta(1))])
    writer.write(1, [(codec.META_KEY, b"\x63" + codec.encode(meta(2))[1:])])
    said = asked(writer, tmp_path, "ledger", "stats")
    assert said.code == 5
    assert [item["partition"] for item in said.items] == [0, 2]
    assert "value version 99" in said.err
    assert f"not the whole answer: {writer.names.source}-1" in said.err


def test_a_group_without_a_ledger_topic_is_told_where_to_look(
    cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """With `local` the ledgers are on the machines of its workers: exit 4 says so."""
    cluster.create_topic(names.source, 1)
    words = ("ledger", "stats", "-b", cluster.bootstrap, "-g", names.group, "--source", names.source)
    said = run(tmp_path, *words)
    assert (said.code, said.out) == (4, "")
    assert f"source {names.source} of group {names.group} has no ledger topic" in said.err
    assert "--state-dir" in said.err


@pytest.mark.parametrize(
    ("words", "because"),
    [
        (("--partition", "3"), "there is no partition 3"),
        (("--from-topic", "--state-dir", "state"), "two places"),
    ],
)
def test_a_place_that_cannot_be_meant_is_a_usage_error(
    writer: Writer, tmp_path: Path, words: Sequence[str], because: str
) -> None:
    """Nothing is looked up in a place that is not there, or in two that may disagree."""
    said = asked(writer, tmp_path, "ledger", "lookup", "a", *words)
    assert (said.code, said.out) == (2, "")
    assert because in said.err


def test_a_long_reading_tells_how_far_it_is(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Share and entries only grow, up to the whole; the last value wins however long the changelog is."""
    monkeypatch.setattr(inspect_changelog, "_PROGRESS_S", 0.0)
    for round_ in range(2):
        for partition in (0, 1):
            changes = [of_effect(f"e{n}", effect(offset=n + round_)) for n in range(5000)]
            writer.write(partition, changes)
    told: list[Progress] = []
    settings = settings_of(writer)
    with Asked(settings) as cluster:
        found = inspect_changelog.changelogs(settings, cluster, [writer.names.source])
    values = inspect_changelog.effect_values(settings, found, "e77", timeout_s=30, told=told.append)
    assert {place[1]: codec.decode_effect(value).offset for place, value in values.items()} == {0: 78, 1: 78}
    assert [each.entries for each in told] == [4096, 8192, 12288, 16384]
    shares = [each.share for each in told]
    assert shares == sorted(shares)
    assert 0.1 < shares[0] < shares[-1] < 1


APP = """
from laneway import Delivery, Pipeline

pipeline = Pipeline()

@pipeline.handler
def handle(delivery: Delivery[object]) -> str:
    return f"done/{delivery.effect_key}"
"""


def test_a_live_worker_is_seen_from_another_machine(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """What a worker has settled is told on a machine that has nothing but -b and -g, while it works."""
    cluster.create_topic(names.source, 2)
    told = settings_of_worker(
        cluster.bootstrap,
        names,
        tmp_path / "state",
        ledger={"replication": "changelog"},
        envelope={"message_id": "json:/messageId", "effect_key": "json:/effectKey"},
    )
    create_companions(told, tmp_path)
    (tmp_path / "app.py").write_text(APP)
    bodies = [{"messageId": "m", "effectKey": f"e{n}", "version": 1, "payload": {}} for n in range(6)]
    cluster.produce(
        names.source, [Outgoing(json.dumps(body).encode(), partition=n % 2) for n, body in enumerate(bodies)]
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    who = ("-b", cluster.bootstrap, "-g", names.group, "-o", "json")
    with WorkerProcess(tmp_path / "app.py:pipeline", told, directory=tmp_path / "w") as worker:
        worker.start()
        eventually(
            lambda: cluster.committed(names.group, names.source) == {0: 3, 1: 3},
            30,
            "six effects",
            poll_s=0.2,
        )
        (item,) = run(elsewhere, "ledger", "lookup", "e3", *who).items
        assert (item["partition"], item["offset"], item["state"]) == (1, 1, "succeeded")
        assert item["result_key"] == "done/e3"
        stats = run(elsewhere, "ledger", "stats", *who).items
        assert [(row["partition"], row["frontier"], row["open_cases"]) for row in stats] == [
            (0, 3, 0),
            (1, 3, 0),
        ]
        rows = run(elsewhere, "offsets", "show", *who).items
        assert [(row["committed"], row["lag"], row["running"]) for row in rows] == [(3, 0, 0), (3, 0, 0)]


def test_lists_show_what_was_committed_only(writer: Writer, tmp_path: Path) -> None:
    """Retries, cases and offsets of transactions: each once if committed, never if aborted.

    Case 41: a partition without a commit shows null, and its lag counts from the log's start.
    """
    companion = f"{writer.names.source}.{writer.names.group}"
    writer.forward(f"{companion}.retry", [retry(writer.names, 1)], commit=False)
    writer.forward(f"{companion}.retry", [retry(writer.names, 2)])
    writer.forward(f"{companion}.review", [opened(writer.names, "case-1")])
    writer.forward(f"{companion}.review", [opened(writer.names, "case-2")], commit=False)
    writer.commit_offset(1, CommitNote(parked=4))
    writer.forward(writer.names.source, [Outgoing(b"x", partition=1)])
    assert [item["effect_key"] for item in asked(writer, tmp_path, "retry", "list").items] == ["effect-2"]
    assert [item["case"] for item in asked(writer, tmp_path, "review", "list").items] == ["case-1"]
    assert asked(writer, tmp_path, "review", "show", "case-1").code == 0
    assert asked(writer, tmp_path, "review", "show", "case-2").code == 4
    rows = asked(writer, tmp_path, "offsets", "show").items
    told = [(row["partition"], row["committed"], row["parked"], row["lag"] > 0) for row in rows]
    assert told == [(0, 1, 4, False), (1, None, None, True), (2, None, None, False)]
