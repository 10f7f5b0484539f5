"""Cases: an id that never changes or returns, a question in plain words, and only sensible actions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import msgspec
import pytest

from laneway.lanes.case import REASONS, Case, case_id, required_check


@dataclass(frozen=True)
class Expected:
    """What a person may do, by hand from the protocol."""

    holding: str
    loose: str = ""


EXPECTED = {
    "sequence-gap": Expected("skip set-next"),
    "sequence-stale": Expected("", "mark-done discard"),
    "effect-conflict": Expected("replay replay-with skip discard mark-done", "mark-done discard"),
    "outcome-unknown": Expected("mark-done run-again discard", "mark-done discard"),
    "attempts-exhausted": Expected("replay replay-with skip discard mark-done"),
    "unclassified-failure": Expected("replay replay-with skip discard mark-done"),
    "review-requested": Expected("replay replay-with skip discard mark-done"),
    "rejected": Expected("replay replay-with skip discard mark-done"),
    "unknown-contract-version": Expected("replay replay-with skip discard mark-done"),
}


def a_case(reason: str, *, holds: bool) -> Case:
    """A case of this reason."""
    return Case("id", reason, "", holds, "ka", 3, "e", "m", 7, 1, "check?", 1000)


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_permits_these_actions(reason: str) -> None:
    """Each reason has its bounded set of actions; one that holds nothing is never run again (S18)."""
    expected = EXPECTED[reason]
    assert a_case(reason, holds=True).actions == tuple(expected.holding.split())
    assert a_case(reason, holds=False).actions == tuple(expected.loose.split())
    assert not {"replay", "replay-with", "run-again"} & set(a_case(reason, holds=False).actions)


def test_no_reason_is_missing() -> None:
    """The table and the expectations know the same reasons."""
    assert set(REASONS) == set(EXPECTED)


@pytest.mark.parametrize("reason", REASONS)
def test_a_required_check_is_a_question_with_the_names_filled_in(reason: str) -> None:
    """A person reads one question about this effect or number, with no placeholder left (S18)."""
    text = required_check(reason, effect_key="job-7", sequence=41, lane="customer-1")
    assert "?" in text
    assert "{" not in text
    assert "job-7" in text or "41" in text


def test_names_with_braces_are_only_names() -> None:
    """An effect key is never taken for a placeholder."""
    text = required_check("rejected", effect_key="{lane}{0}", sequence=1, lane="x")
    assert "{lane}{0}" in text


def test_an_id_is_derived_and_tells_its_reason() -> None:
    """The same event gives the same id after any crash."""
    ident = case_id("sequence-gap", "invoices", 3, "ka", "7")
    assert ident == case_id("sequence-gap", "invoices", 3, "ka", "7")
    assert ident.startswith("sequence-gap-")


def test_ids_of_different_cases_differ() -> None:
    """Reason, topic, partition, lane and event all count, and parts do not run into each other."""
    parts = product(("rejected", "sequence-gap"), ("t", "t1"), (1, 11), ("ka", "kb"), ("1", "1/1", "11"))
    idents = [case_id(*part) for part in parts]
    assert len(set(idents)) == len(idents) == 48


def test_a_case_is_kept_as_an_array_of_fixed_length() -> None:
    """A case survives its encoding; a longer one of a later format is refused, not guessed."""
    case = a_case("rejected", holds=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(case), type=Case) == case
    longer = [*msgspec.msgpack.decode(msgspec.msgpack.encode(case)), "more"]
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(longer), type=Case)
