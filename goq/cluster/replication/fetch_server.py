"""The leader's side of fetching: the sessions of followers, and what each is sent next.

A session reports only positions that changed, so the server keeps the others. A position counts for
the in-sync set only when the follower's log is known to be a prefix of the leader's. Replicas that
a reassignment adds are throttled to a rate per sending node.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from functools import partial
from itertools import islice

from goq import limits
from goq.broker.log.recent_batches import RecentBatchPool
from goq.clock import Clock
from goq.cluster.replication.leader import FramedUpdate, LeaderReplica, ReplicaBounds, refusal_of
from goq.cluster.replication.progress import FollowerProgress, LatestRequest, LogOffsets
from goq.cluster.replication.protocol import FetchRequest, FetchResponse, PartitionKey, Position

_PIECES_PER_S = 4


class Throttle:
    """The rate at which added replicas are sent data; ``bytes_per_s`` 0 is no limit.

    Pure: times come in as arguments. What was sent is paid for by waiting afterwards, so there are
    no bursts. A piece may be as large as the rate of a fraction of a second.
    """

    def __init__(self, bytes_per_s: int = 0) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_ms = 0.0

    def wait_ms(self, now_ms: int) -> float:
        """Return how long to wait before anything may be sent."""
        return max(self._free_ms - now_ms, 0.0) if self.bytes_per_s else 0.0

    @property
    def piece_bytes(self) -> int:
        """How much to send at once; a larger frame is still sent whole."""
        if not self.bytes_per_s:
            return limits.FETCH_LOG_BYTES_MAX
        piece = max(self.bytes_per_s // _PIECES_PER_S, limits.REASSIGNMENT_CHUNK_BYTES_MIN)
        return min(piece, limits.FETCH_LOG_BYTES_MAX)

    def on_sent(self, size_bytes: int, now_ms: int) -> None:
        """Note that bytes were sent."""
        if self.bytes_per_s:
            self._free_ms = max(self._free_ms, now_ms) + size_bytes * 1000 / self.bytes_per_s


class _Rest:
    """A follower that has everything and was told all bounds, and the logs as they were then.

    A node at rest has hundreds of them in each session. What ends a rest is reported, but for
    segments that retention removes: those are looked for once in ``limits.REST_CHECK_MS``.
    """

    __slots__ = ("_events", "_follower", "_leader", "_messages")

    def __init__(self, leader: LeaderReplica, follower: FollowerProgress) -> None:
        self._leader, self._follower = leader, follower
        self._messages, self._events = leader.logs.messages.segments, leader.logs.events.segments

    def has_other_segments(self) -> bool:
        """Whether the leader's logs have other segments by now: a change replaces the lists."""
        logs = self._leader.logs
        return (
            logs.messages.segments is not self._messages or logs.events.segments is not self._events
        )

    def end(self) -> None:
        """Count later requests no more."""
        self._follower.end_rest()


class _Session:
    """The last known positions of a follower, and where the last response leads it."""

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.number = number
        self.positions: dict[PartitionKey, Position] = {}
        self.expected: dict[PartitionKey, LogOffsets] = {}
        self.sent_bounds: dict[PartitionKey, ReplicaBounds] = {}
        """The bounds of the leader's logs in the last response."""
        self.stale: set[PartitionKey] = set()
        """Partitions whose bounds have changed since, while the follower had everything."""
        self.verified: dict[PartitionKey, Position] = {}
        """Positions up to which the follower's logs are known to be prefixes of the leader's.

        Other positions do not count: what a follower has there may be of another leader.
        """
        self.rests: dict[PartitionKey, _Rest] = {}
        self.active: dict[PartitionKey, None] = {}
        """The partitions that are not at rest."""
        self.latest = LatestRequest(0)
        self.checked_ms = 0
        self.pending: dict[PartitionKey, None] = {}
        """Partitions to examine, in the order of their turn."""
        self.updated = asyncio.Event()

    def set_position(self, position: Position) -> None:
        self.positions[position.key] = position
        self.verified.pop(position.key, None)
        if self.expected.get(position.key) == position.ends:
            self.verified[position.key] = position
        self.enqueue(position.key)

    def forget_leadership(self, key: PartitionKey) -> None:
        """Forget where the follower is, because another leadership begins."""
        self.end_rest(key)
        for known in (self.expected, self.sent_bounds, self.verified):
            known.pop(key, None)
        self.stale.discard(key)

    def forget(self, key: PartitionKey) -> None:
        self.positions.pop(key, None)
        self.forget_leadership(key)
        self.active.pop(key, None)
        self.pending.pop(key, None)

    def expect(self, key: PartitionKey, ends: LogOffsets | None) -> None:
        if ends is None:
            self.expected.pop(key, None)
        elif key in self.positions:
            self.expected[key] = ends

    def begin_rest(self, key: PartitionKey, leader: LeaderReplica) -> None:
        follower = leader.progress.follower(self.node)
        if follower is not None:
            self.rests[key] = _Rest(leader, follower)
            follower.begin_rest(self.latest)
            self.active.pop(key, None)

    def end_rest(self, key: PartitionKey) -> None:
        if key in self.positions:
            self.active.setdefault(key)
        rest = self.rests.pop(key, None)
        if rest is not None:
            rest.end()

    def end_rests_with_other_segments(self, now_ms: int) -> None:
        """End the rests whose leader has removed or rolled segments; only now and then."""
        if now_ms - self.checked_ms >= limits.REST_CHECK_MS:
            self.checked_ms = now_ms
            for key in [key for key, rest in self.rests.items() if rest.has_other_segments()]:
                self.end_rest(key)

    def enqueue(self, key: PartitionKey) -> None:
        self.end_rest(key)
        self.pending.setdefault(key)
        self.updated.set()


class FetchServer:
    """Answers followers from the partitions that this node leads."""

    def __init__(self, executor: Executor, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self._leaders: dict[PartitionKey, LeaderReplica] = {}
        self._sessions: dict[str, _Session] = {}
        self._recent = RecentBatchPool()
        self._throttle = Throttle()
        self._adding: Mapping[PartitionKey, frozenset[str]] = {}

    def set_throttle(self, bytes_per_s: int, adding: Mapping[PartitionKey, frozenset[str]]) -> None:
        """Set which nodes copy which partitions for a reassignment, and their common rate."""
        self._adding = adding
        if bytes_per_s != self._throttle.bytes_per_s:
            self._throttle = Throttle(bytes_per_s)
            for session in self._sessions.values():
                session.updated.set()

    def add_leader(self, leader: LeaderReplica) -> None:
        """Add a partition, or a new leadership of one; followers may have asked before."""
        self._leaders[leader.key] = leader
        leader.keep_recent_in(self._recent)
        for session in self._sessions.values():
            session.forget_leadership(leader.key)
            if leader.key in session.positions:
                session.enqueue(leader.key)

    def remove_leader(self, key: PartitionKey) -> None:
        """Remove a partition: followers that ask for it are refused."""
        leader = self._leaders.pop(key, None)
        if leader is not None:
            for recent in leader.recent_batches:
                recent.clear()
        self.on_new_data(key)

    def on_new_data(self, key: PartitionKey) -> None:
        """Wake the followers of a partition, which has something new."""
        for session in self._sessions.values():
            if key in session.positions:
                session.enqueue(key)

    def on_bounds_change(self, key: PartitionKey) -> None:
        """Look at the followers of a partition with their next requests."""
        for session in self._sessions.values():
            if key in session.rests:
                session.end_rest(key)

    async def fetch(self, request: FetchRequest) -> tuple[FetchResponse, list[memoryview]]:
        """Return what is new for a follower, when there is something or its wait time is over."""
        session = self._session_of(request)
        if session is None:
            return FetchResponse([], True, self._clock.wall_ms()), []
        now_ms = _now_ms()
        for key in request.forgotten:
            session.forget(key)
        for position in request.positions:
            session.set_position(position)
            leader = self._leaders.get(position.key)
            if leader is not None:
                self._record_position(leader, session, position, now_ms)
        self._refresh(request, session, now_ms)
        if not session.pending or not any(map(partial(self._has_update, session), session.pending)):
            await self._wait(session, request.wait_ms)
        return await self._answer(session)

    def _session_of(self, request: FetchRequest) -> _Session | None:
        session = self._sessions.get(request.node)
        if request.is_new:
            if session is not None:
                session.updated.set()
            session = self._sessions[request.node] = _Session(request.node, request.session)
        return session if session is not None and session.number == request.session else None

    def _refresh(self, request: FetchRequest, session: _Session, now_ms: int) -> None:
        """Count a follower that asks again from the same position as caught up until now there.

        It is then also told of bounds that have changed. Under load they come with the data. A
        request also confirms that the node still follows. At rest only the time of the request
        matters, which all rests of the session share.
        """
        moved = {position.key for position in request.positions}
        session.latest.at_ms = now_ms
        session.end_rests_with_other_segments(now_ms)
        for key in list(session.active):
            position, leader = session.positions[key], self._leaders.get(key)
            if leader is None or leader.leader_epoch != position.leader_epoch:
                continue
            if key not in moved and leader.progress.ends == position.ends:
                self._record_position(leader, session, position, now_ms)
                sent = session.sent_bounds.get(key)
                if sent is not None and sent != leader.bounds:
                    session.stale.add(key)
                    session.enqueue(key)
                elif (
                    sent is not None
                    and session.verified.get(key) is position
                    and not leader.is_confirming
                ):
                    session.begin_rest(key, leader)
            leader.on_follower_request(request.node, request.session)

    def _record_position(
        self, leader: LeaderReplica, session: _Session, position: Position, now_ms: int
    ) -> None:
        is_verified = session.verified.get(position.key) is position
        if is_verified and leader.leader_epoch == position.leader_epoch:
            leader.on_fetch(session.node, position.ends, now_ms)

    async def _wait(self, session: _Session, wait_ms: int) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + min(wait_ms, limits.FETCH_WAIT_MS) / 1000
        while not any(map(partial(self._has_update, session), session.pending)):
            session.pending = {key: None for key in session.pending if self._has_more(session, key)}
            session.updated.clear()
            left_s = until - loop.time()
            if left_s <= 0:
                return
            if session.pending:
                left_s = min(left_s, max(self._throttle.wait_ms(_now_ms()), 1) / 1000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):  # wait_for may lose a cancellation
                    await session.updated.wait()

    def _has_update(self, session: _Session, key: PartitionKey) -> bool:
        """Whether there is anything to send to a follower now."""
        if key not in self._leaders:
            return True
        return self._has_more(session, key) and not self._must_wait(session, key)

    def _has_more(self, session: _Session, key: PartitionKey) -> bool:
        """Whether there is anything to send to a follower, now or when the throttle lets it."""
        leader = self._leaders.get(key)
        position = session.positions[key]
        if leader is None or session.verified.get(key) is not position:
            return True
        return key in session.stale or leader.has_update(position)

    def _is_throttled_replica(self, session: _Session, key: PartitionKey) -> bool:
        return session.node in self._adding.get(key, ())

    def _must_wait(self, session: _Session, key: PartitionKey) -> bool:
        """Whether an added replica must wait to keep to the rate."""
        return self._is_throttled_replica(session, key) and self._throttle.wait_ms(_now_ms()) > 0

    async def _answer(self, session: _Session) -> tuple[FetchResponse, list[memoryview]]:
        pending = [key for key in session.pending if self._has_update(session, key)]
        waiting = [key for key in session.pending if self._has_more(session, key)]
        session.pending = dict.fromkeys([*pending, *waiting])
        reads: list[Callable[[int], FramedUpdate]] = []
        asked: list[tuple[LeaderReplica | None, Position]] = []
        is_in_memory = True
        for key in islice(pending, limits.FETCH_PARTITIONS_MAX):
            del session.pending[key]  # what is appended during the read puts it back
            position, leader = session.positions[key], self._leaders.get(key)
            asked.append((leader, position))
            if leader is None:
                reads.append(partial(_refuse, key))
                continue
            is_checked = session.expected.get(key) == position.ends
            is_throttled = self._is_throttled_replica(session, key)
            recent = leader.recent_update(position) if is_checked and not is_throttled else None
            if recent is not None:
                reads.append(partial(_return, recent))
                continue
            is_in_memory = False
            piece_bytes = self._throttle.piece_bytes if is_throttled else None
            reads.append(partial(_read, leader, position, is_checked, piece_bytes))
        if is_in_memory:
            updates = _read_all(reads)
        else:
            loop = asyncio.get_running_loop()
            updates = await loop.run_in_executor(self._executor, _read_all, reads)
        for (leader, position), update in zip(asked, updates, strict=False):
            key = position.key
            if self._is_throttled_replica(session, key):
                self._throttle.on_sent(sum(map(len, update.buffers)), _now_ms())
            if leader is not None and leader is self._leaders.get(key):
                self._on_sent(leader, session, position, update)
        for _, position in asked[len(updates) :]:
            if position.key in session.positions:
                session.enqueue(position.key)
        head = FetchResponse([n.head for n in updates], False, self._clock.wall_ms())
        return head, [b for n in updates for b in n.buffers]

    def _on_sent(
        self, leader: LeaderReplica, session: _Session, position: Position, update: FramedUpdate
    ) -> None:
        """Record what a follower was sent, and what that says about its position."""
        if session.positions.get(position.key) is not position:
            return
        session.expect(position.key, update.end_offsets)
        messages, events = update.head.messages, update.head.events
        if messages is None or events is None:
            return
        starts = messages.start_offset, events.start_offset
        session.sent_bounds[position.key] = ReplicaBounds(*starts, update.head.high_watermark)
        session.stale.discard(position.key)
        if messages.diverges_at is None and events.diverges_at is None:
            session.verified[position.key] = position
            self._record_position(leader, session, position, _now_ms())


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def _refuse(key: PartitionKey, _bytes_max: int) -> FramedUpdate:
    return FramedUpdate(refusal_of(key, "this node does not lead the partition"), [])


def _return(update: FramedUpdate, _bytes_max: int) -> FramedUpdate:
    return update


def _read(
    leader: LeaderReplica,
    position: Position,
    is_checked: bool,
    piece_bytes: int | None,
    bytes_max: int,
) -> FramedUpdate:
    if piece_bytes is not None:
        bytes_max = min(bytes_max, piece_bytes)
    return leader.read_update(position, is_checked=is_checked, bytes_max=bytes_max)


def _read_all(reads: Iterable[Callable[[int], FramedUpdate]]) -> list[FramedUpdate]:
    """Read the updates of partitions in turn until one response is full."""
    updates: list[FramedUpdate] = []
    left = limits.FETCH_BYTES_MAX
    for read in reads:
        if updates and left <= 0:
            break
        update = read(min(limits.FETCH_LOG_BYTES_MAX, max(left, 1)))
        left -= sum(map(len, update.buffers))
        updates.append(update)
    return updates
