"""Commands and crashes: a command, its case and the verdict of the run it asked for settle together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from laneway.lanes.command import ACTIONS
from laneway.lanes.record import Channel
from laneway.lanes.verdict import ACK
from tests.lanes.cases import LATER, situation
from tests.lanes.driver import always
from tests.lanes.operated import Operated
from tests.lanes.test_commands import PERMITTED, members_of

ROUNDS = 3


def small_steps(driver: Operated) -> Iterator[None]:
    """Calm work in the smallest steps there are; a crash may come after any of them."""
    for _ in range(ROUNDS):
        driver.poll()
        yield
        for run in driver.hand_out():
            yield
            while driver.step(run):
                yield
            driver.finish(run)
            yield
        if driver.write():
            yield
            driver.sync()
            yield
            driver.publish(clear=False)
            yield
            driver.publish()
            yield
        driver.commit()
        yield


@pytest.mark.parametrize("lose_unsynced", [False, True])
@pytest.mark.parametrize(("reason", "holds", "action"), PERMITTED)
def test_no_case_vanishes_in_a_crash(reason: str, holds: bool, action: str, lose_unsynced: bool) -> None:
    """4.7: wherever the owner dies, case and command are both open or both settled; applied once (S4)."""
    crashed_at = 0
    while True:
        driver, case = situation(reason, holds=holds)
        acts = len(driver.acts)
        driver.command(action, case, **members_of(action, case, driver))
        steps = small_steps(driver)
        for _ in range(crashed_at + 1):
            if next(steps, steps) is steps:
                return
        driver.crash(lose_unsynced=lose_unsynced)
        assert (driver.ledger.case(case.case_id) is None) is (driver.durable[Channel.COMMANDS] == 1)
        driver.rest()
        (answer,) = driver.answers()
        assert answer.event == "applied", f"after step {crashed_at}: {answer.why}"
        resolved = [news for news in driver.news() if news.case_id == case.case_id]
        assert [news.resolution for news in resolved] == [action]
        if ACTIONS[action].runs:
            tries = Counter(a.attempt for a in driver.acts[acts:] if a.effect_key == case.effect_key)
            if driver.rules.intents:
                assert sum(tries.values()) <= 1, "nobody may run it blindly"
            else:
                assert set(tries) == {case.attempts + 1}, "a crash is no attempt"
                assert tries[case.attempts + 1] <= 2
            opened = driver.ledger.case(answer.next_case) if answer.next_case else None
            assert answer.outcome == ("in_review" if opened is not None else "succeeded")
        # Where nothing may run blindly, a crash leaves a question, and only there.
        assert set(driver.cases()) <= ({"outcome-unknown"} if driver.rules.intents else set())
        driver.check_at_rest()
        crashed_at += 1


def test_attempts_of_a_replay_survive_crashes() -> None:
    """The renewed budget is counted in the ledger: a crash neither gives nor takes an attempt."""
    driver, case = situation("attempts-exhausted")
    driver.handler = lambda r: LATER if r.effect_key == "a2" else ACK
    driver.command("replay", case)
    for _ in range(40):
        driver.turn()
        driver.crash()
        driver.now_ms += 1000
    driver.rest()
    tries = [act.attempt for act in driver.acts if act.effect_key == "a2"]
    assert sorted(set(tries)) == [1, 2, 3, 4, 5, 6]
    assert driver.case().attempts == 6
    driver.check_at_rest()


def test_many_commands_in_flight_are_all_answered_once() -> None:
    """Crash after crash with commands of several lanes queued: each has one answer, by its position."""
    driver = Operated()
    for lane in "abc":
        driver.produce_many(lane, 1, 3, 4)
    driver.rest()
    cases = driver.ledger.cases()
    driver.command("pause", lane="a")
    for case in cases:
        driver.command("skip", case)
    driver.command_raw(b"garbage")
    for case in cases:
        driver.command("set-next", case, sequence=3)
    driver.command("resume", lane="a")
    for crashed_at in range(1, 25):
        steps = small_steps(driver)
        for _ in range(crashed_at):
            if next(steps, steps) is steps:
                break
        driver.crash(lose_unsynced=crashed_at % 2 == 0)
    driver.handler = always(ACK)
    driver.rest()
    told = {answer.offset: answer.event for answer in driver.answers()}
    expected = ["applied"] * 4 + ["refused"] * 4 + ["applied"]
    assert [told[offset] for offset in range(9)] == expected
    assert len(driver.answers()) == 9
    assert set(driver.effects()) == {f"{lane}{number}" for lane in "abc" for number in (1, 3, 4)}
    driver.check_at_rest()
