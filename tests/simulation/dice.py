"""The random numbers of a history: those of `random`, drawn with less ado, as a history draws hundreds."""

from __future__ import annotations

import _random
from collections.abc import MutableSequence, Sequence
from random import Random
from typing import Any, TypeVar

_T = TypeVar("_T")


class Dice(Random):
    """Draws what a `Random` of the same seed would draw; tests hold it to that."""

    def begin(self, seed: int) -> None:
        """What `seed` does with a whole number."""
        _random.Random.seed(self, seed)

    def choice(self, seq: Sequence[_T]) -> _T:  # type: ignore[override]
        """See `Random`."""
        count = len(seq)
        bits, draw = count.bit_length(), self.getrandbits
        at = draw(bits)
        while at >= count:
            at = draw(bits)
        return seq[at]

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """See `Random`."""
        if len(x) > 1:
            super().shuffle(x)
