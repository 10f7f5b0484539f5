"""Garbage on a real topic: every kind ends in its documented place, after one attempt, harming nobody.

The places are those of docs/bad-records.md. All kinds stand in one partition, between good records of
other lanes; each carries a secret that must not be found anywhere but in the DLQ.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Message

from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.kafka import KafkaBroker
from tests.broker.worker_process import WorkerProcess, create_companions, settings_of
from tests.waiting import eventually

NEEDLE = "Gudrun-4711-confidential"
FOREIGN = [("trace", b"\xff\xfe" + NEEDLE.encode()), ("trace", None), ("laneway-forged", b"me")]
"""Broken bytes, a null, a repeated name; and a `laneway-` header, which is nobody's but ours."""
FIVE_MIB = 5 * 2**20
KEY = b"key-\xff"

APP = """
from pydantic import BaseModel

from laneway import Pipeline


class Job(BaseModel):
    number: int


pipeline = Pipeline(payload=Job)


@pipeline.handler
def handle(delivery):
    return f"done/{delivery.effect_key}"
"""


def value_of(sequence_key: object = "z", sequence: object = 1, **changed: object) -> bytes:
    """A value whose payload holds the secret; a changed field of None is left out."""
    ident = f"{sequence_key}"[:40]
    fields: dict[str, object] = {
        "messageId": f"m-{ident}",
        "effectKey": f"e-{ident}",
        "sequenceKey": sequence_key,
        "sequence": sequence,
        "version": 1,
        "payload": {"number": 1, "name": NEEDLE},
        **changed,
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


HUGE_NUMBER = value_of("huge").replace(b'"sequence": 1', b'"sequence": 9' + b"9" * 5000)
UNREADABLE: dict[str, tuple[bytes | None, str]] = {
    "not UTF-8": (b'{"messageId": "\xff' + NEEDLE.encode() + b'"}', "undecodable-json"),
    "not JSON": (NEEDLE.encode() + b"{", "undecodable-json"),
    "empty": (b"", "undecodable-json"),
    "null": (None, "tombstone"),
    "5 MiB of noise": (NEEDLE.encode() + os.urandom(FIVE_MIB), "undecodable-json"),
    "an array": (json.dumps([NEEDLE]).encode(), "missing-field: message_id at json:/messageId"),
    "a number": (b"17", "missing-field: message_id at json:/messageId"),
    "another object": (json.dumps({"name": NEEDLE}).encode(), "missing-field: message_id at json:/messageId"),
    "nested too deep": (b"[" * 100_000, "undecodable-json"),
    "an id that is a number": (
        value_of("id", messageId=17),
        "mistyped-field: message_id at json:/messageId is a number",
    ),
    "no payload": (value_of("bare", payload=None), "missing-field: payload at json:/payload"),
    "missing sequence": (value_of("none", None), "missing-field: sequence at json:/sequence"),
    "negative sequence": (value_of("minus", -1), "out-of-range-field: sequence at json:/sequence"),
    "huge sequence": (value_of("big", 2**63), "out-of-range-field: sequence at json:/sequence"),
    "5,001 digits of sequence": (HUGE_NUMBER, "out-of-range-field: sequence at json:/sequence"),
    "float sequence": (
        value_of("float", 1.0),
        "mistyped-field: sequence at json:/sequence is a number with a fraction or exponent",
    ),
    "string sequence": (value_of("text", "1"), "mistyped-field: sequence at json:/sequence is a string"),
    "missing sequence key": (value_of(None), "missing-field: sequence_key at json:/sequenceKey"),
    "sequence key of 0 bytes": (value_of(""), "empty-field: sequence_key at json:/sequenceKey"),
    "sequence key of 10 kB": (value_of("k" * 10_000), "oversized-field: sequence_key at json:/sequenceKey"),
    "half a surrogate pair": (value_of("half").replace(b'"half"', b'"\\ud800"'), "undecodable-json"),
}
IN_TURN: dict[str, tuple[bytes, str]] = {
    "unknown version": (value_of("v9", version=9), "unknown-contract-version"),
    "payload of another model": (value_of("odd", payload={"number": NEEDLE}), "invalid-payload"),
}
USABLE: dict[str, bytes] = {
    "sequence key with control characters": value_of("a\x00\x1b[31m\n\u202e"),
    "5 MiB that can be read": value_of("long", payload={"number": 1, "text": "x" * FIVE_MIB}),
    "nothing wrong": value_of("good"),
}
# Where the payload did not fit, and how; never with what.
ERROR_CLASS = {"payload of another model": "number: int_parsing"}
KINDS = [*UNREADABLE, *IN_TURN]


@dataclass
class Story:
    """What one worker made of all kinds of garbage at once.

    Attributes:
        sent: by kind, the value and its offset.
        said: everything a person, a log collector or a reviewer gets to see.
    """

    names: Names
    sent: dict[str, tuple[bytes | None, int]]
    journal: list[dict[str, Any]]
    dlq: dict[int, list[Message]]
    review: list[Message]
    committed: dict[int, int | None]
    said: bytes

    def events(self, offset: int) -> list[str]:
        """The journal's events of one record, in order."""
        return [line["event"] for line in self.journal if line["offset"] == offset]


@pytest.fixture(scope="module")
def story(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """All kinds on one partition, good records of a lane of their own between them; one worker's run."""
    directory = tmp_path_factory.mktemp("garbage")
    (directory / "app.py").write_text(APP)
    tag = os.urandom(5).hex()
    names = Names(f"src-{tag}", f"grp-{tag}")
    cluster = Cluster(kafka.bootstrap)
    cluster.create_topic(names.source, 1, {"max.message.bytes": str(8 * 2**20)})
    settings = settings_of(kafka.bootstrap, names, directory / "state")
    create_companions(settings, directory)
    values = {**{kind: value for kind, (value, _) in (UNREADABLE | IN_TURN).items()}, **USABLE}
    records = []
    for number, value in enumerate(values.values(), start=1):
        records.append(Outgoing(value, KEY, FOREIGN))
        records.append(Outgoing(value_of("between", number, effectKey=f"b{number}"), b"between"))
    positions = cluster.produce(names.source, records)
    sent = {
        kind: (value, at.offset) for (kind, value), at in zip(values.items(), positions[::2], strict=True)
    }
    with WorkerProcess("app:pipeline", settings, directory=directory) as worker:
        worker.start()
        eventually(
            lambda: cluster.committed(names.group, names.source)[0] == len(records),
            60,
            "the whole partition to be committed",
            poll_s=0.2,
        )
        worker.stop()
    dlq: dict[int, list[Message]] = {}
    for message in cluster.read_topic(f"{names.source}.{names.group}.dlq"):
        dlq.setdefault(int(ours(message)["origin-offset"]), []).append(message)
    review = cluster.read_topic(f"{names.source}.{names.group}.review")
    said = worker.stderr_path.read_bytes() + json.dumps(worker.journal()).encode()
    for message in review:
        said += (message.key() or b"") + (message.value() or b"")
        said += repr(message.headers()).encode()
    committed = cluster.committed(names.group, names.source)
    return Story(names, sent, worker.journal(), dlq, review, committed, said)


def ours(message: Message) -> dict[str, str]:
    """Our headers of a record, without their prefix; each occurs once."""
    found = [(name, value) for name, value in headers_of(message) if name.startswith("laneway-")]
    assert len(dict(found)) == len(found), found
    return {name.removeprefix("laneway-"): (value or b"").decode() for name, value in found}


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """A record's headers; what the client returns is typed too widely."""
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_dead_lettered_whole_after_one_attempt(story: Story, kind: str) -> None:
    """One DLQ record: original bytes, foreign headers, ours as documented (case 26, S9)."""
    value, offset = story.sent[kind]
    reason = (UNREADABLE | IN_TURN)[kind][1]
    [letter] = story.dlq[offset]
    assert (letter.key(), letter.value()) == (KEY, value)
    foreign = [header for header in headers_of(letter) if not header[0].startswith("laneway-")]
    assert foreign == FOREIGN[:2]
    told = ours(letter)
    identity = {"message-id", "effect-key", "sequence-key", "sequence", "case-id"}
    expected = {
        "format": "1",
        "kind": "dlq",
        "origin-topic": story.names.source,
        "origin-partition": "0",
        "origin-offset": str(offset),
        "group": story.names.group,
        "attempt": "1",
        "reason": reason,
        "error-class": ERROR_CLASS.get(kind, ""),
        "payload-sha256": hashlib.sha256(value or b"").hexdigest(),
    }
    assert {name: told[name] for name in expected} == expected
    measured = {"forward-id", "origin-timestamp", "first-failed-at", "failed-at"}
    assert told.keys() == expected.keys() | measured | (identity if kind in IN_TURN else set())


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_has_no_identity_never_meets_the_handler(story: Story, kind: str) -> None:
    """An unreadable record is received once, quarantined, acknowledged, and never run (case 4)."""
    assert story.events(story.sent[kind][1]) == ["received", "quarantined", "ack_sent"]


def test_an_unknown_version_is_refused_unseen_and_holds_its_lane(story: Story) -> None:
    """An unknown contract version goes to the DLQ in its turn, without a run, and holds its key (S5)."""
    offset = story.sent["unknown version"][1]
    assert story.events(offset) == ["received", "quarantined", "review_opened", "lane_held", "ack_sent"]


def test_only_readable_records_open_cases(story: Story) -> None:
    """A case is opened for each record that had a turn, and for nothing else."""
    opened = [json.loads(message.value() or b"") for message in story.review]
    assert sorted(case["sequenceKey"] for case in opened) == ["odd", "v9"]


@pytest.mark.parametrize("kind", USABLE)
def test_what_only_looks_odd_is_work_like_any_other(story: Story, kind: str) -> None:
    """Control characters in a key and 5 MiB of payload are handled, not refused."""
    events = story.events(story.sent[kind][1])
    assert events == ["received", "running", "result_saved", "ack_sent"]


def test_other_lanes_run_on_in_order(story: Story) -> None:
    """The lane between the garbage ran every record once, in order, and everything is committed."""
    done = [
        line["sequence"]
        for line in story.journal
        if line["event"] == "result_saved" and line["sequenceKey"] == "between"
    ]
    assert done == list(range(1, len(story.sent) + 1))
    assert story.committed == {0: 2 * len(story.sent)}
    assert sorted(story.dlq) == sorted(story.sent[kind][1] for kind in KINDS)


def test_nobody_gets_to_see_a_payload(story: Story) -> None:
    """Journal, standard error and review topic hold no byte of any payload or header value (invariant 10)."""
    assert b"received" in story.said
    assert b"caseId" in story.said
    assert NEEDLE.encode() not in story.said
    assert b"xxxxxxxx" not in story.said


def test_headers_that_are_read_are_judged_like_fields(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """Ids in headers: broken bytes are a binary id as good as any; a sequence of no digits is the DLQ's."""
    (tmp_path / "app.py").write_text("def handle(delivery):\n    return delivery.effect_key\n")
    cluster.create_topic(names.source, 1)
    envelope = {
        "message_id": "header:id",
        "effect_key": "header:id",
        "sequence_key": "key",
        "sequence": "header:seq",
        "version": "none",
        "payload": "value",
    }
    settings = settings_of(kafka.bootstrap, names, tmp_path / "state", envelope=envelope)
    create_companions(settings, tmp_path)
    cluster.produce(
        names.source,
        [
            Outgoing(b"\xff\x00", b"\x00\xff", [("id", b"\xff\xfe"), ("seq", b"1")]),
            Outgoing(b"{}", b"k", [("id", b"a"), ("seq", b"\xff")]),
            Outgoing(b"{}", b"k", [("id", None), ("seq", b"1")]),
            Outgoing(b"{}", None, [("id", b"b"), ("seq", b"1")]),
        ],
    )
    with WorkerProcess("app:handle", settings, directory=tmp_path) as worker:
        worker.start()
        eventually(lambda: cluster.committed(names.group, names.source) == {0: 4}, 30, "the end", poll_s=0.2)
        worker.stop()
    saved = [line for line in worker.journal() if line["event"] == "result_saved"]
    assert [(line["offset"], line["effectKey"], line["sequenceKey"]) for line in saved] == [
        (0, "b64://4=", "b64:AP8=")
    ]
    letters = cluster.read_topic(f"{names.source}.{names.group}.dlq")
    assert [(ours(letter)["origin-offset"], ours(letter)["reason"]) for letter in letters] == [
        ("1", "mistyped-field: sequence at header:seq is not decimal digits"),
        ("2", "missing-field: message_id at header:id"),
        ("3", "missing-field: sequence_key at key"),
    ]


def test_a_header_name_that_no_client_can_read_is_no_crash_loop(
    kafka: KafkaBroker, cluster: Cluster, names: Names, tmp_path: Path
) -> None:
    """A header's name with broken bytes: the DLQ after one attempt, and the next record runs (case 26)."""
    (tmp_path / "app.py").write_text(APP)
    cluster.create_topic(names.source, 1)
    settings = settings_of(kafka.bootstrap, names, tmp_path / "state")
    create_companions(settings, tmp_path)
    produce_raw(kafka.bootstrap, names.source, value_of("raw"), b"a\xff\xfe")
    cluster.produce(names.source, [Outgoing(value_of("good"))])
    with WorkerProcess("app:pipeline", settings, directory=tmp_path) as worker:
        worker.start()
        eventually(lambda: cluster.committed(names.group, names.source) == {0: 2}, 30, "the end", poll_s=0.2)
        worker.stop()
    [letter] = cluster.read_topic(f"{names.source}.{names.group}.dlq")
    assert letter.value() == value_of("raw")
    assert ours(letter)["reason"] == "undecodable-headers"
    saved = [line["effectKey"] for line in worker.journal() if line["event"] == "result_saved"]
    assert saved == ["e-good"]


def produce_raw(bootstrap: str, topic: str, value: bytes, header_name: bytes) -> None:
    """Produces one record by hand (Produce version 7, partition 0): no client writes such a name."""
    header = varint(len(header_name)) + header_name + varint(-1)
    body = b"\0" + varint(0) + varint(0) + varint(-1) + varint(len(value)) + value + varint(1) + header
    fields = struct.pack(">hiqqqhii", 0, 0, 0, 0, -1, -1, -1, 1) + varint(len(body)) + body
    batch = struct.pack(">ibI", -1, 2, crc32c(fields)) + fields
    records = struct.pack(">qi", 0, len(batch)) + batch
    request = struct.pack(">hhihhhiih", 0, 7, 1, -1, -1, -1, 10_000, 1, len(topic)) + topic.encode()
    request += struct.pack(">iii", 1, 0, len(records)) + records
    host, port = bootstrap.partition(",")[0].rsplit(":", 1)
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        answer = connection.recv(length, socket.MSG_WAITALL)
    # correlation id, one topic with its name, one partition: index, then the error code.
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
    assert error == 0, f"the broker refused the record: error {error}"


def varint(number: int) -> bytes:
    """Zigzag, seven bits a byte, as a record batch has its lengths."""
    left = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*encoded, left])


def crc32c(data: bytes) -> int:
    """The checksum of a record batch."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
