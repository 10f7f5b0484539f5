"""What is measured: every subject with what it promises, and the cases of the short and the long form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

import msgspec

from benchmarks.environments import Command, compiled, java_peer, own, python_peer

Part = Literal["peers", "handlers", "keys", "ledger", "partitions", "processes", "latency", "restore"]
PARTS: Final[tuple[Part, ...]] = (
    "peers", "handlers", "keys", "ledger", "partitions", "processes", "latency", "restore",
)  # fmt: skip
CONCURRENCY: Final = 16
ONE_BY_ONE: Final = ("bare-json", "quix", "share")
"""They handle one record at a time, whatever the concurrency of a case."""
ASYNC_CONCURRENCY: Final = 256
KEYS: Final = 1_000
PARTITIONS: Final = 4


class SubjectKind(msgspec.Struct, frozen=True):
    """A thing that can be measured.

    Attributes:
        command: how it is started; raises UnavailableError where it cannot be.
        promises: what a user of it gets, beside its figure.
        share: of the records of a form; slow ones get fewer, and a loop that only empties the
            queue of its client, of 100,000 messages for each partition, gets more. 0 for one that is
            only measured with handlers that take time.
    """

    name: str
    command: Callable[[], Command]
    promises: str
    share: float = 1.0


_LOOPS = "benchmarks.peers.loops"
SUBJECTS: Final = {
    kind.name: kind
    for kind in (
        SubjectKind(
            "changelog",
            lambda: own("benchmarks.subject"),
            "order by key; an effect once, on any machine; retries, DLQ, cases; offsets in the transaction",
        ),
        SubjectKind(
            "compiled",
            lambda: compiled("benchmarks.subject"),
            "as changelog, with the rules compiled: LANEWAY_COMPILED=1 pip install .",
        ),
        SubjectKind(
            "local",
            lambda: own("benchmarks.subject"),
            "the same, with the memory of effects on one machine",
        ),
        SubjectKind(
            "bare-json",
            lambda: own(_LOOPS),
            "order by partition; json of the standard library; one commit, at the very end",
            8.0,
        ),
        SubjectKind("bare-msgspec", lambda: own(_LOOPS), "the same with a fast parser", 8.0),
        SubjectKind(
            "commit-each",
            lambda: own(_LOOPS),
            "order by partition; a synchronous commit for each record; a crash repeats one",
            1 / 125,
        ),
        SubjectKind(
            "pyrallel",
            lambda: python_peer("pyrallel", (3, 12)),
            "order by key; at least once; handlers are coroutines",
            1 / 16,
        ),
        SubjectKind(
            "quix",
            lambda: python_peer("quix"),
            "order by partition; a state with a changelog remembers effects; at least once, checkpoints of "
            "100 ms; one handler at a time",
        ),
        SubjectKind(
            "alone",
            lambda: own("benchmarks.peers.alone"),
            "nothing: only the handlers, as many at a time, without Kafka: what the interpreter can do",
            0.0,
        ),
        SubjectKind(
            "java", java_peer, "order by key; at least once, asynchronous commits of 100 ms; no memory", 2.0
        ),
        SubjectKind(
            "share",
            lambda: own("benchmarks.peers.share"),
            "no order; at least once, each record acknowledged; one handler at a time",
        ),
    )
}
LANEWAY: Final = frozenset({"changelog", "compiled", "local"})


class Case(msgspec.Struct, frozen=True):
    """One subject under one load.

    Attributes:
        journal: its level; Laneway only. The replication is the subject's name.
        effects: in the ledger before it begins.
        payload: what the value of a record becomes.
        rounds: in which it takes part, from the first on.
    """

    part: Part
    subject: str
    records: int
    rounds: int
    handler: str = "none"
    journal: str = "exceptions"
    keys: int = KEYS
    partitions: int = PARTITIONS
    effects: int = 0
    concurrency: int = CONCURRENCY
    payload: str = ""

    def __post_init__(self) -> None:
        if not self.payload:
            payload = "pydantic, 4 fields" if self.subject in LANEWAY else "parsed JSON"
            msgspec.structs.force_setattr(self, "payload", payload)

    @property
    def name(self) -> str:
        """What no other case of a measurement is called."""
        return (
            f"{self.part}: {self.label} handler={self.handler} keys={self.keys} partitions={self.partitions}"
            f" effects={self.effects}"
        )

    @property
    def label(self) -> str:
        """The subject, with its journal where that differs."""
        return self.subject if self.journal == "exceptions" else f"{self.subject} journal={self.journal}"

    @property
    def topic(self) -> tuple[int, int, int]:
        """Cases with the same one read the same topic."""
        return self.keys, self.records, self.partitions


class Form(msgspec.Struct, frozen=True):
    """How much is measured.

    Attributes:
        records: of a case whose share is 1 and whose handler does nothing.
        rounds: of the table of peers; `side_rounds` of the other tables.
        seconds: that a handler which takes time keeps a subject busy, about.
        keys, effects, partitions, processes: the steps of the growth tables.
        deadline_s: after which a subject is given up.
        latency_s: of each load of the latency table.
        restore: entries.
    """

    full: bool
    records: int
    rounds: int
    side_rounds: int
    seconds: float
    keys: tuple[int, ...]
    effects: tuple[int, ...]
    partitions: tuple[int, ...]
    processes: tuple[int, ...]
    process_s: float
    deadline_s: float
    latency_s: float
    restore: int
    restore_rounds: int


SHORT: Final = Form(
    full=False,
    records=40_000,
    rounds=3,
    side_rounds=1,
    seconds=1.2,
    keys=(1_000, 100_000),
    effects=(0, 250_000),
    partitions=(1, 4, 16),
    processes=(1, 2, 3),
    process_s=2.0,
    deadline_s=45.0,
    latency_s=3.0,
    restore=120_000,
    restore_rounds=1,
)
FULL: Final = Form(
    full=True,
    records=200_000,
    rounds=5,
    side_rounds=5,
    seconds=6.0,
    keys=(1_000, 125_000, 250_000, 500_000, 1_000_000),
    effects=(0, 1_250_000, 2_500_000, 5_000_000, 10_000_000),
    partitions=(1, 2, 4, 8, 16, 32),
    processes=(1, 2, 3, 4),
    process_s=10.0,
    deadline_s=300.0,
    latency_s=20.0,
    restore=5_000_000,
    restore_rounds=1,
)


def cases(form: Form, parts: frozenset[Part]) -> list[Case]:
    """Every case of a form, in the order of a round."""
    found = [*_peers(form), *_handlers(form), *_growth(form)]
    return [case for case in found if case.part in parts]


def _peers(form: Form) -> Iterator[Case]:
    for kind in SUBJECTS.values():
        if kind.share:
            records = max(320, int(form.records * kind.share))
            yield Case("peers", kind.name, records, form.rounds)
    for level in ("off", "all") if form.full else ():
        yield Case("peers", "changelog", form.records, form.rounds, journal=level)


def _handlers(form: Form) -> Iterator[Case]:
    """Handlers that take time, and a key that all records have."""
    # One event loop hands out fewer than its handlers could take.
    concurrent = (("changelog", 20_000.0), ("alone", 20_000.0), ("java", 20_000.0), ("pyrallel", 2_000.0))
    one_by_one = ONE_BY_ONE if form.full else ("bare-json",)
    for ms in (1, 10, 100):
        for subject, fastest in concurrent:
            records = _for(form, min(fastest, CONCURRENCY * 1000 / ms))
            yield Case("handlers", subject, records, form.side_rounds, f"sleep-{ms}")
        for subject in one_by_one:
            yield Case("handlers", subject, _for(form, 1000 / ms), form.side_rounds, f"sleep-{ms}")
    most = ASYNC_CONCURRENCY * 1000 / 10
    for subject, fastest in (("changelog", most), ("alone", most), ("pyrallel", 2_000.0)):
        yield Case(
            "handlers", subject, _for(form, fastest), form.side_rounds, "async-10",
            concurrency=ASYNC_CONCURRENCY,
        )  # fmt: skip
    # A JVM takes its time to compile the loop that computes.
    for subject, fastest in (("changelog", 1000.0), ("java", 3000.0), ("bare-json", 1000.0)):
        yield Case("handlers", subject, _for(form, fastest), form.side_rounds, "cpu-1")
    for subject, share in (("changelog", 0.5), ("java", 1 / 16), ("pyrallel", 1 / 80)):
        yield Case("handlers", subject, max(500, int(form.records * share)), form.side_rounds, keys=1)


def _for(form: Form, per_second: float) -> int:
    return max(32, int(per_second * form.seconds * 4 / 3))


def _growth(form: Form) -> Iterator[Case]:
    for keys in form.keys:
        yield Case("keys", "changelog", form.records * 2, form.side_rounds, keys=keys)
    for effects in form.effects:
        yield Case("ledger", "changelog", form.records, form.side_rounds, partitions=1, effects=effects)
    for partitions in form.partitions:
        yield Case("partitions", "changelog", form.records, form.side_rounds, partitions=partitions)
