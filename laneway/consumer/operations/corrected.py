"""A corrected value for the record of a case: what it changes, and whether its owner can read it.

The owner judges again; what is said here spares a round trip, and a surprise. Values are compared, never
told: a difference names the place of a member, and whoever shows it decides whether values go with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from laneway.consumer.inspection.topics import extents, read
from laneway.consumer.kafka.cluster import Cluster, Watermarks
from laneway.consumer.operations.commands import lane_of
from laneway.consumer.operations.letters import Wanted
from laneway.consumer.rules import envelope_of
from laneway.consumer.settings.model import Settings
from laneway.lanes.case import Case
from laneway.lanes.follower import revive_case
from laneway.lanes.forward import Home, ReviewNews
from laneway.lanes.lane import Raw
from laneway.lanes.record import Channel, Record

MISSING: Final = object()
"""In the place of a value: there is no such member on this side."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One member that is not the same; `pointer` is its JSON pointer, "" the whole."""

    pointer: str
    old: object
    new: object

    @property
    def sign(self) -> str:
        """`+` for a member that is new, `-` for one that is gone, `~` for one with another value."""
        return "+" if self.old is MISSING else "-" if self.new is MISSING else "~"


def published(settings: Settings, cluster: Cluster, news: ReviewNews, *, timeout_s: float) -> Raw | None:
    """The record of a case as it was published; None when its topic has it no more."""
    place = (news.topic, news.partition)
    span = extents(cluster, [news.topic]).get(place)
    if span is None or not span.start <= news.offset < span.end:
        return None
    here = {place: Watermarks(news.offset, news.offset + 1)}
    for record in read(settings, here, timeout_s=timeout_s):
        return Raw(record.key, record.value, record.headers, record.timestamp_ms)
    return None


def refusal(settings: Settings, news: ReviewNews, original: Raw, value: bytes | None) -> str:
    """Why a value cannot stand for the record of a case, by the envelope of these settings; "" when it can.

    Args:
        value: None asks it of the original itself.
    """
    home = Home(news.group, news.topic, news.partition)
    place = (lane_of(news), news.sequence, news.effect_key, news.message_id, news.offset)
    return _refusal(settings, home, place, original, value)


def refusal_for_letter(settings: Settings, wanted: Wanted, original: Raw, value: bytes | None) -> str:
    """The same for the record of a dead letter."""
    letter = wanted.letter
    home = Home(settings.group, wanted.topic, wanted.partition)
    place = (wanted.lane, letter.sequence or 0, wanted.effect_key, letter.message_id or "", wanted.offset)
    return _refusal(settings, home, place, original, value)


def _refusal(
    settings: Settings,
    home: Home,
    place: tuple[str, int, str, str, int],
    original: Raw,
    value: bytes | None,
) -> str:
    lane, sequence, effect_key, message_id, offset = place
    case = Case(
        "", "rejected", "", True, lane, sequence, effect_key, message_id, offset, 1, "", 0, record=original
    )
    record = Record(Channel.COMMANDS, 0, None, None)
    checked = original.value if value is None else value
    return revive_case(record, case, checked, envelope_of(settings, home.topic, None), home)


def differences(old: bytes | None, new: bytes) -> list[Difference] | None:
    """The members that differ, in the order of the new value; None when one of the two is no JSON."""
    try:
        return list(_differing("", _parsed(old or b""), _parsed(new)))
    except (ValueError, RecursionError):
        return None


def _parsed(value: bytes) -> object:
    # Numbers are compared as written: a float would make two long ones the same.
    return json.loads(value, parse_float=Decimal)


def _differing(pointer: str, old: object, new: object) -> Iterator[Difference]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*new, *(name for name in old if name not in new)]:
            token = str(name).replace("~", "~0").replace("/", "~1")
            yield from _differing(f"{pointer}/{token}", old.get(name, MISSING), new.get(name, MISSING))
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            before = old[index] if index < len(old) else MISSING
            after = new[index] if index < len(new) else MISSING
            yield from _differing(f"{pointer}/{index}", before, after)
    elif type(old) is not type(new) or old != new:
        yield Difference(pointer, old, new)
