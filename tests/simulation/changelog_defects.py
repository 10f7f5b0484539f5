"""Planted defects of `changelog`: each switches one rule of transactions, restores or intents off.

As in `defects`; what stands in the code's place while one is planted stands here beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import laneway.consumer.assignment.restore as restore_module
import laneway.lanes.books as books_module
from laneway.consumer.assignment.restore import ChangelogOpener
from laneway.consumer.partition import Partition
from laneway.consumer.settler import Again, Cycle
from laneway.consumer.settling.attempt import Attempt, Share
from laneway.consumer.settling.changelog_truth import ChangelogTruth
from laneway.consumer.settling.questions import Question, Questions
from laneway.consumer.settling.transactions import Answer, Fate, Membership, Transactions
from laneway.lanes.books import Books
from laneway.lanes.frontier import Frontier
from laneway.lanes.intents import Intents
from laneway.lanes.record import Channel
from laneway.lanes.redelivery import Redelivery
from laneway.lanes.run import Run
from laneway.lanes.view import Opening
from laneway.store.port import LedgerStore
from tests.simulation.defect import Defect
from tests.simulation.planting import Change


def _epochs_first() -> Sequence[Change]:
    return [(ChangelogTruth, "_epochs_changed", staticmethod(lambda _: False))]


def _lost_is_settled() -> Sequence[Change]:
    def only_closed(attempt: Attempt) -> bool:
        return False

    return [
        (ChangelogTruth, "takes", lambda self, partition: True),
        (ChangelogTruth, "_epochs_changed", staticmethod(only_closed)),
    ]


def _nobody_is_fenced() -> Sequence[Change]:
    def any_metadata(self: Membership) -> object:
        return self._consumer.consumer_group_metadata()

    return [(Membership, "metadata", any_metadata)]


def _offsets_when_they_move() -> Sequence[Change]:
    offsets = Share.offsets

    def moved(self: Share) -> Any:
        committed = dict(self.part.partition.committed)
        found = offsets(self)
        names = {self.part.partition.topic_of(channel): offset for channel, offset in committed.items()}
        return [place for place in found if names.get(place[0]) != place[2]]

    return [(Share, "offsets", moved)]


def _doubt_is_failure() -> Sequence[Change]:
    def never_there(self: Transactions, topic: str, partition: int, offset: int) -> None:
        self._begin_call(lambda: Answer(Fate.ABORT))

    return [(Transactions, "read_back", never_there)]


def _answers_of_others() -> Sequence[Change]:
    def ask(self: Questions, question: Question, call: Callable[[], None]) -> Answer | None:
        if self._open is None:
            call()
        self._open = question
        return self.answer()

    return [(Questions, "ask", ask)]


def _doubt_is_success() -> Sequence[Change]:
    def always_there(self: Transactions, topic: str, partition: int, offset: int) -> None:
        self._begin_call(lambda: Answer(Fate.DONE))

    return [(Transactions, "read_back", always_there)]


def _another_id() -> Sequence[Change]:
    return [(Transactions, "_renewed", _renewed_under(count()))]


def _renewed_under(numbers: Iterable[int]) -> Callable[[Transactions], Answer]:
    renewed = Transactions._renewed
    each = iter(numbers)

    def under_another_name(self: Transactions) -> Answer:
        answer = renewed(self)
        producer: Any = self._producer
        if producer is not None and answer.fate is Fate.DONE:
            producer.name = f"{producer.name}-{next(each)}"
            producer._epoch = producer._cluster.coordinator.init(producer.name, producer._timeout_ms)
        return answer

    return under_another_name


def _resends_are_trusted() -> Sequence[Change]:
    return [(Transactions, "_on_error", lambda self, error: None)]


def _to_the_stable_end() -> Sequence[Change]:
    reading = ChangelogOpener._reading
    return [(ChangelogOpener, "_reading", lambda self, committed: reading(self, committed=True))]


def _age_is_trusted() -> Sequence[Change]:
    misfit = restore_module._misfit

    def ageless(mark: Any, changelog: Any) -> str:
        found = misfit(mark, changelog)
        return "" if found.startswith("it was last up to date") else found

    return [(restore_module, "_misfit", ageless)]


def _truncation_is_accepted() -> Sequence[Change]:
    return [(ChangelogOpener, "_refuse_truncated", lambda self, partition, changelog: None)]


def _anew_is_accepted() -> Sequence[Change]:
    return [(ChangelogOpener, "_refuse_empty", lambda self, partition, changelog: None)]


def _kept_is_current() -> Sequence[Change]:
    open_ = ChangelogOpener.open

    def as_it_was(self: ChangelogOpener, partition: Partition, kept: LedgerStore | None) -> Any:
        if kept is None:
            return open_(self, partition, kept)
        return kept, kept.opening()

    return [(ChangelogOpener, "open", as_it_was)]


def _stored_is_current() -> Sequence[Change]:
    restore = ChangelogOpener._restore

    def not_restored(self: ChangelogOpener, partition: Any, ledger: Any, changelog: Any, mark: Any) -> Any:
        if mark is None:
            return restore(self, partition, ledger, changelog, mark)
        return ledger.opening()

    return [(ChangelogOpener, "_restore", not_restored)]


def _committed_offsets_tell() -> Sequence[Change]:
    send_offsets = Transactions.send_offsets
    sent: dict[Transactions, Any] = {}

    def remembered(self: Transactions, offsets: Any, metadata: object) -> None:
        sent[self] = list(offsets)
        send_offsets(self, offsets, metadata)

    def as_the_group_says(self: Transactions, topic: str, partition: int, offset: int) -> None:
        producer: Any = self._producer
        committed = producer._cluster.group.committed
        there = all(committed.get(place[:2], -1) >= place[2] for place in sent[self])
        self._begin_call(lambda: Answer(Fate.DONE if there else Fate.ABORT))

    return [(Transactions, "send_offsets", remembered), (Transactions, "read_back", as_the_group_says)]


def _held_back_alone() -> Sequence[Change]:
    return [(books_module, "_apart", lambda settlements, _: (list(settlements), []))]


def _held_back_is_settled() -> Sequence[Change]:
    return [(books_module, "_without", lambda mark, channel, settlements: mark)]


def _commands_again() -> Sequence[Change]:
    init = Books.__init__

    def forgetful(self: Books, *args: Any, **named: Any) -> None:
        init(self, *args, **named)
        start = named["starts"].get(Channel.COMMANDS)
        if start is not None:
            self.frontiers[Channel.COMMANDS] = Frontier(start)

    return [(Books, "__init__", forgetful)]


def _starts_before_intent() -> Sequence[Change]:
    note = Intents.note

    def at_once(self: Intents, run: Run, now_ms: int) -> None:
        note(self, run, now_ms)
        self._may_start.append(self._waiting.pop()[1])

    return [(Intents, "note", at_once)]


def _applied_before_committed() -> Sequence[Change]:
    steps = ChangelogTruth.steps

    def reordered(self: ChangelogTruth) -> Any:
        found = dict(steps.fget(self))  # type: ignore[attr-defined]
        take = self._take

        def apply_first(cycle: Cycle) -> bool | Again:
            if self._attempt is not None:
                for share in self._attempt.shares:
                    if share.part in cycle.parts:
                        take(share, cycle.now_ms)
            return True

        def clear(cycle: Cycle) -> bool | Again:
            self._attempt = None
            return True

        return [
            ("begun", found["begun"]),
            ("sent", found["sent"]),
            ("applied", apply_first),
            ("offsets", found["offsets"]),
            ("committed", found["committed"]),
            ("told", found["told"]),
            ("cleared", clear),
            ("acked", found["acked"]),
        ]

    return [(ChangelogTruth, "steps", property(reordered))]


def _only_our_disk_tells() -> Sequence[Change]:
    return [(Redelivery, "may_have_been", Redelivery.had)]


def _offsets_are_counted() -> Sequence[Change]:
    begin = Redelivery.__init__

    def measured(self: Redelivery, opening: Opening, slack: int) -> None:
        begin(self, opening, 0)
        if opening.meta is not None and slack:
            for channel in Channel:
                handed = opening.meta.handed_over.get(channel, -1)
                self._before[channel] = max(self._before.get(channel, -1), handed + slack)

    return [(Redelivery, "__init__", measured)]


def _of_changelog(
    name: str, rule: str, what: str, changes: Callable[[], Sequence[Change]], within: int, *breaks: int
) -> Defect:
    return Defect(name, rule, what, changes, within, frozenset(breaks), changelog=True)


CHANGELOG_DEFECTS: tuple[Defect, ...] = (
    _of_changelog(
        "committed-offsets-tell",
        "4.2 †",
        "after an unknown end the committed offsets are asked, not the changelog",
        _committed_offsets_tell,
        1000,
        4,
        6,
        9,
    ),
    _of_changelog(
        "held-back-alone",
        "4.2 †",
        "what hangs on a settlement that is held back goes without it",
        _held_back_alone,
        2000,
        2,
        3,
        4,
        6,
        9,
    ),
    _of_changelog(
        "held-back-is-settled",
        "4.2 †",
        "the frontiers pass a settlement that is held back",
        _held_back_is_settled,
        500,
        4,
        9,
    ),
    _of_changelog(
        "commands-again",
        "4.1.1 †",
        "a command that is settled above the committed offset is judged again",
        _commands_again,
        2000,
        4,
        6,
        8,
        9,
    ),
    _of_changelog(
        "applied-before-committed",
        "4.2",
        "the ledger takes a cycle before its transaction is committed",
        _applied_before_committed,
        100,
        9,
    ),
    _of_changelog(
        "epochs-first",
        "4.2 †",
        "the epochs are not checked after the membership was asked",
        _epochs_first,
        2000,
        7,
    ),
    _of_changelog(
        "lost-is-settled", "4.5", "what was lost is settled like the rest", _lost_is_settled, 2000, 4, 7, 9
    ),
    _of_changelog(
        "nobody-is-fenced", "4.2", "offsets may name no member", _nobody_is_fenced, 2000, 4, 6, 7, 9, 12
    ),
    _of_changelog(
        "offsets-when-they-move",
        "4.2 †",
        "a transaction takes the offsets that moved, no others",
        _offsets_when_they_move,
        100,
        7,
        9,
    ),
    _of_changelog(
        "doubt-is-failure",
        "4.2 †",
        "an end that is not known did not happen",
        _doubt_is_failure,
        1000,
        4,
        6,
        9,
    ),
    _of_changelog(
        "doubt-is-success", "4.2 †", "an end that is not known did happen", _doubt_is_success, 1000, 4, 6, 9
    ),
    _of_changelog(
        "another-id",
        "4.2 †",
        "a new producer has a transactional id of its own",
        _another_id,
        2000,
        4,
        6,
        7,
        8,
        9,
    ),
    _of_changelog(
        "answers-of-others",
        "4.2",
        "an answer that nobody waits for any more is taken for the next",
        _answers_of_others,
        20_000,
        3,
        4,
        6,
        8,
        9,
    ),
    _of_changelog(
        "resends-are-trusted",
        "4.2",
        "a producer whose client has sent an end twice goes on",
        _resends_are_trusted,
        2000,
        4,
        6,
        9,
    ),
    _of_changelog(
        "to-the-stable-end",
        "4.5",
        "a restore ends at the last stable offset",
        _to_the_stable_end,
        2000,
        3,
        4,
        5,
        6,
        7,
        9,
    ),
    Defect(
        "age-is-trusted",
        "4.5 †",
        "a ledger of any age is brought up to date",
        _age_is_trusted,
        3000,
        frozenset({9}),
        start=2500,
        changelog=True,
    ),
    Defect(
        "kept-is-current",
        "4.5 †",
        "a ledger that stayed open is not brought up to date",
        _kept_is_current,
        2000,
        frozenset({3, 4, 5, 9}),
        start=1300,
        changelog=True,
    ),
    _of_changelog(
        "truncation-is-accepted",
        "4.5",
        "a changelog whose beginning was deleted is as good as any",
        _truncation_is_accepted,
        2000,
        3,
        4,
        5,
        9,
    ),
    _of_changelog(
        "anew-is-accepted",
        "4.5",
        "a changelog that was made anew is as good as any",
        _anew_is_accepted,
        1000,
        9,
    ),
    _of_changelog(
        "stored-is-current", "4.5", "a stored ledger is not brought up to date", _stored_is_current, 300, 5, 9
    ),
    _of_changelog(
        "starts-before-intent",
        "4.3 †",
        "a handler starts before its intent is committed",
        _starts_before_intent,
        100,
        3,
    ),
    _of_changelog(
        "only-our-disk-tells",
        "4.2",
        "of what another machine handed over, only what its last cycle tells is marked",
        _only_our_disk_tells,
        2000,
        12,
    ),
    Defect(
        "offsets-are-counted",
        "4.2",
        "what another machine may have handed over is measured in offsets from its last hand-over",
        _offsets_are_counted,
        2000,
        frozenset({12}),
        start=4000,
        changelog=True,
    ),
)
