"""A ledger as the fold of its changelog: the second half of the contract suite, against both ledgers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laneway.errors import ChangelogFormatError, LedgerError
from laneway.lanes.effect import EffectState
from laneway.lanes.lane import Lane
from laneway.lanes.record import Channel
from laneway.lanes.view import Entry, PutCase, PutEffect, PutLane, PutParked
from laneway.store import codec
from laneway.store.ledger import Ledger
from laneway.store.memory import MemoryLedger
from laneway.store.port import Change, ChangelogMark, LedgerStore
from tests.store.builders import IDENTITY, case, effect, forward, meta, parked, put_parked
from tests.store.subjects import ANY_ENTRY, MemorySubject, RocksSubject, Subject, contents

LANE = "kcustomer-1"
GOOD: Change = (codec.lane_key("good"), codec.encode(Lane(1)))


def mark(next_offset: int = 1) -> ChangelogMark:
    return ChangelogMark("topic-id", next_offset, 5000)


def commit(ledger: LedgerStore, *entries: Entry, cycle: int = 1, expired: Sequence[str] = ()) -> None:
    """What a committed transaction does to the ledger of its own process."""
    ledger.apply_changes(ledger.changes(entries, meta(cycle), expired), mark(cycle))


def test_a_store_that_leaves_its_changelog_keeps_what_it_holds(subject: Subject) -> None:
    """From then on it belongs to this machine: no mark is left that could be taken for a position."""
    commit(subject.ledger, PutEffect("e", effect()))
    assert subject.ledger.changelog_mark() == mark(1)
    subject.ledger.leave_changelog()
    assert subject.ledger.changelog_mark() is None
    assert subject.ledger.effects(["e"]) == [effect()]
    subject.ledger.sync()


def test_a_cycle_is_one_entry_for_each_key_and_the_meta_entry_last(subject: Subject) -> None:
    """A cycle travels as the ledger's own keys and values, each key once with its last state, meta last."""
    place = (LANE, 5, 5)
    entries: list[Entry] = [
        PutEffect("e", effect(EffectState.RUNNING)),
        *(PutLane(LANE, Lane(n)) for n in range(100)),
        PutEffect("e", effect()),
        *put_parked(place),
        PutCase("c", None),
        PutParked(place, None),
    ]
    changes = subject.ledger.changes(entries, meta(7))
    assert changes[-1] == (b"mm", codec.encode(meta(7)))
    assert dict(changes) == {
        b"ee": codec.encode(effect()),
        codec.lane_key(LANE): codec.encode(Lane(99)),
        codec.parked_key(*place): None,
        b"cc": None,
        b"mm": codec.encode(meta(7)),
    }
    assert len(changes) == 5
    assert subject.ledger.effects(["e"]) == [None], "encoding stores nothing"


def test_committed_entries_are_seen_at_once_and_after_reopening(subject: Subject) -> None:
    """Invariant 9: what was committed is what the ledger shows, and how far it goes, also after a restart."""
    entries: list[Entry] = [
        PutEffect("e", effect()),
        PutLane(LANE, Lane(3)),
        *put_parked((LANE, 5, 9)),
        PutCase("c", case("c")),
    ]
    assert subject.ledger.changelog_mark() is None
    commit(subject.ledger, *entries, cycle=7)
    for again in (False, True):
        ledger = subject.reopen() if again else subject.ledger
        assert ledger.effects(["e"]) == [effect()]
        assert ledger.lanes([LANE]) == [Lane(3)]
        assert [key for key, _ in ledger.parked(LANE, None, 9)] == [(LANE, 5, 9)]
        assert ledger.cases() == [case("c")]
        assert (ledger.opening().meta, list(ledger.opening().lanes_with_parked)) == (meta(7), [LANE])
        assert ledger.changelog_mark() == mark(7)


def test_tombstones_forget(subject: Subject) -> None:
    """A tombstone removes an effect, lane, follower or case; one for what is not there is no error."""
    keys = [codec.effect_key("e"), codec.lane_key(LANE), codec.parked_key(LANE, 5, 9), codec.case_key("c")]
    gone: list[Change] = [(key, None) for key in keys]
    subject.ledger.apply_changes(gone, mark())
    commit(
        subject.ledger,
        PutEffect("e", effect()),
        PutLane(LANE, Lane(3)),
        *put_parked((LANE, 5, 9)),
        PutCase("c", case("c")),
    )
    subject.ledger.apply_changes(gone, mark(2))
    assert subject.ledger.effects(["e"]) == [None]
    assert subject.ledger.lanes([LANE]) == [None]
    assert subject.ledger.parked(LANE, None, 9) == []
    assert subject.ledger.cases() == []
    assert list(subject.ledger.opening().lanes_with_parked) == []
    assert subject.ledger.opening().meta == meta(1)
    assert subject.ledger.changelog_mark() == mark(2)


def test_notes_of_the_process_stay_and_stay_at_home(subject: Subject) -> None:
    """S21: hand-over marks and the outbox are no part of the changelog, and entries leave them alone."""
    subject.ledger.apply([], meta(), [forward("a")])
    subject.ledger.note_handed_over({Channel.SOURCE: 10})
    commit(subject.ledger, PutEffect("e", effect()))
    subject.ledger.note_handed_over({Channel.SOURCE: 4, Channel.RETRY: 2})
    opening = subject.reopen().opening()
    assert opening.handed_over == {Channel.SOURCE: 10, Channel.RETRY: 2}
    assert [item.forward_id for _, item in opening.outbox] == ["a"]


def test_a_follower_that_comes_by_changelog_is_found(subject: Subject) -> None:
    """A follower taken from the changelog below all those released is the first again."""
    commit(subject.ledger, *put_parked(*((LANE, n, n) for n in range(10, 13))))
    for n in (10, 11):
        assert subject.ledger.parked(LANE, None, 1)[0][0] == (LANE, n, n)
        commit(subject.ledger, PutParked((LANE, n, n), None))
    subject.ledger.parked(LANE, None, 1)
    commit(subject.ledger, *put_parked((LANE, 3, 30)))
    assert [key[1] for key, _ in subject.ledger.parked(LANE, None, 9)] == [3, 12]


def test_old_effects_are_told_until_their_tombstones_come(subject: Subject) -> None:
    """Finished effects past the limit are told oldest first, again after an abort, and no more once gone."""
    for n in (3, 1, 2, 9):
        commit(subject.ledger, PutEffect(f"e{n}", effect(changed_ms=n)))
    commit(subject.ledger, PutEffect("open", effect(EffectState.IN_REVIEW, changed_ms=1)))
    assert subject.ledger.expired(9, 2) == ["e1", "e2"]
    assert subject.ledger.expired(9, 2) == ["e1", "e2"]
    assert subject.ledger.effects(["e1"]) == [effect(changed_ms=1)], "telling forgets nothing"
    commit(subject.ledger, expired=["e1", "e2"])
    assert subject.ledger.effects(["e1", "e2", "e3"]) == [None, None, effect(changed_ms=3)]
    assert subject.ledger.expired(9, 0) == []
    assert subject.ledger.expired(9, 2) == ["e3"]
    assert subject.reopen().expired(9, 2) == ["e3"]
    commit(subject.ledger, expired=["e3"])
    assert subject.ledger.expired(9, 2) == []
    # A clock that went back writes below what was looked through already.
    commit(subject.ledger, PutEffect("late", effect(changed_ms=1)))
    assert subject.ledger.expired(9, 2) == ["late"]
    assert subject.ledger.expired(10, 3) == ["late", "e9"]


def test_an_effect_that_changed_expires_by_its_last_change(subject: Subject) -> None:
    """An effect that moved on is not told by its older age, and what a cycle writes is not forgotten."""
    commit(subject.ledger, PutEffect("e", effect(EffectState.QUARANTINED, changed_ms=1)))
    commit(subject.ledger, PutEffect("f", effect(EffectState.QUARANTINED, changed_ms=2)))
    told = subject.ledger.expired(9, 9)
    assert told == ["e", "f"]
    commit(subject.ledger, PutEffect("e", effect(changed_ms=50)), expired=told)
    assert subject.ledger.effects(["e", "f"]) == [effect(changed_ms=50), None]
    assert subject.ledger.expired(50, 9) == []
    assert subject.ledger.expired(51, 9) == ["e"]


def test_a_key_written_again_within_a_batch_keeps_its_place_in_the_expiry(subject: Subject) -> None:
    """A batch of a restore that forgets an effect and writes it anew leaves one that can expire."""
    key, data = codec.effect_key("e"), codec.encode(effect(changed_ms=1))
    commit(subject.ledger, PutEffect("e", effect(changed_ms=1)))
    assert subject.ledger.expired(9, 9) == ["e"]
    subject.ledger.apply_changes([(key, None), (key, data)], mark())
    assert subject.ledger.effects(["e"]) == [effect(changed_ms=1)]
    assert subject.ledger.expired(9, 9) == ["e"]
    subject.ledger.apply_changes([(key, data), (key, None)], mark())
    assert subject.ledger.effects(["e"]) == [None]
    assert subject.ledger.expired(9, 9) == []


def test_a_closed_ledger_takes_no_entries(subject: Subject) -> None:
    """After close entries of the changelog are refused, and their mark is not told."""
    subject.ledger.close()
    for call in (
        lambda: subject.ledger.apply_changes([GOOD], mark()),
        subject.ledger.changelog_mark,
        lambda: subject.ledger.expired(1, 1),
    ):
        with pytest.raises(LedgerError, match="closed"):
            call()


REFUSED: dict[str, Change] = {
    "no key": (b"", b"\x01"),
    "an index entry": (codec.expiry_key(1, "e"), b""),
    "an outbox entry": (codec.outbox_key(1), codec.encode(forward())),
    "a hand-over mark": (codec.handed_over_key(Channel.SOURCE), codec.encode_handed_over(7)),
    "a format marker": (b"mf", codec.encode_marker(IDENTITY)),
    "a changelog mark": (b"mc", codec.encode(mark())),
    "a tombstone of the mark": (b"mc", None),
    "a tombstone of the meta entry": (b"mm", None),
    "an unknown key": (b"mz", codec.encode(meta())),
    "an unknown kind": (b"q1", b"\x01\x90"),
    "an unknown kind's tombstone": (b"\xff", None),
    "an empty value": (codec.effect_key("e"), b""),
    "another kind's value": (codec.effect_key("e"), codec.encode(parked())),
    "an effect cut short": (codec.effect_key("e"), codec.encode(effect())[:-1]),
    "an effect from no time": (codec.effect_key("e"), codec.encode(effect(changed_ms=-1))),
    "an effect behind all times": (codec.effect_key("e"), codec.encode(effect(changed_ms=2**63))),
    "a key that is no text": (b"e\xff\xfe", codec.encode(effect())),
    "a tombstone whose key is no text": (b"l\xc3", None),
    "a place cut short": (codec.parked_key("k", 1, 1)[:-1], codec.encode(parked())),
    "a place of another length": (codec.parked_key("k", 1, 1) + b"x", None),
    "a lane that is none": (codec.lane_key("k"), b"\x01\xc0"),
    "a meta entry that is none": (b"mm", b"\x01\x90"),
    "a newer effect": (codec.effect_key("e"), b"\x02" + codec.encode(effect())[1:]),
    "a newer case": (codec.case_key("c"), b"\xff"),
    "a value of version 0": (codec.lane_key("k"), b"\x00" + codec.encode(Lane(1))[1:]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_belong_is_refused_and_nothing_is_stored(subject: Subject, what: str) -> None:
    """An entry that has no business in a changelog, or cannot be read, stops its whole batch with exit 4."""
    subject.ledger.apply_changes([], mark(3))
    with pytest.raises(ChangelogFormatError) as caught:
        subject.ledger.apply_changes([GOOD, REFUSED[what]], mark(5))
    assert caught.value.exit_code == 4
    assert caught.value.mend
    ledger = subject.reopen()
    assert ledger.lanes(["good"]) == [None]
    assert ledger.changelog_mark() == mark(3)
    ledger.apply_changes([GOOD], mark(5))
    assert ledger.lanes(["good"]) == [Lane(1)]


@pytest.mark.parametrize("what", ["a newer effect", "a newer case", "an unknown kind", "an unknown key"])
def test_what_a_newer_release_wrote_is_named_so(subject: Subject, what: str) -> None:
    """The refusal says that a newer release wrote it, and to start that one."""
    with pytest.raises(ChangelogFormatError, match="written by a newer release") as caught:
        subject.ledger.apply_changes([GOOD, REFUSED[what]], mark())
    assert caught.value.mend.startswith("start the release that wrote it")


def test_a_refusal_names_no_business_key(subject: Subject) -> None:
    """Invariant 10: what is refused is described without its key or value."""
    person = "jane.doe@example.org"
    for key, data in (
        (codec.effect_key(person), b"\x01\xa9" + person.encode()),
        (b"q" + person.encode(), b""),
    ):
        with pytest.raises(ChangelogFormatError) as caught:
            subject.ledger.apply_changes([(key, data)], mark())
        assert "jane" not in str(caught.value)


_kinds = st.sampled_from([b"e", b"l", b"p\0\0\0\1", b"c", b"mm"])
_hostile = st.tuples(
    st.binary(max_size=24) | st.builds(bytes.__add__, _kinds, st.binary(max_size=24)),
    st.none() | st.binary(max_size=9) | st.builds(bytes.__add__, st.just(b"\1"), st.binary(max_size=40)),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_hostile, max_size=3))
def test_hostile_entries_are_taken_whole_or_refused(
    pair: tuple[Ledger, MemoryLedger], batch: list[Change]
) -> None:
    """Any bytes as keys and values are taken alike by both ledgers, or refused alike, never half."""
    before = pair[1].changelog_mark()
    after = mark(before.next_offset + 1 if before else 1)
    refused: list[str] = []
    for ledger in pair:
        try:
            ledger.apply_changes([GOOD, *batch], after)
        except ChangelogFormatError as error:
            refused.append(str(error))
    assert len(set(refused)) == len(refused) / 2
    expected = before if refused else after
    assert [ledger.changelog_mark() for ledger in pair] == [expected, expected]
    names = [key[1:].decode(errors="replace") for key, _ in batch]
    assert contents(pair[0], names) == contents(pair[1], names)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Ledger, MemoryLedger]]:
    """One of each; what a test's examples leave in one, they leave in the other."""
    ledger = Ledger.open(tmp_path / "store", IDENTITY)
    yield ledger, MemoryLedger()
    ledger.close()


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "closed in the middle"])
def test_a_restore_in_batches_is_kept(subject: Subject, ended: bool) -> None:
    """What was restored is there after closing, whether the restore came to its end or not; work goes on."""
    ledger = subject.ledger
    ledger.begin_restore()
    for n in range(10):
        commit(ledger, PutEffect(f"e{n}", effect(changed_ms=n)), PutLane(LANE, Lane(n)), cycle=n)
    ledger.sync()
    commit(ledger, *put_parked((LANE, 99, 99)), cycle=10)
    if ended:
        ledger.end_restore()
    ledger = subject.reopen()
    assert ledger.changelog_mark() == mark(10)
    assert ledger.lanes([LANE]) == [Lane(9)]
    assert list(ledger.opening().lanes_with_parked) == [LANE]
    assert ledger.expired(3, 9) == ["e0", "e1", "e2"]
    ledger.begin_restore()
    ledger.end_restore()
    commit(ledger, PutLane(LANE, Lane(12)), cycle=12)
    assert subject.reopen().lanes([LANE]) == [Lane(12)]


def test_a_kill_in_a_restore_leaves_entries_and_mark_of_one_moment() -> None:
    """The twin forgets in a kill what a restore applied since the last sync, mark and entries alike."""
    ledger = MemoryLedger()
    commit(ledger, PutLane(LANE, Lane(1)), cycle=1)
    ledger.begin_restore()
    commit(ledger, PutLane(LANE, Lane(2)), cycle=2)
    killed = ledger.crash(lose_unsynced=False)
    assert (killed.lanes([LANE]), killed.changelog_mark()) == ([Lane(1)], mark(1))
    killed.begin_restore()
    commit(killed, PutLane(LANE, Lane(2)), cycle=2)
    killed.sync()
    commit(killed, PutLane(LANE, Lane(3)), cycle=3)
    again = killed.crash(lose_unsynced=False)
    assert (again.lanes([LANE]), again.changelog_mark()) == ([Lane(2)], mark(2))
    again.begin_restore()
    again.end_restore()
    commit(again, PutLane(LANE, Lane(4)), cycle=4)
    assert again.crash(lose_unsynced=False).changelog_mark() == mark(4)


# A cycle of entries, a look at every lane (which warms what the store remembers), or a limit of age.
_Step = list[Entry] | str | int
_history = st.lists(st.lists(ANY_ENTRY, max_size=5) | st.just("look") | st.integers(1, 60), max_size=25)
# How a reader meets the log: batch sizes, and after which of them it starts anew or reads some again.
_reading = st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["go on", "reopen", "again"])), max_size=30)


class Fold:
    """Three ledgers of one kind: one takes cycles, one their entries as committed, one reads the log back."""

    def __init__(self, make: Callable[[str], Subject]) -> None:
        self.wrote, self.took, self.read = (make(name) for name in ("wrote", "took", "read"))
        self.log: list[Change] = []

    def step(self, number: int, step: _Step) -> None:
        if isinstance(step, int):
            while self.wrote.ledger.expire(step, 3) == 3:
                pass
            self.log += forget_old(self.took.ledger, step)
        elif isinstance(step, list):
            self.wrote.ledger.apply(step, meta(number), [])
            changes = self.took.ledger.changes(step, meta(number))
            self.took.ledger.apply_changes(changes, mark(number))
            self.log += changes
        else:
            for subject in (self.wrote, self.took):
                contents(subject.ledger, [])

    def read_back(self, reading: list[tuple[int, str]]) -> None:
        """Restore from wherever the mark says, however often it stops."""
        self.read.ledger.begin_restore()
        for size, then in [*reading, (len(self.log) + 1, "go on")]:
            found = self.read.ledger.changelog_mark()
            begin = found.next_offset if found else 0
            if then == "again":
                begin = max(0, begin - size)
            end = min(len(self.log), begin + size)
            self.read.ledger.apply_changes(self.log[begin:end], mark(end))
            if then == "reopen":
                self.read.reopen().begin_restore()
        self.read.ledger.end_restore()

    def ledgers(self) -> list[LedgerStore]:
        return [self.wrote.ledger, self.took.ledger, self.read.ledger]

    def end(self) -> None:
        for subject in (self.wrote, self.took, self.read):
            subject.end()


def forget_old(ledger: LedgerStore, before_ms: int) -> list[Change]:
    """Commit tombstones for all that is past the limit, a few at a time; the entries committed."""
    log: list[Change] = []
    nothing = 0
    while nothing < 60:  # an answer without keys may only have cleared stale index entries
        told = ledger.expired(before_ms, 3)
        nothing = 0 if told else nothing + 1
        if told:
            # A transaction writes the progress of the partition again.
            changes = ledger.changes([], ledger.opening().meta or meta(), told)
            ledger.apply_changes(changes, mark())
            log += changes
    return log


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_history, _reading)
def test_the_ledger_is_the_fold_of_its_changelog(
    tmp_path: Path, history: list[_Step], reading: list[tuple[int, str]]
) -> None:
    """Invariant 9: taken as cycles, as committed entries or read back in any pieces, a ledger is the same."""
    shutil.rmtree(tmp_path, ignore_errors=True)
    folds = [Fold(lambda name: RocksSubject(tmp_path / name)), Fold(lambda name: MemorySubject())]
    names = {
        entry.effect_key
        for step in history
        if isinstance(step, list)
        for entry in step
        if isinstance(entry, PutEffect)
    }
    try:
        for fold in folds:
            for number, step in enumerate(history):
                fold.step(number, step)
            fold.read_back(reading)
        ledgers = [ledger for fold in folds for ledger in fold.ledgers()]
        for limit_ms in (20, 100):  # what the expiry index of each knows shows when it is used
            seen = [contents(ledger, names) for ledger in ledgers]
            assert all(each == seen[0] for each in seen[1:])
            for ledger in ledgers:
                forget_old(ledger, limit_ms)
    finally:
        for fold in folds:
            fold.end()
