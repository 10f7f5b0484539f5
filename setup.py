"""Compiles the rules to native code when asked to: `LANEWAY_COMPILED=1 pip install .`

mypyc makes the compiled modules from the sources as they are, which run where those are missing. Why, and
which: docs/decisions/0009-compiled-rules.md.
"""

import os
from typing import Any

from setuptools import setup

# What every record passes through, as far as it is pure. Structs into which bytes are decoded are not here:
# once compiled, msgspec sees a plain `type` where it says `str | None`.
RULES = (
    "admission",
    "board",
    "books",
    "breaker",
    "canonical",
    "due",
    "frontier",
    "judging",
    "overlay",
    "record",
    "redelivery",
    "run",
    "settlement",
    "settling",
    "work",
)


def extensions() -> list[Any]:
    """What to compile; nothing until the builder has the compiler, which it installs when told."""
    try:
        from mypyc.build import mypycify  # noqa: PLC0415 - it is not there at first
    except ImportError:
        return []
    sources = [f"laneway/lanes/{name}.py" for name in RULES]
    return list(
        mypycify(
            ["--strict", "--explicit-package-bases", *sources],
            opt_level=os.environ.get("MYPYC_OPT_LEVEL", "3"),
            group_name="laneway_rules",
        )
    )


if os.environ.get("LANEWAY_COMPILED", "") in {"", "0"}:
    setup()
else:
    setup(setup_requires=["mypy", "msgspec", "pydantic"], ext_modules=extensions())
