"""How the process ends while a thread of ours is stuck in a library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SYNCING = """
import sys, threading
from pathlib import Path
from laneway.cli.main import leave
from laneway.lanes.view import Meta
from laneway.store.ledger import Ledger
from laneway.store.port import StoreIdentity

ledger = Ledger.open(Path(sys.argv[1]) / "store", StoreIdentity("g", "t", 0))
begun = threading.Event()


def work():
    number = 0
    while True:
        number += 1
        ledger.apply((), Meta("w", number, {}, 0, 0, 0), ())
        ledger.sync()
        begun.set()


threading.Thread(target=work, daemon=True, name="laneway-io-0").start()
assert begun.wait(10)
print("told")
leave(7)
"""


def test_a_thread_inside_the_ledger_does_not_turn_the_exit_code_into_an_abort(tmp_path: Path) -> None:
    """The process ends with its own code, and what it printed, while a sync is under way (case 38)."""
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = subprocess.run(
            [sys.executable, "-c", SYNCING, str(folder)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (run.returncode, run.stdout, run.stderr) == (7, "told\n", "")
