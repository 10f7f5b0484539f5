"""Reading a ledger beside the worker that owns it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from laneway.errors import LedgerError, StateDirError
from laneway.lanes.view import PutCase, PutEffect
from laneway.store import codec
from laneway.store.ledger import Ledger
from laneway.store.port import LedgerReading
from laneway.store.reader import LedgerReader
from tests.store.builders import IDENTITY, case, effect, meta, put_parked

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_missing_store_stays_missing(store: Path) -> None:
    """Looking for a ledger that is not there is an error that names the place, and makes nothing."""
    with pytest.raises(LedgerError, match=r"(?s)there is no ledger here.*next: "):
        LedgerReader(store)
    assert not store.exists()
    store.mkdir()
    with pytest.raises(LedgerError, match="no ledger"):
        LedgerReader(store)
    assert list(store.iterdir()) == []


def test_it_reads_what_is_written_while_it_is_written(store: Path) -> None:
    """A reader sees unsynced cycles of a living owner after refresh, whole, by every kind of read."""
    owner = Ledger.open(store, IDENTITY)
    owner.apply([PutEffect("a", effect())], meta(1), [])
    with LedgerReader(store) as reader:
        assert reader.owner == IDENTITY
        assert reader.effects(["a", "b"]) == [effect(), None]
        for cycle in range(2, 40):
            entries = [PutEffect(f"e{cycle}-{n}", effect()) for n in range(50)]
            owner.apply([*entries, *put_parked(("k", cycle, 1))], meta(cycle), [])
            reader.refresh()
            assert None not in reader.effects([f"e{cycle}-{n}" for n in range(50)])
            assert reader.stats().cycle == cycle
            assert len(reader.parked("k", None, 100)) == cycle - 1
        owner.apply([PutCase("c", case("c"))], meta(40), [])
        reader.refresh()
        reading: LedgerReading = reader
        assert reading.cases() == [case("c")]
        assert reader.case("c") == case("c")
    owner.close()


def test_the_owner_notices_nothing(store: Path) -> None:
    """A reader takes no lock: the owner closes, restarts and compacts while one is open."""
    owner = Ledger.open(store, IDENTITY)
    owner.apply([PutEffect("a", effect())], meta(1), [])
    with LedgerReader(store) as reader, LedgerReader(store) as another:
        owner.close()
        owner = Ledger.open(store, IDENTITY)
        owner.apply([PutEffect("b", effect())], meta(2), [])
        assert another.effects(["a"]) == reader.effects(["a"]) == [effect()]
    owner.close()


def test_it_follows_a_restarted_owner(store: Path) -> None:
    """After the owner restarted, any number of times, refresh opens anew and sees what it wrote since."""
    owner = Ledger.open(store, IDENTITY)
    owner.apply([PutEffect("e0", effect())], meta(1), [])
    with LedgerReader(store) as reader:
        for start in range(1, 6):
            owner.close()
            owner = Ledger.open(store, IDENTITY)
            owner.apply([PutEffect(f"e{start}", effect())], meta(start + 1), [])
            reader.refresh()
            assert None not in reader.effects([f"e{n}" for n in range(start + 1)])
            assert reader.stats().cycle == start + 1
    owner.close()


def test_it_reads_a_ledger_without_an_owner(store: Path) -> None:
    """A ledger that nobody owns, or whose owner was killed, is read all the same."""
    owner = Ledger.open(store, IDENTITY)
    owner.apply([PutEffect("a", effect())], meta(1), [])
    owner.close()
    with LedgerReader(store) as reader:
        assert reader.effects(["a"]) == [effect()]
    Ledger.open(store, IDENTITY).close()


def test_an_unknown_format_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger of a newer format is not read at a guess: exit 4, and nothing stays open."""
    monkeypatch.setattr(codec, "FORMAT", 2)
    Ledger.open(store, IDENTITY).close()
    monkeypatch.setattr(codec, "FORMAT", 1)
    with pytest.raises(StateDirError, match="format 2"):
        LedgerReader(store)


def test_it_leaves_nothing_behind(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader's own log lies in a private temporary directory, gone after close or a refusal."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    Ledger.open(store, IDENTITY).close()
    with LedgerReader(store):
        (scratch,) = (tmp_path / "tmp").iterdir()
        assert scratch.stat().st_mode & 0o077 == 0
    with pytest.raises(LedgerError):
        LedgerReader(tmp_path / "missing")
    assert list((tmp_path / "tmp").iterdir()) == []


BUSY = """
import sys
from pathlib import Path
from laneway.store.ledger import Ledger
from laneway.lanes.view import PutEffect
from tests.store.builders import IDENTITY, effect, meta
from tests.store.test_reader import names
cycle = 0
for start in range(6):
    ledger = Ledger.open(Path(sys.argv[1]), IDENTITY)
    for _ in range(25):
        cycle += 1
        # Large enough for flushes and compactions while it is read.
        ledger.apply([PutEffect(name, effect()) for name in names(cycle)], meta(cycle), [])
        print(cycle, flush=True)
    ledger.close()
"""


def names(cycle: int) -> list[str]:
    return [f"e{cycle}-{n}-" + "x" * 300 for n in range(300)]


def assert_whole(reader: LedgerReader) -> int:
    """All of every cycle up to the one the meta entry names, that is, no hole."""
    cycle = reader.stats().cycle
    for earlier in range(1, cycle + 1):
        # First and last of each: a batch is stored whole, and reading all takes longer than writing.
        assert None not in reader.effects([names(earlier)[0], names(earlier)[-1]]), (earlier, cycle)
    return cycle


@pytest.mark.parametrize("round_", range(3))
def test_it_survives_a_busy_owner_in_another_process(store: Path, round_: int) -> None:
    """Readers opened and refreshed amid writes, flushes and restarts never miss a cycle, nor stay behind."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(store)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    process.stdout.readline()  # the first cycle; all 150 lines fit into the pipe
    with LedgerReader(store) as lasting:
        before = 0
        while process.poll() is None:
            lasting.refresh()
            with LedgerReader(store) as fresh:
                cycle = assert_whole(lasting)
                assert before <= cycle <= assert_whole(fresh)
                before = cycle
        lasting.refresh()
        assert assert_whole(lasting) == 150
    process.stdout.close()
    assert process.returncode == 0
