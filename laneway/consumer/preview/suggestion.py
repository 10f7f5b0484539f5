"""Settings that fit what was seen, as lines of laneway.toml, each with its reason.

A suggestion is an opinion with a threshold: holes in one key of ten mean that numbers are not
contiguous; in fewer they are what they look like, records that are missing. Whoever pastes it should read it:
what promises less than the default says what is lost by it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from laneway.consumer.preview.findings import Numbers
from laneway.consumer.preview.preview import Report, is_numbered
from laneway.consumer.preview.trial import Seen
from laneway.consumer.settings.model import NO_PLACE, Settings

MOST: Final = 0.9
"""From this share of keys on, what is true of them is taken for the rule."""

_LOST: Final[dict[tuple[str, object], str]] = {
    (
        "order",
        "increasing",
    ): "lost records are passed over in silence, swapped ones become sequence-stale cases",
    ("order", "arrival"): "numbers are not looked at: lost and swapped records are passed over in silence",
    ("first_sequence", "any"): "a key whose first records are lost begins with a later one in silence",
    ("tombstones", "skip"): "records without a value are passed over in silence",
}
"""What a value gives up of the promise."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """The numbers of all keys, in short.

    Attributes:
        holey: keys of which numbers are missing.
        late: keys in which a number came behind a higher one.
        repeating: of those, the keys in which more came late than was missing.
        first: the number that most keys begin with; None when there is no such number.
        fitting: keys that begin with the commonest number, in each of their partitions.
    """

    keys: int
    holey: int
    late: int
    repeating: int
    first: int | None
    fitting: int

    @classmethod
    def of(cls, lanes: Sequence[Sequence[Numbers]]) -> _Keys:
        """A key is counted once, though it may have a lane in each of several partitions."""
        firsts = Counter(first for key in lanes for first in {each.first for each in key})
        first, _ = firsts.most_common(1)[0] if firsts else (1, 0)
        fitting = sum(all(each.first == first for each in key) for key in lanes)
        return cls(
            keys=len(lanes),
            holey=sum(any(each.missing for each in key) for key in lanes),
            late=sum(any(each.late for each in key) for key in lanes),
            repeating=sum(any(each.late > each.jumped for each in key) for key in lanes),
            first=first if fitting >= MOST * len(lanes) else None,
            fitting=fitting,
        )


def lines(settings: Settings, report: Report) -> list[str]:
    """The lines, ready to be pasted. Where several sources are read each has an envelope of its own."""
    several = len(report.seen) > 1
    found: list[str] = []
    for source, seen in report.seen.items():
        if found:
            found.append("")
        found.append(f"[source.{json.dumps(source)}.envelope]" if several else "[envelope]")
        found += _envelope(settings, source, seen)
    return [*found, "", "[lanes]", *_lanes(settings, report)]


def _envelope(settings: Settings, source: str, seen: Seen) -> Iterator[str]:
    places = settings.envelope_of(source)
    for name in ("message_id", "effect_key", "sequence_key", "sequence", "version", "payload"):
        value = getattr(places, name)
        if value is None and name == "sequence":
            continue  # without a sequence key it must not be written
        why = _why_of_place(seen, name)
        yield _line(name, NO_PLACE if value is None else value, why)
    accepts = sorted({*places.accepts, *_versions(seen, "unknown")})
    unknown = seen.versions.of("unknown")
    why = (
        f"{_counted(unknown, 'record')} of a version that is not accepted now: can the handler take them? "
        "Accepted, they reach it; now nothing of such a version does"
    )
    yield _line("accepts", accepts, why if unknown else "")
    tombstones = seen.fates.of("dlq", "tombstone")
    yield _line(
        "tombstones",
        "skip" if tombstones else places.tombstones,
        f'{_counted(tombstones, "record")} without a value; "deliver" needs ids in the key or in headers'
        if tombstones
        else "",
    )


def _why_of_place(seen: Seen, name: str) -> str:
    """That many records have nothing usable at this place."""
    count = sum(
        tally.records
        for kind, reason, tally in seen.fates
        if kind == "dlq" and f"-field: {name} at " in reason
    )
    if not count:
        return ""
    return f"unusable in {count} of {_counted(seen.records, 'record')}" + (
        ": is it the right place?" if count >= (1 - MOST) * seen.records else ""
    )


def _versions(seen: Seen, kind: str) -> list[int]:
    return [int(name) for other, name, _ in seen.versions if other == kind and name.isdigit()]


def _lanes(settings: Settings, report: Report) -> Iterator[str]:
    lanes = settings.lanes
    numbered = [source for source in report.seen if is_numbered(settings, source)]
    lanes_of: dict[tuple[str, str], list[Numbers]] = {}
    for source in numbered:
        for _, key, each in report.numbers(source):
            lanes_of.setdefault((source, key), []).append(each)
    keys = _Keys.of(list(lanes_of.values()))
    if not lanes_of:
        yield from _without_numbers(settings, report, numbered)
        return
    order, why = _order(keys)
    yield _line("order", order, why)
    begun = all(report.window.begins_at_the_start(place) for place in report.trials)
    cut_off = "" if begun else "; what was read does not begin where the topic began"
    if keys.first is None:
        yield _line("first_sequence", "any", f"keys begin with different numbers{cut_off}")
    else:
        yield _line(
            "first_sequence",
            keys.first,
            f"{keys.fitting} of {_counted(keys.keys, 'key')}{cut_off if keys.first != 1 else ''}",
        )
    yield _line("after_reject", lanes.after_reject, "")
    yield _line("on_unknown_version", lanes.on_unknown_version, "")


def _order(keys: _Keys) -> tuple[str, str]:
    many = (1 - MOST) * keys.keys
    if keys.repeating > many:
        return "arrival", f"in {keys.repeating} of {_counted(keys.keys, 'key')} numbers repeat or go back"
    if keys.holey > many:
        holes = f"numbers are left out in {keys.holey} of {_counted(keys.keys, 'key')}"
        if keys.late > many:
            return "arrival", f"{holes}, and in {keys.late} they come late"
        return "increasing", holes
    if keys.holey:
        return (
            "contiguous",
            f"of {_counted(keys.keys, 'key')} {keys.holey} miss numbers, and each waits for a person",
        )
    return "contiguous", f"no number is missing in {_counted(keys.keys, 'key')}"


def _without_numbers(settings: Settings, report: Report, numbered: Sequence[str]) -> Iterator[str]:
    lanes = settings.lanes
    unusable = sum(
        count.records
        for source in numbered
        for kind, reason, count in report.seen[source].fates
        if kind == "dlq" and "-field: sequence at " in reason
    )
    if unusable:
        yield _line("order", "arrival", f"no record has a usable number, {unusable} have none at its place")
    else:
        yield _line("order", lanes.order, "")
    yield _line("first_sequence", lanes.first_sequence, "")
    yield _line("after_reject", lanes.after_reject, "")
    yield _line("on_unknown_version", lanes.on_unknown_version, "")


def _line(name: str, value: object, why: str) -> str:
    # Strings, numbers and arrays are written in TOML as in JSON.
    line = f"{name} = {json.dumps(value)}"
    lost = _LOST.get((name, value)) if isinstance(value, str) else None
    said = "; ".join(filter(None, (why, lost and f"with {json.dumps(value)} {lost}")))
    return f"{line}  # {said}" if said else line


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
