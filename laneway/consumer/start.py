"""Starting a worker: every precondition is checked before the group is joined.

What is wrong is said once, with the exit code and the command that mends it, and nothing has been
changed by then but the mark in an empty state directory.
"""

from __future__ import annotations

import logging
from typing import Final

from laneway.consumer import topics
from laneway.consumer.journal import Journal
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.profile import NO_PROFILE, Profile
from laneway.consumer.rules import envelope_of, temporary_of
from laneway.consumer.settings.model import Settings
from laneway.consumer.settler import CrashPoint, no_crash
from laneway.consumer.worker import Worker
from laneway.pipeline import Pipeline
from laneway.store.state_dir import StateDir

log = logging.getLogger("laneway")

_NO_ID: Final = "A" * 22
"""What a cluster answers whose topics have no ids: sixteen zero bytes, in base 64."""


def build_worker(
    settings: Settings,
    pipeline: Pipeline[object],
    *,
    drain_timeout_s: float = 25.0,
    accept_empty_ledger: bool = False,
    stdout: int = 1,
    crash_point: CrashPoint = no_crash,
    profile: Profile = NO_PROFILE,
) -> Worker:
    """Check the cluster, the topics and the state directory, and build a worker over them.

    Args:
        stdout: the descriptor of standard output, where a journal of "-" goes.
        profile: told what the owner thread does at each moment.

    Raises:
        UnreachableError: the cluster does not answer.
        TopicError: a topic is missing or has the wrong shape.
        StateDirError: the state directory belongs to another group or cluster.
        ConfigError: the journal cannot be written, or a class of retry.temporary does not exist.
        AppImportError: the pipeline has no handler.
    """
    # What needs no cluster is checked before one is asked, and before the state directory is marked.
    temporary_of(settings)
    for source in settings.sources:
        envelope_of(settings, source, pipeline.decode)
    names = topics.all_topic_names(settings)
    with Cluster(settings) as cluster:
        cluster_id = cluster.cluster_id()
        for finding in topics.require(settings, cluster):
            log.warning("topic %s: %s; next: %s", finding.topic, finding.problem, finding.command)
        companions = [each.of(kind) for each in names for kind in topics.kinds_of(settings)]
        found = cluster.topics([*settings.sources, *companions])
    ids = {name: "" if topic.topic_id == _NO_ID else topic.topic_id for name, topic in found.items()}
    limits = [found[name].max_message_bytes for name in companions]
    return Worker(
        settings,
        pipeline,
        names={each.source: each for each in names},
        partitions={source: found[source].partitions for source in settings.sources},
        topic_ids=ids,
        state_dir=StateDir.claim(
            settings.state_dir,
            settings.group,
            cluster_id,
            {each.source: (ids[each.source], ids[each.retry]) for each in names},
        ),
        journal=Journal.open(
            settings.journal.path,
            settings.journal.level,
            settings.journal.keys,
            settings.group,
            stdout=stdout,
        ),
        # In a transaction a batch that is too large for its topic takes all the others with it.
        max_message_bytes=min(limits) if settings.ledger.replication == "changelog" else max(limits),
        drain_timeout_s=drain_timeout_s,
        accept_empty_ledger=accept_empty_ledger,
        crash_point=crash_point,
        profile=profile,
    )
