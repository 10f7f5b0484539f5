"""Where the ledgers are to be looked into: in the stores of a state directory, or in their topics.

With `replication = "local"` they are in the stores of one machine: no broker is needed, no lock is taken.
With `changelog` they are in the ledger topic, for any machine to read; a store only follows, and knows
nothing new of a partition that has moved away. Both answer the same questions, and a ledger that cannot be
read hides no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from laneway.cli import options
from laneway.cli.columns import instant_text
from laneway.cli.output import Cell, say
from laneway.consumer.inspection import changelog as inspect_changelog
from laneway.consumer.inspection import offsets as inspect_offsets
from laneway.consumer.inspection.changelog import Changelogs, Progress
from laneway.consumer.inspection.stores import EntryReader
from laneway.consumer.kafka.cluster import Cluster, Partition
from laneway.consumer.settings.model import Settings
from laneway.errors import IncompleteError, LanewayError, StateDirError, UsageError
from laneway.lanes.effect import Effect
from laneway.lanes.view import Meta
from laneway.store import codec
from laneway.store.port import LedgerStats
from laneway.store.reader import LedgerReader
from laneway.store.state_dir import StateDir

T = TypeVar("T")

_NO_CYCLE: Final = Meta("", 0, {}, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a ledger is and how far it came. A changelog does not tell the first two."""

    entries: int | None
    disk_bytes: int | None
    progress: LedgerStats | Meta


@dataclass
class Answers(Generic[T]):
    """What each ledger said, by its source partition; and the ledgers that could not be asked.

    Attributes:
        ledgers: what they are called, for a sentence.
        facts: about the whole answer.
    """

    ledgers: str
    facts: Mapping[str, Cell]
    by_ledger: dict[Partition, T] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The ledgers that answered."""
        return [f"{topic}-{partition}" for topic, partition in self.by_ledger]

    def take(self, place: Partition, ask: Callable[[], T]) -> None:
        """Ask one; why it cannot be read is said at once."""
        try:
            self.by_ledger[place] = ask()
        except LanewayError as error:
            say(f"laneway: {error}")
            self.unreadable.append(f"{place[0]}-{place[1]}")

    def refuse_if_incomplete(self) -> None:
        """An answer that lacks a ledger must not look like a whole one.

        Raises:
            IncompleteError: a ledger could not be read; why was said at once.
        """
        if self.unreadable:
            count = len(self.unreadable) + len(self.by_ledger)
            raise IncompleteError(
                f"{len(self.unreadable)} of {count} {self.ledgers} cannot be read, so this is not the whole "
                f"answer: {', '.join(self.unreadable)}"
            )


class Fold(Protocol):
    """What is made of the entries of one ledger.

    Attributes:
        prefixes: entries whose keys begin with none of these may be left out.
    """

    @property
    def prefixes(self) -> Sequence[bytes]: ...

    def take(self, key: bytes, value: bytes | None, /) -> None:
        """One entry, in the order written; None for one that was removed."""
        ...


F = TypeVar("F", bound=Fold)


class Ledgers(Protocol):
    """The ledgers of a group, as far as they are asked about."""

    def effect(self, effect_key: str) -> Answers[Effect | None]:
        """What each knows of an effect."""

    def sizes(self) -> Answers[Sizes]:
        """How large each is, and how far it came."""

    def fold(self, make: Callable[[], F]) -> Answers[F]:
        """A fold of the entries of each."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The ledgers, and what a configuration adds to what is found there."""

    ledgers: Ledgers
    max_attempts: int | None


def where(
    config: Path | None,
    sets: list[str] | None,
    bootstrap: str | None,
    group: str | None,
    *,
    sources: Sequence[str],
    partitions: Sequence[int],
    state_dir: Path | None,
    from_topic: bool,
    timeout_s: float,
) -> Looked:
    """The place that tells the truth: the topic where the ledger follows its partition, else the stores here.

    A directory that was named says itself whose it is; a configuration beside it must agree.

    Raises:
        UsageError: a directory and the topic are both asked for.
        StateDirError: there is no state directory, or it belongs to another group.
    """
    if state_dir is not None and from_topic:
        raise UsageError("--state-dir and --from-topic name two places", mend="give one of them")
    if state_dir is not None and config is None and not sets and group is None:
        return Looked(_Stores(StateDir.inspect(state_dir), sources, partitions), None)
    flags = {"state_dir": None if state_dir is None else str(state_dir)}
    loaded = options.load_settings(
        config, sets, bootstrap=bootstrap, group=group, sources=sources, inspect=True, flags=flags
    )
    settings = loaded.settings
    if state_dir is None:
        # Nobody who gives -b and -g alone has to know how the group keeps its ledgers.
        known = loaded.path is not None or ("ledger", "replication") in loaded.written
        replicated = settings.ledger.replication == "changelog" if known else not settings.state_dir.exists()
        from_topic = from_topic or replicated
    ledgers = (
        _Topics(settings, partitions, timeout_s)
        if from_topic
        else _Stores(_directory_of(settings), sources, partitions)
    )
    return Looked(ledgers, 1 + len(settings.retry.delays_ms))


def _directory_of(settings: Settings) -> StateDir:
    directory = StateDir.inspect(settings.state_dir)
    if directory.group != settings.group:
        raise StateDirError(
            f"the state directory belongs to group {directory.group!r}, not to {settings.group!r}",
            where=str(directory.path),
            mend="check -g, or name the other directory with --state-dir",
        )
    return directory


class _Stores:
    """Stores on this machine, each open only while it is asked."""

    def __init__(self, directory: StateDir, sources: Sequence[str], partitions: Sequence[int]) -> None:
        self._directory = directory
        self._sources = sources
        self._partitions = partitions

    def effect(self, effect_key: str) -> Answers[Effect | None]:
        return self._ask_all(lambda reader: reader.effects([effect_key])[0])

    def sizes(self) -> Answers[Sizes]:
        def ask(reader: LedgerReader) -> Sizes:
            stats = reader.stats()
            return Sizes(stats.entries, stats.disk_bytes, stats)

        return self._ask_all(ask)

    def fold(self, make: Callable[[], F]) -> Answers[F]:
        def look(place: Partition) -> F:
            fold = make()
            reader = EntryReader(self._directory.store_path(*place))
            with reader:
                for key, value in reader.entries(fold.prefixes):
                    fold.take(key, value)
            return fold

        answers: Answers[F] = Answers("stores", self._facts())
        for place in self._wanted():
            answers.take(place, partial(look, place))
        return answers

    def _ask_all(self, ask: Callable[[LedgerReader], T]) -> Answers[T]:
        directory = self._directory

        def look(place: Partition) -> T:
            with directory.read_store(*place) as reader:
                return ask(reader)

        answers: Answers[T] = Answers("stores", self._facts())
        for place in self._wanted():
            answers.take(place, partial(look, place))
        return answers

    def _facts(self) -> Mapping[str, Cell]:
        directory = self._directory
        return {
            "group": directory.group,
            "cluster_id": directory.cluster_id,
            "read_from": "stores",
            "state_dir": str(directory.path),
        }

    def _wanted(self) -> Iterator[Partition]:
        for topic, partition in self._directory.list_stores():
            if self._sources and topic not in self._sources:
                continue
            if not self._partitions or partition in self._partitions:
                yield topic, partition


class _Topics:
    """The ledger topics. What is committed at the time of the question is read, and its time is said."""

    def __init__(self, settings: Settings, partitions: Sequence[int], timeout_s: float) -> None:
        self._settings = settings
        self._partitions = partitions
        self._timeout_s = timeout_s

    def effect(self, effect_key: str) -> Answers[Effect | None]:
        found, facts = self._ends()
        values = inspect_changelog.effect_values(
            self._settings, found, effect_key, timeout_s=self._timeout_s, told=_say_progress
        )
        return _decoded(
            found, facts, values, lambda value: None if value is None else codec.decode_effect(value)
        )

    def sizes(self) -> Answers[Sizes]:
        found, facts = self._ends()
        values = inspect_changelog.meta_values(self._settings, found, timeout_s=self._timeout_s)

        def decode(value: bytes | None) -> Sizes:
            return Sizes(None, None, _NO_CYCLE if value is None else codec.decode_meta(value))

        return _decoded(found, facts, values, decode)

    def fold(self, make: Callable[[], F]) -> Answers[F]:
        found, facts = self._ends()
        folds = {place: make() for place in found.spans}
        prefixes = tuple(make().prefixes)
        broken: dict[Partition, LanewayError] = {}
        for place, key, value in inspect_changelog.entries(
            self._settings, found, timeout_s=self._timeout_s, told=_say_progress
        ):
            if key is None or place in broken or not key.startswith(prefixes):
                continue
            try:
                folds[place].take(key, value)
            except LanewayError as error:
                broken[place] = error

        def answer(place: Partition) -> F:
            if place in broken:
                raise broken[place]
            return folds[place]

        answers: Answers[F] = Answers("changelogs", facts)
        for place in found.spans:
            answers.take(found.ledger_of(place), partial(answer, place))
        return answers

    def _ends(self) -> tuple[Changelogs, Mapping[str, Cell]]:
        settings = self._settings
        with Cluster(settings) as cluster:
            sources = inspect_offsets.sources_of(settings, cluster)
            found = inspect_changelog.changelogs(settings, cluster, sources, self._partitions)
            cluster_id = cluster.cluster_id()
        say(f"from {', '.join(found.topics)}: what was committed at {instant_text(found.as_of_ms)}")
        return found, {
            "group": settings.group,
            "cluster_id": cluster_id,
            "read_from": "topics",
            "ledger_topics": found.topics,
            "as_of_ms": found.as_of_ms,
        }


def _decoded(
    found: Changelogs,
    facts: Mapping[str, Cell],
    values: Mapping[Partition, bytes],
    decode: Callable[[bytes | None], T],
) -> Answers[T]:
    answers: Answers[T] = Answers("changelogs", facts)
    for place in found.spans:
        answers.take(found.ledger_of(place), partial(decode, values.get(place)))
    return answers


def _say_progress(progress: Progress) -> None:
    millions = progress.entries / 1_000_000
    say(f"read {progress.share:.0%}, {millions:.1f} M entries, {progress.left_s:.0f} s left")
