"""Parked followers as records again."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.errors import LanewayError
from laneway.lanes.envelope import Envelope
from laneway.lanes.forward import Home
from laneway.lanes.lane import Parked, ParkedKey
from laneway.lanes.record import Channel, Record, is_lane_of_one


class LostFollowersError(LanewayError):
    """The ledger contradicts itself: the partition stops, nothing is lost."""


def revive_all(
    found: Sequence[tuple[ParkedKey, Parked]], lane: str, envelope: Envelope, home: Home
) -> list[Record]:
    """Read back the followers of a lane that counts some.

    Raises:
        LostFollowersError: there is none; running what comes next would break the order.
        TemporaryFailure, Unavailable: as raised by the pipeline's `decode`; read them again later.
    """
    if not found:
        raise LostFollowersError(
            "a lane counts parked records and the ledger has none",
            where=f"{home.topic}-{home.partition}, lane {lane[1:]!r}",
            mend="stop the group and report this; no record was lost or run",
        )
    return [revive(key, parked, envelope, home) for key, parked in found]


def revive(key: ParkedKey, parked: Parked, envelope: Envelope, home: Home) -> Record:
    """Read a follower back. Its identity is the stored one, whatever is configured by now.

    A fault that the envelope finds today is judged in turn: the follower's place in the lane is
    known, and rejecting it out of turn would let others pass.
    """
    lane, sequence, offset = key
    raw = parked.raw
    record = Record(Channel.SOURCE, offset, raw.key, raw.value, raw.headers, raw.timestamp_ms)
    envelope.read(record, home.topic, home.partition)
    record.misfit = record.misfit or record.fault
    record.fault = record.skip = ""
    record.message_id, record.effect_key = parked.message_id, parked.effect_key
    record.sequence_key = None if is_lane_of_one(lane) else lane[1:]
    record.sequence, record.lane, record.version = sequence, lane, parked.version
    record.parked = True
    return record
