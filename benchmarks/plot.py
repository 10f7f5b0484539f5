"""A report as one picture: throughput against keys, ledger size and handler time. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks.peers.work import millis
from benchmarks.plan import Case
from benchmarks.report import Report
from benchmarks.tables import is_a_wonder, of_runs, runs_of


class NoPlotError(Exception):
    """There is no picture, and why."""


def plot(report: Report, path: Path) -> None:
    """Draw what the report has.

    Raises:
        NoPlotError: matplotlib is not installed, or there is nothing to draw.
    """
    try:
        # Optional: nothing but this picture needs it.
        matplotlib = import_module("matplotlib")
    except ImportError:
        raise NoPlotError("matplotlib is not installed; the extra `bench` has it") from None
    matplotlib.use("Agg")
    pyplot = import_module("matplotlib.pyplot")

    panels = [panel for panel in _panels(report) if panel[1]]
    if not panels:
        raise NoPlotError("there is nothing to draw: no growth, no handlers that take time")
    figure, places = pyplot.subplots(1, len(panels), figsize=(5.2 * len(panels), 4.2), squeeze=False)
    for axes, (title, lines, scales) in zip(places[0], panels, strict=True):
        for label, points in lines.items():
            xs, ys = zip(*sorted(points), strict=True)
            axes.plot(xs, ys, marker="o", label=label)
        axes.set_xlabel(title)
        axes.set_ylabel("records/s")
        axes.set_xscale(scales[0])
        axes.set_yscale(scales[1])
        if scales[1] == "linear":
            axes.set_ylim(0, 1.15 * max(y for points in lines.values() for _, y in points))
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    figure.suptitle(f"{report.command}, {report.taken_at}, {report.machine}, {report.cpus} CPUs", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


Lines = dict[str, list[tuple[float, float]]]


def _panels(report: Report) -> list[tuple[str, Lines, tuple[str, str]]]:
    def grown(part: str, value: Callable[[Case], float]) -> Lines:
        lines: Lines = {}
        for case in report.cases:
            runs = runs_of(report, case)
            if case.part == part and runs:
                speed = of_runs(runs, lambda run: run.per_second)
                lines.setdefault(case.subject, []).append((value(case), speed))
        return lines

    def handled() -> Lines:
        lines: Lines = {}
        for case in report.cases:
            runs = runs_of(report, case)
            if case.handler.startswith("sleep-") and runs and not is_a_wonder(case, runs):
                speed = of_runs(runs, lambda run: run.per_second)
                lines.setdefault(case.subject, []).append((millis(case.handler), speed))
        return lines

    return [
        ("keys", grown("keys", lambda case: case.keys), ("log", "linear")),
        ("effects in the ledger before", grown("ledger", lambda case: case.effects), ("linear", "linear")),
        ("ms that a handler blocks", handled(), ("log", "log")),
    ]
