"""What a restore of a RocksDB ledger survives: it writes no log, and must never claim too much for that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from laneway.lanes.lane import Lane, Parked, Raw
from laneway.lanes.record import Channel
from laneway.lanes.view import Entry, PutEffect, PutLane, PutParked
from laneway.store.ledger import Ledger
from laneway.store.port import ChangelogMark
from tests.store.builders import IDENTITY, effect, meta

ROOT = Path(__file__).parents[2]
BATCHES = 300
AFTERWARDS = 5

RESTORE = """
import sys
from pathlib import Path
from laneway.lanes.record import Channel
from laneway.store.ledger import Ledger
from laneway.store.port import ChangelogMark
from tests.store.builders import IDENTITY, meta
from tests.store.test_restore import AFTERWARDS, BATCHES, entries

ledger = Ledger.open(Path(sys.argv[1]), IDENTITY)
ledger.note_handed_over({Channel.SOURCE: 3})
ledger.begin_restore()
for batch in range(BATCHES):
    ledger.apply_changes(ledger.changes(entries(batch), meta(batch)), ChangelogMark("t", batch + 1, 0))
    ledger.note_handed_over({Channel.SOURCE: 4 + batch})  # goes to the log, past what is in none
    print(batch, flush=True)
ledger.end_restore()
print(BATCHES, flush=True)
for batch in range(BATCHES + 1, BATCHES + 1 + AFTERWARDS):
    ledger.apply_changes(ledger.changes(entries(batch - 1), meta(batch - 1)), ChangelogMark("t", batch, 0))
print(batch, flush=True)
sys.stdin.read()
"""


def entries(batch: int) -> list[Entry]:
    """Of each batch its own entries, 100 KiB so that memtables fill and are flushed, and a shared one."""
    raw = Raw(None, b"x" * 10_000, (), 0)
    return [
        *(PutParked(("k", batch, n), Parked("m", "e", 1, 0, raw)) for n in range(10)),
        PutEffect(f"e{batch}", effect(changed_ms=batch)),
        PutLane("shared", Lane(batch)),
    ]


@pytest.mark.parametrize("kill_after", [0, 40, 150, BATCHES - 1, BATCHES, BATCHES + AFTERWARDS])
def test_a_killed_restore_goes_on_where_its_mark_says(tmp_path: Path, kill_after: int) -> None:
    """Invariant 9: kill -9 in a restore leaves the fold of the log up to the mark; after it, all of it."""
    store = tmp_path / "store"
    with subprocess.Popen(
        [sys.executable, "-c", RESTORE, str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as restorer:
        assert restorer.stdout is not None
        while int(restorer.stdout.readline()) < kill_after:
            pass
        restorer.kill()
    ledger = Ledger.open(store, IDENTITY)
    mark = ledger.changelog_mark()
    count = mark.next_offset if mark else 0
    if kill_after >= BATCHES:
        assert count >= kill_after
    assert ledger.lanes(["shared"]) == [Lane(count - 1) if count else None]
    assert ledger.opening().meta == (meta(count - 1) if count else None)
    followers = [(sequence, offset) for (_, sequence, offset), _ in ledger.parked("k", None, 10_000)]
    assert followers == [(batch, n) for batch in range(count) for n in range(10)]
    assert ledger.expired(10_000, 10_000) == [f"e{batch}" for batch in range(count)]
    assert ledger.opening().handed_over[Channel.SOURCE] >= 3
    ledger.close()


def test_a_store_flushes_while_it_is_restored(tmp_path: Path) -> None:
    """A restore stays within the bounds of its memtables: tables are written while it goes on."""
    ledger = Ledger.open(tmp_path / "store", IDENTITY)
    ledger.begin_restore()
    for batch in range(BATCHES):
        ledger.apply_changes(ledger.changes(entries(batch), meta(batch)), ChangelogMark("t", batch + 1, 0))
    assert list((tmp_path / "store").glob("*.sst"))
    assert sum(log.stat().st_size for log in (tmp_path / "store").glob("*.log")) < 100_000
    ledger.close()
