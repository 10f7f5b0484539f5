"""`laneway dev`: somebody's own pipeline over their own lines, and what became of each of them."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.demo.command import DEADLINE_S, dev, environment, rows
from tests.demo.test_demo import REPOSITORY, children_of, processes
from tests.waiting import eventually

PERMITS = Path(os.environ.get("LANEWAY_PERMITS", REPOSITORY.parent / "shared" / "data" / "permits.ndjson.gz"))
PERMIT_EVENTS = 8577

RECORDING = """
from laneway import Pipeline
pipeline = Pipeline()
@pipeline.handler
def note(delivery):
    with open("ran", "a") as ran: ran.write(f"{delivery.sequence_key} {delivery.sequence}\\n")
"""
TOUCHY = """
from laneway import PermanentFailure, Pipeline, TemporaryFailure
pipeline = Pipeline()
@pipeline.handler
def handle(delivery):
    match delivery.payload.get("fail"):
        case "once" if delivery.attempt == 1: raise TemporaryFailure("archive-away")
        case "refused": raise PermanentFailure("no-such-customer")
        case "bug": raise ValueError("a secret")
    print("handled", delivery.effect_key)
"""
ENDLESS = """
import time
def handle(delivery):
    open("began", "w").close()
    time.sleep(3600)
"""


def event(key: str, sequence: int, **payload: object) -> bytes:
    """One line of a file."""
    return json.dumps(
        {
            "messageId": f"{key}/{sequence}",
            "effectKey": f"{key}:{sequence}",
            "sequenceKey": key,
            "sequence": sequence,
            "version": 1,
            "payload": payload,
        }
    ).encode()


def permits() -> bytes:
    """The permit events where they are at hand, else generated ones of the same number and shape."""
    if PERMITS.is_file():
        return gzip.decompress(PERMITS.read_bytes())
    chance = random.Random(1434)
    keys = [f"case-{number}" for number in range(1434)]
    last: dict[str, int] = defaultdict(int)
    lines = []
    for _ in range(PERMIT_EVENTS):
        key = chance.choice(keys)
        last[key] += 1
        lines.append(event(key, last[key], activity="T02 Check confirmation of receipt", resource="R26"))
    return b"\n".join(lines) + b"\n"


@pytest.mark.parametrize("suffix", [".ndjson", ".ndjson.gz"])
def test_every_line_of_a_large_file_runs_once_and_in_order(tmp_path: Path, suffix: str) -> None:
    """8,577 events, plain or gzipped, through a handler of a few lines: 8,577 effects, order kept (S16)."""
    content = permits()
    (tmp_path / f"permits{suffix}").write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    (tmp_path / "app.py").write_text(RECORDING)
    code, document, err = dev("./app.py:pipeline", f"permits{suffix}", cwd=tmp_path)
    assert code == 0, err
    assert rows(document) == {("effects", None): (PERMIT_EVENTS, [])}
    assert (document["records"], document["order"], document["unsettled"]) == (PERMIT_EVENTS, "kept", 0)
    ran: dict[str, list[int]] = defaultdict(list)
    for line in (tmp_path / "ran").read_text().splitlines():
        key, _, sequence = line.rpartition(" ")
        ran[key].append(int(sequence))
    assert sum(map(len, ran.values())) == PERMIT_EVENTS
    assert all(sequences == sorted(set(sequences)) for sequences in ran.values())


def test_the_summary_names_lines(tmp_path: Path) -> None:
    """Garbage, a gap, duplicates, a temporary and a permanent failure and a bug: the summary counts each by
    reason and names its lines; the handler's own words are heard, an exception's message is not."""
    lines = [
        event("a", 1),
        event("a", 2, fail="once"),
        event("a", 3),
        b"not json",
        event("b", 1),
        event("b", 1),
        b"",
        event("c", 1),
        event("c", 3),
        event("c", 4),
        event("d", 1, fail="refused"),
        event("d", 2),
        event("e", 1, fail="bug"),
        b'{"messageId":"x"}',
        event("a", 2, fail="once"),
        event("a", 4),
    ]
    (tmp_path / "mixed.ndjson").write_bytes(b"\r\n".join(lines))
    (tmp_path / "app.py").write_text(TOUCHY)
    code, document, err = dev("./app.py", "mixed.ndjson", cwd=tmp_path)
    assert code == 0, err
    assert rows(document) == {
        ("effects", None): (6, []),
        ("retries", "archive-away"): (1, [2]),
        ("duplicates", "succeeded"): (2, [6, 15]),
        ("dlq", "undecodable-json"): (1, [4]),
        ("dlq", "missing-field: effect_key at json:/effectKey"): (1, [14]),
        ("dlq", "no-such-customer"): (1, [11]),
        ("cases", "rejected"): (1, [11]),
        ("cases", "sequence-gap"): (1, [9]),
        ("cases", "unclassified-failure"): (1, [13]),
        ("parked", "behind a held record"): (3, [9, 10, 12]),
    }
    assert (document["blank_lines"], document["records"], document["unsettled"]) == (1, 15, 0)
    assert "line 9: sequence-gap, key c: sequence 2 is missing before it" in document["cases"]
    assert "handled a:4" in err
    assert "a secret" not in err


def test_the_summary_leads_with_totals_that_add_up(tmp_path: Path) -> None:
    """One line in front says where each record is, nothing of a worker's own news stands around it, and no
    command is named that would look into topics which are gone."""
    lines = [
        event("a", 1),
        event("a", 1),
        b"not json",
        event("b", 1, fail="refused"),
        event("b", 2),
        event("c", 2),
        event("d", 1, fail="bug"),
        event("e", 1, fail="once"),
    ]
    (tmp_path / "mixed.ndjson").write_bytes(b"\n".join(lines))
    (tmp_path / "app.py").write_text(TOUCHY)
    code, _, err = dev("./app.py", "mixed.ndjson", cwd=tmp_path, form="table")
    assert code == 0, err
    assert err.splitlines()[-1] == (
        "8 records: 2 effects, 1 duplicate, 2 dead letters, 3 held back, 0 unread; 3 keys held by a case; "
        "order kept"
    )
    assert " INFO " not in err
    assert "opened a case: rejected" in err
    assert "to the DLQ: undecodable-json" in err
    assert "`laneway " not in err


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b'{\n"messageId": "x",\n"effectKey": "x"\n}\n', "is the file one JSON object per line?"),
        (b"[" + event("a", 1) + b", " + event("a", 2) + b"]", "the file is a JSON array"),
        (b"\n[\n" + event("a", 1) + b",\n" + event("a", 2) + b",\n{}]\n", "the file is a JSON array"),
        (b"[" + b" " * 1_200_000 + b"]", "the file is a JSON array"),
    ],
)
def test_a_file_of_another_shape_is_told(tmp_path: Path, content: bytes, hint: str) -> None:
    """When no line can be used, it is said what the file probably is."""
    (tmp_path / "other.json").write_bytes(content)
    (tmp_path / "app.py").write_text(RECORDING)
    code, document, err = dev("./app.py", "other.json", cwd=tmp_path)
    assert code == 0, err
    assert rows(document)["effects", None] == (0, [])
    assert hint in err


def test_lost_order_is_told_before_anything_runs(tmp_path: Path) -> None:
    """An [envelope] table without sequence_key: dev says that nothing is ordered."""
    (tmp_path / "laneway.toml").write_text('[envelope]\nmessage_id = "json:/messageId"\n')
    (tmp_path / "few.ndjson").write_bytes(event("k", 1))
    (tmp_path / "app.py").write_text(RECORDING)
    code, _, err = dev("./app.py", "few.ndjson", cwd=tmp_path)
    assert code == 0, err
    assert "warning: records: NO ORDER" in err


def test_it_takes_only_the_first_records(tmp_path: Path) -> None:
    """--limit N takes the first N records, and -X is respected: here order by arrival."""
    lines = [event("k", number) for number in (5, 3, 9, 1)]
    (tmp_path / "few.ndjson").write_bytes(b"\n".join(lines))
    (tmp_path / "app.py").write_text(RECORDING)
    code, document, err = dev(
        "./app.py", "few.ndjson", "--limit", "3", "-X", "lanes.order=arrival", cwd=tmp_path
    )
    assert code == 0, err
    assert rows(document) == {("effects", None): (3, [])}
    assert (tmp_path / "ran").read_text().count("\n") == 3


def test_it_says_when_a_partition_reads_no_further(tmp_path: Path) -> None:
    """A handler that always fails stops at the bound of open cases: exit 5, with what was read so far and
    how much was not."""
    (tmp_path / "bugs.ndjson").write_bytes(b"\n".join(event(f"k{n}", 1, fail="bug") for n in range(400)))
    (tmp_path / "app.py").write_text(TOUCHY)
    bounds = ("-X", "lanes.max_open_cases_per_partition=2", "-X", "lanes.max_in_flight=20")
    code, document, err = dev("./app.py", "bugs.ndjson", *bounds, cwd=tmp_path)
    cases, lines = rows(document)["cases", "unclassified-failure"]
    assert code == 5, err
    assert "the worker reads no further" in err
    assert cases >= 8
    assert document["unsettled"] == 400 - cases
    assert lines == sorted(lines)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("./gone.py", "few.ndjson"), 2, "no such file"),
        (("./app.py", "gone.ndjson"), 2, "gone.ndjson"),
        (("./app.py", "few.ndjson", "-X", "envelope.effect_key=header:id"), 2, "no headers"),
        (("./app.py", "few.ndjson", "-X", "retry.temporary=no.such.Class"), 1, "the worker ended with 2"),
        (("./app.py", "torn.ndjson.gz"), 1, "behind line"),
    ],
)
def test_what_cannot_work_is_said(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    """A wrong application, file, envelope or setting: the right exit code and a sentence that says what."""
    (tmp_path / "few.ndjson").write_bytes(event("k", 1))
    (tmp_path / "torn.ndjson.gz").write_bytes(gzip.compress(os.urandom(100) + event("k", 1))[:-20])
    (tmp_path / "app.py").write_text(RECORDING)
    got, _, err = dev(*arguments, cwd=tmp_path)
    assert got == code, err
    assert said in err


def test_its_worker_ends_with_it(tmp_path: Path) -> None:
    """Ctrl+C ends dev and its worker, also while a handler does not come back; what was done is told."""
    (tmp_path / "few.ndjson").write_bytes(event("k", 1))
    (tmp_path / "app.py").write_text(ENDLESS)
    command = [sys.executable, "-m", "laneway.cli.main", "dev", "./app.py:handle", "few.ndjson"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        eventually((tmp_path / "began").exists, DEADLINE_S, "the handler to begin")
        pids = children_of(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, err
    assert "effects" in out
    assert not pids & processes().keys()
