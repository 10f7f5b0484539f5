"""What all tests of the simulation share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What workers say to people is of no interest here, and of interest again behind it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
