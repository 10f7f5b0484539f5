"""Wrong set-up: `laneway run` as a real process refuses with one message and the right exit code.

Each message says what, where and what to do. Standard output stays empty (it belongs to the journal),
there is no traceback, and the process ends in bounded time.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from laneway.store import codec, rocks
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.waiting import eventually

BOUND_S = 40.0
"""The longest a refusal may take; librdkafka's own patience with an address that is silent is 10 s."""

APP = """
from laneway import Pipeline

pipeline = Pipeline()


@pipeline.handler
def handle(delivery):
    return None
"""
ROOM = {"max.message.bytes": str(16 * 2**20)}
COMPANIONS = ("retry", "commands", "dlq", "review")


@dataclass(frozen=True)
class Setup:
    """A directory with an app and a laneway.toml for one group, which a test then spoils."""

    directory: Path
    names: Names
    bootstrap: str
    top: str = ""
    tables: str = ""
    replication: str = 'replication = "local"'

    def write(self) -> None:
        """The app and the configuration as they stand now."""
        (self.directory / "app.py").write_text(APP)
        (self.directory / "laneway.toml").write_text(
            f'group = "{self.names.group}"\nsources = ["{self.names.source}"]\n'
            f'bootstrap = "{self.bootstrap}"\n{self.top}\n'
            f"[ledger]\n{self.replication}\nmin_free = 0\n{self.tables}\n"
        )

    def run(self, *more: str, app: str = "app:pipeline") -> Refusal:
        """`laneway run` until it ends by itself."""
        self.write()
        started = time.monotonic()
        done = subprocess.run(
            command(app, *more),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        return Refusal(done.returncode, done.stdout, done.stderr, time.monotonic() - started)


@dataclass(frozen=True)
class Refusal:
    """How a `laneway run` ended."""

    code: int
    stdout: str
    stderr: str
    took_s: float

    def says(self, *words: str, code: int) -> None:
        """One message with all these words, the exit code, and nothing else."""
        assert self.code == code, self.stderr
        assert self.stdout == ""
        assert "Traceback" not in self.stderr, self.stderr
        message = self.message()
        assert "\n  next: " in message, message
        for word in words:
            assert word in message, f"{word!r} is not in {message!r}"
            if " " in word:
                assert self.stderr.count(word) == 1, f"said twice: {self.stderr}"

    def message(self) -> str:
        """The message itself; there may be log lines before it, never after it."""
        assert self.stderr.count("laneway: ") == 1, self.stderr
        return self.stderr[self.stderr.index("laneway: ") :]


def command(app: str, *more: str) -> Sequence[str]:
    """The command line, with this interpreter."""
    return [sys.executable, "-m", "laneway.cli.main", "run", app, *more]


@pytest.fixture
def setup(kafka: KafkaBroker, names: Names, tmp_path: Path) -> Setup:
    """A set-up that is right, but for the topics."""
    return Setup(tmp_path, names, kafka.bootstrap)


def create_topics(cluster: Cluster, names: Names, partitions: int = 1, **other: int) -> None:
    """The source and its companions; `other` gives a companion another number of partitions, 0 for none."""
    cluster.create_topic(names.source, partitions)
    for kind in COMPANIONS:
        count = other.get(kind, partitions)
        if count:
            cluster.create_topic(f"{names.source}.{names.group}.{kind}", count, ROOM)


def run_once(setup: Setup, cluster: Cluster, expected: int, *more: str) -> None:
    """A worker that commits `expected` records of partition 0 and is then stopped."""
    setup.write()
    args = command("app:pipeline", "--journal", "journal.ndjson", *more)
    with (setup.directory / "stderr").open("wb") as stderr:
        process = subprocess.Popen(args, cwd=setup.directory, stderr=stderr, stdout=subprocess.DEVNULL)
    try:
        eventually(
            lambda: cluster.committed(setup.names.group, setup.names.source)[0] == expected,
            30,
            f"offset {expected} to be committed",
            poll_s=0.2,
        )
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def job(number: int) -> Outgoing:
    """A good record of the default envelope."""
    value = {"messageId": f"m{number}", "effectKey": f"e{number}", "sequenceKey": "k", "sequence": number}
    return Outgoing(json.dumps({**value, "version": 1, "payload": {}}).encode(), b"k", partition=0)


# --- before the cluster is asked ---------------------------------------------------------------


def test_an_unknown_key_is_refused_with_its_line_and_its_nearest_neighbour(setup: Setup) -> None:
    """An unknown configuration key: exit 2, naming file, line and the key that was meant."""
    refusal = replace(setup, tables="[lanes]\nworkrs = 4").run()
    refusal.says("lanes.workrs", "laneway.toml:9", "workers", code=2)


@pytest.mark.parametrize(
    "key",
    ["group.id", "enable.auto.commit", "isolation.level", "acks", "transactional.id", "enable.idempotence"],
)
def test_a_kafka_key_that_laneway_owns_is_refused_by_name(setup: Setup, key: str) -> None:
    """An owned Kafka key: exit 2, naming the key and why it is not the team's to set."""
    refusal = replace(setup, tables=f'[kafka]\n"{key}" = "true"').run()
    refusal.says(key, "belongs to Laneway", "laneway.toml:9", code=2)


def test_review_of_unknown_outcomes_is_refused_without_a_changelog(setup: Setup) -> None:
    """`on_unknown_outcome = "review"` with `local`: exit 2 with the line, what it needs, and the way out."""
    local = 'replication = "local"\non_unknown_outcome = "review"'
    refusal = replace(setup, bootstrap="127.0.0.1:1", replication=local).run()
    refusal.says('needs replication = "changelog"', "laneway.toml:7", "take on_unknown_outcome out", code=2)


def test_a_missing_configuration_file_is_named(setup: Setup) -> None:
    """`-c` with no such file: exit 2 with its path."""
    setup.run("-c", "elsewhere.toml").says("elsewhere.toml", "there is no such file", code=2)


def test_a_missing_module_shows_the_path_that_was_tried(setup: Setup) -> None:
    """A handler that cannot be imported: exit 2 and the directory tried (case 44)."""
    refusal = setup.run(app="ap:pipeline")
    refusal.says("no module named 'ap'", str(setup.directory), "app", code=2)


def test_a_missing_file_shows_the_path_that_was_tried(setup: Setup) -> None:
    """A file that is not there: exit 2, its full path and what is beside it (case 44)."""
    refusal = setup.run(app="./ap.py:pipeline")
    refusal.says(str(setup.directory / "ap.py"), "no such file", "app", code=2)


def test_a_missing_attribute_shows_the_names_that_could_be_meant(setup: Setup) -> None:
    """A name that the module does not have: exit 2 and those it has."""
    setup.run(app="app:pipelin").says("there is no 'pipelin' in it", "pipeline", code=2)


def test_an_import_that_fails_inside_says_where(setup: Setup) -> None:
    """A handler module whose own import fails: exit 2, the cause, the file and the line (case 44)."""
    (setup.directory / "broken.py").write_text("import json\nimport not_installed_anywhere\n")
    refusal = setup.run(app="broken:pipeline")
    refusal.says("not_installed_anywhere", f"{setup.directory / 'broken.py'}:2", code=2)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_generator_as_a_handler_is_refused(setup: Setup, kind: str) -> None:
    """A handler that yields: exit 2 at import, naming the function, never a body that nobody runs."""
    (setup.directory / "later.py").write_text(
        "from laneway import Pipeline\npipeline = Pipeline()\n\n"
        f"@pipeline.handler\n{kind} handle(delivery):\n    yield None\n"
    )
    refusal = setup.run(app="later:pipeline")
    refusal.says("generator", "later.py:4", code=2)


@pytest.mark.parametrize("name", ["builtins.TimeOutError", "nowhere.Error", "builtins.len"])
def test_a_temporary_class_that_names_nothing_is_refused(setup: Setup, name: str) -> None:
    """`retry.temporary` that leads to no exception class: exit 2 with the name, before a broker is asked."""
    refusal = replace(setup, bootstrap="127.0.0.1:1", tables=f'[retry]\ntemporary = ["{name}"]').run()
    refusal.says("retry.temporary", name, code=2)
    assert not (setup.directory / "state").exists()


def test_an_envelope_place_that_cannot_be_read_is_refused(setup: Setup) -> None:
    """A place in no known form: exit 2 with its key, before a broker is asked."""
    refusal = replace(setup, bootstrap="127.0.0.1:1", tables='[envelope]\nmessage_id = "jsn:/id"').run()
    refusal.says("message_id", "json:/pointer", code=2)


def test_a_journal_that_cannot_be_written_is_refused(setup: Setup, cluster: Cluster) -> None:
    """A journal path in no directory: exit 2 with the path, before anything runs."""
    create_topics(cluster, setup.names)
    setup.run("--journal", "nowhere/journal.ndjson").says("nowhere/journal.ndjson", code=2)


# --- the cluster -------------------------------------------------------------------------------


def test_an_unreachable_broker_is_exit_3(setup: Setup) -> None:
    """Nobody listens at the address: exit 3 with the address, in bounded time (case 38)."""
    refusal = replace(setup, bootstrap="127.0.0.1:1").run()
    refusal.says("127.0.0.1:1", code=3)
    assert refusal.took_s < 25


def test_a_missing_source_topic_is_refused_with_the_command_that_makes_it(setup: Setup) -> None:
    """No source topic: exit 4, naming it and the broker, and none is created by the way."""
    refusal = setup.run()
    refusal.says(setup.names.source, "the source topic does not exist", "--create --topic", code=4)
    assert setup.names.source not in Cluster(setup.bootstrap).topics()


@pytest.mark.parametrize("kind", COMPANIONS)
def test_a_missing_companion_topic_is_refused(setup: Setup, cluster: Cluster, kind: str) -> None:
    """A companion topic is missing: exit 4 with `laneway topics create`. Without a DLQ nothing runs (S19)."""
    create_topics(cluster, setup.names, **{kind: 0})
    refusal = setup.run()
    refusal.says(
        f"the {kind} topic does not exist", f"{setup.names.group}.{kind}", "laneway topics create", code=4
    )
    assert cluster.committed(setup.names.group, setup.names.source) == {0: None}


@pytest.mark.parametrize(("kind", "count"), [("dlq", 1), ("retry", 2), ("commands", 4)])
def test_partition_counts_that_differ_are_refused(
    setup: Setup, cluster: Cluster, kind: str, count: int
) -> None:
    """A companion has fewer or more partitions than its source: exit 4 and the mending command (case 23)."""
    create_topics(cluster, setup.names, 3, **{kind: count})
    mend = "--alter" if count < 3 else "--delete"
    refusal = setup.run()
    refusal.says(f"it has {count} partitions", f"{setup.names.group}.{kind}", mend, code=4)


def test_the_command_that_a_refusal_names_mends_it(setup: Setup, cluster: Cluster) -> None:
    """The `laneway topics create ...` of the message, typed as it stands, lets the worker start."""
    cluster.create_topic(setup.names.source, 1)
    mend = setup.run().message().partition("next: ")[2].split()
    assert mend[0] == "laneway"
    done = subprocess.run(
        [sys.executable, "-m", "laneway.cli.main", *mend[1:], "-y"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cluster.produce(setup.names.source, [job(1)])
    run_once(setup, cluster, 1)


# --- the ledger topic ---------------------------------------------------------------------------


@pytest.fixture
def replicated(setup: Setup, cluster: Cluster) -> Setup:
    """A set-up whose ledger follows its partitions, right but for the ledger topic."""
    create_topics(cluster, setup.names, 2)
    return replace(setup, replication='replication = "changelog"')


def create_ledger_topic(
    cluster: Cluster, names: Names, partitions: int = 2, spoilt: Mapping[str, str] | None = None
) -> None:
    """A ledger topic as it has to be, but for what is spoilt."""
    configs = {**ROOM, "cleanup.policy": "compact", "delete.retention.ms": "604800000", **(spoilt or {})}
    cluster.create_topic(f"{names.source}.{names.group}.ledger", partitions, configs)


def test_a_missing_ledger_topic_is_refused_with_the_command_that_makes_it(
    replicated: Setup, cluster: Cluster
) -> None:
    """`changelog` without its topic: exit 4; the command of the message makes it as it has to be."""
    refusal = replicated.run()
    ledger = f"{replicated.names.source}.{replicated.names.group}.ledger"
    refusal.says("the ledger topic does not exist", ledger, code=4)
    mend = shlex.split(refusal.message().partition("next: ")[2])
    assert mend[0] == "laneway"
    for words in ([*mend[1:], "-y"], ["topics", "check", "-c", "laneway.toml"]):
        done = subprocess.run(
            [sys.executable, "-m", "laneway.cli.main", *words],
            cwd=replicated.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    configs = cluster.topic_config(ledger)
    assert (configs["cleanup.policy"], configs["delete.retention.ms"]) == ("compact", "604800000")
    assert cluster.topics()[ledger] == 2


@pytest.mark.parametrize(
    ("spoilt", "said", "mend"),
    [
        ({"cleanup.policy": "delete"}, "its cleanup.policy is delete", "cleanup.policy=compact"),
        (
            {"cleanup.policy": "compact,delete"},
            "its cleanup.policy is compact,delete",
            "cleanup.policy=compact",
        ),
        (
            {"delete.retention.ms": "60000"},
            "its delete.retention.ms is 60000",
            "delete.retention.ms=604800000",
        ),
    ],
)
def test_a_ledger_topic_that_forgets_is_refused(
    replicated: Setup, cluster: Cluster, spoilt: Mapping[str, str], said: str, mend: str
) -> None:
    """A ledger topic that would lose effects or tombstones: exit 4 and the mending command."""
    create_ledger_topic(cluster, replicated.names, spoilt=spoilt)
    replicated.run().says(said, f"--add-config {mend}", code=4)


def test_a_ledger_topic_with_short_lived_tombstones_is_told_and_used(
    replicated: Setup, cluster: Cluster
) -> None:
    """Kafka's own day for tombstones: the worker starts, and its log has the warning with the command."""
    create_ledger_topic(cluster, replicated.names, spoilt={"delete.retention.ms": "86400000"})
    run_once_without_records(replicated)
    (line,) = [
        line
        for line in (replicated.directory / "stderr").read_text().splitlines()
        if "delete.retention.ms is 86400000" in line
    ]
    assert "WARNING" in line
    assert "--add-config delete.retention.ms=604800000" in line


@pytest.mark.parametrize("count", [1, 3])
def test_a_ledger_topic_of_another_partition_count_is_refused(
    replicated: Setup, cluster: Cluster, count: int
) -> None:
    """Partition N of the changelog is the ledger of partition N: exit 4 where the counts differ (case 23)."""
    create_ledger_topic(cluster, replicated.names, count)
    replicated.run().says(f"it has {count} partitions", f"{replicated.names.group}.ledger", code=4)


# --- the state directory -----------------------------------------------------------------------


def test_the_state_directory_of_another_group_is_refused(setup: Setup, cluster: Cluster) -> None:
    """Another group's state directory: exit 4, naming both groups and the directory."""
    create_topics(cluster, setup.names)
    run_once_without_records(setup)
    other = replace(setup, names=Names(setup.names.source, f"{setup.names.group}-b"))
    for kind in COMPANIONS:
        cluster.create_topic(f"{other.names.source}.{other.names.group}.{kind}", 1, ROOM)
    other.run().says(f"belongs to group '{setup.names.group}'", other.names.group, "state", code=4)


def run_once_without_records(setup: Setup) -> None:
    """A worker that only claims its state directory."""
    setup.write()
    log = setup.directory / "stderr"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command("app:pipeline"), cwd=setup.directory, stderr=stderr, stdout=subprocess.DEVNULL
        )
    try:
        eventually(lambda: "live from offset" in log.read_text(), 20, "the partition to be live")
        process.terminate()
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_a_state_directory_of_an_unknown_format_is_refused(setup: Setup, cluster: Cluster) -> None:
    """A state directory of a later release: exit 4, naming the format; a rollback must not guess."""
    create_topics(cluster, setup.names)
    run_once_without_records(setup)
    marker = setup.directory / "state" / "laneway.json"
    text = json.loads(marker.read_text())
    marker.write_text(json.dumps({**text, "format": 99}))
    setup.run().says("laneway.json", "99", code=4)
    assert json.loads(marker.read_text())["format"] == 99


def test_a_store_of_an_unknown_format_is_refused(setup: Setup, cluster: Cluster) -> None:
    """One partition's store of a later release: exit 4, naming the store, and the offset stays."""
    create_topics(cluster, setup.names)
    cluster.produce(setup.names.source, [job(1)])
    run_once(setup, cluster, 1)
    cluster.produce(setup.names.source, [job(2)])
    make_format_unknown(setup.directory / "state" / "stores" / setup.names.source / "0")
    setup.run().says("99", f"stores/{setup.names.source}/0", code=4)
    assert cluster.committed(setup.names.group, setup.names.source) == {0: 1}


def make_format_unknown(store: Path) -> None:
    """Overwrites the store's format marker, as a later release would have written it."""
    opened = rocks.open_primary(store)
    marker = json.loads(opened.get(codec.MARKER_KEY) or b"")
    opened.put(codec.MARKER_KEY, json.dumps({**marker, "format": 99}).encode())
    opened.close()


def test_committed_offsets_without_their_ledger_are_refused(setup: Setup, cluster: Cluster) -> None:
    """`local` with committed offsets and no ledger: exit 4; with --accept-empty-ledger it goes on."""
    create_topics(cluster, setup.names)
    cluster.produce(setup.names.source, [job(1), job(2)])
    cluster.commit(setup.names.group, setup.names.source, {0: 1})
    refusal = setup.run()
    refusal.says("committed offset 1", f"{setup.names.source}-0", "--accept-empty-ledger", code=4)
    assert cluster.committed(setup.names.group, setup.names.source) == {0: 1}


def test_an_empty_ledger_may_be_accepted_on_purpose(setup: Setup, cluster: Cluster) -> None:
    """With --accept-empty-ledger the worker starts at the committed offset with lanes that begin anew."""
    create_topics(cluster, setup.names)
    cluster.produce(setup.names.source, [job(7), job(1)])
    cluster.commit(setup.names.group, setup.names.source, {0: 1})
    run_once(setup, cluster, 2, "--accept-empty-ledger")
    journal = [json.loads(line) for line in (setup.directory / "journal.ndjson").read_text().splitlines()]
    assert [line["offset"] for line in journal if line["event"] == "result_saved"] == [1]
