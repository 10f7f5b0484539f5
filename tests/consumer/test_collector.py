"""The collector of cyclic garbage in a worker process, each time in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from laneway.consumer.collector import CALM


def _told(before: str, after: str) -> str:
    """What a process prints that calls the function between these two."""
    code = (
        "import gc, weakref\nfrom laneway.consumer import collector\n"
        f"{before}\ncollector.calm_collector()\n{after}"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return ended.stdout.strip()


def test_a_worker_looks_for_cycles_less_often_and_not_among_what_start_up_left() -> None:
    """What is there when work begins is never walked through again, and young garbage is looked for less."""
    assert _told("", "print(gc.get_threshold(), gc.get_freeze_count() > 1000)") == f"{CALM} True"


def test_an_application_keeps_its_own_thresholds() -> None:
    """An application that has set the collector keeps what it has set, also that it is off."""
    assert _told("gc.set_threshold(50, 5, 5)", "print(gc.get_threshold())") == "(50, 5, 5)"
    assert _told("gc.disable()", "print(gc.isenabled())") == "False"


def test_cycles_that_handlers_leave_are_still_collected() -> None:
    """Garbage in cycles goes by itself, soon after as much of it has come as the first threshold says."""
    handlers = """
class Node:
    pass
first = Node()
first.me = first
weakref.finalize(first, print, "collected")
del first
for _ in range(2 * collector.CALM[0]):
    node = Node()
    node.me = node
print("end")
"""
    assert _told("", handlers).split() == ["collected", "end"]
