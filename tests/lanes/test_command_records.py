"""What comes on the commands topic: garbage, forgeries and hostile texts stop nobody; each has an answer."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneway.lanes.command import ACTIONS, Command, Letter, Repeat, encode_command, packed
from laneway.lanes.command_record import read_command
from laneway.lanes.envelope import MAX_TEXT_BYTES
from laneway.lanes.failures import MAX_REASON_CHARS
from laneway.lanes.record import Channel, Headers, Record
from tests.lanes.cases import situation
from tests.lanes.driver import HOME
from tests.lanes.operated import Operated

GOOD: dict[str, Any] = {
    "format": 1,
    "commandId": "c",
    "action": "skip",
    "actor": "ann",
    "reason": "because",
    "group": HOME.group,
    "topic": HOME.topic,
    "partition": HOME.partition,
    "lane": "ka",
    "caseId": "rejected-1",
    "version": 1,
}

BAD: dict[str, tuple[bytes | None, str]] = {
    "nothing": (None, "broken-command"),
    "empty": (b"", "broken-command"),
    "garbage": (b"\xff\x00garbage", "broken-command"),
    "a number": (b"7", "broken-command"),
    "a list": (b"[]", "broken-command"),
    "deep": (b"[" * 100_000, "broken-command"),
    "huge": (b'"' + b"x" * 2_000_000 + b'"', "broken-command"),
    "half a surrogate": (b'{"commandId":"\\ud800"}', "broken-command"),
    "no members": (b"{}", "broken-command"),
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another format": ({"format": 2}, "unknown-command"),
    "another action": ({"action": "explode"}, "unknown-command"),
    "a later member": ({"urgency": 3}, "broken-command"),
    "another group": ({"group": "other"}, "foreign-command"),
    "another topic": ({"topic": "other"}, "foreign-command"),
    "another partition": ({"partition": 4}, "foreign-command"),
    "no id": ({"commandId": ""}, "broken-command"),
    "no lane": ({"lane": ""}, "broken-command"),
    "a lane of no kind": ({"lane": "xa"}, "broken-command"),
    "no case": ({"caseId": ""}, "broken-command"),
    "a text for a number": ({"version": "1"}, "broken-command"),
    "a huge id": ({"commandId": "x" * 10_000}, "broken-command"),
    "a huge lane": ({"lane": "k" + "x" * 10_000}, "broken-command"),
    "a huge case": ({"caseId": "x" * 10_000}, "broken-command"),
    "no value to replay with": ({"action": "replay-with"}, "broken-command"),
    "a value that is no base64": ({"action": "replay-with", "value": "%"}, "broken-command"),
    "no number to wait for": ({"action": "set-next"}, "broken-command"),
    "a number below all": ({"action": "set-next", "sequence": -1}, "broken-command"),
    "a number beyond all": ({"action": "set-next", "sequence": 2**63}, "broken-command"),
    "a number beyond the format": ({"action": "set-next", "sequence": 10**40}, "broken-command"),
}


def read(value: bytes | None, headers: Headers = ()) -> Record:
    """A record of the commands topic, as intake fills it."""
    record = Record(Channel.COMMANDS, 5, b"k", value, headers)
    read_command(record, HOME)
    return record


def test_a_command_survives_its_topic() -> None:
    """What was sent is what the owner reads, the corrected bytes exactly (S18)."""
    sent = Command(
        1, "c", "replay-with", "ann", "why", "reminders", "invoices", 3, "ka", "id", 1, value=b"\x00\xff"
    )
    for record in (read(encode_command(sent)), read(*packed(sent))):
        assert record.command == sent
        assert (record.lane, record.message_id, record.fault) == ("ka", "c", "")


@pytest.mark.parametrize("value", [None, b"", b"\x00\xff" * 500_000])
def test_what_a_command_carries_is_no_longer_than_it_was(value: bytes | None) -> None:
    """A record that fits its source fits the commands topic: its bytes go as they are, in a header."""
    letter = Letter("f", "e", 1, 1, b"k", value, (("h", b"\xff"), ("h", None)), -5)
    repeat = Repeat("e", 1, 1, "", b"k", value)
    for action, carried in (("replay-letter", {"letter": letter}), ("rerun", {"repeat": repeat})):
        sent = Command(1, "c", action, "ann", "why", "reminders", "invoices", 3, "ka", **carried)
        packet = packed(sent)
        record = read(*packet)
        assert record.command == sent
        assert record.size_bytes < len(value or b"") + 1000


@pytest.mark.parametrize(
    "letter",
    [
        {"forwardId": "", "effectKey": "e", "offset": 1, "attempt": 1},
        {"forwardId": "f", "effectKey": "", "offset": 1, "attempt": 1},
        {"forwardId": "f", "effectKey": "e" * (MAX_TEXT_BYTES + 2), "offset": 1, "attempt": 1},
        {"forwardId": "f", "effectKey": "e", "offset": -1, "attempt": 1},
        {"forwardId": "f", "effectKey": "e", "offset": 1, "attempt": 2**63},
        {"forwardId": "f", "effectKey": "e", "offset": 1, "attempt": 1, "timestampMs": 2**70},
        {"forwardId": "f", "effectKey": "e", "offset": 1, "attempt": 1, "headers": [["h" * 9999, None]]},
        {"forwardId": "f", "effectKey": "e", "offset": 1, "attempt": 1, "key": "no base64"},
        None,
    ],
)
def test_a_letter_that_is_none_of_ours_is_refused(letter: dict[str, Any] | None) -> None:
    """What no ledger could hold, and what nobody could have meant, is no command."""
    said = GOOD | {"action": "replay-letter", "caseId": "", "letter": letter}
    record = read(json.dumps(said).encode())
    assert (record.command, record.fault) == (None, "broken-command")


@pytest.mark.parametrize("name", BAD)
def test_bytes_that_are_no_command_are_refused(name: str) -> None:
    """Case 26: any garbage is settled after one look, with an answer, and the next command is applied."""
    value, fault = BAD[name]
    driver, case = situation("rejected")
    garbage = driver.command_raw(value)
    driver.applied("skip", case)
    answer = driver.answer(garbage)
    assert answer.event == "refused"
    assert fault in answer.why
    assert driver.effects() == ["a1", "a3"]
    driver.check_at_rest()


@pytest.mark.parametrize("name", WRONG)
def test_commands_that_are_not_for_this_owner_or_make_no_sense_are_refused(name: str) -> None:
    """Each in a fixed word; nothing of them comes near a lane."""
    change, fault = WRONG[name]
    record = read(msgspec.json.encode(GOOD | change))
    assert record.command is None
    assert record.fault == fault
    driver = Operated()
    driver.command_raw(msgspec.json.encode(GOOD | change))
    driver.rest()
    assert [answer.event for answer in driver.answers()] == ["refused"]
    driver.check_at_rest()


def test_hostile_words_are_bounded_and_made_visible() -> None:
    """Actor and reason are claims that people read: no terminal obeys them, no topic fills up with them."""
    hostile = "\x1b[2J\u202e" + "x" * 100_000
    record = read(msgspec.json.encode(GOOD | {"actor": hostile, "reason": hostile}))
    assert record.command is not None
    for said in (record.command.actor, record.command.reason):
        assert len(said) <= MAX_REASON_CHARS
        assert said.isprintable()


def test_the_longest_key_can_be_commanded() -> None:
    """Bounds of commands are those of envelopes: no lane is out of reach."""
    driver = Operated()
    driver.applied("pause", lane="x" * MAX_TEXT_BYTES)
    driver.applied("resume", lane="x" * MAX_TEXT_BYTES)
    driver.check_at_rest()


@settings(max_examples=300, deadline=None)
@given(
    action=st.sampled_from([*ACTIONS, "", "x"]),
    texts=st.lists(st.text(st.characters(exclude_categories=()), max_size=30), min_size=4, max_size=4),
    number=st.one_of(st.none(), st.integers(-(2**70), 2**70)),
    version=st.integers(-(2**70), 2**70),
    value=st.one_of(st.none(), st.binary(max_size=20)),
)
def test_any_command_is_settled_with_one_answer(
    action: str, texts: list[str], number: int | None, version: int, value: bytes | None
) -> None:
    """Whoever may write to the topic may write nonsense: it is answered, and the lane goes on."""
    driver, case = situation("rejected")
    lane, case_id, actor, result = texts
    members = GOOD | {
        "action": action,
        "lane": lane or case.lane,
        "caseId": case_id or case.case_id,
        "actor": actor,
        "reason": actor,
        "resultKey": result,
        "version": version,
    }
    if number is not None:
        members["sequence"] = number
    if value is not None:
        members["value"] = base64.b64encode(value).decode()
    driver.command_raw(json.dumps(members).encode())
    driver.rest()
    assert len(driver.answers()) == 1
    if driver.cases():
        assert driver.effects() == ["a1"]
        driver.rest()
        paused = driver.lane("a")
        assert paused is not None
        driver.applied("skip", driver.case())
    driver.check_at_rest()
