"""The case: what a machine must not decide, with all that a person needs to decide it.

The table below is the whole policy: for each reason what must be checked, and what may then be
done. A required check is one question in plain words (S18).
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from laneway.lanes.lane import Raw


class ReasonRule(msgspec.Struct, frozen=True):
    """What a person must check for one reason, and may do about it.

    Attributes:
        required_check: may name {effect_key}, {sequence} and {lane}.
        holding: actions while the case holds its lane.
        loose: actions when it holds nothing.
    """

    required_check: str
    holding: tuple[str, ...]
    loose: tuple[str, ...] = ()


_MOVE = ("skip", "discard")
_RUN = ("replay", "replay-with")

REASONS: Final[dict[str, ReasonRule]] = {
    "sequence-gap": ReasonRule(
        "Was sequence {sequence} of this key ever published? If it is late, wait: it will be taken.",
        ("skip", "set-next"),
    ),
    "sequence-stale": ReasonRule(
        "Sequence {sequence} came after the lane had passed it. Is effect {effect_key} still wanted?",
        (),
        ("mark-done", "discard"),
    ),
    "effect-conflict": ReasonRule(
        "Two different payloads claim effect {effect_key}. Which of them is right?",
        (*_RUN, *_MOVE, "mark-done"),
        ("mark-done", "discard"),
    ),
    "outcome-unknown": ReasonRule(
        "Did effect {effect_key} happen at the target?",
        ("mark-done", "run-again", "discard"),
        ("mark-done", "discard"),
    ),
    "attempts-exhausted": ReasonRule(
        "Is the dependency behind effect {effect_key} well again?",
        (*_RUN, *_MOVE, "mark-done"),
    ),
    "unclassified-failure": ReasonRule(
        "Did effect {effect_key} happen, and is the fault in the handler or in the record?",
        (*_RUN, *_MOVE, "mark-done"),
    ),
    "review-requested": ReasonRule(
        "The handler asked for a person first. May effect {effect_key} go on?",
        (*_RUN, *_MOVE, "mark-done"),
    ),
    "rejected": ReasonRule(
        "Effect {effect_key} was refused and lies in the DLQ. Can its key go on without it?",
        (*_RUN, *_MOVE, "mark-done"),
    ),
    "unknown-contract-version": ReasonRule(
        "Is a release on its way that understands the contract version of effect {effect_key}?",
        (*_RUN, *_MOVE, "mark-done"),
    ),
}


class Case(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An open manual-review item.

    Attributes:
        reason: a key of `REASONS`.
        cause: what stands behind the reason in one fixed word, such as an error class.
        holds: whether the lane waits for this case.
        attempts: deliveries so far.
        version: for compare-and-set; grows with each change.
        fingerprint: of the error, to group the like ones; "" without an error.
        record: the held record's bytes; None for a gap, whose record never came.
        note: the handler author's own words, when the verdict came with some.
    """

    case_id: str
    reason: str
    cause: str
    holds: bool
    lane: str
    sequence: int
    effect_key: str
    message_id: str
    offset: int
    attempts: int
    required_check: str
    opened_ms: int
    version: int = 1
    fingerprint: str = ""
    record: Raw | None = None
    note: str = ""

    @property
    def actions(self) -> tuple[str, ...]:
        """What an operator may do now, in the order of the table."""
        rule = REASONS[self.reason]
        return rule.holding if self.holds else rule.loose


def case_id(reason: str, topic: str, partition: int, lane: str, about: str) -> str:
    """Derive the id of a case: the same event gives the same id after any crash.

    Args:
        about: what tells it from other cases of the lane: the missing sequence of a gap, or
            position and attempt of a delivery. Attempts never restart, so an old command can
            never hit a new case.
    """
    seed = "\x00".join((reason, topic, str(partition), lane, about))
    return f"{reason}-{hashlib.sha256(seed.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def required_check(reason: str, *, effect_key: str, sequence: int, lane: str) -> str:
    """The question a person must answer, with this case's names filled in."""
    rule = REASONS[reason]
    return rule.required_check.format(effect_key=effect_key, sequence=sequence, lane=lane)
