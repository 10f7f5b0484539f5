"""Whose a state directory is, who may read it, and what is refused."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from laneway.errors import LanewayError, LedgerError, LedgerLockedError, StateDirError, TopicError
from laneway.lanes.view import PutEffect
from laneway.store import codec
from laneway.store.files import free_bytes
from laneway.store.reader import LedgerReader
from laneway.store.state_dir import StateDir
from tests.store.builders import effect, meta

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "state"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def snapshot(path: Path) -> dict[str, bytes | None]:
    return {str(file): file.read_bytes() if file.is_file() else None for file in sorted(path.rglob("*"))}


def test_a_claimed_directory_can_be_claimed_again_by_its_group(path: Path) -> None:
    """The workers of one group claim one directory, any number of times, and find each other's stores."""
    first = StateDir.claim(path, "reminders", "cluster-1")
    assert not first.exists("invoices", 0)
    first.open_store("invoices", 0).close()
    second = StateDir.claim(path, "reminders", "cluster-1")
    assert second.exists("invoices", 0)
    assert not second.exists("invoices", 1)
    second.open_store("invoices", 10).close()
    second.open_store("a.b_c-D", 2).close()
    assert first.list_stores() == [("a.b_c-D", 2), ("invoices", 0), ("invoices", 10)]


@pytest.mark.parametrize(("group", "cluster"), [("others", "cluster-1"), ("reminders", "cluster-2")])
def test_a_foreign_directory_is_refused_unchanged(path: Path, group: str, cluster: str) -> None:
    """A directory of another group or cluster is exit 4, says whose it is and the next step, and stays."""
    StateDir.claim(path, "reminders", "cluster-1").open_store("invoices", 0).close()
    before = snapshot(path)
    with pytest.raises(StateDirError) as caught:
        StateDir.claim(path, group, cluster)
    assert caught.value.exit_code == 4
    text = str(caught.value)
    assert str(path) in text
    assert "belongs to" in text
    assert "next: name another directory" in text
    assert snapshot(path) == before


def test_formats_of_today_and_the_one_before_are_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker of format N-1 is claimed as it is; N+1, nonsense and an empty marker are refused, exit 4."""
    StateDir.claim(path, "reminders", "cluster-1")
    marker = path / "laneway.json"
    written = marker.read_bytes()
    monkeypatch.setattr(codec, "FORMAT", 2)
    StateDir.claim(path, "reminders", "cluster-1")
    assert marker.read_bytes() == written
    monkeypatch.setattr(codec, "FORMAT", 1)
    newer = b'{"format":2,"everything":"else is new"}'
    for content in (newer, b"", b"{}", b"\xff", b'{"format":1}', b'{"format":true,"group":1}'):
        marker.write_bytes(content)
        with pytest.raises(StateDirError, match=r"laneway\.json: (?s:.*)next: ") as caught:
            StateDir.claim(path, "reminders", "cluster-1")
        assert caught.value.exit_code == 4
        with pytest.raises(StateDirError):
            StateDir.inspect(path)
        assert marker.read_bytes() == content


def test_a_directory_with_other_things_is_refused(path: Path) -> None:
    """An unmarked directory that is not empty is never taken over, nor its mode changed; a mount is fine."""
    path.mkdir(parents=True)
    path.chmod(0o755)
    (path / "lost+found").mkdir()
    (path / "thesis.txt").write_text("all my work")
    with pytest.raises(StateDirError, match="not empty"):
        StateDir.claim(path, "reminders", "cluster-1")
    assert mode(path) == 0o755
    (path / "thesis.txt").unlink()
    StateDir.claim(path, "reminders", "cluster-1")
    assert mode(path) == 0o700


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    """A file in the way is a StateDirError that names the path, not a traceback."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StateDirError, match="cannot be used"):
            StateDir.claim(path, "reminders", "cluster-1")


@pytest.mark.parametrize("acl", [True, False], ids=["acl", "umask"])
def test_nobody_else_can_read_anything(path: Path, monkeypatch: pytest.MonkeyPatch, acl: bool) -> None:
    """Directories are 0700 and files 0600 under a umask of 022, files of later flushes included."""
    before = os.umask(0o022)
    try:
        if not acl:  # a file system without access control lists

            def refuse(*_: object) -> None:
                raise OSError("not supported")

            monkeypatch.setattr(os, "setxattr", refuse, raising=False)
        state = StateDir.claim(path, "reminders", "cluster-1")
        ledger = state.open_store("invoices", 0)
        for cycle in range(3):
            ledger.apply([PutEffect(f"e{cycle}", effect())], meta(cycle), [])
        ledger.close()
        state.open_store("invoices", 0).close()
        found = [path, *path.rglob("*")]
        assert any(file.suffix == ".sst" for file in found)
        wrong = {
            str(file): oct(mode(file)) for file in found if mode(file) != (0o700 if file.is_dir() else 0o600)
        }
        assert wrong == {}
    finally:
        os.umask(before)


def test_files_of_handlers_keep_their_modes(path: Path, tmp_path: Path) -> None:
    """Where the file system has access control lists, claiming leaves the umask of the process alone."""
    before = os.umask(0o022)
    try:
        StateDir.claim(path, "reminders", "cluster-1")
        try:
            os.getxattr(path / "stores", "system.posix_acl_default")
        except OSError:
            return  # no lists here: the umask was set instead, which the test above shows
        (tmp_path / "report.csv").write_text("")
        assert mode(tmp_path / "report.csv") == 0o644
    finally:
        os.umask(before)


CLAIM = """
import sys
from pathlib import Path
from laneway.errors import StateDirError
from laneway.store.reader import LedgerReader
from laneway.store.state_dir import StateDir
sys.stdin.readline()
try:
    StateDir.claim(Path(sys.argv[1]), sys.argv[2], "cluster-1")
    print("claimed")
except StateDirError:
    print("refused")
"""


def test_processes_claim_one_directory_safely(path: Path) -> None:
    """Of processes of two groups that claim at once, one group succeeds and the other is refused."""
    groups = ["a", "b"] * 4
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, str(path), group],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for group in groups
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    answers = [worker.communicate()[0].strip() for worker in workers]
    by_group = {group: {answers[n] for n in range(8) if groups[n] == group} for group in "ab"}
    assert sorted(map(sorted, by_group.values())) == [["claimed"], ["refused"]]


def test_threads_claim_one_directory_safely(path: Path) -> None:
    """The same holds for threads of one process."""

    def claim(group: str) -> str:
        try:
            return StateDir.claim(path, group, "cluster-1").group
        except StateDirError:
            return ""

    with ThreadPoolExecutor(8) as pool:
        winners = set(pool.map(claim, ["a", "b"] * 8))
    assert winners in ({"a", ""}, {"b", ""})


@pytest.mark.parametrize("topic", ["invoices", "a.b_c-D", "x" * 249, "-", "..."])
def test_any_legal_topic_has_a_place_inside(path: Path, topic: str) -> None:
    """Every topic name that Kafka allows leads to a store inside the directory, also the longest."""
    state = StateDir.claim(path, "reminders", "cluster-1")
    assert state.store_path(topic, 7).resolve().is_relative_to((path / "stores").resolve())
    state.open_store(topic, 7).close()
    assert state.list_stores() == [(topic, 7)]


@pytest.mark.parametrize(
    ("topic", "partition"),
    [("", 0), (".", 0), ("..", 0), ("a/b", 0), ("x" * 250, 0), ("é", 0), ("a\x00", 0), ("a\n", 0), ("a", -1)],
)
def test_names_that_kafka_cannot_have_are_refused(path: Path, topic: str, partition: int) -> None:
    """A name that Kafka refuses, or that would lead out of the directory, is refused; nothing is made."""
    state = StateDir.claim(path, "reminders", "cluster-1")
    with pytest.raises(TopicError):
        state.open_store(topic, partition)
    assert state.list_stores() == []


def test_inspecting_makes_and_changes_nothing(path: Path) -> None:
    """Inspection reads the marker only: a missing directory stays missing, a present one unchanged."""
    with pytest.raises(StateDirError, match="no state directory"):
        StateDir.inspect(path)
    assert not path.parent.exists()
    StateDir.claim(path, "reminders", "cluster-1").open_store("invoices", 0).close()
    before = snapshot(path)
    found = StateDir.inspect(path)
    assert (found.group, found.cluster_id) == ("reminders", "cluster-1")
    assert found.list_stores() == [("invoices", 0)]
    assert snapshot(path) == before


def test_a_kill_between_making_and_marking_is_no_dead_end(path: Path) -> None:
    """A directory that was made but not marked, with a half-written marker beside, can still be claimed."""
    path.mkdir(parents=True)
    (path / ".claim.lock").touch()
    (path / ".tmpabc123").write_bytes(b'{"form')
    StateDir.claim(path, "reminders", "cluster-1")


def test_free_space_is_told_for_paths_to_come(path: Path) -> None:
    """Free space is that of the file system the path will be on, before anything of it exists."""
    assert free_bytes(path) > 0
    assert abs(free_bytes(path / "a" / "b") - free_bytes(path)) < 2**30


def test_a_refusal_is_one_of_ours(path: Path) -> None:
    """Whatever is refused here is a LanewayError with the place and the next step."""
    StateDir.claim(path, "reminders", "cluster-1")
    with pytest.raises(LanewayError) as caught:
        StateDir.claim(path, "reminders", "")
    assert caught.value.where
    assert caught.value.mend


def test_a_state_directory_has_an_id_of_its_own(path: Path, tmp_path: Path) -> None:
    """The id is drawn once, is the same for all workers and inspections, and differs between directories."""
    first = StateDir.claim(path, "reminders", "cluster-1")
    assert re.fullmatch(r"[0-9a-f]{16}", first.state_id)
    assert StateDir.claim(path, "reminders", "cluster-1").state_id == first.state_id
    assert StateDir.inspect(path).state_id == first.state_id
    assert StateDir.claim(tmp_path / "other", "reminders", "cluster-1").state_id != first.state_id


def test_an_older_marker_gets_an_id_at_the_next_claim(path: Path) -> None:
    """A directory of a release without ids keeps everything else, and keeps the id it is given."""
    StateDir.claim(path, "reminders", "cluster-1").open_store("invoices", 0).close()
    old = b'{"format":1,"group":"reminders","cluster_id":"cluster-1"}\n'
    (path / "laneway.json").write_bytes(old)
    assert StateDir.inspect(path).state_id == ""
    with pytest.raises(StateDirError):
        StateDir.claim(path, "others", "cluster-1")
    assert (path / "laneway.json").read_bytes() == old, "a refusal changes nothing"
    given = StateDir.claim(path, "reminders", "cluster-1").state_id
    assert given
    assert StateDir.claim(path, "reminders", "cluster-1").state_id == given
    assert StateDir.inspect(path).list_stores() == [("invoices", 0)]


SLOT = """
import subprocess, sys
from pathlib import Path
from laneway.store.reader import LedgerReader
from laneway.store.state_dir import StateDir
slot = StateDir.inspect(Path(sys.argv[1])).worker_slot()
handler = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, close_fds=False)
print(slot.number, handler.pid, flush=True)
sys.stdin.read()
"""


def test_each_worker_of_a_directory_has_a_number_of_its_own(path: Path) -> None:
    """Workers take the lowest free number; a killed worker's is free at once, though its programs live on."""
    state = StateDir.claim(path, "reminders", "cluster-1")
    with state.worker_slot() as zero, state.worker_slot() as one:
        assert (zero.number, one.number) == (0, 1)
        worker = subprocess.Popen(
            [sys.executable, "-c", SLOT, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert worker.stdout is not None
        number, handler = map(int, worker.stdout.readline().split())
        try:
            assert number == 2
            with state.worker_slot() as three:
                assert three.number == 3
            zero.release()
            zero.release()
            with state.worker_slot() as again:
                assert again.number == 0
            worker.kill()
            worker.wait()
            with state.worker_slot() as _, state.worker_slot() as two:
                assert two.number == 2
        finally:
            worker.kill()
            worker.communicate()
            os.kill(handler, signal.SIGKILL)


def test_a_store_moved_aside_makes_room_and_is_kept(path: Path) -> None:
    """A store moved aside is whole in its new place with the reason beside it, and a new one begins empty."""
    state = StateDir.claim(path, "reminders", "cluster-1")
    ledger = state.open_store("invoices", 1)
    ledger.apply([PutEffect("e", effect())], meta(), [])
    ledger.close()
    aside = state.move_aside("invoices", 1, "its changelog was made anew")
    assert aside == path / "stores" / "invoices" / "1.aside-1"
    assert "its changelog was made anew" in (aside / "laneway-aside.txt").read_text()
    assert state.list_stores() == []
    assert not state.exists("invoices", 1)
    with LedgerReader(aside) as kept:
        assert kept.effects(["e"]) == [effect()]
    ledger = state.open_store("invoices", 1)
    assert ledger.effects(["e"]) == [None]
    ledger.close()
    assert state.list_stores() == [("invoices", 1)]


def test_a_bounded_number_is_kept_aside(path: Path) -> None:
    """Of the stores of one partition moved aside the last two are kept; those of others are left alone."""
    state = StateDir.claim(path, "reminders", "cluster-1")
    for partition in (1, 11, 1, 1, 1):
        state.open_store("invoices", partition).close()
        state.move_aside("invoices", partition, "damaged")
    state.open_store("invoices", 1).close()
    names = sorted(store.name for store in (path / "stores" / "invoices").iterdir())
    assert names == ["1", "1.aside-3", "1.aside-4", "11.aside-1"]


def test_a_damaged_store_can_be_moved_aside_and_one_in_use_cannot(path: Path) -> None:
    """What stands in the way of opening does not stand in the way of moving, but an owner does."""
    state = StateDir.claim(path, "reminders", "cluster-1")
    ledger = state.open_store("invoices", 1)
    with pytest.raises(LedgerLockedError):
        state.move_aside("invoices", 1, "damaged")
    with pytest.raises(LedgerLockedError):
        state.open_store("invoices", 1)
    ledger.apply([], meta(), [])
    ledger.close()
    (path / "stores" / "invoices" / "1" / "CURRENT").write_text("MANIFEST-999999\n")
    with pytest.raises(LedgerError):
        state.open_store("invoices", 1)
    state.move_aside("invoices", 1, "damaged")
    state.open_store("invoices", 1).close()
    with pytest.raises(StateDirError, match="cannot be moved aside") as caught:
        state.move_aside("invoices", 7, "there is none")
    assert caught.value.mend
