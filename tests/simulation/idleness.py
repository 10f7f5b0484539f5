"""Whether a worker's next turn could do anything: most turns of most processes could not, and are left out.

Boundary: it looks and changes nothing. In doubt a process is not idle; a turn too many costs time only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.broker import Group, Member

if TYPE_CHECKING:
    from tests.simulation.clients import FakeConsumer
    from tests.simulation.process import Process


def is_idle(process: Process) -> bool:
    """Whether there is nothing to take, read, judge, settle or tell, as far as time plays no part in it."""
    threads, worker = process.threads, process.worker
    if threads is None or threads.in_hand or process.has_jobs or not worker._settler.idle:
        return False
    ownership, intake, producer = worker._ownership, worker._intake, process.producer
    if ownership._opening or ownership._locked or ownership._kept or ownership._lingering:
        return False
    if intake._ends or intake._unread or (producer is not None and producer.untold):
        return False
    now_ms = process.world.clock.now_ms
    for partition in ownership._owned.values():
        board = partition.board
        if board is None or partition.failure is not None:
            return False
        if board.in_memory or board.pending or board.held_back or len(board._lanes) or partition.is_behind():
            return False
        due_ms = board.next_due_ms
        if due_ms is not None and due_ms <= now_ms:
            return False
    return not _has_news(process.consumer)


def _has_news(consumer: FakeConsumer) -> bool:
    if consumer.untold or consumer.blind or _is_called(consumer._cluster.group, consumer._member):
        return True
    for place, position in consumer._positions.items():
        if place in consumer._paused:
            continue
        end = consumer._cluster.log(*place).stable
        if position != end or consumer._ended.get(place) != end:
            return True
    return False


def _is_called(group: Group, member: Member | None) -> bool:
    """Whether the group wants anything of a member, or has anything for it."""
    if member is None or not group.has(member):
        return True
    if not group.incremental:
        return (
            member.ident not in group._joined if group.is_waiting else member.generation != group.generation
        )
    target = group._target_of(member)
    return member.owned != target and (
        not member.owned <= target
        or not target <= {number for other in group.members.values() for number in other.owned}
    )
