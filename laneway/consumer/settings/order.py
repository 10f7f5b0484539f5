"""What order each source keeps under these settings, said so that nobody loses it without knowing.

Whoever writes an `[envelope]` table describes his records, and without a sequence_key in it nothing is
ordered. Written as "none" that is a decision; left out it may be an oversight, and is called one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laneway.consumer.settings.load import Loaded
from laneway.consumer.settings.model import NO_PLACE


@dataclass(frozen=True, slots=True)
class HeldOrder:
    """The order of one source.

    Attributes:
        text: one line for a person, the source in front.
        is_meant: somebody wrote it, or it is the default; False where order went by leaving a key out.
    """

    source: str
    text: str
    is_meant: bool


def held_orders(loaded: Loaded, sources: Sequence[str] = ()) -> tuple[HeldOrder, ...]:
    """What order holds for each of these sources, by default for each one configured."""
    return tuple(_held_order(loaded, source) for source in sources or loaded.settings.sources)


def _held_order(loaded: Loaded, source: str) -> HeldOrder:
    place = loaded.settings.envelope_of(source).sequence_key
    if place is not None:
        return HeldOrder(source, f"{source}: {loaded.settings.lanes.order} order by {place}", True)
    keys = (("source", source, "envelope", "sequence_key"), ("envelope", "sequence_key"))
    if any(key in loaded.written and loaded.written[key].value == NO_PLACE for key in keys):
        return HeldOrder(source, f'{source}: no order, as sequence_key = "{NO_PLACE}" says', True)
    return HeldOrder(
        source,
        f"{source}: NO ORDER: [envelope] is written without sequence_key; write "
        f'sequence_key = "json:/sequenceKey", or "{NO_PLACE}" on purpose',
        False,
    )
