"""Each answer for its own question, whatever was asked before it and whatever became of that."""

from __future__ import annotations

from collections import deque

import pytest

from laneway.consumer.settling.questions import Questions
from laneway.consumer.settling.transactions import Answer, Fate
from laneway.errors import LanewayError, RefusedError

DONE = Answer(Fate.DONE)


class Calls:
    """Calls in the order they were begun, and what comes of them."""

    def __init__(self, *comes: Answer | LanewayError | None) -> None:
        self.begun: list[str] = []
        self._comes = deque(comes)
        self.questions = Questions(self._take)

    def _take(self) -> Answer | None:
        found = self._comes.popleft()
        if isinstance(found, LanewayError):
            raise found
        return found

    def ask(self, name: str) -> Answer | None:
        """Ask about nothing in particular."""
        return self.questions.ask((name, None), lambda: self.begun.append(name))


def refusal() -> LanewayError:
    """Why something cannot be answered."""
    return RefusedError("it was cut off", where="ledger[0]", mend="find out who did that")


def test_a_question_is_put_once_and_heard_when_its_answer_comes() -> None:
    """While the call goes on nothing is begun anew; behind its answer the same question is a new one."""
    calls = Calls(None, None, DONE, DONE)
    assert [calls.ask("flush") for _ in range(4)] == [None, None, DONE, DONE]
    assert calls.begun == ["flush", "flush"]


def test_another_question_waits_for_the_end_of_the_first_and_hears_its_own() -> None:
    """What the first came to is nobody's news any more."""
    aborted = Answer(Fate.ABORT)
    calls = Calls(None, None, aborted, None, DONE)
    assert calls.ask("read back") is None
    assert calls.ask("flush") is None
    assert calls.begun == ["read back"]
    assert not calls.questions.is_open(("flush", None))
    assert calls.ask("flush") is None
    assert calls.begun == ["read back", "flush"]
    assert calls.ask("flush") == DONE


def test_why_the_first_could_not_be_answered_ends_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The changelog of a partition that has left cannot be read: it is told, and the others go on."""
    calls = Calls(None, refusal(), DONE)
    assert calls.ask("read back") is None
    assert calls.ask("flush") == DONE
    assert "it was cut off" in caplog.text


def test_why_a_question_cannot_be_answered_is_heard_by_who_asks_it() -> None:
    """And nothing stays open: it may be asked again."""
    calls = Calls(refusal(), DONE)
    with pytest.raises(RefusedError):
        calls.ask("read back")
    assert calls.ask("read back") == DONE
    assert calls.begun == ["read back", "read back"]
