"""Pipeline: what a team writes against.

It collects the handler, the payload models and the lifespan when the module is imported; `compile` turns it
into a `Processor`, which takes records to the handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, overload

from laneway.delivery import Delivery
from laneway.errors import AppImportError
from laneway.handlers import Handler, batch_limits, handler_of
from laneway.lanes.failures import HandlerSignal, bounded
from laneway.lanes.verdict import Verdict
from laneway.lifespan import Lifespan, lifespan_of
from laneway.payload import PayloadReader, name_of
from laneway.processing import Processor

__all__ = ["Delivery", "Pipeline", "Processor"]

Answers = Sequence[str | Verdict | BaseException | None] | None

T = TypeVar("T")
R = TypeVar("R", bound=str | Verdict | Awaitable[str | Verdict | None] | None)
B = TypeVar("B", bound=Answers | Awaitable[Answers])
F = TypeVar("F", bound=Callable[[], object])

Decode = Callable[[bytes], object]
Models = Mapping[tuple[str, int], Any]

# Typed so that it can stand for any function: `@pipeline.handler()` is answered by us, not by Python.
_NO_FUNCTION: Final[Any] = None


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
            raise AppImportError(
                "Pipeline(decode=) takes a function from bytes to an object",
                mend="write `def decode(value: bytes) -> object` and name it: Pipeline(decode=decode)",
            )
        if isinstance(payload, Mapping):
            for pair in payload:
                _check_pair(pair)
        for model in payload.values() if isinstance(payload, Mapping) else (payload,):
            _check_model(model)
        self._payload = payload
        self._temporary = _exception_classes(temporary)
        self._handler: Handler | None = None
        self.life: Lifespan | None = None
        self.decode = decode

    def handler(self, function: Callable[[Delivery[T]], R] = _NO_FUNCTION) -> Callable[[Delivery[T]], R]:
        """Register the handler, `def` or `async def` (a decorator; the function itself stays as it is).

        It returns the result key (str or None), or a verdict, or raises.

        Raises:
            AppImportError: it is a generator, a second one, or not callable with exactly one positional
                argument, or the decorator was written with parentheses.
        """
        if function is _NO_FUNCTION:
            raise AppImportError(
                "@pipeline.handler() is called without a function",
                mend="write it without parentheses: @pipeline.handler",
            )
        self._register(handler_of(function))
        return function

    def batch_handler(
        self, max_size: int = 100, max_wait_ms: int = 50, *, max_per_lane: int = 1
    ) -> Callable[[Callable[[list[Delivery[T]]], B]], Callable[[list[Delivery[T]]], B]]:
        """Register a handler of many deliveries, `def` or `async def` (a decorator with arguments).

        It gets a list of deliveries of many lanes, and returns a list with one answer for each: the result
        key (str or None) or a verdict. None alone acknowledges them all. Or it raises `BatchFailed(index,
        cause)`: those before are done, those behind come again. Any other exception leaves all outcomes
        unknown.

        Args:
            max_size: at most so many deliveries at once.
            max_wait_ms: how long the first of them waits for others.
            max_per_lane: of one lane at most so many, one behind the other in the list. With more than 1 the
                handler keeps their order, and stops at the first that does not succeed.

        Raises:
            AppImportError: as `handler` does, or an argument is out of its range.
        """
        limits = batch_limits(max_size, max_wait_ms, max_per_lane)

        def register(function: Callable[[list[Delivery[T]]], B]) -> Callable[[list[Delivery[T]]], B]:
            self._register(handler_of(function, limits))
            return function

        return register

    def lifespan(self, function: F) -> F:
        """Register what lives as long as the worker (a decorator): a function that yields once.

        What stands before the `yield` is done before the first delivery, what stands behind it after the
        last. With an async handler it runs on the handlers' event loop; `async def` is possible only there.

        Raises:
            AppImportError: it does not yield, takes arguments, or is the second one.
        """
        if self.life is not None:
            raise AppImportError(
                f"the pipeline already has the lifespan {self.life.name}",
                where=name_of(function),
                mend="enter several context managers in one, with contextlib.ExitStack",
            )
        self.life = lifespan_of(function)
        return function

    def is_handled_by(self, function: object) -> bool:
        """Whether that is its handler."""
        return self._handler is not None and self._handler.function is function

    def _register(self, handler: Handler) -> None:
        if self._handler is not None:
            raise AppImportError(
                f"the pipeline already has the handler {self._handler.name}",
                where=handler.name,
                mend="one Pipeline has one handler, of single deliveries or of batches; use a second "
                "Pipeline, in a worker of its own",
            )
        self._handler = handler

    @property
    def has_handler(self) -> bool:
        """True once a handler is registered."""
        return self._handler is not None

    def compile(self, extra_temporary: tuple[type[BaseException], ...] = ()) -> Processor:
        """Build what the workers call.

        Args:
            extra_temporary: further temporary classes, from `retry.temporary`.

        Raises:
            AppImportError: there is no handler, the lifespan does not go with it, or pydantic cannot
                validate a payload type.
        """
        if self._handler is None:
            raise AppImportError("the pipeline has no handler", mend="decorate one with @pipeline.handler")
        if self.life is not None and self.life.is_async and not self._handler.is_async:
            raise AppImportError(
                "an async lifespan needs an async handler: there is no event loop without one",
                where=f"{self.life.name}, {self._handler.name}",
                mend="write the lifespan as `def`, or the handler as `async def`",
            )
        return self._processor(self._handler, extra_temporary)

    def compile_reading(self, extra_temporary: tuple[type[BaseException], ...] = ()) -> Processor:
        """What `compile` builds, without the handler: records are validated, and what fits is acknowledged.

        Raises:
            AppImportError: pydantic cannot validate a payload type.
        """
        return self._processor(Handler(_do_nothing), extra_temporary)

    def _processor(self, handler: Handler, extra_temporary: tuple[type[BaseException], ...]) -> Processor:
        temporary = self._temporary + _exception_classes(extra_temporary)
        decoded = self.decode is not None
        if isinstance(self._payload, Mapping):
            readers = {pair: PayloadReader(model, decoded) for pair, model in self._payload.items()}
            return Processor(handler, temporary, None, readers)
        return Processor(handler, temporary, PayloadReader(self._payload, decoded), {})


def _do_nothing(_: object) -> None:
    """The handler of a preview."""


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
