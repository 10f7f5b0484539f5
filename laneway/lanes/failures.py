"""From an exception to an outcome: the one place that answers "can this be tried again?".

    HandlerSignal
    ├── TemporaryFailure    try again after the next fixed delay
    ├── PermanentFailure    never again: DLQ
    ├── NeedsReview         a person decides
    └── Unavailable         a dependency is down: wait in place, spend no attempt

Anything else is unknown. Unknown is never retried: nobody can say what has happened (S8).
Of a foreign exception only class and frames are kept; its message may quote the payload.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from types import TracebackType

from laneway.lanes.verdict import Outcome, Reject, Retry, Review, Wait

MAX_REASON_CHARS = 200
MAX_NAMES = 3
"""Classes of a group that its name tells."""
READ_AGAIN_MS = 1000
"""How long to wait for a decoder that only says that it cannot read now."""


class HandlerSignal(Exception):  # noqa: N818 - it is a decision, not an error of ours
    """Base of what a handler raises to decide the fate of its record.

    Args:
        reason: the handler author's own words; they are stored and shown, so no payload.
    """

    # At class level too: a subclass that forgets `super().__init__()` still means what its base means.
    reason = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class TemporaryFailure(HandlerSignal):
    """The effect did not happen and may succeed later."""


class PermanentFailure(HandlerSignal):
    """The effect can never happen for this record."""


class NeedsReview(HandlerSignal):
    """A person must look before this goes on.

    Args:
        required_check: the question that person has to answer.
    """

    required_check = ""

    def __init__(self, required_check: str, reason: str = "") -> None:
        super().__init__(reason)
        self.required_check = required_check


class Unavailable(HandlerSignal):
    """A dependency is down; nothing was tried.

    Args:
        retry_after_ms: how long the lane waits before it asks again.
    """

    retry_after_ms = 1000

    def __init__(self, retry_after_ms: int = 1000, reason: str = "") -> None:
        super().__init__(reason)
        self.retry_after_ms = max(1, retry_after_ms)


class BatchFailed(Exception):  # noqa: N818 - it says how far a batch came
    """A batch handler came to its end at one of its deliveries.

    Those before it are done, and are acknowledged. It gets the outcome that `cause` has when a handler of
    single deliveries raises it. Those behind it were never started: they come again, and no attempt is spent.

    Args:
        index: of that delivery in the list that the handler got.
        cause: what happened to it: one of the four signals, or any exception.
    """

    def __init__(self, index: int, cause: BaseException) -> None:
        if index < 0:
            raise ValueError("BatchFailed(index, cause): index is a place in the list of deliveries, from 0")
        super().__init__(index, cause)
        self.index = index
        self.cause = cause


def classify(error: BaseException, temporary: tuple[type[BaseException], ...]) -> Outcome:
    """Decide what an exception from a handler means.

    Args:
        temporary: further classes that count as temporary, from the pipeline and `retry.temporary`.
    """
    name = class_name(error)
    mark = fingerprint(error)
    if isinstance(error, TemporaryFailure):
        return Outcome(Retry(bounded(error.reason) or "temporary-failure"), "temporary-failure", name, mark)
    if isinstance(error, PermanentFailure):
        return Outcome(Reject(bounded(error.reason) or "permanent-failure"), "permanent-failure", name, mark)
    if isinstance(error, NeedsReview):
        reason = bounded(error.reason) or "review-requested"
        return Outcome(Review(reason, bounded(error.required_check)), "review-requested", name, mark)
    if isinstance(error, Unavailable):
        return Outcome(
            Wait(error.retry_after_ms, bounded(error.reason) or "unavailable"), "unavailable", name, mark
        )
    if isinstance(error, temporary):
        return Outcome(Retry("temporary-failure"), "temporary-failure", name, mark)
    if isinstance(error, BaseExceptionGroup):
        # Of a task group: it means what all that is in it means, where that is one thing and no end.
        inner = [classify(each, temporary) for each in leaves(error)]
        if inner and len({type(each.verdict) for each in inner}) == 1:
            first = inner[0]
            if isinstance(first.verdict, Retry | Wait):
                return Outcome(first.verdict, first.cause, name, mark)
    return Outcome(Review("unclassified-failure", ""), "unclassified-failure", name, mark)


def read_again_ms(signal: HandlerSignal) -> int:
    """How long to wait for a decoder that cannot read now: as long as it asks for, if it asks."""
    return signal.retry_after_ms if isinstance(signal, Unavailable) else READ_AGAIN_MS


def invalid_payload(detail: str) -> Outcome:
    """The payload does not fit the pipeline's model.

    Args:
        detail: locations and types of the errors; the caller has left the values out.
    """
    return Outcome(Reject("invalid-payload"), "invalid-payload", detail=bounded(detail))


def class_name(error: BaseException) -> str:
    """Module and qualified name of the exception's class; of a group also of those in it."""
    kind = type(error)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not isinstance(error, BaseExceptionGroup):
        return name
    return f"{name}[{', '.join(sorted({class_name(each) for each in leaves(error)})[:MAX_NAMES])}]"


def leaves(group: BaseExceptionGroup[BaseException]) -> Sequence[BaseException]:
    """What is in a group, and in the groups in it."""
    found: list[BaseException] = []
    for each in group.exceptions:
        found += leaves(each) if isinstance(each, BaseExceptionGroup) else (each,)
    return found


def fingerprint(error: BaseException) -> str:
    """Twelve hex digits, the same for errors of one class from the same place in the code."""
    traces = [error.__traceback__]
    if isinstance(error, BaseExceptionGroup):
        traces += [each.__traceback__ for each in leaves(error)[:1]]
    parts = [class_name(error), *(f"{name}:{line}" for trace in traces for name, line in _frames(trace))]
    return hashlib.sha256("|".join(parts).encode("utf-8", "replace")).hexdigest()[:12]


def _frames(trace: TracebackType | None) -> Sequence[tuple[str, int]]:
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_qualname, trace.tb_lineno))
        trace = trace.tb_next
    return frames


def bounded(text: str) -> str:
    """Cut to a stored length, with control characters made visible so no terminal obeys them."""
    if text.isprintable() and len(text) <= MAX_REASON_CHARS:
        return text
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: MAX_REASON_CHARS + 1])
    return shown if len(shown) <= MAX_REASON_CHARS else shown[: MAX_REASON_CHARS - 1] + "…"
