"""The shape of the package, checked on its source: who may import whom, and what a module must look like.

Each rule is a function from a source tree to sentences about what breaks it. Every rule is run on `laneway/`
(no sentence may come back), and on small planted trees that break it (a sentence must come back).
Imports count wherever they stand: at the top, inside a function, under TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
MAX_LINES = 500

# lanes <- store <- consumer <- cli. What stands beside the four parts has its own row;
# the empty name is laneway/__init__.py.
MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "errors": frozenset(),
    "lanes": frozenset({"errors"}),
    "payload": frozenset({"errors", "lanes"}),
    "emitting": frozenset({"lanes"}),
    "delivery": frozenset({"lanes", "emitting"}),
    "handlers": frozenset({"errors", "payload"}),
    "lifespan": frozenset({"errors", "payload", "handlers"}),
    "processing": frozenset({"lanes", "payload", "delivery", "handlers"}),
    "pipeline": frozenset({"errors", "lanes", "payload", "delivery", "handlers", "lifespan", "processing"}),
    "app": frozenset({"errors", "lanes", "pipeline"}),
    "store": frozenset({"errors", "lanes"}),
    "testing": frozenset({"errors", "lanes", "processing", "pipeline", "store"}),
    "consumer": frozenset(
        {"errors", "lanes", "delivery", "handlers", "lifespan", "processing", "pipeline", "app", "store"}
    ),
    "cli": frozenset({"errors", "lanes", "pipeline", "app", "store", "consumer"}),
    "__main__": frozenset({"errors", "cli"}),
    "": frozenset({"errors", "lanes", "pipeline"}),
}
ONLY_IN: Mapping[str, str] = {"rocksdict": "store", "confluent_kafka": "consumer"}
LANES_LIBRARIES = frozenset({"msgspec"})
IMPURE = frozenset(
    {"asyncio", "concurrent", "logging", "multiprocessing", "os", "random"}
    | {"secrets", "socket", "subprocess", "threading", "time"}
)
CLOCK_READINGS = frozenset({"now", "utcnow", "today"})
EMPTY_NAMES = frozenset({"common", "constants", "dto", "helpers", "misc", "utils"})


@dataclass(frozen=True)
class Module:
    """One source file of the package, by its dotted name."""

    name: str
    path: Path

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(), filename=str(self.path))

    @property
    def part(self) -> str:
        """The first name below `laneway`; empty for the package's own face."""
        return self.name.partition(".")[2].partition(".")[0]


@dataclass(frozen=True)
class Import:
    """That `module` imports `target`: a module of ours as far as it is one, else the name as written."""

    module: Module
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.module.name}:{self.line} imports {self.target}"


class SourceTree:
    """The modules of the package `laneway` below a folder."""

    def __init__(self, root: Path) -> None:
        self.modules: dict[str, Module] = {}
        for path in sorted((root / "laneway").rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.modules[name] = Module(name, path)

    @cached_property
    def imports(self) -> list[Import]:
        return [found for module in self.modules.values() for found in self._imports_of(module)]

    def _imports_of(self, module: Module) -> Iterator[Import]:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(module, alias.name, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                base = self._base_of(module, node)
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    yield Import(module, inner if inner in self.modules else base, node.lineno)

    @staticmethod
    def _base_of(module: Module, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = module.name.split(".")
        above = node.level - (module.path.name == "__init__.py")
        return ".".join([*package[: len(package) - above], *([node.module] if node.module else [])])


def _is_ours(target: str) -> bool:
    return target.partition(".")[0] == "laneway"


def against_the_direction(tree: SourceTree) -> Iterator[str]:
    """A part imports only what stands to its left: see MAY_IMPORT."""
    for found in tree.imports:
        part = found.module.part
        if part not in MAY_IMPORT:
            yield f"{found.module.name}: {part!r} has no row in MAY_IMPORT"
        elif _is_ours(found.target):
            target_part = found.target.partition(".")[2].partition(".")[0]
            if target_part != part and target_part not in MAY_IMPORT[part]:
                yield f"{found}: {part or 'laneway'} may not import {target_part or 'laneway'}"


def in_a_cycle(tree: SourceTree) -> Iterator[str]:
    """No module reaches itself through the modules it imports."""
    edges: dict[str, set[str]] = {name: set() for name in tree.modules}
    for found in tree.imports:
        if found.target in edges:
            edges[found.module.name].add(found.target)
    finished: set[str] = set()

    def walk(name: str, path: list[str]) -> Iterator[str]:
        if name in path:
            yield "import cycle: " + " -> ".join([*path[path.index(name) :], name])
        elif name not in finished:
            for target in sorted(edges[name]):
                yield from walk(target, [*path, name])
            finished.add(name)

    for name in edges:
        yield from walk(name, [])


def library_out_of_place(tree: SourceTree) -> Iterator[str]:
    """rocksdict stays in the store, confluent_kafka in the consumer."""
    for found in tree.imports:
        home = ONLY_IN.get(found.target.partition(".")[0])
        if home is not None and found.module.part != home:
            yield f"{found}: only {home} may"


def impure_lanes(tree: SourceTree) -> Iterator[str]:
    """The lanes know no library but msgspec, and no clock, thread, log, chance or operating system."""
    for found in tree.imports:
        top = found.target.partition(".")[0]
        if found.module.part != "lanes" or _is_ours(found.target):
            continue
        if top in IMPURE:
            yield f"{found}: lanes are pure"
        elif top not in sys.stdlib_module_names and top not in LANES_LIBRARIES:
            yield f"{found}: lanes use the standard library and msgspec only"
    for module in tree.modules.values():
        if module.part != "lanes":
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in CLOCK_READINGS:
                owner = ast.unparse(node.value)
                if owner.rpartition(".")[2] in {"datetime", "date"}:
                    yield f"{module.name}:{node.lineno} reads the clock by {owner}.{node.attr}"


def without_docstring(tree: SourceTree) -> Iterator[str]:
    """A module opens with its purpose."""
    for module in tree.modules.values():
        if not ast.get_docstring(module.tree):
            yield f"{module.name}: no docstring"


def too_long(tree: SourceTree) -> Iterator[str]:
    """A module can be read in one sitting."""
    for module in tree.modules.values():
        lines = len(module.path.read_text().splitlines())
        if lines > MAX_LINES:
            yield f"{module.name}: {lines} lines, more than {MAX_LINES}"


def named_for_nothing(tree: SourceTree) -> Iterator[str]:
    """A module is named for what it does."""
    for module in tree.modules.values():
        for word in module.name.split("."):
            if word in EMPTY_NAMES or word.endswith("_support"):
                yield f"{module.name}: {word!r} says nothing"


Rule = Callable[[SourceTree], Iterator[str]]
RULES: list[Rule] = [
    against_the_direction,
    in_a_cycle,
    library_out_of_place,
    impure_lanes,
    without_docstring,
    too_long,
    named_for_nothing,
]

# (rule, files of a tree that breaks it, a part of the sentence that must come back)
FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
Breach = tuple[Rule, Mapping[str, str], str]
BREACHES: list[Breach] = [
    (
        against_the_direction,
        {"lanes/board.py": "from laneway.store import ledger"},
        "lanes may not import store",
    ),
    (
        against_the_direction,
        {"lanes/board.py": "from laneway import pipeline"},
        "lanes may not import laneway",
    ),
    (
        against_the_direction,
        {"store/ledger.py": "import laneway.consumer.kafka"},
        "store may not import consumer",
    ),
    (against_the_direction, {"store/ledger.py": "from ..pipeline import P"}, "store may not import pipeline"),
    (against_the_direction, {"store/__init__.py": "from ..cli import x"}, "store may not import cli"),
    (
        against_the_direction,
        {"consumer/intake.py": "def f():\n import laneway.cli"},
        "consumer may not import cli",
    ),
    (
        against_the_direction,
        {"pipeline.py": "from laneway.store import ledger"},
        "pipeline may not import store",
    ),
    (
        against_the_direction,
        {"testing.py": "from laneway.consumer import x"},
        "testing may not import consumer",
    ),
    (against_the_direction, {"errors.py": "import laneway.lanes"}, "errors may not import lanes"),
    (against_the_direction, {"__init__.py": "from laneway.cli import main"}, "laneway may not import cli"),
    (
        against_the_direction,
        {"lanes/lane.py": f"{FOR_TYPES} from laneway.cli import main"},
        "laneway.lanes.lane:3 imports laneway.cli: lanes may not import cli",
    ),
    (against_the_direction, {"extra.py": "import json"}, "'extra' has no row"),
    (
        in_a_cycle,
        {
            "lanes/a.py": "from laneway.lanes import b",
            "lanes/b.py": "from .c import x",
            "lanes/c.py": "from . import a",
        },
        "laneway.lanes.a -> laneway.lanes.b -> laneway.lanes.c -> laneway.lanes.a",
    ),
    (
        in_a_cycle,
        {
            "lanes/a.py": f"{FOR_TYPES} from laneway.lanes.b import B",
            "lanes/b.py": "def late():\n from laneway.lanes.a import A",
        },
        "laneway.lanes.a -> laneway.lanes.b -> laneway.lanes.a",
    ),
    (
        in_a_cycle,
        {"lanes/__init__.py": "from laneway.lanes.a import A", "lanes/a.py": "from laneway.lanes import A"},
        "laneway.lanes -> laneway.lanes.a -> laneway.lanes",
    ),
    (library_out_of_place, {"consumer/settler.py": "from rocksdict import Rdict"}, "only store may"),
    (library_out_of_place, {"testing.py": "import rocksdict"}, "only store may"),
    (library_out_of_place, {"cli/offsets.py": "from confluent_kafka.admin import x"}, "only consumer may"),
    (library_out_of_place, {"store/ledger.py": "import confluent_kafka"}, "only consumer may"),
    *[(impure_lanes, {"lanes/due.py": f"import {name}"}, "lanes are pure") for name in sorted(IMPURE)],
    (impure_lanes, {"lanes/due.py": "from os.path import join"}, "lanes are pure"),
    (impure_lanes, {"lanes/due.py": "import pydantic"}, "standard library and msgspec only"),
    (impure_lanes, {"lanes/due.py": "import datetime as d\nd.datetime.now()"}, "reads the clock"),
    (impure_lanes, {"lanes/due.py": "from datetime import date\ndate.today()"}, "reads the clock"),
    (without_docstring, {"lanes/due.py": "x = 1"}, "laneway.lanes.due: no docstring"),
    (without_docstring, {"lanes/__init__.py": ""}, "laneway.lanes: no docstring"),
    (too_long, {"lanes/due.py": "x = 1\n" * (MAX_LINES + 1)}, "501 lines"),
    *[
        (named_for_nothing, {f"store/{name}.py": ""}, f"{name!r} says nothing")
        for name in sorted(EMPTY_NAMES)
    ],
    (named_for_nothing, {"store/rocks_support.py": ""}, "'rocks_support' says nothing"),
    (named_for_nothing, {"store/utils/rocks.py": ""}, "'utils' says nothing"),
]

SOUND = {
    "__init__.py": '"""The face."""\nfrom laneway.pipeline import P\n',
    "errors.py": '"""Errors."""\n',
    "pipeline.py": '"""P."""\nfrom laneway.lanes.record import R\nP = R\n',
    "lanes/__init__.py": '"""Rules."""\n',
    "lanes/record.py": '"""R."""\nimport enum\nimport msgspec\nfrom laneway.errors import E\nR = 1\n',
    "lanes/board.py": '"""B."""\nfrom . import record\nimport datetime as d\nd.datetime.fromtimestamp(0)\n',
    "store/__init__.py": '"""Store."""\n',
    "store/ledger.py": '"""L."""\nimport rocksdict, time\nfrom ..lanes import record\n',
    "consumer/kafka/cluster.py": '"""K."""\nimport confluent_kafka\nfrom ..store import ledger\n',
    "cli/main.py": '"""M."""\nfrom laneway.consumer import kafka\n',
    "testing.py": '"""T."""\nfrom laneway import pipeline, store\nfrom laneway.lanes.board import B\n',
}


def planted(root: Path, files: Mapping[str, str]) -> SourceTree:
    """A tree `laneway/` of these files."""
    for name, text in files.items():
        path = root / "laneway" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return SourceTree(root)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule: Rule) -> None:
    """No module of the package breaks the rule that the parameter names."""
    tree = SourceTree(REPOSITORY)
    assert "laneway.errors" in tree.modules, "looked in the wrong place"
    broken = list(rule(tree))
    assert not broken, "\n".join([str(rule.__doc__), *broken])


@pytest.mark.parametrize(("rule", "files", "sentence"), BREACHES)
def test_a_breach_is_found(tmp_path: Path, rule: Rule, files: Mapping[str, str], sentence: str) -> None:
    """A planted tree that breaks a rule is reported by that rule."""
    broken = list(rule(planted(tmp_path, {**dict.fromkeys(_packages(files), ""), **files})))
    assert any(sentence in line for line in broken), broken


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_sound_tree_passes(tmp_path: Path, rule: Rule) -> None:
    """A planted tree with the allowed imports is reported by no rule."""
    assert list(rule(planted(tmp_path, SOUND))) == []


def _packages(files: Mapping[str, str]) -> list[str]:
    """The package files of a tree in which imports of every part can be resolved."""
    folders = {Path(name).parent for name in files}
    folders |= {Path(part) for part in (".", "lanes", "store", "consumer", "cli")}
    return [str(folder / "__init__.py") for folder in sorted(folders)]
