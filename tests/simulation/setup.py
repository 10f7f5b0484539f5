"""The real settings and names that a configuration of the simulation stands for."""

from __future__ import annotations

from pathlib import Path

from laneway.consumer.settings.model import (
    CycleSettings,
    EnvelopeSettings,
    LanesSettings,
    LedgerSettings,
    RetrySettings,
    Settings,
)
from laneway.consumer.topics import TopicNames
from tests.simulation.plan import Config

SOURCE = "invoices"
NAMES = TopicNames(
    SOURCE, *(f"{SOURCE}.reminders.{kind}" for kind in ("retry", "commands", "dlq", "review", "ledger"))
)
LEDGER = NAMES.ledger
EMITTED = "reminded"
HANDLER_TIMEOUT_MS = 2000
ASYNC_TIMEOUT_MS = 300
"""Shorter: a handler that is cancelled is one that goes on to something else."""
TRANSACTION_TIMEOUT_MS = 1500
DELETE_RETENTION_MS = 12_000


def settings_of(config: Config) -> Settings:
    """What a team would have written into its laneway.toml."""
    return Settings(
        group="reminders",
        sources=(SOURCE,),
        state_dir=Path("sim"),
        group_protocol="consumer" if config.protocol == "consumer" else "classic",
        envelope=EnvelopeSettings(
            sequence_key="json:/sequenceKey" if config.keyed else None,
            sequence="json:/sequence" if config.keyed else None,
            tombstones="skip" if config.skip_tombstones else "reject",
        ),
        retry=RetrySettings(delays_ms=config.delays_ms, max_waiting_per_partition=config.max_retries_waiting),
        lanes=LanesSettings(
            order=config.order.value,
            first_sequence="any" if config.first_sequence is None else config.first_sequence,
            max_replays=config.max_replays,
            after_reject="pass" if config.pass_after_reject else "hold",
            max_parked_per_lane=config.max_parked_per_lane,
            max_parked_bytes_per_partition=config.max_parked_bytes,
            max_in_flight=config.max_in_flight,
            max_open_cases_per_partition=config.max_open_cases,
            workers=config.threads,
            max_running=config.threads,
            handler_timeout_ms=ASYNC_TIMEOUT_MS if "async" in config.handler else HANDLER_TIMEOUT_MS,
            on_unknown_version="hold" if config.hold_unknown_version else "reject",
        ),
        cycle=CycleSettings(max_ms=config.max_ms, max_records=config.max_records),
        ledger=LedgerSettings(
            replication="changelog" if config.changelog else "local",
            on_unknown_outcome="review" if config.review else "run-again",
            retention=config.retention_ms,
            min_free=1,
        ),
        kafka={"max.poll.interval.ms": 5000},
    )
