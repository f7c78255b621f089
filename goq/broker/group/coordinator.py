"""The group coordinator of a topic: membership and partition ownership of its groups.

A member is a consumer's name and a session id, of a stream or of a client's loop. A receive and a
join without a session id are of the member of the name alone. Where a caller of the API names a
consumer without a session id, all its sessions are meant.

All methods run on the event loop without ``await``. A caller must not ``await`` between
:meth:`Coordinator.partitions_for` and the lease that follows: the ownership could change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from goq import limits
from goq.broker.group.membership import GroupHost, GroupMembers, MembershipTimers
from goq.clock import Clock
from goq.delivery.group.lease import member_id
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
        self,
        group: str,
        consumer: str,
        session_timeout_ms: int | None = None,
        session_id: str = "",
    ) -> MemberAssignment:
        """Add a consumer to a group; for members of that name it counts as a heartbeat.

        Raises ``Conflict`` if the group does not share partitions, ``InvalidInput`` or ``TooLarge``
        for an invalid name or session timeout, ``TooManyRequests`` at the maximum of members.
        """
        self.check(group, consumer)
        known = self._ids(group, consumer, session_id) or [member_id(consumer, session_id)]
        for member in known:
            members = self._joined(group, member, session_timeout_ms)
        return _assignment(members, known)

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

    def heartbeat(self, group: str, consumer: str, session_id: str = "") -> MemberAssignment:
        """Restart a consumer's session timeouts; raise ``MemberNotFound`` if it is no member."""
        members, ids = self._of_consumer(group, consumer, session_id)
        for member in ids:
            members.touch(member)
        return _assignment(members, ids)

    def touch(self, group: str, member: str) -> None:
        """Count another request of a member, such as an ack, as a heartbeat, if it is still one."""
        members = self.groups.get(group)
        if members is not None:
            members.touch(member)

    def leave(self, group: str, consumer: str, session_id: str = "") -> None:
        """Remove a consumer's members; raise ``MemberNotFound`` if it has none.

        It keeps its leases until they end, and its partitions move to other members only then. If
        its connection was its session, the caller ends its leases too.
        """
        members, ids = self._of_consumer(group, consumer, session_id)
        for member in ids:
            members.leave(member)

    @contextmanager
    def session(self, group: str, consumer: str, session_id: str = "") -> Iterator[None]:
        """Keep a member's session alive while the block runs; join the group if necessary.

        The block is a receive, with its wait, or a stream. A new session takes the place of the
        member of the name alone, if nothing of that is open. Raises as :meth:`join` does.
        """
        self.check(group, consumer)
        member = member_id(consumer, session_id)
        known = self.groups.get(group)
        if session_id and known is not None and member not in known.membership.members:
            joined = known.membership.members.get(consumer)
            if joined is not None and not joined.open_count:
                known.leave(consumer)
        members = self._joined(group, member, None)
        joined_generation = members.open(member)
        try:
            yield
        finally:
            members.close(member, joined_generation)

    def partitions_for(self, group: str, member: str) -> tuple[int, ...]:
        """Return the partitions that a member may receive from now."""
        members = self.groups.get(group)
        return members.membership.partitions_of(member) if members is not None else ()

    def owner(self, group: str, partition: int) -> str | None:
        """Return the member to wake for a message in a partition, None without an owner."""
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

    def _joined(self, group: str, member: str, session_timeout_ms: int | None) -> GroupMembers:
        _check_session_timeout(session_timeout_ms)
        members = self.groups.get(group)
        if members is None:
            members = self.groups[group] = GroupMembers(
                group, self._host, self._clock, self._timers, self._generation
            )
        known = members.membership.members
        if member not in known and len(known) >= self._members_max:
            raise TooManyRequests(
                f"group {group} has {len(known)} members, the most it may have",
                retry_after_ms=1000,
            )
        members.join(member, session_timeout_ms)
        return members

    def _ids(self, group: str, consumer: str, session_id: str) -> list[str]:
        """Return the ids of a consumer's members: of one session, or of all."""
        members = self.groups.get(group)
        if members is None:
            return []
        named = members.membership.members_named(consumer)
        return [m for m in named if not session_id or m == member_id(consumer, session_id)]

    def _of_consumer(
        self, group: str, consumer: str, session_id: str
    ) -> tuple[GroupMembers, list[str]]:
        ids = self._ids(group, consumer, session_id)
        if not ids:
            raise MemberNotFound(
                f"{consumer[:80]!r} is not a member of group {group[:80]!r}, or no longer;"
                " join again",
                field="consumer",
            )
        return self.groups[group], ids


def _assignment(members: GroupMembers, ids: Sequence[str]) -> MemberAssignment:
    membership = members.membership
    return MemberAssignment(
        membership.generation,
        tuple(sorted(p for member in ids for p in membership.partitions_of(member))),
        tuple(sorted(p for member in ids for p in membership.revoking_from(member))),
    )


def _check_session_timeout(session_timeout_ms: int | None) -> None:
    low_ms, high_ms = limits.SESSION_TIMEOUT_MS_MIN, limits.SESSION_TIMEOUT_MS_MAX
    if session_timeout_ms is not None and not low_ms <= session_timeout_ms <= high_ms:
        raise InvalidInput(
            f"a session timeout of {format_duration_ms(session_timeout_ms)} is out of bounds:"
            f" allowed is {format_duration_ms(low_ms)} to {format_duration_ms(high_ms)}",
            field="session_timeout",
        )
