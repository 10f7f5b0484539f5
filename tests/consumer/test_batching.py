"""How batches are put together and taken apart: order, bounds, and answers to the right delivery."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from laneway import BatchFailed, Delivery, PermanentFailure, Pipeline, Retry, TemporaryFailure, Unavailable
from laneway.consumer.running.batch_loop import BatchLoop
from laneway.consumer.running.batch_threads import BatchThreads
from laneway.consumer.running.batching import Batch, Batching
from laneway.handlers import BatchLimits
from laneway.lanes.run import Run
from laneway.lanes.verdict import ACK, Ack, Outcome, Reject
from tests.consumer.pools import (
    DEADLINE_S,
    Taken,
    collect,
    now_ms,
    pipeline_of,
    pool_of,
    run_of,
    settings,
    verdicts,
)
from tests.waiting import eventually

RETRY = Outcome(Retry("r"), "temporary-failure")


class Clock:
    """Time that a test lets pass."""

    ms = 1_000

    def __call__(self) -> int:
        return self.ms


def batching_of(clock: Clock, *, size: int = 4, wait_ms: int = 100, per_lane: int = 1) -> Batching:
    pipeline: Pipeline[Any] = Pipeline()
    pipeline.handler(lambda delivery: None)
    limits = BatchLimits(size, wait_ms, per_lane)
    return Batching(limits, pipeline.compile().prepare, timeout_ms=500, clock=clock)


def keys(batch: Batch | None) -> list[str]:
    assert batch is not None
    return [delivery.effect_key for delivery in batch.deliveries]


def test_a_batch_begins_when_it_is_full_or_its_first_has_waited() -> None:
    """`max_size` at once, fewer only after `max_wait_ms`; nobody waits longer for others that do not come."""
    clock = Clock()
    batching = batching_of(clock)
    assert (batching.take(), batching.wait_ms()) == (None, None)
    batching.put([run_of("a"), run_of("b")])
    assert (batching.take(), batching.wait_ms()) == (None, 100)
    clock.ms += 60
    batching.put([run_of("c")])
    assert (batching.take(), batching.wait_ms()) == (None, 40)
    batching.put([run_of("d"), run_of("e")])
    assert keys(batching.take()) == ["a:1", "b:1", "c:1", "d:1"]
    assert (batching.take(), batching.wait_ms()) == (None, 100)
    clock.ms += 100
    assert keys(batching.take()) == ["e:1"]
    assert batching.wait_ms() is None


def test_of_one_lane_only_the_next_record_is_in_a_batch() -> None:
    """The second of a lane starts only when the first was acknowledged (S16)."""
    clock = Clock()
    batching = batching_of(clock, wait_ms=0)
    batching.put([run_of("a", 3), run_of("b")])
    batch = batching.take()
    assert keys(batch) == ["a:1", "b:1"]
    assert batching.take() is None
    assert batch is not None
    over, going_on = batch.end([ACK, ACK])
    assert ([run.lane for run in over], [run.lane for run in going_on]) == (["b"], ["a"])
    batching.put(going_on)
    assert keys(batching.take()) == ["a:2"]


def test_several_of_one_lane_stand_one_behind_the_other() -> None:
    """With `max_per_lane` they are consecutive and in order; what does not fit comes with the next batch."""
    clock = Clock()
    batching = batching_of(clock, size=5, wait_ms=0, per_lane=3)
    batching.put([run_of("a", 5), run_of("b", 4)])
    batch = batching.take()
    assert keys(batch) == ["a:1", "a:2", "a:3", "b:1", "b:2"]
    assert batch is not None
    over, going_on = batch.end([ACK] * 5)
    assert over == []
    batching.put(going_on)
    assert keys(batching.take()) == ["a:4", "a:5", "b:3", "b:4"]


@pytest.mark.parametrize(
    ("answers", "took"),
    [
        ([ACK, RETRY, None], ["Ack", "Retry"]),
        ([ACK, None, None], ["Ack"]),
        ([None, None, None], []),
        ([RETRY, RETRY, RETRY], ["Retry"]),
        ([ACK, RETRY, Outcome(Reject("x"))], ["Ack", "Retry"]),
    ],
)
def test_of_one_lane_nothing_counts_behind_the_first_that_is_no_ack(
    answers: list[Outcome | None], took: list[str]
) -> None:
    """The rest comes back unstarted, to be judged again in its turn (S16)."""
    batching = batching_of(Clock(), wait_ms=0, per_lane=3)
    run = run_of("a", 3)
    batching.put([run])
    batch = batching.take()
    assert batch is not None
    assert batch.end(answers) == ([run], [])
    assert verdicts(run) == took


def test_a_done_record_behind_one_that_failed_goes_to_a_person(caplog: pytest.LogCaptureFixture) -> None:
    """The order is broken at the target: the lane is held by a case, so that nothing runs again blindly."""
    batching = batching_of(Clock(), wait_ms=0, per_lane=3)
    broken, fine = run_of("a", 3), run_of("b")
    batching.put([broken, fine])
    batch = batching.take()
    assert batch is not None
    with caplog.at_level(logging.ERROR):
        batch.end([ACK, RETRY, ACK, ACK])
    assert verdicts(broken) == ["Ack", "Review"]
    assert broken.outcomes[1].cause == "unclassified-failure"
    assert verdicts(fine) == ["Ack"]
    assert "offset 2" in caplog.text


def test_what_is_told_to_stop_leaves_at_once() -> None:
    """4.5: runs of a partition that goes wait for no batch; the others stay, and are counted right."""
    clock = Clock()
    batching = batching_of(clock, size=3)
    going, staying = run_of("going", 2), run_of("staying")
    batching.put([going, staying])
    going.stop = True
    assert batching.take_back(only_stopped=True) == [going]
    batching.put([run_of("c"), run_of("d")])
    assert keys(batching.take()) == ["staying:1", "c:1", "d:1"]
    assert batching.take_back(only_stopped=False) == []


@pytest.mark.parametrize("kind", ["batch", "async batch"])
def test_what_is_told_to_stop_between_two_batches_leaves_at_once(kind: str) -> None:
    """4.5: it was in no batch when it was told, and not yet among those that wait: it waits no longer."""
    pipeline = pipeline_of(kind, lambda delivery: None, max_size=3, max_wait_ms=50_000)
    with pool_of(pipeline) as pool:
        assert isinstance(pool, BatchThreads | BatchLoop)
        pair, put = [run_of("a", 2), run_of("b", 2)], pool._batching.put

        def put_too_late(runs: Sequence[Run]) -> int:
            if runs[0].outcomes:
                for run in pair:
                    run.stop = True
                pool.recall()
            return put(runs)

        pool._batching.put = put_too_late  # type: ignore[method-assign]
        pool.submit([*pair, run_of("c")])
        assert [verdicts(run) for run in collect(pool, 3)] == [["Ack"]] * 3


def test_a_batch_without_anything_to_run_is_over() -> None:
    """Runs that were stopped, or whose payload does not fit, end without a handler."""
    clock = Clock()
    batching = batching_of(clock, size=2)
    stopped = run_of("a")
    batching.put([stopped])
    stopped.stop = True
    clock.ms += 100
    batch = batching.take()
    assert batch is not None
    assert batch.deliveries == []
    assert batch.end([]) == ([stopped], [])


def test_whatever_is_answered_every_record_gets_its_own_answer_in_order() -> None:
    """Random answers over random runs: no answer is lost, doubled, or given to another record."""
    dice = random.Random(3)
    for _ in range(300):
        clock = Clock()
        batching = batching_of(
            clock, size=dice.randint(1, 9), wait_ms=dice.choice((0, 50)), per_lane=dice.randint(1, 4)
        )
        runs = [run_of(f"lane-{number}", dice.randint(1, 6)) for number in range(dice.randint(1, 8))]
        given: dict[str, Outcome] = {}
        waiting, over = list(runs), list[Run]()
        while waiting or batching.wait_ms() is not None:
            for _ in range(dice.randint(0, len(waiting))):
                batching.put([waiting.pop()])
            clock.ms += dice.choice((0, 60))
            batch = batching.take()
            if batch is None:
                continue
            assert len(batch.deliveries) <= batching.limits.max_size
            failed = set()
            answers: list[Outcome | None] = []
            for delivery in batch.deliveries:
                lane = delivery.sequence_key or ""
                key = f"{delivery.effect_key}"
                answer = Outcome(Ack(key)) if dice.random() < 0.8 else Outcome(Retry(key))
                answers.append(None if lane in failed else answer)
                if lane not in failed:
                    given[key] = answer
                if type(answer.verdict) is not Ack:
                    failed.add(lane)
            ended, going_on = batch.end(answers)
            over += ended
            batching.put(going_on)
        assert sorted(run.lane for run in over) == sorted(run.lane for run in runs)
        for run in runs:
            expected = [given.get(record.effect_key) for record in run.records]
            assert run.outcomes == [answer for answer in expected if answer is not None]


# Through a handler


def failing(error: BaseException, **limits: Any) -> Pipeline[Any]:
    """A batch handler that raises."""
    pipeline: Pipeline[Any] = Pipeline(temporary=[ConnectionError])

    @pipeline.batch_handler(**{"max_size": 3, "max_wait_ms": 60_000, **limits})
    def handle(deliveries: list[Delivery[Any]]) -> None:
        raise error

    return pipeline


def through(pipeline: Pipeline[Any], *, review: bool = False, records: int = 2) -> list[Run]:
    """Three lanes through a batch handler, each with more behind what is in the batch."""
    with pool_of(pipeline, settings(review=review)) as pool:
        runs = [run_of(lane, records) for lane in "abc"]
        pool.submit(runs)
        collect(pool, 3)
    return runs


@pytest.mark.parametrize("kind", ["def", "async"])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_batch_that_failed_at_one_of_them(kind: str, index: int) -> None:
    """Those before are done, it gets the outcome of its cause, those behind come again unstarted."""
    pipeline: Pipeline[Any] = Pipeline()
    error = BatchFailed(index, TemporaryFailure("locked"))
    told: list[list[str]] = []

    def fail(deliveries: list[Delivery[Any]]) -> None:
        told.append([delivery.effect_key for delivery in deliveries])
        deliveries[0].emit("told", None, b"x")
        raise error

    async def fail_later(deliveries: list[Delivery[Any]]) -> None:
        await asyncio.sleep(0)
        fail(deliveries)

    pipeline.batch_handler(3, 60_000)(fail_later if kind == "async" else fail)
    runs = through(pipeline, records=1)
    expected = [["Ack"] if at < index else ["Retry"] if at == index else [] for at in range(3)]
    assert [verdicts(run) for run in runs] == expected
    assert runs[index].outcomes[0].verdict == Retry("locked")
    if index:
        assert len(runs[0].outcomes[0].emitted) == 1
    assert told == [["a:1", "b:1", "c:1"]]


@pytest.mark.parametrize(
    ("error", "review", "verdict", "cause"),
    [
        (Unavailable(70), False, "Wait", "unavailable"),
        (TemporaryFailure("rolled back"), False, "Retry", "temporary-failure"),
        (ConnectionError(), False, "Retry", "temporary-failure"),
        (TemporaryFailure("rolled back"), True, "Review", "outcome-unknown"),
        (ConnectionError(), True, "Review", "outcome-unknown"),
        (PermanentFailure("one of them"), False, "Review", "unclassified-failure"),
        (ValueError("?"), False, "Review", "unclassified-failure"),
        (ValueError("?"), True, "Review", "unclassified-failure"),
        (BatchFailed(3, TemporaryFailure()), False, "Review", "unclassified-failure"),
    ],
)
def test_a_plain_exception_leaves_all_outcomes_unknown(
    error: BaseException, review: bool, verdict: str, cause: str
) -> None:
    """Nobody can say which happened: none is rejected, none passes for done, none of a lane goes on (S8)."""
    runs = through(failing(error), review=review)
    assert [verdicts(run) for run in runs] == [[verdict]] * 3
    assert {run.outcomes[0].cause for run in runs} == {cause}


@pytest.mark.parametrize("answers", [[None], [None] * 4, [], "abc", {}, 3, iter(()), (n for n in range(3))])
def test_a_wrong_number_of_answers_leaves_all_unknown(answers: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be told apart is told to no record: a clear error, and a case for each."""
    pipeline: Pipeline[Any] = Pipeline()
    pipeline.batch_handler(3, 60_000)(lambda deliveries: answers)
    with caplog.at_level(logging.WARNING):
        runs = through(pipeline)
    assert [verdicts(run) for run in runs] == [["Review"]] * 3
    assert {run.outcomes[0].cause for run in runs} == {"unclassified-failure"}
    assert "a batch handler raised" in caplog.text


def test_answers_of_every_kind() -> None:
    """A result key, None, a verdict, or an exception as `asyncio.gather` returns it; None alone acks all."""
    pipeline: Pipeline[Any] = Pipeline()
    pipeline.batch_handler(3, 60_000)(lambda deliveries: ("key", Reject("no"), TemporaryFailure("later")))
    runs = through(pipeline, records=1)
    assert [run.outcomes[0].verdict for run in runs] == [Ack("key"), Reject("no"), Retry("later")]
    silent: Pipeline[Any] = Pipeline()
    silent.batch_handler(3, 60_000)(lambda deliveries: None)
    assert [run.outcomes for run in through(silent, records=1)] == [[ACK]] * 3


def test_a_handler_that_empties_its_list_gets_no_answer_lost() -> None:
    """The list is the handler's own: what it takes out of it is answered all the same."""
    pipeline: Pipeline[Any] = Pipeline()

    def handle(deliveries: list[Delivery[Any]]) -> list[str]:
        done = []
        while deliveries:
            done.append(deliveries.pop(0).effect_key)
        return done

    pipeline.batch_handler(3, 60_000)(handle)
    runs = through(pipeline, records=1)
    assert [run.outcomes[0].verdict for run in runs] == [Ack(f"{lane}:1") for lane in "abc"]


@pytest.mark.parametrize("kind", ["batch", "async batch"])
def test_batches_keep_their_bounds_and_the_order_of_lanes(kind: str) -> None:
    """Whatever threads or tasks do: no batch is too large, no lane is in two at once or out of order."""
    taken, ran = Taken(), defaultdict[str, list[int]](list)
    lock = threading.Lock()

    def handle(delivery: Delivery[Any]) -> None:
        with lock:
            ran[delivery.sequence_key or ""].append(delivery.sequence or 0)

    pipeline = pipeline_of(kind, handle, taken, max_size=7, max_wait_ms=2, max_per_lane=3)
    with pool_of(pipeline) as pool:
        for number in range(10):
            pool.submit([run_of(f"{number}-{lane}", 5) for lane in range(20)])
            collect(pool, 20)
    assert all(numbers == [1, 2, 3, 4, 5] for numbers in ran.values())
    assert all(len(batch) <= 7 for batch in taken.batches)
    assert any(len(batch) == 7 for batch in taken.batches)
    for batch in taken.batches:
        lanes = [key.partition(":")[0] for key in batch]
        assert lanes == sorted(lanes, key=lanes.index), f"a lane is not in a row: {batch}"
        assert max(lanes.count(lane) for lane in lanes) <= 3


@pytest.mark.parametrize(("review", "cause"), [(False, "handler-timeout"), (True, "outcome-unknown")])
def test_an_async_batch_over_its_time_is_cancelled(review: bool, cause: str) -> None:
    """All its outcomes are unknown, and other batches go on."""
    pipeline: Pipeline[Any] = Pipeline()

    @pipeline.batch_handler(max_size=2, max_wait_ms=0)
    async def handle(deliveries: list[Delivery[Any]]) -> None:
        if any(delivery.sequence_key == "slow" for delivery in deliveries):
            await asyncio.sleep(DEADLINE_S)

    with pool_of(pipeline, settings(timeout_ms=40, review=review)) as pool:
        pool.submit([run_of("slow", 2), run_of("beside"), run_of("other", 2)])
        ended = {run.lane: run for run in collect(pool, 3)}
    assert verdicts(ended["other"]) == ["Ack", "Ack"]
    assert [[each.cause for each in ended[lane].outcomes] for lane in ("slow", "beside")] == [[cause]] * 2


def test_a_batch_in_a_thread_over_its_time_is_overdue() -> None:
    """4.6: it cannot be cancelled, so all its runs are named; other batches go on."""
    pipeline: Pipeline[Any] = Pipeline()
    go = threading.Event()

    @pipeline.batch_handler(max_size=2, max_wait_ms=0)
    def handle(deliveries: list[Delivery[Any]]) -> None:
        if any(delivery.sequence_key == "slow" for delivery in deliveries):
            assert go.wait(DEADLINE_S)

    with pool_of(pipeline, settings(timeout_ms=30)) as pool:
        slow, beside = run_of("slow"), run_of("beside")
        pool.submit([slow, beside])
        eventually(lambda: pool.overdue(now_ms()) == [slow, beside], DEADLINE_S, "both to be overdue")
        pool.submit([run_of("other")])
        assert [run.lane for run in collect(pool, 1)] == ["other"]
        go.set()
        collect(pool, 2)
        assert pool.overdue(now_ms() + 10_000) == []
