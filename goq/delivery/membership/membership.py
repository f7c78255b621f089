"""The members of a group whose partitions belong to one consumer each, as a pure machine.

A partition is *owned*: its member gets its messages, and nobody else. Or it *moves*: nobody gets
new messages of it until nobody but its heir has any of it outstanding, as
:meth:`Membership.release` says. Or it is *unowned*, because the group has no member.

``release`` is the only way to be owned, so whoever runs the machine asks once for each partition
that moves, always in the same way: somebody new, a partition that goes back to who had it, and
leases that a restart left behind are all the same case. Partitions that do not move go on.

Times are arguments in milliseconds of a clock that is never set. A member that was not heard of
for its session timeout, and has nothing open, is evicted by :meth:`Membership.tick`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from goq.delivery.membership.rebalance_history import Move, Rebalance, RebalanceReason
from goq.delivery.membership.sticky_assignor import assign

DEFAULT_SESSION_TIMEOUT_MS = 30_000


@dataclass(slots=True)
class GroupMember:
    """A consumer that takes part."""

    consumer: str
    joined_generation: int
    """Tells it from one of the same name that left before."""
    session_timeout_ms: int
    last_seen_ms: int
    deadline_ms: int
    open_count: int = 0
    """How many receives and streams are open; it lives as long as there is one."""

    def seen(self, now_ms: int) -> None:
        """Begin its session timeout anew."""
        self.last_seen_ms = now_ms
        self.deadline_ms = now_ms + self.session_timeout_ms


class Membership:
    """Who is a member of a group, and who has which of its partitions."""

    def __init__(self, partition_count: int, generation: int = 0) -> None:
        self.generation = generation
        self.members: dict[str, GroupMember] = {}
        self._targets: list[str | None] = [None] * partition_count
        self._held: list[str | None] = [None] * partition_count  # who had it last
        self._moving: dict[int, Move] = {}
        self._owned: dict[str, tuple[int, ...]] = {}

    # What is asked

    @property
    def partition_count(self) -> int:
        """How many partitions are shared out."""
        return len(self._targets)

    def partitions_of(self, consumer: str) -> tuple[int, ...]:
        """Return the partitions that a consumer owns, in order."""
        return self._owned.get(consumer, ())

    def revoking_from(self, consumer: str) -> tuple[int, ...]:
        """Return the partitions that wait for a consumer to be done with them, in order."""
        return tuple(m.partition for m in self.moving() if m.source == consumer != m.target)

    def owner(self, partition: int) -> str | None:
        """Return who gets the messages of a partition now."""
        if partition in self._moving or partition >= len(self._targets):
            return None
        return self._targets[partition]

    def heir(self, partition: int) -> str | None:
        """Return who gets a partition as soon as it is released, None if it does not move."""
        move = self._moving.get(partition)
        return move.target if move is not None else None

    def moving(self) -> list[Move]:
        """Return what moves now, in order of partition."""
        return [self._moving[partition] for partition in sorted(self._moving)]

    def next_deadline_ms(self) -> int | None:
        """Return when the next member is to be evicted if it is not heard of."""
        return min((m.deadline_ms for m in self.members.values() if not m.open_count), default=None)

    # What happens

    def join(
        self, consumer: str, now_ms: int, session_timeout_ms: int | None = None
    ) -> Rebalance | None:
        """Let a consumer take part; for a member it counts as a heartbeat.

        Without a session timeout a member keeps its own and a new one gets the default.
        """
        member = self.members.get(consumer)
        if member is not None:
            member.session_timeout_ms = session_timeout_ms or member.session_timeout_ms
            member.seen(now_ms)
            return None
        timeout_ms = session_timeout_ms or DEFAULT_SESSION_TIMEOUT_MS
        self.members[consumer] = GroupMember(
            consumer, self.generation + 1, timeout_ms, now_ms, now_ms + timeout_ms
        )
        return self._rebalance(RebalanceReason.JOINED, [consumer], now_ms)

    def leave(self, consumer: str, now_ms: int) -> Rebalance | None:
        """Let a member go."""
        if self.members.pop(consumer, None) is None:
            return None
        return self._rebalance(RebalanceReason.LEFT, [consumer], now_ms)

    def open(self, consumer: str, now_ms: int) -> int:
        """Keep a member alive until :meth:`close`; return what to close with."""
        member = self.members[consumer]
        member.open_count += 1
        member.seen(now_ms)
        return member.joined_generation

    def close(self, consumer: str, joined_generation: int, now_ms: int) -> None:
        """Let the session timeout of a member begin, unless something else of it is open.

        Nothing happens if the member that it was opened for has left meanwhile.
        """
        member = self.members.get(consumer)
        if member is not None and member.joined_generation == joined_generation:
            member.open_count -= 1
            member.seen(now_ms)

    def tick(self, now_ms: int) -> Rebalance | None:
        """Evict the members whose time is over."""
        evicted = [m.consumer for m in self.members.values() if _is_over(m, now_ms)]
        for consumer in evicted:
            del self.members[consumer]
        return self._rebalance(RebalanceReason.EVICTED, evicted, now_ms) if evicted else None

    def excuse(self, grace_ms: int) -> None:
        """Give every member more time: it could not be heard of."""
        for member in self.members.values():
            member.deadline_ms += grace_ms

    def add_partitions(self, partition_count: int, now_ms: int) -> Rebalance | None:
        """Share out partitions that were added, so that there are ``partition_count``."""
        added = partition_count - self.partition_count
        if added <= 0:
            return None
        self._targets += [None] * added
        self._held += [None] * added
        return (
            self._rebalance(RebalanceReason.PARTITIONS_ADDED, [], now_ms) if self.members else None
        )

    def hold(self, partition: int, consumer: str) -> None:
        """Note who has messages of an unowned partition outstanding: it is to get it back."""
        self._held[partition] = consumer

    def release(self, partition: int, now_ms: int) -> str | None:
        """Hand a moving partition over; return its new owner, None if it does not move.

        To be called when nobody but its heir has anything of it outstanding.
        """
        heir = self.heir(partition)
        if heir is None:
            return None
        move = self._moving.pop(partition)
        move.paused_ms = now_ms - move.paused_from_ms
        self._held[partition] = heir
        self._owned[heir] = tuple(sorted((*self.partitions_of(heir), partition)))
        return heir

    def suspend(self, partition: int, consumer: str, now_ms: int) -> None:
        """Let an owned partition wait: a consumer has messages of it outstanding after all."""
        owner = self.owner(partition)
        if owner is not None:
            self._held[partition] = consumer
            self._moving[partition] = Move(partition, consumer, owner, now_ms)
            self._disown({partition})

    def _rebalance(
        self, reason: RebalanceReason, consumers: Iterable[str], now_ms: int
    ) -> Rebalance:
        self.generation += 1
        before, self._targets = self._targets, assign(self.members, self._targets, self._held)
        moves = []
        for partition, target in enumerate(self._targets):
            if target != before[partition]:
                under_way = self._moving.pop(partition, None)
                from_ms = under_way.paused_from_ms if under_way is not None else now_ms
                move = Move(partition, self._held[partition], target, from_ms)
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


def _is_over(member: GroupMember, now_ms: int) -> bool:
    return not member.open_count and member.deadline_ms <= now_ms
