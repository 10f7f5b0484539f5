"""A skip is a failure in CI, and only there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
PASSES = "def test_passes(): pass\n"
SKIPS = "import pytest\n@pytest.mark.skip(reason='no broker')\ndef test_skipped(): pass\n"
SKIPS_WHOLE = "import pytest\npytest.skip('no broker', allow_module_level=True)\n"
XFAILS = "import pytest\n@pytest.mark.xfail\ndef test_known_bug(): assert False\n"


def run_pytest(
    folder: Path, test: str, ci: str | None, processes: str = "0"
) -> subprocess.CompletedProcess[str]:
    """Runs pytest on one planted test file with the conftest of these tests."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_planted.py").write_text(PASSES)
    (folder / "test_planted_too.py").write_text(test)
    env = {name: value for name, value in os.environ.items() if name != "CI" and "PYTEST" not in name}
    if ci is not None:
        env["CI"] = ci
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-n",
        processes,
        "--rootdir",
        str(folder),
        str(folder),
    ]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize("test", [SKIPS, SKIPS_WHOLE], ids=["test", "module"])
def test_a_skip_fails_the_run_in_ci(tmp_path: Path, test: str, processes: str) -> None:
    """With CI=true a skipped test or module makes the exit code non-zero and is named, also side by side."""
    run = run_pytest(tmp_path, test, "true", processes)
    assert run.returncode == 1, run.stdout
    assert "skipped tests fail this run" in run.stdout
    assert "test_planted_too.py" in run.stdout
    assert "no broker" in run.stdout


def test_a_skip_is_allowed_elsewhere(tmp_path: Path) -> None:
    """Without CI=true a skipped test leaves the run green."""
    assert run_pytest(tmp_path, SKIPS, None).returncode == 0


@pytest.mark.parametrize("test", [PASSES, XFAILS], ids=["pass", "xfail"])
def test_what_is_no_skip_passes_in_ci(tmp_path: Path, test: str) -> None:
    """With CI=true passing tests and expected failures leave the run green."""
    run = run_pytest(tmp_path, test, "true")
    assert run.returncode == 0, run.stdout
