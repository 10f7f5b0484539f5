"""Every error Laneway itself raises, and the exit code each one becomes.

    LanewayError                    1  the work failed
    ├── UsageError                  2  flags, configuration, import of the application
    │   ├── ConfigError                a key of laneway.toml, an environment variable or a flag
    │   └── AppImportError             `module:attr` could not be turned into a Pipeline
    ├── UnreachableError            3  the cluster does not answer or does not let us in
    ├── RefusedError                4  a precondition does not hold; nothing was changed
    │   ├── TopicError                 a topic is missing or has the wrong shape
    │   └── StateDirError              a state directory of another group, cluster or format
    ├── IncompleteError             5  a deadline passed with work left
    ├── LedgerError                 1  a store could not be read or written
    │   ├── LedgerLockedError          another process holds the store
    │   └── LedgerFormatError          bytes in the store are not what the format says
    │       └── ChangelogFormatError   4: nor are those in its changelog, which this release leaves alone
    └── KafkaClientError            1  the Kafka client reported something no rule above names

Libraries' errors are mapped to these at one boundary each: rocksdict in `store/rocks.py`,
confluent-kafka in `consumer/kafka/cluster.py`. What a *handler* raises is another family, in
`lanes/failures.py`: it decides the fate of a record, never of the process.
"""

from __future__ import annotations

from typing import ClassVar


class LanewayError(Exception):
    """Says what happened, where, and what to do next; never a word of a payload.

    Args:
        what: one sentence, lower case, no full stop.
        where: the file, key, topic, partition or offset it concerns; may be empty.
        mend: what the reader can do now, preferably a command; may be empty.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.mend = mend

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}\n  next: {self.mend}" if self.mend else text


class UsageError(LanewayError):
    """The command, its flags or its configuration cannot be used as written."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration key is unknown, mistyped, out of range or owned by Laneway."""


class AppImportError(UsageError):
    """`module:attr` or `file.py:attr` could not be turned into a Pipeline."""


class UnreachableError(LanewayError):
    """The cluster does not answer in time, or does not let us in."""

    exit_code = 3


class RefusedError(LanewayError):
    """A precondition does not hold; nothing was changed."""

    exit_code = 4


class TopicError(RefusedError):
    """A topic is missing or does not have the shape the protocol needs."""


class StateDirError(RefusedError):
    """The state directory belongs to another group or cluster, or has an unknown format."""


class IncompleteError(LanewayError):
    """A deadline passed while work was left; what was done is durable."""

    exit_code = 5


class LedgerError(LanewayError):
    """A store could not be read or written."""


class LedgerLockedError(LedgerError):
    """Another process (or an earlier owner in this one) still holds the store."""


class LedgerFormatError(LedgerError):
    """Bytes in a store are not what its format says."""


class ChangelogFormatError(LedgerFormatError):
    """An entry of a changelog is not one that this release can take; nothing was changed."""

    exit_code = 4


class KafkaClientError(LanewayError):
    """The Kafka client reported something that no more precise error names."""
