"""Planted defects: each switches one rule off, for as long as a test runs.

A rule that can be switched off without anybody noticing is superfluous, or not simulated. So each defect
names its rule; `test_defects` and docs/simulation.md say which invariant notices, and how soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import getattr_static

from laneway.lanes.admission import IN_TURN, PASSED, PLACES, Action, Decision, Held, Place, Standing
from tests.simulation import planting as plant
from tests.simulation.planting import Change


@dataclass(frozen=True, slots=True)
class Defect:
    """One rule switched off.

    Attributes:
        name: for the command line and the table.
        rule: where the rule stands.
        what: the defect in one sentence.
        changes: made anew for each planting.
        within: seeds in which it is caught at the latest.
        breaks: the invariants that may notice it first.
        start: the seed to begin with; later for the rare ones, to be quick.
    """

    name: str
    rule: str
    what: str
    changes: Callable[[], Sequence[Change]]
    within: int
    breaks: frozenset[int]
    start: int = 0


@contextmanager
def planted(defect: Defect) -> Iterator[None]:
    """Switch a rule off for a while."""
    undo: list[Change] = []
    try:
        for owner, name, value in defect.changes():
            if isinstance(owner, dict):
                undo.append((owner, name, owner[name]))
                owner[name] = value
            else:
                # As it stands there: a static method must not come back as a plain one.
                undo.append((owner, name, getattr_static(owner, name)))
                setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(undo):
            if isinstance(owner, dict):
                owner[name] = value
            else:
                setattr(owner, name, value)


_DUPLICATE = Decision(Action.DUPLICATE)
_RUN = Decision(Action.RUN)

DEFECTS: tuple[Defect, ...] = (
    Defect(
        "offsets-before-ledger",
        "4.2",
        "offsets are committed before the ledger is synced",
        plant.offsets_before_ledger,
        within=50,
        breaks=frozenset({4}),
    ),
    Defect(
        "highest-seen",
        "4.2",
        "the highest offset seen counts, not the lowest unsettled one",
        plant.highest_seen,
        within=50,
        breaks=frozenset({4}),
    ),
    Defect(
        "header-attempts",
        "4.1.6 †",
        "a retry copy runs whatever attempt the ledger waits for",
        plant.header_attempts,
        within=2000,
        breaks=frozenset({3}),
    ),
    Defect(
        "follower-is-gap",
        "4.1.4",
        "a follower of a record that waits is called a gap",
        plant.cell(PLACES, (Place.BEYOND, Held.FOR_DECISION), PLACES[Place.BEYOND, Held.FREE]),
        within=100,
        breaks=frozenset({5}),
    ),
    Defect(
        "by-message-id",
        "3",
        "duplicates are found by message id",
        plant.by_message_id,
        within=50,
        breaks=frozenset({2, 3}),
    ),
    Defect(
        "random-forward-ids",
        "4.2",
        "a forward has a random id",
        plant.random_ids,
        within=1000,
        breaks=frozenset({6}),
    ),
    Defect(
        "no-epoch",
        "4.5",
        "a completion counts for whoever owns the partition now",
        plant.no_epoch,
        within=3000,
        breaks=frozenset({2, 5, 8, 9}),
    ),
    Defect(
        "no-positions",
        "4.1.1 †",
        "what was settled above the committed offset is judged again",
        plant.no_positions,
        within=300,
        breaks=frozenset({6, 8, 9}),
    ),
    Defect(
        "misfits-out-of-turn",
        "4.1.2 †",
        "an unknown version is rejected before its turn",
        plant.misfits_out_of_turn,
        within=100,
        breaks=frozenset({4}),
    ),
    Defect(
        "conflict-is-duplicate",
        "4.1.5",
        "another payload of a finished effect is a duplicate",
        plant.cell(IN_TURN, Standing.FINISHED_OTHER, _DUPLICATE),
        within=500,
        breaks=frozenset({4}),
    ),
    Defect(
        "open-effect-runs",
        "4.1.5",
        "an effect that is open under another position runs",
        plant.cell(IN_TURN, Standing.FOREIGN_OPEN, _RUN),
        within=1000,
        breaks=frozenset({3}),
    ),
    Defect(
        "stale-conflict-is-duplicate",
        "4.1.4",
        "behind `last`, another payload is a duplicate",
        plant.cell(PASSED, Standing.FINISHED_OTHER, _DUPLICATE),
        within=500,
        breaks=frozenset({4}),
    ),
    Defect(
        "stale-is-duplicate",
        "4.1.4",
        "behind `last`, an effect that is open elsewhere is a duplicate",
        plant.cell(PASSED, Standing.FOREIGN_OPEN, _DUPLICATE),
        within=4000,
        breaks=frozenset({4}),
        start=1900,
    ),
    Defect(
        "corrections-everywhere",
        "4.1.5",
        "in a lane, a changed payload after a quarantine runs",
        plant.corrections_everywhere,
        within=2000,
        breaks=frozenset({3}),
    ),
    Defect(
        "parked-by-number",
        "4.1.4 †",
        "parked records are keyed without their position",
        plant.parked_by_number,
        within=100,
        breaks=frozenset({4}),
    ),
    Defect(
        "payload-before-effect",
        "4.1.5 †",
        "the payload is judged before what the ledger knows",
        plant.payload_before_effect,
        within=500,
        breaks=frozenset({9}),
    ),
    Defect(
        "duplicate-stays",
        "4.1.5 †",
        "a duplicate in turn does not advance `last`",
        plant.duplicate_stays,
        within=500,
        breaks=frozenset({5}),
    ),
    Defect(
        "copies-run",
        "4.1.6 †",
        "another copy of a held record runs",
        plant.cell(PLACES, (Place.NEXT, Held.FOR_DECISION), PLACES[Place.NEXT, Held.FREE]),
        within=100,
        breaks=frozenset({2, 4, 8}),
    ),
    Defect(
        "source-before-parked",
        "4.1.7 †",
        "source records of a free lane go before its parked ones",
        plant.source_before_parked,
        within=500,
        breaks=frozenset({2, 5}),
    ),
    Defect(
        "parked-from-the-end",
        "4.1.7 †",
        "parked records are judged from the highest",
        plant.parked_from_the_end,
        within=200,
        breaks=frozenset({2, 5, 9}),
    ),
    Defect(
        "all-channels-pause",
        "4.1 †",
        "at a bound the retry partition pauses too",
        plant.all_channels_pause,
        within=500,
        breaks=frozenset({8}),
    ),
    Defect(
        "no-outbox",
        "4.2 †",
        "forwards are not written with their cycle",
        plant.no_outbox,
        within=50,
        breaks=frozenset({4, 6}),
    ),
    Defect(
        "commits-go-back",
        "4.2 †",
        "a commit may go back",
        plant.commits_go_back,
        within=3000,
        breaks=frozenset({4}),
    ),
    Defect(
        "no-barrier",
        "4.2 †",
        "a lane goes on before a settlement other than an Ack is committed",
        plant.no_barrier,
        within=500,
        breaks=frozenset({2, 9}),
    ),
    Defect(
        "news-in-any-order",
        "4.2 †",
        "later forwards of a case do not wait",
        plant.news_in_any_order,
        within=4000,
        breaks=frozenset({6}),
        start=500,
    ),
    Defect(
        "memory-is-kept",
        "4.5 †",
        "what is in memory survives revoke and assign",
        plant.memory_is_kept,
        within=1000,
        breaks=frozenset({6, 8, 9, 12}),
    ),
    Defect(
        "lock-goes-early",
        "4.5",
        "a partition with a running handler gives its lock away",
        plant.lock_goes_early,
        within=2000,
        breaks=frozenset({2}),
    ),
    Defect(
        "outbox-holds-nothing",
        "4.2",
        "a forward in the outbox holds no offset",
        plant.outbox_holds_nothing,
        within=500,
        breaks=frozenset({4}),
    ),
    Defect(
        "effects-not-in-hand",
        "4.1.3",
        "an effect may be in hand twice",
        plant.effects_not_in_hand,
        within=1000,
        breaks=frozenset({3, 4}),
    ),
    Defect(
        "retries-at-once",
        "4.4",
        "a retry does not wait for its time",
        plant.retries_at_once,
        within=100,
        breaks=frozenset({11}),
    ),
    Defect(
        "no-hand-over",
        "4.2",
        "nobody notes what handlers may have seen",
        plant.no_hand_over,
        within=300,
        breaks=frozenset({12}),
    ),
)
