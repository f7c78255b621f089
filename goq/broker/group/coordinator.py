"""The memberships of a topic's groups: what consumers do, and what the topic asks and tells.

Everything here happens at once, on the event loop: between the question which partitions a
consumer may take from (:meth:`Coordinator.partitions_for`) and the lease that follows there must
be no ``await``.
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
    """What a member has: partitions it takes from, and those it is to finish and give up."""

    generation: int
    partitions: tuple[int, ...]
    revoking: tuple[int, ...]


class Coordinator:
    """The members of the groups of one topic."""

    def __init__(
        self,
        host: GroupHost,
        clock: Clock,
        *,
        first_generation: int = 0,
        timers: MembershipTimers | None = None,
    ) -> None:
        """``first_generation`` is to be higher than any before the node was started."""
        self._host = host
        self._clock = clock
        self._timers: MembershipTimers = timers or asyncio.get_running_loop()
        self._generation = first_generation
        self.groups: dict[str, GroupMembers] = {}

    def join(
        self, group: str, consumer: str, session_timeout_ms: int | None = None
    ) -> MemberAssignment:
        """Let a consumer take part in a group; for a member it counts as a heartbeat.

        Raises ``Conflict`` where the group does not share partitions, ``InvalidInput`` naming the
        field for a name or a session timeout that cannot be, and ``TooManyRequests``.
        """
        return _standing(self._joined(group, consumer, session_timeout_ms), consumer)

    def check(self, group: str, consumer: str) -> None:
        """Raise why a consumer of this name can never be a member of this group, if so."""
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
        """Begin a member's session anew; raise ``MemberNotFound`` if it is none, or no longer."""
        members = self._of_member(group, consumer)
        members.touch(consumer)
        return _standing(members, consumer)

    def touch(self, group: str, consumer: str) -> None:
        """Take any other sign of life, as an ack is, for a heartbeat if it is a member's."""
        members = self.groups.get(group)
        if members is not None:
            members.touch(consumer)

    def leave(self, group: str, consumer: str) -> None:
        """Let a member go; raise ``MemberNotFound`` if it is none.

        What it has outstanding stays its own until that ends, and only then do its partitions go
        on to others: end its leases too where its connection was its session.
        """
        self._of_member(group, consumer).leave(consumer)

    @contextmanager
    def session(self, group: str, consumer: str) -> Iterator[None]:
        """Let a consumer take part, joining if need be, and live while the block runs.

        Around a receive, with its waiting, or a stream. Raises as :meth:`join` does.
        """
        members = self._joined(group, consumer, None)
        joined_generation = members.open(consumer)
        try:
            yield
        finally:
            members.close(consumer, joined_generation)

    def partitions_for(self, group: str, consumer: str) -> tuple[int, ...]:
        """Return the partitions that a consumer may take messages from now."""
        members = self.groups.get(group)
        return members.membership.partitions_of(consumer) if members is not None else ()

    def owner(self, group: str, partition: int) -> str | None:
        """Return who is to be woken for a message in a partition, None if nobody is."""
        members = self.groups.get(group)
        return members.membership.owner(partition) if members is not None else None

    def on_settled(self, group: str, partition: int) -> None:
        """Be told that a lease in a partition ended, wholly or in part and for whatever reason."""
        members = self.groups.get(group)
        if members is not None:
            members.hand_over((partition,))

    def on_reopened(self, partition: int) -> None:
        """Be told that a partition's state was built anew: there may be other leases in it."""
        for members in list(self.groups.values()):
            members.on_reopened(partition)

    def on_partitions_added(self) -> None:
        """Be told that the topic has more partitions now."""
        for members in list(self.groups.values()):
            members.on_partitions_added()

    def forget(self, group: str) -> None:
        """Let all members of a group go, without a trace: it is deleted, or shares otherwise."""
        members = self.groups.pop(group, None)
        if members is not None:
            self._generation = max(self._generation, members.membership.generation)
            members.stop()

    def close(self) -> None:
        """Let everything go."""
        for group in list(self.groups):
            self.forget(group)

    def members(self, group: str) -> GroupMembers | None:
        """Return a group's members to look at, None if nobody ever joined."""
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
        if consumer not in known and len(known) >= limits.MEMBERS_PER_GROUP_MAX:
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


def _standing(members: GroupMembers, consumer: str) -> MemberAssignment:
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
