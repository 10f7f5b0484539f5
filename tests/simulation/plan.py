"""What a seed decides: the configuration, the records that publishers send, and the faults to come.

Everything is drawn before the history begins and stands in lists, so that a failing history can be made
shorter by leaving things out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from laneway.lanes.admission import Order
from laneway.lanes.canonical import payload_hash
from laneway.lanes.record import keyed_lane, lane_of_one
from tests.invariants import SECRET, Published
from tests.simulation.deeds import Deed, make_deeds

GARBAGE = (
    b"\xff\xfe",
    b"",
    b"[1]",
    b"{}",
    None,
)


@dataclass(frozen=True, slots=True)
class Config:
    """What a team and its operators may choose, and what surrounds them.

    Attributes:
        changelog: the ledger follows its partition; otherwise it is of one machine.
        review: what may have happened is not run again.
        machines: each has its own state directory.
        lost_answers: the share of answers to transactional producers that get lost.
        handler: def, async, batch, or async batch; the limits of a batch stand beside it.
    """

    order: Order
    keyed: bool
    first_sequence: int | None
    pass_after_reject: bool
    hold_unknown_version: bool
    skip_tombstones: bool
    delays_ms: tuple[int, ...]
    protocol: str
    partitions: int
    processes: int
    threads: int
    max_run: int
    max_in_flight: int
    max_ms: int
    max_records: int
    max_retries_waiting: int
    max_parked_per_lane: int
    max_parked_bytes: int
    max_open_cases: int
    retention_ms: int
    decodes: bool
    changelog: bool = False
    review: bool = False
    machines: int = 1
    lost_answers: float = 0.0
    handler: str = "def"
    batch_size: int = 1
    batch_wait_ms: int = 0
    per_lane: int = 1

    @property
    def max_replays(self) -> int:
        """How often a dead letter may be replayed; nothing is drawn for it."""
        return 1 + self.processes % 2


@dataclass(frozen=True, slots=True)
class Fate:
    """How a handler takes an effect.

    Attributes:
        kind: fine, temporary, listed, permanent, unknown, review, unavailable.
        times: so many deliveries end that way, those after them are fine.
        by_attempt: counted by the delivery's attempt; else by the handler's own runs, as the weather is.
        duration_ms: how long each run takes.
    """

    kind: str
    times: int
    by_attempt: bool
    duration_ms: int


@dataclass(frozen=True, slots=True)
class Letter:
    """A record and when it is published."""

    step: int
    record: Published
    fate: Fate
    timestamp_ms: int = 5


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        kind: a method of the world, `_strike_KIND`.
        target: a process or a partition, whichever it is about.
        amount: how long, how far, or how many acts until it happens.
    """

    step: int
    kind: str
    target: int
    amount: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One history, before it happens.

    Attributes:
        deeds: of operators; None where nobody decides anything.
    """

    seed: int
    config: Config
    letters: tuple[Letter, ...]
    faults: tuple[Fault, ...]
    steps: int
    deeds: tuple[Deed, ...] | None = None


FAULTS = {
    "kill": 6,
    "power": 8,
    "freeze": 2,
    "blind": 2,
    "stop": 1.5,
    "rebalance": 5,
    "write_fails": 0.7,
    "write_is_lost": 0.7,
    "refuse_writes": 2,
    "clock": 1,
    "compact": 1,
    "retain": 1,
}


CHANGELOG_FAULTS = {
    "compact_changes": 5,
    "forget_state": 3,
    "depose": 3,
    "night": 3,
    "rebalance": 4,
    "kill": 4,
}
"""More of them, where the ledger follows its partition."""

CHANGELOG_SHARE = 0.4
REVIEW_SHARE = 0.35
DAMAGED_SHARE = 0.1
HANDLERS = ("def", "async", "batch", "async batch")
HANDLER_SHARES = (70, 12, 10, 8)


def make_plan(seed: int) -> Plan:
    """Draw a whole history from its seed."""
    random = Random(seed)
    config = _config(random, seed)
    steps = random.choice((60, 100, 160))
    letters: list[Letter] = []
    for partition in range(config.partitions):
        letters += _letters(random, config, partition, steps)
    faults = _faults(random, FAULTS, steps)
    if config.changelog:
        faults += _faults(Random(f"changelog faults {seed}"), CHANGELOG_FAULTS, steps)
        faults += _damage(Random(f"damage {seed}"), steps)
    letters.sort(key=lambda letter: letter.step)
    deeds = make_deeds(seed, config.partitions, steps)
    return Plan(seed, config, tuple(letters), faults, steps, deeds)


def _faults(random: Random, of: Mapping[str, float], steps: int) -> tuple[Fault, ...]:
    kinds, weights = list(of), list(of.values())
    return tuple(
        Fault(
            random.randrange(steps),
            random.choices(kinds, weights)[0],
            random.randrange(3),
            random.randrange(40),
        )
        for _ in range(random.choice((0, 1, 3, 5, 8, 12)))
    )


def _damage(random: Random, steps: int) -> tuple[Fault, ...]:
    """What somebody does to a changelog that nobody should; drawn apart, as it came later."""
    if random.random() >= DAMAGED_SHARE:
        return ()
    kind = random.choice(("truncate", "recreate"))
    return (Fault(random.randrange(steps), kind, random.randrange(3), random.randrange(40)),)


def _rarely(random: Random, share: float, values: tuple[int, ...], otherwise: int) -> int:
    return random.choice(values) if random.random() < share else otherwise


def _config(random: Random, seed: int) -> Config:
    kind = random.choices(("contiguous", "any", "increasing", "arrival", "keyless"), (50, 12, 13, 13, 12))[0]
    orders = {"increasing": Order.INCREASING, "arrival": Order.ARRIVAL}
    # What came later is drawn apart, so that the histories of `local` stay what they were.
    later = Random(f"changelog {seed}")
    changelog = later.random() < CHANGELOG_SHARE
    return Config(
        order=orders.get(kind, Order.CONTIGUOUS),
        keyed=kind != "keyless",
        first_sequence=None if kind == "any" else 1,
        pass_after_reject=random.random() < 0.4,
        hold_unknown_version=random.random() < 0.3,
        skip_tombstones=random.random() < 0.3,
        delays_ms=random.choice(((100,), (100, 300), (50, 200, 400), (300, 100))),
        protocol=random.choice(("classic", "consumer")),
        partitions=random.choice((1, 1, 2, 3)),
        processes=random.choice((1, 2, 2, 3)),
        threads=random.choice((1, 2, 4)),
        max_run=random.choice((1, 2, 3, 8)),
        max_in_flight=random.choice((2, 5, 30)),
        max_ms=random.choice((1, 20, 50)),
        max_records=random.choice((1, 4, 100)),
        max_retries_waiting=_rarely(random, 0.15, (1, 2), 1000),
        max_parked_per_lane=_rarely(random, 0.1, (1, 2), 1000),
        max_parked_bytes=_rarely(random, 0.1, (100, 400), 1 << 30),
        max_open_cases=_rarely(random, 0.12, (1, 2), 100),
        retention_ms=_rarely(random, 0.12, (300, 1500), 10**9),
        changelog=changelog,
        review=changelog and later.random() < REVIEW_SHARE,
        machines=later.choice((1, 2, 3)) if changelog else 1,
        lost_answers=later.choice((0.0, 0.05, 0.2)) if changelog else 0.0,
        decodes=Random(f"decodes {seed}").random() < 0.2,
        **_handler(Random(f"handler {seed}")),
    )


def _handler(random: Random) -> dict[str, Any]:
    size = random.choice((1, 2, 3, 8))
    return {
        "handler": random.choices(HANDLERS, HANDLER_SHARES)[0],
        "batch_size": size,
        "batch_wait_ms": random.choice((0, 0, 20, 100)),
        "per_lane": min(size, random.choice((1, 1, 2, 8))),
    }


class _Lanes:
    """Draws the records of one partition."""

    def __init__(self, random: Random, config: Config, partition: int) -> None:
        self.random = random
        self.config = config
        self.partition = partition
        self.fates: dict[str, Fate] = {}
        self.drawn: list[tuple[Published, Fate]] = []
        self.shared = random.random() < 0.4

    def draw(self) -> list[tuple[Published, Fate]]:
        """Records in the order of publishing."""
        random = self.random
        for name in random.sample("abc", random.choice((1, 2, 2, 3))):
            for sequence in range(1, random.choice((3, 4, 6, 9))):
                self._number(name, sequence)
        drawn = self.drawn
        for _ in range(random.choice((0, 0, 1, 2, 4))):  # late ones
            at = random.randrange(len(drawn)) if drawn else 0
            if drawn:
                moved = drawn.pop(at)
                drawn.insert(min(len(drawn), at + random.randint(1, 5)), moved)
        if random.random() < 0.4:
            self._mix()
        for _ in range(random.choice((0, 0, 0, 1, 2))):
            drawn.insert(random.randint(0, len(drawn)), (self._garbage(), _FINE))
        return drawn

    def _mix(self) -> None:
        """Lanes beside each other, each in its own order."""
        piles: dict[str, list[tuple[Published, Fate]]] = {}
        for item in self.drawn:
            piles.setdefault(item[0].lane, []).append(item)
        lanes = [lane for lane, pile in piles.items() for _ in pile]
        self.random.shuffle(lanes)
        self.drawn[:] = [piles[lane].pop(0) for lane in lanes]

    def _number(self, name: str, sequence: int) -> None:
        random = self.random
        if random.random() < 0.06:
            return  # never published: a gap, when it has a successor
        effect = f"{name}{sequence}"
        if self.shared and random.random() < 0.3:
            effect = f"shared{random.randint(1, 3)}"
        # An effect that several numbers claim may come with several payloads.
        two = 4 if effect.startswith("shared") else 0
        payload = random.choices(("one", "two", "bad"), (30, two, 1))[0]
        version = 2 if random.random() < 0.04 else 1
        self._add(name, sequence, effect, payload, version)
        if random.random() < 0.12:
            self._add(name, sequence, effect, payload, version)  # the publisher sent it twice
        if random.random() < 0.03:
            self._add(name, sequence, effect, "two", version)  # and once with another payload
        if random.random() < 0.03:
            self._add(name, sequence, effect, payload, 2)  # or with a contract nobody knows
        if random.random() < 0.06:
            other = random.choice((f"{effect}x", f"shared{random.randint(1, 3)}"))
            self._add(name, sequence, other, payload, version)  # or gave the number to two effects

    def _add(self, name: str, sequence: int, effect: str, payload: str, version: int) -> None:
        config, random = self.config, self.random
        body = PAYLOADS[payload]
        members: dict[str, object] = {
            # A message may have several effects, and an effect come in several messages (S13).
            "messageId": f"m{random.randint(1, 12)}",
            "effectKey": effect,
            "version": version,
            "payload": msgspec.Raw(body),
        }
        if config.keyed:
            members["sequenceKey"] = name
            members["sequence"] = sequence
        lane = keyed_lane(name) if config.keyed else lane_of_one(effect)
        value = msgspec.json.encode(members)
        numbered = config.keyed and config.order is not Order.ARRIVAL
        record = Published(
            self.partition,
            -1,
            lane,
            sequence if numbered else 0,
            effect,
            payload_hash(msgspec.json.decode(body) if config.decodes else body, value),
            value,
            name.encode(),
        )
        self.drawn.append((record, self.fates.setdefault(effect, _fate(random))))

    def _garbage(self) -> Published:
        value = self.random.choice(GARBAGE)
        skipped = value is None and self.config.skip_tombstones
        return Published(
            self.partition, -1, "", 0, "", b"", value, self.random.choice((None, b"k")), not skipped, skipped
        )


PAYLOADS = {
    "one": b'{"n":1,"secret":"' + SECRET + b'"}',
    "two": b'{"n":2,"secret":"' + SECRET + b'"}',
    "bad": b'{"n":[1],"secret":"' + SECRET + b'"}',
}

_FINE = Fate("fine", 0, by_attempt=True, duration_ms=0)


def _fate(random: Random) -> Fate:
    kind = random.choices(
        ("fine", "temporary", "listed", "permanent", "unknown", "review", "unavailable"),
        (60, 14, 4, 4, 2, 2, 4),
    )[0]
    times = random.choice((1, 1, 1, 2, 9)) if kind in {"temporary", "listed"} else random.choice((1, 9))
    if kind == "unavailable":
        times = random.choice((1, 3))
    slow = random.choices((0, 200, 900, 1700, 3000), (80, 6, 4, 7, 3))[0]
    return Fate(kind, times, kind != "unavailable" and random.random() < 0.7, slow)


def _letters(random: Random, config: Config, partition: int, steps: int) -> list[Letter]:
    drawn = _Lanes(random, config, partition).draw()
    times = sorted(0 if random.random() < 0.5 else random.randrange(steps) for _ in drawn)
    return [Letter(step, record, fate) for step, (record, fate) in zip(times, drawn, strict=True)]
