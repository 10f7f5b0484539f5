"""What a team may choose about its lanes, as the rules understand it."""

from __future__ import annotations

from dataclasses import dataclass

from laneway.lanes.admission import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a team may choose about its lanes; see the configuration reference.

    Attributes:
        first_sequence: what a new contiguous lane starts with; None adopts the first one seen.
        delays_ms: the fixed delays between attempts; attempts = 1 + their number.
        max_run: records of one lane handed to a worker together.
        max_judged: lanes looked at in one turn where few may start at a time.
        intents: a handler starts only when the ledger knows that it may have (see `intents`).
        hand_over_slack: records of the source that another process may have read beyond its last cycle.
        breaker_lanes: so many lanes in a row must find a dependency unavailable, before all wait for it.
        max_replays: how often the dead letters of one effect may be replayed.
    """

    order: Order = Order.CONTIGUOUS
    first_sequence: int | None = 1
    pass_after_reject: bool = False
    hold_unknown_version: bool = False
    delays_ms: tuple[int, ...] = (1000, 4000)
    max_retries_waiting: int = 10_000
    max_parked_per_lane: int = 100_000
    max_parked_bytes: int = 1 << 30
    max_open_cases: int = 100
    max_run: int = 256
    max_judged: int = 2000
    intents: bool = False
    hand_over_slack: int = 0
    breaker_lanes: int = 5
    max_replays: int = 3
