"""The leader's side of fetching: the sessions of followers, and what each is sent next.

A session reports only positions that changed, so the server keeps the others. A position counts for
the in-sync set only when the follower's log is known to be a prefix of the leader's. Replicas that
a reassignment adds are throttled to a rate per sending node.

A follower with a push stream attaches its session to it. Partitions that are pushed are then left
out of the responses. A stream and its session end together, so that a position never depends on
what was lost with a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import islice

from goq import limits
from goq.broker.log.recent_batches import RecentBatchPool
from goq.clock import Clock
from goq.cluster.replication.fetch.follower_update import FramedUpdate, refusal_of
from goq.cluster.replication.fetch.session import FetchSession
from goq.cluster.replication.fetch.throttle import Throttle
from goq.cluster.replication.leader import LeaderReplica, ReplicaBounds
from goq.cluster.replication.protocol import FetchRequest, FetchResponse, PartitionKey, Position
from goq.cluster.replication.push.protocol import PeerStream
from goq.cluster.replication.push.sender import PushSender
from goq.errors import InvalidFrame


class FetchServer:
    """Answers followers from the partitions that this node leads."""

    def __init__(self, executor: Executor, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self._leaders: dict[PartitionKey, LeaderReplica] = {}
        self._sessions: dict[str, FetchSession] = {}
        self._streams: dict[str, PeerStream] = {}
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
        """Wake the followers of a partition, which has something new on this node's disk."""
        for session in self._sessions.values():
            if session.pushes is not None and session.pushes.has_pushed_all(key):
                session.end_rest(key)
            elif key in session.positions:
                session.enqueue(key)

    def is_pushed(self, key: PartitionKey) -> bool:
        """Whether any follower is pushed what is appended to a partition."""
        return any(s.pushes is not None and s.pushes.covers(key) for s in self._sessions.values())

    def on_offer(self, key: PartitionKey) -> None:
        """Push what is about to be written to the followers that are pushed to."""
        for session in self._sessions.values():
            if session.pushes is not None and session.pushes.covers(key):
                session.enqueue(key)

    def flush(self) -> None:
        """Push now what is to be pushed at the end of this turn."""
        for session in list(self._sessions.values()):
            if session.pushes is not None:
                session.pushes.flush()

    def on_bounds_change(self, key: PartitionKey) -> None:
        """Look at the followers of a partition with their next requests."""
        leader = self._leaders.get(key)
        is_confirming = leader is not None and leader.is_confirming
        for session in self._sessions.values():
            if key in session.rests:
                session.end_rest(key)
            if is_confirming and session.pushes is not None and key in session.positions:
                session.must_answer = True
                session.updated.set()

    # Push streams

    def add_stream(self, node: str, stream: PeerStream) -> None:
        """Push over a stream to a node, in the sessions that it attaches."""
        self.remove_stream(node)
        self._streams[node] = stream

    def remove_stream(self, node: str) -> None:
        """End the session that is attached to the stream of a node: its pushes may be lost."""
        self._streams.pop(node, None)
        session = self._sessions.get(node)
        if session is not None and session.pushes is not None:
            self._end_session(session)

    def attach(self, node: str, number: int) -> None:
        """Push to the session of a node from now on, if it is still under way."""
        session, stream = self._sessions.get(node), self._streams.get(node)
        if session is None or stream is None or session.number != number:
            return
        session.pushes = PushSender(
            stream,
            session,
            self._leaders,
            self._clock,
            may_push=lambda key: not self._is_throttled_replica(session, key),
            on_failure=lambda: self._end_session(session),
        )
        for key in session.positions:
            session.pushes.enqueue(key)

    def on_stored(self, node: str, number: int, push: int, others: Sequence[int] = ()) -> None:
        """Count what a node has stored of the pushes of a session: up to ``push``, and ``others``.

        Raises ``InvalidFrame`` for pushes that are not under way.
        """
        session = self._sessions.get(node)
        if session is None or session.pushes is None or session.number != number:
            return
        try:
            session.pushes.on_stored(push, others)
        except InvalidFrame:
            self._end_session(session)
            raise

    def renew(self, node: str, number: int) -> None:
        """Count a node as following, as its next fetch would; its positions are known."""
        session = self._sessions.get(node)
        if session is not None and session.pushes is not None and session.number == number:
            self._refresh(session, frozenset(), _now_ms())

    def _end_session(self, session: FetchSession) -> None:
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
        for key in list(session.rests):
            session.end_rest(key)
        session.end()

    async def fetch(self, request: FetchRequest) -> tuple[FetchResponse, list[memoryview]]:
        """Return what is new for a follower, when there is something or its wait time is over."""
        session = self._session_of(request)
        if session is None:
            return FetchResponse([], True, self._clock.wall_ms()), []
        now_ms = _now_ms()
        for key in request.forgotten:
            session.forget(key)
        for position in request.positions:
            if session.pushes is not None and session.pushes.covers(position.key):
                self._end_session(session)  # the follower has not stored what was pushed
                return FetchResponse([], True, self._clock.wall_ms()), []
            session.set_position(position)
            leader = self._leaders.get(position.key)
            if leader is not None:
                self._record_position(leader, session, position, now_ms)
        moved = frozenset(position.key for position in request.positions)
        for leader in self._refresh(session, moved, now_ms):
            leader.on_follower_request(session.node, session.number)
            if session.pushes is not None and leader.is_waiting_for(session.node):
                session.must_answer = True
        await self._wait(session, request.wait_ms)
        if session.is_over:
            return FetchResponse([], True, self._clock.wall_ms()), []
        return await self._answer(session)

    def _session_of(self, request: FetchRequest) -> FetchSession | None:
        session = self._sessions.get(request.node)
        if request.is_new:
            if session is not None:
                session.end()
            session = self._sessions[request.node] = FetchSession(request.node, request.session)
        return session if session is not None and session.number == request.session else None

    def _refresh(
        self, session: FetchSession, moved: frozenset[PartitionKey], now_ms: int
    ) -> list[LeaderReplica]:
        """Count a follower that has not ``moved`` as caught up until now; return its leaderships.

        It is then also told of bounds that have changed. Under load they come with the data. At
        rest only the time matters, which all rests of the session share: these are left out.
        """
        active = []
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
            active.append(leader)
        return active

    def _record_position(
        self, leader: LeaderReplica, session: FetchSession, position: Position, now_ms: int
    ) -> None:
        is_verified = session.verified.get(position.key) is position
        if is_verified and leader.leader_epoch == position.leader_epoch:
            leader.on_fetch(session.node, position.ends, now_ms)

    async def _wait(self, session: FetchSession, wait_ms: int) -> None:
        """Return when there is something to send to a follower now, or the time is over."""
        loop = asyncio.get_running_loop()
        is_renewed = session.pushes is not None
        wait_ms_max = limits.FETCH_WAIT_RENEWED_MS if is_renewed else limits.FETCH_WAIT_MS
        until = loop.time() + min(wait_ms, wait_ms_max) / 1000
        while not any(map(partial(self._has_update, session), session.pending)):
            session.pending = {key: None for key in session.pending if self._has_more(session, key)}
            session.updated.clear()
            if session.must_answer or session.is_over:
                session.must_answer = False
                return
            left_s = until - loop.time()
            if left_s <= 0:
                return
            if session.pending:
                left_s = min(left_s, max(self._throttle.wait_ms(_now_ms()), 1) / 1000)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):  # wait_for may lose a cancellation
                    await session.updated.wait()

    def _has_update(self, session: FetchSession, key: PartitionKey) -> bool:
        """Whether there is anything to send to a follower now."""
        is_pushed = session.pushes is not None and session.pushes.covers(key)
        if key not in self._leaders:
            return not is_pushed
        return self._has_more(session, key) and not self._must_wait(session, key)

    def _has_more(self, session: FetchSession, key: PartitionKey) -> bool:
        """Whether there is anything to send to a follower, now or when the throttle lets it."""
        if session.pushes is not None and session.pushes.covers(key):
            return False
        leader = self._leaders.get(key)
        position = session.positions[key]
        if leader is None or session.verified.get(key) is not position:
            return True
        return key in session.stale or leader.has_update(position)

    def _is_throttled_replica(self, session: FetchSession, key: PartitionKey) -> bool:
        return session.node in self._adding.get(key, ())

    def _must_wait(self, session: FetchSession, key: PartitionKey) -> bool:
        """Whether an added replica must wait to keep to the rate."""
        return self._is_throttled_replica(session, key) and self._throttle.wait_ms(_now_ms()) > 0

    async def _answer(self, session: FetchSession) -> tuple[FetchResponse, list[memoryview]]:
        pending = [key for key in session.pending if self._has_update(session, key)]
        waiting = [key for key in session.pending if self._has_more(session, key)]
        session.pending = dict.fromkeys([*pending, *waiting])
        reads: list[Callable[[int], FramedUpdate]] = []
        asked: list[tuple[LeaderReplica | None, Position]] = []
        is_in_memory = True
        for key in islice(pending, limits.FETCH_PARTITIONS_MAX):
            del session.pending[key]  # what is appended during the read puts it back
            session.reading.add(key)
            position, leader = session.positions[key], self._leaders.get(key)
            asked.append((leader, position))
            if leader is None:
                reads.append(partial(_refuse, key))
                continue
            is_checked = session.expected.get(key) == position.ends
            is_throttled = self._is_throttled_replica(session, key)
            may_use_memory = is_checked and not is_throttled
            ends = leader.progress.ends
            recent = leader.recent_update(position, ends) if may_use_memory else None
            if recent is not None:
                reads.append(partial(_return, recent))
                continue
            is_in_memory = False
            piece_bytes = self._throttle.piece_bytes if is_throttled else None
            reads.append(partial(_read, leader, position, is_checked, piece_bytes))
        try:
            if is_in_memory:
                updates = _read_all(reads)
            else:
                loop = asyncio.get_running_loop()
                updates = await loop.run_in_executor(self._executor, _read_all, reads)
        finally:
            session.reading.difference_update(position.key for _, position in asked)
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
        self, leader: LeaderReplica, session: FetchSession, position: Position, update: FramedUpdate
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
