"""How much is read before handlers and commits have caught up."""

from __future__ import annotations

from typing import cast

import pytest
from confluent_kafka import Consumer, Message

from laneway.consumer.assignment.ownership import Ownership
from laneway.consumer.intake import Intake
from laneway.consumer.journal import Journal
from laneway.consumer.partition import Partition, State
from laneway.lanes.board import Board

MAX_RECORDS = 10


class Counted:
    """As many records as it is told."""

    def __init__(self, in_memory: int, pending: int, in_memory_bytes: int) -> None:
        self.in_memory = in_memory
        self.pending = pending
        self.in_memory_bytes = in_memory_bytes

    def blocked(self) -> dict[object, str]:
        """Nothing is."""
        return {}


class Asked:
    """A consumer that notes how many records it was asked for."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    def consume(self, limit: int, timeout_s: float) -> list[Message]:
        """Nothing comes."""
        self.limits.append(limit)
        return []


@pytest.mark.parametrize(
    ("in_memory", "pending", "size", "asked"),
    [
        (0, 0, 0, 10),
        (4, 0, 0, 6),
        (4, 10, 0, 6),
        (4, 13, 0, 3),
        (0, 20, 0, None),
        (10, 0, 0, None),
        (4, 0, 100, None),
    ],
    ids=[
        "empty", "in hand", "settled in a cycle", "settled beyond it", "nothing committed", "full", "bytes",
    ],
)  # fmt: skip
def test_reading_stops_at_the_bounds(in_memory: int, pending: int, size: int, asked: int | None) -> None:
    """What is in hand is bounded, and what is settled besides by as much: a slow commit stops the reading."""
    intake, consumer = _intake(in_memory, pending, size)

    intake.poll(0)

    assert consumer.limits == ([] if asked is None else [asked])


def _intake(in_memory: int, pending: int, size: int) -> tuple[Intake, Asked]:
    partition = Partition.__new__(Partition)
    partition.state = State.LIVE
    partition.board = cast("Board", Counted(in_memory, pending, size))
    partition.paused = {}

    class OneLive:
        def live(self) -> list[Partition]:
            return [partition]

        def find(self, topic: str, number: int) -> None:
            """Nobody asks: nothing comes."""

    consumer = Asked()
    intake = Intake(
        cast("Consumer", consumer),
        cast("Ownership", OneLive()),
        cast("Journal", None),
        {},
        max_records=MAX_RECORDS,
        max_bytes=100,
        longest_delay_ms=0,
        is_low_on_disk=lambda: False,
        clock=lambda: 1000,
    )
    return intake, consumer
