"""`changelog` under faults: owners deposed inside a transaction, commits nobody answered, brokers that die.

Whatever happens, a transaction is there whole or not at all, nobody reads what a deposed owner wrote, and
nothing is lost or done twice beyond the stated window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from laneway.consumer.background import DaemonExecutor
from laneway.consumer.kafka import clients
from laneway.consumer.rights import transactional_id_prefix
from laneway.consumer.settings.model import Settings
from laneway.consumer.settling.transactions import Answer, Fate, Transactions
from tests.broker import recording
from tests.broker.changelog import check_stores, ledgers_of, read_changelog, writers_of
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import SOAK, Names, ProxiedKafka
from tests.broker.journal_checks import (
    check_lane_order,
    check_once,
    check_saved_before_acked,
    events_of,
    header,
    second_runs,
)
from tests.broker.kafka import KafkaBroker
from tests.broker.members import ThreeBrokers
from tests.broker.proxy import END_TXN, PRODUCE
from tests.broker.recording import Run, event, read_runs
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

SESSION_MS = 2000
IN_DOUBT = "the end of a transaction is not known"
LANES = ("plain", "late", "bad")
LENGTH = 4


def mixed(first: int, last: int) -> list[Outgoing]:
    """Three lanes in step: one goes well, one fails once at each even number, one ends in the DLQ at 2."""
    return [
        event(lane, number, act=_act(lane, number)) for number in range(first, last + 1) for lane in LANES
    ]


def _act(lane: str, number: int) -> str:
    if lane == "late" and number % 2 == 0:
        return "fail:1"
    return "reject" if lane == "bad" and number == 2 else ""


@dataclass
class Scene:
    """One source of one partition, its group, and workers with disks of their own."""

    bootstrap: str
    cluster: Cluster
    names: Names
    directory: Path
    stack: ExitStack
    partitions: int = 1
    transaction_ms: int = 3000
    workers: list[WorkerProcess] = field(default_factory=list)

    def worker(self, name: str) -> WorkerProcess:
        """One more worker, not started yet."""
        worker = WorkerProcess(
            recording.APP,
            self.settings(name),
            directory=self.directory / "workers",
            name=name,
            environment=recording.environment(self.directory / "runs"),
        )
        self.workers.append(worker)
        return self.stack.enter_context(worker)

    def settings(self, name: str) -> dict[str, Any]:
        """Of the worker with this name."""
        return settings_of(
            self.bootstrap,
            self.names,
            self.directory / name,
            ledger={"replication": "changelog"},
            lanes={"workers": 2},
            retry={"delays_ms": [100]},
            kafka={"session.timeout.ms": SESSION_MS, "transaction.timeout.ms": self.transaction_ms},
        )

    def create(self) -> None:
        """The source and its companions."""
        self.cluster.create_topic(self.names.source, self.partitions)
        create_companions(self.settings("setup"), self.directory)

    def companion(self, kind: str) -> str:
        """The name of a companion topic."""
        return f"{self.names.source}.{self.names.group}.{kind}"

    def await_live(self, worker: WorkerProcess) -> None:
        """Returns once a worker has all partitions."""
        eventually(lambda: len(worker.live()) == self.partitions, 40, f"{worker.name} to be live")

    def await_rest(self, deadline_s: float = 40) -> None:
        """Returns once everything is settled, and no transaction is open."""

        def is_at_rest() -> bool:
            for topic in (self.names.source, self.companion("retry")):
                committed, ends = (
                    self.cluster.committed(self.names.group, topic),
                    self.cluster.end_offsets(topic),
                )
                assert {number: committed[number] or 0 for number in ends} == ends, topic
            ledger = self.companion("ledger")
            assert self.cluster.stable_offsets(ledger) == self.cluster.end_offsets(ledger)
            return True

        try:
            eventually(is_at_rest, deadline_s, "everything to be settled", poll_s=0.1)
        except AssertionError as error:
            said = "\n".join(worker.last_words() for worker in self.workers if worker.running)
            raise AssertionError(f"{error}\n{said}") from error

    def runs(self) -> list[Run]:
        """The handler's runs so far."""
        return read_runs(self.directory / "runs")

    def check(self, workers: Sequence[WorkerProcess], last: int) -> None:
        """After `mixed(1, last)` in any number of parts: every record came to its one end."""
        runs = self.runs()
        check_lane_order(runs)
        for worker in workers:
            for pid in worker.pids:
                check_saved_before_acked(worker.journal(pid))
        keys = [f"{lane}:{number}" for lane in LANES for number in range(1, last + 1)]
        entries = read_changelog(self.cluster, self.companion("ledger"))
        ledgers = ledgers_of(entries, keys, LANES)
        wanted = {key: "SUCCEEDED" for key in keys if not key.startswith("bad:")}
        wanted |= {"bad:1": "SUCCEEDED", "bad:2": "QUARANTINED"}
        assert {key: effect.state.name for key, effect in ledgers.effects.items()} == wanted
        assert set(ledgers.homes.values()) == {1}
        assert sorted(number for _, number, _ in ledgers.parked) == list(range(3, last + 1))
        assert [case.reason for case in ledgers.cases] == ["rejected"]
        retries = check_once(self.cluster.read_topic(self.companion("retry")))
        assert Counter(header(each, "effect-key") for each in retries) == {
            f"late:{number}": 1 for number in range(2, last + 1, 2)
        }
        assert len(check_once(self.cluster.read_topic(self.companion("dlq")))) == 1
        assert len(check_once(self.cluster.read_topic(self.companion("review")))) == 1
        for worker in workers:
            state_dir = self.directory / worker.name
            check_stores(state_dir, self.names.source, entries, keys, LANES)

    def reruns(self) -> list[Run]:
        """Second runs of an attempt."""
        return [second for _, second in second_runs(self.runs())]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends the workers of a test."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("step", ["begun", "sent", "offsets"] if SOAK else ["offsets"])
def test_a_deposed_owner_commits_nothing(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path, stack: ExitStack, step: str
) -> None:
    """An owner that froze inside a transaction is deposed: it aborts, and nobody ever reads its entries.

    Afterwards it is a member like any other, and gets its partition back with all that happened meanwhile
    (A→B→A). Shows S22, and cases 12, 13 and 30.
    """
    scene = Scene(kafka.bootstrap, cluster, names, tmp_path, stack)
    scene.create()
    first, second = scene.worker("first"), scene.worker("second")
    first.crash_at = f"{step}:1:settling:freeze"
    first.start()
    scene.await_live(first)
    cluster.produce(names.source, mixed(1, 2))
    eventually(lambda: first.frozen, 20, "the owner to freeze")
    second.start()
    scene.await_live(second)
    cluster.produce(names.source, mixed(3, LENGTH))
    scene.await_rest()
    first.resume()
    eventually(lambda: not first.live(), 20, "the deposed owner to see it")
    second.stop()
    scene.await_live(first)
    cluster.produce(names.source, mixed(LENGTH + 1, LENGTH + 1))
    scene.await_rest()
    first.stop()

    scene.check([first, second], LENGTH + 1)
    entries = read_changelog(cluster, scene.companion("ledger"))
    order = [writer for writer, _ in groupby(writers_of(entries[0]))]
    assert len(order) == len(set(order)) + (order[0] == order[-1] and len(order) > 1), f"interleaved: {order}"
    if step != "begun":  # before that nothing of it may have reached the broker
        everything = cluster.read_topic(scene.companion("ledger"), committed_only=False)
        assert len(everything) > len(entries[0]), "the deposed owner had written nothing: this showed nothing"
    refused = {line["effectKey"] for line in events_of(first.journal(), "completion_refused")}
    again = {run.effect_key for run in scene.reruns()}
    assert again, "nothing ran again, so nothing had been in hand"
    assert again <= refused, f"ran again, and the journal does not say why: {again - refused}"


@pytest.mark.parametrize("how", ["late", "lost"] if SOAK else ["lost"])
def test_an_answer_that_does_not_come_is_not_guessed(
    proxied_kafka: ProxiedKafka, names: Names, tmp_path: Path, stack: ExitStack, how: str
) -> None:
    """The broker commits and its answer is kept back: the worker asks the changelog, and does nothing again.

    The answer comes late in one case, and never in the other. Shows S7 and case 36.
    """
    proxy = proxied_kafka.proxy
    scene = Scene(proxied_kafka.bootstrap, Cluster(proxied_kafka.direct, fails=True), names, tmp_path, stack)
    scene.create()
    worker = scene.worker("worker").start()
    scene.await_live(worker)
    scene.cluster.produce(names.source, mixed(1, 2))
    scene.await_rest()
    proxy.withhold(END_TXN)
    scene.cluster.produce(names.source, mixed(3, LENGTH))
    eventually(lambda: proxy.kept_back, 20, "an answer to be kept back")
    eventually(lambda: IN_DOUBT in worker.said(), 40, "the worker to be in doubt")
    if how == "lost":
        proxy.cut()
    proxy.release()
    scene.await_rest()
    worker.stop()
    scene.check([worker], LENGTH)
    assert scene.reruns() == []


def is_running(worker: WorkerProcess, effect_key: str) -> bool:
    """Whether an effect was handed to the handler."""
    return any(
        line["event"] == "running" and line["effectKey"] == effect_key for line in worker.journal(worker.pid)
    )


def test_a_kill_before_the_answer_repeats_nothing(
    proxied_kafka: ProxiedKafka, names: Names, tmp_path: Path, stack: ExitStack
) -> None:
    """The worker dies between the commit and its answer: its next start finds all of it in the changelog.

    Shows S11 and S26.
    """
    proxy = proxied_kafka.proxy
    scene = Scene(proxied_kafka.bootstrap, Cluster(proxied_kafka.direct, fails=True), names, tmp_path, stack)
    scene.create()
    worker = scene.worker("worker").start()
    scene.await_live(worker)
    scene.cluster.produce(names.source, mixed(1, 1))
    scene.await_rest()
    scene.cluster.produce(names.source, [event("plain", 2, work_ms=500)])
    eventually(lambda: is_running(worker, "plain:2"), 20, "its handler to run")
    # Only now: what was settled before may still have been on its way to the coordinator.
    proxy.withhold(END_TXN)
    eventually(lambda: proxy.kept_back, 20, "an answer to be kept back")
    worker.kill()
    proxy.release()
    worker.start()
    scene.cluster.produce(names.source, [event("late", 2, act="fail:1"), event("bad", 2, act="reject")])
    scene.await_live(worker)
    scene.await_rest()
    worker.stop()
    scene.check([worker], 2)
    assert scene.reruns() == []


@pytest.mark.parametrize("request_kind", [PRODUCE, END_TXN], ids=["records", "commit"])
def test_a_broker_killed_before_its_answer(
    proxied_kafka: ProxiedKafka, names: Names, tmp_path: Path, stack: ExitStack, request_kind: int
) -> None:
    """The broker dies between a request and its answer and comes back: nothing is lost or torn.

    What runs again was refused in the journal: the group had gone on without the worker. Shows case 38.
    """
    proxy = proxied_kafka.proxy
    scene = Scene(proxied_kafka.bootstrap, Cluster(proxied_kafka.direct, fails=True), names, tmp_path, stack)
    scene.create()
    worker = scene.worker("worker").start()
    scene.await_live(worker)
    scene.cluster.produce(names.source, mixed(1, 2))
    scene.await_rest()
    proxy.withhold(request_kind)
    scene.cluster.produce(names.source, mixed(3, LENGTH))
    eventually(lambda: proxy.kept_back, 20, "an answer to be kept back")
    proxied_kafka.broker.kill()
    proxy.release()
    proxied_kafka.broker.restart()
    scene.await_rest(60)
    worker.stop()
    scene.check([worker], LENGTH)
    explained = {line["effectKey"] for line in events_of(worker.journal(), "completion_refused")}
    assert {run.effect_key for run in scene.reruns()} <= explained


def test_members_of_the_cluster_die_under_load(
    three_brokers: ThreeBrokers, names: Names, tmp_path: Path, stack: ExitStack
) -> None:
    """The coordinator of transactions, then a leader of the changelog is killed: the work goes on, whole."""
    scene = Scene(
        three_brokers.bootstrap, Cluster(three_brokers.bootstrap, fails=True), names, tmp_path, stack
    )
    scene.create()
    worker = scene.worker("worker").start()
    scene.await_live(worker)
    for number, topic in enumerate(("__transaction_state", scene.companion("ledger"))):
        scene.cluster.produce(names.source, mixed(2 * number + 1, 2 * number + 1))
        victim = three_brokers.leader_of(topic, 0)
        three_brokers[victim].kill()
        scene.cluster.produce(names.source, mixed(2 * number + 2, 2 * number + 2))
        scene.await_rest(60)
        three_brokers[victim].restart()
        three_brokers.await_in_sync(topic)
        three_brokers.await_in_sync(names.source)
    scene.await_rest(60)
    worker.stop()
    scene.check([worker], LENGTH)
    explained = {line["effectKey"] for line in events_of(worker.journal(), "completion_refused")}
    assert {run.effect_key for run in scene.reruns()} <= explained


def test_a_producer_that_is_fenced_while_it_flushes_is_replaced(
    kafka: KafkaBroker, cluster: Cluster, names: Names
) -> None:
    """The client raises its own end into our delivery reports: an answer, and no crash (case 37)."""
    cluster.create_topic(names.source, 1)
    settings = Settings(group=names.group, sources=(names.source,), bootstrap=kafka.bootstrap)
    reports: list[KafkaError | None] = []

    def report(error: KafkaError | None, _: Message | None) -> None:
        if error is not None:
            error.name()
        reports.append(error)

    def ask(transactions: Transactions, call: Callable[[], None]) -> Answer:
        call()
        answer = eventually(transactions.answer, 20, "an answer")
        assert answer is not None
        return answer

    def owner(executor: DaemonExecutor) -> Transactions:
        name = transactional_id_prefix(names.group) + "one"
        return Transactions(
            name,
            lambda on_error: clients.new_transactional_producer(settings, name, error_cb=on_error),
            lambda: clients.new_reader(settings, committed=True),
            prefix=name,
            executor=executor,
            notice=lambda: None,
        )

    executor = DaemonExecutor(1, "test-tx")
    try:
        first, second = owner(executor), owner(executor)
        assert ask(first, first.renew).fate is Fate.DONE
        assert first.begin().fate is Fate.DONE
        assert first.produce(names.source, 0, b"k", b"v", None, report).fate is Fate.DONE
        assert ask(first, first.flush).fate is Fate.DONE
        assert ask(second, second.renew).fate is Fate.DONE
        for _ in range(300):
            assert first.produce(names.source, 0, b"k", b"v", None, report).fate is Fate.DONE
        assert ask(first, first.flush).fate is Fate.RENEW
        assert any(reports)
        assert ask(first, first.renew).fate is Fate.DONE
    finally:
        executor.shutdown()
        executor.join(5)
