"""`laneway.toml` and its layers: what a key may hold, who wins, and what a mistake says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from laneway.consumer.settings.load import Loaded, load
from laneway.consumer.settings.model import Settings
from laneway.errors import ConfigError

MINIMAL = """\
group = "reminders"
sources = ["invoices"]
[ledger]
replication = "local"
"""


def read(tmp_path: Path, text: str = MINIMAL, *sets: str, env: Mapping[str, str] | None = None) -> Loaded:
    """The settings of a file with this text, with nothing from the real environment."""
    path = tmp_path / "laneway.toml"
    path.write_text(text)
    return load(path, sets=sets, env=env or {})


def refused(tmp_path: Path, text: str = MINIMAL, *sets: str, env: Mapping[str, str] | None = None) -> str:
    """The message of the ConfigError this file ends in."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, *sets, env=env)
    return str(caught.value)


def settings(tmp_path: Path, text: str = "", *sets: str, env: Mapping[str, str] | None = None) -> Settings:
    """Settings of the minimal file with more tables behind it."""
    return read(tmp_path, MINIMAL + text, *sets, env=env).settings


def test_the_minimal_file_has_the_documented_defaults(tmp_path: Path) -> None:
    """A file with group and sources gets every default of the guide."""
    got = settings(tmp_path)
    assert (got.group, got.sources, got.bootstrap) == ("reminders", ("invoices",), "127.0.0.1:9092")
    assert got.retry.delays_ms == (1000, 4000)
    assert got.lanes.max_parked_bytes_per_partition == 2**30
    assert got.ledger.retention_ms == 30 * 86_400_000
    assert got.envelope.sequence_key == "json:/sequenceKey"
    assert got.topics.dlq == "{source}.{group}.dlq"


def test_a_flag_beats_x_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    """The value comes from the highest layer that wrote it, and the origin says which."""
    path = tmp_path / "laneway.toml"
    path.write_text(MINIMAL + "[lanes]\nworkers = 2\nmax_in_flight = 20\n[cycle]\nmax_ms = 7\n")
    env = {"LANEWAY_LANES__WORKERS": "3", "LANEWAY_LANES__MAX_IN_FLIGHT": "30", "LANEWAY_GROUP": "envy"}
    loaded = load(path, flags={"group": "flagged", "bootstrap": None}, sets=["lanes.workers=4"], env=env)
    origins = {line.key: (line.value, line.origin) for line in loaded.shown()}
    assert origins["group"] == ("flagged", "flag")
    assert origins["lanes.workers"] == (4, "-X")
    assert origins["lanes.max_in_flight"] == (30, "env LANEWAY_LANES__MAX_IN_FLIGHT")
    assert origins["cycle.max_ms"] == (7, str(path))
    assert origins["bootstrap"] == ("127.0.0.1:9092", "default")


def test_a_ledger_follows_its_partition_unless_written_otherwise(tmp_path: Path) -> None:
    """Nobody gets one-machine safety without having written so."""
    assert read(tmp_path, 'group = "g"\nsources = ["s"]\n').settings.ledger.replication == "changelog"
    assert "'changelog' or 'local'" in refused(tmp_path, MINIMAL.replace("local", "remote"))


def test_review_of_unknown_outcomes_needs_the_changelog(tmp_path: Path) -> None:
    """A promise that one machine cannot keep is refused where it was written, with both ways out."""
    message = refused(tmp_path, MINIMAL + 'on_unknown_outcome = "review"\n')
    assert f'{tmp_path / "laneway.toml"}:5: ledger.on_unknown_outcome "review" needs replication' in message
    assert 'write replication = "changelog" under [ledger], or take on_unknown_outcome out' in message
    got = read(tmp_path, MINIMAL.replace("local", "changelog"), "ledger.on_unknown_outcome=review").settings
    assert (got.ledger.replication, got.ledger.on_unknown_outcome) == ("changelog", "review")
    assert settings(tmp_path).ledger.on_unknown_outcome == "run-again"


@pytest.mark.parametrize(
    "key",
    ["lanes.max_crashes", "observe.listen", "processes"],
)
def test_a_key_that_does_not_work_yet_does_not_exist(tmp_path: Path, key: str) -> None:
    """Keys of later versions are unknown keys, not options that do nothing."""
    assert f"unknown key {key}" in refused(tmp_path, MINIMAL, f"{key}=1")


def test_an_empty_unknown_table_is_refused_too(tmp_path: Path) -> None:
    """`[observe]` with nothing in it is still a table Laneway does not know."""
    assert "unknown key observe" in refused(tmp_path, MINIMAL + "[observe]\n")


def test_an_unknown_key_names_file_line_and_the_nearest_key(tmp_path: Path) -> None:
    """A typo is answered with its place and the key that was meant."""
    message = refused(tmp_path, MINIMAL + "[lanes]\nworker = 3\n")
    assert f"{tmp_path / 'laneway.toml'}:6" in message
    assert "unknown key lanes.worker" in message
    assert "nearest known key is lanes.workers" in message


def test_an_unknown_environment_variable_is_refused(tmp_path: Path) -> None:
    """A misspelt LANEWAY_ variable is an error, not a setting that silently never applies."""
    message = refused(tmp_path, env={"LANEWAY_LANES__WORKRES": "3"})
    assert "env LANEWAY_LANES__WORKRES" in message
    assert "lanes.workers" in message


def test_service_variables_of_kubernetes_are_not_settings(tmp_path: Path) -> None:
    """A Kubernetes Service called laneway, or the test suite's variables, break no start."""
    env = {
        "LANEWAY_SERVICE_HOST": "10.0.0.1",
        "LANEWAY_PORT_9464_TCP_ADDR": "10.0.0.1",
        "LANEWAY_PORT": "tcp://10.0.0.1:9464",
        "LANEWAY_TEST_BOOTSTRAP": "x:1",
    }
    assert read(tmp_path, env=env).settings.group == "reminders"


def test_environment_text_becomes_what_the_key_holds(tmp_path: Path) -> None:
    """Numbers, JSON lists, plain lists, sizes and dotted Kafka names work from the environment."""
    got = settings(
        tmp_path,
        env={
            "LANEWAY_RETRY__DELAYS_MS": "[5, 6]",
            "LANEWAY_SOURCES": "invoices, orders",
            "LANEWAY_LEDGER__MIN_FREE": "1MiB",
            "LANEWAY_KAFKA__SECURITY_PROTOCOL": "SSL",
            "LANEWAY_GROUP": "123",
            "LANEWAY_LANES__FIRST_SEQUENCE": "0",
        },
    )
    assert got.retry.delays_ms == (5, 6)
    assert got.sources == ("invoices", "orders")
    assert got.ledger.min_free_bytes == 2**20
    assert got.kafka == {"security.protocol": "SSL"}
    assert (got.group, got.lanes.first_sequence) == ("123", 0)


# --- envelopes ---------------------------------------------------------------------------------


def test_a_written_envelope_table_assumes_no_order(tmp_path: Path) -> None:
    """Whoever writes [envelope] without sequence_key gets deduplication only."""
    got = settings(tmp_path, '[envelope]\nmessage_id = "header:id"\n')
    assert (got.envelope.sequence_key, got.envelope.sequence) == (None, None)
    assert got.envelope.effect_key == "json:/effectKey"


def test_none_switches_the_order_off_for_one_source(tmp_path: Path) -> None:
    """`sequence_key = "none"` in a source's own table leaves the other sources in order."""
    text = MINIMAL.replace('["invoices"]', '["invoices", "log.lines"]')
    text += '[source."log.lines".envelope]\nsequence_key = "none"\neffect_key = "position"\n'
    loaded = read(tmp_path, text)
    assert loaded.settings.envelope_of("log.lines").sequence_key is None
    assert loaded.settings.envelope_of("log.lines").effect_key == "position"
    assert loaded.settings.envelope_of("invoices").sequence_key == "json:/sequenceKey"
    assert {line.key: line.value for line in loaded.shown()}[
        "source.log.lines.envelope.sequence_key"
    ] == "none"


def test_none_by_x_switches_the_order_off_without_a_file(tmp_path: Path) -> None:
    """The defaults' order can be switched off where no table is written."""
    assert settings(tmp_path, "", "envelope.sequence_key=none").envelope.sequence is None


def test_none_switches_the_version_check_off(tmp_path: Path) -> None:
    """Records without a contract version can be consumed; every other envelope key must be a place."""
    assert settings(tmp_path, '[envelope]\nversion = "none"\n').envelope.version is None
    assert "envelope.payload 'none'" in refused(tmp_path, MINIMAL, "envelope.payload=none")


def test_an_ordered_source_needs_its_sequence(tmp_path: Path) -> None:
    """contiguous and increasing count something; arrival does not."""
    table = '[envelope]\nsequence_key = "key"\n'
    assert "envelope.sequence is missing" in refused(tmp_path, MINIMAL + table)
    assert settings(tmp_path, table, "lanes.order=arrival").envelope.sequence_key == "key"
    assert settings(tmp_path, "", "lanes.order=arrival").envelope.sequence is None


def test_a_sequence_without_its_key_is_refused(tmp_path: Path) -> None:
    """A number nobody would read is a mistake."""
    assert "would do nothing" in refused(tmp_path, MINIMAL + '[envelope]\nsequence = "json:/n"\n')


def test_an_override_for_a_topic_that_is_no_source_is_refused(tmp_path: Path) -> None:
    """A misspelt source name in an override is found."""
    text = MINIMAL + '[source.invoicse.envelope]\nversion = "json:/v"\n'
    assert "[source.invoicse] is not one of the sources" in refused(tmp_path, text)


def test_one_source_may_be_chosen_of_a_file_with_tables_for_others(tmp_path: Path) -> None:
    """--source of one topic passes over what the file says of the other ones."""
    file = tmp_path / "laneway.toml"
    file.write_text(MINIMAL + '[source.invoices.envelope]\nversion = "json:/v"\n')
    chosen = load(file, flags={"sources": ["orders"]}, env={}).settings
    assert chosen.sources == ("orders",)
    assert chosen.envelope_of("orders").version == "json:/version"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("message_id", "json:messageId"),
        ("message_id", "json:/a~2b"),
        ("message_id", "header:"),
        ("effect_key", "header:laneway-effect-key"),
        ("sequence_key", "position"),
        ("sequence", "value"),
        ("payload", "key"),
        ("version", ""),
        ("tombstones", "ignore"),
    ],
)
def test_a_place_that_cannot_be_read_is_refused(tmp_path: Path, key: str, value: str) -> None:
    """Every envelope rule is checked at load, not at the first record."""
    assert f"envelope.{key} {value!r}" in refused(tmp_path, MINIMAL, f"envelope.{key}={value}")


# --- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("2026-03-01T06:00:00Z", 1772344800000),
        ("2026-03-01T07:00:00+01:00", 1772344800000),
        ("1772344800000", 1772344800000),
    ],
)
def test_start_is_a_word_or_an_instant(tmp_path: Path, written: str, expected: object) -> None:
    """Words stay words; instants become epoch milliseconds."""
    assert settings(tmp_path, "", f"start={written}").start == expected


@pytest.mark.parametrize("written", ["2026-03-01T06:00:00", "yesterday", "2026-03-01"])
def test_start_without_a_zone_is_refused(tmp_path: Path, written: str) -> None:
    """A timestamp that means another instant on another machine is no timestamp."""
    assert "start" in refused(tmp_path, MINIMAL, f"start={written}")


@pytest.mark.parametrize(
    "item",
    [
        "ledger.retention=30 days",
        "ledger.min_free=1gb",
        "ledger.min_free=-1",
        "lanes.max_in_flight_bytes=1.5GiB",
        "lanes.workers=0",
        "lanes.workers=true",
        "lanes.workers=2.0",
        "retry.delays_ms=[0]",
        "retry.delays_ms=[\"1s\"]",
        "retry.temporary=TimeoutError",
        "bootstrap=localhost",
        "bootstrap=kafka://h:1",
        "group_protocol=share",
        "sources=^invoices.*",
        "sources=a,a",
        "topics.retry={source}.retry",
        "topics.dlq={topic}.{group}",
        "group=",
    ],
)  # fmt: skip
def test_values_are_parsed_strictly(tmp_path: Path, item: str) -> None:
    """What does not mean exactly one thing is refused, naming its key."""
    assert item.partition("=")[0].rpartition(".")[2] in refused(tmp_path, MINIMAL, item)


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    """One run of `config validate` shows every wrong value."""
    message = refused(tmp_path, MINIMAL + '[lanes]\nworkers = 0\norder = "random"\n')
    assert "lanes.workers 0" in message
    assert "lanes.order 'random'" in message


def test_unknown_and_refused_and_missing_keys_are_named_together(tmp_path: Path) -> None:
    """One run tells every mistake of a file, each with its own line and its own next step."""
    text = 'sources = ["invoices"]\n[lanes]\nworker = 3\ngroup = "g"\n[ledger]\nretention = "1d"\n'
    message = refused(tmp_path, text)
    path = tmp_path / "laneway.toml"
    assert message.startswith("2 mistakes")
    assert f"{path}:3: unknown key lanes.worker" in message
    assert f"{path}:4: unknown key lanes.group" in message
    mended = text.replace("worker = 3\n", "workers = 0\n").replace('group = "g"\n', "")
    message = refused(tmp_path, mended + '[kafka]\nacks = "1"\n')
    assert message.startswith("3 mistakes")
    assert f"{path}:7: [kafka] acks belongs to Laneway" in message
    assert f"{path}: group is missing" in message
    assert f"{path}:3: lanes.workers 0: " in message


def test_a_top_level_key_below_a_table_is_told_where_it_belongs(tmp_path: Path) -> None:
    """TOML gives a key to the table above it; whoever wrote `group` there is told to move it up."""
    message = refused(tmp_path, 'sources = ["s"]\n[ledger]\nreplication = "local"\ngroup = "g"\n')
    assert "unknown key ledger.group" in message
    assert "group belongs above the first [table]" in message


def test_a_group_that_no_topic_can_be_named_after_is_refused_by_its_own_name(tmp_path: Path) -> None:
    """Characters a topic may not have are blamed on `group`, where they were written."""
    message = refused(tmp_path, MINIMAL.replace("reminders", "my group"))
    assert message.startswith(f"{tmp_path / 'laneway.toml'}:1: group 'my group': has characters")


@pytest.mark.parametrize(
    ("flags", "inspect", "mend"), [({}, False, "-g and --source"), ({"sources": ["s"]}, True, "give -g")]
)
def test_without_a_file_it_is_said_where_one_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, object], inspect: bool, mend: str
) -> None:
    """No file and no flags: not a missing key, but no ./laneway.toml in this directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"no \./laneway\.toml here and no -c FILE") as caught:
        load(flags=flags, env={}, inspect=inspect)
    assert str(tmp_path) in str(caught.value)
    assert mend in caught.value.mend


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    """No file, and a file that is not TOML, say which file and what."""
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "absent.toml", env={})
    assert "is not TOML" in refused(tmp_path, "group = \n")


def test_inspection_needs_only_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-b` and `-g` are enough for a command that only looks."""
    monkeypatch.chdir(tmp_path)
    loaded = load(flags={"group": "g", "bootstrap": "b:1"}, env={}, inspect=True)
    assert (loaded.settings.group, loaded.settings.sources, loaded.path) == ("g", (), None)
    with pytest.raises(ConfigError, match=r"no \./laneway\.toml here and no -c FILE"):
        load(env={}, inspect=True)


# --- [kafka] -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "group.id",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.offset.reset",
        "bootstrap.servers",
        "group.protocol",
        "group.instance.id",
        "isolation.level",
        "partition.assignment.strategy",
        "transactional.id",
        "enable.idempotence",
        "enable.gapless.guarantee",
        "acks",
        "enable.partition.eof",
        "error_cb",
        "stats_cb",
    ],
)
def test_an_owned_kafka_key_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """What Laneway promises depends on these keys, so nobody else sets them."""
    message = refused(tmp_path, MINIMAL + f'[kafka]\n"{name}" = "x"\n')
    assert f"[kafka] {name} belongs to Laneway" in message
    assert ":6" in message


def test_cooperative_sticky_is_refused_with_its_reason(tmp_path: Path) -> None:
    """The reader learns what was seen and what to write instead."""
    message = refused(tmp_path, MINIMAL, "kafka.partition.assignment.strategy=cooperative-sticky")
    assert "stayed without partitions" in message
    assert 'group_protocol = "consumer"' in message


def test_session_timeout_is_allowed_only_with_the_classic_protocol(tmp_path: Path) -> None:
    """librdkafka refuses session.timeout.ms with group_protocol consumer, so the file is told first."""
    item = "kafka.session.timeout.ms=6000"
    assert settings(tmp_path, "", item).kafka == {"session.timeout.ms": "6000"}
    assert settings(tmp_path, "", "kafka.max.poll.interval.ms=60000").kafka
    assert "the broker decides it" in refused(tmp_path, MINIMAL, item, "group_protocol=consumer")


def test_secrets_come_from_files_and_environment_and_are_never_shown(tmp_path: Path) -> None:
    """References are resolved for the client; show prints the reference or ***, repr prints nothing."""
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    text = MINIMAL + (
        "[kafka]\n"
        f'"sasl.password" = "file:{secret}"\n"sasl.username" = "env:WHO"\n'
        '"ssl.key.password" = "plain-secret"\nsecurity.protocol = "SASL_SSL"\n'
    )
    loaded = read(tmp_path, text, env={"WHO": "me"})
    assert loaded.settings.kafka["sasl.password"] == "hunter2"
    assert loaded.settings.kafka["sasl.username"] == "me"
    shown = {line.key: line.value for line in loaded.shown()}
    assert shown["kafka.sasl.password"] == f"file:{secret}"
    assert shown["kafka.ssl.key.password"] == "***"
    assert shown["kafka.security.protocol"] == "SASL_SSL"
    assert "hunter2" not in repr(loaded.settings) + repr(shown)
    assert "plain-secret" not in repr(loaded.settings) + repr(shown)


def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    """A reference that leads nowhere stops the start, with the key and the place it points to."""
    assert "/no/such" in refused(tmp_path, MINIMAL + '[kafka]\n"sasl.password" = "file:/no/such"\n')
    assert "variable NOPE" in refused(tmp_path, MINIMAL + '[kafka]\n"sasl.password" = "env:NOPE"\n')
    assert "variable POD" in refused(tmp_path, 'instance_id = "env:POD"\n' + MINIMAL)


def test_a_wrong_kafka_value_is_not_repeated(tmp_path: Path) -> None:
    """A value under [kafka] may be a secret even where it is a mistake."""
    assert "hunter2" not in refused(tmp_path, MINIMAL + '[kafka]\n"sasl.password" = ["hunter2"]\n')


def test_settings_are_frozen(tmp_path: Path) -> None:
    """Nobody changes the settings of a running worker."""
    with pytest.raises(ValueError, match="frozen"):
        settings(tmp_path).group = "other"
