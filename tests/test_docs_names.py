"""Files and names that docs/how-it-works.md speaks of exist.

The page names a file as `path.py`, and a name in it right behind: `path.py` (`Name.method`), or the other way
round: `Name` in `path.py`. A name alone, such as `Board.blocked`, must exist somewhere in the package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "how-it-works.md"

_NAME = r"(?!\w+\.py`)[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?"
_PATH = re.compile(r"`([\w/]+\.py|[\w/]+/)`")
_BEHIND = re.compile(rf"`([\w/]+\.py)`\s+\(`({_NAME})`")
_BEFORE = re.compile(rf"`({_NAME})`\s+in\s+`([\w/]+\.py)`")
_QUALIFIED = re.compile(r"`([A-Z]\w*\.[A-Za-z_]\w*)`")
_CLASS = re.compile(r"`([A-Z][a-z]\w*)`")


def defined(tree: ast.AST) -> set[str]:
    """What a module or class defines by itself: `name`, `Class.name`."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        for name in _bound(node):
            found.add(name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner}" for inner in defined(node)}
    return found


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def broken(text: str, package: Path) -> list[str]:
    """What a page says of files and names below `package` that is not so."""
    names = {
        path.relative_to(package).as_posix(): defined(ast.parse(path.read_text(encoding="utf-8")))
        for path in package.rglob("*.py")
    }
    found = [f"{path}: no such file" for path in _PATH.findall(text) if not (package / path).exists()]
    pairs = _BEHIND.findall(text) + [(path, name) for name, path in _BEFORE.findall(text)]
    found += [f"{path}: no {name}" for path, name in pairs if path in names and name not in names[path]]
    everywhere = set().union(*names.values())
    alone = _QUALIFIED.findall(text) + _CLASS.findall(text)
    found += [f"no {name} anywhere" for name in alone if name not in everywhere]
    return found


def test_the_page_names_only_what_exists() -> None:
    """Every file, class and function that docs/how-it-works.md names is where it says."""
    text = PAGE.read_text(encoding="utf-8")
    assert len(_PATH.findall(text)) > 40
    assert len(_BEHIND.findall(text)) + len(_BEFORE.findall(text)) > 10
    assert broken(text, REPOSITORY / "laneway") == []


def test_what_has_moved_is_found(tmp_path: Path) -> None:
    """A page that names a file, a function, a method or a class that has gone is told so."""
    (tmp_path / "here.py").write_text(
        "LIMIT: int = 1\n\nclass A:\n    def run(self): ...\n", encoding="utf-8"
    )
    (tmp_path / "there.py").write_text("def walk(): ...\n", encoding="utf-8")
    right = "`here.py` (`A.run`), `walk` in `there.py`, `here.py`, `LIMIT`, `A.run`"
    assert broken(right, tmp_path) == []
    assert broken("`gone.py` and `old/`", tmp_path) == ["gone.py: no such file", "old/: no such file"]
    assert broken("`here.py` (`walk`)", tmp_path) == ["here.py: no walk"]
    assert broken("`A` in `there.py`", tmp_path) == ["there.py: no A"]
    assert broken("`A.stop` and `Gone`", tmp_path) == ["no A.stop anywhere", "no Gone anywhere"]
