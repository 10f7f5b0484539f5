"""Invoice reminders through a mail system that honours an idempotency key.

A crash between sending and recording sends again with the same key, and the mail system answers "sent
already". `Mailer` stands in for a real one; it fails the first time for addresses that start with "slow".
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from pydantic import BaseModel

from laneway import Delivery, PermanentFailure, Pipeline


class Reminder(BaseModel):
    """One invoice that somebody has to be reminded of."""

    invoice: str
    address: str
    amount_cents: int


class MailerBusyError(Exception):
    """The mail system asks to come again later; nothing was sent."""


class Mailer:
    """A mail system that sends one mail per idempotency key, however often it is asked."""

    def __init__(self, path: str) -> None:
        self._path = path

    def send(self, address: str, text: str, *, idempotency_key: str, attempt: int) -> None:
        """Send a mail, unless this key was sent already."""
        if address.startswith("slow") and attempt == 1:
            raise MailerBusyError
        with closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS sent (idempotency_key TEXT PRIMARY KEY, address TEXT, text TEXT)"
            )
            connection.execute(
                "INSERT OR IGNORE INTO sent VALUES (?, ?, ?)", (idempotency_key, address, text)
            )


mailer = Mailer("mail.sqlite")
pipeline = Pipeline(payload=Reminder, temporary=[MailerBusyError])


@pipeline.handler
def remind(delivery: Delivery[Reminder]) -> str:
    """Send one reminder."""
    reminder = delivery.payload
    if "@" not in reminder.address:
        raise PermanentFailure("not-an-address")
    mailer.send(
        reminder.address,
        f"Invoice {reminder.invoice} over {reminder.amount_cents / 100:.2f} is due.",
        idempotency_key=delivery.effect_key,
        attempt=delivery.attempt,
    )
    return f"reminders/{delivery.effect_key}"
