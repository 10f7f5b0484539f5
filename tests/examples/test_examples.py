"""Every example does what its README says, on the records that lie beside it."""

from __future__ import annotations

import csv
import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from laneway.cli.child import Child, read_journal, write_settings
from laneway.consumer.embedded import EmbeddedCluster, on_embedded
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.settings.model import Settings
from laneway.consumer.topics import Kind, topic_names
from tests.demo.command import DEADLINE_S, dev, rows
from tests.waiting import eventually

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
REPORTS = 120


def query(path: Path, sql: str) -> list[Any]:
    """All rows of a query."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_reports(tmp_path: Path) -> None:
    """Each report lies at the path that follows from its effect key, once, though one was published twice."""
    code, document, err = dev(EXAMPLES / "reports.py", EXAMPLES / "reports.ndjson", cwd=tmp_path)
    assert code == 0, err
    assert rows(document) == {("effects", None): (6, []), ("duplicates", "succeeded"): (1, [4])}
    found = sorted(path.name for path in (tmp_path / "reports").iterdir())
    assert found == [f"report%3A{who}%2F{number}.csv" for who in ("ada", "bo", "cy") for number in (1, 2)]
    with (tmp_path / "reports" / "report%3Aada%2F1.csv").open(newline="") as file:
        assert list(csv.reader(file))[1:] == [["ada", "paper", "100"], ["ada", "ink", "250"]]


def test_reports_are_whole_and_single_after_kill_9(tmp_path: Path) -> None:
    """Killed with -9 in the middle and started again, the example leaves every report whole, at its one
    path, and records that path as the result with the effect (S6)."""
    told = {"group": "g", "sources": ("s",), "ledger": {"replication": "local"}, "cycle": {"max_records": 5}}
    with EmbeddedCluster() as cluster:
        settings = on_embedded(
            Settings.model_validate(told),
            cluster.bootstrap,
            group="g",
            sources=("s",),
            state_dir=tmp_path / "state",
        )
        write_settings(settings, tmp_path)
        names = topic_names(settings, "s")
        with Cluster(settings) as asking:
            asking.partition_counts(["s", *(names.of(kind) for kind in Kind)])
        for number in range(REPORTS):
            value = {
                "messageId": f"m{number}",
                "effectKey": f"r{number}",
                "sequenceKey": f"k{number % 4}",
                "sequence": number // 4 + 1,
                "version": 1,
                "payload": {"customer": "c", "rows": [{"item": "i", "amount_cents": number}] * 50},
            }
            cluster.publish("s", number % 4, json.dumps(value).encode())
        cluster.flush()
        reports = tmp_path / "reports"
        app = f"{EXAMPLES / 'reports.py'}:pipeline"
        with Child(app, tmp_path, journal="first.ndjson") as first:
            eventually(lambda: len(list(reports.glob("*.csv"))) >= 10, DEADLINE_S, "some reports")
            os.kill(first.pid, signal.SIGKILL)
        with Child(app, tmp_path, journal="second.ndjson") as second:
            with Cluster(settings) as asking:
                places = [("s", number) for number in range(4)]
                eventually(
                    lambda: sum(each.lag for each in asking.offsets("g", places)) == 0,
                    DEADLINE_S,
                    "the commits",
                    poll_s=0.2,
                )
            second.terminate()
            eventually(lambda: second.exit_code() == 0, DEADLINE_S, "the worker's end")
        lives = [read_journal(tmp_path / f"{name}.ndjson") for name in ("first", "second")]
    assert sorted(path.name for path in reports.glob("*.csv")) == sorted(f"r{n}.csv" for n in range(REPORTS))
    for number in range(REPORTS):
        lines = (reports / f"r{number}.csv").read_text().splitlines()
        assert lines == ["customer,item,amount_cents", *[f"c,i,{number}"] * 50]
    saved = [line for life in lives for line in life if line["event"] == "result_saved"]
    assert {line["effectKey"]: line["resultKey"] for line in saved} == {
        f"r{number}": f"reports/r{number}.csv" for number in range(REPORTS)
    }
    assert len(saved) == REPORTS


def test_reminders(tmp_path: Path) -> None:
    """One mail per idempotency key, also where the first attempt failed or the publisher sent twice; what
    is no address goes to the DLQ and its key to a person (S7, S8)."""
    code, document, err = dev(EXAMPLES / "reminders.py", EXAMPLES / "reminders.ndjson", cwd=tmp_path)
    assert code == 0, err
    assert rows(document) == {
        ("effects", None): (5, []),
        ("retries", "temporary-failure"): (2, [2, 7]),
        ("duplicates", "succeeded"): (1, [6]),
        ("dlq", "not-an-address"): (1, [3]),
        ("cases", "rejected"): (1, [3]),
    }
    sent = query(tmp_path / "mail.sqlite", "SELECT idempotency_key FROM sent ORDER BY 1")
    assert [key for (key,) in sent] == [f"reminder:{number}" for number in (2001, 2002, 2004, 2005, 2007)]


def test_orders(tmp_path: Path) -> None:
    """Orders go through their steps in order; a missing payment holds its own order alone, and a large
    order waits for a person before it is packed (S16, S18)."""
    code, document, err = dev(
        EXAMPLES / "orders.py",
        EXAMPLES / "orders.ndjson",
        "-c",
        EXAMPLES / "orders.toml",
        cwd=tmp_path,
    )
    assert code == 0, err
    assert rows(document) == {
        ("effects", None): (11, []),
        ("cases", "review-requested"): (1, [10]),
        ("cases", "sequence-gap"): (1, [11]),
        ("parked", "behind a held record"): (3, [11, 14, 15]),
    }
    assert query(tmp_path / "orders.sqlite", "SELECT name, step FROM orders ORDER BY 1") == [
        ("o-1", "shipped"),
        ("o-2", "shipped"),
        ("o-3", "paid"),
        ("o-4", "placed"),
    ]
