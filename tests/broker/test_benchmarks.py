"""`python -m benchmarks` does what docs/benchmarks.md says, small; its figures mean nothing here."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import benchmarks.__main__ as benchmarks_main
from benchmarks.report import Report
from tests.broker.cluster import Cluster
from tests.broker.kafka import KafkaBroker


def test_the_short_form_measures_both_modes_and_a_restore(
    kafka: KafkaBroker,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Table and JSON have `changelog` beside `local`, and a restore, alone and beside a live partition."""
    monkeypatch.setenv("LANEWAY_TEST_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setattr(benchmarks_main, "WINDOW_S", 0.5)
    monkeypatch.setattr(benchmarks_main, "COMMIT_EACH_RECORDS", 20)
    before = set(cluster.topics())
    path = tmp_path / "figures.json"
    small = ["--records", "1000", "--rounds", "1", "--restore", "9000", "--restore-rounds", "1"]
    assert benchmarks_main.main([*small, "--json", str(path)]) == 0

    report = msgspec.json.decode(path.read_bytes(), type=Report)
    for name in ("bare-json", "changelog journal=exceptions", "local journal=exceptions"):
        (run,) = report.runs[f"{name} keys=1000"]
        assert run.records == 1000
        assert run.per_second > 0
    restored = report.restore
    assert restored is not None
    (alone,), (beside,) = restored.alone, restored.beside
    assert alone.entries == pytest.approx(9003, rel=0.1)
    assert beside.entries == pytest.approx(9003, rel=0.1)
    assert min(beside.before_per_s, beside.after_per_s) > 0
    assert min(beside.before_mib, beside.peak_mib, beside.after_mib, beside.during_cpus) > 0
    table = capsys.readouterr().out
    assert "beside a live partition" in table
    assert "of what it does without" in table
    left = {name for name in set(cluster.topics()) - before if name.startswith("laneway-bench-")}
    assert not left, "its topics are deleted"
