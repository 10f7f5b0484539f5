"""The command: what an operator wants done to a case, a lane or the partition.

It travels on the commands topic to the lane's owner, so it is ordered with the work and needs no access to
the worker's disk. What may live here: the value, and the table of what each action needs. Whether it fits
what the ledger knows now is `resolving`'s business. Who may command is decided by who may write to the topic;
the actor's name is a claim, kept for the audit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

COMMAND_FORMAT: Final = 1
VALUE_HEADER: Final = "laneway-value"
"""Carries `Command.value`."""

RECORD_HEADER: Final = "laneway-record-value"
"""Carries the value of a letter or of a repeat."""


class ActionRule(msgspec.Struct, frozen=True):
    """What an action needs and does.

    Attributes:
        needs_case: False for what concerns a lane or the partition as it is.
        runs: it hands the held record to the handler; the command settles with that run's verdict.
        fields: members of the command that must be there besides.
    """

    needs_case: bool = True
    runs: bool = False
    fields: tuple[str, ...] = ()


ACTIONS: Final[Mapping[str, ActionRule]] = {
    "replay": ActionRule(runs=True),
    "replay-with": ActionRule(runs=True, fields=("value",)),
    "run-again": ActionRule(runs=True),
    "mark-done": ActionRule(),
    "skip": ActionRule(),
    "discard": ActionRule(),
    "set-next": ActionRule(fields=("sequence",)),
    "replay-letter": ActionRule(needs_case=False, runs=True, fields=("letter",)),
    "rerun": ActionRule(needs_case=False, runs=True, fields=("repeat",)),
    "pause": ActionRule(needs_case=False),
    "resume": ActionRule(needs_case=False),
}


class Letter(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A dead letter that is to run again. The ledger has its identity and not its bytes, so those travel.

    Attributes:
        forward_id: names the letter.
        effect_key, offset, attempt: of the delivery that it came from, in the source partition; an effect
            that has moved since refuses the command.
        key, value, headers, timestamp_ms: the record as it was published; no value beside a corrected one.
        out_of_order: it may run although later records of its key have run.
    """

    forward_id: str
    effect_key: str
    offset: int
    attempt: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0
    out_of_order: bool = False


class Repeat(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """An effect that is to happen once more. Its record travels, for the ledger has no bytes of it.

    Attributes:
        effect_key, offset: of the effect, as the ledger has it.
        run: the number of this rerun; an effect happens once for each.
        behind: the effect of the same lane that has to have succeeded in this rerun before; "" for the first.
        key, value, headers, timestamp_ms: the record as it was published.
    """

    effect_key: str
    offset: int
    run: int
    behind: str = ""
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0


class Command(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """One command, as the value of a record of the commands topic.

    Attributes:
        command_id: names it, and its answer; made by whoever sends it.
        action: a key of `ACTIONS`.
        actor: who says to have sent it.
        reason: why, in that person's words.
        group, topic, partition: the source partition whose owner it is for.
        lane: the lane as the case has it; "" for the partition itself.
        case_id, version: the case as its sender saw it; another version refuses the command.
        sequence: of set-next: the number that the lane waits for from then on.
        result_key: of mark-done: where the result lies, when somebody knows.
        value: of replay-with, and of a corrected replay-letter: the corrected value, whole, as a publisher
            would send it.
        letter: of replay-letter: the dead letter.
        repeat: of rerun: the effect.
    """

    format: int
    command_id: str
    action: str
    actor: str
    reason: str
    group: str
    topic: str
    partition: int
    lane: str = ""
    case_id: str = ""
    version: int = 0
    sequence: int | None = None
    result_key: str | None = None
    value: bytes | None = None
    letter: Letter | None = None
    repeat: Repeat | None = None

    @property
    def rule(self) -> ActionRule:
        """What the action needs and does."""
        return ACTIONS[self.action]


def encode_command(command: Command) -> bytes:
    """The whole command as the value of a record; what it has of bytes is a third longer there."""
    return msgspec.json.encode(command)


def packed(command: Command) -> tuple[bytes, tuple[tuple[str, bytes], ...]]:
    """Value and headers of the record that carries it; values of records are headers, as long as they are.

    So whatever fits into the source topic fits into the commands topic, which has room for an envelope.
    """
    headers = []
    if command.value is not None:
        headers.append((VALUE_HEADER, command.value))
        command = msgspec.structs.replace(command, value=None)
    for name in ("letter", "repeat"):
        carried = getattr(command, name)
        if carried is not None and carried.value is not None:
            headers.append((RECORD_HEADER, carried.value))
            bare = msgspec.structs.replace(carried, value=None)
            command = msgspec.structs.replace(command, **{name: bare})
    return encode_command(command), tuple(headers)


def unpacked(command: Command, headers: Iterable[tuple[str, bytes | None]]) -> Command:
    """The inverse: the command with the values that its record has as headers."""
    for header, value in headers:
        if header == VALUE_HEADER:
            command = msgspec.structs.replace(command, value=value)
        elif header == RECORD_HEADER:
            for name in ("letter", "repeat"):
                carried = getattr(command, name)
                if carried is not None:
                    whole = msgspec.structs.replace(carried, value=value)
                    command = msgspec.structs.replace(command, **{name: whole})
    return command
