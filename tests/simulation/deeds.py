"""What operators will do in a history: drawn before it begins, as everything else in its plan."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

SHARE = 0.5
DEEDS = {
    "look": 4,
    "decide": 12,
    "try": 3,
    "again": 3,
    "pause": 2,
    "resume": 2,
    "pause_all": 0.6,
    "resume_all": 1,
    "garbage": 1,
}


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that an operator will do.

    Attributes:
        kind: a method of `Operators`, `_do_KIND`.
        dice: seeds what is left to chance.
    """

    step: int
    kind: str
    partition: int
    dice: int


def make_deeds(seed: int, partitions: int, steps: int) -> tuple[Deed, ...] | None:
    """What operators will do in a history; None where it has none, so that its cases stay open."""
    random = Random(f"operators {seed}")
    if random.random() >= SHARE:
        return None
    kinds, weights = list(DEEDS), list(DEEDS.values())
    deeds = [
        Deed(
            random.randrange(steps),
            random.choices(kinds, weights)[0],
            random.randrange(partitions),
            random.randrange(10**6),
        )
        for _ in range(random.choice((0, 4, 10, 20)))
    ]
    # Drawn apart, so that what the others do stays what it was.
    random = Random(f"letters {seed}")
    deeds += [
        # The first ones have to be refused before.
        Deed(
            random.randrange(steps // 3, steps),
            "replay_letter",
            random.randrange(partitions),
            random.randrange(10**6),
        )
        for _ in range(random.choice((0, 6, 16)))
    ]
    return tuple(sorted(deeds, key=lambda deed: deed.step))
