"""confluent-kafka's errors become ours: one table says what each code means for us.

    unreachable     nobody answered, or the name does not resolve       UnreachableError
    unauthorised    somebody answered and does not let us in            UnreachableError
    not-committed   a rebalance was faster than our commit; the work    KafkaClientError
                    is done again or suppressed by its new owner
    too-large       this one record does not fit; others do             KafkaClientError
    missing         the topic or partition is not there                 TopicError
    fenced          another producer took our transactional id          KafkaClientError
    refused-config  librdkafka refuses the configuration                ConfigError
    retriable       the same call may succeed later                     KafkaClientError
    fatal           the client is of no more use                        KafkaClientError
    other           none of these                                       KafkaClientError

A commit that is *not committed* is never fatal and never retried blindly. `_TIMED_OUT` of a produce
is ambiguous: the record may be there. It is called unreachable, never "failed".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from laneway.errors import ConfigError, KafkaClientError, LanewayError, TopicError, UnreachableError


class ErrorClass(StrEnum):
    """What an error of the Kafka client means for us."""

    UNREACHABLE = "unreachable"
    UNAUTHORISED = "unauthorised"
    NOT_COMMITTED = "not-committed"
    TOO_LARGE = "too-large"
    MISSING = "missing"
    FENCED = "fenced"
    REFUSED_CONFIG = "refused-config"
    RETRIABLE = "retriable"
    FATAL = "fatal"
    OTHER = "other"


_CODES: Final[Mapping[ErrorClass, tuple[int, ...]]] = {
    ErrorClass.UNREACHABLE: (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
    ),
    ErrorClass.UNAUTHORISED: (
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        KafkaError.DELEGATION_TOKEN_EXPIRED,
        KafkaError.SECURITY_DISABLED,
    ),
    ErrorClass.NOT_COMMITTED: (
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._STATE,
        KafkaError._NO_OFFSET,
    ),
    ErrorClass.TOO_LARGE: (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
    ),
    ErrorClass.MISSING: (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.INCONSISTENT_TOPIC_ID,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        # list_offsets of a topic that is not there: "no leaders found".
        KafkaError._NOENT,
    ),
    ErrorClass.FENCED: (
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError._FENCED,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    ),
    ErrorClass.REFUSED_CONFIG: (KafkaError._INVALID_ARG, KafkaError._NOT_CONFIGURED),
    ErrorClass.RETRIABLE: (
        KafkaError._QUEUE_FULL,
        KafkaError._RETRY,
        KafkaError._WAIT_CACHE,
        KafkaError._ISR_INSUFF,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_CONTROLLER,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
    ),
}
_CONNECT: Final = re.compile(
    r"(?:\w+://)?(?P<broker>[^\s/]+)/\w+: "
    r"Connect to ipv[46]#(?P<ip>\S+) failed: (?P<reason>.*?)(?: \(after .*\))?"
)
_CLASS_OF: Final = {code: kind for kind, codes in _CODES.items() for code in codes}

_ERRORS: Final[Mapping[ErrorClass, type[LanewayError]]] = {
    ErrorClass.UNREACHABLE: UnreachableError,
    ErrorClass.UNAUTHORISED: UnreachableError,
    ErrorClass.MISSING: TopicError,
    ErrorClass.REFUSED_CONFIG: ConfigError,
}

_MENDS: Final[Mapping[ErrorClass, str]] = {
    ErrorClass.UNREACHABLE: "check that the broker runs, that bootstrap names its listener and that its "
    "advertised listeners are reachable from here",
    ErrorClass.UNAUTHORISED: "check security.protocol, the credentials under [kafka] and the rights that "
    "`laneway topics plan` lists",
    ErrorClass.MISSING: "run `laneway topics check`",
    ErrorClass.REFUSED_CONFIG: "correct the key under [kafka]",
    ErrorClass.TOO_LARGE: "raise max.message.bytes of the topic: `laneway topics check` says to what",
    ErrorClass.FATAL: "restart the worker; what it settled is durable",
}


def classify(error: KafkaError) -> ErrorClass:
    """What this error means for us. A client that reports itself fatal is fatal, whatever the code."""
    if error.fatal() or error.code() == KafkaError._FATAL:
        return ErrorClass.FATAL
    return by_code(error)


def by_code(error: KafkaError) -> ErrorClass:
    """What its code means, also of an error that was the end of its client."""
    known = _CLASS_OF.get(error.code())
    if known is not None:
        return known
    return ErrorClass.RETRIABLE if error.retriable() else ErrorClass.OTHER


def position(topic: str, partition: int | None = None, offset: int | None = None) -> str:
    """A place in Kafka as messages write it: `invoices`, `invoices[3]`, `invoices[3]@17`."""
    text = topic if partition is None or partition < 0 else f"{topic}[{partition}]"
    return text if offset is None or offset < 0 else f"{text}@{offset}"


def to_laneway(error: KafkaError, where: str, mend: str = "") -> LanewayError:
    """Our error for one of the client's: delivery reports, consumed error records, exceptions."""
    kind = classify(error)
    said = _without_repeats(error.str().strip().rstrip("."), where) or error.name()
    what = f"{said} ({kind.value}, {error.name()})"
    return _ERRORS.get(kind, KafkaClientError)(what, where=where, mend=mend or _MENDS.get(kind, ""))


def _without_repeats(said: str, where: str) -> str:
    """The client names an address twice more; what `where` does not tell yet (a listener, an IP) stays."""
    match = _CONNECT.fullmatch(said)
    if match is None:
        return said
    named = re.split(r"[,\s]+", where)
    reason = match["reason"]
    if match["ip"] not in named:
        reason = f"connect to {match['ip']} failed: {reason}"
    return reason if match["broker"] in {*named, match["ip"]} else f"{match['broker']}: {reason}"


def said_by_client(exception: KafkaException | SystemError) -> KafkaException:
    """What the client raised. Its own end falls into whatever callback it runs just then.

    The interpreter calls that a SystemError, of the callback or of anything in it; the client's is its cause.
    """
    cause: BaseException | None = exception
    while cause is not None and not isinstance(cause, KafkaException):
        cause = cause.__cause__
    if cause is None:
        raise exception
    return cause


@contextmanager
def kafka_errors(where: str, mend: str = "") -> Iterator[None]:
    """Whatever the Kafka client raises inside leaves as ours, with the place it concerns.

    Args:
        where: broker address, topic, or `position(...)`.
        mend: what to do; empty takes the advice of the error's class.
    """
    try:
        yield
    except (KafkaException, SystemError) as exception:
        said = said_by_client(exception)
        error = said.args[0] if said.args else None
        if not isinstance(error, KafkaError):
            raise KafkaClientError(str(said), where=where, mend=mend) from exception
        raise to_laneway(error, where, mend) from exception
    except RuntimeError as exception:
        # A closed consumer or producer raises plain RuntimeError; an owner that left is not a crash.
        if "closed" not in str(exception).lower():
            raise
        raise KafkaClientError(str(exception), where=where, mend=mend) from exception
