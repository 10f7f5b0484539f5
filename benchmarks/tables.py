"""A report as tables, for a terminal or as Markdown. Ratios are taken inside a round, figures are medians."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Final

import msgspec

from benchmarks.latency import FIRST, LINGER_MS, Latency, Percentiles
from benchmarks.peers.work import millis
from benchmarks.plan import LANEWAY, ONE_BY_ONE, SUBJECTS, Case
from benchmarks.processes import PARTITIONS as PROCESS_PARTITIONS
from benchmarks.report import Report
from benchmarks.restore import Alone, Beside, Restored
from benchmarks.supervise import Measured
from benchmarks.throughput import WARM

_SUBJECT: Final = "changelog"
MOST: Final = 1.02
"""Of what its handlers can do, no subject does more."""
_HANDLERS: Final = {
    "none": "a handler that does nothing",
    "sleep": "a handler that blocks for {} ms",
    "async": "a handler that awaits for {} ms",
    "cpu": "a handler that computes for {} ms",
}


class Table(msgspec.Struct):
    """Rows under columns; the first column is text, and the last where `remark`."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]]
    remark: bool = False


def render(report: Report, *, markdown: bool = False) -> str:
    """All of it."""
    shape = _markdown if markdown else _plain
    head = "\n".join(_head(report))
    parts = [f"```\n{head}\n```" if markdown else head, *map(shape, _tables(report))]
    return "\n\n".join(parts)


def _head(report: Report) -> Iterator[str]:
    form = report.form
    yield f"taken    {report.taken_at} by {report.command}, in {report.seconds:.0f} s" + (
        "" if form.full else "   SHORT FORM: a look, no figure"
    )
    yield (
        f"machine  {report.machine}, {report.cpus} CPUs, {report.memory_gib} GiB, "
        f"load {report.load_before} before it began, {report.load_after} at the end"
    )
    yield f"broker   {report.broker}, on the same machine"
    yield "versions " + ", ".join(f"{name} {number}" for name, number in report.versions.items())
    yield f"laneway  {report.conditions}"
    if report.value_bytes:
        sizes = ", ".join(f"{size} with {keys:,} keys" for keys, size in report.value_bytes.items())
        yield f"values   bytes: {sizes}"
        yield (
            f"rounds   {form.rounds} of the peers, {form.side_rounds} of the other tables; medians, ratios "
            "inside a round"
        )
        yield f"clock    from 1/{WARM} of the records until all is committed"


def _tables(report: Report) -> Iterator[Table]:
    for part in ("peers", "handlers"):
        groups: dict[tuple[str, int], list[Case]] = {}
        for case in report.cases:
            if case.part == part:
                groups.setdefault((case.handler, case.keys), []).append(case)
        for cases in groups.values():
            yield _beside_peers(report, cases)
    for part, what, value in _GROWTH:
        cases = [case for case in report.cases if case.part == part]
        if cases:
            yield _grown(report, cases, what, value)
    if report.processes:
        yield _processes(report)
    if report.latency:
        yield _latencies(report.latency)
    if report.restore is not None:
        yield _restored(report.restore)


_GROWTH: Final[tuple[tuple[str, str, Callable[[Case], int]], ...]] = (
    ("keys", "keys", lambda case: case.keys),
    ("ledger", "effects in the ledger before", lambda case: case.effects),
    ("partitions", "partitions", lambda case: case.partitions),
)


def runs_of(report: Report, case: Case) -> list[Measured]:
    """The runs that have a figure."""
    return [run for run in report.runs[case.name] if isinstance(run, Measured)]


def of_runs(runs: Iterable[Measured], figure: Callable[[Measured], float]) -> float:
    """The median."""
    return median(map(figure, runs))


def _per_second(run: Measured) -> float:
    return run.per_second


def _cpu_us(run: Measured) -> float:
    return 1e6 * run.cpu_s / run.records


def _mib(run: Measured) -> float:
    return run.peak_mib


def ratio(report: Report, case: Case, other: Case) -> str:
    """How many times the records per second of the other it does: the median over the rounds they share."""
    pairs = zip(report.runs[case.name], report.runs[other.name], strict=False)
    found = [
        one.per_second / two.per_second
        for one, two in pairs
        if isinstance(one, Measured) and isinstance(two, Measured)
    ]
    return f"{median(found):.3g}" if found else "-"


def _beside_peers(report: Report, cases: list[Case]) -> Table:
    """One kind of handler: what each does, and how many times of it Laneway does."""
    first = cases[0]
    kind = first.handler.partition("-")[0]
    title = _HANDLERS[kind].format(f"{millis(first.handler):g}")
    title += f"; {first.keys:,} keys" if first.keys > 1 else "; one hot key"
    title += f", {first.partitions} partitions"
    if kind in ("sleep", "async"):
        ceiling = first.concurrency * 1000 / millis(first.handler)
        title += f"; {first.concurrency} at a time could do {ceiling:,.0f} records/s"
    else:
        ceiling = 0.0
    mine = [case for case in cases if case.subject in LANEWAY and case.label == case.subject]
    columns = ["subject", "records", "records/s", *(["of that"] if ceiling else []), "cpu us", "MiB"]
    tells = first.part == "peers"
    columns += [f"{case.subject} / it" for case in mine] + ["what a user of it gets" if tells else ""]
    rows: list[Sequence[str]] = []
    for case in cases:
        promises = SUBJECTS[case.subject].promises if tells else ""
        runs = runs_of(report, case)
        why = "" if runs else _why_none(report, case)
        if runs and is_a_wonder(case, runs):
            why = "no figure: more than its handlers can do"
        if why:
            blanks = ["-"] * (len(columns) - 3)
            rows.append([case.label, f"{case.records:,}", *blanks, why])
            continue
        speed = of_runs(runs, _per_second)
        rows.append(
            [
                case.label,
                f"{case.records:,}",
                f"{speed:,.0f}",
                *([f"{speed / ceiling:.0%}"] if ceiling else []),
                f"{of_runs(runs, _cpu_us):,.1f}",
                f"{of_runs(runs, _mib):,.0f}",
                *("-" if case == own else ratio(report, own, case) for own in mine),
                promises,
            ]
        )
    return Table(title, columns, rows, remark=True)


def is_a_wonder(case: Case, runs: Sequence[Measured]) -> bool:
    """Whether a subject did more than its handlers could: its clock was wrong."""
    if case.handler.partition("-")[0] not in {"sleep", "async"}:
        return False
    concurrency = 1 if case.subject in ONE_BY_ONE else case.concurrency
    return of_runs(runs, _per_second) > MOST * concurrency * 1000 / millis(case.handler)


def _why_none(report: Report, case: Case) -> str:
    for run in report.runs[case.name]:
        if not isinstance(run, Measured):
            return f"{type(run).__name__.lower()}: {run.why}"
    return "not run"


def _grown(report: Report, cases: list[Case], what: str, value: Callable[[Case], int]) -> Table:
    rows: list[Sequence[str]] = []
    for number, case in enumerate(cases):
        runs = runs_of(report, case)
        if not runs:
            rows.append([f"{value(case):,}", _why_none(report, case), *["-"] * 4])
            continue
        before = cases[number - 1] if number else None
        rows.append(
            [
                f"{value(case):,}",
                f"{of_runs(runs, _per_second):,.0f}",
                "-" if before is None else ratio(report, case, before),
                "-" if before is None else ratio(report, case, cases[0]),
                f"{of_runs(runs, _cpu_us):,.1f}",
                f"{of_runs(runs, _mib):,.0f}",
            ]
        )
    first = cases[0]
    fixed = [f"{first.records:,} records"]
    fixed += [f"{first.keys:,} keys"] if what != "keys" else []
    fixed += [f"{first.partitions} partition(s)"] if what != "partitions" else []
    columns = [what, "records/s", "of the row above", "of the first row", "cpu us", "MiB"]
    return Table(f"{_SUBJECT}, more {what}; {', '.join(fixed)}, a handler that does nothing", columns, rows)


def _processes(report: Report) -> Table:
    found: dict[int, list[tuple[float, float]]] = {}
    for one in report.processes:
        found.setdefault(one.processes, []).append((one.per_second, one.cpus))
    rows: list[Sequence[str]] = []
    speeds: list[float] = []
    for count, runs in found.items():
        speeds.append(median(speed for speed, _ in runs))
        rows.append(
            [
                f"{count}",
                f"{speeds[-1]:,.0f}",
                "-" if len(speeds) == 1 else f"{speeds[-1] / speeds[-2]:.3g}",
                "-" if len(speeds) == 1 else f"{speeds[-1] / speeds[0]:.3g}",
                f"{median(cpus for _, cpus in runs):.2f}",
            ]
        )
    title = (
        f"{_SUBJECT}, more processes of one group; {PROCESS_PARTITIONS} partitions, {report.cpus} CPUs for "
        "them and the broker, a handler that does nothing"
    )
    columns = ["processes", "records/s together", "of the row above", "of the first row", "CPUs they had"]
    return Table(title, columns, rows)


def _latencies(found: list[Latency]) -> Table:
    def three(each: Percentiles) -> list[str]:
        return [f"{value:,.1f}" for value in (each.p50, each.p99, each.p999)]

    columns = ["load", "sent/s", "handled/s", "effect p50", "p99", "p99.9", "committed p50", "p99", "p99.9"]
    columns += ["producer late p99"]
    rows: list[Sequence[str]] = [
        [
            f"{one.share:.0%} of the maximum" if one.share else "finds the maximum",
            f"{one.per_second:,.0f}",
            f"{one.handled_per_second:,.0f}",
            *three(one.effect),
            *three(one.committed),
            f"{one.late.p99:,.1f}",
        ]
        for one in found
    ]
    title = (
        f"{_SUBJECT}, milliseconds from the time a record was to be sent; open loop, the first {FIRST} "
        f"records not counted, a producer with linger {LINGER_MS} ms on the same CPUs"
    )
    return Table(title, columns, rows)


def _restored(restored: Restored) -> Table:
    """The restore: its rate, its memory, and what the live partition beside it did."""
    alone, beside = restored.alone, restored.beside

    def of_alone(figure: Callable[[Alone], float]) -> str:
        return f"{median(map(figure, alone)):,.0f}"

    def of_beside(figure: Callable[[Beside], float], digits: int = 0) -> str:
        return f"{median(map(figure, beside)):,.{digits}f}"

    rows: list[Sequence[str]] = [
        ["alone, entries/s", of_alone(lambda run: run.entries / run.restore_s)],
        [
            "alone, resident MiB before; at most",
            f"{of_alone(lambda run: run.before_mib)}; {of_alone(lambda run: run.peak_mib)}",
        ],
    ]
    if beside:
        share = median(2 * run.during_per_s / (run.before_per_s + run.after_per_s) for run in beside)
        rows += [
            ["beside a live partition, entries/s", of_beside(lambda run: run.entries / run.restore_s)],
            [
                "beside a live partition, resident MiB before; at most; after",
                f"{of_beside(lambda run: run.before_mib)}; {of_beside(lambda run: run.peak_mib)}; "
                f"{of_beside(lambda run: run.after_mib)}",
            ],
            [
                f"that live partition, records/s before; meanwhile; after ({restored.window_s:g} s)",
                f"{of_beside(lambda run: run.before_per_s)}; {of_beside(lambda run: run.during_per_s)}; "
                f"{of_beside(lambda run: run.after_per_s)}",
            ],
            ["of what it does without", f"{share:.2f}"],
            [
                "CPUs the worker had before; meanwhile; after",
                f"{of_beside(lambda run: run.before_cpus, 2)}; {of_beside(lambda run: run.during_cpus, 2)}; "
                f"{of_beside(lambda run: run.after_cpus, 2)}",
            ],
        ]
    title = f"restore of {alone[0].entries:,} changelog entries, {len(alone)} round(s)"
    return Table(title, ["", "median"], rows)


def _plain(table: Table) -> str:
    lines = [table.columns, *table.rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(table.columns))]
    text = [table.title]
    for line in lines:
        cells = []
        for place, (cell, width) in enumerate(zip(line, widths, strict=True)):
            last = place == len(widths) - 1
            if place == 0:
                cells.append(cell.ljust(width))
            else:
                cells.append(cell if last and table.remark else cell.rjust(width))
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def _markdown(table: Table) -> str:
    aligned = ["---", *["---:"] * (len(table.columns) - 1)]
    if table.remark:
        aligned[-1] = "---"
    lines = [table.columns, aligned, *table.rows]
    rows = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
    return f"**{table.title[0].upper()}{table.title[1:]}**\n\n{rows}"
