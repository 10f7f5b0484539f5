"""The journal: one set of fields, nothing private, and no line lost or torn."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from laneway.consumer.journal import Journal
from laneway.errors import ConfigError, LanewayError
from laneway.lanes.record import Channel, Record
from laneway.lanes.settlement import Settled, Settlement

FIELDS = [
    *("ts", "event", "group", "topic", "partition", "offset", "messageId", "effectKey", "sequenceKey"),
    *("sequence", "attempt", "redelivered", "reason", "resultKey"),
]
PRIVATE = "4711-0815-PRIVATE"


class Place:
    """Partition 3 of `invoices`."""

    partition = 3

    def topic_of(self, channel: Channel) -> str:
        return {Channel.SOURCE: "invoices", Channel.RETRY: "invoices.g.retry"}[channel]


PLACE = Place()


def record(offset: int = 7, **fields: Any) -> Record:
    """A record whose bytes are private throughout."""
    secret = PRIVATE.encode()
    made = Record(Channel.SOURCE, offset, secret, secret, ((PRIVATE, secret),))
    made.message_id, made.effect_key, made.sequence_key = f"m-{offset}", f"e-{offset}", "c-1"
    made.sequence, made.payload, made.lane = offset, secret, "kc-1"
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def opened(path: Path, **options: Any) -> Journal:
    """A journal whose clock stands still."""
    return Journal.open(str(path), group="g", **({"clock": lambda: 1_700_000_000_123} | options))


def lines(path: Path) -> list[dict[str, Any]]:
    """The parsed lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def events(path: Path) -> list[str]:
    return [line["event"] for line in lines(path)]


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """The operating system refuses to write beyond this size, as it does when a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_every_line_has_the_same_fields_in_the_same_order(tmp_path: Path) -> None:
    """S10: one set of fields for every event, so that any question is one filter."""
    journal = opened(tmp_path / "j")
    done = Settlement(
        record(redelivered=True, attempt=2), Settled.SUCCEEDED, [], result_key="reports/e-7.csv"
    )
    journal.received(PLACE, [done.record])
    journal.settled(PLACE, [done])
    journal.close()
    first, second = lines(tmp_path / "j")
    assert list(first) == list(second) == FIELDS
    assert second == {
        "ts": "2023-11-14T22:13:20.123Z",
        "event": "result_saved",
        "group": "g",
        "topic": "invoices",
        "partition": 3,
        "offset": 7,
        "messageId": "m-7",
        "effectKey": "e-7",
        "sequenceKey": "c-1",
        "sequence": 7,
        "attempt": 2,
        "redelivered": True,
        "reason": None,
        "resultKey": "reports/e-7.csv",
    }


def test_a_retry_names_the_topic_it_was_read_from(tmp_path: Path) -> None:
    """Topic and offset are those of the record that was read, not of its origin."""
    journal = opened(tmp_path / "j")
    journal.received(PLACE, [record(99, channel=Channel.RETRY, origin_offset=7)])
    journal.close()
    (line,) = lines(tmp_path / "j")
    assert (line["topic"], line["offset"]) == ("invoices.g.retry", 99)


def test_what_a_record_does_not_have_is_null(tmp_path: Path) -> None:
    """An unreadable record has no ids, and one without a sequence key has no sequence."""
    journal = opened(tmp_path / "j")
    unreadable = record(message_id="", effect_key="", sequence_key=None, sequence=0)
    journal.settled(PLACE, [Settlement(unreadable, Settled.QUARANTINED, [], "not-json")])
    journal.close()
    (line,) = lines(tmp_path / "j")
    assert [line[name] for name in ("messageId", "effectKey", "sequenceKey", "sequence")] == [None] * 4
    assert (line["event"], line["reason"]) == ("quarantined", "not-json")


def test_the_result_stands_before_the_ack(tmp_path: Path) -> None:
    """S2, S10: for any delivery `result_saved` comes before its `ack_sent`."""
    journal = opened(tmp_path / "j")
    done = [Settlement(record(offset), Settled.SUCCEEDED, []) for offset in (1, 2)]
    journal.received(PLACE, [one.record for one in done])
    journal.running(PLACE, [one.record for one in done])
    journal.settled(PLACE, done)
    journal.acked(PLACE, done)
    journal.close()
    assert [(line["event"], line["offset"]) for line in lines(tmp_path / "j")] == [
        (event, offset) for event in ("received", "running", "result_saved", "ack_sent") for offset in (1, 2)
    ]


def test_a_parked_record_is_acked_with_its_own_later_settlement(tmp_path: Path) -> None:
    """Parking commits the offset, but `ack_sent` waits for the result, so it never stands before it."""
    journal = opened(tmp_path / "j")
    parked = Settlement(record(), Settled.PARKED, [])
    # A follower that finds a gap before it is read back, and stays where it is.
    stays = Settlement(record(parked=True), Settled.SKIPPED, [], "sequence-gap")
    stays.events = [("gap_detected", "missing 7")]
    for waiting in (parked, stays):
        waiting.ends = False
        journal.settled(PLACE, [waiting])
        journal.acked(PLACE, [waiting])
    later = Settlement(record(parked=True), Settled.SUCCEEDED, [])
    journal.released(PLACE, [later.record])
    journal.settled(PLACE, [later])
    journal.acked(PLACE, [later])
    journal.close()
    assert events(tmp_path / "j") == ["parked", "gap_detected", "released", "result_saved", "ack_sent"]


@pytest.mark.parametrize(
    ("how", "main"),
    [
        (Settled.SUCCEEDED, ["result_saved"]),
        (Settled.DUPLICATE, ["duplicate_suppressed"]),
        (Settled.RETRY_WAIT, ["retry_scheduled"]),
        (Settled.QUARANTINED, ["quarantined"]),
        (Settled.PARKED, ["parked"]),
        (Settled.IN_REVIEW, []),
        (Settled.SKIPPED, []),
    ],
)
def test_each_end_has_its_line_and_then_its_further_events(
    how: Settled, main: list[str], tmp_path: Path
) -> None:
    """A settlement tells its end and what it did to the lane, in this order (S14 for duplicates)."""
    journal = opened(tmp_path / "j")
    one = Settlement(record(), how, [], "why")
    one.events = [("review_opened", "sequence-gap-0123"), ("lane_held", "sequence-gap")]
    journal.settled(PLACE, [one])
    journal.close()
    assert [(line["event"], line["reason"]) for line in lines(tmp_path / "j")] == [
        *((event, "why") for event in main),
        ("review_opened", "sequence-gap-0123"),
        ("lane_held", "sequence-gap"),
    ]


def tell_all(journal: Journal) -> None:
    """Every kind of call once."""
    ends = [Settlement(record(), how, [], "why", "results/e-7") for how in Settled]
    ends[0].events = [("gap_detected", "")]
    for one in ends:
        one.ends = one.how is not Settled.PARKED
    journal.received(PLACE, [record()])
    journal.running(PLACE, [record()])
    journal.settled(PLACE, ends)
    journal.acked(PLACE, ends)
    journal.released(PLACE, [record()])
    journal.refused(PLACE, [record()], "older-epoch")
    journal.close()


def test_level_exceptions_leaves_out_the_happy_path(tmp_path: Path) -> None:
    """Level `exceptions` keeps everything unusual, and nothing of a delivery that went well."""
    tell_all(opened(tmp_path / "j", level="exceptions"))
    assert events(tmp_path / "j") == [
        "gap_detected",
        "duplicate_suppressed",
        "retry_scheduled",
        "quarantined",
        "parked",
        "released",
        "completion_refused",
    ]


def test_level_off_makes_no_file(tmp_path: Path) -> None:
    """Level `off` writes nothing, and asks for no directory."""
    tell_all(opened(tmp_path / "missing" / "j", level="off"))
    assert list(tmp_path.iterdir()) == []


def test_nothing_private_is_written(tmp_path: Path) -> None:
    """S9, S10: no payload, record key, value or header is in any line."""
    tell_all(opened(tmp_path / "j"))
    assert len(lines(tmp_path / "j")) > 10
    assert PRIVATE not in (tmp_path / "j").read_text()


def test_hashed_keys_hide_business_keys_and_still_match(tmp_path: Path) -> None:
    """S9: with `keys = hash` no business key is readable, a result key included; equal keys stay equal."""
    tell_all(opened(tmp_path / "j", keys="hash"))
    text = (tmp_path / "j").read_text()
    assert not any(key in text for key in ("m-7", "e-7", "c-1"))
    found = lines(tmp_path / "j")
    assert len({line["effectKey"] for line in found}) == 1
    assert re.fullmatch(r"sha256:[0-9a-f]{16}", found[0]["effectKey"])
    assert len({line["messageId"] for line in found} | {line["effectKey"] for line in found}) == 2


@pytest.mark.parametrize("text", ['"quoted"\\', "line\nbreak\r\u2028", "\x00\x1b[31m", "Ключ", "\ud800"])
def test_any_text_stays_on_one_valid_line(text: str, tmp_path: Path) -> None:
    """Hostile keys and reasons cannot end a line, forge another, or stop the journal."""
    journal = opened(tmp_path / "j")
    journal.refused(PLACE, [record(effect_key=text), record(8)], text)
    journal.close()
    raw = (tmp_path / "j").read_bytes()
    assert raw.count(b"\n") == 2
    first, second = (json.loads(line) for line in raw.splitlines())
    shown = text.encode("utf-8", "backslashreplace").decode()
    assert (first["effectKey"], first["reason"], second["offset"]) == (shown, shown, 8)


def test_lines_reach_the_system_at_flush_and_by_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is one write, and after `flush` a killed process leaves its `running` lines behind."""
    writes: list[int] = []
    write = os.write

    def counting(fd: int, data: bytes) -> int:
        writes.append(len(data))
        return write(fd, data)

    monkeypatch.setattr(os, "write", counting)
    journal = opened(tmp_path / "j")
    journal.running(PLACE, [record(offset) for offset in range(1000)])
    assert (tmp_path / "j").read_bytes() == b""
    journal.flush()
    assert len(lines(tmp_path / "j")) == 1000
    assert len(writes) == 1
    journal.flush()
    assert len(writes) == 1
    journal.close()


def test_what_is_collected_is_bounded(tmp_path: Path) -> None:
    """An owner that never flushes does not grow the process: lines leave by themselves."""
    journal = opened(tmp_path / "j")
    journal.received(PLACE, [record(offset) for offset in range(10_000)])
    assert len(lines(tmp_path / "j")) >= 8000
    journal.close()
    assert len(lines(tmp_path / "j")) == 10_000


def test_standard_output_carries_the_lines_and_nothing_else() -> None:
    """Path `-` is standard output, for a pipe into any log collector (case 44)."""
    code = (
        "from laneway.consumer.journal import Journal\n"
        "from tests.consumer.test_journal import PLACE, record\n"
        "journal = Journal.open('-', group='g')\n"
        "journal.received(PLACE, [record()])\n"
        "journal.close()\n"
        "print('still open')\n"
    )
    root = Path(__file__).parents[2]
    out = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=root)
    first, second = out.splitlines()
    assert list(json.loads(first)) == FIELDS
    assert second == "still open"


def test_a_reader_that_went_away_is_an_error_with_its_name(tmp_path: Path) -> None:
    """A closed pipe is an error that names the journal; it ends the worker with exit 1 and loses nothing."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    journal = opened(pipe)
    os.close(reader)
    journal.received(PLACE, [record()])
    with pytest.raises(LanewayError, match="broken pipe") as failed:
        journal.flush()
    assert failed.value.exit_code == 1
    assert str(pipe) in str(failed.value)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    journal.close()
    assert json.loads(os.read(reader, 10_000))["event"] == "received"
    os.close(reader)


def test_a_full_disk_is_an_error_and_no_line_is_lost_or_torn(tmp_path: Path) -> None:
    """A full disk raises; when there is room again writing goes on in the middle of the torn line."""
    path = tmp_path / "j"
    journal = opened(path)
    journal.received(PLACE, [record(offset) for offset in range(100)])
    with largest_file(5_000), pytest.raises(LanewayError, match="file too large") as failed:
        journal.flush()
    assert str(path) in str(failed.value)
    assert path.stat().st_size == 5_000
    journal.received(PLACE, [record(100)])
    journal.close()
    assert [line["offset"] for line in lines(path)] == list(range(101))


def test_a_torn_line_of_a_dead_process_does_not_swallow_the_next(tmp_path: Path) -> None:
    """After a process that died on a full disk the first new line stands on its own."""
    path = tmp_path / "j"
    path.write_bytes(b'{"ts":"2023-11-14T22')
    journal = opened(path)
    journal.received(PLACE, [record()])
    journal.close()
    torn, whole = path.read_bytes().splitlines()
    assert torn == b'{"ts":"2023-11-14T22'
    assert json.loads(whole)["offset"] == 7


def test_a_full_file_is_renamed_and_the_oldest_leaves(tmp_path: Path) -> None:
    """Rotation keeps a stated number of files, newest first, each of whole lines."""
    path = tmp_path / "j"
    journal = opened(path, max_bytes=1_000, keep=2)
    for offset in range(40):
        journal.received(PLACE, [record(offset)])
        journal.flush()
    journal.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["j", "j.1", "j.2"]
    kept = [line["offset"] for name in ("j.2", "j.1", "j") for line in lines(tmp_path / name)]
    assert kept == list(range(kept[0], 40))


def test_two_processes_share_a_file_without_tearing_or_losing_lines(tmp_path: Path) -> None:
    """Two workers given the same path append whole lines, through rotations too."""
    path = tmp_path / "j"
    code = (
        "import sys\n"
        "from laneway.consumer.journal import Journal\n"
        "from tests.consumer.test_journal import PLACE, record\n"
        "journal = Journal.open(sys.argv[1], group=sys.argv[2], max_bytes=100_000, keep=50)\n"
        "for batch in range(200):\n"
        "    journal.received(PLACE, [record(batch * 20 + n) for n in range(20)])\n"
        "    journal.flush()\n"
        "journal.close()\n"
    )
    root = Path(__file__).parents[2]
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(path), name], cwd=root) for name in ("one", "two")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    files = list(tmp_path.iterdir())
    assert len(files) > 10
    found = {(line["group"], line["offset"]) for file in files for line in lines(file)}
    assert found == {(name, offset) for name in ("one", "two") for offset in range(4000)}
    assert sum(len(lines(file)) for file in files) == 8000


def test_a_file_that_was_moved_away_is_made_again_on_reopen(tmp_path: Path) -> None:
    """An outside log rotator moves the file and asks for `reopen`; nothing is lost in between."""
    path = tmp_path / "j"
    journal = opened(path)
    journal.received(PLACE, [record(1)])
    journal.flush()
    path.rename(tmp_path / "moved")
    journal.received(PLACE, [record(2)])
    journal.reopen()
    journal.close()
    assert [line["offset"] for line in lines(tmp_path / "moved")] == [1]
    assert [line["offset"] for line in lines(path)] == [2]


def test_a_process_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    """`{pid}` in the path becomes the process id; the file is for its owner's eyes only."""
    opened(tmp_path / "j-{pid}.log").close()
    (file,) = tmp_path.iterdir()
    assert file.name == f"j-{os.getpid()}.log"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_missing_directory_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    """A journal that cannot be opened stops the start, exit 2, and says what to do."""
    with pytest.raises(ConfigError, match=f"mkdir -p {tmp_path}/missing") as refused:
        opened(tmp_path / "missing" / "j")
    assert refused.value.exit_code == 2
    with pytest.raises(ConfigError, match="is a directory"):
        opened(tmp_path)
