"""The ledger under test: RocksDB's and the twin's, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.subjects import MemorySubject, RocksSubject, Subject


@pytest.fixture(params=["rocks", "memory"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    made: Subject = RocksSubject(tmp_path / "store") if request.param == "rocks" else MemorySubject()
    yield made
    made.end()
