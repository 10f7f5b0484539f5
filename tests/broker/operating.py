"""A group with an operator: a worker whose handler fails as its records say, and commands typed at it.

What the handler does is told by the payload; what it did stands in a file, one line a run. Commands run in
this process, as the `laneway` command does, without a terminal.
"""

from __future__ import annotations

import io
import json
import shlex
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laneway.cli.main import main
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.cli.command import Said
from tests.waiting import eventually

DELAY_MS = 50
CANARY = "hunter2"

_APP = """
import os, time
from pathlib import Path
from pydantic import BaseModel
from laneway import Delivery, NeedsReview, PermanentFailure, Pipeline, TemporaryFailure, Unavailable

HERE = Path(__file__).parent

class Note(BaseModel):
    text: str
    secret: str = ""

pipeline = Pipeline(payload=Note)

@pipeline.handler
def handle(delivery: Delivery[Note]) -> str:
    text = delivery.payload.text
    if text == "needs the calendar" and not (HERE / "calendar-is-up").exists():
        raise TemporaryFailure("calendar-down")
    if text == "meets a bug" and not (HERE / "bug-is-fixed").exists():
        raise ValueError("a bug")
    if text == "needs the bank" and (HERE / "bank-is-down").exists():
        write("asked", delivery)
        raise Unavailable(retry_after_ms=200, reason="the bank is down")
    if text == "is refused" and not (HERE / "release-is-fixed").exists():
        raise PermanentFailure("refused")
    if text == "asks" and delivery.attempt == 1:
        raise NeedsReview("is the amount right?")
    if text == "hangs" and not (HERE / "hangs-no-more").exists():
        write("hung", delivery)
        time.sleep(60)
    write("ran", delivery)
    return f"notes/{delivery.effect_key}"

def write(what: str, delivery: Delivery[Note]) -> None:
    handle = os.open(HERE / "runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, f"{what} {delivery.effect_key} {delivery.payload.text}\\n".encode())
    os.close(handle)
"""


def note(
    key: str, sequence: int, text: object = "hello", *, version: int = 1, effect: str | None = None
) -> Outgoing:
    """A record whose payload says what its handler does; `text` that is no text cannot be read as one."""
    body = {
        "messageId": f"m-{key}-{sequence}",
        "effectKey": effect or f"{key}/{sequence}",
        "sequenceKey": key,
        "sequence": sequence,
        "version": version,
        "payload": {"text": text, "secret": CANARY},
    }
    return Outgoing(json.dumps(body).encode(), key.encode(), [("token", CANARY.encode())], partition=0)


@dataclass
class Desk:
    """Where an operator sits: a worker somewhere, and a shell with -b and -g."""

    cluster: Cluster
    names: Names
    directory: Path
    worker: WorkerProcess

    def publish(self, *records: Outgoing) -> None:
        """Write records to the source, in order."""
        self.cluster.produce(self.names.source, records)

    def runs(self, key: str = "") -> list[str]:
        """What the handler did, in order, as `ran KEY/SEQUENCE TEXT`; of one key or of all."""
        path = self.directory / "app" / "runs"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.split()[1].startswith(f"{key}/" if key else "")]

    def did(self, key: str, *runs: str) -> None:
        """Wait until the handler did exactly this for a key, and nothing else."""
        wanted = [f"ran {key}/{run}" if " " in run else f"ran {key}/{run} hello" for run in runs]

        def same() -> bool:
            assert self.runs(key) == wanted
            return True

        eventually(same, 30, f"the runs of {key}; the worker said:\n{self.worker.stderr()[-2000:]}")

    def mark(self, name: str, *, there: bool = True) -> None:
        """Put a file beside the handler, or take it away: a dependency is up, a bug is fixed."""
        path = self.directory / "app" / name
        path.touch() if there else path.unlink(missing_ok=True)

    def laneway(self, *arguments: str) -> Said:
        """Run a command with -b and -g added."""
        return typed(*arguments, "-b", self.cluster.bootstrap, "-g", self.names.group)

    def local(self, *arguments: str) -> Said:
        """Run a command that reads the ledgers, wherever they are."""
        config = self.directory / "worker" / "worker.toml"
        return typed(*arguments, "-c", str(config))

    def paste(self, line: str) -> Said:
        """Run a line that a command suggested, with a reason in the place of WHY and no question."""
        _, *words = shlex.split(line)
        return typed(*("as suggested" if word == "WHY" else word for word in words), "-y")

    def resolve(self, case_id: str, action: str, *more: str, reason: str = "looked into it") -> Said:
        """Resolve a case without being asked."""
        words = ("review", "resolve", case_id, "--action", action, *more)
        return self.laneway(*words, "--reason", reason, "--actor", "ann", "-y", "-o", "json")

    def cases(self, key: str, *, open_only: bool = True) -> list[dict[str, Any]]:
        """The cases of a key."""
        said = self.laneway("review", "list", "--key", key, "-o", "json", *(() if open_only else ("--all",)))
        assert said.code == 0, said
        return said.items

    def case(self, key: str, reason: str) -> str:
        """Wait until a key has one open case, of this reason; its id."""

        def opened() -> str:
            found = self.cases(key)
            assert [each["reason"] for each in found] == [reason], found
            return str(found[0]["case"])

        return eventually(opened, 30, f"a case of {key}; the worker said:\n{self.worker.stderr()[-2000:]}")

    def settled(self) -> None:
        """Wait until all that was published and commanded is committed."""

        def at_end() -> bool:
            for topic in (self.names.source, f"{self.names.source}.{self.names.group}.commands"):
                committed = self.cluster.committed(self.names.group, topic)
                ends = self.cluster.end_offsets(topic)
                assert {number: committed[number] or 0 for number in ends} == ends, topic
            return True

        eventually(at_end, 30, "the commit", poll_s=0.1)


def desk(
    cluster: Cluster,
    names: Names,
    directory: Path,
    *,
    partitions: int = 1,
    leaves: bool = False,
    **tables: Any,
) -> Desk:
    """A group on a source of its own; its worker is not started yet.

    Args:
        leaves: a worker that stops leaves the group at once, and a killed one is waited for.
    """
    if not leaves:
        tables["instance_id"] = "the-worker"
    cluster.create_topic(names.source, partitions)
    app = directory / "app"
    app.mkdir(parents=True)
    (app / "notes.py").write_text(_APP)
    settings = settings_of(
        cluster.bootstrap,
        names,
        directory / "state",
        retry={"delays_ms": [DELAY_MS]},
        **tables,
    )
    create_companions(settings, directory)
    worker = WorkerProcess(app / "notes.py:pipeline", settings, directory=directory / "worker")
    return Desk(cluster, names, directory, worker)


def typed(*arguments: str) -> Said:
    """What a command line says and how it ends, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(arguments))
    return Said(code, out.getvalue(), err.getvalue())


def timed(work: Callable[[], None]) -> float:
    """Seconds that it took."""
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s
