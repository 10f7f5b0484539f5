"""Dead letters that operators send back, on what they last saw: often too late, too early, or twice.

What the replays explain (a second run, a late one, one more dead letter) stands here, and what has to hold of
them: each is applied once, at most so often, and says where it came from (14).
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import msgspec

from laneway.lanes.command import Letter
from laneway.lanes.forward import CommandAnswer, Forward, foreign
from laneway.lanes.record import Record, keyed_lane, lane_of_one
from tests.invariants import Broken, headers_of

if TYPE_CHECKING:
    from tests.simulation.operators import Operators
    from tests.simulation.world import World

SEEN_LAST = 4
"""Letters to choose from: the last ones, so that one is sent back again and again."""


class Letters:
    """The dead letters of one history, and what was done with them.

    Attributes:
        late: by partition and effect key, what somebody has let run out of order.
    """

    def __init__(self, world: World, operators: Operators) -> None:
        self._world = world
        self._operators = operators
        self._landed: dict[int, dict[str, Forward]] = {}
        self._retries: dict[int, list[Forward]] = {}
        self._applied: dict[tuple[int, str], tuple[int, Letter]] = {}
        self._of_place: dict[tuple[int, int], list[Letter]] = {}
        self.late: set[tuple[int, str]] = set()

    def landed(self, partition: int, forward: Forward) -> None:
        """A dead letter or a retry stands in its topic."""
        own = headers_of(forward)
        if own.get("kind") == "retry":
            self._retries.setdefault(partition, []).append(forward)
        elif own.get("effect-key"):
            self._landed.setdefault(partition, {}).setdefault(forward.forward_id, forward)

    def send(self, partition: int, random: Random) -> None:
        """Somebody sends one of the last letters back."""
        known = list(self._landed.get(partition, {}).values())[-SEEN_LAST:]
        if not known:
            return
        forward = random.choice((*known, known[-1]))
        own = headers_of(forward)
        key, effect_key, offset = own.get("sequence-key"), own["effect-key"], int(own["origin-offset"])
        published = self._world.watch.books.by_place[partition, offset]
        letter = Letter(
            forward.forward_id,
            effect_key,
            offset,
            int(own["attempt"]) + (100 if random.random() < 0.1 else 0),
            forward.key,
            # A stub has lost its value; who sends it back finds it in the source topic.
            published.value if "stub" in own else forward.value,
            foreign(forward.headers),
            int(own["origin-timestamp"]),
            random.random() < 0.5,
        )
        self._operators.replayed.add((partition, offset))
        corrected = correction_of(published.value) if random.random() < 0.25 else None
        if (corrected or letter.value) != published.value:
            # Corrected now, or before, and then refused all the same.
            self._operators.corrections.add((partition, offset, corrected or letter.value or b""))
        if letter.out_of_order:
            self.late.add((partition, effect_key))
        lane = keyed_lane(key) if key is not None else lane_of_one(effect_key)
        self._operators.send(partition, "replay-letter", lane=lane, letter=letter, value=corrected)

    def begins(self, partition: int, record: Record) -> str:
        """A run begins; returns the letter that it is the replay of."""
        letter = record.command.letter if record.command is not None else None
        if letter is None:
            return ""
        self._operators.renewed[partition, letter.offset] = letter.attempt
        return letter.forward_id

    def answered(self, partition: int, answer: CommandAnswer, letter: Letter) -> None:
        """A replay is about to be true, together with its answer."""
        name, place = (partition, letter.forward_id), (partition, letter.offset)
        before = self._applied.setdefault(name, (answer.offset, letter))
        if before[0] != answer.offset:
            self._broken(
                partition, f"letter {letter.forward_id} is replayed by {before[0]} and {answer.offset}"
            )
        done = self._of_place.setdefault(place, [])
        if letter.forward_id not in [each.forward_id for each in done]:
            done.append(letter)
        self._operators.reopened.add((partition, letter.effect_key))
        self._operators.renewed[place] = letter.attempt
        number = [each.forward_id for each in done].index(letter.forward_id) + 1
        if number > self._world.plan.config.max_replays:
            self._broken(partition, f"offset {letter.offset} is replayed for the {number}th time")
        if answer.replays != number:
            self._broken(
                partition, f"replay {number} of offset {letter.offset} is said to be {answer.replays}"
            )

    def check_end(self, partition: int) -> None:
        """All that came of a replay says how often that happened before, and from which letter it came."""
        for forward in (*self._landed.get(partition, {}).values(), *self._retries.get(partition, ())):
            own = headers_of(forward)
            attempt, done = (
                int(own["attempt"]),
                self._of_place.get((partition, int(own["origin-offset"])), ()),
            )
            earlier = [each for each in done if each.attempt < attempt]
            last = earlier[-1].forward_id if earlier else None
            said = (own.get("replay-of"), int(own.get("replay-count", "0")))
            if said != (last, len(earlier)):
                what = f"the {own['kind']} of offset {own['origin-offset']}, attempt {attempt} says {said}, "
                self._broken(partition, f"{what}and it was replayed {len(earlier)} times, last from {last}")

    @staticmethod
    def _broken(partition: int, what: str) -> None:
        raise Broken(14, what, partition=partition)


def correction_of(value: bytes | None) -> bytes:
    """The same record with a payload that is valid."""
    try:
        members = msgspec.json.decode(value or b"{}")
    except msgspec.DecodeError:
        members = {}
    members["payload"] = {"n": 3, "secret": "s3cr3t"}
    members["version"] = 1
    return msgspec.json.encode(members)
