"""`python -m benchmarks` does what docs/benchmarks.md says, small; its figures mean nothing here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

import benchmarks.__main__ as benchmarks_main
from benchmarks import load, processes, restore, throughput
from benchmarks.environments import UnavailableError
from benchmarks.latency import one_load, since_meant
from benchmarks.peers.work import PREFIX, Task
from benchmarks.plan import SHORT, SUBJECTS, Case
from benchmarks.report import Report, describe
from benchmarks.supervise import Failed, Measured, Skipped, SubjectFailedError, measure
from benchmarks.tables import ratio, render
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.kafka import KafkaBroker


def no_such_python() -> tuple[str, ...]:
    """A peer that cannot be had."""
    raise UnavailableError("it needs a newer Python")


def python(script: str) -> tuple[str, ...]:
    """A subject whose whole program this is."""
    return (sys.executable, "-c", script)


def test_the_table_has_what_was_measured_what_was_skipped_and_what_failed(
    kafka: KafkaBroker,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A peer that cannot be had is a row that says why; one that breaks is too, and fails the command."""
    monkeypatch.setenv("LANEWAY_TEST_BOOTSTRAP", kafka.bootstrap)
    change = msgspec.structs.replace
    monkeypatch.setitem(SUBJECTS, "quix", change(SUBJECTS["quix"], command=no_such_python))
    monkeypatch.setitem(
        SUBJECTS,
        "bare-msgspec",
        change(SUBJECTS["bare-msgspec"], command=lambda: python("import sys; sys.exit('it broke')")),
    )
    before = set(cluster.topics())
    path = tmp_path / "figures.json"
    small = ["--only", "peers", "--rounds", "1", "--records", "1000"]
    subjects = ["--subjects", "changelog,bare-json,quix,bare-msgspec"]
    assert benchmarks_main.main([*small, *subjects, "--json", str(path)]) == 1

    report = msgspec.json.decode(path.read_bytes(), type=Report)
    runs = {case.subject: report.runs[case.name] for case in report.cases}
    for name, records in (("changelog", 750), ("bare-json", 6000)):
        (run,) = runs[name]
        assert isinstance(run, Measured), run
        assert run.records == records, "the warm-up is not counted"
        assert min(run.per_second, run.cpu_s, run.peak_mib) > 0
    assert runs["quix"] == [Skipped("it needs a newer Python")]
    (broken,) = runs["bare-msgspec"]
    assert isinstance(broken, Failed)
    table, complaint = capsys.readouterr()
    assert "skipped: it needs a newer Python" in table
    assert "failed: bare-msgspec handler=none: it broke" in table
    assert "no figure: bare-msgspec" in complaint
    left = {name for name in set(cluster.topics()) - before if "laneway-bench-" in name}
    assert not left, "its topics are deleted"

    assert benchmarks_main.main(["--read", str(path), "--markdown"]) == 1
    assert "| quix | 1,000 | - |" in capsys.readouterr().out


def test_what_was_measured_before_an_interrupt_is_kept(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who stops a measurement of an hour in its second round has the first one, in the table and as JSON."""
    monkeypatch.setenv("LANEWAY_TEST_BOOTSTRAP", kafka.bootstrap)
    results = iter([Measured(100, 1.0, 2.0, 1.0, 1.0)])

    def once(*_: object) -> Measured:
        found = next(results, None)
        if found is None:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(throughput, "run_once", once)
    path = tmp_path / "below" / "figures.json"
    small = ["--only", "peers", "--subjects", "bare-json", "--rounds", "2", "--records", "1000"]
    assert benchmarks_main.main([*small, "--json", str(path)]) == 1

    table, complaint = capsys.readouterr()
    assert "bare-json" in table
    assert "interrupted" in complaint
    report = msgspec.json.decode(path.read_bytes(), type=Report)
    (runs,) = report.runs.values()
    assert [run.per_second for run in runs if isinstance(run, Measured)] == [50.0]


def test_where_figures_cannot_go_is_said_before_they_are_taken(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that cannot be written, and a file that is no measurement, end the command with their names."""
    monkeypatch.setenv("LANEWAY_TEST_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setattr(throughput, "run_once", pytest.fail)
    blocked = tmp_path / "file"
    blocked.write_text("no directory, no figures")
    for arguments in (["--only", "peers", "--json", str(blocked / "x.json")], ["--read", str(blocked)]):
        with pytest.raises(SystemExit, match=str(blocked)):
            benchmarks_main.main(arguments)


def test_handled_is_not_committed(cluster: Cluster, names: object, tmp_path: Path) -> None:
    """A subject that says it handled everything, and whose group never commits it, has no figure."""
    topic = f"laneway-bench-test-{id(names)}"
    cluster.create_topic(topic, 1)
    cluster.produce(topic, [Outgoing(b"{}")])
    handled = f'{PREFIX}{{"handled": {{"began_s": 1.0, "last_s": 2.0, "committed_s": null}}}}'
    task = Task("liar", cluster.bootstrap, topic, topic, 1, 1, "none", 1, 0.2, str(tmp_path))
    try:
        with pytest.raises(SubjectFailedError, match="not every offset is committed"):
            measure(python(f"print({handled!r}, flush=True); input()"), task, {0: 1})
    finally:
        cluster.delete_topic(topic)


def test_a_ratio_is_taken_inside_a_round() -> None:
    """Where the machine is half as fast in one round, for all of them, the ratio does not notice."""

    def run(per_second: float) -> Measured:
        return Measured(100, 1.0, 100 / per_second, 1.0, 1.0)

    one, other = (Case("peers", subject, 100, 3) for subject in ("changelog", "java"))
    report = describe("a test", "none", SHORT)
    report.cases = [one, other]
    report.runs = {one.name: [run(20), run(10), run(30)], other.name: [run(40), run(20), run(10)]}
    assert ratio(report, one, other) == "0.5"
    assert "0.5" in render(report).splitlines()[-1]


def test_a_subject_that_does_more_than_its_handlers_can_has_no_figure() -> None:
    """A clock that began too late makes wonders: the table says so, and shows none."""
    cases = [
        Case("handlers", subject, 100, 1, "sleep-10", concurrency=16)
        for subject in ("changelog", "share", "java")
    ]
    report = describe("a test", "none", SHORT)
    report.cases = cases
    report.runs = {
        case.name: [Measured(100, 1.0, 100 / per_second, 1.0, 1.0)]
        for case, per_second in zip(cases, (1_500, 110, 1_700), strict=True)
    }
    changelog, share, java = render(report).splitlines()[-3:]
    assert "1,500" in changelog
    for row in (share, java):
        assert row.endswith("no figure: more than its handlers can do")
        assert not {"110", "1,700"} & set(row.split())


def test_latency_counts_from_the_time_a_record_was_to_be_sent() -> None:
    """A worker that stands still for a second is charged with every record that was due meanwhile."""
    effects = [(number, 0, number, 1.0) for number in range(10)]
    commits = {0: [(1.5, 5), (2.0, 10)]}
    effect, committed = since_meant(effects, commits, lambda number: number / 10)
    assert effect == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert committed[:6] == pytest.approx([1.5, 1.4, 1.3, 1.2, 1.1, 1.5]), "5 is the next to read, not read"


def test_latency_and_processes_are_measured(
    kafka: KafkaBroker, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open loop beside a worker gives percentiles, and a group of processes what they do together."""
    tag = f"laneway-bench-test-{id(monkeypatch)}"
    monkeypatch.setattr(processes, "START_S", 0.5)
    monkeypatch.setattr(processes, "SETTLE_S", 0.1)
    try:
        found = one_load(cluster, tag, 0.5, 400.0, 0.5)
        assert found.records == 200
        assert 0 < found.effect.p50 <= found.effect.p999
        assert found.effect.p50 < found.committed.p50, "committed comes behind the effect"
        (one,) = processes.measure_processes(
            cluster, tag, counts=(1,), rounds=1, window_s=0.5, about=20_000.0, say=print
        )
        assert min(one.per_second, one.cpus) > 0
    finally:
        load.remove(cluster, tag)


def test_a_restore_is_measured(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table has its speed and its memory; in the long form of the tests also a live partition beside it."""
    tag = f"laneway-bench-test-{id(monkeypatch)}"
    beside = bool(os.environ.get("LANEWAY_TEST_SOAK"))
    report = describe("a test", "none", SHORT)
    try:
        report.restore = restore.measure_restore(
            cluster, tag, entries=9000, rounds=1, window_s=0.5, beside=beside, say=print
        )
    finally:
        load.remove(cluster, tag)
    table = render(report)
    assert report.restore.alone[0].entries == pytest.approx(9003, rel=0.1)
    assert "restore of 9,0" in table
    assert ("of what it does without" in table) is beside
