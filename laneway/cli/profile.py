"""What `laneway run --profile-cycle` prints when the worker has stopped."""

from __future__ import annotations

from rich.table import Table

from laneway.consumer.profile import CycleProfile, Stage


def table_of(profile: CycleProfile) -> Table:
    """Microseconds for each record, and shares of all CPU time."""
    records, wall_s = profile.records, profile.wall_s
    table = Table(box=None, title=f"{records:,} records in {wall_s:.1f} s", title_justify="left")
    table.add_column("CPU time")
    table.add_column("us/record", justify="right")
    table.add_column("share", justify="right")
    whole_s = sum(profile.spent_s.values()) + sum(profile.beside_s.values())
    rows = [(f"owner  {stage.value}", profile.spent_s[stage]) for stage in Stage]
    rows += [(f"beside {name}", spent_s) for name, spent_s in profile.beside_s.items()]
    for name, spent_s in [*rows, ("all", whole_s)]:
        each = f"{spent_s / records * 1e6:.2f}" if records else "-"
        table.add_row(name, each, f"{spent_s / whole_s:.1%}" if whole_s else "-")
    return table
