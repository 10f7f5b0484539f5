"""A driver with an operator: commands go in through their topic, answers and news come out of review.

An operator acts on cases as they were last seen, which may be long ago; nothing here knows more than what
the topics and the ledger say.
"""

from __future__ import annotations

from typing import Any

import msgspec

from laneway.lanes.case import Case
from laneway.lanes.command import COMMAND_FORMAT, Command, Letter, encode_command
from laneway.lanes.forward import PREFIX, CommandAnswer, Forward, ReviewNews
from laneway.lanes.record import Channel, Record, keyed_lane, lane_of_one
from tests.lanes.driver import MANY, Driver, Stored


class Operated(Driver):
    """One source partition, and somebody who may write to its commands topic.

    Attributes:
        late: effects whose dead letters somebody has let run out of order.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.late: set[str] = set()

    def command(
        self,
        action: str,
        case: Case | None = None,
        *,
        lane: str | None = None,
        lane_id: str = "",
        value: bytes | None = None,
        **members: Any,
    ) -> int:
        """Send a command; returns its offset.

        Args:
            case: what it is about, as it was seen.
            lane: the sequence key that it is about; by default that of the case, or the partition.
            lane_id: the lane itself, where it has no sequence key.
            members: of the command, to say something else than what would be right.
        """
        offset = len(self.topics[Channel.COMMANDS])
        of_case = case.lane if case is not None else ""
        said: dict[str, Any] = {
            "format": COMMAND_FORMAT,
            "command_id": f"c{offset}",
            "action": action,
            "actor": "ann",
            "reason": "because",
            "group": self.home.group,
            "topic": self.home.topic,
            "partition": self.home.partition,
            "lane": keyed_lane(lane) if lane is not None else lane_id or of_case,
            "case_id": case.case_id if case is not None else "",
            "version": case.version if case is not None else 0,
            "value": value,
        }
        return self.command_raw(encode_command(Command(**(said | members))))

    def replay(
        self, letter: Forward, *, out_of_order: bool = False, value: bytes | None = None, **members: Any
    ) -> int:
        """Send a dead letter back, as it lies in its topic; returns the offset of the command.

        Args:
            value: a corrected one.
            members: of the letter, to say something else than what would be right.
        """
        own = own_headers(letter)
        said: dict[str, Any] = {
            "forward_id": letter.forward_id,
            "effect_key": own["effect-key"],
            "offset": int(own["origin-offset"]),
            "attempt": int(own["attempt"]),
            "key": letter.key,
            "value": letter.value,
            "headers": letter.headers,
            "timestamp_ms": int(own["origin-timestamp"]),
            "out_of_order": out_of_order,
        }
        key = own.get("sequence-key")
        if out_of_order:
            self.late.add(own["effect-key"])
        return self.command(
            "replay-letter",
            lane_id=keyed_lane(key) if key is not None else lane_of_one(own["effect-key"]),
            value=value,
            letter=Letter(**(said | members)),
        )

    def replayed(self, letter: Forward, **how: Any) -> CommandAnswer:
        """The same, go on in calm until nothing is left to do, and return the answer."""
        offset = self.replay(letter, **how)
        self.rest()
        return self.answer(offset)

    def _effect_happened(self, record: Record) -> None:
        late = record.effect_key in self.late
        before = self._last_first.pop(record.lane, None) if late else None
        super()._effect_happened(record)
        if before is not None:
            self._last_first[record.lane] = before

    def command_raw(self, value: bytes | None) -> int:
        """Append any bytes to the commands topic; returns their offset."""
        log = self.topics[Channel.COMMANDS]
        log.append(Stored(b"k", value))
        return len(log) - 1

    def done(self, action: str, case: Case | None = None, **members: Any) -> CommandAnswer:
        """Send a command, go on in calm until nothing is left to do, and return its answer."""
        offset = self.command(action, case, **members)
        self.rest()
        return self.answer(offset)

    def applied(self, action: str, case: Case | None = None, **members: Any) -> CommandAnswer:
        """The same, for a command that must be applied."""
        answer = self.done(action, case, **members)
        assert answer.event == "applied", answer.why
        return answer

    def refused(self, action: str, case: Case | None = None, **members: Any) -> str:
        """The same, for a command that must be refused; returns why."""
        answer = self.done(action, case, **members)
        assert answer.event == "refused", answer
        return answer.why

    # -- what was said

    def answers(self) -> list[CommandAnswer]:
        """What the review topic says of commands, each forward once, in order."""
        return [msgspec.json.decode(v, type=CommandAnswer) for v in self._said("answer")]

    def answer(self, offset: int) -> CommandAnswer:
        """The one answer to the command at this position."""
        (found,) = (answer for answer in self.answers() if answer.offset == offset)
        return found

    def news(self, event: str = "resolved") -> list[ReviewNews]:
        """What the review topic says of cases, each forward once, in order."""
        said = [msgspec.json.decode(v, type=ReviewNews) for v in self._said("review")]
        return [news for news in said if news.event == event]

    def _said(self, kind: str) -> list[bytes]:
        once: dict[str, bytes] = {}
        for forward in self.review:
            if dict(forward.headers)["laneway-kind"] == kind.encode():
                once.setdefault(forward.forward_id, forward.value or b"")
        return list(once.values())

    # -- what is open

    def case(self, reason: str = "") -> Case:
        """The one open case, or the one of this reason."""
        (found,) = (c for c in self.ledger.cases(limit=MANY) if reason in ("", c.reason))
        return found


def own_headers(forward: Forward) -> dict[str, str]:
    """Our own headers of a forward, without their prefix."""
    return {
        name.removeprefix(PREFIX): (value or b"").decode()
        for name, value in forward.headers
        if name.startswith(PREFIX)
    }
