"""Pipeline, Delivery and the Processor: what a handler says becomes an outcome, and nothing leaks."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

import laneway
from laneway import (
    Ack,
    Delivery,
    NeedsReview,
    PermanentFailure,
    Pipeline,
    Reject,
    Retry,
    Review,
    TemporaryFailure,
    Unavailable,
)
from laneway import (
    processing as processing_module,
)
from laneway.errors import AppImportError
from laneway.lanes.canonical import payload_hash
from laneway.lanes.record import Channel, Record
from laneway.lanes.verdict import ACK, Outcome, Wait

PRIVATE = "4711-0815-PRIVATE"


class Reminder(BaseModel):
    model_config = ConfigDict(strict=True)
    invoice: str
    amount_cents: int


def record(payload: object = b'{"invoice":"i-1","amount_cents":5}', **fields: Any) -> Record:
    """A readable record of customer c-1, sequence 3."""
    made = Record(Channel.SOURCE, 7, b"key", b"value", (("trace", PRIVATE.encode()),), 1_700_000_000_123)
    made.message_id, made.effect_key, made.sequence_key = "m-1", "e-1", "c-1"
    made.sequence, made.version, made.payload = 3, 1, payload
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def run(
    function: Callable[[Delivery[Any]], Any],
    made: Record | None = None,
    *,
    extra: tuple[type[BaseException], ...] = (),
    **options: Any,
) -> Outcome:
    """One record through one handler."""
    pipeline: Pipeline[Any] = Pipeline(**({"payload": Reminder} | options))
    pipeline.handler(function)
    return pipeline.compile(extra).process(made or record(), "invoices", 2, 1_700_000_060_000)


def raising(error: BaseException) -> Callable[[Delivery[Any]], None]:
    """A handler that raises this."""

    def handle(delivery: Delivery[Any]) -> None:
        raise error

    return handle


def returning(answer: object) -> Callable[[Delivery[Any]], Any]:
    """A handler that returns this."""
    return lambda delivery: answer


# Delivery


def test_a_delivery_shows_the_handler_everything_it_may_need() -> None:
    """The handler sees identity, position, times and raw bytes; S7: the effect key for its target."""
    seen: list[tuple[object, ...]] = []

    def handle(delivery: Delivery[Reminder]) -> str:
        d = delivery
        seen.append((d.payload.invoice, d.message_id, d.effect_key, d.sequence_key, d.sequence, d.version))
        seen.append((d.attempt, d.redelivered, d.topic, d.partition, d.offset, d.key, d.value))
        assert d.deadline == datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC)
        assert d.timestamp == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
        assert d.headers == (("trace", PRIVATE.encode()),)
        return "reminders/e-1"

    assert run(handle, record(attempt=2, redelivered=True)) == Outcome(Ack("reminders/e-1"))
    assert seen == [
        ("i-1", "m-1", "e-1", "c-1", 3, 1),
        (2, True, "invoices", 2, 7, b"key", b"value"),
    ]


def test_a_retry_shows_its_source_position() -> None:
    """On a retry the handler sees the position in the source topic, not that of the retry record."""
    offsets: list[int] = []
    run(lambda d: offsets.append(d.offset), record(channel=Channel.RETRY, offset=99, origin_offset=7))
    assert offsets == [7]


def test_without_a_sequence_key_there_is_no_sequence() -> None:
    """A record that nothing orders has no number, rather than a number 0."""
    numbers: list[int | None] = []
    run(lambda d: numbers.append(d.sequence), record(sequence_key=None))
    assert numbers == [None]


@pytest.mark.parametrize("timestamp_ms", [0, -1, 2**62])
def test_a_timestamp_that_is_none_shows_as_none(timestamp_ms: int) -> None:
    """A missing or absurd Kafka timestamp is None and never an exception in the handler."""
    seen: list[object] = []
    run(lambda d: seen.append(d.timestamp), record(timestamp_ms=timestamp_ms))
    assert seen == [None]


def test_a_delivery_prints_no_payload_value_or_header() -> None:
    """S9: the repr of a delivery, which ends in logs, holds nothing of payload, value or headers."""
    shown: list[str] = []
    made = record(b'{"invoice":"%s","amount_cents":1}' % PRIVATE.encode(), value=PRIVATE.encode())
    run(lambda d: shown.append(repr(d)), made)
    assert "e-1" in shown[0]
    assert PRIVATE not in shown[0]


# What a handler returns


def test_none_is_the_shared_ack() -> None:
    """The common answer allocates nothing."""
    assert run(returning(None)) is ACK


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Ack(), Outcome(Ack())),
        (Ack("k"), Outcome(Ack("k"))),
        (Retry("busy"), Outcome(Retry("busy"), "temporary-failure")),
        (Reject("no such invoice"), Outcome(Reject("no such invoice"), "permanent-failure")),
        (Review("odd", "is it right?"), Outcome(Review("odd", "is it right?"), "review-requested")),
        (Reject(""), Outcome(Reject("permanent-failure"), "permanent-failure")),
        (Retry("bell\x07"), Outcome(Retry("bell\\x07"), "temporary-failure")),
    ],
)
def test_a_returned_verdict_is_the_outcome(answer: object, outcome: Outcome) -> None:
    """S19: ack, back later, never again and "a person decides" can all be returned."""
    assert run(returning(answer)) == outcome


def test_a_result_key_without_utf8_form_is_made_visible() -> None:
    """An undecodable file name as result key is stored escaped; it must not stop the ledger's write."""
    assert run(returning("reports/\udcff.csv")) == Outcome(Ack("reports/\\udcff.csv"))


def test_any_other_answer_acks_with_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that returns a response object is acked without key; one warning, without the object."""
    monkeypatch.setattr(processing_module, "_warned_answer", False)
    with caplog.at_level(logging.WARNING, "laneway"):
        assert run(returning({"private": PRIVATE})) is ACK
        assert run(returning([PRIVATE])) is ACK
    assert len(caplog.messages) == 1
    assert "builtins.dict" in caplog.text
    assert PRIVATE not in caplog.text


async def _work() -> None:
    raise AssertionError("never runs")


async def _yielding() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize("answer", [_work, _yielding, lambda: (None for _ in range(3)), Future])
def test_what_is_not_done_is_not_an_ack(answer: Callable[[], object]) -> None:
    """A hidden async function or a generator has not run, and a future may not be done."""
    outcome = run(lambda delivery: answer())
    assert isinstance(outcome.verdict, Review)
    assert outcome.cause == "unclassified-failure"


# What a handler raises


def test_the_frames_of_a_task_group_are_those_of_what_failed_in_it(caplog: pytest.LogCaptureFixture) -> None:
    """The group itself says nothing: who mends it needs the line of the task."""

    def fail_in_a_task() -> None:
        raise ValueError(PRIVATE)

    def handle(delivery: Delivery[Any]) -> None:
        try:
            fail_in_a_task()
        except ValueError as error:
            raise ExceptionGroup(PRIVATE, [error]) from None

    outcome = run(handle)
    assert "fail_in_a_task" in caplog.text
    assert "builtins.ValueError" in outcome.error_class
    assert PRIVATE not in caplog.text


@pytest.mark.parametrize(
    ("error", "verdict", "cause"),
    [
        (TemporaryFailure("db busy"), Retry("db busy"), "temporary-failure"),
        (PermanentFailure("closed"), Reject("closed"), "permanent-failure"),
        (NeedsReview("is it paid?"), Review("review-requested", "is it paid?"), "review-requested"),
        (Unavailable(250, "registry"), Wait(250, "registry"), "unavailable"),
        (OSError(PRIVATE), Retry("temporary-failure"), "temporary-failure"),
        (KeyError(PRIVATE), Review("unclassified-failure", ""), "unclassified-failure"),
        (SystemExit(PRIVATE), Review("unclassified-failure", ""), "unclassified-failure"),
        (KeyboardInterrupt(), Review("unclassified-failure", ""), "unclassified-failure"),
    ],
)
def test_an_exception_is_classified(error: BaseException, verdict: object, cause: str) -> None:
    """S8: temporary, invalid and unknown are told apart; SystemExit in a handler is unknown, not an exit."""
    outcome = run(raising(error), temporary=[OSError])
    assert (outcome.verdict, outcome.cause) == (verdict, cause)
    assert PRIVATE not in repr(outcome)


def test_temporary_classes_of_the_configuration_count_too() -> None:
    """`retry.temporary` adds to the pipeline's own list."""
    assert run(raising(LookupError()), extra=(LookupError,)).cause == "temporary-failure"


def test_a_signal_with_broken_attributes_is_unclassified() -> None:
    """A subclass of TemporaryFailure that spoils its own attributes gives a case, not a dead worker."""

    class Limited(TemporaryFailure):
        def __init__(self) -> None:
            super().__init__()
            self.reason = 429  # type: ignore[assignment]

    assert run(raising(Limited())).cause == "unclassified-failure"


def test_frames_are_logged_once_and_without_the_message(caplog: pytest.LogCaptureFixture) -> None:
    """S9: the first of like failures shows file, line and function; none ever shows message or values."""

    def fail(delivery: Delivery[Any]) -> None:
        try:
            raise ValueError(PRIVATE)
        except ValueError as error:
            raise RuntimeError(PRIVATE) from error

    pipeline: Pipeline[Any] = Pipeline(payload=Reminder)
    pipeline.handler(fail)
    processor = pipeline.compile()
    with caplog.at_level(logging.WARNING, "laneway"):
        outcomes = [processor.process(record(), "invoices", 0, 0) for _ in range(3)]
    assert len({outcome.fingerprint for outcome in outcomes}) == 1
    assert len(caplog.messages) == 1
    assert "RuntimeError" in caplog.text
    assert "caused by builtins.ValueError" in caplog.text
    assert f"{__file__}:" in caplog.text
    assert "in test_frames_are_logged_once_and_without_the_message.<locals>.fail" in caplog.text
    assert "laneway/pipeline.py" not in caplog.text
    assert PRIVATE not in caplog.text


@pytest.mark.parametrize(
    ("signal", "words"),
    [
        (Unavailable(reason="the bank is down"), "unavailable: the bank is down ("),
        (Unavailable(), "unavailable ("),
        (TemporaryFailure("calendar-down"), "temporary-failure: calendar-down ("),
    ],
    ids=repr,
)
def test_a_dependency_that_is_down_is_logged_by_its_name_once(
    caplog: pytest.LogCaptureFixture, signal: Exception, words: str
) -> None:
    """The worker's log has what the handler missed, in its own words, and the place in the code."""

    def fail(delivery: Delivery[Any]) -> None:
        raise signal

    pipeline: Pipeline[Any] = Pipeline(payload=Reminder)
    pipeline.handler(fail)
    processor = pipeline.compile()
    with caplog.at_level(logging.WARNING, "laneway"):
        for _ in range(3):
            signal.__traceback__ = None
            processor.process(record(), "invoices", 0, 0)
    (message,) = caplog.messages
    assert message.startswith(words)
    assert f"{__file__}:" in message


# The payload


@pytest.mark.parametrize(
    ("payload", "detail"),
    [
        (b'{"invoice":"%s","amount_cents":"5"}' % PRIVATE.encode(), "amount_cents: int_type"),
        (b'{"amount_cents":5}', "invoice: missing"),
        (b"\xff\xfe", "(payload): json_invalid"),
        (b"", "(payload): json_invalid"),
        (b"[]", "(payload): model_type"),
    ],
)
def test_a_payload_that_does_not_fit_is_rejected_at_once(payload: bytes, detail: str) -> None:
    """S9: location and type are kept, the value never; one attempt, and the handler is not called."""
    outcome = run(raising(AssertionError("not called")), record(payload))
    assert outcome == Outcome(Reject("invalid-payload"), "invalid-payload", detail=detail)


def test_words_of_the_payload_never_stand_in_a_location() -> None:
    """S9: a key that the publisher chose is data, and is shown as `*`."""

    class Strict(BaseModel):
        model_config = ConfigDict(extra="forbid")
        amounts: dict[str, int]

    body = b'{"amounts":{"%s":"x"},"%s":1}' % (PRIVATE.encode(), PRIVATE.encode())
    outcome = run(returning(None), record(body), payload=Strict)
    assert outcome.detail == "amounts.*: int_parsing; *: extra_forbidden"


def test_a_thousand_errors_are_cut() -> None:
    """What is kept of a payload's errors is bounded."""
    outcome = run(returning(None), record(b"[" + b'"x",' * 999 + b'"x"]'), payload=list[int])
    assert outcome.detail.startswith("0: int_parsing; 1: int_parsing")
    assert len(outcome.detail) <= 200


def test_a_validation_error_of_the_handlers_own_is_no_invalid_payload() -> None:
    """A model that the handler itself validates says nothing about our payload: unclassified."""

    def handle(delivery: Delivery[Reminder]) -> None:
        Reminder.model_validate({"invoice": PRIVATE})

    outcome = run(handle)
    assert outcome.cause == "unclassified-failure"
    assert outcome.error_class.endswith("ValidationError")
    assert ValidationError.__name__ in outcome.error_class


def test_an_exception_of_a_validator_is_classified_like_the_handlers() -> None:
    """A validator that asks a dependency which is down makes the lane wait; it condemns no record."""

    class Checked(BaseModel):
        invoice: str

        @field_validator("invoice")
        @classmethod
        def known(cls, value: str) -> str:
            raise Unavailable(10)

    assert run(returning(None), payload=Checked).cause == "unavailable"


def test_json_is_validated_as_json() -> None:
    """A strict model takes from JSON what JSON can only write as text, such as a time."""

    class Dated(BaseModel):
        model_config = ConfigDict(strict=True)
        at: datetime

    seen: list[datetime] = []
    outcome = run(
        lambda d: seen.append(d.payload.at), record(b'{"at":"2024-05-01T10:00:00Z"}'), payload=Dated
    )
    assert outcome is ACK
    assert seen == [datetime(2024, 5, 1, 10, tzinfo=UTC)]


@dataclasses.dataclass
class _Point:
    x: int


@pytest.mark.parametrize(
    ("model", "payload", "seen"),
    [
        (None, b'{"a":[1,2.5]}', {"a": [1, 2.5]}),
        (None, b"plain text", b"plain text"),
        (bytes, b'{"a":1}', b'{"a":1}'),
        (dict[str, int], b'{"a":1}', {"a": 1}),
        (_Point, b'{"x":1}', _Point(1)),
    ],
)
def test_payload_types(model: object, payload: bytes, seen: object) -> None:
    """Any type that pydantic knows is a model; bytes are handed over unread; no model means plain JSON."""
    got: list[object] = []
    assert run(lambda d: got.append(d.payload), record(payload), payload=model) is ACK
    assert got == [seen]


def test_a_delivered_tombstone_has_no_payload() -> None:
    """A null value that the configuration delivers reaches the handler as None, whatever the model."""
    got: list[object] = []
    assert run(lambda d: got.append(d.payload), record(None, value=None)) is ACK
    assert got == [None]


def test_decoded_objects_are_validated_as_python() -> None:
    """With `decode` the payload is the object it returned."""
    got: list[object] = []
    options: dict[str, Any] = {"decode": lambda raw: {}}
    made = record({"invoice": "i", "amount_cents": 1})
    assert run(lambda d: got.append(d.payload), made, **options) is ACK
    assert got == [Reminder(invoice="i", amount_cents=1)]
    assert run(returning(None), record({"invoice": 5}), **options).cause == "invalid-payload"


def test_models_by_topic_and_version() -> None:
    """S5: each contract version has its model; one that has none is rejected, not retried."""

    class V2(BaseModel):
        total: int

    models = {("invoices", 1): Reminder, ("invoices", 2): V2}
    got: list[object] = []
    handle: Callable[[Delivery[Any]], Any] = lambda d: got.append(type(d.payload))  # noqa: E731
    assert run(handle, record(), payload=models) is ACK
    assert run(handle, record(b'{"total":1}', version=2), payload=models) is ACK
    outcome = run(handle, record(version=3), payload=models)
    assert outcome == Outcome(Reject("unknown-contract-version"), "unknown-contract-version")
    assert got == [Reminder, V2]


@pytest.mark.parametrize("payload", [b'{"invoice":"i-1","amount_cents":5}', b"garbage"])
def test_the_hash_is_taken_whatever_becomes_of_the_payload(payload: bytes) -> None:
    """A payload that does not validate has a hash too: a later correction is told apart by it."""
    made = record(payload)
    run(returning(None), made)
    assert made.payload_hash == payload_hash(payload, b"value")


# Registration


async def _async_generator(delivery: Delivery[Any]) -> Any:
    yield


def _generator(delivery: Delivery[Any]) -> Any:
    yield


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_generator, "does not yield"),
        (_async_generator, "does not yield"),
        (lambda: None, "exactly one positional argument"),
        (lambda a, b: None, "exactly one positional argument"),
        (lambda *, a: None, "exactly one positional argument"),
        (Reminder, "a handler is a function"),
        ("text", "a handler is a function"),
    ],
)
def test_a_function_that_cannot_be_a_handler_is_refused(function: Any, words: str) -> None:
    """What could not be called with one delivery is refused at import, exit 2."""
    with pytest.raises(AppImportError, match=words) as refused:
        Pipeline(payload=Reminder).handler(function)
    assert refused.value.exit_code == 2


def test_a_second_handler_is_refused() -> None:
    """One pipeline has one handler; a second one is an error and never a silent replacement."""
    pipeline: Pipeline[Any] = Pipeline()
    pipeline.handler(returning(None))
    with pytest.raises(AppImportError, match="already has the handler"):
        pipeline.handler(raising(ValueError()))


def test_the_handler_stays_an_ordinary_function() -> None:
    """The decorator hands back the function itself, so a unit test can call it."""
    pipeline: Pipeline[Any] = Pipeline()
    function = returning("k")
    assert pipeline.handler(function) is function


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temporary": [SystemExit]}, "classes of exceptions"),
        ({"temporary": ["TimeoutError"]}, "classes of exceptions"),
        ({"temporary": [PermanentFailure]}, "has its meaning already"),
        ({"decode": "avro"}, "a function from bytes"),
        ({"payload": {"invoices": Reminder}}, "keyed by"),
    ],
)
def test_a_wrong_argument_is_refused(options: dict[str, Any], words: str) -> None:
    """A pipeline that is put together wrongly says so when it is imported."""
    with pytest.raises(AppImportError, match=words):
        Pipeline(**options)


def test_a_type_that_pydantic_does_not_know_is_refused() -> None:
    """A payload type that cannot be validated stops the start, not the first record."""

    class Opaque: ...

    pipeline: Pipeline[Any] = Pipeline(payload=Opaque)
    pipeline.handler(returning(None))
    with pytest.raises(AppImportError, match="cannot validate this payload type"):
        pipeline.compile()


def test_without_a_handler_there_is_nothing_to_compile() -> None:
    """A pipeline that nobody gave a handler is refused at the start."""
    with pytest.raises(AppImportError, match="no handler"):
        Pipeline(payload=Reminder).compile()


# The package


def test_importing_laneway_loads_no_kafka_and_no_store() -> None:
    """A unit test of a handler needs neither librdkafka nor RocksDB to be loaded."""
    code = "import laneway, sys; print([m for m in ('confluent_kafka', 'rocksdict') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_everything_public_is_there() -> None:
    """Each name of the public face can be imported, the version included."""
    assert [name for name in laneway.__all__ if not hasattr(laneway, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        laneway.nothing  # noqa: B018
