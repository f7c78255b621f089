"""The members of a group that assigns each partition to one consumer, as a pure state machine.

A partition is *owned*: only its member gets its messages. Or it *moves*: no member gets new
messages of it until only its next owner has any of it outstanding, as reported by
:meth:`Membership.release`. Or it is *unowned*: the group has no member.

``release`` is the only way to become owned. So the caller asks once for each partition that moves,
always in the same way. A new member, a partition that goes back to its owner, and leases that a
restart left behind are the same case. Partitions that do not move are not interrupted.

A member is a session: a name, and the id of a loop or connection unless the name alone is meant.
Members go by their ids here (:func:`~goq.delivery.group.lease.member_id`), and so do their leases.

Times are arguments, in milliseconds of a clock that is never set. :meth:`Membership.tick` evicts a
member without a sign of life for its session timeout and without open receives or streams.
"""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from goq.delivery.membership.rebalance_history import Move, Rebalance, RebalanceReason
from goq.delivery.membership.sticky_assignor import assign

DEFAULT_SESSION_TIMEOUT_MS = 30_000


class GroupMember(msgspec.Struct):
    """A consumer that is a member of the group."""

    consumer: str
    """Its id."""
    joined_generation: int
    """Distinguishes it from an earlier member of the same id."""
    session_timeout_ms: int
    last_seen_ms: int
    deadline_ms: int
    open_count: int = 0
    """The number of its open receives and streams; while there is one it is not evicted."""

    def touch(self, now_ms: int) -> None:
        """Restart its session timeout."""
        self.last_seen_ms = now_ms
        self.deadline_ms = now_ms + self.session_timeout_ms


class MemberPartitions(NamedTuple):
    """A member, the partitions that it owns, and those that it has to finish, in order."""

    member: GroupMember
    owned: tuple[int, ...]
    revoking: tuple[int, ...]


class Membership:
    """The members of a group, and the owner of each of its partitions."""

    def __init__(self, partition_count: int, generation: int = 0) -> None:
        self.generation = generation
        self.members: dict[str, GroupMember] = {}
        self._sessions: dict[str, list[str]] = {}  # the ids of members, by their name
        self._targets: list[str | None] = [None] * partition_count
        self._last_owners: list[str | None] = [None] * partition_count  # the last owner
        self._moving: dict[int, Move] = {}
        self._owned: dict[str, tuple[int, ...]] = {}

    # Queries

    @property
    def partition_count(self) -> int:
        """The number of partitions that are assigned."""
        return len(self._targets)

    def members_named(self, name: str) -> list[str]:
        """Return the ids of the members of a name."""
        return list(self._sessions.get(name, ()))

    def partitions_of(self, consumer: str) -> tuple[int, ...]:
        """Return the partitions that a consumer owns, in order."""
        return self._owned.get(consumer, ())

    def revoking_from(self, consumer: str) -> tuple[int, ...]:
        """Return the partitions that a consumer has to finish before they can move, in order."""
        return tuple(m.partition for m in self.moves() if m.source == consumer != m.target)

    def assignments(self) -> list[MemberPartitions]:
        """Return the members by id with their partitions, all of one moment."""
        revoking = defaultdict[str | None, list[int]](list)
        for move in self.moves():
            if move.source != move.target:
                revoking[move.source].append(move.partition)
        return [
            MemberPartitions(
                member, self.partitions_of(consumer), tuple(revoking.get(consumer, ()))
            )
            for consumer, member in sorted(self.members.items())
        ]

    def owner(self, partition: int) -> str | None:
        """Return the consumer that gets the messages of a partition now, None if there is none."""
        if partition in self._moving or partition >= len(self._targets):
            return None
        return self._targets[partition]

    def next_owner(self, partition: int) -> str | None:
        """Return the next owner of a partition that moves, None if it does not move."""
        move = self._moving.get(partition)
        return move.target if move is not None else None

    def moves(self) -> list[Move]:
        """Return the moves under way, in order of partition."""
        return [self._moving[partition] for partition in sorted(self._moving)]

    def next_deadline_ms(self) -> int | None:
        """Return when the next member will be evicted unless it sends a heartbeat."""
        return min((m.deadline_ms for m in self.members.values() if not m.open_count), default=None)

    # Changes

    def join(
        self, consumer: str, now_ms: int, session_timeout_ms: int | None = None
    ) -> Rebalance | None:
        """Add a consumer; for a member it counts as a heartbeat.

        Without a session timeout a member keeps its own and a new one gets the default.
        """
        member = self.members.get(consumer)
        if member is not None:
            member.session_timeout_ms = session_timeout_ms or member.session_timeout_ms
            member.touch(now_ms)
            return None
        timeout_ms = session_timeout_ms or DEFAULT_SESSION_TIMEOUT_MS
        self.members[consumer] = GroupMember(
            consumer, self.generation + 1, timeout_ms, now_ms, now_ms + timeout_ms
        )
        self._sessions.setdefault(name_of(consumer), []).append(consumer)
        return self._rebalance(RebalanceReason.JOINED, [consumer], now_ms)

    def leave(self, consumer: str, now_ms: int) -> Rebalance | None:
        """Remove a member."""
        if consumer not in self.members:
            return None
        self._remove(consumer)
        return self._rebalance(RebalanceReason.LEFT, [consumer], now_ms)

    def open(self, consumer: str, now_ms: int) -> int:
        """Keep a member alive until :meth:`close`; return the argument for that call."""
        member = self.members[consumer]
        member.open_count += 1
        member.touch(now_ms)
        return member.joined_generation

    def close(self, consumer: str, joined_generation: int, now_ms: int) -> None:
        """Start the session timeout of a member, unless something else of it is open.

        Nothing happens if the member that it was opened for has left meanwhile.
        """
        member = self.members.get(consumer)
        if member is not None and member.joined_generation == joined_generation:
            member.open_count -= 1
            member.touch(now_ms)

    def evict_expired(self, now_ms: int) -> Rebalance | None:
        """Evict the members whose session timeout is over."""
        evicted = [m.consumer for m in self.members.values() if _is_over(m, now_ms)]
        for consumer in evicted:
            self._remove(consumer)
        return self._rebalance(RebalanceReason.EVICTED, evicted, now_ms) if evicted else None

    def clear(self) -> None:
        """Remove all members without a rebalance: the group is gone."""
        self.members.clear()
        self._sessions.clear()

    def extend_deadlines(self, grace_ms: int) -> None:
        """Extend every member's deadline: heartbeats could not arrive."""
        for member in self.members.values():
            member.deadline_ms += grace_ms

    def add_partitions(self, partition_count: int, now_ms: int) -> Rebalance | None:
        """Assign partitions that were added, so that there are ``partition_count``."""
        added = partition_count - self.partition_count
        if added <= 0:
            return None
        self._targets += [None] * added
        self._last_owners += [None] * added
        return (
            self._rebalance(RebalanceReason.PARTITIONS_ADDED, [], now_ms) if self.members else None
        )

    def set_last_owner(self, partition: int, consumer: str) -> None:
        """Record the consumer with messages of an unowned partition outstanding: its next owner."""
        self._last_owners[partition] = consumer

    def release(self, partition: int, now_ms: int) -> str | None:
        """Give a moving partition to its next owner; return that owner, None if it does not move.

        To be called when only the next owner has messages of it outstanding.
        """
        next_owner = self.next_owner(partition)
        if next_owner is None:
            return None
        move = self._moving.pop(partition)
        move.paused_ms = now_ms - move.paused_from_ms
        self._last_owners[partition] = next_owner
        owned = self.partitions_of(next_owner)
        place = bisect(owned, partition)
        self._owned[next_owner] = (*owned[:place], partition, *owned[place:])
        return next_owner

    def pause(self, partition: int, consumer: str, now_ms: int) -> None:
        """Start moving an owned partition: another consumer has messages of it outstanding."""
        owner = self.owner(partition)
        if owner is not None:
            self._last_owners[partition] = consumer
            self._moving[partition] = Move(partition, consumer, owner, now_ms)
            self._disown({partition})

    def _remove(self, consumer: str) -> None:
        del self.members[consumer]
        ids = self._sessions[name_of(consumer)]
        ids.remove(consumer)
        if not ids:
            del self._sessions[name_of(consumer)]

    def _rebalance(
        self, reason: RebalanceReason, consumers: Iterable[str], now_ms: int
    ) -> Rebalance:
        self.generation += 1
        before = self._targets
        self._targets = assign(self.members, before, self._last_owners)
        moves = []
        for partition, target in enumerate(self._targets):
            if target != before[partition]:
                under_way = self._moving.pop(partition, None)
                from_ms = under_way.paused_from_ms if under_way is not None else now_ms
                move = Move(partition, self._last_owners[partition], target, from_ms)
                moves.append(move)
                if target is not None:
                    self._moving[partition] = move
        self._disown({move.partition for move in moves})
        return Rebalance(self.generation, reason, tuple(consumers), tuple(moves))

    def _disown(self, partitions: Collection[int]) -> None:
        for consumer, owned in list(self._owned.items()):
            kept = tuple(p for p in owned if p not in partitions)
            if kept:
                self._owned[consumer] = kept
            else:
                del self._owned[consumer]


def name_of(member: str) -> str:
    """Return the name in a member's id."""
    return member.partition("/")[0]


def session_of(member: str) -> str:
    """Return the session id in a member's id, "" without one."""
    return member.partition("/")[2]


def _is_over(member: GroupMember, now_ms: int) -> bool:
    return not member.open_count and member.deadline_ms <= now_ms
