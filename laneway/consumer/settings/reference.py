"""The configuration reference, read from the settings model itself, so that it cannot go stale."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from laneway.consumer.settings.model import (
    CycleSettings,
    EnvelopeSettings,
    JournalSettings,
    LanesSettings,
    LedgerSettings,
    RetrySettings,
    Settings,
    TopicsSettings,
)


class Key(NamedTuple):
    """One key of laneway.toml.

    Attributes:
        default: as it would be written in the file; "" when the key has to be written.
        values: what it takes, in a few words.
    """

    name: str
    default: str
    values: str
    meaning: str


class Section(NamedTuple):
    """One table of laneway.toml; `name` is "" for the keys at the top of the file."""

    name: str
    purpose: str
    keys: tuple[Key, ...]


_TABLES: Final[tuple[tuple[str, type[BaseModel]], ...]] = (
    ("", Settings),
    ("envelope", EnvelopeSettings),
    ("retry", RetrySettings),
    ("lanes", LanesSettings),
    ("cycle", CycleSettings),
    ("ledger", LedgerSettings),
    ("journal", JournalSettings),
    ("topics", TopicsSettings),
)
# Written in their own unit, which the model has already turned into a number.
_WRITTEN: Final = {
    "max_parked_bytes_per_partition": ('"1GiB"', "size"),
    "max_in_flight_bytes": ('"256MiB"', "size"),
    "retention": ('"30d"', "duration"),
    "min_free": ('"2GiB"', "size"),
}
_NAMES: Final = {str: "text", int: "number", bool: "true or false", float: "number", Path: "path"}


def sections() -> tuple[Section, ...]:
    """Every table with its keys, in the order of the file."""
    return tuple(
        Section(name, inspect.cleandoc(model.__doc__ or ""), tuple(_keys(model))) for name, model in _TABLES
    )


def _keys(model: type[BaseModel]) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        shape = field.annotation
        if (isinstance(shape, type) and issubclass(shape, BaseModel)) or name in {"source", "kafka"}:
            continue
        written = field.alias or name
        meaning = " ".join((field.description or "").split())
        yield Key(written, _default(written, field), _takes(written, field), meaning)


def _default(name: str, field: FieldInfo) -> str:
    if name in _WRITTEN:
        return _WRITTEN[name][0]
    return "" if field.is_required() else _toml(field.default)


def _takes(name: str, field: FieldInfo) -> str:
    if name in _WRITTEN:
        return _WRITTEN[name][1]
    least, most = (_bound(field, name) for name in ("ge", "le"))
    words = _values(field.annotation)
    if least is None:
        return words
    return f"{words}, {least} or more" if most is None else f"{words}, {least} to {most}"


def _bound(field: FieldInfo, name: str) -> int | None:
    found = (getattr(each, name, None) for each in field.metadata)
    return next((each for each in found if isinstance(each, int)), None)


def _toml(value: object) -> str:
    if isinstance(value, str | Path):
        return f'"{value}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:_}" if value >= 10_000 else str(value)
    return "not set" if value is None else str(value)


def _values(shape: object) -> str:
    origin, arguments = get_origin(shape), get_args(shape)
    if origin is Annotated:
        return _values(arguments[0])
    if origin is Literal:
        return ", ".join(_toml(argument) for argument in arguments)
    if origin is tuple:
        return f"list of {_values(arguments[0])}"
    if origin in {Union, types.UnionType}:
        return " or ".join(_values(argument) for argument in arguments if argument is not type(None))
    return _NAMES[shape] if isinstance(shape, type) and shape in _NAMES else str(shape)
