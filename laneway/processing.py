"""How deliveries meet the handler: records are validated, the handler is called, its answer gets a meaning.

A `Processor` is what `Pipeline.compile` makes. Threads and event loops call it, one way for each kind of
handler; none of them raises (but for a cancellation): whatever model or handler do becomes an `Outcome`. It
knows no Kafka, no ledger and no lane.

    prepare: hash the payload ─► validate it ─► a Delivery ─► call the handler ─► say what its answer means
                                     │                              │
                              invalid-payload            lanes/failures.classify
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from laneway.delivery import Delivery
from laneway.handlers import Handler
from laneway.lanes.canonical import payload_hash
from laneway.lanes.failures import (
    BatchFailed,
    Unavailable,
    bounded,
    class_name,
    classify,
    invalid_payload,
    leaves,
)
from laneway.lanes.record import Record
from laneway.lanes.verdict import ACK, Ack, Outcome, Reject, Retry, Review
from laneway.payload import PayloadReader, name_of, places

_MAX_FINGERPRINTS: Final = 1000
_MAX_CHAIN: Final = 5

_UNKNOWN_VERSION: Final = Outcome(Reject("unknown-contract-version"), "unknown-contract-version")
_UNCLASSIFIED: Final = Review("unclassified-failure", "")
_NO_SUCCESS: Final = (BaseException, Retry, Reject, Review)

_log = logging.getLogger("laneway")


class Processor:
    """Takes records through validation and handler. Shared by all threads.

    Attributes:
        handler: what is called, and which of the ways below is its own.
    """

    __slots__ = ("_by_version", "_function", "_reader", "_seen", "_temporary", "handler")

    def __init__(
        self,
        handler: Handler,
        temporary: tuple[type[BaseException], ...],
        reader: PayloadReader | None,
        by_version: Mapping[tuple[str, int], PayloadReader],
    ) -> None:
        self.handler = handler
        self._function = handler.function
        self._temporary = temporary
        self._reader = reader
        self._by_version = by_version
        self._seen: set[str] = set()

    # -- one record

    def process(self, record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        """Run one delivery; sets `record.payload_hash`. Never raises.

        Args:
            topic: the source topic, on a retry too.
            partition: its partition.
            deadline_ms: epoch milliseconds at which the delivery is overdue.
        """
        try:
            delivery = self._prepare(record, topic, partition, deadline_ms)
            if isinstance(delivery, Outcome):
                return delivery
            return self._meant(self._function(delivery), delivery)
        except BaseException as error:  # noqa: BLE001 - SystemExit too: a thread must not end unheard
            return self.failed(error)

    async def process_async(self, record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        """Run one delivery of an async handler.

        Raises:
            CancelledError: it was cancelled; whoever did that knows what it means.
        """
        try:
            delivery = self._prepare(record, topic, partition, deadline_ms)
            if isinstance(delivery, Outcome):
                return delivery
            return self._meant(await self._function(delivery), delivery)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit too: the loop must not end
            return self.failed(error)

    # -- many

    def prepare(
        self, record: Record, topic: str, partition: int, deadline_ms: int
    ) -> Delivery[Any] | Outcome:
        """A delivery for a batch, or the outcome of a record that no handler gets to see. Never raises."""
        try:
            return self._prepare(record, topic, partition, deadline_ms)
        except BaseException as error:  # noqa: BLE001 - of a validator
            return self.failed(error)

    def process_batch(self, deliveries: list[Delivery[Any]], unknown: Outcome) -> list[Outcome | None]:
        """Run a batch. Never raises.

        Args:
            unknown: what it means when nobody can say what has happened.

        Returns:
            For each delivery its outcome, or None where the handler never came to it.
        """
        try:
            return self._all_meant(self._function(list(deliveries)), deliveries)
        except BaseException as error:  # noqa: BLE001 - see `process`
            return self._batch_failed(error, deliveries, unknown)

    async def process_batch_async(
        self, deliveries: list[Delivery[Any]], unknown: Outcome
    ) -> list[Outcome | None]:
        """Run a batch through an async handler.

        Raises:
            CancelledError: see `process_async`.
        """
        try:
            return self._all_meant(await self._function(list(deliveries)), deliveries)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - see `process_async`
            return self._batch_failed(error, deliveries, unknown)

    # -- what it means

    def _prepare(
        self, record: Record, topic: str, partition: int, deadline_ms: int
    ) -> Delivery[Any] | Outcome:
        # A record that waited in place, or was met at admission, has its hash already.
        if not record.payload_hash:
            record.payload_hash = payload_hash(record.payload, record.value)
        reader = self._reader or self._by_version.get((topic, record.version))
        if reader is None:
            return _UNKNOWN_VERSION
        try:
            payload = reader.read(record)
        except ValidationError as error:
            return invalid_payload(places(error, reader.names()))
        # Outside the `try` above: a ValidationError of the handler's own says nothing of our payload.
        return Delivery(payload, record, topic, partition, deadline_ms)

    def _meant(self, answer: object, delivery: Delivery[Any]) -> Outcome:
        if delivery.emitted:
            return msgspec.structs.replace(self._outcome(answer), emitted=delivery.emitted)
        if answer is None:
            return ACK
        if type(answer) is str:
            return Outcome(Ack(_result_key(answer)))
        return self._outcome(answer)

    def _outcome(self, answer: object) -> Outcome:
        if isinstance(answer, type) and issubclass(answer, _NO_SUCCESS):
            # Meant as one of its kind, whatever that says: it must not pass for a success.
            _log.error("the handler returned the class %s; next: raise or return one of it", name_of(answer))
            answer = TypeError("a class for an answer")
        # As `asyncio.gather(..., return_exceptions=True)` answers: to acknowledge that would lose the effect.
        return self.failed(answer) if isinstance(answer, BaseException) else _outcome(answer)

    def _all_meant(self, answers: object, deliveries: Sequence[Delivery[Any]]) -> list[Outcome | None]:
        if answers is None:
            answers = [None] * len(deliveries)
        if inspect.isawaitable(answers) or inspect.isgenerator(answers):
            return [_outcome(answers)]  # raises: its body never ran
        if not isinstance(answers, (list, tuple)):
            raise TypeError(f"a batch handler returns a list, one answer each, not {name_of(type(answers))}")
        if len(answers) != len(deliveries):
            _log.error("the batch handler gave %d answers to %d deliveries", len(answers), len(deliveries))
            raise ValueError("a batch handler returns one answer for each delivery")
        return [self._meant(answer, each) for answer, each in zip(answers, deliveries, strict=True)]

    def _batch_failed(
        self, error: BaseException, deliveries: Sequence[Delivery[Any]], unknown: Outcome
    ) -> list[Outcome | None]:
        if isinstance(error, BatchFailed) and error.index < len(deliveries):
            done: list[Outcome | None] = [self._meant(None, each) for each in deliveries[: error.index]]
            return [*done, self._classified(error.cause), *[None] * (len(deliveries) - error.index - 1)]
        outcome = self.failed(error)
        if not isinstance(error, Unavailable):
            _log.warning(
                "a batch handler raised %s: nobody can say which of %d deliveries happened; next: let it "
                "raise BatchFailed(index, cause), or return an answer for each",
                class_name(error),
                len(deliveries),
            )
            if type(outcome.verdict) is not Retry:
                # What it says of one record it cannot say of all: none is rejected that may have happened.
                outcome = msgspec.structs.replace(
                    outcome, verdict=_UNCLASSIFIED, cause="unclassified-failure"
                )
            elif type(unknown.verdict) is not Retry:
                outcome = msgspec.structs.replace(outcome, verdict=unknown.verdict, cause=unknown.cause)
        return [outcome] * len(deliveries)

    def failed(self, error: BaseException) -> Outcome:
        """What an exception means; of each kind its frames are told once."""
        # Our own frames go: with them every release of Laneway would change all fingerprints.
        trace = error.__traceback__
        while (
            trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__
        ):
            trace = trace.tb_next
        error.__traceback__ = trace
        return self._classified(error)

    def _classified(self, error: BaseException) -> Outcome:
        try:
            outcome = classify(error, self._temporary)
        except Exception:  # noqa: BLE001 - a signal class with broken attributes is a handler's fault
            return Outcome(_UNCLASSIFIED, "unclassified-failure", class_name(error))
        mark = outcome.fingerprint
        # At the bound further kinds of failure are no longer explained here; their cases still are kept.
        if mark and mark not in self._seen and len(self._seen) < _MAX_FINGERPRINTS:
            self._seen.add(mark)
            frames = "\n".join(_frames(error))
            _log.warning("%s (%s), first seen here:\n%s", _in_words(outcome), mark, frames)
        return outcome


def _in_words(outcome: Outcome) -> str:
    """What an exception meant, with the handler author's own words for why, if there are any."""
    verdict = outcome.verdict
    why = "" if isinstance(verdict, Ack) else verdict.reason
    return outcome.cause if why in ("", outcome.cause) else f"{outcome.cause}: {why}"


def _outcome(answer: object) -> Outcome:
    """What a handler's answer means."""
    if answer is None:
        return ACK
    if isinstance(answer, Ack):
        key = answer.result_key
        return ACK if key is None else _outcome(key)
    if isinstance(answer, Retry):
        return Outcome(Retry(_reason(answer.reason, "temporary-failure")), "temporary-failure")
    if isinstance(answer, Reject):
        return Outcome(Reject(_reason(answer.reason, "permanent-failure")), "permanent-failure")
    if isinstance(answer, Review):
        reason = _reason(answer.reason, "review-requested")
        return Outcome(Review(reason, _reason(answer.required_check, "")), "review-requested")
    if isinstance(answer, str):
        return Outcome(Ack(_result_key(str(answer))))
    if isinstance(answer, Future):
        raise TypeError("the handler returned a Future, which may not be done")
    if inspect.isawaitable(answer) or inspect.isgenerator(answer) or inspect.isasyncgen(answer):
        # Its body has not run: to acknowledge it would lose the effect.
        close = getattr(answer, "close", None)
        if close is not None:
            close()
        raise TypeError(f"the handler returned a {type(answer).__name__}, whose body never ran")
    _warn_about_answer(type(answer))
    return ACK


_warned_answer = False


def _warn_about_answer(kind: type) -> None:
    global _warned_answer  # noqa: PLW0603 - one warning per process is the contract
    if _warned_answer:
        return
    _warned_answer = True
    _log.warning(
        "the handler returned a %s.%s: acknowledged without a result key; return a str, None or a verdict "
        "(said once)",
        kind.__module__,
        kind.__qualname__,
    )


def _reason(text: object, default: str) -> str:
    return (bounded(text) if isinstance(text, str) else "") or default


def _result_key(key: str) -> str:
    # A lone surrogate (an undecodable file name) has no UTF-8, and would stop the ledger's write.
    if key.isascii():
        return key
    return key.encode("utf-8", "backslashreplace").decode("utf-8")


def _frames(error: BaseException) -> Iterator[str]:
    """Class and frames of an error and of what caused it; never a message, never a value."""
    current: BaseException | None = error
    for depth in range(_MAX_CHAIN):
        if current is None:
            return
        yield f"{'caused by ' if depth else ''}{class_name(current)}"
        trace = current.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            yield f"  {code.co_filename}:{trace.tb_lineno} in {code.co_qualname}"
            trace = trace.tb_next
        if isinstance(current, BaseExceptionGroup):
            # What came of a task group stands in it, not behind it.
            current = next(iter(leaves(current)), None)
            continue
        implied = None if current.__suppress_context__ else current.__context__
        current = implied if current.__cause__ is None else current.__cause__
