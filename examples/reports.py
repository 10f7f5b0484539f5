"""Reports as files, each written once: the path follows from the effect key, the content from the payload.

A second run after a crash writes the same bytes to the same path. The file appears whole or not at all,
and is on the disk before the result is recorded.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel

from laneway import Delivery, Pipeline

REPORTS = Path("reports")


class Row(BaseModel):
    """One line of a report."""

    item: str
    amount_cents: int


class Report(BaseModel):
    """What is to be reported."""

    customer: str
    rows: list[Row]


pipeline = Pipeline(payload=Report)


@pipeline.handler
def write_report(delivery: Delivery[Report]) -> str:
    """Write reports/{effect key}.csv and return its path as the result key."""
    REPORTS.mkdir(exist_ok=True)
    # A key may hold anything; as a file name it must not lead elsewhere.
    path = REPORTS / f"{quote(delivery.effect_key, safe='')}.csv"
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["customer", "item", "amount_cents"])
        writer.writerows(
            [delivery.payload.customer, row.item, row.amount_cents] for row in delivery.payload.rows
        )
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    return str(path)
