"""`laneway preview` without Kafka: what it says of records that are put before it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from laneway import Pipeline, TemporaryFailure
from laneway.cli import preview as command
from laneway.cli.main import main
from laneway.cli.output import Format, Table, render
from laneway.consumer.embedded import EmbeddedCluster
from laneway.consumer.kafka.cluster import Partition, Watermarks
from laneway.consumer.preview import preview, suggestion, window
from laneway.consumer.preview.preview import Preview, Report
from laneway.consumer.preview.trial import RECORD_BYTES
from laneway.consumer.preview.window import Window, shares
from laneway.consumer.settings.load import load
from laneway.consumer.settings.model import Settings
from laneway.errors import IncompleteError, UsageError
from laneway.lanes.record import Channel, Headers, Record

PLANTED = "hunter2-payload"
T = "invoices"


class Invoice(BaseModel):
    """A payload."""

    amount: int

    @field_validator("amount")
    @classmethod
    def _check(cls, amount: int) -> int:
        if amount == 13:
            raise TemporaryFailure("a validator that asks somebody")
        if amount == 14:
            raise RuntimeError(PLANTED)
        return amount


pipeline: Pipeline[Invoice] = Pipeline(payload=Invoice)


@pipeline.handler
def handle(_: object) -> None:
    """Must never run."""
    raise AssertionError("a preview ran the handler")


def value(
    key: str, sequence: object, *, payload: object = None, effect: str | None = None, version: int = 1
) -> bytes:
    """A record's value in the default envelope."""
    return json.dumps(
        {
            "messageId": f"m-{key}-{sequence}",
            "effectKey": effect or f"{key}:{sequence}",
            "sequenceKey": key,
            "sequence": sequence,
            "version": version,
            "payload": {"amount": 1} if payload is None else payload,
        }
    ).encode()


def settings_of(*sets: str) -> Settings:
    """Settings of a group with one source."""
    flags = {"group": "reminders", "sources": [T]}
    return load(flags=flags, sets=sets, env={}, inspect=True).settings


def looked(
    logs: Sequence[Sequence[bytes | None]],
    *sets: str,
    keep: int = 3,
    app: Pipeline[Any] = pipeline,
    start: int = 0,
    **options: int,
) -> tuple[Settings, Report]:
    """A preview of these partitions, one batch of two records at a time."""
    settings = settings_of(*sets)
    spans = {(T, n): Watermarks(start, start + len(log)) for n, log in enumerate(logs)}
    looking = Preview(settings, app, Window(spans, spans), keep=keep, clock=lambda: 1000, **options)
    looking.work_through(batches(logs, start), lambda _: None)
    return settings, looking.report


def batches(logs: Sequence[Sequence[bytes | None]], start: int) -> Iterable[tuple[Partition, list[Record]]]:
    """As the reader hands them over."""
    for number, log in enumerate(logs):
        for at in range(0, len(log), 2):
            yield (
                (T, number),
                [record(start + at + i, each) for i, each in enumerate(log[at : at + 2])],
            )


def record(offset: int, content: bytes | None, headers: Headers = ()) -> Record:
    """A record as it comes from the reader."""
    return Record(Channel.SOURCE, offset, b"k", content, headers)


def shown(settings: Settings, report: Report) -> Table:
    """All that is printed, as a document has it."""
    return command._tables(settings, report, [], Format.JSON)


def fates(table: Table) -> dict[tuple[str, str | None], int]:
    """What became of the records."""
    return {
        (str(row["what"]), None if row["reason"] is None else str(row["reason"])): int(str(row["records"]))
        for row in table.plain_rows()
    }


def test_a_topic_in_order_is_all_effects() -> None:
    """Nothing is wrong, nothing is said to be, and the defaults are suggested as they are."""
    settings, report = looked([[value("a", n) for n in range(1, 6)], [value("b", 1)]])
    table = shown(settings, report)
    assert fates(table) == {("effect", None): 6}
    facts = dict(table.facts)
    assert (facts["order"], facts["keys"], facts["longest_key"], facts["longest_key_records"]) == (
        "kept",
        2,
        "a",
        5,
    )
    assert not table.tables["examples"].rows
    assert tomllib.loads("\n".join(table.lists["settings"]))["lanes"]["order"] == "contiguous"


def test_every_kind_of_trouble_is_counted_once() -> None:
    """What became of the records adds up to what was read; each trouble has its word, place and example."""
    log = [
        value("a", 1),
        value("a", 1),  # a copy
        value("a", 1, payload={"amount": 2}),  # the same effect with another payload
        value("a", 3),  # 2 is missing ...
        value("a", 4),
        value("a", 2),  # ... and comes late
        value("b", 1),
        value("b", 5),  # a gap that stays
        value("c", 7),  # begins with another number
        b"\xff",
        b"{}",
        None,
        value("d", 1, version=2),
        value("e", 1, payload={"amount": PLANTED}),
        value("e", 2),
        value("a", 1, effect="another"),  # a number that the lane has passed
    ]
    settings, report = looked([log, [value("a", 5)]])
    table = shown(settings, report)
    assert fates(table) == {
        ("effect", None): 5,
        ("dlq", "undecodable-json"): 1,
        ("dlq", "missing-field: message_id at json:/messageId"): 1,
        ("dlq", "tombstone"): 1,
        ("dlq", "unknown-contract-version"): 1,
        ("dlq", "invalid-payload"): 1,
        ("duplicate", "succeeded"): 1,
        ("review", "effect-conflict"): 1,
        ("review", "sequence-stale"): 1,
        ("parked", "behind sequence-gap"): 3,
        ("parked", "behind rejected"): 1,
    }
    assert sum(fates(table).values()) == report.records == len(log) + 1
    facts = table.facts
    assert (facts["order"], facts["gaps"], facts["gaps_healed"], facts["late"]) == ("broken", 4, 1, 1)
    assert (facts["first_sequences"], facts["keys_in_two_partitions"], facts["unreadable"]) == (2, 1, 3)
    assert (facts["duplicates"], facts["conflicts"]) == (1, 1)
    examples = {(row["what"], row["at"]): row for row in table.tables["examples"].plain_rows()}
    assert examples["sequence-gap", "invoices/0@3"]["about"] == "2 is missing before 3"
    assert examples["sequence-gap", "invoices/0@7"]["key"] == "b"
    assert examples["key-in-two-partitions", "invoices/1@0"]["about"] == "partitions 0, 1"
    assert examples["first-sequence", "invoices/0@8"]["about"] == "begins with 7, not with 1"
    payloads = [(row["what"], row["place"], row["records"]) for row in table.tables["payloads"].plain_rows()]
    assert payloads == [("invalid-payload", "amount: int_parsing", 1)]
    versions = {(row["what"], row["version"]) for row in table.tables["versions"].plain_rows()}
    assert versions == {("accepted", "1"), ("unknown", "2")}


@pytest.mark.parametrize("form", list(Format))
def test_nothing_of_a_payload_is_shown(form: Format) -> None:
    """A secret in values, in names of members, in bytes that are no JSON, and in an error's message."""
    log = [
        value("a", 1, payload={"amount": PLANTED}),
        value("b", 1, payload={PLANTED: 1}),
        value("c", 1, payload={"amount": 14}),
        PLANTED.encode(),
        json.dumps({PLANTED: PLANTED}).encode(),
    ]
    settings, report = looked([log])
    text = render(command._tables(settings, report, [], form), form)
    assert "amount: missing" in text
    assert "builtins.RuntimeError" in text
    assert PLANTED not in text
    assert not [sentence for sentence in command._sentences(settings, report) if PLANTED in sentence]


def test_a_payload_behind_a_held_record_is_looked_at_too() -> None:
    """Followers are parked, as a worker would, and still it is said that they would not validate."""
    bad = [value("a", n, payload={"amount": "x"}) for n in (1, 2, 3)]
    _, report = looked([bad])
    assert [(name, count.records) for _, name, count in report.seen[T].payloads] == [
        ("amount: int_parsing", 3)
    ]
    assert report.trials[T, 0].parked == 2


def test_a_follower_that_is_released_is_counted_once() -> None:
    """Parked behind a gap, released by the late record, refused: one payload, one fate."""
    _, report = looked([[value("a", 2, payload={"amount": "x"}), value("a", 1)]])
    assert [count.records for _, _, count in report.seen[T].payloads] == [1]
    assert report.seen[T].fates.of("dlq", "invalid-payload") == 1
    assert report.trials[T, 0].parked == 0


def test_what_only_time_mends_is_taken_as_done() -> None:
    """A validator that asks a dependency: said so, and the lane goes on."""
    settings, report = looked([[value("a", 1, payload={"amount": 13}), value("a", 2)]])
    assert fates(shown(settings, report)) == {("effect", None): 2}
    assert [(what, name) for what, name, _ in report.seen[T].payloads] == [
        ("temporary-failure", "laneway.lanes.failures.TemporaryFailure")
    ]


def test_the_rules_are_those_that_are_configured() -> None:
    """The same records under other rules become other things, as in a worker."""
    log = [value("a", 3), value("a", 7), value("a", 9, payload={"amount": "x"}), value("a", 10)]
    _, held = looked([log], "lanes.order=increasing")
    assert (held.seen[T].fates.of("effect"), held.trials[T, 0].parked) == (2, 1)
    _, passed = looked([log], "lanes.order=increasing", "lanes.after_reject=pass")
    assert (passed.seen[T].fates.of("effect"), passed.trials[T, 0].parked) == (3, 0)
    assert (held.order, passed.order) == ("kept", "kept")


def test_a_bound_that_stops_a_worker_is_named() -> None:
    """At so many open cases a worker reads no further: the offset and the bound are told."""
    settings, report = looked(
        [[value(f"k{n}", 2) for n in range(10)]], "lanes.max_open_cases_per_partition=3"
    )
    stop = report.trials[T, 0].stop
    assert stop is not None
    assert (stop.offset, stop.why) == (3, "4 open cases (lanes.max_open_cases_per_partition)")
    assert any(
        "would stop reading invoices/0 behind offset 3" in s for s in command._sentences(settings, report)
    )


def test_an_effect_key_in_two_partitions_would_happen_twice() -> None:
    """Each partition knows its own effects: both run, and that is said."""
    settings, report = looked([[value("a", 1, effect="x")], [value("b", 1, effect="x")]])
    assert report.seen[T].fates.of("effect") == 2
    assert shown(settings, report).facts["effects_in_two_partitions"] == 1


def test_memory_ends_it_and_what_was_seen_is_kept() -> None:
    """At the bound of memory reading ends as incomplete; the report has what was read until then."""
    logs = [[value("a", n) for n in range(1, 101)]]
    _, report = looked(logs, max_kept_bytes=10 * RECORD_BYTES)
    assert isinstance(report.unfinished, IncompleteError)
    assert report.records == 12
    assert report.seen[T].fates.of("effect") == 12


def test_parked_bytes_count_as_memory_until_they_are_released() -> None:
    """A lane that waits keeps its records' bytes."""
    log = [value("a", n) for n in (2, 3, 4, 5)]
    _, waiting = looked([log])
    _, released = looked([[*log, value("a", 1)]])
    assert waiting.kept_bytes > 4 * RECORD_BYTES + sum(map(len, log))
    assert released.kept_bytes == 5 * RECORD_BYTES


def test_a_decoder_that_is_down_for_a_while_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one record becomes unreadable by it; for good it ends as incomplete."""
    calls = [0]

    def decode(data: bytes) -> object:
        calls[0] += 1
        if calls[0] % 2 or calls[0] > 10:
            raise TemporaryFailure("registry")
        return json.loads(data)

    app: Pipeline[Any] = Pipeline(payload=Invoice, decode=decode)
    slept: list[float] = []
    monkeypatch.setattr("laneway.consumer.preview.preview.time.sleep", slept.append)
    _, report = looked([[value("a", n) for n in range(1, 4)]], app=app)
    assert report.seen[T].fates.of("effect") == 3
    assert slept == [1.0] * 3
    monkeypatch.setattr(preview, "DECODER_WAIT_S", 0.5)
    calls[0] = 10
    _, report = looked([[value("a", 1)]], app=app)
    assert report.unfinished is not None
    assert "invoices/0@0" in str(report.unfinished)


@pytest.mark.parametrize(
    ("log", "order", "first"),
    [
        ([value(f"k{n}", s) for n in range(4) for s in (1, 2, 3)], "contiguous", 1),
        ([value(f"k{n}", s) for n in range(4) for s in (1, 3, 2)], "contiguous", 1),
        ([value(f"k{n}", s) for n in range(4) for s in (1, 2, 1, 2)], "contiguous", 1),
        ([value(f"k{n}", s) for n in range(4) for s in (0, 1)], "contiguous", 0),
        ([value(f"k{n}", s) for n in range(4) for s in (n, n + 1)], "contiguous", "any"),
        ([value(f"k{n}", s) for n in range(4) for s in (1, 5, 9)], "increasing", 1),
        ([value(f"k{n}", s) for n in range(4) for s in (1, 9, 5)], "arrival", 1),
        (
            [value(f"k{n}", s, effect=f"{n}-{i}") for n in range(4) for i, s in enumerate((1, 1, 1))],
            "arrival",
            1,
        ),
        ([value(f"k{n}", "x") for n in range(4)], "arrival", 1),
        ([value(f"k{n}", s) for n in range(20) for s in ((1, 3) if n == 7 else (1, 2))], "contiguous", 1),
    ],
)
def test_the_settings_fit_what_was_seen(
    log: list[bytes], order: str, first: int | str, tmp_path: Path
) -> None:
    """Order and first number as most keys have them; pasted into a file the lines are valid settings."""
    settings, report = looked([log])
    lines = suggestion.lines(settings, report)
    file = tmp_path / "laneway.toml"
    file.write_text(
        'group = "g"\nsources = ["invoices"]\n' + "\n".join(lines) + '\n[ledger]\nreplication="local"\n'
    )
    read = load(file, env={}).settings
    assert (read.lanes.order, read.lanes.first_sequence) == (order, first)
    assert read.envelope == settings.envelope


def test_tombstones_and_versions_lead_to_settings() -> None:
    """What the configuration refuses and might take is suggested, with how many records it is about."""
    settings, report = looked([[None, value("a", 1), value("b", 1, version=3)]])
    text = "\n".join(suggestion.lines(settings, report))
    envelope = tomllib.loads(text)["envelope"]
    assert (envelope["tombstones"], envelope["accepts"]) == ("skip", [1, 3])
    assert "1 record of a version that is not accepted now" in text
    assert "Accepted, they reach it" in text
    assert 'with "skip" records without a value are passed over in silence' in text


@pytest.mark.parametrize(
    ("numbers", "lost"),
    [
        ((1, 5, 9), "lost records are passed over in silence, swapped ones become sequence-stale cases"),
        ((1, 9, 5), "lost and swapped records are passed over in silence"),
        ((1, 2, 3), None),
    ],
)
def test_a_weaker_order_says_what_is_lost(numbers: Sequence[int], lost: str | None) -> None:
    """Whoever pastes a setting that promises less reads in its comment what it gives up."""
    settings, report = looked([[value(f"k{n}", s) for n in range(4) for s in numbers]])
    [line] = [line for line in suggestion.lines(settings, report) if line.startswith("order")]
    assert ("silence" in line) is (lost is not None)
    assert lost is None or lost in line


def test_a_first_number_of_any_says_what_is_lost() -> None:
    """A key whose beginning is lost is not noticed any more."""
    settings, report = looked([[value(f"k{n}", s) for n in range(4) for s in (n, n + 1)]])
    [line] = [line for line in suggestion.lines(settings, report) if line.startswith("first_sequence")]
    assert "begins with a later one in silence" in line


def test_a_key_in_several_partitions_is_one_key() -> None:
    """It is counted once wherever keys are, and one example names all its partitions."""
    logs = [[value(f"k{n}", 1) for n in range(20)], [value("k0", 2)], [value("k0", 3)]]
    settings, report = looked(logs)
    table = shown(settings, report)
    facts = table.facts
    assert (facts["keys"], facts["keys_in_two_partitions"], facts["first_sequences"]) == (20, 1, 1)
    text = "\n".join(table.lists["settings"])
    assert "first_sequence = 1  # 19 of 20 keys\n" in text
    assert "no number is missing in 20 keys" in text
    split = [row for row in table.tables["examples"].plain_rows() if row["what"] == "key-in-two-partitions"]
    assert [(row["key"], row["about"]) for row in split] == [("k0", "partitions 0, 1, 2")]


def test_the_limit_is_shared_fairly() -> None:
    """Small partitions are read whole, the others share the rest, and never more than the limit is read."""
    sizes = {(T, 0): 1000, (T, 1): 5, (T, 2): 0, (T, 3): 1000}
    found = shares(sizes, 105)
    assert found == {(T, 0): 50, (T, 1): 5, (T, 2): 0, (T, 3): 50}
    assert shares(sizes, 10_000) == sizes
    assert sum(shares({(T, n): 10 for n in range(7)}, 3).values()) == 3


class Logs:
    """A cluster that knows where logs start and end."""

    def partition_counts(self, names: list[str]) -> dict[str, int]:
        """Two partitions."""
        return dict.fromkeys(names, 2)

    def watermarks(self, partitions: list[Partition]) -> dict[Partition, Watermarks]:
        """A hundred records, of which retention took ten."""
        return dict.fromkeys(partitions, Watermarks(10, 100))

    def offsets_at(self, partitions: Sequence[Partition], at_ms: int) -> dict[Partition, int]:
        """Partition 1 has nothing so new."""
        return {place: at_ms for place in partitions if place[1] == 0}


@pytest.mark.parametrize(
    ("begin", "spans"),
    [
        ("earliest", [(10, 15), (10, 15)]),
        ("latest", [(95, 100), (95, 100)]),
        (97, [(97, 100), (100, 100)]),
        (3, [(10, 20), (100, 100)]),
    ],
)
def test_where_reading_begins(begin: window.Begin, spans: list[tuple[int, int]]) -> None:
    """From the log's start, the newest records, or an instant; within the log and the limit."""
    chosen = window.window(Logs(), [T], begin, limit=10)
    assert [(span.start, span.end) for span in chosen.spans.values()] == spans
    with pytest.raises(UsageError, match="no partition 2"):
        window.window(Logs(), [T], begin, limit=10, partition=2)


def test_the_command_over_an_embedded_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command: data on standard output, sentences beside it, exit 0, nothing made or written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app_to_preview.py").write_text(
        "from laneway import Pipeline\nprint('hello')\npipeline = Pipeline()\n"
        "@pipeline.handler\ndef handle(delivery):\n    raise SystemExit('ran')\n"
    )
    before = sorted(tmp_path.iterdir())
    with EmbeddedCluster() as cluster:
        for number in (1, 2, 4):
            cluster.publish(T, 0, value("a", number), key=b"a")
        cluster.flush()
        arguments = ["-b", cluster.bootstrap, "-g", "reminders", "--source", T]
        app = "./app_to_preview.py:pipeline"
        assert main(["preview", app, *arguments, "-o", "json"]) == 0
        out, err = capsys.readouterr()
        document = json.loads(out)
        assert (document["schema"], document["kind"], document["records"]) == (1, "preview", 3)
        assert [(row["what"], row["records"]) for row in document["items"]] == [("effect", 2), ("parked", 1)]
        assert "hello" in err
        assert main(["preview", app, *arguments]) == 0
        out, err = capsys.readouterr()
        assert "SETTINGS\n[envelope]\n" in out
        assert "order broken: 1 gap (" in err
        assert main(["preview", app, *arguments, "--from", "yesterday"]) == 2
        assert "--from" in capsys.readouterr().err
    assert [each for each in sorted(tmp_path.iterdir()) if each.name != "__pycache__"] == before
