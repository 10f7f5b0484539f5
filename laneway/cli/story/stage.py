"""Where one scenario plays: a group of its own, worker processes, and the evidence they leave behind.

DIRECTORY/laneway.toml          what the workers were told
DIRECTORY/journal-1.ndjson …    one per process start
DIRECTORY/runs.ndjson           a line per run of the handler; reports/ are the effects
DIRECTORY/state                 the ledger
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from laneway.cli.child import Child, read_journal, write_settings
from laneway.consumer.embedded import PARTITIONS, EmbeddedCluster, on_embedded
from laneway.consumer.inspection.cases import news_of
from laneway.consumer.inspection.dead_letters import DeadLetter, letter_of
from laneway.consumer.inspection.topics import StoredRecord, extents, read
from laneway.consumer.kafka.cluster import Cluster, PartitionOffsets
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import TopicNames, kinds_of, topic_names
from laneway.errors import IncompleteError
from laneway.lanes.effect import Effect
from laneway.lanes.forward import ReviewNews
from laneway.store.state_dir import StateDir

APP: Final = "laneway.cli.story.app:pipeline"
_POLL_S: Final = 0.1
_READ_S: Final = 20.0
_SILENCE_S: Final = 8.0
"""A worker that has nothing left and said nothing for so long will do nothing more."""

Line = dict[str, Any]


class EndOfStoryError(Exception):
    """The story is over for this scenario: interrupted, or out of time."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One thing that Laneway promises, and what was seen of it."""

    id: str
    promise: str
    expected: str
    observed: str
    ok: bool
    scenario: str = "all"
    """The part of the story that showed it; `all` for what holds across them."""


class Clock:
    """The time that the whole story has, and whether it was called off."""

    def __init__(self, limit_s: float) -> None:
        self._began = time.monotonic()
        self._limit_s = limit_s
        self._called_off = threading.Event()

    @property
    def elapsed_s(self) -> float:
        """Since the story began."""
        return time.monotonic() - self._began

    def call_off(self) -> None:
        """End every wait; from any thread."""
        self._called_off.set()

    def pause(self, what: str) -> None:
        """A moment of waiting.

        Raises:
            EndOfStoryError: there is no more time to wait for `what`.
        """
        if self._called_off.wait(_POLL_S):
            raise EndOfStoryError("interrupted")
        if self.elapsed_s > self._limit_s:
            raise EndOfStoryError(f"waited in vain for {what}")


class Stage:
    """One scenario's group, topic and processes.

    Args:
        tables: of laneway.toml, where the scenario needs other than the defaults.
        tell: says a sentence of progress.
    """

    def __init__(
        self,
        name: str,
        cluster: EmbeddedCluster,
        directory: Path,
        clock: Clock,
        tell: Callable[[str], None],
        tables: Mapping[str, object],
    ) -> None:
        self.name = name
        self.directory = directory
        self.tell = tell
        self._cluster = cluster
        self._clock = clock
        self._children: list[Child] = []
        directory.mkdir()
        told = {"group": f"demo-{name}", "sources": (name,), "ledger": {"replication": "local"}, **tables}
        self.settings = on_embedded(
            Settings.model_validate(told),
            cluster.bootstrap,
            group=f"demo-{name}",
            sources=(name,),
            state_dir=directory / "state",
        )
        self.names: TopicNames = topic_names(self.settings, name)
        write_settings(self.settings, directory)
        with Cluster(self.settings) as asking:
            # Being asked for is what makes a topic here.
            asking.partition_counts([name, *(self.names.of(kind) for kind in kinds_of(self.settings))])

    # -- acting

    def publish(
        self,
        effect_key: str,
        payload: object,
        *,
        message_id: str = "",
        lane: str = "",
        sequence: int = 0,
        partition: int = 0,
    ) -> None:
        """Publish one record; the message id is the effect key's unless one is given."""
        envelope = {
            "messageId": message_id or f"message {effect_key}",
            "effectKey": effect_key,
            "version": 1,
            "payload": payload,
        }
        if lane:
            envelope |= {"sequenceKey": lane, "sequence": sequence}
        self.publish_bytes(json.dumps(envelope).encode(), partition=partition)

    def publish_bytes(self, value: bytes, *, partition: int = 0) -> None:
        """Publish a value as it is."""
        self._cluster.publish(self.name, partition, value)
        self._cluster.flush()

    def start(self, *, crash_after: tuple[str, str] | None = None) -> Child:
        """Start a worker; it ends with the stage."""
        journal = f"journal-{len(self._children) + 1}.ndjson"
        child = Child(APP, self.directory, journal=journal, crash_after=crash_after)
        self._children.append(child)
        return child

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Wait for a condition. A worker that ends meanwhile unasked ends the wait, and so does silence.

        Raises:
            EndOfStoryError: it did not come true.
        """
        told_bytes, heard_s = self._told_bytes(), self._clock.elapsed_s
        while not condition():
            self._clock.pause(what)
            code = self._children[-1].exit_code() if self._children else None
            if code is not None and not condition():
                words = self._children[-1].last_words()
                raise EndOfStoryError(f"the worker ended with {code} before {what}; it said:\n{words}")
            if (now_bytes := self._told_bytes()) != told_bytes:
                told_bytes, heard_s = now_bytes, self._clock.elapsed_s
            elif self._clock.elapsed_s - heard_s > _SILENCE_S:
                if self.lag() == 0 and not condition():
                    raise EndOfStoryError(f"waited in vain for {what}: nothing is left to come")
                heard_s = self._clock.elapsed_s

    def wait_for_end(self, child: Child, what: str) -> int:
        """Wait until a worker has ended; its exit code, -9 after a kill."""
        while (code := child.exit_code()) is None:
            self._clock.pause(what)
        return code

    def stop(self, child: Child) -> None:
        """Ask a worker to stop, and wait until it has."""
        child.terminate()
        self.wait_for_end(child, "the worker's end")

    def close(self) -> None:
        """End every process that is left."""
        for child in self._children:
            with child:
                pass

    # -- looking

    def lives(self) -> list[list[Line]]:
        """The journal of each process start."""
        return [read_journal(child.journal_path) for child in self._children]

    def journal(self, event: str = "", effect_key: str = "") -> list[Line]:
        """Lines of all starts, in order; only those of an event or an effect where one is named."""
        return [
            line
            for life in self.lives()
            for line in life
            if event in {"", line["event"]} and effect_key in {"", line["effectKey"]}
        ]

    def exit_codes(self) -> list[int | None]:
        """How each process ended."""
        return [child.exit_code() for child in self._children]

    def runs(self) -> list[Line]:
        """Every run of the handler, as it noted it itself."""
        return read_journal(self.directory / "runs.ndjson")

    def runs_of(self, lane: str) -> list[int]:
        """The sequences of a lane in the order in which they ran."""
        return [run["sequence"] for run in self.runs() if run["sequenceKey"] == lane]

    def reports(self) -> list[str]:
        """The names of the effect files."""
        return sorted(path.name for path in (self.directory / "reports").glob("*"))

    def offsets(self) -> Sequence[PartitionOffsets]:
        """Committed and end of every partition of source and retry topic."""
        places = [(topic, number) for topic in (self.name, self.names.retry) for number in range(PARTITIONS)]
        with Cluster(self.settings) as cluster:
            return cluster.offsets(self.settings.group, places)

    def lag(self) -> int:
        """Records that are not committed, retries included."""
        return sum(each.lag for each in self.offsets())

    def committed(self) -> int:
        """The committed offset of the partition where scenarios publish."""
        return next(
            each.committed or 0 for each in self.offsets() if (each.topic, each.partition) == (self.name, 0)
        )

    def retries(self) -> list[StoredRecord]:
        """What lies in the retry topic."""
        return self._records(self.names.retry)

    def dead_letters(self) -> list[DeadLetter]:
        """What lies in the DLQ topic."""
        return [letter_of(record, self.settings.group) for record in self._records(self.names.dlq)]

    def news(self) -> list[ReviewNews]:
        """What lies in the review topic."""
        found = [news_of(record, self.settings.group) for record in self._records(self.names.review)]
        return [news for news in found if news is not None]

    def effects(self, *keys: str) -> list[Effect | None]:
        """What the ledger knows of these effects."""
        state = StateDir.inspect(self.directory / "state")
        if not state.exists(self.name, 0):
            return [None for _ in keys]
        with state.read_store(self.name, 0) as ledger:
            return ledger.effects(keys)

    def _told_bytes(self) -> int:
        """How much the journals hold: it grows while anything happens."""
        return sum(path.stat().st_size for path in self.directory.glob("journal-*.ndjson"))

    def _records(self, topic: str) -> list[StoredRecord]:
        with Cluster(self.settings) as cluster:
            spans = extents(cluster, [topic])
        return list(read(self.settings, spans, timeout_s=_READ_S))


def seen(id_: str, promise: str, expected: str, look: Callable[[], str]) -> Promise:
    """A promise that is kept when what is seen reads as expected."""
    observed = _look(look)
    return Promise(id_, promise, expected, observed, observed == expected)


def judged(id_: str, promise: str, expected: str, look: Callable[[], tuple[str, bool]]) -> Promise:
    """A promise with room in it: the look says itself whether what it saw keeps it."""
    kept = False

    def text() -> str:
        nonlocal kept
        words, kept = look()
        return words

    observed = _look(text)
    return Promise(id_, promise, expected, observed, kept)


def _look(look: Callable[[], str]) -> str:
    try:
        return look()
    except (LookupError, AttributeError, StopIteration, IncompleteError) as error:
        # Evidence that is not there is itself what was observed.
        return f"no evidence of it ({type(error).__name__})"
