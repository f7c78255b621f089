"""The progress of a partition's replicas: pure state of its leader, with no I/O and no clock.

Times come in as arguments and decisions go out as values. All offsets are pairs, one for each of
the two logs of a partition, because a replica takes part as a whole.

The *high watermark* of a log is the offset before which everything is safe: on the disks of all
replicas in sync, which are at least ``min_insync``, and only they can become leader. It never goes
back. While a change of the in-sync set is under way, the new members count already and the old ones
still count. So the high watermark is right whichever of the two sets the next leader is chosen
from.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from goq import limits
from goq.errors import NotEnoughReplicas


class LogOffsets(NamedTuple):
    """One offset in each of the two logs, such as the end behind their last frames."""

    messages: int
    events: int

    def reaches(self, other: LogOffsets) -> bool:
        """Whether both offsets are at least the other's."""
        return self.messages >= other.messages and self.events >= other.events


class LatestRequest:
    """The time of a follower's latest request, and how many of its replicas rest with it."""

    __slots__ = ("at_ms", "resting")

    def __init__(self, at_ms: int) -> None:
        self.at_ms = at_ms
        self.resting = 0


class FollowerProgress:
    """The leader's knowledge of a replica on another node.

    A replica *at rest* has everything. Each request of its node, also one that does not name it,
    counts for it then. So a node with a thousand replicas at rest costs no look at each.
    """

    __slots__ = (
        "_caught_up_ms",
        "_last_fetch_ms",
        "_resting_with",
        "ends",
        "incarnation",
        "moved_ms",
    )

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.ends = LogOffsets(-1, -1)
        self.moved_ms = 0
        """When its ends last changed."""
        self._caught_up_ms: int | None = None
        self._last_fetch_ms = 0
        self._resting_with: LatestRequest | None = None

    @property
    def resting_with(self) -> LatestRequest | None:
        """The latest request that counts for the replica at rest, None if it is not at rest."""
        return self._resting_with

    @property
    def caught_up_ms(self) -> int | None:
        """When the replica last had everything, None if it never did."""
        return self._caught_up_ms if self._resting_with is None else self._resting_with.at_ms

    @property
    def last_fetch_ms(self) -> int:
        """When the replica last asked for more."""
        return self._last_fetch_ms if self._resting_with is None else self._resting_with.at_ms

    def note_fetch(self, now_ms: int, *, is_caught_up: bool) -> None:
        """Note that the replica asked for more, and whether it has everything; its rest ends."""
        self.end_rest()
        self._last_fetch_ms = now_ms
        if is_caught_up:
            self._caught_up_ms = now_ms

    def note_caught_up(self, at_ms: int) -> None:
        """Note that the replica has everything that the leader had at a time."""
        self._caught_up_ms = max(at_ms, self.caught_up_ms or 0)

    def assume_caught_up(self, now_ms: int) -> None:
        """Count a replica that is in sync, and has not asked yet, as caught up until now."""
        self._caught_up_ms = now_ms

    def begin_rest(self, latest: LatestRequest) -> None:
        """Count the replica as caught up at the latest request, until :meth:`end_rest`."""
        self.end_rest()
        self._resting_with = latest
        latest.resting += 1

    def end_rest(self) -> None:
        """Count later requests no more; the times stay as they are."""
        if self._resting_with is not None:
            self._caught_up_ms = self._last_fetch_ms = self._resting_with.at_ms
            self._resting_with.resting -= 1
            self._resting_with = None


def _caught_up_ms(follower: FollowerProgress) -> float:
    return -math.inf if follower.caught_up_ms is None else follower.caught_up_ms


class ReplicaProgress:
    """A leader's view of its partition; ``ends`` are the ends of its own logs on its disk.

    ``start`` is what the leader's logs held when it became leader. A replica that lacks any of that
    cannot be in sync.
    """

    def __init__(
        self, node: str, ends: LogOffsets, *, in_sync: Iterable[str], min_insync: int
    ) -> None:
        self.node = node
        self.ends = self.start = ends
        self.high_watermark = LogOffsets(0, 0)
        self.in_sync = frozenset(in_sync)
        self.min_insync = min_insync
        self.restarted: frozenset[str] = frozenset()
        """Nodes in sync that have restarted: the leader confirms them once they have fetched."""
        self._proposed: frozenset[str] | None = None
        self._followers: dict[str, FollowerProgress] = {}
        self._steady_until_ms = -math.inf
        """Until then no replica lags, unless the replicas or the in-sync set change."""

    def set_replicas(
        self,
        replicas: Collection[str],
        now_ms: int,
        incarnations: Collection[int] = (),
        restarted: Collection[str] = (),
    ) -> None:
        """Set the nodes that have replicas; those in sync count as caught up until now.

        ``incarnations`` are those of the nodes, in the same order. What a node reported in an
        earlier incarnation is forgotten: its unsynced bytes may be gone since.
        """
        self.restarted = frozenset(restarted)
        self._steady_until_ms = -math.inf
        started = dict(zip(replicas, incarnations, strict=False))
        before, self._followers = self._followers, {}
        for name in set(replicas) - {self.node}:
            known, incarnation = before.get(name), started.get(name, 0)
            if known is None or known.incarnation != incarnation:
                known = FollowerProgress(incarnation)
            self._followers[name] = known
        for name, follower in self._followers.items():
            if follower.caught_up_ms is None and name in self.in_sync:
                follower.assume_caught_up(now_ms)

    @property
    def electable(self) -> frozenset[str]:
        """The other nodes that could be elected, whichever in-sync set holds by now."""
        return (self.in_sync | (self._proposed or frozenset())) - {self.node}

    @property
    def has_min_insync(self) -> bool:
        """Whether enough replicas are in sync for anything to be acknowledged."""
        return len(self.in_sync) >= self.min_insync

    def on_local_append(self, ends: LogOffsets) -> None:
        """Update the ends of this node's own logs on its disk; no replica is at rest then."""
        for follower in self._followers.values():
            follower.end_rest()
        self.ends = ends
        self._advance()

    def on_fetch(self, node: str, ends: LogOffsets, now_ms: int) -> bool:
        """Update the ends that another node reports by fetching; ignore nodes without a replica.

        Returns whether they differ from before.

        A replica that has less than before has lost what it reported. It is not caught up until it
        has everything again.
        """
        follower = self._followers.get(node)
        if follower is None:
            return False
        has_moved = ends != follower.ends
        follower.ends = ends
        follower.note_fetch(now_ms, is_caught_up=ends.reaches(self.ends))
        if has_moved:
            follower.moved_ms = now_ms
            self._advance()
        return has_moved

    def note_caught_up(self, node: str, at_ms: int) -> None:
        """Note that a replica has everything that this node had at a time."""
        follower = self._followers.get(node)
        if follower is not None:
            follower.note_caught_up(at_ms)

    def follower(self, node: str) -> FollowerProgress | None:
        """Return what is known of a follower; another object after its restart."""
        return self._followers.get(node)

    def follower_ends(self, node: str) -> LogOffsets | None:
        """Return the ends of a follower's logs, None before it has fetched."""
        follower = self._followers.get(node)
        return None if follower is None or follower.ends.messages < 0 else follower.ends

    def holders(self, which: int, offset: int) -> list[str]:
        """Return the nodes that are known to have an offset of one of the logs on their disks.

        A replica out of sync does not count: it may have bytes there that will be truncated.
        """
        others = (name for name in self._followers if name in self.in_sync)
        found = [name for name in others if self._followers[name].ends[which] > offset]
        return sorted([*found, *([self.node] if self.ends[which] > offset else [])])

    @property
    def in_sync_to(self) -> LogOffsets:
        """The offsets that all replicas have that are in sync or about to be."""
        ends = [self._ends_of(name) for name in self.in_sync | (self._proposed or frozenset())]
        return LogOffsets(*(max(0, min(each)) for each in zip(*ends, strict=True)))

    def copied_to(self, now_ms: int) -> LogOffsets:
        """Return the offsets that all nodes have that fetched lately; at most the own ends."""
        heard = [
            follower.ends
            for follower in self._followers.values()
            if follower.ends.messages >= 0
            and now_ms - follower.last_fetch_ms <= limits.REPLICA_UNREACHABLE_MS
        ]
        return LogOffsets(*map(min, zip(self.ends, *heard, strict=True)))

    def caught_up_ms(self, node: str) -> int | None:
        """Return when a follower last had everything, None if it never did."""
        follower = self._followers.get(node)
        return None if follower is None else follower.caught_up_ms

    @property
    def steady_until_ms(self) -> float:
        """Until when :meth:`desired_in_sync` is known to return None, unless the set changes."""
        return self._steady_until_ms

    def rests(self) -> list[LatestRequest] | None:
        """Return the latest requests of all followers, in sync and at rest; None if one is not."""
        if self._proposed is not None or self._in_sync_ms() == -math.inf:
            return None
        found = [follower.resting_with for follower in self._followers.values()]
        rests = [latest for latest in found if latest is not None]
        return rests if len(rests) == len(found) else None

    def is_steady(self, now_ms: int) -> bool:
        """Whether :meth:`desired_in_sync` is known to return None; quick."""
        return now_ms <= self._steady_until_ms

    def desired_in_sync(self, now_ms: int, lag_ms_max: int) -> frozenset[str] | None:
        """Return the in-sync set as it should be, None if it is so or a change is under way.

        A replica that lags more than ``lag_ms_max`` leaves the set; one that has all that is safe,
        and got more or had everything within that time, enters it. The set is also returned,
        unchanged, when a restarted node can be confirmed.

        Nobody leaves a set that would have fewer than ``min_insync`` replicas then. Nothing can be
        acknowledged either way, and those that stay can lead with everything if this node cannot.
        """
        if self._proposed is not None:
            return None
        self._steady_until_ms = self._in_sync_ms() + lag_ms_max
        if self.is_steady(now_ms):
            return None
        wanted = {self.node}
        for name, follower in self._followers.items():
            if name in self.in_sync:
                since_ms = follower.caught_up_ms
                stays = since_ms is not None and now_ms - since_ms <= lag_ms_max
            else:
                # A silent node would be refused, and with it the others that enter. One that
                # asks and gets no answers would leave again at once.
                got_ms = max(_caught_up_ms(follower), follower.moved_ms)
                stays = (
                    self._has_all_safe(follower)
                    and now_ms - follower.last_fetch_ms <= lag_ms_max
                    and now_ms - got_ms <= lag_ms_max
                )
            if stays:
                wanted.add(name)
        wanted.update(self._latest_caught_up(wanted)[: max(0, self.min_insync - len(wanted))])
        confirmed = wanted & (self.restarted - self.unconfirmed)
        return frozenset(wanted) if confirmed or wanted != self.in_sync else None

    def _in_sync_ms(self) -> float:
        """Return when all replicas were last in sync and had everything, -inf if one is not."""
        if self.restarted or self.in_sync != self._followers.keys() | {self.node}:
            return -math.inf
        return min((_caught_up_ms(f) for f in self._followers.values()), default=math.inf)

    def _latest_caught_up(self, without: set[str]) -> list[str]:
        """Return the other in-sync followers, those first that had everything last."""
        lagging = sorted(self.in_sync & self._followers.keys() - without)
        return sorted(lagging, key=lambda name: -(self._followers[name].caught_up_ms or 0))

    @property
    def unconfirmed(self) -> frozenset[str]:
        """The restarted nodes that have not fetched up to all that is safe."""
        return frozenset(
            name
            for name in self.restarted
            if (follower := self._followers.get(name)) is None or not self._has_all_safe(follower)
        )

    def _has_all_safe(self, follower: FollowerProgress) -> bool:
        """Whether a follower has what a replica needs to be electable."""
        return follower.ends.reaches(LogOffsets(*map(max, self.start, self.high_watermark)))

    def begin_change(self, in_sync: Collection[str]) -> None:
        """Note that a change of the in-sync set was proposed; until it is decided, both count."""
        self._proposed = frozenset(in_sync)

    def set_in_sync(
        self, in_sync: Iterable[str], min_insync: int, *, is_decided: bool = True
    ) -> None:
        """Set the in-sync set that holds now, whichever node proposed it.

        Unless the proposed change ``is_decided``, it may still come to hold: its members count on.
        """
        self.in_sync = frozenset(in_sync)
        self.min_insync = min_insync
        if is_decided:
            self._proposed = None
        self._steady_until_ms = -math.inf
        self._advance()

    def _advance(self) -> None:
        if len(self.in_sync) < self.min_insync or self.node not in self.in_sync:
            return
        self.high_watermark = LogOffsets(*map(max, self.high_watermark, self.in_sync_to))

    def _ends_of(self, name: str) -> LogOffsets:
        if name == self.node:
            return self.ends
        follower = self._followers.get(name)
        return LogOffsets(-1, -1) if follower is None else follower.ends


class RestingFollowers:
    """The followers of the partitions that a node leads, while all are in sync and at rest.

    A rest ends when anything is appended, fetched or decided. So while as many replicas rest with
    each latest request as at first, all do, as long as the node leads the same partitions. Then
    the latest requests tell whether a replica lags, without a look at each partition.
    """

    def __init__(self, partitions: Iterable[ReplicaProgress] = ()) -> None:
        self._counts: dict[LatestRequest, int] | None = {}
        for progress in partitions:
            rests = progress.rests()
            if rests is None:
                self._counts = None
                return
            self._counts.update((latest, latest.resting) for latest in rests)

    def steady_until_ms(self, lag_ms_max: int) -> float:
        """Return until when no replica lags; -inf if one rests no more."""
        counts = self._counts
        if counts is None or any(latest.resting != count for latest, count in counts.items()):
            return -math.inf
        return min((latest.at_ms for latest in counts), default=math.inf) + lag_ms_max


def not_enough_replicas(
    topic: str, number: int, in_sync: int, min_insync: int
) -> NotEnoughReplicas:
    """Return the error of a write while fewer than ``min_insync`` replicas are in sync."""
    return NotEnoughReplicas(
        f"partition {number} of {topic} has {in_sync} replicas in sync and needs {min_insync};"
        " goq cluster status says which nodes are missing",
        retry_after_ms=limits.NOT_ENOUGH_REPLICAS_RETRY_MS,
    )
