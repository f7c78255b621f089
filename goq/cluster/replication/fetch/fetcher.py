"""The follower's side of fetching: one fetch loop for each node that leads followed partitions.

With a push stream to that node, each session is attached to the stream once its first response is
here. From then on the leader pushes what it appends, and the fetches bring the rest. They are held
for long then, because the stream renews the session. A push that does not continue the logs, and
the end of the stream, begin another session.

Large pieces, which a replica that catches up gets, are stored one after the other. So what other
partitions sync meanwhile waits behind one of them on the disk, and not behind all.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial

from goq import limits
from goq.broker.log.commit_turn import CommitTurn
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.protocol import (
    FetchRequest,
    FetchResponse,
    PartitionKey,
    PartitionUpdate,
    Position,
)
from goq.cluster.replication.push.protocol import PeerStream, Push, encode_begin, encode_renew
from goq.cluster.replication.push.receiver import PushReceiver
from goq.cluster.replication.segment_manifest import LOGS, SegmentManifest
from goq.errors import GoqError, InvalidFrame, StorageFull

_log = logging.getLogger("goq.cluster")
_GATHER_S = 0.01
_PAUSE_S_MIN = 0.02
_PAUSE_S_MAX = 1.0

Fetch = Callable[[FetchRequest], Awaitable[tuple[FetchResponse, memoryview]]]
"""Calls the leader's node; raises ``GoqError`` if it cannot be reached or does not answer."""


class Fetcher:
    """Keeps partitions of the node ``name`` up to date with another node, which leads them.

    ``on_failure`` is called with a partition that cannot be stored here, and the error; fetching of
    it ends. ``on_expired_segment`` is called with a follower that has segments its leader has
    deleted. Fetchers that share a disk share ``large_store``, held while one stores a large piece.
    """

    def __init__(
        self,
        name: str,
        leader: str,
        fetch: Fetch,
        executor: Executor,
        manifest: SegmentManifest,
        *,
        on_failure: Callable[[PartitionKey, Exception], None],
        on_expired_segment: Callable[[FollowerReplica], None],
        turn: CommitTurn | None = None,
        large_store: asyncio.Lock | None = None,
    ) -> None:
        self._name = name
        self._leader = leader
        self._fetch = fetch
        self._executor = executor
        self._manifest = manifest
        self._on_failure = on_failure
        self._on_expired_segment = on_expired_segment
        self._followers: dict[PartitionKey, FollowerReplica] = {}
        self._to_ask: set[PartitionKey] = set()
        self._forgotten: set[PartitionKey] = set()
        self._refused: set[PartitionKey] = set()
        self._retried: set[PartitionKey] = set()
        """What was refused, is to be asked for again, and has no answer to that yet."""
        self._refused_pause_s = _PAUSE_S_MIN
        self._refused_timer: asyncio.TimerHandle | None = None
        self._session = 0
        self._stream: PeerStream | None = None
        self._attach_s = 0.0
        """When pushes may begin again."""
        self._renewed_s = -math.inf
        """When the stream renewed the session last."""
        self._pushes = PushReceiver(self._followers, turn or CommitTurn(), executor, self)
        self._storing = asyncio.Lock()
        self._large_store = large_store or asyncio.Lock()
        self._asking: asyncio.Task[tuple[FetchResponse, memoryview]] | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, follower: FollowerReplica) -> None:
        """Fetch a partition, or another leadership of one."""
        self._followers[follower.key] = follower
        self._to_ask.add(follower.key)
        self._forgotten.discard(follower.key)
        self._on_change()
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    async def remove(self, key: PartitionKey) -> None:
        """Stop fetching a partition; on return nothing more is stored in it."""
        self._remove(key)
        await self._pushes.idle()
        async with self._storing:
            return

    def _remove(self, key: PartitionKey) -> None:
        if self._followers.pop(key, None) is not None:
            self._to_ask.discard(key)
            self._retried.discard(key)
            self._forgotten.add(key)
            self._on_change()

    async def stop(self) -> None:
        """Stop fetching; on return nothing more is stored."""
        self._followers.clear()
        self._pushes.detach()
        if self._refused_timer is not None:
            self._refused_timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._pushes.idle()
        async with self._storing:
            return

    # Push streams

    def set_stream(self, stream: PeerStream | None) -> None:
        """Take pushes over another stream, None if there is none any more."""
        self._stream = stream
        if self._pushes.session:
            self._on_change()

    def renewal(self) -> bytes:
        """Return the message that renews the session, empty if none is attached to the stream."""
        if not self._pushes.session:
            return b""
        self._renewed_s = asyncio.get_running_loop().time()
        return encode_renew(self._pushes.session)

    def receive(self, push: Push) -> None:
        """Store a push of the leader."""
        self._pushes.receive(push)

    def on_pushed(self, follower: FollowerReplica) -> None:
        """Note that a push is stored, which the leader need not be told by a fetch."""
        self._to_ask.discard(follower.key)
        self._refused.discard(follower.key)
        if follower.expired_segment() is not None:
            self._on_expired_segment(follower)

    def on_mismatch(self, reason: str) -> None:
        """Begin another session: the pushes do not continue the logs."""
        _log.info("the pushes of %s end, and it is fetched from: %s", self._leader, reason)
        self._attach_s = asyncio.get_running_loop().time() + _PAUSE_S_MAX
        self._on_change()

    def on_write_failure(self, key: PartitionKey, error: Exception) -> None:
        """Stop fetching a partition that cannot be stored here."""
        self._remove(key)
        self._on_failure(key, error)

    async def record_sealed(self, follower: FollowerReplica) -> None:
        """Record the segments that a push has sealed."""
        async with follower.manifest_lock:
            await self._record_segments(follower, [])

    def _attach(self) -> None:
        """Have the leader push in a session that has begun."""
        stream = self._stream
        if stream is None or not self._session or self._pushes.session == self._session:
            return
        if asyncio.get_running_loop().time() >= self._attach_s:
            self._pushes.attach(self._session, stream)
            stream.send(encode_begin(self._session))

    async def _run(self) -> None:
        pause_s = _PAUSE_S_MIN
        while self._followers:
            try:
                await self._round()
                pause_s = _PAUSE_S_MIN
            except GoqError as error:
                _log.debug("fetching from %s failed: %s", self._leader, error)
                self._session = 0
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _round(self) -> None:
        """Fetch once, and store the response."""
        if not self._session:
            self._pushes.detach()
            await self._pushes.idle()
        request = self._request()
        fetched = await self._fetch_unless_changed(request)
        if fetched is None or fetched[0].is_unknown_session:
            self._session = 0
            return
        async with self._storing:
            await asyncio.shield(self._store(*fetched))
        self._attach()
        self._retried.difference_update(position.key for position in request.positions)
        if self._refused:
            self._retry_later()
        elif not self._retried:
            self._refused_pause_s = _PAUSE_S_MIN

    def _retry_later(self) -> None:
        if self._refused_timer is None:
            self._refused_timer = asyncio.get_running_loop().call_later(
                self._refused_pause_s, self._retry_refused
            )
            self._refused_pause_s = min(2 * self._refused_pause_s, _PAUSE_S_MAX)

    def _retry_refused(self) -> None:
        """Ask again, with the next request, for what was refused.

        A leader that begins later answers without being asked again.
        """
        self._refused_timer = None
        again = self._refused & self._followers.keys()
        self._to_ask |= again
        self._retried |= again
        self._refused.clear()

    def _request(self) -> FetchRequest:
        is_new = not self._session
        if is_new:
            self._session = secrets.randbits(53) | 1
            self._to_ask = set(self._followers)
            self._forgotten.clear()
        positions = [self._followers[key].position for key in sorted(self._to_ask)]
        forgotten = list(self._forgotten)
        self._to_ask.clear()
        self._forgotten.clear()
        silent_s = asyncio.get_running_loop().time() - self._renewed_s
        is_renewed = self._pushes.session == self._session and silent_s < limits.PUSH_STREAM_IDLE_S
        wait_ms = limits.FETCH_WAIT_RENEWED_MS if is_renewed else limits.FETCH_WAIT_MS
        return FetchRequest(self._name, self._session, is_new, positions, forgotten, wait_ms)

    async def _fetch_unless_changed(
        self, request: FetchRequest
    ) -> tuple[FetchResponse, memoryview] | None:
        """Return the response, or None as soon as the set of partitions changes.

        The leader's knowledge of this node's positions is uncertain then, so the session ends.
        """
        self._asking = asyncio.ensure_future(self._fetch(request))
        try:
            return await self._asking
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                raise
        finally:
            self._asking = None
        await asyncio.sleep(_GATHER_S)  # many partitions change together
        return None

    def _on_change(self) -> None:
        """End the request under way and its session: the set of partitions has changed."""
        if self._pushes.session:
            self._pushes.detach()
            self._session = 0
        if self._asking is not None:
            self._asking.cancel()

    async def _store(self, response: FetchResponse, frames: memoryview) -> None:
        """Store all updates, those of different partitions in parallel."""
        stores = []
        for update in response.updates:
            size_bytes = sum(log.frame_bytes for log in (update.messages, update.events) if log)
            own, frames = frames[:size_bytes], frames[size_bytes:]
            follower = self._followers.get(update.key)
            if follower is None:
                continue
            if update.refusal:
                self._refused.add(update.key)
                continue
            stores.append(self._apply(follower, update, own))
        if len(stores) == 1:
            await stores[0]
        else:
            await asyncio.gather(*stores)

    async def _apply(
        self, follower: FollowerReplica, update: PartitionUpdate, frames: memoryview
    ) -> None:
        before, truncated = follower.position, list[int]()
        try:
            truncated = follower.truncated_logs(update, frames)
            if truncated:
                async with follower.manifest_lock:
                    await self._truncate(follower, truncated, update, frames)
            else:
                await self._store_in_thread(follower, update, frames)
                if follower.sealed_segments:
                    async with follower.manifest_lock:
                        await self._record_segments(follower, [])
        except InvalidFrame as error:  # damaged in transit, or on the leader: ask again
            _log.warning("%s sent frames that cannot be stored: %s", self._leader, error)
            self._refused.add(update.key)
            return
        except Exception as error:
            is_full = isinstance(error, StorageFull) and not truncated
            if not is_full or follower.expired_segment() is None:
                self._remove(update.key)
                self._on_failure(update.key, error)
                return
            # it makes room with what the leader has deleted, and is asked for again
        if self._followers.get(update.key) is follower:
            if _confirms(update, before):
                pass  # what was pushed meanwhile is reported by itself
            elif follower.position != before:
                self._to_ask.add(update.key)
            else:  # stuck at something on the leader: ask again later
                self._refused.add(update.key)
            if follower.expired_segment() is not None:
                self._on_expired_segment(follower)

    async def _truncate(
        self,
        follower: FollowerReplica,
        truncated: list[int],
        update: PartitionUpdate,
        frames: memoryview,
    ) -> None:
        for which in truncated:
            await self._manifest.remove(update.key, LOGS[which])
        await self._store_in_thread(follower, update, frames)
        await self._record_segments(follower, truncated)

    async def _store_in_thread(
        self, follower: FollowerReplica, update: PartitionUpdate, frames: memoryview
    ) -> None:
        apply = partial(follower.apply, update, frames)

        async def store() -> None:
            await asyncio.get_running_loop().run_in_executor(self._executor, apply)

        async def store_large() -> None:
            async with self._large_store:
                await store()

        is_large = len(frames) > limits.FETCH_TOGETHER_BYTES_MAX
        await follower.log_lock.run(store_large if is_large else store)

    async def _record_segments(self, follower: FollowerReplica, truncated: list[int]) -> None:
        """Record in the manifest what was sealed, and what is left of truncated logs."""
        sealed, follower.sealed_segments = follower.sealed_segments, []
        try:
            for which in truncated:
                log = follower.logs[which]
                await self._manifest.add(follower.key, LOGS[which], log.segments[:-1])
            for which, segment in sealed:
                await self._manifest.add(follower.key, LOGS[which], [segment])
        except (GoqError, OSError) as error:  # recorded when the replica is opened again
            _log.warning("the manifest lacks segments of %s: %s", follower.key, error)


def _confirms(update: PartitionUpdate, position: Position) -> bool:
    """Whether an update only tells that a follower has all that the leader has."""
    return (update.ends is not None and position.ends.reaches(update.ends)) and all(
        log is None or not (log.frame_bytes or log.must_reset or log.diverges_at is not None)
        for log in (update.messages, update.events)
    )
