"""The group coordinator of a topic: membership and partition ownership of its groups.

All methods run on the event loop without ``await``. A caller must not ``await`` between
:meth:`Coordinator.partitions_for` and the lease that follows: the ownership could change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from goq import limits
from goq.broker.group.membership import GroupHost, GroupMembers, MembershipTimers
from goq.clock import Clock
from goq.errors import Conflict, InvalidInput, MemberNotFound, TooLarge, TooManyRequests
from goq.units import format_duration_ms


class MemberAssignment(NamedTuple):
    """The partitions of a member: those it owns, and those it must finish and release."""

    generation: int
    partitions: tuple[int, ...]
    revoking: tuple[int, ...]


class Coordinator:
    """The memberships of the groups of one topic."""

    def __init__(
        self,
        host: GroupHost,
        clock: Clock,
        *,
        first_generation: int = 0,
        timers: MembershipTimers | None = None,
        members_max: int = limits.MEMBERS_PER_GROUP_MAX,
    ) -> None:
        """``first_generation`` must exceed every generation of earlier starts of the node."""
        self._host = host
        self._clock = clock
        self._members_max = members_max
        self._timers: MembershipTimers = timers or asyncio.get_running_loop()
        self._generation = first_generation
        self.groups: dict[str, GroupMembers] = {}

    def join(
        self, group: str, consumer: str, session_timeout_ms: int | None = None
    ) -> MemberAssignment:
        """Add a consumer to a group; for a member it counts as a heartbeat.

        Raises ``Conflict`` if the group does not share partitions, ``InvalidInput`` or ``TooLarge``
        for an invalid name or session timeout, ``TooManyRequests`` at the maximum of members.
        """
        return _assignment(self._joined(group, consumer, session_timeout_ms), consumer)

    def check(self, group: str, consumer: str) -> None:
        """Raise the error of :meth:`join` for a group or a name that can never join."""
        if not self._host.shares_partitions(group):
            raise Conflict(
                f"group {group} has no members: its ordering is not 'partition'", field="group"
            )
        if not consumer:
            raise InvalidInput(
                "name the consumer: each partition of this group belongs to one", field="consumer"
            )
        if len(consumer) > limits.CONSUMER_NAME_CHARS_MAX:
            raise TooLarge(
                f"a consumer's name has at most {limits.CONSUMER_NAME_CHARS_MAX} characters",
                field="consumer",
            )
        if "/" in consumer or not consumer.isprintable():
            raise InvalidInput(
                f"a member's name is printable and has no '/', unlike {consumer[:80]!r}",
                field="consumer",
            )

    def heartbeat(self, group: str, consumer: str) -> MemberAssignment:
        """Restart a member's session timeout; raise ``MemberNotFound`` for another consumer."""
        members = self._of_member(group, consumer)
        members.touch(consumer)
        return _assignment(members, consumer)

    def touch(self, group: str, consumer: str) -> None:
        """Count another request of a consumer, such as an ack, as a heartbeat if it is a member."""
        members = self.groups.get(group)
        if members is not None:
            members.touch(consumer)

    def leave(self, group: str, consumer: str) -> None:
        """Remove a member; raise ``MemberNotFound`` for another consumer.

        It keeps its leases until they end, and its partitions move to other members only then. If
        its connection was its session, the caller ends its leases too.
        """
        self._of_member(group, consumer).leave(consumer)

    @contextmanager
    def session(self, group: str, consumer: str) -> Iterator[None]:
        """Keep a consumer's session alive while the block runs; join the group if necessary.

        The block is a receive, with its wait, or a stream. Raises as :meth:`join` does.
        """
        members = self._joined(group, consumer, None)
        joined_generation = members.open(consumer)
        try:
            yield
        finally:
            members.close(consumer, joined_generation)

    def partitions_for(self, group: str, consumer: str) -> tuple[int, ...]:
        """Return the partitions that a consumer may receive from now."""
        members = self.groups.get(group)
        return members.membership.partitions_of(consumer) if members is not None else ()

    def owner(self, group: str, partition: int) -> str | None:
        """Return the consumer to wake for a message in a partition, None without an owner."""
        members = self.groups.get(group)
        return members.membership.owner(partition) if members is not None else None

    def on_settled(self, group: str, partition: int) -> None:
        """Hand a partition over, if it moves, after messages in it left their lease."""
        members = self.groups.get(group)
        if members is not None:
            members.hand_over((partition,))

    def on_reopened(self, partition: int) -> None:
        """Follow the leases of a partition whose state was rebuilt: they may have changed."""
        for members in list(self.groups.values()):
            members.on_reopened(partition)

    def on_partitions_added(self) -> None:
        """Assign the partitions that were added to the topic."""
        for members in list(self.groups.values()):
            members.on_partitions_added()

    def forget(self, group: str) -> None:
        """Remove a group with its members and history: it was deleted, or its ordering changed."""
        members = self.groups.pop(group, None)
        if members is not None:
            self._generation = max(self._generation, members.membership.generation)
            members.stop()

    def close(self) -> None:
        """Remove all groups."""
        for group in list(self.groups):
            self.forget(group)

    def members(self, group: str) -> GroupMembers | None:
        """Return a group's members, for queries only; None if no consumer ever joined."""
        return self.groups.get(group)

    def _joined(self, group: str, consumer: str, session_timeout_ms: int | None) -> GroupMembers:
        self.check(group, consumer)
        _check_session_timeout(session_timeout_ms)
        members = self.groups.get(group)
        if members is None:
            members = self.groups[group] = GroupMembers(
                group, self._host, self._clock, self._timers, self._generation
            )
        known = members.membership.members
        if consumer not in known and len(known) >= self._members_max:
            raise TooManyRequests(
                f"group {group} has {len(known)} members, the most it may have",
                retry_after_ms=1000,
            )
        members.join(consumer, session_timeout_ms)
        return members

    def _of_member(self, group: str, consumer: str) -> GroupMembers:
        members = self.groups.get(group)
        if members is None or consumer not in members.membership.members:
            raise MemberNotFound(
                f"{consumer[:80]!r} is not a member of group {group[:80]!r}, or no longer;"
                " join again",
                field="consumer",
            )
        return members


def _assignment(members: GroupMembers, consumer: str) -> MemberAssignment:
    membership = members.membership
    return MemberAssignment(
        membership.generation,
        membership.partitions_of(consumer),
        membership.revoking_from(consumer),
    )


def _check_session_timeout(session_timeout_ms: int | None) -> None:
    low_ms, high_ms = limits.SESSION_TIMEOUT_MS_MIN, limits.SESSION_TIMEOUT_MS_MAX
    if session_timeout_ms is not None and not low_ms <= session_timeout_ms <= high_ms:
        raise InvalidInput(
            f"a session timeout of {format_duration_ms(session_timeout_ms)} is out of bounds:"
            f" allowed is {format_duration_ms(low_ms)} to {format_duration_ms(high_ms)}",
            field="session_timeout",
        )
