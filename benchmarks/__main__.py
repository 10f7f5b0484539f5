"""`python -m benchmarks`: Laneway beside what a user would pick instead, in rounds, on one broker.

Every subject runs in a process and an environment of its own; peers that cannot be had here are reported as
skipped. Everything is bounded: records, rounds, and seconds for each subject. Only brokers on loopback are
measured. docs/benchmarks.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.broker import find_broker
from benchmarks.latency import measure_latency
from benchmarks.plan import FULL, PARTS, SHORT, SUBJECTS, Form, Part, cases
from benchmarks.plot import NoPlotError, plot
from benchmarks.processes import measure_processes
from benchmarks.report import Report, describe, load_average
from benchmarks.restore import FULL_WINDOW_S, WINDOW_S, measure_restore
from benchmarks.supervise import Failed, Measured, SubjectFailedError
from benchmarks.tables import render
from benchmarks.throughput import Ground, run
from tests.broker.cluster import Cluster
from tests.broker.kafka import KafkaBroker, KafkaStartError, NoKafkaError

_STARTED_S = time.monotonic()
_BEGIN, _END = "<!-- figures: begin -->\n", "<!-- figures: end -->"
ABOUT = 20_000.0
"""Records a second that a worker handles, where nothing else of the measurement says it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or read a measurement, print the tables, write the rest."""
    options = _options(arguments)
    if options.read is not None:
        report = _read(options.read)
    else:
        try:
            broker = find_broker()
        except (NoKafkaError, KafkaStartError) as error:
            print(f"benchmarks: {error}", file=sys.stderr)
            return 3
        try:
            report = _measure(broker, _form(options), options)
        finally:
            broker.stop()
    print(render(report, markdown=options.markdown))
    if options.page is not None:
        _write_page(options.page, report)
    if options.plot is not None:
        try:
            plot(report, options.plot)
        except NoPlotError as error:
            print(f"benchmarks: plot skipped: {error}", file=sys.stderr)
    for failure in report.failures:
        print(f"benchmarks: no figure: {failure}", file=sys.stderr)
    return 1 if report.failures else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="the long form: an hour, and the only one for figures"
    )
    parser.add_argument("--only", type=_names(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--subjects", type=_names(SUBJECTS), help=f"some of {','.join(SUBJECTS)}")
    parser.add_argument("--records", type=_count(1_000, 2_000_000), help="of a usual case")
    parser.add_argument("--rounds", type=_count(1, 50), help="of every table")
    parser.add_argument("--restore", type=_count(3_000, 20_000_000), help="entries")
    parser.add_argument("--json", type=Path, help="write everything, each single run included, here")
    parser.add_argument("--plot", type=Path, help="draw a picture (PNG) here; needs the extra `bench`")
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown")
    parser.add_argument("--page", type=Path, help="put the tables into this page, between its two marks")
    parser.add_argument("--read", type=Path, help="show what --json wrote before; nothing is measured")
    return parser.parse_args(arguments)


def _count(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text.replace("_", ""))
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{least} to {most}")
        return value

    return number


def _names(known: Iterable[str]) -> Callable[[str], frozenset[str]]:
    def names(text: str) -> frozenset[str]:
        found = frozenset(text.split(","))
        if not found <= set(known):
            raise argparse.ArgumentTypeError(f"some of {','.join(known)}")
        return found

    return names


def _read(path: Path) -> Report:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError) as error:
        raise SystemExit(f"benchmarks: {path} is nothing that --json wrote: {error}") from None


def _keep(report: Report, path: Path | None) -> None:
    """Write what there is so far: a measurement of an hour must not be lost with its last minute."""
    if path is None:
        return
    unfinished = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
        unfinished.replace(path)
    except OSError as error:
        raise SystemExit(f"benchmarks: {path} cannot be written: {error}") from None


def _write_page(page: Path, report: Report) -> None:
    before, begin, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise SystemExit(f"benchmarks: {page} has not the marks {_BEGIN.strip()} and {_END}")
    page.write_text(f"{before}{begin}{render(report, markdown=True)}\n{end}{after}", encoding="utf-8")


def _form(options: argparse.Namespace) -> Form:
    form = FULL if options.full else SHORT
    if options.rounds:
        form = msgspec.structs.replace(
            form, rounds=options.rounds, side_rounds=options.rounds, restore_rounds=options.rounds
        )
    return msgspec.structs.replace(
        form, records=options.records or form.records, restore=options.restore or form.restore
    )


def _measure(broker: KafkaBroker, form: Form, options: argparse.Namespace) -> Report:
    parts: frozenset[Part] = options.only or frozenset(PARTS)
    began_s = time.monotonic()
    cluster = Cluster(broker.bootstrap)
    tag = f"laneway-bench-{uuid.uuid4().hex[:8]}"
    report = describe(_command(options), broker.source, form)
    report.cases = [
        case for case in cases(form, parts) if options.subjects is None or case.subject in options.subjects
    ]

    def keep() -> None:
        report.load_after = load_average()
        report.seconds = round(time.monotonic() - began_s)
        _keep(report, options.json)

    keep()
    ground = Ground(cluster, tag, say)
    report.value_bytes = ground.value_bytes
    try:
        run(report.cases, report.runs, ground, say, form.deadline_s, keep)
        failed = (each.why for runs in report.runs.values() for each in runs if isinstance(each, Failed))
        report.failures.extend(failed)
        for part, measure in _others(report, cluster, tag).items():
            if part in parts:
                try:
                    measure()
                except SubjectFailedError as error:
                    report.failures.append(str(error))
                keep()
    except KeyboardInterrupt:
        report.failures.append("interrupted: these are the figures until then")
    finally:
        ground.close()
    keep()
    return report


def _others(report: Report, cluster: Cluster, tag: str) -> dict[Part, Callable[[], None]]:
    """The parts that are not rounds over cases."""
    form = report.form

    def processes() -> None:
        report.processes = measure_processes(
            cluster,
            tag,
            counts=form.processes,
            rounds=form.side_rounds,
            window_s=form.process_s,
            about=_about(report),
            say=say,
        )

    def latency() -> None:
        report.latency = measure_latency(cluster, tag, seconds=form.latency_s, about=_about(report), say=say)

    def restore() -> None:
        report.restore = measure_restore(
            cluster,
            tag,
            entries=form.restore,
            rounds=form.restore_rounds,
            window_s=FULL_WINDOW_S if form.full else WINDOW_S,
            say=say,
        )

    return {"processes": processes, "latency": latency, "restore": restore}


def _command(options: argparse.Namespace) -> str:
    """The command that does it again."""
    if (
        options.only is None
        and options.subjects is None
        and options.rounds is None
        and options.records is None
    ):
        return "make bench-full" if options.full else "make bench"
    words = ["python -m benchmarks"] + (["--full"] if options.full else [])
    for name in ("only", "subjects"):
        found = getattr(options, name)
        words += [f"--{name} {','.join(sorted(found))}"] if found else []
    for name in ("records", "rounds", "restore"):
        found = getattr(options, name)
        words += [f"--{name} {found}"] if found else []
    return " ".join(words)


def _about(report: Report) -> float:
    speeds = [
        run.per_second
        for case in report.cases
        if case.part == "peers" and case.subject == "changelog"
        for run in report.runs[case.name]
        if isinstance(run, Measured)
    ]
    return median(speeds) if speeds else ABOUT


def say(text: str) -> None:
    """Progress, for people: seconds since the start, and what was just done."""
    print(f"{time.monotonic() - _STARTED_S:5.0f}  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
