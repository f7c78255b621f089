"""The messages that a consume loop received and has not yielded, with the times of their leases.

Leases are timed by the monotonic clock of this process. A lease counts from before the node can
have sent its message, or from before its extension was asked for. So it ends here before it ends at
the node, whatever the wall clocks say.

Three threads meet here: readers add, the loop takes, the lease keeper extends and drains.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from math import inf
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from goq.client.messages import FailedReceipt
from goq.errors import LeaseLost
from goq.model import Receipt

_FRESH_SHARE: Final = 0.05
_FRESH_S_MAX: Final = 1.0
_EXTENDED_AFTER_SHARE: Final = 1 / 3
_TAKEN_MIN: Final = 1000
IsChosen = Callable[[str, int], bool]
"""Chooses messages by topic and partition."""


class LeasedMessage(Protocol):
    """A received message of either client."""

    topic: str
    partition: int
    group: str
    settled: bool

    def claim(self) -> Receipt:
        """Return the receipt in its parts."""
        ...


MessageT = TypeVar("MessageT", bound=LeasedMessage)


class BufferedMessage(msgspec.Struct, Generic[MessageT], eq=False):
    """A message, and its lease: ``length_s`` from ``since_s`` on. ``is_lost`` where it ended."""

    message: MessageT
    length_s: float
    since_s: float
    is_lost: bool = False

    @property
    def place(self) -> tuple[str, int]:
        """The topic and the partition."""
        return self.message.topic, self.message.partition

    def is_fresh(self, now_s: float) -> bool:
        """Return whether the caller still gets nearly the whole lease: 95 %, or all but 1 s."""
        return now_s - self.since_s <= min(self.length_s * _FRESH_SHARE, _FRESH_S_MAX)

    def is_alive(self, now_s: float) -> bool:
        """Return whether the lease certainly lasts."""
        return not self.is_lost and now_s < self.since_s + self.length_s

    def is_due(self, now_s: float) -> bool:
        """Return whether to extend the lease."""
        return now_s - self.since_s >= self.length_s * _EXTENDED_AFTER_SHARE


class MessageBuffer(Generic[MessageT]):
    """The held messages of one loop, and with ``keeps_taken`` those that its caller has.

    ``changed`` is its lock; it tells of a lease that is shorter than those before.
    """

    def __init__(self, *, keeps_taken: bool) -> None:
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self.lease_s_min = inf
        self._keeps_taken = keeps_taken
        self._held: deque[BufferedMessage[MessageT]] = deque()
        self._taken: list[BufferedMessage[MessageT]] = []
        self._taken_max = _TAKEN_MIN
        self.lent_s: float | None = None
        """Since when the caller has the message that it took last, None while it waits."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, messages: Iterable[MessageT], length_s: float, since_s: float) -> None:
        """Add messages with leases of ``length_s`` that began at ``since_s`` or later."""
        entries = list(map(BufferedMessage, messages, repeat(length_s), repeat(since_s)))
        with self.changed:
            self._held.extend(entries)
            if length_s < self.lease_s_min:
                self.lease_s_min = length_s
                self.changed.notify_all()

    def take(self) -> BufferedMessage[MessageT] | None:
        """Remove and return the first message, None without any."""
        with self._lock:
            if not self._held:
                return None
            entry = self._held.popleft()
            if self._keeps_taken:
                if len(self._taken) >= self._taken_max:
                    self._forget_settled()
                self._taken.append(entry)
            return entry

    def held(self, is_chosen: IsChosen) -> list[BufferedMessage[MessageT]]:
        """Return the chosen messages that are held."""
        with self.changed:
            return [entry for entry in self._held if is_chosen(*entry.place)]

    def drain(self, is_chosen: IsChosen | None = None) -> list[MessageT]:
        """Remove and return all held messages, or the chosen ones."""
        with self.changed:
            entries = list(self._held)
            self._held.clear()
            if is_chosen is not None:
                self._held.extend(entry for entry in entries if not is_chosen(*entry.place))
                entries = [entry for entry in entries if is_chosen(*entry.place)]
            return [entry.message for entry in entries]

    def left_alone_since_s(self, now_s: float) -> float | None:
        """Return since when the caller has one message, if for a whole lease of those held."""
        with self.changed:
            return self._left_alone_since_s(now_s)

    def _left_alone_since_s(self, now_s: float) -> float | None:
        lent_s = self.lent_s
        if lent_s is None or not self._held or now_s - lent_s < self._held[0].length_s:
            return None
        return lent_s

    def due(self, now_s: float) -> list[BufferedMessage[MessageT]]:
        """Return the messages whose leases are to be extended: held, or taken and unsettled.

        Those that are held are not while the buffer is left alone.
        """
        with self.changed:
            self._forget_settled()
            held = self._held if self._left_alone_since_s(now_s) is None else ()
            return [entry for entry in (*held, *self._taken) if entry.is_due(now_s)]

    def extended(
        self,
        entries: Sequence[BufferedMessage[MessageT]],
        length_s: float,
        since_s: float,
        failed: Sequence[FailedReceipt],
    ) -> None:
        """Note an extension to ``length_s``; messages whose lease is lost are dropped.

        The outcome of other ``failed`` receipts is not known: their leases last as before.
        """
        lost = [Receipt.parse(each.receipt) for each in failed if each.code == LeaseLost.code]
        unknown = [Receipt.parse(each.receipt) for each in failed if each.code != LeaseLost.code]
        for entry in entries:
            if failed and _is_in(entry.message.claim(), lost):
                entry.is_lost = True
            elif not (unknown and _is_in(entry.message.claim(), unknown)):
                entry.length_s, entry.since_s = length_s, since_s
        if lost:
            with self.changed:
                held = [entry for entry in self._held if not entry.is_lost]
                self._held.clear()
                self._held.extend(held)
                self._taken = [entry for entry in self._taken if not entry.is_lost]

    def _forget_settled(self) -> None:
        self._taken = [entry for entry in self._taken if not entry.message.settled]
        self._taken_max = max(_TAKEN_MIN, 2 * len(self._taken))


def _is_in(claim: Receipt, runs: Sequence[Receipt]) -> bool:
    return any(run[:2] == claim[:2] and run.start <= claim.start < run.end for run in runs)
