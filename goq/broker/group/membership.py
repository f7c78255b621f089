"""Runs the membership of one group: its hand-overs, its history, and the timer of its sessions.

Sessions are measured on the loop's monotonic clock: setting the wall clock evicts nobody. One
timer is set for the next session that may end, and none while all members have a receive or a
stream open, or there is none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from goq.clock import Clock
from goq.delivery.membership.membership import Membership
from goq.delivery.membership.rebalance_history import Rebalance, RebalanceHistory, RebalanceReason

_log = logging.getLogger("goq.broker")

_LATE_MS_MAX = 250
_GRACE_MS = 1_000


class GroupHost(Protocol):
    """What members need of their topic."""

    def partition_count(self) -> int:
        """Return how many partitions there are."""
        ...

    def shares_partitions(self, group: str) -> bool:
        """Return whether a group's partitions belong to one consumer each."""
        ...

    def holder(self, group: str, partition: int, other_than: str | None) -> str | None:
        """Return a consumer, other than that one, that has a lease in a partition, if any does."""
        ...

    def wake_consumers(self, group: str, consumers: Collection[str]) -> None:
        """Let these consumers look again if they wait: they got partitions."""
        ...


class Timer(Protocol):
    """A call to come."""

    def cancel(self) -> None:
        """Let it not come."""
        ...


class MembershipTimers(Protocol):
    """The timers of an event loop."""

    def time(self) -> float:
        """Return seconds on a clock that is never set."""
        ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        """Call back when that clock says ``when``."""
        ...


class GroupMembers:
    """The members of one group."""

    def __init__(
        self, group: str, host: GroupHost, clock: Clock, timers: MembershipTimers, generation: int
    ) -> None:
        """Begin with no members, and with the leases that are there already."""
        self.group = group
        self.history = RebalanceHistory()
        self.membership = Membership(host.partition_count(), generation)
        self._host = host
        self._clock = clock
        self._timers = timers
        self._timer: Timer | None = None
        self._due_ms = 0  # of the timer, if there is one
        for partition in range(self.membership.partition_count):
            holder = host.holder(group, partition, None)
            if holder is not None:
                self.membership.set_last_owner(partition, holder)

    def join(self, consumer: str, session_timeout_ms: int | None) -> None:
        """Let a consumer take part; for a member it counts as a heartbeat."""
        rebalance = self.membership.join(consumer, self._now_ms(), session_timeout_ms)
        self._arm_for(consumer)
        self._apply(rebalance)

    def touch(self, consumer: str) -> bool:
        """Begin a member's session anew; return whether it is a member."""
        member = self.membership.members.get(consumer)
        if member is None:
            return False
        member.touch(self._now_ms())
        return True

    def leave(self, consumer: str) -> None:
        """Let a member go."""
        self._apply(self.membership.leave(consumer, self._now_ms()))

    def open(self, consumer: str) -> int:
        """Keep a member alive until :meth:`close`; return what to close with."""
        return self.membership.open(consumer, self._now_ms())

    def close(self, consumer: str, joined_generation: int) -> None:
        """Let a member's session timeout begin, unless something else of it is open."""
        self.membership.close(consumer, joined_generation, self._now_ms())
        self._arm_for(consumer)

    def on_partitions_added(self) -> None:
        """Share out the partitions that the topic has got."""
        count = self._host.partition_count()
        self._apply(self.membership.add_partitions(count, self._now_ms()))

    def hand_over(self, partitions: Iterable[int]) -> None:
        """Hand over those that move and that nobody but their heir has messages of any more."""
        owners: set[str] = set()
        for partition in partitions:
            heir = self.membership.next_owner(partition)
            if heir is not None and self._host.holder(self.group, partition, heir) is None:
                self.membership.release(partition, self._now_ms())
                owners.add(heir)
        if owners:
            self._host.wake_consumers(self.group, owners)

    def on_reopened(self, partition: int) -> None:
        """Look at the leases of a partition anew: of those that were known some may be gone.

        And some may be back, whose end was not written: then its owner has to wait for them.
        """
        owner = self.membership.owner(partition)
        holder = self._host.holder(self.group, partition, owner) if owner is not None else None
        if holder is not None:
            self.membership.pause(partition, holder, self._now_ms())
        self.hand_over((partition,))

    def stop(self) -> None:
        """End with the topic, or the group: evict nobody any more."""
        self.membership.members.clear()
        self._cancel()

    def wall_us(self, monotonic_ms: int) -> int:
        """Return the wall-clock time at which the sessions' clock showed ``monotonic_ms``."""
        return self._clock.wall_us() - (self._now_ms() - monotonic_ms) * 1000

    def _apply(self, rebalance: Rebalance | None) -> None:
        if rebalance is None:
            return
        self.history.add(self._clock.wall_us(), rebalance)
        if rebalance.reason is RebalanceReason.EVICTED:
            names = ", ".join(rebalance.consumers[:5])
            _log.info("group %s: %d evicted: %s", self.group, len(rebalance.consumers), names)
        if not self.membership.members:
            self._cancel()
        self.hand_over(move.partition for move in rebalance.moves)

    def _arm_for(self, consumer: str) -> None:
        """Have a timer that comes no later than a member's session may end.

        It may come earlier and find nothing to do: moving it with each sign of life costs more.
        """
        member = self.membership.members.get(consumer)
        if member is not None and not member.open_count:
            self._arm(member.deadline_ms)

    def _arm(self, due_ms: int) -> None:
        if self._timer is None or due_ms < self._due_ms:
            self._cancel()
            self._due_ms = due_ms
            self._timer = self._timers.call_at(due_ms / 1000, self._on_time)

    def _on_time(self) -> None:
        self._timer, now_ms = None, self._now_ms()
        late_ms = now_ms - self._due_ms
        if late_ms > _LATE_MS_MAX:
            # The node stood still: what members sent meanwhile is still to be read.
            self.membership.extend_deadlines(late_ms + _GRACE_MS)
        self._apply(self.membership.evict_expired(now_ms))
        due_ms = self.membership.next_deadline_ms()
        if due_ms is not None:
            self._arm(due_ms)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _now_ms(self) -> int:
        return round(self._timers.time() * 1000)  # down, a timer could come before its time
