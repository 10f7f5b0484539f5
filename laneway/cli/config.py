"""`laneway config`: what the settings are, where each came from, and whether they hold."""

from __future__ import annotations

import typer

from laneway.cli import options
from laneway.cli.output import Cell, Format, Table, emit, say
from laneway.consumer.kafka.clients import require_kafka_keys
from laneway.consumer.settings.order import held_orders
from laneway.consumer.settings.reference import sections
from laneway.consumer.topics import all_topic_names

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Show and check the configuration.")


@app.command(epilog="Example: laneway config show -c laneway.toml -X lanes.workers=8 -o json")
def show(
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Print every setting with its value and its origin; secrets are never printed."""
    loaded = options.load_settings(config, sets, bootstrap=bootstrap, group=group, sources=sources)
    rows = [(line.key, _cell(line.value), line.origin) for line in loaded.shown()]
    if output is Format.TABLE:
        rows = [(key, "not set" if value is None else value, origin) for key, value, origin in rows]
    emit(Table("config.show", ("key", "value", "origin"), rows), output)


@app.command(epilog="Example: laneway config validate -c laneway.toml")
def validate(
    config: options.ConfigFile = None,
    sets: options.Sets = None,
    bootstrap: options.Bootstrap = None,
    group: options.GroupId = None,
    sources: options.Sources = None,
) -> None:
    """Check the configuration, topic names included, without asking a cluster. Exit 2 if it does not hold."""
    loaded = options.load_settings(config, sets, bootstrap=bootstrap, group=group, sources=sources)
    all_topic_names(loaded.settings)
    require_kafka_keys(loaded.settings, loaded.place_of_kafka)
    say(f"valid: group {loaded.settings.group}, sources {', '.join(loaded.settings.sources)}")
    for order in held_orders(loaded):
        say(order.text)


@app.command(epilog="Example: laneway config reference -o json")
def reference(output: options.Output = Format.TABLE) -> None:
    """Print every key of laneway.toml: its default, what it takes, what it means."""
    rows = [
        (f"{section.name}.{key.name}" if section.name else key.name, key.default, key.values, key.meaning)
        for section in sections()
        for key in section.keys
    ]
    emit(Table("config.reference", ("key", "default", "values", "meaning"), rows), output)


def _cell(value: object) -> Cell:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return str(value)
