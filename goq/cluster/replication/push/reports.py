"""The reports of a follower: which pushes of one session are on its disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from goq.cluster.replication.push.protocol import PeerStream, PushHead, encode_stored
from goq.errors import InvalidFrame


class PushReports:
    """Tells the leader which pushes of a session are stored.

    A report tells all that are stored by the end of a turn of the event loop. If nothing else is
    under way, it need not wait for more.
    """

    def __init__(self, session: int, stream: PeerStream) -> None:
        self._session = session
        self._stream = stream
        self._unstored: dict[int, int] = {}
        """By push, the partitions that are not stored yet."""
        self._last = 0
        """The last push that has arrived."""
        self._stored: list[int] = []
        """The pushes that are stored and not reported."""
        self._takes_others = False
        self._is_scheduled = False
        self._is_over = False

    def end(self) -> None:
        """Tell nothing more."""
        self._is_over = True

    def on_arrival(self, head: PushHead) -> None:
        """Note a push; raise ``InvalidFrame`` unless it is the next one."""
        if head.number != self._last + 1:
            raise InvalidFrame(f"push {head.number} does not follow push {self._last}")
        self._last, self._takes_others = head.number, head.takes_others
        self._unstored[head.number] = len(head.updates)

    def on_stored(self, numbers: Iterable[int]) -> None:
        """Note that one partition of each of these pushes is stored."""
        for number in numbers:
            self._unstored[number] -= 1
            if not self._unstored[number]:
                del self._unstored[number]
                self._stored.append(number)
        if not self._unstored:
            self._report()
        elif self._stored and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        self._is_scheduled = False
        if self._is_over:
            return
        number = next(iter(self._unstored), self._last + 1) - 1
        told = [stored for stored in self._stored if stored <= number or self._takes_others]
        if told:
            others = [stored for stored in told if stored > number]
            self._stored = [stored for stored in self._stored if stored not in told]
            self._stream.send(encode_stored(self._session, number, others))
