"""All commands: each group is a Typer app in a file of its own, registered here."""

from __future__ import annotations

from laneway.cli import config, dlq, lanes, ledger, offsets, retry, review, topics
from laneway.cli.demo import demo
from laneway.cli.dev import dev
from laneway.cli.pause import pause, resume
from laneway.cli.preview import preview
from laneway.cli.replay import replay
from laneway.cli.rerun import rerun
from laneway.cli.resolve import resolve
from laneway.cli.root import new_app

app = new_app()

# One line per command or group of commands, in the order of `laneway --help`.
app.command(name="demo", epilog="Example: laneway demo")(demo)
app.command(name="dev", epilog="Example: laneway dev ./reminders.py:pipeline records.ndjson.gz --limit 1000")(
    dev
)
app.command(
    name="preview",
    epilog="Example: laneway preview ./reminders.py:pipeline -b localhost:9092 -g reminders "
    "--source invoices",
)(preview)
app.add_typer(offsets.app, name="offsets")
app.add_typer(lanes.app, name="lanes")
app.command(
    name="pause",
    epilog="Example: laneway pause --lane customer-17 --reason 'bad address' -b localhost:9092 -g reminders",
)(pause)
app.command(
    name="resume",
    epilog="Example: laneway resume --lane customer-17 --reason 'corrected' -b localhost:9092 -g reminders",
)(resume)
app.command(
    name="rerun",
    epilog="Example: laneway rerun --from @2026-03-01T06:00Z --to @2026-03-01T07:00Z --reason 'wrong VAT' "
    "-b localhost:9092 -g reminders",
)(rerun)
app.add_typer(retry.app, name="retry")
review.app.command(
    epilog="Example: laneway review resolve sequence-gap-0123456789ab --action skip --reason 'never sent' "
    "-b localhost:9092 -g reminders"
)(resolve)
app.add_typer(review.app, name="review")
dlq.app.command(
    epilog="Example: laneway dlq replay --where reason=invalid-payload --reason 'release 12 reads them' "
    "-b localhost:9092 -g reminders"
)(replay)
app.add_typer(dlq.app, name="dlq")
app.add_typer(ledger.app, name="ledger")
app.add_typer(topics.app, name="topics")
app.add_typer(config.app, name="config")
