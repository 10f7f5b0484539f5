"""What a ledger makes of a move of offsets, told before it: on records and entries in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from laneway.consumer.kafka.cluster import Partition, Watermarks
from laneway.consumer.operations.foreseen import Foreseen, Part, Touched, foreseen, outdated, touched
from laneway.consumer.operations.reset import Move
from laneway.consumer.preview.preview import Batches
from laneway.consumer.settings.load import load
from laneway.consumer.settings.model import Settings
from laneway.lanes.canonical import RULE, payload_hash
from laneway.lanes.case import Case
from laneway.lanes.effect import Effect, EffectState
from laneway.lanes.lane import Hold, HoldKind, Lane, Pause
from laneway.lanes.record import Channel, Record
from laneway.lanes.view import ChannelMark, Meta
from laneway.store import codec

PLACE = ("s", 0)
BODY = b'{"of":1}'


class Log:
    """One partition in memory: records as they lie in it."""

    def __init__(self, *records: tuple[str, int] | None) -> None:
        self.records = records
        self.reads = 0

    def __call__(
        self, settings: Settings, spans: Mapping[Partition, Watermarks], *, timeout_s: float
    ) -> Batches:
        """What `batches_of` gives."""
        self.reads += 1
        span = spans[PLACE]
        batch = []
        for offset in range(span.start, span.end):
            about = self.records[offset]
            if about is not None:
                batch.append(Record(Channel.SOURCE, offset, b"k", value_of(*about), (), 5))
        # In two pieces, as they may come.
        yield PLACE, batch[:1]
        yield PLACE, batch[1:]


def value_of(key: str, sequence: int) -> bytes:
    """A good value."""
    return msgspec.json.encode(
        {
            "messageId": "m",
            "effectKey": f"{key}{sequence}",
            "sequenceKey": key,
            "sequence": sequence,
            "version": 1,
            "payload": msgspec.Raw(BODY),
        }
    )


def known(marks: ChannelMark | None = None, *entries: tuple[bytes, Any], **meta: Any) -> dict[bytes, Any]:
    """A ledger by its entries."""
    found = {key: codec.encode(value) for key, value in entries}
    if marks is not None:
        found[codec.META_KEY] = codec.encode(Meta("w", 1, {Channel.SOURCE: marks}, 1, 0, 5, **meta))
    return found


def lane(name: str, last: int, **more: Any) -> tuple[bytes, Lane]:
    """An entry."""
    return codec.lane_key(f"k{name}"), Lane(last, **more)


def done(key: str, sequence: int, offset: int) -> tuple[bytes, Effect]:
    """The entry of an effect that has happened."""
    effect = Effect(
        EffectState.SUCCEEDED,
        "m",
        offset,
        f"k{key}",
        sequence,
        1,
        payload_hash(BODY, None),
        RULE,
        1,
        None,
        "",
        5,
    )
    return codec.effect_key(f"{key}{sequence}"), effect


def case(reason: str, key: str, sequence: int, offset: int) -> tuple[bytes, Case]:
    """The entry of an open case."""
    name = f"{reason}-1"
    return codec.case_key(name), Case(name, reason, "", True, f"k{key}", sequence, "", "", offset, 0, "?", 5)


def look(
    tmp_path: Path,
    log: Log,
    ledger: Mapping[bytes, Any],
    before: int | None,
    after: int,
    *,
    limit: int = 1000,
    start: int = 0,
    **lanes: Any,
) -> Foreseen:
    """What is foreseen of a move in a log."""
    toml = tmp_path / "laneway.toml"
    rows = "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in lanes.items())
    toml.write_text(f'bootstrap = "b:1"\ngroup = "g"\nsources = ["s"]\n[lanes]\n{rows}')
    settings = load(toml, env={}).settings
    move = Move(PLACE, before, after, Watermarks(start, len(log.records)), after_worker=bool(ledger))
    found = touched(settings, [move], limit=limit, timeout_s=1, read=log)
    part = Part(found)
    for key, value in ledger.items():
        part.take(key, value)
    parts = {PLACE: part} if ledger else {}
    return foreseen(settings, [move], found, parts, timeout_s=1, read=log)[PLACE]


FORWARD = Log(("a", 1), ("a", 2), ("a", 3), ("b", 1), None, ("a", 4), ("c", 1), ("a", 5), ("d", 1))


def test_forward_what_is_lost_and_which_keys_miss_it(tmp_path: Path) -> None:
    """Unsettled records are lost; a key whose number is among them waits, at once where more came."""
    ledger = known(ChannelMark(2, ((3, 4),)), lane("a", 2), lane("b", 1))
    seen = look(tmp_path, FORWARD, ledger, 2, 7)
    assert (seen.frontier, seen.lost, seen.lost_at) == (2, 3, [2, 5, 6])
    assert (seen.gaps, seen.gaps_now) == ({"a": 3, "c": 1}, 1)
    assert (seen.again, seen.runs, seen.cases) == (0, 0, 0)


def test_forward_where_keys_have_no_gaps(tmp_path: Path) -> None:
    """Numbers that only increase, none at all, or a new key that begins with any: lost, and nobody waits."""
    ledger = known(ChannelMark(2), lane("a", 2))
    for order in ("increasing", "arrival"):
        seen = look(tmp_path, FORWARD, ledger, 2, 7, order=order)
        assert (seen.lost, seen.gaps) == (4, {})
    seen = look(tmp_path, FORWARD, ledger, 2, 7, first_sequence="any")
    assert seen.gaps == {"a": 3}


def test_forward_past_what_a_case_waits_for(tmp_path: Path) -> None:
    """The missing record of a gap is among those that nobody will read: its case is named."""
    gap = Hold(HoldKind.GAP, "", 3, 1, 1, "sequence-gap", "sequence-gap-1", 5)
    ledger = known(ChannelMark(2), lane("a", 2, hold=gap), case("sequence-gap", "a", 3, 1))
    seen = look(tmp_path, FORWARD, ledger, 2, 7)
    assert seen.about == ["sequence-gap-1"]


def test_forward_over_what_is_settled(tmp_path: Path) -> None:
    """Nothing is lost of what the ledger has settled beyond the committed offset."""
    seen = look(tmp_path, FORWARD, known(ChannelMark(7), lane("a", 4)), 2, 7)
    assert (seen.lost, seen.gaps) == (0, {})


def test_what_was_deleted_unread_is_lost(tmp_path: Path) -> None:
    """Positions that the log begins behind count as lost, but for those that the ledger has settled."""
    for ledger, before, gone in (
        (known(ChannelMark(2, ((3, 4),)), lane("a", 2), lane("b", 1)), 2, 3),
        (known(ChannelMark(4), lane("a", 2)), 2, 2),
        (known(ChannelMark(2), lane("a", 2)), None, 4),
        ({}, 2, 4),
        ({}, None, 0),
        (known(ChannelMark(7), lane("a", 2)), 2, 0),
    ):
        seen = look(tmp_path, FORWARD, ledger, before, 6, start=6)
        assert (seen.gone, seen.lost, seen.lost_at, seen.again) == (gone, gone, [], 0), (ledger, before)
    seen = look(tmp_path, FORWARD, known(ChannelMark(2), lane("a", 2)), 2, 8, start=6)
    assert (seen.gone, seen.lost, seen.lost_at) == (4, 6, [6, 7])


@pytest.mark.parametrize(
    ("before", "after", "by_worker", "ends"),
    [(9, 2, True, 4), (9, 8, True, 4), (9, 9, True, None), (4, 2, True, None), (9, 2, False, None)],
)
def test_back_with_an_old_ledger(before: int, after: int, by_worker: bool, ends: int | None) -> None:
    """What a worker did with another ledger would happen twice; what was passed over by hand would not."""
    part = Part(Touched({}, {}, set(), set()))
    for key, value in known(ChannelMark(4)).items():
        part.take(key, value)
    move = Move(PLACE, before, after, Watermarks(0, 9), after_worker=True, by_worker=by_worker)
    assert outdated([move], {PLACE: part}).get(PLACE) == ends
    assert outdated([move], {}) == {}


def test_back_below_the_frontier(tmp_path: Path) -> None:
    """Positions that are settled run nothing, whether their effects are known any more or not."""
    ledger = known(ChannelMark(9), lane("a", 5), case("rejected", "a", 4, 5))
    seen = look(tmp_path, FORWARD, ledger, 9, 0)
    assert (seen.again, seen.suppressed, seen.runs) == (8, 8, 0)
    assert seen.about == ["rejected-1"]


def test_back_over_what_nobody_settled(tmp_path: Path) -> None:
    """What was passed over and no worker has started since runs, and closes the gap that waits for it."""
    gap = Hold(HoldKind.GAP, "", 3, 9, 1, "sequence-gap", "sequence-gap-1", 5)
    ledger = known(
        ChannelMark(2),
        lane("a", 2, hold=gap),
        done("b", 1, 77),
        case("sequence-gap", "a", 3, 9),
        pause=Pause("ann", "lunch", 5),
    )
    seen = look(tmp_path, FORWARD, ledger, 7, 1)
    assert (seen.again, seen.suppressed, seen.runs) == (5, 2, 3)
    assert (seen.closed, seen.opened) == (["sequence-gap-1"], 0)


def test_back_without_a_ledger(tmp_path: Path) -> None:
    """Where none was ever begun all of it runs; a number that is missing opens a case."""
    log = Log(("a", 1), ("a", 1), ("b", 2))
    seen = look(tmp_path, log, {}, None, 0)
    assert (seen.frontier, seen.again, seen.unread) == (None, 0, 0), "the start of the log is where it begins"
    seen = look(tmp_path, log, {}, 3, 0)
    assert (seen.frontier, seen.again, seen.suppressed, seen.runs) == (None, 3, 1, 1)
    assert (seen.parked, seen.opened) == (1, 1)


def test_more_than_anybody_wants_to_wait_for(tmp_path: Path) -> None:
    """A look has a bound, and says how much it did not look at."""
    seen = look(tmp_path, FORWARD, known(ChannelMark(9), lane("a", 5)), 9, 0, limit=4)
    assert (seen.again, seen.suppressed, seen.unread) == (4, 4, 5)
