"""The steps of `changelog`: one transaction or nothing, whatever goes wrong between them."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from laneway.consumer.partition import State
from laneway.consumer.settling.changelog_truth import FENCED_MS, MOST_FENCED
from laneway.consumer.settling.transactions import Answer, Fate
from laneway.errors import KafkaClientError, LedgerError, RefusedError
from laneway.lanes.record import Channel
from laneway.lanes.verdict import Outcome, Reject
from laneway.store import codec
from tests.consumer.changelog_worker import RETENTION_MS, Worker
from tests.consumer.fake_transactions import (
    FENCED,
    STALE,
    TIMED_OUT,
    failed,
)

TOO_LARGE = failed(KafkaError.MSG_SIZE_TOO_LARGE)
MISSING = failed(KafkaError.UNKNOWN_TOPIC_OR_PART)
REJECTED = Outcome(Reject("bad"), "permanent-failure")


def test_a_cycle_is_one_transaction_and_the_ledger_follows() -> None:
    """Forwards, entries, meta and offsets are committed together; then saved, applied, acked, in that order.

    Shows S2 and S4: nobody is told before it happened.
    """
    worker = Worker(0)
    worker.work(0, ("a", 1), ("a", 2))
    worker.work(0, ("b", 1), outcome=REJECTED, first=2)
    worker.settle()
    assert worker.kafka.calls == [
        *("renew", "begin", "flush", "metadata", "send_offsets", "commit"),
    ]
    assert worker.steps == ["cut", "begun", "sent", "offsets", "committed", "told", "applied", "acked"]
    assert worker.changelog(0)[-1][0] == codec.META_KEY
    assert [key for key, _ in worker.changelog(0)].count(codec.META_KEY) == 1
    assert len(worker.dead_letters()) == 1
    assert worker.journal.lines == [(event, 0, at) for event in ("saved", "acked") for at in range(3)]
    found = worker.ledger(0).effects(["a1", "a2", "b1"])
    assert [effect.state.name for effect in found if effect] == ["SUCCEEDED", "SUCCEEDED", "QUARANTINED"]


def test_every_transaction_has_the_offsets_of_all_three_channels() -> None:
    """Also one that settles nothing, and one that only tells the group a new note: fencing hangs on it."""
    worker = Worker(0, 1)
    worker.work(0, ("a", 1))
    worker.settle()
    board = worker.partitions[1].board
    assert board is not None
    board.reached(Channel.RETRY, 4)
    worker.settle()
    worker.now_ms += 5_000
    worker.partitions[0].paused = {Channel.SOURCE: "for a reason"}
    worker.settle()
    worker.now_ms += 5_000
    assert len(worker.kafka.transactions) >= 3
    for offsets, records in worker.kafka.transactions:
        numbers = {number for _, number in offsets | records}
        assert offsets == {(t, number) for t in ("invoices", "retry", "commands") for number in numbers}
    assert worker.kafka.offsets["retry", 1][0] == 4
    assert "for a reason" in worker.kafka.offsets["invoices", 0][1]


def test_notes_alone_go_at_most_once_a_second() -> None:
    """The same offsets are committed again for a note that changed, and not more often than that."""
    worker = Worker(0)
    worker.work(0, ("a", 1))
    worker.settle()
    before = len(worker.kafka.transactions)
    for turn in range(200):  # of 20 ms
        worker.partitions[0].paused = {Channel.SOURCE: f"reason {turn}"}
        worker.advance()
    assert 2 <= len(worker.kafka.transactions) - before <= 4


def test_a_worker_without_work_opens_no_transaction() -> None:
    """The transactional id is taken at once; a transaction is begun only for a cycle."""
    worker = Worker()
    for _ in range(10):
        worker.advance()
    assert worker.kafka.calls == ["renew"]


@pytest.mark.parametrize("call", ["flush", "send_offsets"])
@pytest.mark.parametrize(
    ("answer", "undone_by"),
    [
        (Answer(Fate.ABORT, STALE), "abort"),
        (Answer(Fate.RENEW, TIMED_OUT), "renew"),
        (Answer(Fate.RENEW, FENCED), "renew"),
    ],
)
def test_an_aborted_cycle_goes_again_whole_and_in_order(call: str, answer: Answer, undone_by: str) -> None:
    """It is undone by what the error asks for, and sent again as it was; what came meanwhile waits behind.

    No offset moves before that, and a producer that timed out is replaced. Shows cases 20 and 37.
    """
    worker = Worker(0)
    worker.kafka.wrong[call].append(answer)
    worker.work(0, ("a", 1), ("a", 2))

    def more(name: str) -> None:
        if name == "flush" and not worker.kafka.logs:
            worker.kafka.meanwhile = lambda _: None
            worker.work(0, ("a", 3), first=2)

    worker.kafka.meanwhile = more
    worker.settle()
    if call == "flush":
        undone_by = "renew"  # records may still be on their way
    assert undone_by in worker.kafka.calls[1:]
    assert worker.lasts(0, "a") == [2, 3]
    assert len(worker.kafka.transactions) == 2
    assert [line for line in worker.journal.lines if line[0] == "saved"] == [
        ("saved", 0, n) for n in range(3)
    ]


@pytest.mark.parametrize("is_lost", [True, False])
def test_epochs_are_checked_behind_the_membership(is_lost: bool) -> None:
    """A partition that left while the records were on their way takes no part; the others go again at once.

    Shows S22: only the owner settles.
    """
    worker = Worker(0, 1)
    worker.work(0, ("a", 1))
    worker.work(1, ("b", 1))

    def leave(name: str) -> None:
        if name == "flush" and is_lost:
            worker.partitions[0].lost = True
        elif name == "flush":
            worker.partitions[0].state = State.CLOSED

    worker.kafka.meanwhile = leave
    worker.settle()
    calls = worker.kafka.calls
    assert calls.index("metadata") < calls.index("abort")
    assert [records for _, records in worker.kafka.transactions] == [{("ledger", 1)}]
    assert worker.changelog(0) == []
    assert worker.lasts(1, "b") == [1]


def test_what_was_lost_is_never_committed() -> None:
    """A partition that the group gave away without asking is in no transaction, whatever it has settled."""
    worker = Worker(0, 1)
    worker.work(0, ("a", 1))
    worker.work(1, ("b", 1))
    worker.partitions[0].lost = True
    worker.settle()
    assert ("invoices", 0) not in worker.kafka.offsets
    assert worker.changelog(0) == []
    assert worker.lasts(1, "b") == [1]


def test_no_offsets_are_sent_by_somebody_who_is_no_member() -> None:
    """Kafka would take them, unfenced: the transaction is aborted until the group knows this worker again."""
    worker = Worker(0)
    worker.kafka.metadata = None
    worker.work(0, ("a", 1))
    for _ in range(100):
        worker.advance()
    assert "send_offsets" not in worker.kafka.calls
    assert worker.kafka.calls.count("abort") < 20, "it spins"
    worker.kafka.metadata = "generation 2"
    worker.settle()
    assert worker.lasts(0, "a") == [1]


@pytest.mark.parametrize("how", ["landed", "never", "late"])
def test_an_unknown_end_is_read_back(how: str) -> None:
    """Whether it happened or not, the cycle is there once, and nothing of it is torn.

    The producer is replaced before anything else: an end that comes late lands nowhere. Shows S7 and case 36.
    """
    worker = Worker(0)
    worker.kafka.wrong["commit"].append(how)
    worker.work(0, ("a", 1))
    worker.work(0, ("b", 1), outcome=REJECTED, first=1)
    worker.settle()
    worker.work(0, ("a", 2), first=2)
    worker.settle()
    calls = worker.kafka.calls
    at = calls.index("commit")
    assert calls[at + 1 : at + 3] == ["renew", "read_back"]
    assert worker.lasts(0, "a") == [1, 2]
    assert len(worker.dead_letters()) == 1
    assert [line for line in worker.journal.lines if line[0] == "acked"] == [
        ("acked", 0, n) for n in range(3)
    ]


def test_the_first_offsets_stand_beside_a_meta_entry() -> None:
    """A group with offsets and an empty changelog has lost its ledger: nothing else may ever look like it."""
    worker = Worker(0)
    worker.advance()
    worker.settle()
    assert worker.kafka.transactions == [
        ({(t, 0) for t in ("invoices", "retry", "commands")}, {("ledger", 0)})
    ]
    assert [key for key, _ in worker.changelog(0)] == [codec.META_KEY]
    mark = worker.ledger(0).changelog_mark()
    assert mark is not None
    assert mark.next_offset == 1


def test_a_meta_entry_without_a_cycle_tells_what_is_committed() -> None:
    """What was settled while it was on its way is not in it."""
    worker = Worker(0)
    worker.work(0, ("a", 1))
    worker.settle()
    worker.now_ms += 5_000
    worker.partitions[0].paused = {Channel.SOURCE: "for a reason"}

    def more(name: str) -> None:
        if name == "flush":
            worker.kafka.meanwhile = lambda _: None
            worker.work(0, ("a", 2), first=1)

    worker.kafka.meanwhile = more
    worker.settle()
    metas = [
        codec.decode_meta(value) for key, value in worker.changelog(0) if key == codec.META_KEY and value
    ]
    assert [meta.marks[Channel.SOURCE].frontier for meta in metas][-3:] == [1, 1, 2]


def test_a_partition_that_left_in_doubt_is_no_witness() -> None:
    """What is asked is the changelog of a partition that is still ours; without one nothing is asked."""
    worker = Worker(0, 1)
    worker.kafka.wrong["commit"].append("never")
    worker.work(0, ("a", 1))
    worker.work(1, ("b", 1))
    asked: list[tuple[str, int, int]] = []
    real = worker.kafka.read_back

    def read_back(topic: str, partition: int, offset: int) -> None:
        asked.append((topic, partition, offset))
        real(topic, partition, offset)

    def leave(name: str) -> None:
        if name == "renew" and "commit" in worker.kafka.calls:
            worker.partitions[0].state = State.CLOSED

    worker.kafka.read_back = read_back  # type: ignore[method-assign]
    worker.kafka.meanwhile = leave
    worker.settle()
    assert [(topic, number) for topic, number, _ in asked] == [("ledger", 1)]
    assert worker.changelog(0) == []
    assert worker.lasts(1, "b") == [1]


def test_an_answer_that_nobody_waits_for_any_more_is_not_taken_for_another() -> None:
    """A partition leaves while it is asked what became of its transaction: the next cycle hears its own.

    Taken for the end of its flush, the old answer let a cycle commit before it knew where its entries stand.
    """
    worker = Worker(0, 1)
    worker.advance()
    worker.settle()
    worker.kafka.wrong["commit"].append("landed")
    worker.work(0, ("a", 1))

    def leave(name: str) -> None:
        if name == "read_back":
            worker.partitions[0].state = State.CLOSED
            worker.work(1, ("b", 1), outcome=REJECTED)

    worker.kafka.meanwhile = leave
    worker.settle()
    at = worker.kafka.calls.index("read_back")
    assert worker.kafka.calls[at + 1 :] == ["begin", "flush", "metadata", "send_offsets", "commit"]
    assert worker.ledger(1).effects(["b1"])[0] is not None
    assert len(worker.dead_letters(1)) == 1


def test_only_a_reader_that_saw_it_says_that_it_did_not_happen() -> None:
    """An answer that tells nothing leaves the transaction in doubt: it is asked again, and not done again."""
    worker = Worker(0)
    worker.advance()
    worker.settle()
    worker.kafka.wrong["commit"].append("landed")
    worker.kafka.wrong["read_back"].append(Answer(Fate.RENEW))
    worker.work(0, ("a", 1))
    worker.settle()
    at = worker.kafka.calls.index("read_back")
    assert worker.kafka.calls[at - 2 :] == ["commit", "renew", "read_back", "renew", "read_back"]
    assert worker.lasts(0, "a") == [1]


def test_a_dead_letter_that_is_too_large_goes_as_a_stub() -> None:
    """Refused among others it goes alone, refused alone without its value; its lane goes on. Case 22."""
    worker = Worker(0)
    worker.kafka.refuses = lambda topic, _, value: TOO_LARGE if topic == "dlq" and value else None
    worker.work(0, ("a", 1), outcome=REJECTED)
    worker.work(0, ("b", 1), first=1)
    worker.settle()
    assert worker.dead_letters() == [None]
    assert worker.kafka.calls.count("abort") == 2
    assert worker.lasts(0, "b") == [1]
    assert worker.kafka.offsets["invoices", 0][0] == 2


def test_a_forward_that_nobody_takes_holds_its_lane_and_no_other() -> None:
    """The cycle goes again without it and what follows it; it comes back by itself, once. Shows case 21."""
    worker = Worker(0)
    worker.kafka.refuses = lambda topic, *_: MISSING if topic == "dlq" else None
    worker.work(0, ("a", 1), outcome=REJECTED)
    worker.work(0, ("b", 1), ("a", 2), first=1)
    for _ in range(50):
        worker.advance()
    assert worker.dead_letters() == []
    assert worker.lasts(0, "b") == [1]
    assert worker.lasts(0, "a") == []
    offset, note = worker.kafka.offsets["invoices", 0]
    assert offset == 0
    assert "1 settlements held back: dlq takes nothing" in note
    assert ("saved", 0, 0) not in worker.journal.lines
    worker.kafka.refuses = lambda *_: None
    worker.settle()
    assert len(worker.dead_letters()) == 1
    worker.work(0)  # what waited for that may start now
    worker.settle()
    assert worker.kafka.offsets["invoices", 0][0] == 3
    assert worker.lasts(0, "a")[-1] == 2


@pytest.mark.parametrize("code", [KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE])
def test_an_outage_holds_nobody_back(code: int) -> None:
    """When the changelog is not written either, the whole cycle waits and goes as it was.

    Its entries time out like the forwards, or the client gives them up with the first that does.
    """
    worker = Worker(0)
    late, entry = failed(KafkaError._MSG_TIMED_OUT), failed(code)
    worker.kafka.refuses = lambda topic, *_: entry if topic == "ledger" else late
    worker.work(0, ("a", 1), outcome=REJECTED)
    for _ in range(100):
        worker.advance()
    board = worker.partitions[0].board
    assert board is not None
    assert board.held_back == 0
    worker.kafka.refuses = lambda *_: None
    worker.settle()
    assert len(worker.kafka.transactions) == 1
    assert len(worker.dead_letters()) == 1


def test_a_changelog_that_refuses_ends_the_worker() -> None:
    """No later try mends an entry that is too large for the ledger topic: the worker says so and ends."""
    worker = Worker(0)
    worker.kafka.refuses = lambda topic, *_: TOO_LARGE if topic == "ledger" else None
    worker.work(0, ("a", 1))
    with pytest.raises(KafkaClientError, match="topics check"):
        worker.settle()
    assert worker.journal.lines == []


def test_a_full_queue_is_emptied_and_filled_again() -> None:
    """A client that takes no more for now delays the cycle and loses nothing of it."""
    worker = Worker(0)
    worker.kafka.wrong["produce"] += [Answer(Fate.RETRY)] * 3
    worker.work(0, *(("a", number) for number in range(1, 6)))
    worker.settle()
    assert len(worker.kafka.transactions) == 1
    assert worker.lasts(0, "a") == [5]


def test_a_ledger_that_fails_stops_its_partition_only() -> None:
    """It is a follower: what it did not take is committed, and the next opening restores it."""
    worker = Worker(0, 1)
    worker.ledger(0).fails = True
    worker.work(0, ("a", 1))
    worker.work(1, ("b", 1))
    worker.settle()
    assert isinstance(worker.partitions[0].failure, LedgerError)
    assert worker.lasts(0, "a") == [1]
    assert ("acked", 1, 0) in worker.journal.lines
    assert ("acked", 0, 0) not in worker.journal.lines


def test_effects_past_retention_leave_with_a_tombstone() -> None:
    """It travels in the next cycle, and never for an effect that this very cycle writes."""
    worker = Worker(0)
    worker.work(0, ("a", 1))
    worker.settle()
    worker.now_ms += RETENTION_MS + 1
    worker.work(0, ("b", 1), first=1)
    worker.settle()
    assert (codec.effect_key("a1"), None) in worker.changelog(0)
    assert worker.ledger(0).effects(["a1", "b1"])[0] is None
    assert worker.ledger(0).effects(["b1"])[0] is not None
    tombstones = [key for key, value in worker.changelog(0) if value is None and key.startswith(b"e")]
    assert tombstones == [codec.effect_key("a1")]


def test_expiry_keeps_up_with_any_rate() -> None:
    """Each cycle may forget more than it brings, so what is past its time cannot pile up."""
    worker = Worker(0)
    worker.work(0, *((f"lane {number}", 1) for number in range(3000)))
    worker.settle()
    worker.now_ms += RETENTION_MS + 1
    for number in range(3):
        worker.work(0, ("a", number + 1), first=3000 + number)
        worker.settle()
    tombstones = [key for key, value in worker.changelog(0) if value is None and key.startswith(b"e")]
    assert len(tombstones) == 3000


def test_a_producer_with_broken_connections_is_replaced() -> None:
    """Its client may have sent an end twice, and the second could come to the next transaction. Case 36."""
    worker = Worker(0)
    worker.work(0, ("a", 1))
    worker.settle()
    worker.kafka.is_suspect = True
    worker.work(0, ("a", 2), first=1)
    worker.settle()
    assert worker.kafka.calls.count("renew") == 2
    second = len(worker.kafka.calls) - worker.kafka.calls[::-1].index("begin") - 1
    assert worker.kafka.calls[second - 1] == "renew"


def test_a_connection_that_broke_over_an_abort_costs_the_producer_too() -> None:
    """The abort may have been sent twice, and the second would end the next transaction. Case 36."""
    worker = Worker(0)
    worker.kafka.wrong["send_offsets"].append(Answer(Fate.ABORT, STALE))

    def breaks(name: str) -> None:
        worker.kafka.is_suspect = worker.kafka.is_suspect or name == "abort"

    worker.kafka.meanwhile = breaks
    worker.work(0, ("a", 1))
    worker.settle()
    calls = worker.kafka.calls
    assert calls[calls.index("abort") + 1] == "renew"


def test_two_workers_of_one_name_end() -> None:
    """They would fence each other for ever; one that was fenced once goes on."""
    worker = Worker(0)
    worker.kafka.wrong["send_offsets"] += [Answer(Fate.RENEW, FENCED)] * MOST_FENCED
    worker.work(0, ("a", 1))
    with pytest.raises(KafkaClientError, match="instance_id"):
        worker.settle()
    assert worker.kafka.calls.count("renew") == MOST_FENCED


def test_two_workers_of_one_name_end_also_when_each_of_them_comes_through_now_and_then() -> None:
    """A success between two fences says nothing; ten of them in a minute do. As few as time brings do not."""
    worker = Worker(0)
    for number in range(MOST_FENCED - 1):
        worker.kafka.wrong["send_offsets"] += [Answer(Fate.RENEW, FENCED)]
        worker.work(0, ("a", number + 1), first=number)
        worker.settle()
    worker.now_ms += FENCED_MS
    worker.kafka.wrong["send_offsets"] += [Answer(Fate.RENEW, FENCED)]
    worker.work(0, ("a", MOST_FENCED), first=MOST_FENCED - 1)
    worker.settle()
    worker.kafka.wrong["send_offsets"] += [Answer(Fate.RENEW, FENCED)] * MOST_FENCED
    worker.work(0, ("a", MOST_FENCED + 1), first=MOST_FENCED)
    with pytest.raises(KafkaClientError, match="instance_id"):
        worker.settle()


def test_a_changelog_that_was_made_anew_gets_no_commit() -> None:
    """One whose log begins again is not the one that was restored: the worker ends, nothing is committed.

    With a commit in it the next owner would take it for the whole of what is known (case 34).
    """
    worker = Worker(0)
    worker.work(0, ("a", 1))
    worker.settle()
    commits = worker.kafka.calls.count("commit")
    worker.kafka.make_anew("ledger", 0)
    worker.work(0, ("a", 2), first=1)
    with pytest.raises(RefusedError, match="was made anew"):
        worker.settle()
    assert worker.kafka.calls.count("commit") == commits
    assert [effect is None for effect in worker.ledger(0).effects(["a1", "a2"])] == [False, True]
