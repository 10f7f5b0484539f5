"""A person with the commands topic: decides unknown outcomes by looking whether the effect is there."""

from __future__ import annotations

import uuid
from collections import Counter

import msgspec

from laneway.lanes.command import COMMAND_FORMAT, Command, encode_command
from laneway.lanes.forward import ReviewNews
from tests.broker.cluster import Cluster, Outgoing
from tests.broker.conftest import Names
from tests.broker.journal_checks import header


class Operator:
    """Decides each case once.

    Attributes:
        decided: how often each action was asked for.
    """

    def __init__(self, cluster: Cluster, names: Names) -> None:
        self._cluster = cluster
        self._names = names
        self._sent: set[str] = set()
        self.decided: Counter[str] = Counter()

    def decide(self, happened: set[str]) -> None:
        """Look at the open cases, and decide those whose outcome is unknown.

        Args:
            happened: effect keys that are there, at the target.
        """
        companions = f"{self._names.source}.{self._names.group}"
        for message in self._cluster.read_topic(f"{companions}.review"):
            if header(message, "kind") != "review":
                continue
            news = msgspec.json.decode(message.value() or b"", type=ReviewNews)
            if news.reason != "outcome-unknown" or news.case_id in self._sent:
                continue
            self._sent.add(news.case_id)
            action = "mark-done" if news.effect_key in happened else "run-again"
            self.decided[action] += 1
            command = Command(
                COMMAND_FORMAT,
                uuid.uuid4().hex,
                action,
                "operator",
                "looked at the target",
                news.group,
                news.topic,
                news.partition,
                f"k{news.sequence_key}",
                news.case_id,
                news.version,
            )
            self._cluster.produce(
                f"{companions}.commands", [Outgoing(encode_command(command), partition=news.partition)]
            )
