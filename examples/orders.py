"""An order's life in order: placed, paid, packed, shipped; each step relies on the one before it.

The steps of one order share a sequence key, so the handler may look at what the step before has left
behind, without a lock and without waiting. Orders beyond a limit are shown to a person before packing.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Literal

from pydantic import BaseModel

from laneway import Delivery, NeedsReview, Pipeline

STEPS = ("placed", "paid", "packed", "shipped")
LARGE_CENTS = 1_000_000


class Step(BaseModel):
    """One step of an order."""

    order: str
    step: Literal["placed", "paid", "packed", "shipped"]
    amount_cents: int


pipeline = Pipeline(payload=Step)


@pipeline.handler
def take_step(delivery: Delivery[Step]) -> str:
    """Move the order on by one step; the same step again changes nothing."""
    step = delivery.payload
    if step.step == "packed" and step.amount_cents > LARGE_CENTS:
        raise NeedsReview(f"May order {step.order} be packed? It is a large one.", reason="large-order")
    with closing(sqlite3.connect("orders.sqlite", timeout=30)) as connection, connection:
        connection.execute("CREATE TABLE IF NOT EXISTS orders (name TEXT PRIMARY KEY, step TEXT)")
        found = connection.execute("SELECT step FROM orders WHERE name = ?", (step.order,)).fetchone()
        before = STEPS.index(found[0]) if found else -1
        if STEPS.index(step.step) > before + 1:
            raise RuntimeError("a step was left out: the order inside a key was not kept")
        if STEPS.index(step.step) > before:
            connection.execute("INSERT OR REPLACE INTO orders VALUES (?, ?)", (step.order, step.step))
    return f"orders/{step.order}/{step.step}"
