"""Ten thousand cases decided by one command that is killed in the middle and typed again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.broker.cluster import Cluster
from tests.broker.conftest import Names
from tests.broker.kafka import REPOSITORY
from tests.broker.operating import desk, note
from tests.waiting import eventually

CASES = 10_000
PARTITIONS = 4
MOST_BYTES = 80 * 2**20
"""What the command may grow by: ten thousand cases as they stand in its memory, and the client's buffers."""

# The command, and behind it on standard error how far the process grew once everything was imported.
_MEASURED = """
import resource, sys
from pathlib import Path
from laneway.cli.main import main

def peak_bytes():
    if sys.platform == "linux":  # where ru_maxrss still holds what the parent had at the fork
        status = Path("/proc/self/status").read_text().split()
        return int(status[status.index("VmHWM:") + 1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = peak_bytes()
code = main(sys.argv[1:])
print("grown", peak_bytes() - before, file=sys.stderr)
sys.exit(code)
"""


def test_ten_thousand_cases(cluster: Cluster, names: Names, tmp_path: Path) -> None:
    """10,000 cases in bounded memory; killed (-9) and typed again it goes on; each is applied once."""
    at = desk(
        cluster,
        names,
        tmp_path,
        partitions=PARTITIONS,
        ledger={"replication": "changelog"},
        lanes={"max_open_cases_per_partition": CASES},
        journal={"level": "exceptions"},
    )
    at.publish(
        *(
            type(each)(each.value, each.key, (), number % PARTITIONS)
            for number in range(CASES)
            for each in [note(f"k{number}", 2)]
        )
    )
    with at.worker.start():
        open_ones = ("review", "list", "--limit", "1", "-o", "json")
        eventually(
            lambda: json.loads(at.laneway(*open_ones).out or "{}").get("open") == CASES,
            120,
            f"{CASES} cases\n{at.worker.stderr()[-2000:]}",
            poll_s=1,
        )
        words = ("review", "resolve", "--where", "reason=sequence-gap", "--action", "skip", "--rate", "5000")
        arguments = (*words, "--reason", "never sent", "--actor", "ann", "-y", "-o", "json")
        where = ("-b", cluster.bootstrap, "-g", names.group)
        command = [sys.executable, "-c", _MEASURED, *arguments, *where]
        started = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            eventually(lambda: len(resolved(cluster, names)) > CASES // 10, 60, "some of them", poll_s=0.3)
        finally:
            started.kill()
            started.communicate()
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=240, check=False)
        if done.returncode == 5:
            # What the first had queued when it was killed was still being applied.
            done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        told = json.loads(done.stdout)
        eventually(lambda: len(at.runs()) == CASES, 60, "every follower", poll_s=0.5)
        at.settled()
        at.worker.stop()
    assert told["refused"] == told["unanswered"] == 0
    each = resolved(cluster, names)
    assert Counter(news["caseId"] for news in each).most_common(1)[0][1] == 1
    assert len(each) == CASES
    assert {(news["resolution"], news["actor"]) for news in each} == {("skip", "ann")}
    assert set(Counter(at.runs()).values()) == {1}
    grown = int(done.stderr.decode().rpartition("grown ")[2])
    assert grown < MOST_BYTES, f"{grown} bytes"


def resolved(cluster: Cluster, names: Names) -> list[dict[str, Any]]:
    """News of cases that were resolved."""
    topic = f"{names.source}.{names.group}.review"
    return [
        json.loads(value)
        for message in cluster.read_topic(topic)
        if (value := message.value() or b"").find(b'"event":"resolved"') >= 0
    ]
