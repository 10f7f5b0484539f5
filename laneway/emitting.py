"""What a handler may emit: checked where it is said, so that a mistake is the handler's, not the settler's.

A record that Kafka would never take must not be found out when the effect has already happened and its
settlement waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from laneway.lanes.forward import PREFIX
from laneway.lanes.verdict import Emitted

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def emitted_of(topic: object, key: object, value: object, headers: Sequence[object]) -> Emitted:
    """A record as a handler wants it published.

    Raises:
        TypeError, ValueError: see `Delivery.emit`. They never quote key, value or a header's value.
    """
    if not isinstance(topic, str):
        raise TypeError(f"emit: the topic is a str, not {type(topic).__name__}")
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise ValueError("emit: not a topic name: letters, digits, '.', '_' and '-', at most 249 of them")
    checked = []
    for pair in headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError("emit: a header is a pair of name and bytes")
        name, content = pair
        if not isinstance(name, str):
            raise TypeError(f"emit: the name of a header is a str, not {type(name).__name__}")
        if name.startswith(PREFIX):
            raise ValueError(f"emit: header names that begin with {PREFIX!r} are ours: {name!r}")
        checked.append((name, _bytes(content, f"header {name!r}")))
    return Emitted(topic, _bytes(key, "the key"), _bytes(value, "the value"), tuple(checked))


def _bytes(content: object, what: str) -> bytes | None:
    if content is None:
        return None
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"emit: {what} is bytes or None, not {type(content).__name__}; encode it first")
