"""The settings that `demo` and `dev` give to their workers: as a file, and fit for an embedded cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneway.cli.child import write_settings
from laneway.consumer.embedded import GROUP_SETTINGS, EmbeddedCluster, on_embedded
from laneway.consumer.settings.load import load
from laneway.consumer.settings.model import Settings
from laneway.errors import LanewayError

LOCAL = {"ledger": {"replication": "local"}}
NO_ORDER = {"sequence_key": None, "sequence": None}


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"envelope": NO_ORDER},
        {"envelope": {"version": None, "payload": "value", "accepts": (1, 2)}},
        {"envelope": {"sequence": None}, "lanes": {"order": "arrival"}},
        {"lanes": {"first_sequence": "any", "order": "increasing", "max_in_flight_bytes": "1MiB"}},
        {"source": {"a.b": {"envelope": {**NO_ORDER, "effect_key": 'json:/say "it"'}}}},
        {"retry": {"delays_ms": (1, 2, 3), "temporary": ()}, "start": 1_700_000_000_000},
    ],
)
def test_a_worker_reads_the_same_settings_back(tmp_path: Path, told: dict[str, Any]) -> None:
    """Whatever the settings are, the laneway.toml written for a worker says exactly them."""
    settings = Settings.model_validate({"group": "g", "sources": ("a.b", "c"), **LOCAL, **told})
    assert load(write_settings(settings, tmp_path), env={}).settings == settings


def test_what_leads_to_a_real_cluster_is_left_out(tmp_path: Path) -> None:
    """On an embedded cluster credentials, protocol, start and other sources are replaced; how records are
    read, ordered and retried stays."""
    settings = Settings.model_validate(
        {
            "group": "g",
            "sources": ("a", "b"),
            "source": {"a": {"envelope": NO_ORDER}, "b": {"envelope": NO_ORDER}},
            "bootstrap": "kafka.example:9093",
            "group_protocol": "consumer",
            "instance_id": "pod-1",
            "start": "latest",
            "kafka": {"security.protocol": "SASL_SSL", "sasl.password": "secret"},
            "lanes": {"order": "increasing"},
            "retry": {"delays_ms": (7,)},
            **LOCAL,
        }
    )
    here = on_embedded(settings, "127.0.0.1:1", group="dev", sources=("a",), state_dir=tmp_path)
    assert (here.bootstrap, here.group, here.sources) == ("127.0.0.1:1", "dev", ("a",))
    assert (here.group_protocol, here.instance_id, here.start) == ("classic", None, "earliest")
    assert here.kafka == GROUP_SETTINGS
    assert list(here.source) == ["a"]
    assert (here.lanes, here.retry) == (settings.lanes, settings.retry)
    assert load(write_settings(here, tmp_path), env={}).settings == here


def test_a_record_that_is_refused_is_told() -> None:
    """What the embedded cluster does not take is an error for whoever published it, never a silent loss."""
    with EmbeddedCluster() as cluster:
        positions: list[tuple[int, int]] = []
        for _ in range(3):
            cluster.publish("t", 2, b"v", report=lambda number, offset: positions.append((number, offset)))
        cluster.flush()
        assert positions == [(2, 0), (2, 1), (2, 2)]
        with pytest.raises(LanewayError):
            cluster.publish("t", 2, b"x" * 2_000_000)
        with pytest.raises(LanewayError):
            _publish_and_wait(cluster, partition=99)


def _publish_and_wait(cluster: EmbeddedCluster, *, partition: int) -> None:
    cluster.publish("t", partition, b"v")
    cluster.flush()
