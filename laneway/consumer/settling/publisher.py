"""Sends forwards through the Kafka producer, and brings the broker's answers back as reports.

Boundary: forwards in, reports out. What a refusal means for an offset is `local_truth`'s business.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from laneway.consumer.kafka.errors import ErrorClass, classify, to_laneway
from laneway.consumer.settling.local_truth import Refusal, Token
from laneway.lanes.forward import Forward

_FATAL: Final = ErrorClass.FATAL


class Publisher:
    """One producer for all forwards of the process. Belongs to the owner thread.

    Raises:
        KafkaClientError: from `reports`, when the client is beyond use; the worker must end.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._reports: deque[tuple[Token, Refusal | None]] = deque()
        self._fatal: KafkaError | None = None

    def send(self, topic: str, partition: int | None, forward: Forward, token: Token) -> Refusal | None:
        """Hand a forward to the client; a refusal at once means that no report will come."""

        def report(error: KafkaError | None, _: Message) -> None:
            self._reports.append((token, None if error is None else self._refusal(error)))

        try:
            self._producer.produce(
                topic,
                value=forward.value,
                key=forward.key,
                headers=list(forward.headers),
                partition=-1 if partition is None else partition,
                on_delivery=report,
            )
        except BufferError:
            return Refusal("the producer's queue is full", too_large=False)
        except KafkaException as error:
            return self._refusal(error.args[0])
        return None

    def reports(self) -> list[tuple[Token, Refusal | None]]:
        """Delivery reports since the last call. Never blocks."""
        self._producer.poll(0)
        if self._fatal is not None:
            raise to_laneway(self._fatal, "producer")
        found = list(self._reports)
        self._reports.clear()
        return found

    def close(self, timeout_s: float) -> int:
        """Wait for what is on its way; returns how many forwards got no answer in time."""
        return self._producer.flush(timeout_s)

    def _refusal(self, error: KafkaError) -> Refusal:
        kind = classify(error)
        if kind is _FATAL:
            self._fatal = error
        return Refusal(error.str(), too_large=kind is ErrorClass.TOO_LARGE)
