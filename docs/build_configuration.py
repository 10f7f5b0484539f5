"""Writes docs/configuration.md from the settings model: `python docs/build_configuration.py`."""

from __future__ import annotations

from pathlib import Path

from laneway.consumer.settings.reference import Section, sections

PAGE = Path(__file__).with_name("configuration.md")

HEAD = """# Configuration

One file, `laneway.toml`. A flag wins over `-X key=value`, that over a `LANEWAY_*` variable
(`LANEWAY_LANES__WORKERS=8`), that over the file, that over the default. A key that does not exist is an
error. `laneway config show` prints each value with its origin, `laneway config validate` checks without
a cluster, `laneway config reference` prints this page as a table.

Places in `[envelope]`: `header:NAME`, `key`, `json:/pointer` (RFC 6901); ids also `position`; the payload
also `value`. `[source.NAME.envelope]` says for one source what differs. Sizes are written `"256MiB"`,
durations `"30d"` or in ms. A secret under `[kafka]` is written `"file:/run/secrets/x"` or `"env:NAME"`;
`[kafka]` goes straight to librdkafka, and a key that Laneway owns is refused by name.

This page is generated: `python docs/build_configuration.py`.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_section(section) for section in sections())])


def _section(section: Section) -> str:
    title = f"## `[{section.name}]`" if section.name else "## At the top of the file"
    lines = [title, "", section.purpose if section.name else "", ""]
    lines += ["| key | default | takes | meaning |", "|---|---|---|---|"]
    for key in section.keys:
        default = f"`{key.default}`" if key.default else "required"
        lines.append(f"| `{key.name}` | {default} | {key.values} | {key.meaning} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
