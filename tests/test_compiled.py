"""The rules compiled to native code: built as a user builds them, they keep what the others keep."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SEEDS = 250
BUILD_S = 300
RUN_S = 300


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a build reads, so that it leaves nothing in the tree."""
    copy = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(REPOSITORY / name, copy)
    shutil.copytree(REPOSITORY / "laneway", copy / "laneway", ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def compiled(sources: Path) -> Path:
    """A directory with the compiled package; where there is no C compiler, with what that comes to."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        # Then nobody can build it here, and what is promised is that nobody needs it.
        return _build(sources, "interpreted", compiled=False)
    return _build(sources, "compiled", compiled=True)


def _build(sources: Path, name: str, *, compiled: bool) -> Path:
    target = sources / name
    command = [sys.executable, "setup.py", "-q", "build", "--build-base", f"{name}-base", "--build-lib", name]
    # Optimised code is not truer code, and takes longer to make.
    environment = {**os.environ, "LANEWAY_COMPILED": "1" if compiled else "", "MYPYC_OPT_LEVEL": "0"}
    _run(command, sources, environment, BUILD_S)
    return target


def _run(command: Sequence[str], directory: Path, environment: dict[str, str], timeout_s: float) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def _with(package: Path, *command: str) -> str:
    """Run Python with this package before the one of the source tree."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(package), str(REPOSITORY))),
        "PYTHONSAFEPATH": "1",
    }
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    return _run([sys.executable, *command], REPOSITORY, environment, RUN_S)


def test_the_compiled_rules_are_those_that_run(compiled: Path) -> None:
    """Who has compiled them sees so in `laneway --version`, and imports nothing else."""
    said = _with(compiled, "-m", "laneway.cli.main", "--version")
    assert said.endswith("(compiled rules)\n") is (compiled.name == "compiled")
    where = _with(compiled, "-c", "from laneway.lanes import board, judging; print(board.__file__)")
    assert where.startswith(str(compiled))


def test_the_compiled_rules_pass_the_tests_of_the_rules(compiled: Path) -> None:
    """Every test of the pure core holds for the compiled one."""
    said = _with(
        compiled,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        f"pythonpath={compiled} .",
        "tests/lanes",
    )
    assert " passed" in said


def test_the_compiled_rules_break_no_promise(compiled: Path) -> None:
    """Histories of the simulation end as they do with the interpreted rules."""
    said = _with(compiled, "-m", "tests.simulation", "--seeds", str(SEEDS), "--processes", "1")
    assert f"{SEEDS} seeds from 0: 0 broke a promise" in said


def test_without_being_asked_nothing_is_compiled(sources: Path) -> None:
    """A plain installation needs no compiler."""
    plain = _build(sources, "plain", compiled=False)
    assert (plain / "laneway" / "lanes" / "board.py").exists()
    assert not list(plain.rglob("*.so"))
