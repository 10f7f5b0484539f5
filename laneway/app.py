"""From `module:attr` or `./file.py:attr` to a Pipeline, with errors that say what was tried.

An application is imported the way Python itself would run it: the current directory (and a file's own)
stands first on `sys.path`. Its modules never meet ours, which all live inside `laneway`; a file whose
name is taken by a module that is already loaded, such as `queue.py`, is loaded under a name of its own.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from laneway.errors import AppImportError
from laneway.lanes.failures import bounded, class_name
from laneway.pipeline import Pipeline

_MAX_NAMES: Final = 8


def load_app(spec: str) -> Pipeline[Any]:
    """Import an application.

    Args:
        spec: `module:attr`, `package.module:attr`, `./file.py:attr`, or the same without `:attr` when
            the module holds exactly one Pipeline. The attribute is a Pipeline or a handler function.

    Raises:
        AppImportError: there is no such module, file or name, its import failed, or it is no pipeline.
    """
    target, attribute = _split(spec)
    _put_first_on_path(str(Path.cwd()))
    if target.endswith(".py") or os.sep in target or "/" in target:
        module = _import_file(Path(target).absolute())
    else:
        module = _import_module(target)
    where = f"{target}:{attribute}" if attribute else target
    found = _attribute(module, attribute, where) if attribute else _only_pipeline(module, where)
    _refuse_a_handler(found, module, where, target)
    pipeline = _as_pipeline(found, where)
    if not pipeline.has_handler:
        raise AppImportError(
            "the pipeline has no handler", where=where, mend="decorate a function with @pipeline.handler"
        )
    return pipeline


def _split(spec: str) -> tuple[str, str]:
    target, colon, attribute = spec.rpartition(":")
    if not colon or attribute.endswith(".py") or "/" in attribute or os.sep in attribute:
        target, attribute = spec, ""  # no attribute, or the colon of a drive letter
    words = attribute.split(".") if attribute else []
    if not target or not all(word.isidentifier() for word in words):
        raise AppImportError(
            f"cannot read {bounded(spec)!r}",
            mend="write it as module:attr or ./file.py:attr, such as `laneway run reminders:pipeline`",
        )
    return target, attribute


def _put_first_on_path(directory: str) -> None:
    if sys.path[:1] != [directory]:
        sys.path.insert(0, directory)


def _import_module(name: str) -> ModuleType:
    if not all(word.isidentifier() for word in name.split(".")):
        raise AppImportError(
            "this is no module name", where=bounded(name), mend="a file is written with .py: ./file.py:attr"
        )
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise _import_failed(name, error) from error
        raise AppImportError(
            f"no module named {missing!r}",
            where=name,
            mend=f"tried first on sys.path: {sys.path[0]}; {_modules_beside(Path(sys.path[0]), name)}",
        ) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise AppImportError("no such file", where=str(path), mend=_modules_beside(path.parent, path.stem))
    _put_first_on_path(str(path.parent))
    loaded = sys.modules.get(path.stem)
    if loaded is not None and _is_from(loaded, path):
        return loaded
    # Under its own name where that is free, so that its neighbours can import it.
    name = path.stem if loaded is None and path.stem.isidentifier() else f"_laneway_app_{path.stem}"
    importlib.invalidate_caches()
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise AppImportError(
            "Python cannot import this file", where=str(path), mend="its name must end in .py"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _import_failed(str(path), error) from error
    return module


def _is_from(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and Path(file).absolute() == path


def _import_failed(where: str, error: BaseException) -> AppImportError:
    place = _last_place(error)
    if isinstance(error, AppImportError):
        # One of ours, from Pipeline(...) or @pipeline.handler: its own words are the best ones.
        return AppImportError(error.what, where=f"{place} {error.where}".rstrip(), mend=error.mend)
    kind = class_name(error).removeprefix("builtins.")
    return AppImportError(
        f"importing it failed with {kind}: {bounded(str(error))}",
        where=where,
        mend=f"it was raised at {place}; first on sys.path: {sys.path[0]}",
    )


def _last_place(error: BaseException) -> str:
    """File, line and function of the traceback's last frame that is not our own code."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    own = str(Path(__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<frozen importlib", own)) and frame.name != "import_module":
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return "its first line"


def _modules_beside(directory: Path, name: str) -> str:
    try:
        names = sorted(
            entry.stem
            for entry in directory.iterdir()
            if entry.suffix == ".py" or (entry.is_dir() and (entry / "__init__.py").is_file())
        )
    except OSError:
        return f"there is no directory {directory}"
    if not names:
        return f"there is no Python module in {directory}"
    return f"modules in {directory}: {_closest_first(name.partition('.')[0], names)}"


def _closest_first(wanted: str, names: list[str]) -> str:
    close = difflib.get_close_matches(wanted, names, n=_MAX_NAMES, cutoff=0.5)
    ordered = close + [name for name in names if name not in close]
    more = len(ordered) - _MAX_NAMES
    return ", ".join(ordered[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _attribute(module: ModuleType, attribute: str, where: str) -> object:
    found: object = module
    for word in attribute.split("."):
        try:
            found = getattr(found, word)
        except AttributeError:
            names = _names_that_look_right(module)
            raise AppImportError(
                f"there is no {word!r} in it",
                where=f"{where} ({_file_of(module)})",
                mend=f"names that could be meant: {_closest_first(word, names)}"
                if names
                else "it holds neither a Pipeline nor a function; is it the right file?",
            ) from None
    return found


def _only_pipeline(module: ModuleType, where: str) -> object:
    found: dict[int, tuple[str, object]] = {}
    for name, value in vars(module).items():
        if isinstance(value, Pipeline):
            found.setdefault(id(value), (name, value))
    if len(found) == 1:
        return next(iter(found.values()))[1]
    names = [name for name, _ in found.values()] or _names_that_look_right(module)
    mend = f"name one: {', '.join(f'{where}:{name}' for name in names[:_MAX_NAMES])}" if names else ""
    raise AppImportError(
        f"it holds {len(found) or 'no'} Pipeline{'s' if found else ''}, so one must be named",
        where=f"{where} ({_file_of(module)})",
        mend=mend or "write `pipeline = Pipeline(...)` in it, with a function under @pipeline.handler",
    )


def _names_that_look_right(module: ModuleType) -> list[str]:
    """Its Pipelines; only where there are none, its own functions."""
    own = [(name, value) for name, value in vars(module).items() if not name.startswith("_")]
    pipelines = [name for name, value in own if isinstance(value, Pipeline)]
    functions = [
        name for name, value in own if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    return pipelines or functions


def _refuse_a_handler(found: object, module: ModuleType, where: str, target: str) -> None:
    """Its Pipeline is what was meant: alone, the function would run without that one's payload and decoder.

    Raises:
        AppImportError: it names the Pipeline.
    """
    for name, value in vars(module).items():
        if isinstance(value, Pipeline) and value.is_handled_by(found):
            raise AppImportError(
                "it is the handler of a Pipeline, not an application of its own",
                where=where,
                mend=f"you mean {target}:{name}",
            )


def _as_pipeline(found: object, where: str) -> Pipeline[Any]:
    if isinstance(found, Pipeline):
        return found
    if callable(found) and not isinstance(found, type):
        function: Callable[..., Any] = found
        pipeline: Pipeline[Any] = Pipeline()
        pipeline.handler(function)
        return pipeline
    kind = "a class" if isinstance(found, type) else f"an object of class {type(found).__qualname__}"
    raise AppImportError(
        f"it is {kind}, neither a Pipeline nor a function",
        where=where,
        mend="name a Pipeline, or a function that takes one delivery",
    )


def _file_of(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or "no file")
