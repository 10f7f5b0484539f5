"""A ledger that is large before the measurement begins: filled once through the store, a copy for each run.

Filling it record by record through a worker would take minutes for ten million effects. The effects are
succeeded ones of the same keys as those measured, so that the new ones fall among them and not beside them.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from laneway.consumer import topics
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.settings.model import Settings
from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.record import keyed_lane
from laneway.store import codec, rocks
from laneway.store.ledger import Ledger
from laneway.store.port import Change, ChangelogMark, StoreIdentity
from laneway.store.state_dir import StateDir

BATCH: Final = 5_000
MERGE_S: Final = 120.0
LOOK_S: Final = 0.1
QUIET_LOOKS: Final = 10
_NUMBER_FROM: Final = 1_000_000
"""Behind any sequence of the records that are measured."""
_NOBODY: Final = StoreIdentity("prefill", "prefill", 0)


def fill(place: Path, effects: int, keys: int) -> None:
    """Make a store with that many effects."""
    ledger = Ledger.open(place, _NOBODY)
    ledger.begin_restore()
    # Of now: what is past retention would be forgotten at once, beside what is measured.
    now_ms = time.time_ns() // 1_000_000
    for first in range(0, effects, BATCH):
        changes = sorted(_changes(first, min(first + BATCH, effects), keys, now_ms))
        ledger.apply_changes(changes, ChangelogMark("", 0, now_ms))
    ledger.end_restore()
    ledger.close()
    _let_it_merge(place)


def _let_it_merge(place: Path) -> None:
    """What filling in a few seconds owes is paid here: a ledger that grew in weeks owes it to nobody."""
    store = rocks.open_primary(place)
    deadline_s = time.monotonic() + MERGE_S
    quiet = 0
    # One merge may be the reason for the next, so it has to be quiet for a while.
    while quiet < QUIET_LOOKS and time.monotonic() < deadline_s:
        quiet = 0 if store.is_merging() else quiet + 1
        time.sleep(LOOK_S)
    store.close()


def _changes(first: int, end: int, keys: int, now_ms: int) -> Iterator[Change]:
    for number in range(first, end):
        key = number % keys
        effect = Effect(
            EffectState.SUCCEEDED, f"p-{number:08}", number, keyed_lane(f"customer-{key:06}"), number + 1, 1,
            number.to_bytes(16), 1, 1, None, "", now_ms,
        )  # fmt: skip
        effect_key = f"reminder-{key:06}-{_NUMBER_FROM + number // keys}"
        yield codec.effect_key(effect_key), codec.encode(effect)


def adopt(place: Path, settings: Settings, cluster: Cluster) -> None:
    """Lay a copy under the ledger of the only partition, up to date with its changelog, which is empty."""
    (names,) = topics.all_topic_names(settings)
    found = cluster.topics([names.source, names.retry, names.ledger])
    source, retry, ledger = (found[name].topic_id for name in (names.source, names.retry, names.ledger))
    state_dir = StateDir.claim(
        settings.state_dir, settings.group, cluster.cluster_id(), {names.source: (source, retry)}
    )
    path = state_dir.store_path(names.source, 0)
    _copy(place, path)
    store = rocks.open_primary(path)
    identity = StoreIdentity(settings.group, names.source, 0, source, retry)
    store.put(codec.MARKER_KEY, codec.encode_marker(identity))
    mark = ChangelogMark(ledger, 0, time.time_ns() // 1_000_000)
    store.put(codec.CHANGELOG_KEY, codec.encode(mark))
    store.sync()
    store.close()


def _copy(place: Path, path: Path) -> None:
    """Tables never change, so they are linked; everything else is copied."""
    path.mkdir(parents=True, mode=0o700)
    for each in place.iterdir():
        if each.suffix == ".sst":
            os.link(each, path / each.name)
        elif each.is_file() and each.name != "LOCK":
            shutil.copy2(each, path / each.name)
