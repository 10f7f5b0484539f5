"""From flags, `-X key=value`, `LANEWAY_*` variables and a file to one `Settings`, with origins.

The order is fixed: flag > -X > environment > file > default. Every layer is flattened to dotted
keys, judged against the model's own names (so an unknown key is found in any layer and named with
its nearest known one), laid over the lower ones, and validated once. Mistakes leave as ConfigError;
what was written under `[kafka]` never stands in one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from laneway.consumer.settings import kafka_keys
from laneway.consumer.settings.layers import (
    Key,
    Written,
    dotted,
    env_layer,
    file_layer,
    is_table,
    key_of,
    model_keys,
    set_layer,
)
from laneway.consumer.settings.mistakes import together
from laneway.consumer.settings.model import NO_PLACE, EnvelopeSettings, Settings
from laneway.errors import ConfigError

DEFAULT_FILE: Final = Path("laneway.toml")

_REPLICATION: Final[Key] = ("ledger", "replication")
_UNKNOWN_OUTCOME: Final[Key] = ("ledger", "on_unknown_outcome")
_STAND_INS: Final[Mapping[Key, object]] = {("group",): "missing", ("sources",): ()}
_SWITCHES: Final = ("sequence_key", "sequence", "version")


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of `config show`."""

    key: str
    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings and where each of their values came from."""

    settings: Settings
    path: Path | None
    written: Mapping[Key, Written]

    def shown(self) -> tuple[Shown, ...]:
        """Every effective value with its origin; secrets are replaced, never printed."""
        lines: list[Shown] = []
        for key in model_keys(Settings, self.settings.sources if self.settings.source else ()):
            written = self.written.get(key)
            if key[0] == "source" and written is None:
                continue
            value = _value_at(self.settings, key)
            lines.append(Shown(dotted(key), value, written.origin if written else "default"))
        for key, written in sorted(self.written.items()):
            if key[0] == "kafka" and not is_table(key):
                value = kafka_keys.shown(key[1], written.value)
                lines.append(Shown(dotted(key), value, written.origin))
        return tuple(lines)

    def place_of_kafka(self, name: str) -> str:
        """Where a key of `[kafka]` was written; of no key, the file."""
        entry = self.written.get(("kafka", name))
        return entry.place if entry else str(self.path or "[kafka]")


def load(
    path: Path | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    sets: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    inspect: bool = False,
) -> Loaded:
    """Read all layers and validate them.

    Args:
        path: the file; None reads ./laneway.toml where there is one.
        flags: dotted keys from a command's own flags; a None value was not given.
        sets: the values of `-X`, each `key=value`.
        env: the environment, by default the process's.
        inspect: for commands that only look: group is enough, sources may be absent.

    Raises:
        ConfigError: naming the key, where it was written, and what may stand there.
    """
    env = os.environ if env is None else env
    written: dict[Key, Written] = {}
    file = path if path is not None else DEFAULT_FILE if DEFAULT_FILE.is_file() else None
    if file is not None:
        written.update(file_layer(file))
    written.update(env_layer(env))
    written.update(set_layer(sets))
    for name, value in (flags or {}).items():
        if value is not None:
            written[key_of(name)] = Written(value, "flag")

    mistakes = list(_owned(written))
    resolved: dict[Key, object] = {}
    for key, entry in written.items():
        try:
            resolved[key] = _resolved(key, entry, env)
        except ConfigError as error:
            mistakes.append(error)
            resolved[key] = entry.value
    mistakes += _missing(resolved, file, inspect)
    mistakes += _contradictions(resolved, written)
    # What is missing has been said; the rest is judged as if it were there.
    for key, value in _STAND_INS.items():
        resolved.setdefault(key, value)
    settings = None
    try:
        settings = Settings.model_validate(_with_envelopes(resolved, written))
    except ConfigError as error:
        mistakes.append(error)
    except ValidationError as error:
        mistakes += _refused_values(error, written)
    if mistakes or settings is None:
        raise together(mistakes) from None
    return Loaded(settings, file, written)


def _value_at(settings: Settings, key: Key) -> object:
    if key[0] == "source":
        value: object = getattr(settings.envelope_of(key[1]), key[3])
    else:
        value = settings.model_dump(by_alias=True, mode="json", exclude={"kafka", "source"})
        for name in key:
            value = value[name] if isinstance(value, dict) else None
    return NO_PLACE if value is None and key[-1] in _SWITCHES else value


# --- refusals ----------------------------------------------------------------------------------


def _owned(written: Mapping[Key, Written]) -> Iterator[ConfigError]:
    protocol = written.get(("group_protocol",))
    for key, entry in written.items():
        if key[0] == "kafka" and not is_table(key):
            reason = kafka_keys.refusal(key[1], entry.value, protocol.value if protocol else "classic")
            if reason:
                yield ConfigError(f"[kafka] {key[1]} {reason}", where=entry.place, mend="take the key out")


def _missing(resolved: Mapping[Key, object], file: Path | None, inspect: bool) -> Iterator[ConfigError]:
    has_group, has_sources = ("group",) in resolved, bool(resolved.get(("sources",)))
    if file is None and not has_group and not (has_sources and not inspect):
        flags = "-g" if inspect else "-g and --source"
        yield ConfigError(
            f"no ./{DEFAULT_FILE} here and no -c FILE",
            where=str(Path.cwd()),
            mend=f"cd to it, name it with -c, or give {flags}",
        )
        return
    where = str(file) if file else "no configuration file"
    if not has_group:
        yield ConfigError("group is missing", where=where, mend='write group = "NAME", or give -g NAME')
    if inspect:
        return
    if not has_sources:
        yield ConfigError(
            "sources is missing", where=where, mend='write sources = ["TOPIC"], or give --source TOPIC'
        )


def _contradictions(resolved: Mapping[Key, object], written: Mapping[Key, Written]) -> Iterator[ConfigError]:
    """Values that are fine by themselves and promise nothing together."""
    if resolved.get(_UNKNOWN_OUTCOME) == "review" and resolved.get(_REPLICATION) == "local":
        yield ConfigError(
            'ledger.on_unknown_outcome "review" needs replication = "changelog": only there is it known to '
            "all machines, before a handler starts, that it will",
            where=written[_UNKNOWN_OUTCOME].place,
            mend='write replication = "changelog" under [ledger], or take on_unknown_outcome out: an effect '
            "whose outcome is unknown then runs again with the same key",
        )


def _resolved(key: Key, entry: Written, env: Mapping[str, str]) -> object:
    """`env:NAME` and `file:PATH` references replaced; lists as tuples, the model being strict."""
    value = entry.value
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, str) or (key[0] != "kafka" and key != ("instance_id",)):
        return value
    if value.startswith("env:"):
        name = value.removeprefix("env:")
        if not env.get(name):
            raise ConfigError(
                f"{dotted(key)} refers to the environment variable {name}, which is not set",
                where=entry.place,
                mend=f"set {name}, or take the key out",
            )
        return env[name]
    if value.startswith("file:") and key[0] == "kafka":
        return _secret_from_file(key, entry, Path(value.removeprefix("file:")))
    return value


def _secret_from_file(key: Key, entry: Written, path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{dotted(key)} refers to the file {path}, which cannot be read ({type(error).__name__})",
            where=entry.place,
            mend="mount the secret, or correct the path",
        ) from None
    if not secret:
        raise ConfigError(f"{dotted(key)} refers to the file {path}, which is empty", where=entry.place)
    return secret


# --- envelopes ---------------------------------------------------------------------------------


def _with_envelopes(resolved: Mapping[Key, object], written: Mapping[Key, Written]) -> dict[str, object]:
    """The nested tree for the model, with the order keys' absence made explicit."""
    tree: dict[str, object] = {}
    tables: dict[str, dict[str, object]] = {}
    for key, value in resolved.items():
        if key[0] in {"envelope", "source"} or is_table(key):
            continue
        if len(key) == 1:
            tree[key[0]] = value
        else:
            tables.setdefault(key[0], {})[key[1]] = value
    order = resolved.get(("lanes", "order"), "contiguous")
    base = {key[-1]: value for key, value in resolved.items() if key[0] == "envelope" and len(key) == 2}
    if any(key[0] == "envelope" and entry.from_file for key, entry in written.items()):
        # Whoever writes the table writes his record's shape: order is not assumed on top of it.
        base = {"sequence_key": NO_PLACE, "sequence": NO_PLACE, **base}
    elif order == "arrival":
        base = {"sequence": NO_PLACE, **base}
    tree["envelope"] = _order_checked({}, base, order, ("envelope",), written)
    names = resolved.get(("sources",), ())
    own_tables: dict[str, object] = {}
    for name in dict.fromkeys(key[1] for key in resolved if key[0] == "source" and len(key) > 1):
        prefix = ("source", name, "envelope")
        if not isinstance(names, tuple) or name not in names:
            entry = next(entry for key, entry in written.items() if key[:2] == ("source", name))
            named = written.get(("sources",))
            if named is None or not named.from_file:
                continue  # --source chooses among those of the file; their tables are no mistake
            raise ConfigError(
                f"[source.{name}] is not one of the sources", where=entry.place, mend="add it to sources"
            )
        own = {key[3]: value for key, value in resolved.items() if key[:3] == prefix and len(key) == 4}
        own_tables[name] = {"envelope": _order_checked(base, own, order, prefix, written)}
    return {**tree, **tables, "source": own_tables}


def _order_checked(
    base: Mapping[str, object],
    own: Mapping[str, object],
    order: object,
    prefix: Key,
    written: Mapping[Key, Written],
) -> dict[str, object]:
    table = {**base, **own}
    if own.get("sequence_key") == NO_PLACE and "sequence" not in own:
        table["sequence"] = NO_PLACE
    for name in _SWITCHES:
        if table.get(name) == NO_PLACE:
            table[name] = None
    default = EnvelopeSettings()
    keyed = table.get("sequence_key", default.sequence_key) is not None
    numbered = table.get("sequence", default.sequence) is not None
    entries = [entry for key, entry in written.items() if key[: len(prefix)] == prefix]
    where = entries[0].place if entries else "[lanes] order"
    if keyed and not numbered and order != "arrival":
        raise ConfigError(
            f'{dotted(prefix)}.sequence is missing: order = "{order}" counts the records of a sequence key',
            where=where,
            mend='write sequence = "json:/...", or order = "arrival" under [lanes]',
        )
    if numbered and not keyed:
        raise ConfigError(
            f"{dotted(prefix)}.sequence is written without a sequence_key, so it would do nothing",
            where=where,
            mend="write sequence_key too, or take sequence out",
        )
    return table


def _refused_values(error: ValidationError, written: Mapping[Key, Written]) -> list[ConfigError]:
    """Each mistake with its key and its place; a value under [kafka] is never repeated."""
    said: dict[str, ConfigError] = {}
    for mistake in error.errors(include_url=False, include_context=False):
        location = tuple(str(part) for part in mistake["loc"])
        key = next((known for known in written if location[: len(known)] == known), location)
        entry = written.get(key)
        text = mistake["msg"].removeprefix("Value error, ")
        value = (
            "" if key[:1] == ("kafka",) or isinstance(mistake["input"], dict) else f" {mistake['input']!r}"
        )
        name = f"{dotted(key)}{value}"
        where = entry.place if entry else "configuration"
        said.setdefault(name, ConfigError(f"{name}: {text}", where=where, mend="correct the value"))
    return list(said.values())
