"""What a handler's delivery came to: the verdict, and what is kept of an error.

A verdict is one of four words, the stand-ins for ack, nack and reject. `Unavailable` is not a
verdict: it says that nothing was tried, so the record waits where it is.
"""

from __future__ import annotations

import msgspec

from laneway.lanes.record import Headers


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The effect happened; `result_key` says where its result lies."""

    result_key: str | None = None


class Retry(msgspec.Struct, frozen=True):
    """Not now: come back after the next fixed delay."""

    reason: str


class Reject(msgspec.Struct, frozen=True):
    """Never: to the DLQ, one attempt."""

    reason: str


class Review(msgspec.Struct, frozen=True):
    """A person decides; `required_check` is the question that person must answer."""

    reason: str
    required_check: str


Verdict = Ack | Retry | Reject | Review


class Wait(msgspec.Struct, frozen=True):
    """A dependency is down: nothing was tried, no attempt is spent, the lane waits in place."""

    retry_after_ms: int
    reason: str


class Emitted(msgspec.Struct, frozen=True):
    """A record that a handler wants published when its effect is settled, and only then."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """One delivery's verdict with what may be kept about why.

    Attributes:
        cause: a fixed word for tables and grouping, such as `invalid-payload`.
        error_class: qualified name of the exception's class, or "".
        fingerprint: of class and frames, the same for like errors; or "".
        detail: locations and types of validation errors, never a value.
        emitted: what the handler wants published with its success.
    """

    verdict: Verdict | Wait
    cause: str = ""
    error_class: str = ""
    fingerprint: str = ""
    detail: str = ""
    emitted: tuple[Emitted, ...] = ()


ACK = Outcome(Ack())
"""Shared by every handler that returns None: the common outcome allocates nothing."""
