"""The messages that a consume loop received and has not yielded, with the times of their leases.

Leases are timed by the monotonic clock of this process. A lease counts from before the node can
have sent its message, or from before its extension was asked for. So it ends here before it ends at
the node, whatever the wall clocks say.

Three threads meet here: readers add, the loop takes, the lease keeper extends and drains. The loop
takes without the lock: ``popleft`` is atomic. A thread that moves messages holds the lock and
removes them one by one, the last first, which keeps their order. The loop that finds none looks
again under the lock.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final, Generic, Protocol, TypeVar

from goq.client.messages import FailedReceipt
from goq.errors import LeaseLost
from goq.model import Receipt

_log = logging.getLogger("goq.client")
_FRESH_SHARE: Final = 0.05
_FRESH_S_MAX: Final = 1.0
_EXTENDED_AFTER_SHARE: Final = 1 / 3
_TAKEN_MIN: Final = 1000
IsChosen = Callable[[str, int], bool]
"""Chooses messages by topic and partition."""


@dataclass(frozen=True, slots=True)
class LeaseTime:
    """A lease of ``length_s`` from ``since_s`` on, in monotonic seconds; messages share it.

    Until ``fresh_until_s`` nearly the whole lease is left: 95 %, or all but 1 s.
    """

    length_s: float
    since_s: float
    fresh_until_s: float = field(init=False)

    def __post_init__(self) -> None:
        fresh_s = min(self.length_s * _FRESH_SHARE, _FRESH_S_MAX)
        object.__setattr__(self, "fresh_until_s", self.since_s + fresh_s)

    @property
    def ends_s(self) -> float:
        """When the lease may end; never, if nothing is known of it."""
        return self.since_s + self.length_s if self.length_s else inf

    def is_alive(self, now_s: float) -> bool:
        """Return whether the lease certainly lasts."""
        return now_s < self.since_s + self.length_s

    def is_due(self, now_s: float) -> bool:
        """Return whether to extend the lease."""
        return now_s - self.since_s >= self.length_s * _EXTENDED_AFTER_SHARE


NO_LEASE: Final = LeaseTime(0.0, -inf)
"""The lease of a message that has lost it, or that no loop received."""


class LeasedMessage(Protocol):
    """A received message of either client."""

    topic: str
    partition: int
    group: str
    settled: bool
    lease_time: LeaseTime

    def claim(self) -> Receipt:
        """Return the receipt in its parts."""
        ...


MessageT = TypeVar("MessageT", bound=LeasedMessage)


class MessageBuffer(Generic[MessageT]):
    """The held messages of one loop, and with ``keeps_taken`` those that its caller has.

    ``changed`` is its lock; it tells of a lease that is shorter than those before.
    """

    def __init__(self, *, keeps_taken: bool) -> None:
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self.lease_s_min = inf
        self._keeps_taken = keeps_taken
        self._held: deque[MessageT] = deque()
        self._taken: list[MessageT] = []
        self._taken_max = _TAKEN_MIN
        self.lent_s: float | None = None
        """Since when the caller has the message that it took last, None while it waits."""

    def __len__(self) -> int:
        with self._lock:
            return len(self._held)

    def add(self, messages: Iterable[MessageT], lease_time: LeaseTime) -> None:
        """Add messages that have this lease."""
        with self.changed:
            self._held.extend(messages)
            if lease_time.length_s < self.lease_s_min:
                self.lease_s_min = lease_time.length_s
                self.changed.notify_all()

    def take(self) -> MessageT | None:
        """Remove and return the first message, None without any."""
        if not self._keeps_taken:
            try:
                return self._held.popleft()
            except IndexError:  # none, or another thread moves them
                pass
        with self._lock:
            if not self._held:
                return None
            message = self._held.popleft()
            if self._keeps_taken:
                if len(self._taken) >= self._taken_max:
                    self._forget_settled()
                self._taken.append(message)
            return message

    def held(self, is_chosen: IsChosen) -> list[MessageT]:
        """Return the chosen messages that are held."""
        with self._lock:
            held = self._held.copy()
        return [message for message in held if is_chosen(message.topic, message.partition)]

    def drain(self, is_chosen: IsChosen | None = None) -> list[MessageT]:
        """Remove and return all held messages, or the chosen ones."""
        with self._lock:
            messages = self._remove_all()
            if is_chosen is None:
                return messages
            chosen = [each for each in messages if is_chosen(each.topic, each.partition)]
            self._held.extend(
                each for each in messages if not is_chosen(each.topic, each.partition)
            )
            return chosen

    def _remove_all(self) -> list[MessageT]:
        removed: list[MessageT] = []
        while self._held:
            with suppress(IndexError):  # the loop took the last
                removed.append(self._held.pop())
        return removed[::-1]

    def left_alone_since_s(self, now_s: float) -> float | None:
        """Return since when the caller has one message, if for a whole lease of those held."""
        with self._lock:
            return self._left_alone_since_s(now_s, self._held.copy())

    def _left_alone_since_s(self, now_s: float, held: deque[MessageT]) -> float | None:
        lent_s = self.lent_s
        if lent_s is None or not held or now_s - lent_s < held[0].lease_time.length_s:
            return None
        return lent_s

    def due(self, now_s: float) -> list[MessageT]:
        """Return the messages whose leases are to be extended: held, or taken and unsettled.

        Those that are held are not while the buffer is left alone.
        """
        with self._lock:
            self._forget_settled()
            held = self._held.copy()
            if self._left_alone_since_s(now_s, held) is not None:
                held.clear()
            return [each for each in (*held, *self._taken) if each.lease_time.is_due(now_s)]

    def extended(
        self,
        messages: Sequence[MessageT],
        lease_time: LeaseTime,
        failed: Sequence[FailedReceipt],
    ) -> None:
        """Note an extension to ``lease_time``; messages whose lease is lost are dropped.

        The outcome of other ``failed`` receipts is not known: their leases last as before.
        """
        lost = [Receipt.parse(each.receipt) for each in failed if each.code == LeaseLost.code]
        unknown = [Receipt.parse(each.receipt) for each in failed if each.code != LeaseLost.code]
        for message in messages:
            if failed and _is_in(message.claim(), lost):
                message.lease_time = NO_LEASE
            elif not (unknown and _is_in(message.claim(), unknown)):
                message.lease_time = lease_time
        if lost:
            self._tell_lost(messages)
            with self._lock:
                self._held.extend(each for each in self._remove_all() if _has_lease(each))
                self._taken = [each for each in self._taken if _has_lease(each)]

    def _tell_lost(self, messages: Sequence[MessageT]) -> None:
        """Log the leases that ended; those of settled messages did as they should."""
        lost = [each for each in messages if not each.settled and not _has_lease(each)]
        if lost:
            claim = lost[0].claim()
            _log.info(
                "%d leases of %s were lost, the first of %d:%d: others get the messages",
                *(len(lost), lost[0].topic, claim.partition, claim.start),
            )

    def _forget_settled(self) -> None:
        self._taken = [message for message in self._taken if not message.settled]
        self._taken_max = max(_TAKEN_MIN, 2 * len(self._taken))


def _has_lease(message: LeasedMessage) -> bool:
    return message.lease_time is not NO_LEASE


def _is_in(claim: Receipt, runs: Sequence[Receipt]) -> bool:
    return any(run.covers(claim) for run in runs)
