"""Environments of the peers, made on demand below `.bench/` and kept: a venv each, and the Java class.

A peer that cannot be had here is not silently left out: `UnavailableError` says why, and the table does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
PEERS: Final = Path(__file__).with_name("peers")
HOME: Final = REPOSITORY / ".bench"
INSTALL_DEADLINE_S: Final = 600.0
Command = tuple[str, ...]


class UnavailableError(Exception):
    """A peer cannot run here; the message is the reason to show."""


def own(module: str) -> Command:
    """A module in the environment of Laneway itself."""
    return (sys.executable, "-m", module)


@cache
def compiled(module: str) -> Command:
    """A module with the rules of Laneway compiled; see docs/decisions/0009-compiled-rules.md.

    Raises:
        UnavailableError: no C compiler, or they do not compile.
    """
    if shutil.which(os.environ.get("CC", "cc")) is None:
        raise UnavailableError("there is no C compiler here")
    sources = [REPOSITORY / "setup.py", *sorted((REPOSITORY / "laneway").rglob("*.py"))]
    mark = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    home = HOME / f"compiled-{mark}"
    if not (home / "built").exists():
        build = [sys.executable, "setup.py", "-q", "build"]
        where = ["--build-base", str(home / "base"), "--build-lib", str(home / "lib")]
        _run(["env", "LANEWAY_COMPILED=1", *build, *where], "the rules do not compile", cwd=REPOSITORY)
        (home / "built").touch()
    path = os.pathsep.join((str(home / "lib"), str(REPOSITORY)))
    return ("env", "PYTHONSAFEPATH=1", f"PYTHONPATH={path}", sys.executable, "-m", module)


@cache
def python_peer(name: str, minimum: tuple[int, int] = (3, 11)) -> Command:
    """A peer with a venv of its own, from `peers/NAME.txt`.

    Raises:
        UnavailableError: no such Python, or its packages cannot be installed.
    """
    wanted = PEERS / f"{name}.txt"
    interpreter = _interpreter(minimum)
    mark = hashlib.sha256(wanted.read_bytes() + interpreter.encode()).hexdigest()[:12]
    home = HOME / f"{name}-{mark}"
    python = home / "bin" / "python"
    if not (home / "installed").exists():
        shutil.rmtree(home, ignore_errors=True)
        _run([interpreter, "-m", "venv", str(home)], f"{name}: no venv")
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(wanted)]
        _run(pip, f"{name}: its packages cannot be installed")
        # Written last, so that an interrupted installation is done again.
        (home / "installed").touch()
    return (str(python), "-m", f"benchmarks.peers.{name}")


@cache
def java_peer() -> Command:
    """The Java peer, its jars fetched by Maven and its one class compiled.

    Raises:
        UnavailableError: no JDK, no Maven, or the jars cannot be had.
    """
    tools = {tool: shutil.which(tool) for tool in ("java", "javac", "mvn")}
    for tool, path in tools.items():
        if path is None:
            raise UnavailableError(f"there is no {tool} here")
    java, javac, maven = (str(path) for path in tools.values())
    sources = [PEERS / "java" / name for name in ("pom.xml", "Peer.java")]
    mark = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    home = HOME / f"java-{mark}"
    listed = home / "classpath"
    if not (home / "Peer.class").exists() or not _all_there(listed):
        home.mkdir(parents=True, exist_ok=True)
        plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
        fetch = [maven, "-q", "-B", "-f", str(sources[0]), plugin, f"-Dmdep.outputFile={listed}"]
        _run(fetch, "java: its jars cannot be fetched")
        _run([javac, "-cp", listed.read_text(), "-d", str(home), str(sources[1])], "java: does not compile")
    return (java, "-cp", f"{home}{os.pathsep}{listed.read_text()}", "Peer")


def available(make: Callable[[], Command]) -> tuple[Command, str]:
    """The command, or an empty one and why there is none."""
    try:
        return make(), ""
    except UnavailableError as error:
        return (), str(error)


def _all_there(class_path: Path) -> bool:
    return class_path.exists() and all(
        Path(jar).exists() for jar in class_path.read_text(encoding="utf-8").split(os.pathsep)
    )


def _interpreter(minimum: tuple[int, int]) -> str:
    for candidate in _interpreters():
        try:
            said = subprocess.run(
                [candidate, "-c", "import sys; print(*sys.version_info[:2])"],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except OSError:
            continue
        if said.returncode == 0 and tuple(map(int, said.stdout.split())) >= minimum:
            return candidate
    raise UnavailableError(f"it needs Python {'.'.join(map(str, minimum))} or newer, and none is here")


def _interpreters() -> Iterator[str]:
    yield sys.executable
    names = [f"python3.{minor}" for minor in range(12, 16)]
    yield from filter(None, map(shutil.which, names))
    # pyenv puts only the versions of its choice on the path.
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from map(str, sorted(versions.glob("3.*/bin/python3")))


def _run(command: list[str], complaint: str, *, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_DEADLINE_S, check=False, cwd=cwd
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{complaint} within {INSTALL_DEADLINE_S:g} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise UnavailableError(f"{complaint}: {said[-1][:200] if said else f'exit {done.returncode}'}")
