"""Values with defaults, so that a test names only what it is about."""

from __future__ import annotations

from laneway.lanes.case import Case
from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.forward import Forward, ForwardKind
from laneway.lanes.lane import Parked, Raw
from laneway.lanes.record import Channel
from laneway.lanes.view import ChannelMark, Meta, PutParked
from laneway.store.port import StoreIdentity

IDENTITY = StoreIdentity("reminders", "invoices", 3)


def effect(state: EffectState = EffectState.SUCCEEDED, *, changed_ms: int = 1000, offset: int = 7) -> Effect:
    return Effect(
        state=state,
        message_id="job-1",
        offset=offset,
        lane="kcustomer-1",
        sequence=1,
        version=1,
        payload_hash=b"\x00\xff" * 8,
        rule=1,
        attempt=1,
        result_key="reminders/1",
        reason="",
        changed_ms=changed_ms,
    )


def parked(message_id: str = "job-2", value: bytes | None = b"{}") -> Parked:
    raw = Raw(b"key", value, (("trace", b"\x00"), ("none", None)), 5)
    return Parked(message_id, "effect-2", 1, 2000, raw)


def put_parked(*places: tuple[str, int, int]) -> list[PutParked]:
    return [PutParked(place, parked(f"{place}")) for place in places]


def case(case_id: str = "sequence-gap-1") -> Case:
    return Case(
        case_id=case_id,
        reason="sequence-gap",
        cause="",
        holds=True,
        lane="kcustomer-1",
        sequence=2,
        effect_key="",
        message_id="",
        offset=-1,
        attempts=0,
        required_check="Was it published?",
        opened_ms=3000,
    )


def forward(forward_id: str = "f1") -> Forward:
    return Forward(ForwardKind.DLQ, forward_id, b"k", None, (("h", b"v"),), Channel.SOURCE, 9)


def meta(cycle: int = 1, *, frontier: int = 10) -> Meta:
    marks = {Channel.SOURCE: ChannelMark(frontier, ((12, 14), (20, 21))), Channel.RETRY: ChannelMark(2)}
    return Meta("writer-1", cycle, marks, open_cases=1, parked_bytes=99, written_ms=4000)
