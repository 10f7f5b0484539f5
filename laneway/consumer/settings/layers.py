"""Each layer of the settings by itself: a file, the environment, `-X`, as dotted keys with their place.

Keys are judged here against the model's own names, so that an unknown one is found in any layer and
named with its nearest known one. What the layers mean together is `settings/load.py`.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from laneway.consumer.settings.mistakes import together
from laneway.consumer.settings.model import EnvelopeSettings, Settings
from laneway.errors import ConfigError

Key = tuple[str, ...]
"""`("lanes", "workers")`; `("kafka", "linger.ms")`; `("source", "invoices", "envelope", "version")`."""

# A Kubernetes Service called "laneway" puts these into every pod; LANEWAY_TEST_ is the test suite's.
_NOT_OURS: Final = re.compile(r"LANEWAY_(TEST_\w+|(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?))")


@dataclass(frozen=True, slots=True)
class Written:
    """One value as somebody wrote it, and where."""

    value: object
    origin: str
    line: int = 0

    @property
    def place(self) -> str:
        """Origin with its line where one is known."""
        return f"{self.origin}:{self.line}" if self.line else self.origin

    @property
    def from_file(self) -> bool:
        """Whether it stands in laneway.toml: only a file has tables that are there or not."""
        return self.line > 0 or not (self.origin in {"-X", "flag"} or self.origin.startswith("env "))


def dotted(key: Key) -> str:
    """The key as `-X` and messages write it."""
    return ".".join(key)


# --- layers ------------------------------------------------------------------------------------


def file_layer(path: Path) -> dict[Key, Written]:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except FileNotFoundError:
        raise ConfigError("there is no such file", where=str(path), mend="name it with -c FILE") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the file cannot be read", where=str(path), mend=type(error).__name__) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"is not TOML: {error}", where=str(path), mend="correct that line") from None
    layer: dict[Key, Written] = {}
    unknown: list[ConfigError] = []
    for key, value in _flatten((), document):
        entry = Written(value, str(path), _line_of(text, key))
        try:
            _refuse_unknown(key, entry)
        except ConfigError as error:
            unknown.append(error)
        layer[key] = entry
    if unknown:
        raise together(unknown)
    return layer


def _flatten(prefix: Key, table: Mapping[str, object]) -> Iterator[tuple[Key, object]]:
    for name, value in table.items():
        key = (*prefix, name)
        if isinstance(value, dict):
            if not value:
                yield key, {}
            yield from _flatten(key, value)
        elif key[0] == "kafka":
            # `security.protocol = "SSL"` without quotes is nested tables to TOML; one name to librdkafka.
            yield ("kafka", ".".join(key[1:])), value
        else:
            yield key, value


def _line_of(text: str, key: Key) -> int:
    """The line a key was written on; 0 where a simple scan does not find it."""
    table, current = dotted(key[:-1]), ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.split("#", 1)[0].strip()
        if stripped.startswith("["):
            current = stripped.strip("[]").replace('"', "").replace(" ", "")
            if current == dotted(key):
                return number
        name = stripped.partition("=")[0].strip().replace('"', "").replace("'", "")
        if name and ((current == table and name == key[-1]) or (current == "" and name == dotted(key))):
            return number
    return 0


def env_layer(env: Mapping[str, str]) -> dict[Key, Written]:
    layer: dict[Key, Written] = {}
    for name in sorted(env):
        if not name.startswith("LANEWAY_") or _NOT_OURS.fullmatch(name):
            continue
        parts = name.removeprefix("LANEWAY_").lower().split("__")
        # Environment names have no dots and librdkafka's keys no underscores.
        key = (
            ("kafka", parts[1].replace("_", ".")) if len(parts) == 2 and parts[0] == "kafka" else tuple(parts)
        )
        layer[key] = _from_text(key, env[name], f"env {name}")
    return layer


def set_layer(sets: Sequence[str]) -> dict[Key, Written]:
    layer: dict[Key, Written] = {}
    for item in sets:
        name, equals, text = item.partition("=")
        if not equals or not name:
            # The text may hold a secret whose "=" was forgotten; it is not repeated.
            raise ConfigError("is not key=value", where="-X", mend="write -X lanes.workers=8")
        key = key_of(name.strip())
        layer[key] = _from_text(key, text, "-X")
    return layer


def _from_text(key: Key, text: str, origin: str) -> Written:
    """Text from a shell becomes what the key holds: numbers, booleans, lists; else it stays text."""
    _refuse_unknown(key, Written(text, origin))
    field = _field_at(key)
    if field is None or _holds_text(field.annotation):
        return Written(text, origin)
    try:
        value: object = json.loads(text)
    except ValueError:
        value = text
    if get_origin(field.annotation) is tuple and not isinstance(value, list):
        items = [part.strip() for part in text.split(",")] if text.strip() else []
        numbers = int in _leaf_types(field.annotation)
        value = [int(item) if numbers and re.fullmatch(r"-?\d+", item) else item for item in items]
    return Written(value, origin)


def key_of(name: str) -> Key:
    if name.startswith("kafka."):
        return ("kafka", name.removeprefix("kafka."))
    source = re.fullmatch(r"source\.(.+)\.envelope\.([^.]+)", name)
    if source:
        return ("source", source[1], "envelope", source[2])
    return tuple(name.split("."))


# --- the model's own names ---------------------------------------------------------------------


def _key_name(name: str, field: FieldInfo) -> str:
    return field.alias or name


def _table_of(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def model_keys(model: type[BaseModel], sources: Sequence[str]) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        key = _key_name(name, field)
        table = _table_of(field)
        if key == "source":
            for source in sources:
                yield from (("source", source, "envelope", leaf) for leaf in EnvelopeSettings.model_fields)
        elif table is not None:
            yield from ((key, *rest) for rest in model_keys(table, sources))
        elif key != "kafka":
            yield (key,)


def is_table(key: Key) -> bool:
    """Whether the key names a table of the file and not a value in one."""
    known = model_keys(Settings, key[1:2])
    return key in {("source",), ("kafka",)} or any(
        item[: len(key)] == key and len(item) > len(key) for item in known
    )


def _field_at(key: Key) -> FieldInfo | None:
    model: type[BaseModel] = EnvelopeSettings if key[0] == "source" else Settings
    names = key[3:] if key[0] == "source" else key
    field: FieldInfo | None = None
    for name in names:
        found = [field for own, field in model.model_fields.items() if _key_name(own, field) == name]
        if not found:
            return None
        field = found[0]
        model = _table_of(field) or model
    return field


def _leaf_types(annotation: object) -> set[object]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _leaf_types(get_args(annotation)[0])
    if origin in {Union, UnionType, tuple}:
        return set().union(*(_leaf_types(item) for item in get_args(annotation) if item is not Ellipsis))
    if origin is Literal:
        return {str}
    return {annotation}


def _holds_text(annotation: object) -> bool:
    return get_origin(annotation) is not tuple and bool(_leaf_types(annotation) & {str, Path})


def _refuse_unknown(key: Key, entry: Written) -> None:
    if key[0] == "kafka" and len(key) == 2 and key[1]:
        return
    known = [dotted(item) for item in model_keys(Settings, key[1:2])]
    name = dotted(key)
    if name in known or (entry.value == {} and is_table(key)):
        return
    if is_table(key):
        raise ConfigError(f"{name} is a table, not a value", where=entry.place, mend=f"write [{name}]")
    if entry.from_file and len(key) > 1 and key[-1] in known:
        raise ConfigError(
            f"unknown key {name}",
            where=entry.place,
            mend=f"{key[-1]} belongs above the first [table]: move it to the top of the file",
        )
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if not near:
        leaves = {item.rsplit(".", 1)[-1]: item for item in known}
        near = [leaves[leaf] for leaf in difflib.get_close_matches(key[-1], leaves, n=1, cutoff=0.5)]
    mend = f"the nearest known key is {near[0]}" if near else "see `laneway config show` for the known keys"
    raise ConfigError(f"unknown key {name}", where=entry.place, mend=mend)
