"""`make simulate SEEDS=n FROM=k`: many histories on all cores; each failing one is explained.

With `--plant all`, or the name of one, rules are switched off instead, and the output says how soon each is
missed, and by which seed. `--near` begins at the seeds that are known for it (`near.py`), and `--note` writes
them down. Exit code 1 when an invariant was broken, or when a planted defect was not found.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from itertools import count, islice
from typing import NamedTuple

from tests.simulation.defect import Defect, planted
from tests.simulation.defects import DEFECTS
from tests.simulation.forks import in_forks
from tests.simulation.near import NEAR, write_down
from tests.simulation.plan import make_plan
from tests.simulation.report import explain, failure_of

BLOCK = 250
EXPLAINED = 3
"""So many failing seeds are shrunk and printed in full; of the others only the seed and the words."""


def _run_block(block: tuple[int, int]) -> list[tuple[int, str]]:
    """Some seeds in a row; returns those that broke something."""
    found = []
    for seed in range(*block):
        broken = failure_of(seed)
        if broken is not None:
            found.append((seed, str(broken)))
    return found


def run_seeds(first: int, count: int, processes: int) -> int:
    """Run histories; returns how many of them broke a promise."""
    end = first + count
    began_s = time.monotonic()
    failing: list[tuple[int, str]] = []
    size = max(1, min(BLOCK, count // processes))
    blocks = [(at, min(at + size, end)) for at in range(first, end, size)]
    for found in in_forks(_run_block, blocks, processes):
        failing += found
    failing.sort()
    for seed, _ in failing[:EXPLAINED]:
        print(explain(seed), end="\n\n")
    for seed, words in failing[EXPLAINED:]:
        print(f"seed {seed}: {words}")
    took_s = time.monotonic() - began_s
    print(
        f"{count} seeds from {first}: {len(failing)} broke a promise; {took_s:.0f} s on {processes} processes"
    )
    return len(failing)


class Found(NamedTuple):
    """How a defect was missed."""

    name: str
    first: int
    tried: int = 0
    seed: int = -1
    number: int = 0

    def __str__(self) -> str:
        if not self.tried:
            return f"{self.name}: nothing within {_named(self.name).within} seeds from {self.first}"
        what = f"invariant {self.number} after {self.tried} seeds from {self.first}"
        return f"{self.name}: {what}, by seed {self.seed}"


def _look_for(place: tuple[str, int]) -> Found:
    name, first = place
    defect = _named(name)
    seeds = (seed for seed in count(first) if not defect.changelog or make_plan(seed).config.changelog)
    with planted(defect):
        for tried, seed in enumerate(islice(seeds, defect.within), 1):
            broken = failure_of(seed)
            if broken is not None:
                return Found(name, first, tried, seed, broken.number)
    return Found(name, first)


def look_for(names: Sequence[str], processes: int, *, near: bool = False, note: bool = False) -> int:
    """Plant defects one by one; returns how many of them nobody missed.

    Args:
        near: begin where it is known that they are missed.
        note: write down where that is.
    """
    seeds = {}
    places = [(name, NEAR.get(name, 0) if near else _named(name).start) for name in names]
    for found in in_forks(_look_for, places, processes):
        print(found, flush=True)
        if found.tried:
            seeds[found.name] = found.seed
    if note:
        write_down(seeds)
    return len(names) - len(seeds)


def _named(name: str) -> Defect:
    return next(defect for defect in DEFECTS if defect.name == name)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for."""
    names = [defect.name for defect in DEFECTS]
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--plant", choices=["all", *names], help="a rule to switch off")
    parser.add_argument("--near", action="store_true", help="begin where it is known to be missed")
    parser.add_argument("--note", action="store_true", help="write down which seeds miss it")
    asked = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if asked.plant is not None:
        planted_ones = names if asked.plant == "all" else [asked.plant]
        return int(look_for(planted_ones, asked.processes, near=asked.near, note=asked.note) > 0)
    return int(run_seeds(asked.first, asked.seeds, asked.processes) > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
