"""A group whose consumers are simulated, a naive twin of its membership, and a pair of both.

The twin holds a dictionary of members and one of leases. It evicts by looking at every member,
and says who owns a partition by looking at every lease: the one it is meant for, if nobody else
has anything of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from goq import limits
from goq.broker.group.coordinator import Coordinator
from goq.clock import ManualClock
from goq.delivery.membership.membership import Membership

GROUP = "g"


@dataclass
class FakeTimer:
    due_ms: int
    callback: Callable[[], None]
    timers: FakeTimers

    def cancel(self) -> None:
        self.timers.set.remove(self)


@dataclass
class FakeTimers:
    """The event loop's clock, which stands still until it is moved."""

    now_ms: int = 5_000
    set: list[FakeTimer] = field(default_factory=list)

    def time(self) -> float:
        return self.now_ms / 1000

    def call_at(self, when: float, callback: Callable[[], None], /) -> FakeTimer:
        timer = FakeTimer(round(when * 1000), callback, self)
        self.set.append(timer)
        return timer

    def advance(self, step_ms: int) -> None:
        """Let time pass, every timer coming on time."""
        until_ms = self.now_ms + step_ms
        while due := [timer for timer in self.set if timer.due_ms <= until_ms]:
            timer = min(due, key=lambda one: one.due_ms)
            self.now_ms = max(self.now_ms, timer.due_ms)
            self._fire(timer)
        self.now_ms = until_ms

    def stall(self, step_ms: int) -> None:
        """Let time pass at once: the timers that are due come late, each once."""
        self.now_ms += step_ms
        for timer in [timer for timer in self.set if timer.due_ms <= self.now_ms]:
            self._fire(timer)

    def _fire(self, timer: FakeTimer) -> None:
        self.set.remove(timer)
        timer.callback()


@dataclass
class FakeHost:
    """A topic of which nothing is there but its leases: ``(partition, consumer)``, in order."""

    partitions: int = 6
    shares: bool = True
    leases: list[tuple[int, str]] = field(default_factory=list)
    woken: list[str] = field(default_factory=list)
    restarted: list[str] = field(default_factory=list)

    def partition_count(self) -> int:
        return self.partitions

    def shares_partitions(self, group: str) -> bool:
        assert group == GROUP
        return self.shares

    def holder(self, group: str, partition: int, other_than: str | None) -> str | None:
        assert group == GROUP
        return next((c for p, c in self.leases if p == partition and c != other_than), None)

    def restart_consumers(self, group: str, consumers: Collection[str]) -> None:
        assert group == GROUP
        assert consumers
        self.restarted += sorted(consumers)

    def wake_consumers(self, group: str, consumers: Collection[str]) -> None:
        assert group == GROUP
        assert consumers
        self.woken += sorted(consumers)


@dataclass
class TwinMember:
    session_timeout_ms: int
    silent_since_ms: int
    deadline_ms: int
    open: int = 0


class Pair:
    """A coordinator and its twin, to which the same things happen; :meth:`check` compares."""

    def __init__(
        self, partitions: int = 6, members_max: int = limits.MEMBERS_PER_GROUP_MAX
    ) -> None:
        self._members_max = members_max
        self.timers = FakeTimers()
        self.host = FakeHost(partitions)
        self.clock = ManualClock()
        self.coordinator = self._start(0)
        self.members: dict[str, TwinMember] = {}
        self.targets: list[str | None] = [None] * partitions
        self.owned: dict[str, set[int]] = {}
        self.generation = 0
        self.opened: list[tuple[str, object, TwinMember | None]] = []

    def _start(self, generation: int) -> Coordinator:
        return Coordinator(
            self.host,
            self.clock,
            first_generation=generation,
            timers=self.timers,
            members_max=self._members_max,
        )

    @property
    def real(self) -> Membership:
        members = self.coordinator.members(GROUP)
        return members.membership if members is not None else Membership(self.host.partitions)

    def join(self, consumer: str, timeout_ms: int | None = None) -> None:
        before = self._before()
        is_new = consumer not in self.members
        standing = self.coordinator.join(GROUP, consumer, timeout_ms)
        if is_new:
            self.members[consumer] = TwinMember(timeout_ms or 30_000, 0, 0)
        member = self.members[consumer]
        member.session_timeout_ms = timeout_ms or member.session_timeout_ms
        self._heard(consumer)
        assert standing.partitions == self.coordinator.partitions_for(GROUP, consumer)
        self._changed(before, joined={consumer} if is_new else set())

    def heartbeat(self, consumer: str) -> None:
        self.coordinator.heartbeat(GROUP, consumer)
        self._heard(consumer)

    def leave(self, consumer: str) -> None:
        before = self._before()
        self.coordinator.leave(GROUP, consumer)
        del self.members[consumer]
        self._changed(before, gone={consumer})

    def open(self, consumer: str) -> None:
        """Begin a receive that waits, or a stream."""
        before, is_new = self._before(), consumer not in self.members
        block = self.coordinator.session(GROUP, consumer)
        block.__enter__()
        if is_new:
            self.members[consumer] = TwinMember(30_000, 0, 0)
        self._heard(consumer)
        self.members[consumer].open += 1
        self.opened.append((consumer, block, self.members[consumer]))
        self._changed(before, joined={consumer} if is_new else set())

    def close(self, number: int) -> None:
        """End a receive or a stream."""
        consumer, block, member = self.opened.pop(number % len(self.opened))
        block.__exit__(None, None, None)
        if member is not None and self.members.get(consumer) is member:
            member.open -= 1
            self._heard(consumer)

    def lease(self, consumer: str) -> int:
        """Lease from every partition that the consumer may take from; return how many."""
        partitions = self.coordinator.partitions_for(GROUP, consumer)
        for partition in partitions:
            assert self.host.holder(GROUP, partition, consumer) is None, "two have messages of it"
            self.host.leases.append((partition, consumer))
        return len(partitions)

    def end_lease(self, number: int) -> None:
        """Let a lease end: acknowledged, given back or expired."""
        partition, _ = self.host.leases.pop(number % len(self.host.leases))
        self.coordinator.on_settled(GROUP, partition)

    def reopen(self, partition: int, *consumers: str) -> None:
        """Build a partition anew from a log that holds these consumers' leases and no others."""
        self.host.leases = [lease for lease in self.host.leases if lease[0] != partition]
        self.host.leases += [(partition, consumer) for consumer in consumers]
        self.coordinator.on_reopened(partition)

    def advance(self, step_ms: int) -> None:
        """Let time pass; the twin evicts each member when its own time is over."""
        until_ms = self.timers.now_ms + step_ms
        while True:
            due_ms = [m.deadline_ms for m in self.members.values() if not m.open]
            if not due_ms or min(due_ms) > until_ms:
                break
            before = self._before()
            self.timers.advance(max(0, min(due_ms) - self.timers.now_ms))
            gone = {
                name
                for name, member in self.members.items()
                if not member.open and member.deadline_ms <= self.timers.now_ms
            }
            for name in gone:
                del self.members[name]
            self._changed(before, gone=gone)
        self.timers.advance(until_ms - self.timers.now_ms)

    def add_partition(self) -> None:
        before = self._before()
        self.host.partitions += 1
        self.targets.append(None)
        before[0].append(None)
        self.coordinator.on_partitions_added()
        self._changed(before, added=bool(self.members))

    def forget(self) -> None:
        """Delete the group, and its leases with it."""
        self.coordinator.forget(GROUP)
        self.host.leases.clear()
        self._clear()

    def restart(self) -> None:
        """Start the node again: members are forgotten, leases are not."""
        self.coordinator.close()
        assert not self.timers.set
        self.coordinator = self._start(self.generation)
        self._clear()

    def _clear(self) -> None:
        self.members, self.targets = {}, [None] * self.host.partitions

    def _heard(self, consumer: str) -> None:
        member, now_ms = self.members[consumer], self.timers.now_ms
        member.silent_since_ms = now_ms
        member.deadline_ms = now_ms + member.session_timeout_ms

    def _before(self) -> tuple[list[str | None], int]:
        return list(self.targets), self.real.generation

    def _changed(
        self,
        before: tuple[list[str | None], int],
        *,
        joined: Collection[str] = (),
        gone: Collection[str] = (),
        added: bool = False,
    ) -> None:
        """Take over who is to have what, once it is what was asked for: balanced, few moves."""
        old, _ = before
        new = [self.real.owner(n) or self.real.next_owner(n) for n in range(self.host.partitions)]
        if not (joined or gone or added):
            assert new == old
            return
        self.targets = new
        self.generation += 1
        moved = {n for n, (was, now) in enumerate(zip(old, new, strict=True)) if was != now}
        unowned = {n for n in moved if old[n] is None}
        if joined:
            assert {new[n] for n in moved - unowned} <= set(joined)
            assert len(moved - unowned) <= -(-len(new) // len(self.members))
        if gone:
            assert {old[n] for n in moved} <= set(gone)
        if added:
            assert moved == unowned

    def owner(self, partition: int) -> str | None:
        """Say, naively, who owns a partition."""
        target = self.targets[partition]
        others = {c for p, c in self.host.leases if p == partition and c != target}
        return None if others else target

    def check(self) -> None:
        real, count = self.real, self.host.partitions
        assert set(real.members) == set(self.members)
        for name, member in self.members.items():
            assert real.members[name].last_seen_ms == member.silent_since_ms
            assert real.members[name].open_count == member.open
            assert member.open or member.deadline_ms > self.timers.now_ms
        assert [real.owner(n) for n in range(count)] == [self.owner(n) for n in range(count)]
        owned = {name: {n for n in range(count) if self.owner(n) == name} for name in self.members}
        for name, partitions in owned.items():
            assert set(self.coordinator.partitions_for(GROUP, name)) == partitions
            assert partitions - self.owned.get(name, set()) <= (
                partitions if name in self.host.woken else set()
            ), "who got partitions was not woken"
        self.host.woken.clear()
        self.owned = owned
        if self.members:
            assert None not in self.targets
            shares = [self.targets.count(name) for name in self.members]
            assert max(shares) - min(shares) <= 1
        else:
            assert not any(self.targets)
        self._check_moving()
        self._check_timer()
        self._check_history()

    def _check_moving(self) -> None:
        expected = {
            n: target
            for n, target in enumerate(self.targets)
            if target is not None and self.owner(n) is None
        }
        moving = self.real.moves()
        assert {move.partition: move.target for move in moving} == expected
        for name in self.members:
            assert set(self.real.revoking_from(name)) == {
                move.partition for move in moving if move.source == name != move.target
            }

    def _check_timer(self) -> None:
        silent = [member.deadline_ms for member in self.members.values() if not member.open]
        assert len(self.timers.set) <= 1
        if not self.members:
            assert not self.timers.set
        if silent:
            assert self.timers.set[0].due_ms <= min(silent)

    def _check_history(self) -> None:
        members = self.coordinator.members(GROUP)
        assert self.real.generation <= self.generation
        if members is not None:
            entries = [rebalance for _, rebalance in members.history]
            assert len(entries) <= limits.REBALANCES_REMEMBERED
            generations = [rebalance.generation for rebalance in entries]
            assert generations == sorted(set(generations))
            if entries:
                assert generations[-1] == self.real.generation == self.generation
