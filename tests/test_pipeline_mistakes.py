"""What somebody may write wrong in `Pipeline(...)`, and what he is told to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from laneway import Pipeline
from laneway.errors import AppImportError


def test_a_payload_in_quotes_is_refused_at_import() -> None:
    """A model's name as text would fail for the first record; it is refused where it was written."""
    models: list[Any] = ["Reminder", {("invoices", 1): "Reminder"}]
    for model in models:
        with pytest.raises(AppImportError, match="text that names one") as refused:
            Pipeline(payload=model)
        assert refused.value.mend == "write it without quotes: Pipeline(payload=Reminder)"


def test_the_decorator_with_parentheses_is_refused_in_our_words() -> None:
    """`@pipeline.handler()` says what to write, not which argument Python misses."""
    with pytest.raises(AppImportError) as refused:
        Pipeline(payload=dict).handler()
    assert "without parentheses" in refused.value.mend


@pytest.mark.parametrize(
    ("temporary", "mend"),
    [
        (["ConnectionError"], "name the class itself, without quotes: temporary=[ConnectionError]"),
        ([ConnectionError()], "name the class itself: temporary=[ConnectionError]"),
        (ConnectionError, "write it as temporary=[ConnectionError]"),
        ("ConnectionError", "write it as temporary=[ConnectionError]"),
    ],
)
def test_what_is_no_list_of_exception_classes_is_refused_with_a_next_step(temporary: Any, mend: str) -> None:
    """Whatever else stands in `temporary` is answered with how to write it."""
    with pytest.raises(AppImportError) as refused:
        Pipeline(temporary=temporary)
    assert refused.value.mend == mend
