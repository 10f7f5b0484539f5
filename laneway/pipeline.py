"""Pipeline and Delivery: what a team writes against, and how one record meets their handler.

`Pipeline` collects the handler and its payload models when the module is imported; `compile` turns
it into a `Processor`, which worker threads call once per record. A processor never raises: whatever
model or handler do becomes an `Outcome`. It knows no Kafka, no ledger and no lane.

    process: hash the payload ─► validate it ─► call the handler ─► say what its answer means
                                     │                  │
                              invalid-payload    lanes/failures.classify
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar, overload

import msgspec
from pydantic import ValidationError

from laneway.emitting import emitted_of
from laneway.errors import AppImportError
from laneway.lanes.canonical import payload_hash
from laneway.lanes.failures import HandlerSignal, bounded, class_name, classify, invalid_payload
from laneway.lanes.record import Headers, Record
from laneway.lanes.verdict import ACK, Ack, Emitted, Outcome, Reject, Retry, Review, Verdict
from laneway.payload import PayloadReader, name_of, places

T = TypeVar("T")
R = TypeVar("R", bound=str | Verdict | None)

Decode = Callable[[bytes], object]
Models = Mapping[tuple[str, int], Any]

# Typed so that it can stand for any function: `@pipeline.handler()` is answered by us, not by Python.
_NO_FUNCTION: Final[Any] = None

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_FINGERPRINTS: Final = 1000
_MAX_CHAIN: Final = 5

_UNKNOWN_VERSION: Final = Outcome(Reject("unknown-contract-version"), "unknown-contract-version")
_UNCLASSIFIED: Final = Review("unclassified-failure", "")

_log = logging.getLogger("laneway")


class Delivery(Generic[T]):
    """One hand-over of a record to the handler. Valid while the handler runs; do not keep it.

    Position is that of the record in its source topic, on a retry too. Times are aware, in UTC.

    Attributes:
        payload: the validated payload; None for a tombstone that is delivered.
        topic: the source topic.
        partition: its partition.
        deadline_ms: epoch milliseconds at which this delivery is overdue.
        emitted: what `emit` has taken so far.
    """

    __slots__ = ("_record", "deadline_ms", "emitted", "partition", "payload", "topic")

    def __init__(self, payload: T, record: Record, topic: str, partition: int, deadline_ms: int) -> None:
        self.payload = payload
        self._record = record
        self.topic = topic
        self.partition = partition
        self.deadline_ms = deadline_ms
        self.emitted: tuple[Emitted, ...] = ()

    def emit(
        self,
        topic: str,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Publish a record together with the success of this delivery; nothing is sent otherwise.

        It leaves when the outcome is settled, in the order of the lane, to the partition of its key (as the
        Java client partitions). With `replication = "changelog"` it is part of the settling transaction, so a
        reader with `isolation.level=read_committed` sees it exactly once. With `local` it is sent at least
        once; a second copy has the same `laneway-forward-id` header.

        Raises:
            TypeError: the topic is no text, or key, value or a header are no bytes.
            ValueError: a topic name that Kafka does not allow, or a header name that is ours (`laneway-`).
        """
        self.emitted = (*self.emitted, emitted_of(topic, key, value, headers))

    @property
    def message_id(self) -> str:
        """The publisher's name for this message; not unique per effect."""
        return self._record.message_id

    @property
    def effect_key(self) -> str:
        """The idempotency key: the same on every delivery that means the same effect."""
        return self._record.effect_key

    @property
    def sequence_key(self) -> str | None:
        """The business key whose records run in order, or None when nothing is ordered."""
        return self._record.sequence_key

    @property
    def sequence(self) -> int | None:
        """The number inside the sequence key, or None without a sequence key."""
        return None if self._record.sequence_key is None else self._record.sequence

    @property
    def version(self) -> int:
        """The contract version."""
        return self._record.version

    @property
    def attempt(self) -> int:
        """1 on the first delivery; counts on with every retry, across restarts."""
        return self._record.attempt

    @property
    def redelivered(self) -> bool:
        """True when an earlier owner may have handed this record to a handler before."""
        return self._record.redelivered

    @property
    def deadline(self) -> datetime:
        """When this delivery counts as overdue: its start plus `handler_timeout_ms`."""
        return _EPOCH + timedelta(milliseconds=self.deadline_ms)

    @property
    def offset(self) -> int:
        """Offset in the source topic."""
        return self._record.origin_offset

    @property
    def timestamp(self) -> datetime | None:
        """Kafka's timestamp of the record; None when it has none or no calendar can show it."""
        if self._record.timestamp_ms <= 0:
            return None
        try:
            return _EPOCH + timedelta(milliseconds=self._record.timestamp_ms)
        except OverflowError:
            return None

    @property
    def key(self) -> bytes | None:
        """The record key as it was published."""
        return self._record.key

    @property
    def value(self) -> bytes | None:
        """The record value as it was published."""
        return self._record.value

    @property
    def headers(self) -> Headers:
        """(name, value) pairs in their order; a name may occur more than once."""
        return self._record.headers

    def __repr__(self) -> str:
        # A repr ends in logs: identity and position, never payload, value or headers.
        record = self._record
        return (
            f"Delivery({self.topic}[{self.partition}]@{record.origin_offset} "
            f"effect_key={record.effect_key!r} sequence_key={record.sequence_key!r} "
            f"sequence={self.sequence} attempt={record.attempt})"
        )


class Pipeline(Generic[T]):
    """One handler, the models of its payloads, and what counts as a temporary failure.

    Args:
        payload: a pydantic model, or any type that pydantic can validate; or one per (source topic,
            contract version), where a pair that is absent is rejected as `unknown-contract-version`.
            `bytes` hands the payload over as it is, unread. None hands over decoded JSON and, where
            the payload is the whole value and is not JSON, its bytes.
        temporary: exception classes that mean "did not happen, may work later".
        decode: turns a record's value into Python objects before envelope and payload are read, for
            Avro, Protobuf and the like. The payload is then validated as Python objects, not JSON.

    Raises:
        AppImportError: an argument is of the wrong kind.
    """

    @overload
    def __init__(
        self,
        payload: type[T],
        *,
        temporary: Sequence[type[BaseException]] = (),
        decode: Decode | None = None,
    ) -> None: ...

    # Without a model, or with one for each version, the handler's own annotation says what it takes.
    @overload
    def __init__(
        self: Pipeline[Any],
        payload: Models | None = None,
        *,
        temporary: Sequence[type[BaseException]] = (),
        decode: Decode | None = None,
    ) -> None: ...

    def __init__(
        self,
        payload: type[T] | Models | None = None,
        *,
        temporary: Sequence[type[BaseException]] = (),
        decode: Decode | None = None,
    ) -> None:
        if decode is not None and not callable(decode):
            raise AppImportError("Pipeline(decode=) takes a function from bytes to an object")
        if isinstance(payload, Mapping):
            for pair in payload:
                _check_pair(pair)
        for model in payload.values() if isinstance(payload, Mapping) else (payload,):
            _check_model(model)
        self._payload = payload
        self._temporary = _exception_classes(temporary)
        self._handler: Callable[[Delivery[T]], object] | None = None
        self.decode = decode

    def handler(self, function: Callable[[Delivery[T]], R] = _NO_FUNCTION) -> Callable[[Delivery[T]], R]:
        """Register the handler (a decorator; the function itself stays as it is).

        It returns the result key (str or None), or a verdict, or raises.

        Raises:
            AppImportError: it is async or a generator, a second one, or not callable with exactly one
                positional argument, or the decorator was written with parentheses.
        """
        if function is _NO_FUNCTION:
            raise AppImportError(
                "@pipeline.handler() is called without a function",
                mend="write it without parentheses: @pipeline.handler",
            )
        _check_handler(function)
        if self._handler is not None:
            raise AppImportError(
                f"the pipeline already has the handler {name_of(self._handler)}",
                where=name_of(function),
                mend="one Pipeline has one handler; use a second Pipeline, in a worker of its own",
            )
        self._handler = function
        return function

    @property
    def has_handler(self) -> bool:
        """True once a handler is registered."""
        return self._handler is not None

    def compile(self, extra_temporary: tuple[type[BaseException], ...] = ()) -> Processor:
        """Build what the workers call.

        Args:
            extra_temporary: further temporary classes, from `retry.temporary`.

        Raises:
            AppImportError: there is no handler, or pydantic cannot validate a payload type.
        """
        if self._handler is None:
            raise AppImportError("the pipeline has no handler", mend="decorate one with @pipeline.handler")
        return self._processor(self._handler, extra_temporary)

    def compile_reading(self, extra_temporary: tuple[type[BaseException], ...] = ()) -> Processor:
        """What `compile` builds, without the handler: records are validated, and what fits is acknowledged.

        Raises:
            AppImportError: pydantic cannot validate a payload type.
        """
        return self._processor(_do_nothing, extra_temporary)

    def _processor(
        self, handler: Callable[[Delivery[T]], object], extra_temporary: tuple[type[BaseException], ...]
    ) -> Processor:
        temporary = self._temporary + _exception_classes(extra_temporary)
        decoded = self.decode is not None
        if isinstance(self._payload, Mapping):
            readers = {pair: PayloadReader(model, decoded) for pair, model in self._payload.items()}
            return Processor(handler, temporary, None, readers)
        return Processor(handler, temporary, PayloadReader(self._payload, decoded), {})


class Processor:
    """Takes one record through validation and handler. Shared by all worker threads."""

    __slots__ = ("_by_version", "_handler", "_reader", "_seen", "_temporary")

    def __init__(
        self,
        handler: Callable[[Delivery[Any]], object],
        temporary: tuple[type[BaseException], ...],
        reader: PayloadReader | None,
        by_version: Mapping[tuple[str, int], PayloadReader],
    ) -> None:
        self._handler = handler
        self._temporary = temporary
        self._reader = reader
        self._by_version = by_version
        self._seen: set[str] = set()

    def process(self, record: Record, topic: str, partition: int, deadline_ms: int) -> Outcome:
        """Run one delivery; sets `record.payload_hash`. Never raises.

        Args:
            topic: the source topic, on a retry too.
            partition: its partition.
            deadline_ms: epoch milliseconds at which the delivery is overdue.
        """
        try:
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
            delivery = Delivery(payload, record, topic, partition, deadline_ms)
            answer = self._handler(delivery)
            if delivery.emitted:
                return msgspec.structs.replace(_outcome(answer), emitted=delivery.emitted)
            if answer is None:
                return ACK
            if type(answer) is str:
                return Outcome(Ack(_result_key(answer)))
            return _outcome(answer)
        except BaseException as error:  # noqa: BLE001 - SystemExit too: a thread must not end unheard
            return self._failed(error)

    def _failed(self, error: BaseException) -> Outcome:
        # Our own frame goes: with it every release of Laneway would change all fingerprints.
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            error.__traceback__ = error.__traceback__.tb_next
        try:
            outcome = classify(error, self._temporary)
        except Exception:  # noqa: BLE001 - a signal class with broken attributes is a handler's fault
            return Outcome(_UNCLASSIFIED, "unclassified-failure", class_name(error))
        mark = outcome.fingerprint
        # At the bound further kinds of failure are no longer explained here; their cases still are kept.
        if mark and mark not in self._seen and len(self._seen) < _MAX_FINGERPRINTS:
            self._seen.add(mark)
            _log.warning("%s (%s), first seen here:\n%s", outcome.cause, mark, "\n".join(_frames(error)))
        return outcome


def _do_nothing(_: object) -> None:
    """The handler of a preview."""


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
    if inspect.isawaitable(answer) or inspect.isgenerator(answer):
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
        implied = None if current.__suppress_context__ else current.__context__
        current = implied if current.__cause__ is None else current.__cause__


def _check_handler(function: object) -> None:
    if not callable(function) or isinstance(function, type):
        raise AppImportError(f"a handler is a function, not {name_of(function)}")
    inner: object = function
    while isinstance(inner, partial):
        inner = inner.func
    called = inner if inspect.isroutine(inner) else type(inner).__call__
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        raise AppImportError(
            "async handlers come in a later release",
            where=name_of(function),
            mend="write it as `def`; it runs in one of `lanes.workers` threads",
        )
    if inspect.isgeneratorfunction(called):
        raise AppImportError("a handler returns, it does not yield", where=name_of(function))
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a builtin that does not tell its signature
    try:
        signature.bind(object())
    except TypeError:
        raise AppImportError(
            "the handler must take exactly one positional argument, the delivery",
            where=f"{name_of(function)}({', '.join(signature.parameters)})",
            mend="write it as `def handle(delivery: Delivery[Model]) -> str | None`",
        ) from None


def _exception_classes(classes: Sequence[type[BaseException]]) -> tuple[type[BaseException], ...]:
    kinds: object = classes
    if isinstance(kinds, str) or not isinstance(kinds, Iterable):
        raise AppImportError(
            f"temporary takes a list of exception classes, not {name_of(kinds)}",
            where="Pipeline(temporary=)",
            mend="write it as temporary=[ConnectionError]",
        )
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            raise AppImportError(
                f"temporary takes classes of exceptions, not {name_of(kind)}",
                where="Pipeline(temporary=)",
                mend=f"name the class itself{', without quotes' if isinstance(kind, str) else ''}: "
                "temporary=[ConnectionError]",
            )
        # The four signals say what they mean themselves; to list one could only contradict it.
        if issubclass(kind, HandlerSignal):
            raise AppImportError(
                f"{name_of(kind)} has its meaning already", where="Pipeline(temporary=)", mend="take it out"
            )
    return tuple(classes)


def _check_model(model: object) -> None:
    if isinstance(model, str):
        raise AppImportError(
            "the payload is a type, and this is text that names one",
            where=f"Pipeline(payload={bounded(model)!r})",
            mend=f"write it without quotes: Pipeline(payload={bounded(model)})",
        )


def _check_pair(pair: object) -> None:
    match pair:
        case (str(), int()):
            return
    raise AppImportError(
        'a mapping of payloads is keyed by (source topic, version), such as ("invoices", 1)',
        where="Pipeline(payload=)",
    )
