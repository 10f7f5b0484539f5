"""A record of the commands topic: reading the command that it carries, and refusing what is none.

Who may write there may command, so what is there is mostly meant; but nothing there may stop the owner.
"""

from __future__ import annotations

from typing import Final

import msgspec

from laneway.lanes.command import ACTIONS, COMMAND_FORMAT, Command, Letter, Repeat, unpacked
from laneway.lanes.envelope import MAX_TEXT_BYTES
from laneway.lanes.failures import bounded
from laneway.lanes.forward import Home
from laneway.lanes.pointer import MAX_INTEGER
from laneway.lanes.record import Record

_decoder: Final = msgspec.json.Decoder(Command)


def read_command(record: Record, home: Home) -> None:
    """Fill a record of the commands topic from its value.

    Sets `record.command`, `lane` and `message_id`, or `record.fault` when it is none for this owner.
    """
    record.command = None
    record.fault = ""
    try:
        command = unpacked(_decoder.decode(record.value or b""), record.headers)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        record.fault = "broken-command"
        return
    record.fault = _fault(command, home)
    if record.fault:
        return
    record.command = msgspec.structs.replace(
        command, actor=bounded(command.actor), reason=bounded(command.reason)
    )
    record.message_id = command.command_id
    record.lane = command.lane


def _fault(command: Command, home: Home) -> str:
    """Why a command that can be read is none for this owner, in a fixed word; "" when it is one."""
    if command.format != COMMAND_FORMAT or command.action not in ACTIONS:
        return "unknown-command"
    if (command.group, command.topic, command.partition) != (home.group, home.topic, home.partition):
        return "foreign-command"
    rule = command.rule
    texts = (command.command_id, command.lane, command.case_id, command.result_key or "")
    if not command.command_id or any(_is_hostile(text) for text in texts):
        return "broken-command"
    if rule.needs_case and not (command.case_id and command.lane):
        return "broken-command"
    if command.lane and command.lane[0] not in "ke":
        return "broken-command"
    if any(getattr(command, name) is None for name in rule.fields):
        return "broken-command"
    if command.sequence is not None and not 0 <= command.sequence <= MAX_INTEGER:
        return "broken-command"
    letter = command.letter
    if letter is not None and (command.action != "replay-letter" or not command.lane or _is_broken(letter)):
        return "broken-command"
    repeat = command.repeat
    if repeat is not None and (command.action != "rerun" or not command.lane or _is_no_repeat(repeat)):
        return "broken-command"
    return ""


def _is_no_repeat(repeat: Repeat) -> bool:
    """Whether a repeat says what none of ours could."""
    numbers = (repeat.offset, repeat.run - 1, abs(repeat.timestamp_ms))
    names = (repeat.effect_key, repeat.behind, *(name for name, _ in repeat.headers))
    return (
        not repeat.effect_key
        or any(not 0 <= number <= MAX_INTEGER for number in numbers)
        or any(_is_hostile(name) for name in names)
    )


def _is_broken(letter: Letter) -> bool:
    """Whether a letter says what none of ours could."""
    numbers = (letter.offset, letter.attempt, abs(letter.timestamp_ms))
    names = (letter.forward_id, letter.effect_key, *(name for name, _ in letter.headers))
    return (
        not (letter.forward_id and letter.effect_key)
        or any(not 0 <= number <= MAX_INTEGER for number in numbers)
        or any(_is_hostile(name) for name in names)
    )


def _is_hostile(text: str) -> bool:
    """Whether the ledger could not store it, or nobody could have meant it."""
    try:
        return len(text.encode()) > MAX_TEXT_BYTES + 1
    except UnicodeEncodeError:
        return True
