"""Single values of laneway.toml: sizes, durations, instants, envelope places, names.

Each function takes what a TOML file, an environment variable or `-X` can hold and returns the
value Laneway works with, or raises ValueError with one sentence. Nothing here knows of files,
precedence or tables: those are `settings/load.py`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_SIZE: Final = re.compile(r"(\d+)(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)")
_SIZE_UNITS: Final = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_DURATION: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_DURATION_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]+")
_DOTTED_CLASS: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_POINTER: Final = re.compile(r"(/([^~/]|~0|~1)*)*")
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")

TOPIC_NAME_MAX: Final = 249


def size_bytes(value: object) -> object:
    """`"1GiB"`, `"500MB"` or a plain number of bytes."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None:
            raise ValueError('is not a size: write bytes as a number, or "256MiB", "1GiB", "500MB"')
        return int(match[1]) * _SIZE_UNITS[match[2]]
    return value


def duration_ms(value: object) -> object:
    """`"30d"`, `"12h"`, `"500ms"` or a plain number of milliseconds."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise ValueError(
                'is not a duration: write milliseconds as a number, or "30d", "12h", "15m", "20s"'
            )
        return int(match[1]) * _DURATION_UNITS_MS[match[2]]
    return value


def start_instant(value: object) -> object:
    """`earliest`, `latest`, or an instant as epoch milliseconds: the clock's zone must be written."""
    if isinstance(value, str):
        if value in {"earliest", "latest"}:
            return value
        if re.fullmatch(r"\d+", value):
            return int(value)
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(
                'is none of "earliest", "latest", an ISO timestamp with its zone (2026-03-01T06:00:00Z) '
                "and epoch milliseconds"
            ) from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("is a timestamp without a zone: end it with Z or an offset such as +01:00")
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return value


def number_or_word(value: object) -> object:
    """A number that arrived as text (an environment variable knows only text) becomes a number."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"\d+", value) else value


def identity_place(value: str) -> str:
    """Where an id is read: `header:NAME`, `key`, `json:/pointer` or `position`."""
    return value if value == "position" else field_place(value, also='"position"')


def field_place(value: str, also: str = "") -> str:
    """Where a field is read: `header:NAME`, `key` or `json:/pointer`."""
    if value == "key":
        return value
    if value.startswith("header:"):
        if not value.removeprefix("header:").strip():
            raise ValueError('names no header: write "header:NAME"')
        if value.startswith("header:laneway-"):
            raise ValueError("reads a laneway- header: those are believed only on Laneway's own topics")
        return value
    if value.startswith("json:"):
        json_pointer(value.removeprefix("json:"))
        return value
    listed = ['"header:NAME"', '"key"', '"json:/pointer"', *([also] if also else [])]
    raise ValueError(f"is none of {', '.join(listed)}")


def payload_place(value: str) -> str:
    """Where the payload is read: `value` (the whole record value) or `json:/pointer`."""
    if value == "value":
        return value
    if value.startswith("json:"):
        json_pointer(value.removeprefix("json:"))
        return value
    raise ValueError('is neither "value" nor "json:/pointer"')


def json_pointer(pointer: str) -> str:
    """An RFC 6901 pointer below the root: `/a/b`, with `~0` for `~` and `~1` for `/`."""
    if not pointer.startswith("/"):
        raise ValueError('is not a JSON pointer (RFC 6901): it starts with "/", as in "json:/messageId"')
    if not _POINTER.fullmatch(pointer):
        raise ValueError('is not a JSON pointer (RFC 6901): "~" is written "~0" and "/" in a name "~1"')
    return pointer


def topic_name(name: str) -> str:
    """A name a broker accepts for a topic."""
    if name.startswith("^"):
        raise ValueError("is a pattern: name each source topic, its companions are made per source")
    if name in {"", ".", ".."}:
        raise ValueError('is not a topic name: it may not be empty, "." or ".."')
    if not _TOPIC.fullmatch(name):
        raise ValueError("has characters a topic name may not have: allowed are a-z A-Z 0-9 . _ -")
    if len(name) > TOPIC_NAME_MAX:
        raise ValueError(f"has {len(name)} characters: a topic name has at most {TOPIC_NAME_MAX}")
    return name


def topic_template(template: str) -> str:
    """A companion topic's template: `{source}` and `{group}`, nothing else in braces."""
    unknown = [name for name in _PLACEHOLDER.findall(template) if name not in {"source", "group"}]
    if unknown:
        raise ValueError(f"has the unknown placeholder {{{unknown[0]}}}: there are {{source}} and {{group}}")
    if "{group}" not in template:
        # Two groups on one retry topic would run each other's failures.
        raise ValueError("has no {group}: these topics belong to one consumer group")
    topic_name(template.replace("{source}", "s").replace("{group}", "g"))
    return template


def class_name(dotted: str) -> str:
    """The full name of an exception class, `package.module.Class`; imported when the worker starts."""
    if not _DOTTED_CLASS.fullmatch(dotted):
        raise ValueError('is not the full name of a class, such as "httpx.TransportError"')
    return dotted


def group_id(value: str) -> str:
    """A consumer group's id."""
    if not value or not value.isprintable() or len(value) > TOPIC_NAME_MAX:
        raise ValueError(f"is not a group id: 1 to {TOPIC_NAME_MAX} printable characters")
    if not _TOPIC.fullmatch(value):
        raise ValueError(
            "has characters that the names of its topics may not have: allowed are a-z A-Z 0-9 . _ -"
        )
    return value


def bootstrap_servers(value: str) -> str:
    """`host:port`, several separated by commas."""
    for server in value.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not colon or not host or re.search(r"[\s/@]", host) or not port.isdigit() or int(port) > 65_535:
            raise ValueError('is not a list of brokers: write "host:port", several separated by commas')
    return value
