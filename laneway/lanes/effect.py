"""The effect: what the handler does to the world, recorded once per effect key.

What may live here: the states, the legal transitions as one table, and the stored value.
An illegal transition is an error, never a log line (S3).

    queued ──► running ──► succeeded
       │          ├──────► quarantined
       │          ├──────► retry_wait ──► running …
       │          └──────► in_review ───► running | succeeded | discarded
       └────────► … the same ends: in run-again mode no `running` is written
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from laneway.errors import LanewayError


class EffectState(IntEnum):
    """Where an effect stands. The numbers are part of the ledger's format."""

    QUEUED = 0
    RUNNING = 1
    RETRY_WAIT = 2
    SUCCEEDED = 3
    QUARANTINED = 4
    IN_REVIEW = 5
    DISCARDED = 6


FINISHED = frozenset({EffectState.SUCCEEDED, EffectState.QUARANTINED, EffectState.DISCARDED})
OPEN = frozenset({EffectState.RUNNING, EffectState.RETRY_WAIT, EffectState.IN_REVIEW})

_ENDS = frozenset(
    {EffectState.SUCCEEDED, EffectState.QUARANTINED, EffectState.RETRY_WAIT, EffectState.IN_REVIEW}
)

# An absent effect is QUEUED. A succeeded effect never changes again: that is deduplication.
# Quarantined and discarded ones reopen only through a corrected payload or an operator.
TRANSITIONS: dict[EffectState, frozenset[EffectState]] = {
    EffectState.QUEUED: _ENDS | {EffectState.RUNNING, EffectState.DISCARDED},
    EffectState.RUNNING: _ENDS | {EffectState.DISCARDED},
    EffectState.RETRY_WAIT: _ENDS | {EffectState.RUNNING, EffectState.DISCARDED},
    EffectState.IN_REVIEW: _ENDS | {EffectState.RUNNING, EffectState.DISCARDED},
    EffectState.QUARANTINED: _ENDS | {EffectState.RUNNING, EffectState.DISCARDED},
    EffectState.DISCARDED: _ENDS | {EffectState.RUNNING},
    EffectState.SUCCEEDED: frozenset(),
}


class IllegalTransitionError(LanewayError):
    """The rules asked for a change of state that the table does not know: a defect in Laneway."""


class Replay(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Where deliveries come from that a dead letter was the beginning of.

    Attributes:
        letter: forward id of the dead letter that was replayed last.
        count: how often one of this effect was replayed.
    """

    letter: str
    count: int


class Effect(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """What the ledger knows of one effect.

    Attributes:
        offset: the source position of the delivery that made it.
        rule: number of the canonical form that `payload_hash` was taken from.
        payload_hash: SHA-256 of the canonical payload, cut to 16 bytes.
        attempt: deliveries that were handed to the handler and counted.
        reason: of the last transition.
        due_ms: epoch ms of the next admission while in retry_wait, else 0.
        case_id: the case that holds it, or "".
        replay: its dead letter was replayed; what becomes of it is known by that from then on.
        run: 0 until somebody repeats it on purpose; then the number of that rerun. Above 0 it has succeeded
            before, whatever its state is.
        succeeded: payload hash of a success of another delivery, which a person had this one replayed over,
            with another payload. Whatever came of the replay: a copy of what succeeded does not run again.
    """

    state: EffectState
    message_id: str
    offset: int
    lane: str
    sequence: int
    version: int
    payload_hash: bytes
    rule: int
    attempt: int
    result_key: str | None
    reason: str
    changed_ms: int
    first_failed_ms: int = 0
    due_ms: int = 0
    case_id: str = ""
    replay: Replay | None = None
    run: int = 0
    succeeded: bytes | None = None


def check_transition(effect_key: str, before: Effect | None, after: EffectState) -> None:
    """Raise when the table does not allow this step.

    Raises:
        IllegalTransitionError: always a defect in Laneway; the partition stops on it.
    """
    state = before.state if before is not None else EffectState.QUEUED
    if after not in TRANSITIONS[state]:
        raise IllegalTransitionError(
            f"an effect cannot go from {state.name.lower()} to {after.name.lower()}",
            where=f"effect {effect_key!r}",
            mend="report this with the journal of the partition; its work is stopped, nothing is lost",
        )
