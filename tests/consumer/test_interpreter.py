"""The interpreter of a worker process, each time in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from laneway.consumer.interpreter import CALM, SWITCH_S


def _told(before: str, after: str) -> str:
    """What a process prints that calls the function between these two."""
    code = (
        "import gc, sys, weakref\nfrom laneway.consumer import interpreter\n"
        f"{before}\ninterpreter.tune_interpreter()\n{after}"
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


def test_threads_take_turns_more_often_unless_the_application_has_said_how_often() -> None:
    """A handler that wakes from waiting does not wait again for the owner's turn to end."""
    assert _told("", "print(sys.getswitchinterval())") == str(SWITCH_S)
    assert _told("sys.setswitchinterval(0.02)", "print(sys.getswitchinterval())") == "0.02"


def test_cycles_that_handlers_leave_are_still_collected() -> None:
    """Garbage in cycles goes by itself, soon after as much of it has come as the first threshold says."""
    handlers = """
class Node:
    pass
first = Node()
first.me = first
weakref.finalize(first, print, "collected")
del first
for _ in range(2 * interpreter.CALM[0]):
    node = Node()
    node.me = node
print("end")
"""
    assert _told("", handlers).split() == ["collected", "end"]
