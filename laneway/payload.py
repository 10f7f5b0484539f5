"""The payload of a record: from raw JSON, or from what a decoder returned, to what the handler gets.

Beside it what may be shown of a payload that does not fit: locations that are words of the model's
own schema, and types of errors. Never a value, never a word that came with the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from laneway.errors import AppImportError
from laneway.lanes.failures import class_name
from laneway.lanes.record import Record

_MAX_SHOWN_ERRORS: Final = 10


class PayloadReader:
    """How the payload of one contract version is read."""

    __slots__ = ("_adapter", "_decoded", "_model", "_names")

    def __init__(self, model: Any, decoded: bool) -> None:
        self._model = model
        self._decoded = decoded
        self._names: frozenset[str] | None = None
        self._adapter: TypeAdapter[object] | None = None
        if model is None or model is bytes:
            return
        try:
            self._adapter = TypeAdapter(model)
        except (PydanticUserError, NameError, TypeError) as error:
            raise AppImportError(
                f"pydantic cannot validate this payload type ({class_name(error)})",
                where=f"Pipeline(payload={name_of(model)})",
                mend="use a pydantic model, a dataclass, a TypedDict or a builtin type",
            ) from error

    def read(self, record: Record) -> object:
        """The payload for the handler.

        Raises:
            ValidationError: it does not fit the model. Validators may raise anything else.
        """
        payload = record.payload
        if record.value is None:
            return None
        adapter = self._adapter
        if self._decoded:
            return payload if adapter is None else adapter.validate_python(payload)
        if not isinstance(payload, bytes):
            raise TypeError("without a decode the payload is raw bytes")  # a defect in Laneway
        if adapter is not None:
            return adapter.validate_json(payload)
        if self._model is bytes:
            return payload
        try:
            return msgspec.json.decode(payload)
        except msgspec.DecodeError:
            return payload

    def names(self) -> frozenset[str]:
        """Every word of the model's schema: what may be shown of a location."""
        if self._names is None:
            adapter = self._adapter
            words = () if adapter is None else _words(adapter.core_schema)
            self._names = frozenset((*words, "[key]"))
        return self._names


def places(error: ValidationError, names: frozenset[str]) -> str:
    """`location: type` of each error. A word that is not the model's own may be data: shown as `*`."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = []
    for one in found[:_MAX_SHOWN_ERRORS]:
        place = ".".join(str(step) if isinstance(step, int) or step in names else "*" for step in one["loc"])
        lines.append(f"{place or '(payload)'}: {one['type']}")
    if len(found) > _MAX_SHOWN_ERRORS:
        lines.append(f"and {len(found) - _MAX_SHOWN_ERRORS} more")
    return "; ".join(lines)


def _words(node: object) -> Iterator[str]:
    """All text in a core schema: names of fields, aliases, tags and types; all of it code."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, type):
        yield node.__name__
    elif isinstance(node, Mapping):
        for name, child in node.items():
            yield from _words(name)
            yield from _words(child)
    elif isinstance(node, (list, tuple)):
        for child in node:
            yield from _words(child)


def name_of(thing: object) -> str:
    # A qualified name, or the class: the repr of a foreign object may hold anything.
    name = getattr(thing, "__qualname__", None)
    return name if isinstance(name, str) else f"an object of class {type(thing).__qualname__}"
