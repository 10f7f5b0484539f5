"""Writes docs/cli.md from the command line itself: `python docs/build_cli.py`."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo

from laneway.cli.commands import app

PAGE = Path(__file__).with_name("cli.md")

HEAD = """# Command line

Only data goes to standard output; sentences for the reader go to standard error. `-o json` and `-o yaml`
carry `schema`, a number that changes only when a field changes its meaning or goes. A value that is not there
is `-` in a table and `null` elsewhere, never 0. Lists can be watched: `--watch 2`, until Ctrl+C.

Commands that only look need `-b` and `-g`; with a `laneway.toml` in the directory they need nothing
(`docs/configuration.md` says what wins over what). Whatever changes something asks first: `-y` answers,
`--dry-run` changes nothing, and with neither a terminal nor `-y` it is exit 2.

| exit code | meaning |
|---|---|
| 0 | it is done |
| 1 | it failed, or was declined |
| 2 | the command, the configuration or the application cannot be used as written |
| 3 | the cluster does not answer, or does not let us in |
| 4 | a precondition does not hold; nothing was changed |
| 5 | a deadline passed with work left; what was done is durable |
| 130 | interrupted with Ctrl+C |

`laneway --install-completion` completes commands, options and their values in bash, zsh, fish and PowerShell;
`laneway --show-completion` prints what it would install. Titles are bold on a terminal only, and there not
with `NO_COLOR`.

This page is generated: `python docs/build_cli.py`.
"""


@dataclass(frozen=True)
class Parameter:
    """One argument or option of a command, from the signature of its function."""

    name: str
    kind: Any
    info: ArgumentInfo | OptionInfo
    default: object


@dataclass(frozen=True)
class Command:
    """One command: the words that call it, and its function."""

    path: tuple[str, ...]
    function: Callable[..., Any]
    example: str

    @property
    def help(self) -> str:
        return inspect.getdoc(self.function) or ""

    def parameters(self) -> Iterator[Parameter]:
        """In the order of --help."""
        hints = typing.get_type_hints(self.function, include_extras=True)
        for name, parameter in inspect.signature(self.function).parameters.items():
            kind, *extras = typing.get_args(hints[name])
            info = next(each for each in extras if isinstance(each, ArgumentInfo | OptionInfo))
            yield Parameter(name, kind, info, parameter.default)


def page() -> str:
    """The whole page."""
    found = list(commands())
    index = [f"* [`{' '.join(each.path)}`](#{'-'.join(each.path)}): {_in_short(each)}" for each in found]
    return "\n".join([HEAD, *index, "", *(_section(each) for each in found)])


def commands() -> Iterator[Command]:
    """Every command that does something, in the order of `laneway --help`."""
    yield from _below(app, ("laneway",))


def _below(group: typer.Typer, path: tuple[str, ...]) -> Iterator[Command]:
    for command in group.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        epilog = command.epilog or ""
        yield Command((*path, name), command.callback, epilog.removeprefix("Example: "))
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from _below(inner.typer_instance, (*path, str(inner.name)))


def _section(command: Command) -> str:
    parameters = list(command.parameters())
    arguments = [each for each in parameters if isinstance(each.info, ArgumentInfo)]
    words = " ".join([*command.path, "[OPTIONS]", *(_argument(each) for each in arguments)])
    lines = [f"## {' '.join(command.path)}", "", f"    {words}", "", _text(command.help), ""]
    if arguments:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [f"| `{_argument(each)}` | {_cell(each.info.help or '')} |" for each in arguments]
        lines.append("")
    lines += ["| option | takes | default | meaning |", "|---|---|---|---|"]
    lines += [_option(each) for each in parameters if isinstance(each.info, OptionInfo)]
    return "\n".join([*lines, "", "```sh", command.example, "```", ""])


def _text(text: str) -> str:
    """Help without its line ends, a paragraph a line; what looks like markup stays as it is."""
    return "\n\n".join(_escaped(" ".join(each.split())) for each in text.split("\n\n"))


def _in_short(command: Command) -> str:
    return _text(re.split(r"(?<=\.)\s|\n\n|; ", command.help, maxsplit=1)[0].rstrip("."))


def _argument(argument: Parameter) -> str:
    name = argument.info.metavar or argument.name.upper()
    is_needed = argument.default is inspect.Parameter.empty
    return name if is_needed else f"[{name}]"


def _option(option: Parameter) -> str:
    # In Annotated[..., typer.Option("-c", "--config")] the first name stands where a default would.
    names = [option.info.default, *(option.info.param_decls or ())]
    names = [name for name in names if isinstance(name, str) and name.startswith("-")]
    names = names or [f"--{option.name.replace('_', '-')}"]
    written = re.search(r"\s*\[default: ([^\]]*)\]", option.info.help or "")
    meaning = (option.info.help or "").replace(written[0] if written else "", "")
    default = f"`{written[1]}`" if written else _default(option)
    shown = ", ".join(f"`{name}`" for name in names)
    return f"| {shown} | {_takes(option)} | {default} | {_cell(meaning)} |"


def _takes(option: Parameter) -> str:
    kinds = [each for each in _kinds(option.kind) if each is not types.NoneType]
    kind = kinds[0]
    if kind is bool:
        return ""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{each.value}`" for each in kind)
    return f"`{option.info.metavar or kind.__name__.upper()}`"


def _kinds(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    if typing.get_origin(kind) in {types.UnionType, typing.Union}:
        return typing.get_args(kind)
    return (kind,)


def _default(option: Parameter) -> str:
    value = option.default
    if value is inspect.Parameter.empty:
        return "required"
    if value is None or value is False:
        return ""
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
