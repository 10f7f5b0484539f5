"""Commands to copy: a next step as one line for a shell, against the cluster and group that were asked for.

A key may hold anything; in a suggested line it stands quoted, and no control character of it as such.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from laneway.cli.columns import counted
from laneway.consumer.settings import kafka_keys

WHY: Final = "WHY"
"""Stands in a suggested line for the reason, which only a person can give; as a reason it is refused."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that said which cluster and which group, as the reader wrote them."""

    words: tuple[str, ...]

    def line(self, *words: str) -> str:
        """`laneway WORDS...` with those options, ready to be pasted."""
        return " ".join(quoted(word) for word in ("laneway", *words, *self.words))

    def unreadable(self, count: int, *, configured: bool) -> str:
        """What is said of records that no envelope known here reads.

        Args:
            configured: the configuration is that of the workers, so they cannot read them either.
        """
        records = counted(count, "record")
        if not configured:
            return f"{records} cannot be read by the envelope known here: give the workers' -c FILE"
        verb, they = ("is", "it goes") if count == 1 else ("are", "they go")
        return (
            f"{records} {verb} unreadable for the worker too, unless its pipeline has a decoder: {they} "
            f"to the DLQ ({self.line('dlq', 'list')})"
        )

    def resolving(self, case_id: str, actions: Sequence[str], set_next: int) -> list[str]:
        """The commands that would resolve a case, one for each action that is permitted."""
        further = {"replay-with": ("corrected.json",), "set-next": (str(set_next),)}
        return [
            self.line(
                *("review", "resolve", case_id, "--action", action, *further.get(action, ())),
                *("--reason", WHY),
            )
            for action in actions
        ]


def asked(
    config: Path | None,
    sets: Sequence[str] | None,
    bootstrap: str | None,
    group: str | None,
    sources: Sequence[str] | None,
) -> Asked:
    """What to repeat of a command's own options."""
    words: list[str] = []
    for option, value in (("-b", bootstrap), ("-g", group), ("-c", None if config is None else str(config))):
        if value is not None:
            words += [option, value]
    for source in sources or ():
        words += ["--source", source]
    for each in sets or ():
        name, _, value = each.partition("=")
        if name.startswith("kafka."):
            value = str(kafka_keys.shown(name.removeprefix("kafka."), value))
        words += ["-X", f"{name}={value}"]
    return Asked(tuple(words))


def quoted(word: str) -> str:
    """A word for a shell; one that is not printable as bash and zsh write it, $'...'."""
    if word.isprintable():
        return shlex.quote(word)
    shown = "".join(
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\x{byte:02x}"
        for byte in word.encode("utf-8", "surrogateescape")
    )
    return f"$'{shown}'"
