"""What a corrected value changes, in lines for a person: places, and values only when they are asked for."""

from __future__ import annotations

from typing import Final

from laneway.cli.columns import counted
from laneway.cli.output import escaped
from laneway.consumer.operations import corrected

_SHOWN: Final = 100
"""Differences that are shown, at most."""


def differing_lines(old: bytes | None, new: bytes, *, payload: bool) -> list[str]:
    """The members that differ, one a line.

    Args:
        payload: whether their values are shown.
    """
    found = corrected.differences(old, new)
    if found is None:
        return ["one of the two is no JSON, so their members cannot be compared"]
    if not found:
        return ["the file says what the record says: nothing differs"]
    lines = [f"{counted(len(found), 'difference')} (+ new, - gone, ~ another value):"]
    for each in found[:_SHOWN]:
        values = f"  {_shown(each.old)} -> {_shown(each.new)}" if payload else ""
        lines.append(f"  {each.sign} {escaped(each.pointer) or '(the whole)'}{values}")
    if len(found) > _SHOWN:
        lines.append(f"  ... and {len(found) - _SHOWN} more")
    return lines


def _shown(value: object) -> str:
    return "(none)" if value is corrected.MISSING else escaped(repr(value))
