"""How a cycle becomes changelog entries, and what of a changelog may become entries of a ledger.

Pure. A changelog entry is a key of the ledger and its value, byte for byte (see `codec`), or a
tombstone; so a ledger is the fold of its changelog. What comes from a topic was perhaps written by
another release, or by something else: every key and value is read in full before any is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from laneway.errors import ChangelogFormatError, LedgerFormatError
from laneway.lanes.case import Case
from laneway.lanes.effect import Effect
from laneway.lanes.lane import Lane, Parked, ParkedKey
from laneway.lanes.view import Entry, Meta, PutCase, PutEffect, PutLane, PutParked
from laneway.store import codec
from laneway.store.port import Change

Value = Effect | Lane | Parked | Case | Meta


_FOREIGN: Final = (
    "find out what wrote it: only the workers of this group may write the ledger topic, and such an "
    "entry from one of them is a defect, report it"
)

_READERS: Final[dict[bytes, tuple[Callable[[bytes], str | ParkedKey], Callable[[bytes], Value]]]] = {
    codec.EFFECT: (codec.decode_key, codec.decode_effect),
    codec.LANE: (codec.decode_key, codec.decode_lane),
    codec.PARKED: (codec.decode_parked_key, codec.decode_parked),
    codec.CASE: (codec.decode_key, codec.decode_case),
}


def last_states(entries: Iterable[Entry], expired: Sequence[str] = ()) -> dict[bytes, Value | None]:
    """What a cycle leaves of each key; None where it forgets it."""
    last: dict[bytes, Value | None] = dict.fromkeys(map(codec.effect_key, expired))
    # A busy lane changes with every record of a cycle; its key is encoded once, too.
    lanes: dict[str, Lane | None] = {}
    for entry in entries:
        if isinstance(entry, PutEffect):
            last[codec.effect_key(entry.effect_key)] = entry.effect
        elif isinstance(entry, PutLane):
            lanes[entry.lane_id] = entry.lane
        elif isinstance(entry, PutParked):
            last[codec.parked_key(*entry.key)] = entry.parked
        elif isinstance(entry, PutCase):
            last[codec.case_key(entry.case_id)] = entry.case
    for lane, state in lanes.items():
        last[codec.lane_key(lane)] = state
    return last


def encode_cycle(entries: Iterable[Entry], meta: Meta, expired: Sequence[str] = ()) -> list[Change]:
    """A cycle as changelog entries; see `LedgerStore.changes`."""
    encode = codec.encode
    found = [
        (key, None if value is None else encode(value))
        for key, value in last_states(entries, expired).items()
    ]
    found.append((codec.META_KEY, encode(meta)))
    return found


def read_change(key: bytes, data: bytes | None) -> tuple[str | ParkedKey, Value | None]:
    """What a changelog entry is about, and its value; None for a tombstone.

    It is about an effect, lane or case, or the place of a follower, by the key's first byte; "" with the
    meta entry.

    Raises:
        ChangelogFormatError: this release cannot read it, or it has no business in a changelog.
    """
    readers = _READERS.get(key[:1])
    try:
        if readers is not None:
            decode_name, decode_value = readers
            return decode_name(key), None if data is None else decode_value(data)
        if key == codec.META_KEY and data is not None:
            return "", codec.decode_meta(data)
    except LedgerFormatError as error:
        newer = data is not None and data[:1] > bytes([codec.VALUE_VERSION])
        raise _refusal(error.what, codec.NEWER if newer else _FOREIGN) from error
    raise _refusal(
        f"a key of {len(key)} bytes that begins with {key[:1]!r} is of no kind that this release keeps in a "
        "changelog: written by a newer release, or by something else",
        f"{codec.NEWER}; if there is none, {_FOREIGN}",
    )


def read_entry(key: bytes, data: bytes | None) -> Entry | Meta:
    """The same as one value that says what to do."""
    name, value = read_change(key, data)
    if isinstance(value, Meta):
        return value
    if isinstance(name, tuple):
        return PutParked(name, value if isinstance(value, Parked) else None)
    if key.startswith(codec.EFFECT):
        return PutEffect(name, value if isinstance(value, Effect) else None)
    if key.startswith(codec.LANE):
        return PutLane(name, value if isinstance(value, Lane) else None)
    return PutCase(name, value if isinstance(value, Case) else None)


def _refusal(what: str, mend: str) -> ChangelogFormatError:
    return ChangelogFormatError(f"an entry of the changelog cannot be taken: {what}", mend=mend)
