"""A transactional producer with behaviour, in place of `transactions.Transactions`.

What it commits is there whole or not at all, and what it is told to get wrong it gets wrong as Kafka does. It
fails a test by itself when it is used in a way that could tear something: anything but a new producer after
an end that nobody answered, a record outside of a transaction, two calls at once.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError

from laneway.consumer.settling.transactions import Answer, Fate, Offsets, Report
from laneway.store.port import Change

Place = tuple[str, int]


class Stored(NamedTuple):
    """A record as a log keeps it."""

    offset: int
    key: bytes | None
    value: bytes | None


class _Message:
    """What a report comes with."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        """Where it stands."""
        return self._offset


def failed(code: int, *, retriable: bool = False, abort: bool = False, fatal: bool = False) -> KafkaError:
    """An error of the client."""
    return KafkaError(code, "told to", fatal, retriable, abort)


TIMED_OUT = failed(KafkaError._TIMED_OUT, retriable=True)
STALE = failed(KafkaError.STALE_MEMBER_EPOCH, abort=True)
FENCED = failed(KafkaError._FENCED, fatal=True)


class FakeTransactions:
    """Attributes:
    calls: every call in order.
    logs: committed records by place.
    offsets: what the group has: by place, offset and note.
    transactions: for each commit that happened, the places of its offsets and of its records.
    refuses: the error that a record of this topic, key and value ends with; None when it is taken.
    wrong: by call, what is to go wrong the next times: an answer, or for `commit` also "landed" (it
        happened, nobody heard), "never" (it did not), "late" (it arrives when the next one is open).
    meanwhile: called between the start of a call and its answer.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.logs: dict[Place, list[Stored]] = defaultdict(list)
        self.offsets: dict[Place, tuple[int, str]] = {}
        self.transactions: list[tuple[set[Place], set[Place]]] = []
        self.refuses: Callable[[str, bytes | None, bytes | None], KafkaError | None] = lambda *_: None
        self.wrong: dict[str, deque[Answer | str]] = defaultdict(deque)
        self.meanwhile: Callable[[str], None] = lambda _: None
        self.is_suspect = False
        self.metadata: object | None = "generation 1"
        self._ends: dict[Place, int] = defaultdict(int)
        self._open: list[tuple[Place, Stored]] | None = None
        self._joined: dict[Place, tuple[int, str]] = {}
        self._reports: list[tuple[Report | None, KafkaError | None, int]] = []
        self._late: tuple[list[tuple[Place, Stored]], dict[Place, tuple[int, str]]] | None = None
        self._has_producer = False
        self._is_flawed = False
        self._in_doubt = False
        self._answer: Answer | None = None
        self._told = False

    # -- what the strategy calls

    def begin(self) -> Answer:
        """Begin one."""
        self._called("begin")
        assert self._has_producer, "no producer has the transactional id"
        assert self._open is None, "two transactions at once"
        if self._late is not None:
            records, offsets = self._late
            self._late = None
            self._land(records, offsets)
        self._open, self._joined, self._is_flawed = [], {}, False
        return Answer(Fate.DONE)

    def produce(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        report: Report | None = None,
    ) -> Answer:
        """Take a record; reports come with `flush`."""
        assert self._open is not None, "a record outside of a transaction"
        if self.wrong["produce"]:
            answer = self.wrong["produce"].popleft()
            assert isinstance(answer, Answer)
            return answer
        place = (topic, max(partition, 0))
        error = self.refuses(topic, key, value)
        if error is not None:
            self._is_flawed = True
            self._reports.append((report, error, -1))
            return Answer(Fate.DONE)
        offset = self._ends[place]
        self._ends[place] += 1
        self._open.append((place, Stored(offset, key, value)))
        self._reports.append((report, None, offset))
        return Answer(Fate.DONE)

    def produce_entries(
        self, topic: str, partition: int, changes: Sequence[Change], first: int, end: int
    ) -> tuple[int, Answer]:
        """Take some entries."""
        for at in range(first, end):
            answer = self.produce(topic, partition, *changes[at])
            if answer.fate is not Fate.DONE:
                return at, answer
        return end, Answer(Fate.DONE)

    def flush(self) -> None:
        """Tell what became of each record."""
        self._begin_call("flush")
        reports, self._reports = self._reports, []
        for report, error, offset in reports:
            if report is not None:
                report(error, None if error is not None else _Message(offset))  # type: ignore[arg-type]

    def send_offsets(self, offsets: Offsets, metadata: object) -> None:
        """Let them join."""
        if self._begin_call("send_offsets"):
            if self._is_flawed:
                self._answer = Answer(Fate.ABORT, failed(KafkaError._INCONSISTENT, abort=True))
                return
            assert metadata == self.metadata, "a membership that is over"
            self._joined.update({(topic, number): (offset, note) for topic, number, offset, note in offsets})

    def commit(self) -> None:
        """Commit."""
        assert self._open is not None
        records, offsets = self._open, self._joined
        how = self.wrong["commit"].popleft() if self.wrong["commit"] else ""
        self._begin_call("commit")
        assert not self._is_flawed, "a transaction that lacks a record"
        self._open = None
        if isinstance(how, str) and how:
            self._in_doubt = True
            self._answer = Answer(Fate.RENEW, TIMED_OUT)
            if how == "landed":
                self._land(records, offsets)
            elif how == "late":
                self._late = (records, offsets)
            return
        self._land(records, offsets)

    def abort(self) -> None:
        """Abort."""
        if self._begin_call("abort"):
            self._open = None
            self._skip()

    def renew(self) -> None:
        """A new producer: nothing of the old one lands any more."""
        self._in_doubt = False
        if self._begin_call("renew"):
            self._late = None
            self._open = None
            self._skip()
            self._has_producer = True
            self.is_suspect = False

    def read_back(self, topic: str, partition: int, offset: int) -> None:
        """Whether a record is committed."""
        if self._begin_call("read_back"):
            found = any(stored.offset == offset for stored in self.logs[topic, partition])
            self._answer = Answer(Fate.DONE if found else Fate.ABORT)

    def answer(self) -> Answer | None:
        """The first time there is none yet."""
        assert self.calls, "nothing was asked"
        if self._told:
            self._told = False
            self.meanwhile(self.calls[-1])
            return None
        answer, self._answer = self._answer, None
        assert answer is not None
        return answer

    # -- behind it

    def make_anew(self, topic: str, partition: int) -> None:
        """Somebody deletes a log and makes it again, under the same name."""
        self.logs[topic, partition].clear()
        self._ends[topic, partition] = 0

    def _called(self, name: str) -> None:
        assert not self._in_doubt, f"{name} on a producer whose last end nobody knows"
        self.calls.append(name)

    def _begin_call(self, name: str) -> bool:
        """Note a call; whether it goes well."""
        assert self._answer is None, "two calls at once"
        self._called(name)
        self._told = True
        if name != "commit" and self.wrong[name]:
            answer = self.wrong[name].popleft()
            assert isinstance(answer, Answer)
            self._answer = answer
            return False
        self._answer = Answer(Fate.DONE)
        return True

    def _land(self, records: list[tuple[Place, Stored]], offsets: dict[Place, tuple[int, str]]) -> None:
        for place, stored in records:
            self.logs[place].append(stored)
        for place, (offset, _) in offsets.items():
            assert offset >= self.offsets.get(place, (0, ""))[0], f"{place} goes back to {offset}"
        self.offsets.update(offsets)
        self.transactions.append((set(offsets), {place for place, _ in records}))
        self._skip()

    def _skip(self) -> None:
        """The markers of an end take an offset in each log."""
        for place in self._ends:
            self._ends[place] += 1


class FakeMembership:
    """The worker's place in its group, as the fake cluster has it."""

    def __init__(self, transactions: FakeTransactions) -> None:
        self._transactions = transactions

    def metadata(self) -> object | None:
        """As it stands now."""
        self._transactions.calls.append("metadata")
        return self._transactions.metadata
