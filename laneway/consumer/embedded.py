"""The embedded cluster: librdkafka's built-in mock brokers inside this process, for `demo` and `dev`.

It needs no service and keeps nothing: it ends with the process. It is a cluster for trying things
out, and these are its limits, as seen:

- topics cannot be created or described: any topic asked for is there, with 4 partitions;
- groups cannot be described, and speak the classic protocol only, with a session of 3,500 to 4,000 ms;
  a group's first assignment takes 3 s, a takeover after kill -9 about 6.5 s;
- about 5 MB are kept of a partition, the rest is dropped from its beginning, and nothing is compacted:
  whoever feeds it stays close ahead of the commits;
- transactions do nothing (no fencing, aborted records are seen), so effects are known to the local
  ledger alone: `replication = "local"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaError, Message, Producer

from laneway.consumer.kafka.errors import kafka_errors, to_laneway
from laneway.consumer.kafka.log import logger
from laneway.consumer.settings.model import KafkaValue, LedgerSettings, Settings
from laneway.errors import IncompleteError

PARTITIONS: Final = 4
"""Of every topic."""
KEPT_BYTES: Final = 5_000_000
"""Of one partition; older records are dropped whether or not they were read."""
MAX_RECORD_BYTES: Final = 900_000
"""The largest record with room for the headers that a forward adds: 1 MB is what a topic takes here."""
FIRST_ASSIGNMENT_S: Final = 3.0
TAKEOVER_S: Final = 6.5
GROUP_SETTINGS: Final[Mapping[str, KafkaValue]] = {
    "session.timeout.ms": 3800,
    "heartbeat.interval.ms": 400,
}
"""What `[kafka]` of a worker must hold here: its partitions move only when its session is this short."""

_START_S: Final = 10.0
_ANSWER_S: Final = 30.0

Report = Callable[[int, int], None]
"""(partition, offset) of a record that was appended."""


class EmbeddedCluster:
    """One mock broker in this process. Use as a context manager; any thread may publish."""

    def __init__(self) -> None:
        """Start it.

        Raises:
            LanewayError: the client library has no mock cluster, or loopback cannot be bound.
        """
        config: dict[str, KafkaValue] = {
            "test.mock.num.brokers": 1,
            "bootstrap.servers": "embedded",
            "client.id": "laneway-embedded",
            # Retries of the client must neither repeat a record nor change the order.
            "enable.idempotence": True,
            "linger.ms": 2,
            "log_level": 0,
        }
        with kafka_errors("the embedded cluster"):
            self._producer = Producer({**config, "logger": logger})
            brokers = self._producer.list_topics(timeout=_START_S).brokers.values()
        self.bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        self._refused: KafkaError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, with all that it holds."""
        self._producer.purge()
        self._producer.flush(1.0)

    def publish(
        self,
        topic: str,
        partition: int,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
        report: Report | None = None,
    ) -> None:
        """Append a record. `report` is called from a later `publish` or `flush`, on its thread.

        Raises:
            LanewayError: the cluster refuses it (too large); or an earlier one was refused.
        """

        def appended(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._refused = error
            elif report is not None:
                number, offset = message.partition(), message.offset()
                assert number is not None and offset is not None
                report(number, offset)

        with kafka_errors(f"{topic}-{partition}"):
            self._producer.produce(
                topic,
                value,
                key,
                partition,
                on_delivery=appended,
                headers=list(headers),
            )
        self._producer.poll(0)
        self._raise_refusal()

    def flush(self) -> None:
        """Wait until everything published is appended.

        Raises:
            LanewayError: a record was refused, or there was no answer in time.
        """
        left = self._producer.flush(_ANSWER_S)
        self._raise_refusal()
        if left:
            raise IncompleteError(f"the embedded cluster did not take {left} records in {_ANSWER_S:g} s")

    def _raise_refusal(self) -> None:
        if self._refused is not None:
            raise to_laneway(self._refused, "the embedded cluster")


def on_embedded(
    settings: Settings, bootstrap: str, *, group: str, sources: tuple[str, ...], state_dir: Path
) -> Settings:
    """The same settings, as far as they make sense on an embedded cluster.

    What says how to reach and share a real cluster (addresses, credentials, protocol, start) is
    replaced, and so is what needs transactions; what says how records are read, ordered and retried stays.
    """
    ledger = LedgerSettings.model_validate(
        {
            **settings.ledger.model_dump(by_alias=True),
            "replication": "local",
            "on_unknown_outcome": "run-again",
            "min_free": 2**20,
        }
    )
    return settings.model_copy(
        update={
            "bootstrap": bootstrap,
            "group": group,
            "sources": sources,
            "state_dir": state_dir,
            "start": "earliest",
            "group_protocol": "classic",
            "instance_id": None,
            "ledger": ledger,
            "source": {name: own for name, own in settings.source.items() if name in sources},
            "kafka": dict(GROUP_SETTINGS),
        }
    )
