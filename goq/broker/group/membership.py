"""The runtime of one group's membership: hand-overs, history, and the session timer.

Session timeouts use the monotonic clock of the event loop, so a change of the wall clock evicts no
member. One timer is set for the next session that may end. No timer is set while every member has a
receive or a stream open, or the group has no members.
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
    """The interface of a membership to its topic."""

    def partition_count(self) -> int:
        """Return the number of partitions."""
        ...

    def shares_partitions(self, group: str) -> bool:
        """Return whether a group's partitions belong to one consumer each."""
        ...

    def holder(self, group: str, partition: int, other_than: str | None) -> str | None:
        """Return a consumer other than ``other_than`` with a lease in a partition, else None."""
        ...

    def wake_consumers(self, group: str, consumers: Collection[str]) -> None:
        """Wake these consumers, if they wait: they got partitions."""
        ...

    def restart_consumers(self, group: str, consumers: Collection[str]) -> None:
        """Have these consumers, if they wait, begin again: they are no members any more."""
        ...


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""
        ...


class MembershipTimers(Protocol):
    """The timers of an event loop."""

    def time(self) -> float:
        """Return seconds on a monotonic clock."""
        ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        """Call back when that clock shows ``when``."""
        ...


class GroupMembers:
    """The members of one group."""

    def __init__(
        self, group: str, host: GroupHost, clock: Clock, timers: MembershipTimers, generation: int
    ) -> None:
        """Begin without members; consumers with leases count as the last owners."""
        self.group = group
        self.history = RebalanceHistory()
        self.membership = Membership(host.partition_count(), generation)
        self._host = host
        self._clock = clock
        self._timers = timers
        self._timer: Timer | None = None
        self._due_ms = 0  # of the timer, if one is set
        for partition in range(self.membership.partition_count):
            holder = host.holder(group, partition, None)
            if holder is not None:
                self.membership.set_last_owner(partition, holder)

    def join(self, consumer: str, session_timeout_ms: int | None) -> None:
        """Add a consumer; for a member it counts as a heartbeat."""
        rebalance = self.membership.join(consumer, self._now_ms(), session_timeout_ms)
        self._arm_for(consumer)
        self._apply(rebalance)

    def touch(self, consumer: str) -> None:
        """Restart a consumer's session timeout, if it is a member."""
        member = self.membership.members.get(consumer)
        if member is not None:
            member.touch(self._now_ms())

    def leave(self, consumer: str) -> None:
        """Remove a member."""
        self._apply(self.membership.leave(consumer, self._now_ms()))

    def open(self, consumer: str) -> int:
        """Suspend a member's session timeout until :meth:`close`; return the generation for it."""
        return self.membership.open(consumer, self._now_ms())

    def close(self, consumer: str, joined_generation: int) -> None:
        """Start a member's session timeout, unless it has another receive or stream open."""
        self.membership.close(consumer, joined_generation, self._now_ms())
        self._arm_for(consumer)

    def on_partitions_added(self) -> None:
        """Assign the partitions that were added to the topic."""
        count = self._host.partition_count()
        self._apply(self.membership.add_partitions(count, self._now_ms()))

    def hand_over(self, partitions: Iterable[int]) -> None:
        """Hand over the moving partitions in which only the next owner still has leases."""
        owners: set[str] = set()
        for partition in partitions:
            heir = self.membership.next_owner(partition)
            if heir is not None and self._host.holder(self.group, partition, heir) is None:
                self.membership.release(partition, self._now_ms())
                owners.add(heir)
        if owners:
            self._host.wake_consumers(self.group, owners)

    def on_reopened(self, partition: int) -> None:
        """Follow the leases of a partition whose state was rebuilt.

        Leases may be gone. A lease whose end was not written may be back: then the owner waits for
        its end.
        """
        owner = self.membership.owner(partition)
        holder = self._host.holder(self.group, partition, owner) if owner is not None else None
        if holder is not None:
            self.membership.pause(partition, holder, self._now_ms())
        self.hand_over((partition,))

    def stop(self) -> None:
        """Remove all members and cancel the timer."""
        self.membership.clear()
        self._cancel()

    def wall_us(self, monotonic_ms: int) -> int:
        """Return the wall-clock time at which the monotonic clock showed ``monotonic_ms``."""
        return self._clock.wall_us() - (self._now_ms() - monotonic_ms) * 1000

    def _apply(self, rebalance: Rebalance | None) -> None:
        if rebalance is None:
            return
        self.history.add(self._clock.wall_us(), rebalance)
        if rebalance.reason in (RebalanceReason.LEFT, RebalanceReason.EVICTED):
            self._host.restart_consumers(self.group, rebalance.consumers)
        if rebalance.reason is RebalanceReason.EVICTED:
            names = ", ".join(rebalance.consumers[:5])
            _log.info("group %s: %d evicted: %s", self.group, len(rebalance.consumers), names)
        if not self.membership.members:
            self._cancel()
        self.hand_over(move.partition for move in rebalance.moves)

    def _arm_for(self, consumer: str) -> None:
        """Set the timer to fire no later than a member's session may end.

        It may fire early and find nothing to do. Moving it with each heartbeat would cost more.
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
            # The process was paused: heartbeats sent meanwhile are not read yet.
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
        return round(self._timers.time() * 1000)  # rounded down, a timer could fire early
