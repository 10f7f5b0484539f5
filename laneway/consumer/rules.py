"""From settings to what the pure rules understand. The only place that knows both."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

from laneway.consumer.settings.model import NO_PLACE, Settings
from laneway.errors import ConfigError
from laneway.lanes.admission import Order
from laneway.lanes.envelope import Envelope, EnvelopeRules
from laneway.lanes.rules import Rules

MAX_RUN: Final = 256
HAND_OVER_CUTS: Final = 5
"""A worker reads no source on when twice `max_in_flight` is in hand or settled, and a cycle under way takes
as much at most: so a worker elsewhere cannot have read more than five times that beyond its last cycle."""


def rules_of(settings: Settings) -> Rules:
    """The rules of the lanes."""
    lanes, ledger = settings.lanes, settings.ledger
    moves = ledger.replication == "changelog"
    reviews = ledger.on_unknown_outcome == "review"
    return Rules(
        order=Order(lanes.order),
        first_sequence=None if lanes.first_sequence == "any" else lanes.first_sequence,
        pass_after_reject=lanes.after_reject == "pass",
        hold_unknown_version=lanes.on_unknown_version == "hold",
        delays_ms=settings.retry.delays_ms,
        max_retries_waiting=settings.retry.max_waiting_per_partition,
        max_parked_per_lane=lanes.max_parked_per_lane,
        max_parked_bytes=lanes.max_parked_bytes_per_partition,
        max_open_cases=lanes.max_open_cases_per_partition,
        # What stands behind a delivery in its run has an intent too, and would be asked about after a crash.
        max_run=1 if reviews else MAX_RUN,
        intents=reviews,
        max_replays=lanes.max_replays,
        hand_over_slack=HAND_OVER_CUTS * lanes.max_in_flight if moves else 0,
    )


def envelope_of(settings: Settings, source: str, decode: Callable[[bytes], object] | None) -> Envelope:
    """The envelope reader of one source.

    Raises:
        ConfigError: a place cannot be read.
    """
    places = settings.envelope_of(source)
    return Envelope(
        EnvelopeRules(
            message_id=places.message_id,
            effect_key=places.effect_key,
            sequence_key=_unless_none(places.sequence_key),
            sequence=_unless_none(places.sequence),
            version=places.version,
            payload=places.payload,
            accepts=places.accepts,
            tombstones=places.tombstones,
            needs_sequence=settings.lanes.order != "arrival",
        ),
        decode,
    )


def temporary_of(settings: Settings) -> tuple[type[BaseException], ...]:
    """The classes of `retry.temporary`.

    Raises:
        ConfigError: a name leads nowhere, or not to an exception class.
    """
    return tuple(_exception_class(name) for name in settings.retry.temporary)


def _exception_class(name: str) -> type[BaseException]:
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            "this names no class that can be imported",
            where=f"retry.temporary = {name}",
            mend="write it as module.Class, for example builtins.TimeoutError",
        ) from error
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise ConfigError(
            "this is no exception class",
            where=f"retry.temporary = {name}",
            mend="name a class that derives from Exception, for example builtins.TimeoutError",
        )
    return found


def _unless_none(place: str | None) -> str | None:
    return None if place == NO_PLACE else place
