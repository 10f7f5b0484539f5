"""Several mistakes of a configuration in one error, so that one run names them all."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.errors import ConfigError


def together(mistakes: Sequence[ConfigError]) -> ConfigError:
    """One error for all of them, each with its own place and its own next step."""
    told = list(dict.fromkeys(str(each) for each in mistakes))
    if len(told) == 1:
        return mistakes[0]
    return ConfigError("\n".join([f"{len(told)} mistakes in the configuration", *told]))
