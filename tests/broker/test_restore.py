"""Restoring a ledger from its changelog: what a new owner knows, waits for, and refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from laneway.consumer.assignment.restore import AbandonedError, ChangelogOpener
from laneway.consumer.kafka.cluster import Cluster as KafkaCluster
from laneway.consumer.partition import State
from laneway.consumer.settings.model import LedgerSettings, Settings
from laneway.consumer.topics import TopicInfo
from laneway.errors import ChangelogFormatError, LanewayError, LedgerFormatError, RefusedError, StateDirError
from laneway.lanes.record import Channel
from laneway.lanes.view import PutEffect
from laneway.store import codec
from laneway.store.port import ChangelogMark
from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.restoring import OPENED_S, Scene, cycle, cycle_of, keys_of, now_ms
from tests.store.builders import effect
from tests.waiting import eventually

HOUR_MS = 3_600_000


@pytest.fixture
def scene(bare: Scene) -> Scene:
    """With its changelog topic as `topics create` makes it."""
    bare.create()
    return bare


@pytest.fixture
def deletable(bare: Scene) -> Scene:
    """With a changelog that somebody made deletable: Kafka deletes nothing of one that is only compacted."""
    bare.create("compact,delete")
    return bare


@pytest.fixture
def bare(kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path) -> Iterator[Scene]:
    """Without its topic."""
    settings = Settings(
        group=names.group,
        sources=(names.source,),
        bootstrap=kafka.bootstrap,
        ledger=LedgerSettings.model_validate({"replication": "changelog"}),
        kafka={"transaction.timeout.ms": 60_000},
    )
    with ExitStack() as stack:
        found = Scene(settings, cluster, tmp_path, stack)
        stack.callback(found.close)
        yield found


def test_an_empty_changelog_is_a_new_ledger(scene: Scene) -> None:
    """The first owner of a new group waits for nothing and knows nothing."""
    partition = scene.partition()
    ledger, opening = scene.open(partition)
    assert opening.meta is None
    assert partition.changelog_next == 0
    mark = ledger.changelog_mark()
    assert mark is not None
    assert mark.next_offset == 0


def test_a_new_owner_knows_what_was_committed(scene: Scene) -> None:
    """What one owner committed the next one knows, on a machine that never had the partition (case 30)."""
    producer = scene.producer()
    scene.write(producer, cycle(1, "a", "b"))
    scene.write(producer, [*cycle(2, "c"), (codec.effect_key("a"), None)])

    partition = scene.partition(committed=2)
    ledger, opening = scene.open(partition)

    assert keys_of(ledger, "a", "b", "c") == ["b", "c"]
    assert cycle_of(opening) == 2
    assert partition.changelog_next == scene.end(), "the marker at the end was passed as well"


def test_a_transaction_that_was_aborted_is_not_there(scene: Scene) -> None:
    """Aborted entries and markers at the end of the log are passed, never seen, and never waited for."""
    producer = scene.producer()
    scene.write(producer, cycle(1, "a"))
    for _ in range(3):
        scene.begin(producer, cycle(2, "aborted"))
        producer.abort_transaction(30)

    partition = scene.partition()
    ledger, opening = scene.open(partition)

    assert keys_of(ledger, "a", "aborted") == ["a"]
    assert cycle_of(opening) == 1
    assert partition.changelog_next == scene.end()


def test_a_changelog_of_aborted_entries_alone(scene: Scene) -> None:
    """A log that holds no committed record has an end all the same."""
    producer = scene.producer()
    scene.begin(producer, cycle(1, "aborted"))
    producer.abort_transaction(30)
    ledger, opening = scene.open()
    assert opening.meta is None
    assert keys_of(ledger, "aborted") == []


@pytest.mark.parametrize("committed", [True, False])
def test_an_open_transaction_is_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, committed: bool
) -> None:
    """What the owner before had begun decides itself first: no partition goes live short of it (case 31)."""
    monkeypatch.setattr("laneway.consumer.assignment.restore.WAITING_EVERY_S", 0.2)
    producer = scene.producer()
    scene.write(producer, cycle(1, "a"))
    scene.begin(producer, cycle(2, "open"))

    future = scene.begin_open()
    eventually(lambda: "still open" in caplog.text, OPENED_S, "the word that it waits")
    assert not future.done()
    if committed:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)
    ledger, opening = future.result(OPENED_S)

    scene.stack.callback(ledger.close)
    assert keys_of(ledger, "a", "open") == (["a", "open"] if committed else ["a"])
    assert cycle_of(opening) == (2 if committed else 1)


def test_a_compacted_changelog_is_read_to_its_end(bare: Scene) -> None:
    """Offsets that compaction took away are not waited for, and not taken for a loss."""
    bare.create(
        "compact", {"segment.ms": "50", "min.cleanable.dirty.ratio": "0.001", "max.compaction.lag.ms": "1"}
    )
    producer = bare.producer()
    bare.write(producer, cycle(1, "a"))

    def compacted() -> bool:
        # Only a segment that is closed is compacted, and only a later record closes it.
        bare.write(producer, cycle(2, "a", "b"))
        return len(bare.cluster.read_topic(bare.topic)) < bare.end() // 2

    eventually(compacted, 90, "compaction", poll_s=1)
    partition = bare.partition()
    ledger, opening = bare.open(partition)
    assert keys_of(ledger, "a", "b") == ["a", "b"]
    assert cycle_of(opening) == 2
    assert partition.changelog_next == bare.end()
    assert partition.restore is not None
    assert partition.restore.entries < bare.end() // 2


def test_a_restore_that_stands_still_gives_up(scene: Scene) -> None:
    """A transaction that hangs for ever does not hang the worker for ever, and says what to do."""
    producer = scene.producer()
    scene.begin(producer, cycle(1, "open"))
    with pytest.raises(LanewayError, match="has been open for") as raised:
        scene.open(no_progress_s=0.5)
    producer.abort_transaction(30)
    assert "kafka-transactions.sh" in raised.value.mend
    assert raised.value.where == f"{scene.topic}[0]@0"


def test_a_partition_that_leaves_is_restored_no_further(scene: Scene) -> None:
    """A restore whose partition has gone ends at once and lets go of the store."""
    producer = scene.producer()
    scene.begin(producer, cycle(1, "open"))
    partition = scene.partition()
    future = scene.begin_open(partition)
    eventually(lambda: partition.restore is not None, OPENED_S, "the restore to begin")
    partition.state = State.CLOSED
    with pytest.raises(AbandonedError):
        future.result(2)
    producer.abort_transaction(30)
    scene.state_dir().open_store(scene.source, 0).close()


def test_a_stored_ledger_goes_on_where_it_was(scene: Scene) -> None:
    """Only what came since is read, and the store stays where it is."""
    producer = scene.producer()
    scene.write(producer, cycle(1, "a"))
    first = scene.partition()
    scene.open(first)[0].close()
    scene.write(producer, cycle(2, "b"))

    second = scene.partition()
    ledger, _ = scene.open(second)

    assert keys_of(ledger, "a", "b") == ["a", "b"]
    assert second.restore is not None
    assert (second.restore.first, second.restore.entries) == (first.changelog_next, 2)
    assert not scene.aside()


def test_a_ledger_that_stayed_open_is_brought_up_to_date(scene: Scene) -> None:
    """Between revoke and assign of the same partition another owner may have worked: nothing is missed."""
    producer = scene.producer()
    scene.write(producer, cycle(1, "a"))
    kept, _ = scene.open()
    scene.write(producer, cycle(2, "b"))

    ledger, opening = scene.open(kept=kept)

    assert ledger is kept
    assert keys_of(ledger, "a", "b") == ["a", "b"]
    assert cycle_of(opening) == 2


def test_a_ledger_whose_files_were_removed_is_not_kept(scene: Scene) -> None:
    """An open store without a name on the disk would be gone with the process."""
    scene.write(scene.producer(), cycle(1, "a"))
    kept, _ = scene.open()
    scene.store.rename(scene.directory / "gone")

    ledger, _ = scene.open(kept=kept)

    assert ledger is not kept
    assert keys_of(ledger, "a") == ["a"]


Misfit = Callable[[Scene], ChangelogMark]


@pytest.mark.parametrize(
    ("misfit", "words"),
    [
        (lambda scene: ChangelogMark("another", 1, now_ms()), "follows another topic"),
        (lambda scene: ChangelogMark("", scene.end() + 1, now_ms()), "the changelog ends at"),
        (lambda scene: ChangelogMark("", 1, now_ms() - 13 * HOUR_MS), "hours ago"),
    ],
    ids=["of-another-topic", "beyond-the-end", "too-old"],
)
def test_a_store_that_does_not_fit_is_built_anew(
    scene: Scene, caplog: pytest.LogCaptureFixture, misfit: Misfit, words: str
) -> None:
    """A store of a recreated changelog, of one cut off, or one that may have missed tombstones (case 34)."""
    scene.write(scene.producer(), cycle(1, "a"))
    deleted = codec.effect_key("deleted since"), codec.encode(effect())
    scene.stored(misfit(scene), deleted)

    ledger, _ = scene.open()

    assert keys_of(ledger, "a", "deleted since") == ["a"]
    assert scene.aside() == ["0.aside-1"]
    told = [record.getMessage() for record in caplog.records if "moved aside" in record.getMessage()]
    assert len(told) == 1
    assert words in told[0]


def test_an_old_store_that_missed_nothing_stays(scene: Scene) -> None:
    """A partition in which nothing happened for long needs no rebuilding: there is nothing it can lack."""
    scene.write(scene.producer(), cycle(1, "a"))
    scene.stored(ChangelogMark("", scene.end(), now_ms() - 1000 * HOUR_MS), *cycle(1, "a"))
    ledger, _ = scene.open()
    assert keys_of(ledger, "a") == ["a"]
    assert not scene.aside()


def test_a_ledger_of_local_mode_is_moved_aside(scene: Scene) -> None:
    """A store that never followed a changelog says nothing about one."""
    scene.write(scene.producer(), cycle(1, "a"))
    ledger = scene.state_dir().open_store(scene.source, 0)
    ledger.apply([PutEffect("local", effect())], codec.decode_meta(cycle(1)[-1][1] or b""), ())
    ledger.close()
    opened, _ = scene.open()
    assert keys_of(opened, "a", "local") == ["a"]
    assert scene.aside() == ["0.aside-1"]


def flip(store: Path) -> None:
    """Change bytes of every log and table where effects lie, which an opening does not read."""
    for path in [*store.glob("*.log"), *store.glob("*.sst")]:
        data = bytearray(path.read_bytes())
        for at in range(len(data) // 8, len(data) // 4):
            data[at] ^= 0x5A
        path.write_bytes(data)


def lose(store: Path) -> None:
    """Remove the manifest."""
    for path in store.glob("MANIFEST-*"):
        path.unlink()


def fill(scene: Scene) -> list[str]:
    """Commit some cycles, and have them in a store."""
    producer = scene.producer()
    for number in range(1, 20):
        scene.write(producer, cycle(number, *(f"{number}-{each}" for each in range(20))))
    scene.open()[0].close()
    return [f"{number}-{each}" for number in range(1, 20) for each in range(20)]


def test_a_store_that_lost_a_file_is_built_anew(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A missing file on one machine costs a restore, and no effect (case 35)."""
    keys = fill(scene)
    lose(scene.store)
    ledger, opening = scene.open()
    assert keys_of(ledger, *keys) == keys
    assert cycle_of(opening) == 19
    assert scene.aside() == ["0.aside-1"]
    assert "it is damaged" in caplog.text


def test_a_store_with_flipped_bytes_is_built_anew(scene: Scene) -> None:
    """Damage that only a later read meets costs the worker's end and a restore, and no effect (case 35)."""
    keys = fill(scene)
    flip(scene.store)
    partition = scene.partition()
    ledger, _ = scene.open(partition)
    with pytest.raises(LedgerFormatError) as raised:
        ledger.effects(keys)
    ledger.close()
    opener = scene.opener()
    assert opener.is_store_of(partition, raised.value.where)
    opener.found_damaged(partition, raised.value)

    again, _ = scene.open()
    assert keys_of(again, *keys) == keys
    assert scene.aside() == ["0.aside-1"]


def test_a_store_of_a_newer_format_is_left_alone(scene: Scene) -> None:
    """A rollback beyond the formats that it reads is refused with exit code 4; nothing is moved."""
    scene.write(scene.producer(), cycle(1, "a"))
    ledger = scene.state_dir().open_store(scene.source, 0)
    marker = msgspec.json.decode(ledger._store.get(codec.MARKER_KEY) or b"")
    ledger._store.put(codec.MARKER_KEY, msgspec.json.encode({**marker, "format": codec.FORMAT + 1}))
    ledger.close()
    with pytest.raises(StateDirError) as raised:
        scene.open()
    assert raised.value.exit_code == 4
    assert not scene.aside()


def test_a_newer_value_in_the_changelog_is_left_alone(scene: Scene) -> None:
    """What a newer release has committed this one does not guess: exit code 4, with the place."""
    scene.write(scene.producer(), cycle(1, "a"))
    scene.open()[0].close()
    key, value = cycle(2, "b")[0]
    assert value is not None
    newer = bytes([codec.VALUE_VERSION + 1]) + value[1:]
    scene.write(scene.producer(), [(key, newer), *cycle(2)])
    with pytest.raises(ChangelogFormatError) as raised:
        scene.open()
    assert (raised.value.exit_code, raised.value.where) == (4, f"{scene.topic}[0]")
    assert not scene.aside()
    scene.state_dir().open_store(scene.source, 0).close()


def test_a_changelog_whose_beginning_was_deleted_is_refused(deletable: Scene) -> None:
    """Nobody knows what the deleted entries said; only an operator can go on without them (case 32)."""
    producer = deletable.producer()
    deletable.write(producer, cycle(1, "a"))
    deletable.open(machine="there")[0].close()
    cut = deletable.end()
    deletable.cluster.delete_records(deletable.topic, {0: cut})
    deletable.write(producer, cycle(2, "b"))

    with pytest.raises(RefusedError, match=f"the first {cut} offsets of the changelog were deleted"):
        deletable.open()
    known, _ = deletable.open(machine="there")
    assert keys_of(known, "a", "b") == ["a", "b"], "a store that goes as far as that needs no beginning"
    ledger, _ = deletable.open(accept_empty_ledger=True)
    assert keys_of(ledger, "a", "b") == ["b"]


def test_a_store_below_the_deleted_beginning_is_not_touched(deletable: Scene) -> None:
    """Refused means that nothing was changed: the store may be all that is left."""
    producer = deletable.producer()
    deletable.write(producer, cycle(1, "a"))
    deletable.open()[0].close()
    deletable.write(producer, cycle(2, "b"))
    deletable.write(producer, cycle(3, "c"))
    deletable.cluster.delete_records(deletable.topic, {0: deletable.end() - 1})
    with pytest.raises(RefusedError, match="were deleted"):
        deletable.open()
    assert not deletable.aside()
    ledger, _ = deletable.open(accept_empty_ledger=True)
    assert deletable.aside() == ["0.aside-1"]
    assert keys_of(ledger, "a") == []


@pytest.mark.parametrize("aborted", [True, False])
def test_offsets_of_a_worker_without_a_changelog_are_refused(scene: Scene, *, aborted: bool) -> None:
    """A worker commits offset and changelog together: one without the other is a loss that must be seen."""
    if aborted:
        producer = scene.producer()
        scene.begin(producer, cycle(1, "a"))
        producer.abort_transaction(30)
    with pytest.raises(RefusedError, match="has committed offset 7"):
        scene.open(scene.partition(committed=7))
    _, by_hand = scene.open(scene.partition(committed=7, by_worker=False))
    assert by_hand.meta is None


def test_a_changelog_that_a_worker_went_beyond_is_refused(scene: Scene) -> None:
    """Work that a worker settled elsewhere, as `local` does, is missing here: seen, and never passed over."""
    scene.write(scene.producer(), cycle(3, "a"))
    with pytest.raises(RefusedError, match=r"committed offset 7 .* offsets below 3 only"):
        scene.open(scene.partition(committed=7))
    by_hand, _ = scene.open(scene.partition(committed=7, by_worker=False), machine="there")
    assert keys_of(by_hand, "a") == ["a"]
    ledger, _ = scene.open(scene.partition(committed=7), accept_empty_ledger=True)
    assert keys_of(ledger, "a") == ["a"]


@pytest.mark.parametrize(("channel", "committed"), [(Channel.RETRY, 1), (Channel.SOURCE, None)])
def test_what_was_deleted_unread_is_refused(scene: Scene, channel: Channel, committed: int | None) -> None:
    """Lanes would wait for ever, or lose numbers in silence, wherever the ledger is (case 32)."""
    scene.write(scene.producer(), cycle(1, "a"))
    partition, by_hand = scene.partition(committed), scene.partition(3, by_worker=False)
    partition.starts[channel] = by_hand.starts[channel] = 3
    with pytest.raises(RefusedError, match=r"[23] \w+ are gone unread"):
        scene.open(partition)
    scene.open(by_hand, accept_empty_ledger=True)


def test_a_source_that_was_made_anew_is_refused_on_any_machine(scene: Scene) -> None:
    """What stands in the new topic is not taken for settled, also where no store tells which one it was."""

    def told(opener: ChangelogOpener, *ids: str) -> ChangelogOpener:
        opener._state_dir._topic_ids = {scene.source: (ids[0], ids[1])}
        return opener

    (key, value) = cycle(1, "a")[-1]
    meta = msgspec.structs.replace(codec.decode_meta(value or b""), topic_ids=("old", "retry"))
    scene.write(scene.producer(), [(key, codec.encode(meta))])
    for ids in (("new", "retry"), ("old", "another")):
        with pytest.raises(RefusedError, match="was deleted and made anew"):
            told(scene.opener("there"), *ids).open(scene.partition(), None)
    for ids in (("old", "retry"), ("", "")):
        told(scene.opener(), *ids).open(scene.partition(), None)[0].close()


def test_a_changelog_that_was_made_anew(scene: Scene) -> None:
    """The store of the old topic is not taken for that of the new one, and an operator has to agree."""
    scene.write(scene.producer(), cycle(1, "old"))
    scene.open()[0].close()
    scene.cluster.delete_topic(scene.topic)
    scene.create()
    with pytest.raises(RefusedError, match="it was made anew"):
        scene.open(scene.partition(committed=1))
    assert not scene.aside()
    ledger, opening = scene.open(scene.partition(committed=1), accept_empty_ledger=True)
    assert opening.meta is None
    assert keys_of(ledger, "old") == []
    assert scene.aside() == ["0.aside-1"]


def test_a_group_that_begins_knows_whether_it_has_a_ledger(scene: Scene) -> None:
    """A group that lost its offsets and not its changelog begins at the start of the log."""
    opener = scene.opener()
    assert not opener.has_ledger(scene.source, 0)
    scene.write(scene.producer(), cycle(1, "a"))
    assert opener.has_ledger(scene.source, 0)


def test_a_restore_that_takes_too_long_begins_anew(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Deletions that compaction may have taken meanwhile are not missed: it is read again, once."""
    scene.write(scene.producer(), cycle(1, "a"))
    looks: list[TopicInfo] = []

    def look(topic: str) -> TopicInfo:
        looks.append(_described(scene, topic))
        return looks[-1] if len(looks) > 1 else _forgetting(looks[-1])

    ledger, _ = scene.open(describe=look)

    assert keys_of(ledger, "a") == ["a"]
    assert len(looks) == 2
    assert "its last restore took" in caplog.text


def test_a_restore_that_is_always_too_slow_is_an_error(scene: Scene) -> None:
    """It says what to change, and leaves no ledger behind that would be taken for a whole one."""
    scene.write(scene.producer(), cycle(1, "a"))
    with pytest.raises(LanewayError, match=r"took .* s, and what was deleted") as caught:
        scene.open(describe=lambda topic: _forgetting(_described(scene, topic)))
    assert "raise delete.retention.ms" in str(caught.value)

    assert keys_of(scene.open()[0], "a") == ["a"]


def _described(scene: Scene, topic: str) -> TopicInfo:
    with KafkaCluster(scene.settings) as cluster:
        return cluster.topics([topic])[topic]


def _forgetting(topic: TopicInfo) -> TopicInfo:
    return dataclasses.replace(topic, configs={**topic.configs, "delete.retention.ms": "0"})
