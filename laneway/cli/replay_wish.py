"""What both ways of replaying dead letters share: which are meant, and what is known of them beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from laneway.cli import ledger_places
from laneway.cli.output import Format
from laneway.consumer.inspection.dead_letters import DeadLetter
from laneway.consumer.inspection.topics import extents, read
from laneway.consumer.kafka.cluster import Cluster, Partition
from laneway.consumer.operations import letters
from laneway.consumer.operations.commands import queued
from laneway.consumer.operations.letters import Condition, Sorted, Standing, Wanted, names_of
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import topic_names
from laneway.errors import LanewayError, UsageError
from laneway.lanes.command import Command

TOLD: Final = 10
"""Letters that are told of one by one."""

NAMELESS: Final = "nobody could read whose it is, so there is no key to replay it to"

_FIELDS: Final[dict[str, Callable[[DeadLetter], str | None]]] = {
    "reason": lambda letter: letter.reason,
    "error-class": lambda letter: letter.error_class,
    "fingerprint": lambda letter: letter.fingerprint,
    "key": lambda letter: letter.sequence_key,
    "effect-key": lambda letter: letter.effect_key,
    "message-id": lambda letter: letter.message_id,
    "topic": lambda letter: letter.origin_topic,
    "partition": lambda letter: str(letter.origin_partition),
    "earlier-replays": lambda letter: str(letter.replays),
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What the reader asked for, once it is known to make sense."""

    actor: str
    reason: str
    out_of_order: bool
    value: bytes | None
    wait_s: float
    timeout_s: float
    form: Format
    yes: bool
    dry_run: bool
    payload: bool
    ledgers: Callable[[Sequence[Wanted]], Mapping[Partition, Standing]]


def conditions(where: Sequence[str], key: str | None, fingerprint: str | None) -> Condition:
    """Which dead letters are meant; every condition has to hold.

    Raises:
        UsageError: one is not NAME=VALUE, or of an unknown name.
    """
    wanted = [] if fingerprint is None else [("fingerprint", fingerprint)]
    for each in where:
        name, equals, value = each.partition("=")
        if not equals or name not in _FIELDS:
            raise UsageError(
                f"{each!r} is no condition", where="--where", mend=f"write NAME=VALUE: {', '.join(_FIELDS)}"
            )
        wanted.append((name, value))

    def fits(letter: DeadLetter) -> bool:
        if key is not None and key not in (letter.sequence_key, letter.effect_key):
            return False
        return all(_FIELDS[name](letter) == value for name, value in wanted)

    return fits


def ledgers_of(
    config: Path | None,
    sets: list[str] | None,
    bootstrap: str | None,
    group: str | None,
    sources: Sequence[str],
    wanted: Sequence[Wanted],
    timeout_s: float,
) -> Mapping[Partition, Standing]:
    """What the ledgers know, those that can be read from here."""
    names = names_of(wanted)
    try:
        looked = ledger_places.where(
            config,
            sets,
            bootstrap,
            group,
            sources=sources,
            partitions=sorted({each.partition for each in wanted}),
            state_dir=None,
            from_topic=False,
            timeout_s=timeout_s,
        )
        return looked.ledgers.fold(lambda: Standing(names)).by_ledger
    except LanewayError:
        # With "local" on another machine there is nothing to read; then the owner alone knows.
        return {}


def looked_at(
    settings: Settings, cluster: Cluster, wanted: Sequence[Wanted], wish: Wish
) -> tuple[Sorted, Mapping[Partition, Standing]]:
    """What is to be expected of each, and what the ledgers say."""
    sources = sorted({each.topic for each in wanted})
    reviews = dict.fromkeys(topic_names(settings, source).review for source in sources)
    records = read(settings, extents(cluster, reviews), timeout_s=wish.timeout_s)
    told = letters.told_of(settings, records, wanted)
    ids = {each.forward_id for each in wanted}

    def is_theirs(command: Command) -> bool:
        letter = command.letter
        return letter is not None and letter.forward_id in ids and command.command_id not in told.answered

    before = queued(settings, cluster, sources, timeout_s=wish.timeout_s, wanted=is_theirs)
    under_way = [command.letter.forward_id for command, _ in before.values() if command.letter is not None]
    ledgers = wish.ledgers(wanted)
    found = letters.sort_out(wanted, told, ledgers, under_way, settings, out_of_order=wish.out_of_order)
    return found, ledgers
