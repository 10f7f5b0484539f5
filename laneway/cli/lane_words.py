"""Where a key stands, in plain words: why it does not move, and what a person does about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from laneway.cli.columns import age_text, instant_text
from laneway.cli.suggested import WHY, Asked
from laneway.consumer.inspection.lanes import Waiting, since_ms_of, states_of
from laneway.lanes.case import Case
from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.lane import Hold, HoldKind, Lane, Pause
from laneway.lanes.record import is_lane_of_one

_MEANING: Final = {
    "outcome-unknown": "its handler began, and nobody here knows whether effect {effect} happened",
    "effect-conflict": "another record has claimed effect {effect} with another payload",
}
"""What stands behind a reason that names no cause."""

_LATE_MS: Final = 60_000
"""A retry that is due for so long is no longer just about to run."""

_NOTHING_HOLDS: Final = "As of the last commit nothing holds it:"
_IN_HAND: Final = "What a worker has in hand is not known here; `offsets show` tells RUNNING and BLOCKED-BY"


@dataclass(frozen=True, slots=True)
class Standing:
    """A lane with all that its ledger knows of it.

    Attributes:
        name: as the ledger has it.
        partition_pause: nothing of the whole partition starts.
        case: the one that holds it.
        loose: its open cases that hold nothing.
        parked: sequence, offset and what is known besides; lowest first.
        effects: by effect key, the last first.
    """

    name: str
    topic: str
    partition: int
    lane: Lane
    partition_pause: Pause | None
    case: Case | None
    loose: Sequence[Case]
    parked: Sequence[tuple[int, int, Waiting]]
    effects: Sequence[tuple[str, Effect]]

    @property
    def key(self) -> str:
        """As the publisher has it."""
        return self.name[1:]

    @property
    def running(self) -> Sequence[tuple[str, Effect]]:
        """Effects that began, by the ledger: only with `on_unknown_outcome = "review"` does it say so."""
        return [each for each in self.effects if each[1].state is EffectState.RUNNING]

    @property
    def since_ms(self) -> int | None:
        """Since when it does not move, for what holds it or its whole partition; or since when it runs."""
        found = [since_ms_of(self.lane), self.partition_pause.since_ms if self.partition_pause else None]
        stands = [at_ms for at_ms in found if at_ms is not None]
        return min(stands or [effect.changed_ms for _, effect in self.running], default=None)

    @property
    def is_of_one(self) -> bool:
        """Whether it has no sequence key: nothing but its own effect is ordered."""
        return is_lane_of_one(self.name)


def states(standing: Standing) -> list[str]:
    """Where it stands, in fixed words: held, paused, parked, running; free when none of them is known."""
    found = states_of(standing.lane)
    if standing.partition_pause is not None and "paused" not in found:
        found.append("paused")
    if standing.running:
        found.append("running")
    return found or ["free"]


def why(standing: Standing, now_ms: int) -> str:
    """Why it does not move; or that nothing which was committed is in its way.

    A ledger tells what was committed. What a worker has in hand it does not know, but for an effect that was
    written down before it began.
    """
    found = []
    for pause, what in ((standing.partition_pause, "the partition"), (standing.lane.pause, "the lane")):
        if pause is not None:
            found.append(
                f"{what} was paused by {pause.actor} at {instant_text(pause.since_ms)}: {pause.reason}"
            )
    hold = standing.lane.hold
    if hold is not None:
        found.append(_held(hold, standing, now_ms))
    found += [_begun(effect_key, effect, now_ms) for effect_key, effect in standing.running]
    if found:
        return ". ".join(each[0].upper() + each[1:] for each in found)
    if standing.parked:
        return f"{_NOTHING_HOLDS} its parked records are being released. {_IN_HAND}"
    if standing.is_of_one:
        return f"{_NOTHING_HOLDS} a record of this effect is judged when it comes. {_IN_HAND}"
    if standing.lane.last is not None:
        return f"{_NOTHING_HOLDS} sequence {standing.lane.last + 1} runs when it comes. {_IN_HAND}"
    return f"{_NOTHING_HOLDS} its next record runs when it comes. {_IN_HAND}"


def _begun(effect_key: str, effect: Effect, now_ms: int) -> str:
    since = f"{instant_text(effect.changed_ms)} ({age_text(now_ms - effect.changed_ms)} ago)"
    return (
        f"effect {effect_key} at offset {effect.offset} is running, or its outcome is unknown: since {since}"
        "; a worker that dies leaves a case"
    )


def _held(hold: Hold, standing: Standing, now_ms: int) -> str:
    record = f"the record at offset {hold.offset}" if standing.is_of_one else f"sequence {hold.sequence}"
    if hold.kind is HoldKind.GAP:
        return f"{record} has not come, and offset {hold.offset} lies behind it"
    if hold.kind is HoldKind.RETRY:
        left_ms = hold.due_ms - now_ms
        due = f"due in {age_text(left_ms)}" if left_ms > 0 else "due now"
        at = instant_text(hold.due_ms)
        return f"{record} failed ({hold.reason}); attempt {hold.attempt} is {due}, at {at}"
    case = standing.case
    said = [_MEANING.get(hold.reason, "").format(effect=case.effect_key)] if case is not None else []
    said += [case.cause, case.note] if case is not None else []
    said = [each for each in said if each not in ("", hold.reason)]
    cause = f" ({': '.join(said)})" if said else ""
    attempts = f" after {case.attempts} attempts" if case is not None and case.attempts > 1 else ""
    return f"{record} waits for a person{attempts}: {hold.reason}{cause}"


def next_words(standing: Standing, now_ms: int) -> str:
    """What a person does now."""
    if standing.partition_pause is not None or standing.lane.pause is not None:
        return "Resume it when its reason is gone."
    hold = standing.lane.hold
    if hold is None:
        return "Decide the other cases." if standing.loose else "Nothing."
    if hold.kind is HoldKind.RETRY and now_ms - hold.due_ms > _LATE_MS:
        return (
            "It should have run. If `retry list` has it, its worker is busy or down; if not, its retry was "
            "deleted from the topic, and the key stays held."
        )
    if hold.kind is HoldKind.RETRY:
        return "Nothing: it runs by itself when it is due."
    if hold.kind is HoldKind.GAP:
        return "If it is late, have it sent: it is taken by itself. If it was never meant to come, skip it."
    return "Do the required check, then one of the commands below."


def next_commands(standing: Standing, words: Asked) -> list[str]:
    """The lines that would move it, or tell whether a worker has it in hand; ready to be pasted."""
    partition = ("--partition", str(standing.partition))
    found = []
    if standing.partition_pause is not None:
        found.append(words.line("resume", *partition, "--reason", WHY))
    if standing.lane.pause is not None:
        lane = ("--effect" if standing.is_of_one else "--lane", standing.key)
        found.append(words.line("resume", *lane, *partition, "--reason", WHY))
    for case in (standing.case, *standing.loose):
        if case is not None:
            first = standing.parked[0][0] if standing.parked else case.sequence + 1
            found += words.resolving(case.case_id, case.actions, first)
    if standing.lane.hold is not None and standing.lane.hold.kind is HoldKind.RETRY:
        found.append(words.line("retry", "list"))
    return found or [words.line("offsets", "show")]
