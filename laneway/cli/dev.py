"""`laneway dev`: somebody's own pipeline over their own records, on an embedded cluster, nothing kept."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from laneway.app import load_app
from laneway.cli import options
from laneway.cli.child import Child, write_settings
from laneway.cli.dev_account import Account
from laneway.cli.dev_feed import Feeder, require_identity_in_the_value
from laneway.cli.dev_totals import Totals
from laneway.cli.output import Cell, Format, Table, emit, say
from laneway.consumer.embedded import PARTITIONS, EmbeddedCluster, on_embedded
from laneway.consumer.inspection import offsets as inspect_offsets
from laneway.consumer.inspection import topics as inspect_topics
from laneway.consumer.inspection.cases import CaseBook
from laneway.consumer.kafka.cluster import Cluster
from laneway.consumer.settings.model import Settings
from laneway.consumer.settings.order import held_orders
from laneway.consumer.topics import kinds_of, topic_names
from laneway.errors import IncompleteError, LanewayError, UsageError
from laneway.lanes.forward import ReviewNews

GROUP: Final = "dev"
SOURCE: Final = "records"
INTERRUPTED: Final = 130
_POLL_S: Final = 0.05
_QUIET_S: Final = 1.0
_STUCK_S: Final = 5.0
_TELL_EVERY_S: Final = 10.0
_READ_S: Final = 30.0
_DRAIN_S: Final = 40.0


def dev(
    app: Annotated[str, typer.Argument(help="module:attr or ./file.py:attr: a Pipeline or a function.")],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.ndjson",
            exists=True,
            dir_okay=False,
            readable=True,
            help="Records, one a line; or .gz.",
        ),
    ],
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    source: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Which of the configured sources the lines stand for."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Only the first N records.")
    ] = None,
    first: Annotated[
        int, typer.Option("--first", metavar="N", min=0, help="Name the first N lines of each kind.")
    ] = 5,
    output: options.Output = Format.TABLE,
) -> None:
    """Run a pipeline over the lines of a file, on an embedded cluster: no Kafka, and nothing is kept.

    One real worker process does it; the handler's effects are real. Envelope, lanes and retry are as
    configured; where there is no configuration, as the defaults say.

    Exit 0: it ran to the end, whatever became of the records. 1: the worker failed. 5: it stopped with
    records unread, because a partition has as many open cases as may be. 130: interrupted.
    """
    loaded = options.load_settings(
        config, sets, group=GROUP, sources=[source] if source else None, inspect=True
    )
    sources = loaded.settings.sources or (SOURCE,)
    if len(sources) > 1:
        raise UsageError(
            f"several sources are configured: {', '.join(sources)}", mend="name one with --source TOPIC"
        )
    with tempfile.TemporaryDirectory(prefix="laneway-dev-") as scratch, EmbeddedCluster() as cluster:
        place = Path(scratch)
        settings = on_embedded(
            loaded.settings, cluster.bootstrap, group=GROUP, sources=sources, state_dir=place / "state"
        )
        require_identity_in_the_value(settings)
        with contextlib.redirect_stdout(sys.stderr):
            pipeline = load_app(app)
        for order in held_orders(loaded, sources):
            if not order.is_meant:
                say(f"warning: {order.text}")
        run = _Run(settings, Feeder(file, cluster, settings, pipeline, limit=limit), keep=first)
        write_settings(settings, place)
        code = 0
        with Child(app, place, journal="-", cwd=Path.cwd(), is_heard=True) as child:
            try:
                run.drive(child)
            except KeyboardInterrupt:
                say("interrupted: this is what was done by now")
                code = INTERRUPTED
            except LanewayError as error:
                say(f"laneway: {error}")
                code = error.exit_code
            run.finish(child)
        emit(run.summary(output), output)
        if code:
            raise typer.Exit(code)


class _Run:
    """One run: the feeder in front of the worker, the account behind it."""

    def __init__(self, settings: Settings, feeder: Feeder, *, keep: int) -> None:
        self._settings = settings
        self._feeder = feeder
        self._account = Account(
            feeder, settings.sources[0], by_arrival=settings.lanes.order == "arrival", keep=keep
        )
        self._keep = keep
        self._names = topic_names(settings, settings.sources[0])
        self._lock = threading.Lock()
        self._heard_s = time.monotonic()
        self._reader: threading.Thread | None = None
        self._cases: list[ReviewNews] = []

    def drive(self, child: Child) -> None:
        """Feed, until the file has ended and nothing waits.

        Raises:
            LanewayError: the worker ended, or a line could not be read.
            IncompleteError: a partition stopped at its bound of open cases.
        """
        with Cluster(self._settings) as cluster:
            # Being asked for is what makes a topic here.
            companions = [self._names.of(kind) for kind in kinds_of(self._settings)]
            cluster.partition_counts([self._settings.sources[0], *companions])
            self._reader = threading.Thread(target=self._read_journal, args=(child,), daemon=True)
            self._reader.start()
            told_s = began_s = time.monotonic()
            while True:
                with self._lock:
                    self._feeder.feed()
                    quiet = self._account.is_quiet
                now_s = time.monotonic()
                silent_s = now_s - self._heard_s
                code = child.exit_code()
                if code is not None:
                    raise LanewayError(f"the worker ended with {code}", mend="what it said stands above")
                if self._feeder.ended and quiet and silent_s > _QUIET_S and self._lag(cluster) == 0:
                    return
                if silent_s > _STUCK_S and not quiet:
                    self._raise_when_blocked(cluster)
                if now_s - told_s > _TELL_EVERY_S:
                    told_s = now_s
                    say(
                        f"{now_s - began_s:5.1f} s  {self._feeder.published} records published, "
                        f"{self._account.effects} effects"
                    )
                time.sleep(_POLL_S)

    def finish(self, child: Child) -> None:
        """Let the worker leave in order, and read what it left behind."""
        child.terminate()
        deadline = time.monotonic() + _DRAIN_S
        while child.exit_code() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        child.end()
        if self._reader is not None:
            self._reader.join()
        with Cluster(self._settings) as cluster:
            spans = inspect_topics.extents(cluster, [self._names.review])
            book = CaseBook(self._settings.group)
            book.take_all(inspect_topics.read(self._settings, spans, timeout_s=_READ_S))
        self._cases = book.open()

    def summary(self, form: Format) -> Table:
        """Counts by kind and reason, and the first lines of each."""
        feeder, account = self._feeder, self._account
        rows: list[tuple[str, str | None, int, list[int]]] = [("effects", None, account.effects, [])]
        told: dict[str, list[tuple[int, str]]] = {}

        def add(kind: str, reason: str, count: int, kept: list[tuple[int, str]]) -> None:
            rows.append((kind, reason, count, [number for number, _ in kept]))
            told.setdefault(kind, []).extend(
                (number, f"line {number}: {reason}, {about}") for number, about in kept
            )

        for (kind, reason), count in sorted(account.counts.items()):
            add(kind, reason, count, account.examples[kind, reason])
        by_reason: dict[str, list[ReviewNews]] = {}
        for news in self._cases:
            by_reason.setdefault(news.reason, []).append(news)
        for reason, cases in sorted(by_reason.items()):
            examples = sorted((self._line_of(news), self._about(news)) for news in cases)
            add("cases", reason, len(cases), examples[: self._keep])
        lists = {kind: [text for _, text in sorted(examples)] for kind, examples in told.items()}
        parked = account.parked_lines()
        if parked:
            rows.append(("parked", "behind a held record", len(parked), parked[: self._keep]))
        if feeder.oversized:
            rows.append(("unread", "too-large", len(feeder.oversized), feeder.oversized[: self._keep]))
        order = "broken" if account.misplaced else "kept"
        if account.misplaced:
            rows.append(("out of order", None, account.misplaced, account.misplaced_lines))
        facts: dict[str, Cell] = {
            "records": feeder.published,
            "blank_lines": feeder.blank,
            "order": order,
            "unsettled": feeder.unsettled,
            "resolved_cases": account.resolved,
        }
        totals = Totals.of(feeder, account, self._cases)
        facts |= {"dead_letters": totals.dead_letters, "held_back": totals.held_back}
        facts |= {"held_keys": totals.held_keys, "waiting": totals.waiting}
        if form is Format.TABLE:
            say(f"{totals}; order {order}")
        if hint := totals.hint(feeder, account):
            say(hint)
        return Table("dev", ("what", "reason", "count", "lines"), rows, lists, facts)

    def _read_journal(self, child: Child) -> None:
        for line in child.stdout:
            with self._lock:
                self._account.take(json.loads(line))
            self._heard_s = time.monotonic()

    def _line_of(self, news: ReviewNews) -> int:
        return self._feeder.line_of(news.partition, news.offset)

    @staticmethod
    def _about(news: ReviewNews) -> str:
        if news.reason == "sequence-gap":
            return f"key {news.sequence_key}: sequence {news.sequence} is missing before it"
        cause = f", {news.cause}" if news.cause not in {"", news.reason} else ""
        return f"effect {news.effect_key}{cause}"

    def _lag(self, cluster: Cluster) -> int:
        places = [
            (topic, number)
            for topic in (self._settings.sources[0], self._names.retry)
            for number in range(PARTITIONS)
        ]
        return sum(each.lag for each in cluster.offsets(self._settings.group, places))

    def _raise_when_blocked(self, cluster: Cluster) -> None:
        """A partition that stopped at its bound goes on only when a person has decided something."""
        rows = inspect_offsets.standings(
            self._settings, cluster, self._settings.sources, time.time_ns() // 1_000_000
        )
        for row in rows:
            note = row.note
            idle = note is not None and not (note.running or note.retries)
            if row.blocked_by and idle:
                raise IncompleteError(
                    f"the worker reads no further: {row.blocked_by}",
                    where=f"partition {row.offsets.partition}",
                    mend="mend what the cases below say; or raise the bound with -X lanes.KEY=N",
                )
