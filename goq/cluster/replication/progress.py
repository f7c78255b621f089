"""How far the replicas of a partition are: what its leader knows, and what follows from that.

Pure: times come in as arguments, decisions go out as values. Everything is about two logs at once,
for a replica takes part as a whole.

The *high watermark* of a log is the offset before which everything is safe: on the disks of all
replicas in sync, who alone can become leader, and those are at least ``min_insync``. It never goes
back. While a change of the in-sync set is under way, the new members count already and the old
ones still, so that it is right whichever of the two sets a new leader is chosen from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from goq import limits


class LogOffsets(NamedTuple):
    """Offsets behind the last frame of each log, or any other place in both."""

    messages: int
    events: int

    def reaches(self, other: LogOffsets) -> bool:
        """Whether both are as far as the other's."""
        return self.messages >= other.messages and self.events >= other.events


class _Follower:
    """What is known of a replica elsewhere."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.ends = LogOffsets(-1, -1)
        self.caught_up_ms: int | None = None
        self.last_fetch_ms = 0


class ReplicaProgress:
    """A leader's view of its partition; ``ends`` are those of its own logs, all on its disk.

    ``start`` is what the leader's logs held when it became leader: who lacks any of that cannot be
    in sync.
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
        """Who is in sync, but was started anew: to be confirmed for once it was heard of."""
        self._proposed: frozenset[str] | None = None
        self._followers: dict[str, _Follower] = {}

    def set_replicas(
        self, replicas: Collection[str], now_ms: int, incarnations: Collection[int] = ()
    ) -> None:
        """Take note of who has replicas: those in sync have until now been caught up.

        ``incarnations`` are those of their nodes. What was heard of an earlier start is forgotten:
        unsynced bytes may be gone since.
        """
        started = dict(zip(replicas, incarnations, strict=False))
        before, self._followers = self._followers, {}
        for name in set(replicas) - {self.node}:
            known, incarnation = before.get(name), started.get(name, 0)
            if known is None or known.incarnation != incarnation:
                known = _Follower(incarnation)
            self._followers[name] = known
        for name, follower in self._followers.items():
            if follower.caught_up_ms is None and name in self.in_sync:
                follower.caught_up_ms = now_ms

    @property
    def electable(self) -> frozenset[str]:
        """The other nodes that could be elected, whichever in-sync set holds by now."""
        return (self.in_sync | (self._proposed or frozenset())) - {self.node}

    @property
    def has_min_insync(self) -> bool:
        """Whether so many replicas are in sync that anything can be acknowledged."""
        return len(self.in_sync) >= self.min_insync

    def on_local_append(self, ends: LogOffsets) -> None:
        """Hear how far this node has its own logs on its disk."""
        self.ends = ends
        self._advance()

    def on_fetch(self, node: str, ends: LogOffsets, now_ms: int) -> None:
        """Hear how far another node has them. One that is no replica is passed over.

        A replica that has less than it had before has lost what it said it has: it is not caught
        up before it has everything again.
        """
        follower = self._followers.get(node)
        if follower is None:
            return
        follower.ends = ends
        follower.last_fetch_ms = now_ms
        if ends.reaches(self.ends):
            follower.caught_up_ms = now_ms
        self._advance()

    def follower_ends(self, node: str) -> LogOffsets | None:
        """Return how far a follower is, None before it was heard of."""
        follower = self._followers.get(node)
        return None if follower is None or follower.ends.messages < 0 else follower.ends

    def holders(self, which: int, offset: int) -> list[str]:
        """Return which nodes have an offset of one of the logs on their disks, as far as is known.

        One that fell out of sync may have bytes there that are to be cut off: it does not count.
        """
        others = (name for name in self._followers if name in self.in_sync)
        found = [name for name in others if self._followers[name].ends[which] > offset]
        return sorted([*found, *([self.node] if self.ends[which] > offset else [])])

    @property
    def in_sync_to(self) -> LogOffsets:
        """How far all that are in sync are, or are about to be."""
        ends = [self._ends_of(name) for name in self.in_sync | (self._proposed or frozenset())]
        return LogOffsets(*(max(0, min(each)) for each in zip(*ends, strict=True)))

    def copied_to(self, now_ms: int) -> LogOffsets:
        """How far everybody is that was heard of lately; the ends of the own logs at most."""
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

    def desired_in_sync(self, now_ms: int, lag_ms_max: int) -> frozenset[str] | None:
        """Return the in-sync set as it should be, None if it is so or a change is under way.

        Who has not had everything for ``lag_ms_max`` goes out, who has all that is safe comes in.
        It is also returned when there is somebody new to vouch for.
        """
        if self._proposed is not None:
            return None
        wanted = {self.node}
        for name, follower in self._followers.items():
            if name in self.in_sync:
                since_ms = follower.caught_up_ms
                stays = since_ms is not None and now_ms - since_ms <= lag_ms_max
            else:
                # One that is silent would be refused, and with it who comes in beside it.
                stays = (
                    self._has_all_safe(follower) and now_ms - follower.last_fetch_ms <= lag_ms_max
                )
            if stays:
                wanted.add(name)
        confirmed = wanted & (self.restarted - self.unconfirmed)
        return frozenset(wanted) if confirmed or wanted != self.in_sync else None

    @property
    def unconfirmed(self) -> frozenset[str]:
        """Who returned and has not been heard of with all that is safe."""
        return frozenset(
            name
            for name in self.restarted
            if (follower := self._followers.get(name)) is None or not self._has_all_safe(follower)
        )

    def _has_all_safe(self, follower: _Follower) -> bool:
        """Whether a follower has what anybody has to have who may be elected."""
        return follower.ends.reaches(LogOffsets(*map(max, self.start, self.high_watermark)))

    def begin_change(self, in_sync: Collection[str]) -> None:
        """Take note that a change was asked for: until it is decided, both sets count."""
        self._proposed = frozenset(in_sync)

    def set_in_sync(self, in_sync: Iterable[str], min_insync: int) -> None:
        """Take over the in-sync set that holds now, whoever asked for it."""
        self.in_sync = frozenset(in_sync)
        self.min_insync = min_insync
        self._proposed = None
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
