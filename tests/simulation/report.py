"""A failing seed for people: the seed, the shortest history, the invariant in words, the log of the lane."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import replace

from tests.invariants import Broken
from tests.simulation.plan import Plan, make_plan
from tests.simulation.world import World, happen

LINES = 120
TRIES = 400


def failure_of(seed: int) -> Broken | None:
    """What a seed breaks, if anything."""
    return happen(make_plan(seed))[1]


def shrink(plan: Plan, number: int) -> Plan:
    """Leave out faults, records and steps as long as the same invariant is broken."""
    tries = 0
    shorter = True
    while shorter and tries < TRIES:
        shorter = False
        for candidate in _shorter(plan):
            tries += 1
            broken = happen(candidate)[1]
            if broken is not None and broken.number == number:
                plan, shorter = candidate, True
                break
            if tries >= TRIES:
                break
    return plan


def _shorter(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the boldest cuts first."""
    for size in (8, 4, 2, 1):
        for at in range(0, len(plan.faults), size):
            yield replace(plan, faults=plan.faults[:at] + plan.faults[at + size :])
        for at in range(0, len(plan.letters), size):
            yield replace(plan, letters=plan.letters[:at] + plan.letters[at + size :])
    for size in (8, 4, 2, 1):
        for at in range(0, len(plan.deeds or ()), size):
            yield replace(plan, deeds=(plan.deeds or ())[:at] + (plan.deeds or ())[at + size :])
    if plan.steps > 10:
        yield replace(plan, steps=plan.steps * 3 // 4)


def explain(seed: int) -> str:
    """The whole story of a failing seed; "" when it does not fail."""
    full = make_plan(seed)
    first = happen(full)[1]
    if first is None:
        return ""
    plan = shrink(full, first.number)
    world, broken = happen(plan, trace=True)
    assert broken is not None
    lines = [
        f"seed {seed} breaks {broken}",
        f"  replay: make simulate FROM={seed} SEEDS=1",
        f"  of {len(full.letters)} records {len(plan.letters)} are left, of {len(full.faults)} faults"
        f" {len(plan.faults)}, of {full.steps} steps {plan.steps}",
        f"  {plan.config}",
        *(
            f"  fault at step {fault.step}: {fault.kind} {fault.target} {fault.amount}"
            for fault in plan.faults
        ),
        *(
            f"  operator at step {deed.step}: {deed.kind} [{deed.partition}] {deed.dice}"
            for deed in plan.deeds or ()
        ),
        *_log_of(world, broken),
    ]
    if broken.__cause__ is not None:
        lines += ["", *(line.rstrip() for line in traceback.format_exception(broken.__cause__))]
    return "\n".join(lines)


def _log_of(world: World, broken: Broken) -> Iterator[str]:
    """What happened to the lane, and to all lanes at once."""
    told = [
        f"  {step:4} {process:11} {f'[{partition}] {lane}' if partition >= 0 else '':12} {text}"
        for step, process, partition, lane, text in world.trace or ()
        if (partition < 0 or broken.partition < 0 or partition == broken.partition)
        and (not lane or not broken.lane or lane == broken.lane)
    ]
    if len(told) > LINES:
        yield f"  … {len(told) - LINES} earlier lines"
    yield from told[-LINES:]
