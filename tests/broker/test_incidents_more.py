"""Incidents of outcomes, offsets and bounds: pages of docs/operations/incidents, followed line by line.

What is seen first leads to the cause, at most three commands mend it, and afterwards each record of a key has
its one end. The handler here does with a record what its payload says, before or after it is stopped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.broker.cluster import Cluster
from tests.broker.conftest import SOAK, Names
from tests.broker.incidents import FIRST, KEY, OPENING, Night, accounted, leads_to
from tests.broker.operating import Desk, desk, note
from tests.broker.test_offsets_reset import at_rest, second
from tests.cli.command import Said
from tests.waiting import eventually

OTHER = "customer-18"
OFFSETS, LANES, CASES = (
    next(line for line in OPENING if line.startswith(f"laneway {which}"))
    for which in ("offsets show", "lanes list", "review list")
)
"""What of the usual first commands is about more than dead letters."""

_APP = """
import os, time
from pathlib import Path
from pydantic import BaseModel
from laneway import Delivery, Pipeline, TemporaryFailure

HERE = Path(__file__).parent

class Note(BaseModel):
    text: str

pipeline = Pipeline(payload=Note)

@pipeline.handler
def handle(delivery: Delivery[Note]) -> str:
    text = delivery.payload.text
    if text == "needs the calendar" and not (HERE / "calendar-is-up").exists():
        raise TemporaryFailure("calendar-down")
    if text == "hangs":
        hang(delivery)
    write("ran", delivery)
    if text == "lands and hangs":
        hang(delivery)
    return f"notes/{delivery.effect_key}"

def hang(delivery: Delivery[Note]) -> None:
    if not (HERE / "hangs-no-more").exists():
        write("hung", delivery)
        time.sleep(60)

def write(what: str, delivery: Delivery[Note]) -> None:
    handle = os.open(HERE / "runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, f"{what} {delivery.effect_key} {delivery.payload.text}\\n".encode())
    os.close(handle)
"""


def desk_of(cluster: Cluster, names: Names, directory: Path, **tables: Any) -> Desk:
    """A group with the handler of this file, whose ledger is in Kafka."""
    ledger = {"replication": "changelog", **tables.pop("ledger", {})}
    at = desk(cluster, names, directory, ledger=ledger, **tables)
    (directory / "app" / "notes.py").write_text(_APP)
    return at


def effects(*sequences: int, key: str = KEY) -> list[str]:
    """The effects of a key at these sequences."""
    return [f"{key}/{sequence}" for sequence in sequences]


def others(night: Night, *telling: str) -> list[str]:
    """What might have been typed in the place of the page's first command: of all, the most telling ones."""
    lines = (OFFSETS, LANES, CASES) if SOAK else telling
    return [line for line in lines if line != night.steps[FIRST][0].line]


@dataclass
class Shell(Night):
    """A reader who also ends and starts the worker, where the page has a line for it."""

    def _type(self, line: str) -> Said:
        worker = self.at.worker
        if line == "kill PID":
            assert re.findall(r"in process (\d+)", self.said)[-1] == str(worker.pid)
            worker.terminate()
            assert worker.wait() == 5
        elif line.startswith("laneway run "):
            worker.start()
            eventually(worker.live, 30, "the worker")
            self.at.settled()
        else:
            return super()._type(line)
        return Said(0, "", "")


def dies_in(at: Desk, text: str) -> None:
    """Let a worker die in the handler of the key's second record, and another take over."""
    at.publish(note(KEY, 1))
    at.worker.start()
    at.did(KEY, "1")
    at.settled()
    at.publish(note(KEY, 2, text), note(KEY, 3))
    eventually(lambda: f"hung {KEY}/2 {text}" in at.runs(KEY), 30, "the handler")
    at.worker.kill()
    at.mark("hangs-no-more")
    at.publish(note(OTHER, 1))
    at.worker.start()


def test_an_unknown_outcome_that_happened(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """What a worker had done when it died is marked as done: it does not happen twice, its key goes on."""
    at = desk_of(cluster, names, tmp_path, ledger={"on_unknown_outcome": "review"})
    night = Night(at, "happened")
    with at.worker:
        dies_in(at, "lands and hangs")
        night.first()
        leads_to(night, rf"Did effect {KEY}/2 happen at the target", others(night, LANES))
        night.cure()
        night.again()
        accounted(at, KEY, effects(1, 2, 3))
        accounted(at, OTHER, effects(1, key=OTHER))


def test_an_unknown_outcome_that_did_not_happen(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """What a worker had not done when it died runs again once a person has looked, and happens once."""
    at = desk_of(cluster, names, tmp_path, ledger={"on_unknown_outcome": "review"})
    night = Night(at, "did-not-happen")
    with at.worker:
        dies_in(at, "hangs")
        night.first()
        leads_to(night, rf"Did effect {KEY}/2 happen at the target", others(night, OFFSETS))
        assert [line for line in at.runs(KEY) if line.startswith(f"ran {KEY}/2")] == []
        night.cure()
        night.again()
        accounted(at, KEY, effects(1, 2, 3))


def test_a_duplicate_with_another_payload(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """An effect key that was used twice: the first effect stays, the second record is dropped by a person."""
    at = desk_of(cluster, names, tmp_path)
    at.publish(note(KEY, 1), note(KEY, 2, "another", effect=f"{KEY}/1"), note(KEY, 3))
    night = Night(at, "conflicting-duplicate")
    with at.worker.start():
        night.first()
        leads_to(night, rf"Two different payloads claim effect {KEY}/1", others(night, LANES))
        night.cure()
        night.again()
        accounted(at, KEY, effects(1, 3), {2: "discard"})


def test_a_partition_that_retention_has_emptied(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """What was deleted unread is told, passed over by a person, and named key by key for its publisher."""
    at = desk_of(cluster, names, tmp_path, partitions=2, leaves=True)
    at.publish(note(KEY, 1))
    night = Shell(at, "lost-to-retention")
    with at.worker.start():
        at.did(KEY, "1")
        at.settled()
        at_rest(at)
        at.publish(note(KEY, 2), note(KEY, 3), note(KEY, 4), second(note(OTHER, 1)))
        [start] = (end - 1 for number, end in cluster.end_offsets(names.source).items() if number == 0)
        cluster.delete_records(names.source, {0: start})
        at.worker.start()
        assert at.worker.wait() == 4
        shown = night.first()
        leads_to(night, "offsets 1 to 2 were deleted unread", others(night, LANES, CASES))
        # The worker and the list name the same way out.
        to = "laneway offsets reset --to start"
        assert f"{to} --source {names.source} --partition 0 --reason WHY" in at.worker.said()
        assert f"{to} --partition 0" in shown

        def sends_again(text: str) -> None:
            if "sequence-gap" in text:
                at.publish(note(KEY, 2), note(KEY, 3))

        night.cure(sends_again)
        night.again()
        accounted(at, KEY, effects(1, 2, 3, 4))
        accounted(at, OTHER, effects(1, key=OTHER))
        assert "offsets 1 to 3 are passed over" in at.worker.said()


def test_a_key_that_parks_up_to_the_bound(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """A partition that stands still names the key that fills it; once its case is decided all go on."""
    at = desk_of(cluster, names, tmp_path, lanes={"max_parked_per_lane": 3})
    at.publish(note(KEY, 1), note(KEY, 2, "needs the calendar"), *(note(KEY, n) for n in range(3, 9)))
    night = Night(at, "parking-full")
    with at.worker.start():
        eventually(lambda: "source paused" in at.worker.stderr(), 30, "the bound")
        at.publish(note(KEY, 9), note(OTHER, 1))
        night.first()
        leads_to(night, rf"Is the dependency behind effect {KEY}/2 well again", others(night, CASES))
        assert at.runs(OTHER) == []
        at.mark("calendar-is-up")
        night.cure()
        night.again()
        accounted(at, KEY, effects(*range(1, 10)))
        accounted(at, OTHER, effects(1, key=OTHER))


def test_a_handler_that_does_not_come_back(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """It is told beside the lag with its process; others go on, and after a restart its record runs, once."""
    at = desk_of(cluster, names, tmp_path, leaves=True, lanes={"handler_timeout_ms": 1000})
    at.worker.arguments = ("--drain-timeout", "1")
    at.publish(note(KEY, 1))
    night = Shell(at, "stuck-handler")
    with at.worker.start():
        at.did(KEY, "1")
        at.settled()
        at.publish(note(KEY, 2, "hangs"), note(KEY, 3), note(OTHER, 1))
        at.did(OTHER, "1")
        night.first()
        leads_to(night, "is over its time", (f"laneway lanes explain {KEY} -b localhost:9092 -g reminders",))
        assert f"end this process ({at.worker.pid})" in at.worker.stderr()
        assert at.runs(KEY) == [f"ran {KEY}/1 hello", f"hung {KEY}/2 hangs"]
        at.mark("hangs-no-more")
        night.cure()
        night.again()
        accounted(at, KEY, effects(1, 2, 3))
        accounted(at, OTHER, effects(1, key=OTHER))
