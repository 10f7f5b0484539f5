"""A restore beside live partitions: when it goes easy on them, and how much of the time it takes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

import laneway.consumer.assignment.ownership as ownership_module
import laneway.consumer.assignment.restore as restore_module
from laneway.consumer.assignment.ownership import AT_WORK_S
from laneway.consumer.assignment.restore import BESIDE_WORK_SHARE, Changelog, ChangelogOpener
from laneway.consumer.partition import Partition
from laneway.lanes.forward import Home
from laneway.lanes.record import Channel
from laneway.store.memory import MemoryLedger
from laneway.store.port import Change
from tests.broker.restoring import cycle
from tests.consumer.test_ownership import NAMES, AtOnce, Opener, Process

BATCHES = 40
COST_S = 0.01


class Later:
    """An executor whose calls never end."""

    def submit(self, *_: Any) -> Future[Any]:
        return Future()


def test_a_restore_goes_easy_also_between_two_batches_of_a_busy_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition at work has nothing in hand for moments; only after a while without is nobody disturbed."""
    clock = [100.0]
    time = SimpleNamespace(monotonic=lambda: clock[0], time_ns=lambda: 0, sleep=lambda _: None)
    monkeypatch.setattr(ownership_module, "time", time)
    process = Process(Opener(), incremental=True)
    executors: Iterator[object] = iter((AtOnce(), Later()))
    process.ownership._executor = cast("Executor", next(executors))
    process.assign(0)
    (live,) = process.ownership.live()
    process.ownership._executor = cast("Executor", next(executors))
    process.assign(1)
    opening = next(p for p in process.ownership.owned() if p is not live)
    assert not opening.opens_beside_work, "nobody has worked yet"

    for in_memory, passed_s, is_beside_work in (
        (5, 0.0, True),
        (0, AT_WORK_S / 2, True),
        (0, AT_WORK_S, False),
    ):
        cast("Any", live.board).in_memory = in_memory
        clock[0] += passed_s
        process.ownership.advance()
        assert opening.opens_beside_work is is_beside_work


@pytest.mark.parametrize("restores", [1, 3])
@pytest.mark.parametrize("beside_work", [True, False])
def test_a_restore_takes_its_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, restores: int, beside_work: bool
) -> None:
    """All restores of a process together get an eighth of the time beside work, whatever an entry costs."""
    spent_s, slept_s = [5.0], [0.0]

    def sleep(seconds: float) -> None:
        slept_s[0] += seconds

    time = SimpleNamespace(
        monotonic=lambda: 0.0, time_ns=lambda: 0, thread_time=lambda: spent_s[0], sleep=sleep
    )
    monkeypatch.setattr(restore_module, "time", time)
    opener = ChangelogOpener(cast("Any", None), cast("Any", None), accept_empty_ledger=False)
    partition = Partition(Home("g", "s", 0), NAMES, 1, {Channel.SOURCE: 0}, {Channel.SOURCE: None})
    partition.opens_beside_work = beside_work
    others = [Partition(partition.home, NAMES, n, {}, {}) for n in range(1, restores)]
    opener._restoring.update((partition, *others))

    def read(*_: object) -> Iterator[list[Change]]:
        for number in range(BATCHES):
            spent_s[0] += COST_S
            yield cycle(number, f"e{number}")

    monkeypatch.setattr(opener, "_read", read)
    opener._restore(partition, MemoryLedger(), Changelog("t", 0, "id", 0, 9, 86_400_000, 0), None)
    worked_s = BATCHES * COST_S
    wanted_s = worked_s * restores / BESIDE_WORK_SHARE - worked_s if beside_work else 0.0
    assert slept_s[0] == pytest.approx(wanted_s)
