"""Which deliveries a former owner may have handed to a handler: what `redelivered` says.

A machine notes on its own disk what it hands over. What another one noted there nobody can ask. Its last
cycle says what it had settled by then, and beyond that an owner can have read so many records, and no more,
before its next cycle is committed. They are counted, not measured in offsets: duplicates, followers that are
parked, garbage and the holes of the log use up offsets too, and no handler gets to see them.
"""

from __future__ import annotations

from laneway.lanes.record import Channel
from laneway.lanes.view import ChannelMark, Opening


class Redelivery:
    """What was handed over before this ownership, as far as anybody can tell: rather too much.

    Args:
        slack: so many records of the source another owner can have read beyond its last cycle; 0 where none
            can follow on this one. It may have been there although that cycle is our own: it died before it
            made one.
    """

    def __init__(self, opening: Opening, slack: int) -> None:
        self._before = dict(opening.handed_over)
        self._left: dict[Channel, int] = {}
        self._unbounded: set[Channel] = set()
        meta = opening.meta
        if meta is None:
            return
        for channel in Channel:
            known = max(self._before.get(channel, -1), meta.handed_over.get(channel, -1))
            if slack:
                mark = meta.marks.get(channel)
                known = max(known, _end(mark) - 1 if mark is not None else -1)
                self._left[channel] = slack
                if channel is not Channel.SOURCE:
                    # Retries and commands are read beyond any bound of the source, but not beyond their end.
                    self._unbounded.add(channel)
            self._before[channel] = known

    def may_have_been(self, channel: Channel, offset: int) -> bool:
        """Whether a handler may have had this record. Asked once for each, in the order of its channel."""
        if offset > self._before.get(channel, -1):
            left = self._left.get(channel, 0)
            if left:
                self._left[channel] = left - 1
            elif channel not in self._unbounded:
                return False
            self._before[channel] = offset
        return True

    def had(self, channel: Channel, offset: int) -> bool:
        """The same of a record that is no news: settled before, or parked. As often as one likes."""
        return offset <= self._before.get(channel, -1)

    def reached(self, channel: Channel) -> None:
        """All that was in a channel has been read: what comes now, no former owner had."""
        self._unbounded.discard(channel)


def _end(mark: ChannelMark) -> int:
    """The offset behind the last one that is settled."""
    return mark.settled[-1][1] if mark.settled else mark.frontier
