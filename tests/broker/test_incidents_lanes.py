"""Incidents of keys that wait: pages of docs/operations/incidents, followed from first line to last.

What is seen first leads to the cause, at most three commands mend it, and afterwards each record of a key has
its one end.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.broker.cases_page import lines_of
from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.incidents import CURE, KEY, OPENING, PAGES, Night, accounted, leads_to, missing, page
from tests.broker.operating import desk, note
from tests.waiting import eventually

CHANGELOG = {"replication": "changelog"}
OTHERS = [f"customer-{number}" for number in range(18, 58)]
DOWN = "bank-is-down"


def effects(*sequences: int, key: str = KEY) -> list[str]:
    """The effects of a key at these sequences."""
    return [f"{key}/{sequence}" for sequence in sequences]


def test_the_index_has_every_page_and_every_page_is_one() -> None:
    """Twelve incidents, a page each, and each has its line in the table of what is seen."""
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    names = sorted(path.stem for path in PAGES.glob("*.md") if path.name != "README.md")
    assert sorted(re.findall(r"^\|.*\]\(([a-z-]+)\.md\)", index, re.MULTILINE)) == names
    assert len(names) == 12
    for name in names:
        page(name)
    assert set(lines_of(index)) <= {*OPENING, explain(KEY)}


@pytest.mark.parametrize(
    ("shown", "missed"),
    [
        (("KEY  STATE …", "customer-17 … 2s …"), None),
        (("customer-17  held  1m9s  rejected-0123456789ab",), None),
        (("customer-17  held",), "customer-17  held"),
        (("customer-17 …", "KEY …"), "KEY …"),
    ],
    ids=["trimmed", "another night", "cut off", "order"],
)
def test_a_page_that_shows_what_was_not_said_is_found(shown: tuple[str, ...], missed: str | None) -> None:
    """Lines of a page are those that were said, in their order; only ages, instants and ids may differ."""
    said = "KEY          STATE  SINCE  CASE\ncustomer-17  held   13s    rejected-a27d6a958036\n"
    assert missing(shown, said) == missed


def test_a_gap_that_is_real(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """A number that was never published is found and skipped; what was parked behind it runs, once."""
    at = desk(cluster, names, tmp_path, ledger=CHANGELOG)
    at.publish(note(KEY, 1), note(KEY, 3), note(KEY, 4), note("customer-18", 1))
    night = Night(at, "real-gap")
    with at.worker.start():
        night.first()
        leads_to(night, "Sequence 2 has not come|Was sequence 2 of this key ever published")
        night.cure()
        night.again()
        accounted(at, KEY, effects(1, 3, 4), {2: "skip"})
        accounted(at, "customer-18", ["customer-18/1"])


def test_a_gap_that_heals(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """A number that is late needs no command but the one that looks: it is taken in its turn."""
    at = desk(cluster, names, tmp_path, ledger=CHANGELOG)
    at.publish(note(KEY, 1), note(KEY, 3), note(KEY, 4))
    night = Night(at, "healing-gap")
    with at.worker.start():
        night.first()
        leads_to(night, "If it is late, let it come: it is taken by itself|If it is late, have it sent")
        assert not night.steps[CURE]
        at.publish(note(KEY, 2))
        night.again()
        accounted(at, KEY, effects(1, 2, 3, 4))


def test_poison_at_the_head_of_a_busy_lane(
    cluster: Cluster, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that cannot be read is corrected from what was printed; what waited runs behind it, once."""
    at = desk(cluster, names, tmp_path, ledger=CHANGELOG)
    monkeypatch.chdir(tmp_path)
    at.publish(note(KEY, 1), note(KEY, 2, 7), *(note(KEY, number) for number in range(3, 203)))
    at.publish(*(note(key, 1) for key in OTHERS))
    night = Night(at, "poison")

    def correct(text: str) -> None:
        for line in text.splitlines():
            if line.startswith("payload "):
                record = json.loads(line.removeprefix("payload "))
                record["payload"]["text"] = "seven"
                Path("corrected.json").write_text(json.dumps(record))

    with at.worker.start():
        night.first()
        leads_to(night, "text: string_type")
        night.cure(correct)
        night.again()
        accounted(at, KEY, effects(*range(1, 203)))
        assert f"ran {KEY}/2 seven" in at.runs(KEY)
        assert len(at.runs()) == 202 + len(OTHERS)


def test_a_dependency_that_is_down(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """An outage is told by name and by its place in the code; nobody has to do anything, before or after."""
    at = desk(cluster, names, tmp_path, ledger=CHANGELOG)
    at.mark(DOWN)
    at.publish(*(note(key, number, "needs the bank") for number in (1, 2) for key in OTHERS))
    night = Night(at, "dependency-down")
    with at.worker.start():
        night.first()
        leads_to(night, "unavailable to many lanes .the bank is down.", [*OPENING, explain("customer-18")])
        assert "unavailable: the bank is down (" in at.worker.stderr()
        asked = len(at.runs())
        eventually(lambda: len(at.runs()) >= asked + 5, 30, "some that ask again", poll_s=0.1)
        at.mark(DOWN, there=False)
        night.again()
        ran = sorted(line.split()[1] for line in at.runs() if line.startswith("ran "))
        assert ran == sorted(effect for key in OTHERS for effect in effects(1, 2, key=key))
        for key in (OTHERS[0], OTHERS[-1]):
            accounted(at, key, effects(1, 2, key=key))
        assert "source resumed" in at.worker.stderr()


def test_a_dependency_that_one_key_misses(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """With one key that waits for it, a dependency that is down is seen too, whatever is typed first."""
    at = desk(cluster, names, tmp_path, ledger=CHANGELOG)
    at.mark(DOWN)
    at.publish(note(KEY, 1, "needs the bank"), note("customer-18", 1))
    night = Night(at, "dependency-down")
    with at.worker.start():
        leads_to(night, "1 lane waits .* unavailable .the bank is down.", [*OPENING, explain(KEY)])
        at.mark(DOWN, there=False)
        accounted(at, KEY, effects(1))


def test_a_buggy_release(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """Keys that one bug holds are found as one thing and, once it is mended, let go with one command."""
    at = desk(
        cluster, names, tmp_path, leaves=True, ledger=CHANGELOG, lanes={"max_open_cases_per_partition": 4}
    )
    keys = [KEY, *OTHERS[:3]]
    at.publish(*(note(key, number, "meets a bug") for number in (1, 2) for key in keys))
    night = Night(at, "buggy-release")
    with at.worker.start():
        night.first()
        leads_to(night, "builtins.ValueError")
        assert "first seen here" in at.worker.stderr()
        # Not read any further, so not a case for each.
        at.publish(*(note("customer-99", number, "meets a bug") for number in (1, 2)))
        at.worker.stop()
        at.mark("bug-is-fixed")
        at.worker.start()
        night.cure()
        night.again()
        ran = sorted(line.split()[1] for line in at.runs())
        assert ran == sorted(effect for key in (*keys, "customer-99") for effect in effects(1, 2, key=key))
        for key in (KEY, "customer-99"):
            accounted(at, key, effects(1, 2, key=key))
        assert at.cases("customer-99", open_only=False) == []


def test_exhausted_retries(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """What failed for too long is told in the handler's own words, and runs when somebody says so, once."""
    at = desk(cluster, names, tmp_path, ledger=CHANGELOG)
    at.publish(note(KEY, 1), note(KEY, 2, "needs the calendar"), note(KEY, 3))
    night = Night(at, "exhausted-retries")
    with at.worker.start():
        night.first()
        leads_to(night, "calendar-down")
        at.mark("calendar-is-up")
        night.cure()
        night.again()
        accounted(at, KEY, effects(1, 2, 3))


def explain(key: str) -> str:
    """The command of somebody who knows which key is missing something."""
    return f"laneway lanes explain {key} -b localhost:9092 -g reminders"
