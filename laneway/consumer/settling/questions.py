"""Whose answer it is: one call of the transactional producer at a time, each answer for its own question.

Between a question and its answer the world goes on: partitions leave, and what was asked may be of no more
use. Then another question comes before the answer, which must not be taken for an answer to it.

Boundary: it knows that there is a call under way, and nothing of what calls do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from laneway.consumer.settling.transactions import Answer
from laneway.errors import LanewayError

log = logging.getLogger("laneway")

Question = tuple[str, object]
"""The name of a call, and about what it is put: compared with `==`."""


class Questions:
    """The call under way, if any. Belongs to the owner thread.

    Args:
        take: the answer of the call that was begun last, None while it goes on.
    """

    def __init__(self, take: Callable[[], Answer | None]) -> None:
        self._take = take
        self._open: Question | None = None

    def ask(self, question: Question, call: Callable[[], None]) -> Answer | None:
        """Begin a call, unless this very one is under way; its answer, or None while there is none.

        Another one that is still under way ends first, and nobody hears of its answer, or why there is none.

        Raises:
            LanewayError: nothing can go on here; see `Transactions.answer`.
        """
        if self._open not in (None, question):
            try:
                if self.answer() is None:
                    return None
            except LanewayError as error:
                log.warning("%s; nothing hangs on it any more", error.what)
        if self._open is None:
            call()
            self._open = question
        return self.answer()

    def answer(self) -> Answer | None:
        """Of the call under way; None while it goes on."""
        try:
            answer = self._take()
        except LanewayError:
            self._open = None
            raise
        if answer is not None:
            self._open = None
        return answer

    def is_open(self, question: Question) -> bool:
        """Whether this very call is under way."""
        return self._open == question
