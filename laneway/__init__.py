"""Laneway: a Kafka consumer for work that must happen in order, once, per business key.

This is all an application imports. It loads neither a Kafka client nor RocksDB.
"""

from __future__ import annotations

from laneway.lanes.failures import BatchFailed, NeedsReview, PermanentFailure, TemporaryFailure, Unavailable
from laneway.lanes.verdict import Ack, Reject, Retry, Review
from laneway.pipeline import Delivery, Pipeline

__all__ = [
    "Ack",
    "BatchFailed",
    "Delivery",
    "NeedsReview",
    "PermanentFailure",
    "Pipeline",
    "Reject",
    "Retry",
    "Review",
    "TemporaryFailure",
    "Unavailable",
    "__version__",
]

__version__: str


def __getattr__(name: str) -> str:
    # Asked for rarely: importlib.metadata costs more than the rest of this import.
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        try:
            return version("laneway")
        except PackageNotFoundError:
            return "0+uninstalled"  # a source tree on the path
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
