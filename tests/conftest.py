"""For all tests: in CI (environment CI=true) a skipped test fails the run and is named at the end.

Everywhere else a skip stays a skip, so that a laptop without a broker still runs the rest.
"""

from __future__ import annotations

import os

import pytest

_skipped: list[str] = []

# Files that take half a minute and more come first: beside each other, with the short ones to fill the ends.
_LONG = (
    "test_simulation.py",
    "test_compiled.py",
    "test_cases_page.py",
    "test_moving_house.py",
    "test_changelog_faults.py",
    "test_crash_points.py",
    "test_demo.py",
    "test_commands.py",
    "test_rebalance.py",
    "test_outages.py",
    "test_breaker.py",
    "test_retry_order.py",
    "test_dev.py",
    "test_permits.py",
    "test_members.py",
    "test_restore.py",
    "test_harness.py",
    "test_changelog_smoke.py",
    "test_benchmarks.py",
    "test_examples.py",
)


def _in_ci() -> bool:
    return os.environ.get("CI") == "true"


def _remember(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return  # an expected failure reports itself as skipped, and is none
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    _skipped.append(f"{report.nodeid}: {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the long files first; the order inside a file stays."""
    ranks = {name: rank for rank, name in enumerate(_LONG)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(_LONG)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes a test that was skipped."""
    _remember(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Notes a module that was skipped whole."""
    _remember(report)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turns a run that would have passed with skips into a failed one."""
    if _in_ci() and _skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists what was skipped, and says that it failed the run."""
    if not (_in_ci() and _skipped):
        return
    terminalreporter.section("skipped tests fail this run (CI=true)", red=True, bold=True)
    for line in _skipped:
        terminalreporter.line(line)
