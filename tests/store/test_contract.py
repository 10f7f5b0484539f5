"""The promises of `LedgerStore`, kept alike by RocksDB and by the twin in memory.

One suite, run against both (see `subjects`). Its second half, on changelogs, is test_changelog.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laneway.errors import LedgerError
from laneway.lanes.effect import EffectState
from laneway.lanes.lane import Hold, HoldKind, Lane
from laneway.lanes.record import Channel
from laneway.lanes.view import Entry, PutCase, PutEffect, PutLane, PutParked
from laneway.store.memory import MemoryLedger
from tests.store.builders import case, effect, forward, meta, put_parked
from tests.store.subjects import ANY_ENTRY, TRICKY_LANES, MemorySubject, RocksSubject, Subject, contents

LANE = "kcustomer-1"
FINISHED = [EffectState.SUCCEEDED, EffectState.QUARANTINED, EffectState.DISCARDED]
OPEN = [EffectState.RUNNING, EffectState.RETRY_WAIT, EffectState.IN_REVIEW]


def test_a_new_ledger_is_empty(subject: Subject) -> None:
    """A new ledger knows no progress, no hand-over, no forward and no follower."""
    opening = subject.ledger.opening()
    assert (opening.meta, opening.handed_over, list(opening.outbox)) == (None, {}, [])
    assert list(opening.lanes_with_parked) == []
    assert subject.ledger.effects([]) == []
    assert subject.ledger.cases() == []


def test_effects_are_found_in_the_order_asked(subject: Subject) -> None:
    """S12: an effect recorded once is found by its key, also among unknown and repeated ones."""
    first, second = effect(offset=1), effect(offset=2)
    subject.ledger.apply([PutEffect("a", first), PutEffect("b", second)], meta(), [])
    assert subject.ledger.effects(["b", "x", "a", "b"]) == [second, None, first, second]


def test_a_cycle_is_seen_at_once_and_after_reopening(subject: Subject) -> None:
    """S4, S6: effect, lane, follower, case, forward and progress of one cycle are stored together."""
    hold = Hold(HoldKind.GAP, "", 2, 9, 0, "sequence-gap", "sequence-gap-1", 3000)
    lane = Lane(1, hold, 1, 40)
    entries: list[Entry] = [
        PutEffect("e", effect()),
        PutLane(LANE, lane),
        *put_parked((LANE, 3, 9)),
        PutCase("sequence-gap-1", case()),
    ]
    keys = subject.ledger.apply(entries, meta(), [forward()])
    for again in (False, True):
        ledger = subject.reopen() if again else subject.ledger
        assert ledger.effects(["e"]) == [effect()]
        assert ledger.lanes([LANE]) == [lane]
        assert [key for key, _ in ledger.parked(LANE, None, 9)] == [(LANE, 3, 9)]
        assert ledger.case("sequence-gap-1") == case()
        opening = ledger.opening()
        assert opening.meta == meta()
        assert list(opening.outbox) == [(keys[0], forward())]
        assert list(opening.lanes_with_parked) == [LANE]


def test_none_forgets(subject: Subject) -> None:
    """None in an entry removes a lane, a follower and a case; removing what is not there is no error."""
    gone: list[Entry] = [PutLane(LANE, None), PutParked((LANE, 3, 9), None), PutCase("c", None)]
    subject.ledger.apply(gone, meta(), [])
    subject.ledger.apply(
        [PutLane(LANE, Lane(4)), *put_parked((LANE, 3, 9)), PutCase("c", case("c"))], meta(), []
    )
    subject.ledger.apply(gone, meta(), [])
    assert subject.ledger.lanes([LANE]) == [None]
    assert subject.ledger.parked(LANE, None, 9) == []
    assert subject.ledger.case("c") is None
    assert list(subject.ledger.opening().lanes_with_parked) == []


def test_the_later_entry_of_one_key_stands(subject: Subject) -> None:
    """Of several entries for one key in a cycle the last one stands."""
    lanes = [PutLane(LANE, Lane(1)), PutLane(LANE, None), PutLane(LANE, Lane(2))]
    place = (LANE, 5, 5)
    subject.ledger.apply([*lanes, *put_parked(place), PutParked(place, None)], meta(), [])
    assert subject.ledger.lanes([LANE]) == [Lane(2)]
    assert subject.ledger.parked(LANE, None, 9) == []


def test_followers_come_lowest_sequence_and_offset_first(subject: Subject) -> None:
    """Followers are read by (sequence, offset), copies of one sequence beside each other, in pages."""
    places = [(2**63 - 1, 0), (300, 1), (2, 256), (2, 3), (1, 9), (0, 2**63 - 1)]
    subject.ledger.apply(put_parked(*((LANE, *place) for place in places)), meta(), [])
    seen: list[tuple[int, int]] = []
    while page := subject.ledger.parked(LANE, seen[-1] if seen else None, 2):
        assert len(page) <= 2
        seen += [(sequence, offset) for (_, sequence, offset), _ in page]
    assert seen == sorted(places)


def test_followers_of_a_front_are_found_after_releases_and_late_parking(subject: Subject) -> None:
    """A follower parked below all those released before is the first again: no look-up misses it."""
    subject.ledger.apply(put_parked(*((LANE, n, n) for n in range(10, 20))), meta(), [])
    for n in range(10, 15):
        assert subject.ledger.parked(LANE, None, 1)[0][0] == (LANE, n, n)
        subject.ledger.apply([PutParked((LANE, n, n), None)], meta(), [])
    subject.ledger.parked(LANE, None, 1)
    subject.ledger.apply(put_parked((LANE, 3, 30), (LANE, 12, 31)), meta(), [])
    found = [key[1] for key, _ in subject.ledger.parked(LANE, None, 100)]
    assert found == [3, 12, 15, 16, 17, 18, 19]


def test_no_lane_shows_followers_of_another(subject: Subject) -> None:
    """Lanes whose names begin or contain each other, with NUL and any Unicode, keep apart."""
    for number, lane in enumerate(TRICKY_LANES):
        subject.ledger.apply(put_parked((lane, number, 1), (lane, 2**63 - 1, 2)), meta(), [])
    for number, lane in enumerate(TRICKY_LANES):
        assert [key for key, _ in subject.ledger.parked(lane, None, 99)] == [
            (lane, number, 1),
            (lane, 2**63 - 1, 2),
        ]
    assert sorted(subject.ledger.opening().lanes_with_parked) == sorted(TRICKY_LANES)
    assert len(subject.ledger.opening().lanes_with_parked) == len(TRICKY_LANES)


def test_outbox_keys_ascend_across_restarts(subject: Subject) -> None:
    """Forwards come back oldest first, also when older ones were cleared and the process restarted."""
    first = subject.ledger.apply([], meta(), [forward("a"), forward("b"), forward("c")])
    assert first == sorted(first)
    assert all(len(key) == 9 for key in first)
    subject.ledger.apply([], meta(2), [], cleared=first[:2])
    ledger = subject.reopen()
    second = ledger.apply([], meta(3), [forward("d")], cleared=[])
    assert second[0] > first[-1]
    assert [item.forward_id for _, item in ledger.opening().outbox] == ["c", "d"]


def test_one_cycle_clears_and_adds(subject: Subject) -> None:
    """A cycle may clear published forwards and add new ones; the new ones stay."""
    keys = subject.ledger.apply([], meta(), [forward("a")])
    subject.ledger.apply([], meta(), [forward("b")], cleared=keys)
    assert [item.forward_id for _, item in subject.ledger.opening().outbox] == ["b"]


def test_handed_over_never_lowers(subject: Subject) -> None:
    """S21: a hand-over mark only rises, by channel, also across a restart."""
    subject.ledger.note_handed_over({Channel.SOURCE: 10, Channel.RETRY: 0})
    subject.ledger.note_handed_over({Channel.SOURCE: 4})
    ledger = subject.reopen()
    ledger.note_handed_over({Channel.SOURCE: 9, Channel.RETRY: 1})
    assert ledger.opening().handed_over == {Channel.SOURCE: 10, Channel.RETRY: 1}


@pytest.mark.parametrize("state", FINISHED)
def test_finished_effects_expire(subject: Subject, state: EffectState) -> None:
    """A finished effect older than the limit goes; one exactly at the limit stays."""
    subject.ledger.apply(
        [PutEffect("old", effect(state, changed_ms=999)), PutEffect("new", effect(state, changed_ms=1000))],
        meta(),
        [],
    )
    assert subject.ledger.expire(1000, 100) == 1
    assert subject.ledger.effects(["old", "new"]) == [None, effect(state, changed_ms=1000)]
    assert subject.ledger.expire(1000, 100) == 0


@pytest.mark.parametrize("state", OPEN)
def test_open_effects_never_expire(subject: Subject, state: EffectState) -> None:
    """An open effect stays whatever its age, also one that was finished and opened again."""
    subject.ledger.apply([PutEffect("open", effect(state, changed_ms=1))], meta(), [])
    subject.ledger.apply([PutEffect("again", effect(EffectState.QUARANTINED, changed_ms=1))], meta(), [])
    subject.ledger.apply([PutEffect("again", effect(state, changed_ms=1))], meta(), [])
    subject.ledger.expire(10_000, 100)
    assert subject.ledger.effects(["open", "again"]) == [effect(state, changed_ms=1)] * 2


def test_an_effect_that_changed_later_expires_by_its_last_change(subject: Subject) -> None:
    """The age of an effect is that of its last change, not of its first end."""
    subject.ledger.apply([PutEffect("e", effect(EffectState.QUARANTINED, changed_ms=100))], meta(), [])
    subject.ledger.apply([PutEffect("e", effect(changed_ms=5000))], meta(), [])
    subject.ledger.expire(1000, 100)
    assert subject.ledger.effects(["e"]) == [effect(changed_ms=5000)]
    subject.ledger.expire(5001, 100)
    assert subject.ledger.effects(["e"]) == [None]


def test_expiry_is_bounded_and_goes_on(subject: Subject) -> None:
    """One call deals with at most `limit` effects, oldest first; the next goes on; new old ones are found."""
    subject.ledger.apply([PutEffect(f"e{n}", effect(changed_ms=n)) for n in range(10)], meta(), [])
    assert subject.ledger.expire(100, 4) == 4
    left = [found is not None for found in subject.ledger.effects([f"e{n}" for n in range(10)])]
    assert left == [False] * 4 + [True] * 6
    assert subject.ledger.expire(100, 6) == 6
    assert subject.ledger.expire(100, 6) == 0
    # A clock that went back writes below what was looked through already.
    subject.ledger.apply([PutEffect("late", effect(changed_ms=2))], meta(), [])
    assert subject.ledger.expire(100, 6) == 1
    assert subject.ledger.effects(["late"]) == [None]


def test_cases_are_listed_in_pages(subject: Subject) -> None:
    """Open cases come by ascending id, bounded, and a page goes on after the last id seen."""
    ids = ["a", "b\x00", "b", "é", "z" * 40]
    subject.ledger.apply([PutCase(name, case(name)) for name in ids], meta(), [])
    assert [found.case_id for found in subject.ledger.cases()] == sorted(ids)
    assert [found.case_id for found in subject.ledger.cases(limit=2, after="a")] == ["b", "b\x00"]
    assert subject.ledger.cases(limit=2, after="é") == []


def test_stats_tell_progress(subject: Subject) -> None:
    """Stats repeat what the last cycle wrote, and count entries; a new ledger answers with zeros."""
    empty = subject.ledger.stats()
    assert (empty.cycle, empty.open_cases, empty.parked_bytes, dict(empty.marks)) == (0, 0, 0, {})
    subject.ledger.apply([PutEffect("e", effect())], meta(7), [])
    stats = subject.ledger.stats()
    assert (stats.cycle, stats.writer, stats.open_cases, stats.parked_bytes) == (7, "writer-1", 1, 99)
    assert stats.marks == meta(7).marks
    assert stats.entries > 0


def test_a_closed_ledger_answers_with_an_error(subject: Subject) -> None:
    """After close every call is a LedgerError, never stale data; closing twice is once."""
    subject.ledger.close()
    subject.ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        subject.ledger.effects(["e"])
    with pytest.raises(LedgerError, match="closed"):
        subject.ledger.apply([], meta(), [])
    with pytest.raises(LedgerError, match="closed"):
        subject.ledger.sync()


def test_power_loss_keeps_what_was_synced() -> None:
    """In the twin a loss of power forgets exactly what came after the last sync; a kill forgets nothing."""
    ledger = MemoryLedger()
    ledger.apply([PutEffect("a", effect())], meta(1), [forward("a")])
    ledger.sync()
    ledger.apply([PutEffect("b", effect()), *put_parked((LANE, 1, 1))], meta(2), [forward("b")])
    ledger.note_handed_over({Channel.SOURCE: 5})
    assert ledger.durable().effects(["a", "b"]) == [effect(), None]
    killed = MemoryLedger()
    killed.apply([PutEffect("b", effect())], meta(2), [])
    assert killed.crash(lose_unsynced=False).effects(["b"]) == [effect()]
    after = ledger.crash(lose_unsynced=True)
    opening = after.opening()
    assert after.effects(["a", "b"]) == [effect(), None]
    assert (opening.meta, opening.handed_over) == (meta(1), {})
    assert [item.forward_id for _, item in opening.outbox] == ["a"]
    assert list(opening.lanes_with_parked) == []
    with pytest.raises(LedgerError, match="closed"):
        ledger.effects(["a"])


_steps = st.lists(ANY_ENTRY | st.just("look") | st.integers(1, 60), max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_steps)
def test_ledger_and_twin_agree(tmp_path: Path, steps: list[Entry | str | int]) -> None:
    """Any entries, looks and expiries leave RocksDB, reopened or not, and the twin with one content."""
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    rocks, twin = RocksSubject(tmp_path / "store"), MemorySubject()
    names: set[str] = set()

    try:
        for step in steps:
            if isinstance(step, str):
                assert contents(rocks.ledger, names) == contents(twin.ledger, names)
            elif isinstance(step, int):
                for ledger in (rocks.ledger, twin.ledger):
                    while ledger.expire(step, 3) == 3:
                        pass
            else:
                if isinstance(step, PutEffect):
                    names.add(step.effect_key)
                for ledger in (rocks.ledger, twin.ledger):
                    ledger.apply([step], meta(), [])
        assert contents(rocks.ledger, names) == contents(twin.ledger, names)
        assert contents(rocks.reopen(), names) == contents(twin.reopen(), names)
    finally:
        rocks.end()
        twin.end()
