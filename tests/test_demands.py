"""Every demand and every scenario that this release answers is named by a test.

A demand is written `S11`, a scenario from other projects' bug reports `case 19` (or `cases 1, 17`), in the
docstring of the test that shows it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
DEMANDS = frozenset(range(1, 27))
CASES = frozenset(range(1, 45))

_DEMAND = re.compile(r"\bS(\d+)\b")
_CASES = re.compile(r"\b[Cc]ases?\s+((?:\d+(?:\s*(?:,|and|/)\s*)?)+)")


def docstrings(root: Path) -> Iterator[str]:
    """The docstrings of all test functions below `root`."""
    for path in root.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield " ".join((ast.get_docstring(node) or "").split())


def named(root: Path) -> tuple[set[int], set[int]]:
    """Numbers of the demands and of the cases that docstrings name."""
    demands: set[int] = set()
    cases: set[int] = set()
    for text in docstrings(root):
        demands.update(int(number) for number in _DEMAND.findall(text))
        for match in _CASES.findall(text):
            cases.update(int(number) for number in re.findall(r"\d+", match))
    return demands, cases


def test_no_demand_is_without_a_test() -> None:
    """S1 to S26 are each named by at least one test."""
    demands, _ = named(TESTS)
    assert sorted(DEMANDS - demands) == []


def test_no_scenario_of_this_release_is_without_a_test() -> None:
    """Each scenario that this release has to make impossible is named by at least one test."""
    _, cases = named(TESTS)
    assert sorted(CASES - cases) == []


def test_a_missing_name_is_noticed(tmp_path: Path) -> None:
    """The check reads docstrings of tests, and nothing else."""
    (tmp_path / "test_one.py").write_text(
        '"""S9"""\n\ndef test_a() -> None:\n    """Shows S11 and S12 (cases 1, 17 and 44)."""\n    # S13\n'
    )
    demands, cases = named(tmp_path)
    assert 9 not in demands
    assert demands == {11, 12}
    assert cases == {1, 17, 44}
