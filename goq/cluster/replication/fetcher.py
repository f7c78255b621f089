"""The follower's side of fetching: one worker for each node that leads partitions followed here."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial

from goq import limits
from goq.cluster.replication.follower import FollowerReplica
from goq.cluster.replication.protocol import (
    FetchRequest,
    FetchResponse,
    PartitionKey,
    PartitionUpdate,
)
from goq.cluster.replication.segment_manifest import LOGS, SegmentManifest
from goq.errors import GoqError, InvalidFrame

_log = logging.getLogger("goq.cluster")
_PAUSE_S_MIN = 0.02
_PAUSE_S_MAX = 1.0

Fetch = Callable[[FetchRequest], Awaitable[tuple[FetchResponse, memoryview]]]
"""Asks the leader's node; raises ``GoqError`` where it cannot be reached or does not answer."""


class Fetcher:
    """Keeps partitions of the node ``me`` up with another that leads them.

    ``on_failure`` hears which partition cannot be stored here, and why; it is followed no more.
    ``on_surplus`` hears of what holds segments that its leader has deleted.
    """

    def __init__(
        self,
        me: str,
        leader: str,
        fetch: Fetch,
        executor: Executor,
        custody: SegmentManifest,
        *,
        on_failure: Callable[[PartitionKey, Exception], None],
        on_surplus: Callable[[FollowerReplica], None],
    ) -> None:
        self._me = me
        self._leader = leader
        self._fetch = fetch
        self._executor = executor
        self._custody = custody
        self._on_failure = on_failure
        self._on_surplus = on_surplus
        self._following: dict[PartitionKey, FollowerReplica] = {}
        self._moved: set[PartitionKey] = set()
        self._forgotten: set[PartitionKey] = set()
        self._refused: set[PartitionKey] = set()
        self._refused_pause_s = _PAUSE_S_MIN
        self._refused_timer: asyncio.TimerHandle | None = None
        self._session = 0
        self._taking = asyncio.Lock()
        self._changed = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    def follow(self, following: FollowerReplica) -> None:
        """Take up a partition, or another leadership of one."""
        self._following[following.key] = following
        self._moved.add(following.key)
        self._forgotten.discard(following.key)
        self._changed.set()
        if self._work is None or self._work.done():
            self._work = asyncio.ensure_future(self._run())

    async def forget(self, key: PartitionKey) -> None:
        """Follow a partition no more; nothing more is stored in it on return."""
        self._drop(key)
        async with self._taking:
            return

    def _drop(self, key: PartitionKey) -> None:
        if self._following.pop(key, None) is not None:
            self._moved.discard(key)
            self._forgotten.add(key)
            self._changed.set()

    async def stop(self) -> None:
        """Follow nothing more; nothing more is stored on return."""
        self._following.clear()
        if self._refused_timer is not None:
            self._refused_timer.cancel()
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])
        async with self._taking:
            return

    async def _run(self) -> None:
        pause_s = _PAUSE_S_MIN
        while self._following:
            try:
                await self._round()
                pause_s = _PAUSE_S_MIN
            except GoqError as error:
                _log.debug("fetching from %s failed: %s", self._leader, error)
                self._session = 0
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    async def _round(self) -> None:
        """Ask once, and store what is answered."""
        answered = await self._fetch_or_change(self._request())
        if answered is None or answered[0].unknown_session:
            self._session = 0
            return
        async with self._taking:
            await asyncio.shield(self._store(*answered))
        if not self._refused:
            self._refused_pause_s = _PAUSE_S_MIN
        elif self._refused_timer is None:
            self._refused_timer = asyncio.get_running_loop().call_later(
                self._refused_pause_s, self._ask_again
            )
            self._refused_pause_s = min(2 * self._refused_pause_s, _PAUSE_S_MAX)

    def _ask_again(self) -> None:
        """Ask once more for what was refused: the leader may have heard of it by now."""
        self._refused_timer = None
        self._moved |= self._refused & self._following.keys()
        self._refused.clear()
        self._changed.set()

    def _request(self) -> FetchRequest:
        is_new = not self._session
        if is_new:
            self._session = secrets.randbits(53) | 1
            self._moved = set(self._following)
            self._forgotten.clear()
        positions = [self._following[key].position for key in self._moved]
        forgotten = list(self._forgotten)
        self._moved.clear()
        self._forgotten.clear()
        wait_ms = limits.FETCH_WAIT_MS
        return FetchRequest(self._me, self._session, is_new, positions, forgotten, wait_ms)

    async def _fetch_or_change(
        self, request: FetchRequest
    ) -> tuple[FetchResponse, memoryview] | None:
        """Wait for an answer, but not while there is another partition to ask for: then None.

        Where the leader believes this node to be is not known then, so the session is over.
        """
        self._changed.clear()
        asking = asyncio.ensure_future(self._fetch(request))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait([asking, changed], return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            return None
        finally:
            for each in (asking, changed):
                each.cancel()
            await asyncio.wait([asking, changed])

    async def _store(self, answer: FetchResponse, frames: memoryview) -> None:
        """Store all news, those of different partitions at once."""
        works = []
        for news in answer.news:
            size_bytes = sum(log.frame_bytes for log in (news.messages, news.events) if log)
            own, frames = frames[:size_bytes], frames[size_bytes:]
            following = self._following.get(news.key)
            if following is None:
                continue
            if news.refusal:
                self._refused.add(news.key)
                continue
            works.append(self._take(following, news, own))
        await asyncio.gather(*works)

    async def _take(
        self, following: FollowerReplica, news: PartitionUpdate, frames: memoryview
    ) -> None:
        before = following.position
        try:
            cut = following.cuts(news, frames)
            if cut:
                async with following.listing:
                    await self._cut(following, cut, news, frames)
            else:
                await self._store_in_thread(following, news, frames)
                if following.sealed:
                    async with following.listing:
                        await self._list(following, [])
        except InvalidFrame as error:  # damaged on the way, or over there: ask again
            _log.warning("%s sent what cannot be stored: %s", self._leader, error)
            self._refused.add(news.key)
            return
        except Exception as error:
            self._drop(news.key)
            self._on_failure(news.key, error)
            return
        if self._following.get(news.key) is following:
            # Who stays where it is cannot get past something over there: it asks again later.
            is_stuck = following.position == before
            (self._refused if is_stuck else self._moved).add(news.key)
            if following.surplus() is not None:
                self._on_surplus(following)

    async def _cut(
        self, following: FollowerReplica, cut: list[int], news: PartitionUpdate, frames: memoryview
    ) -> None:
        for which in cut:
            await self._custody.forget(news.key, LOGS[which])
        await self._store_in_thread(following, news, frames)
        await self._list(following, cut)

    async def _store_in_thread(
        self, following: FollowerReplica, news: PartitionUpdate, frames: memoryview
    ) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, partial(following.take, news, frames))

    async def _list(self, following: FollowerReplica, cut: list[int]) -> None:
        """Have in the manifest what was sealed, and what is left of a log that was cut."""
        sealed, following.sealed = following.sealed, []
        try:
            for which in cut:
                log = following.logs[which]
                await self._custody.listed(following.key, LOGS[which], log.segments[:-1])
            for which, segment in sealed:
                await self._custody.listed(following.key, LOGS[which], [segment])
        except (GoqError, OSError) as error:  # it is listed when the replica is opened again
            _log.warning("the manifest lacks segments of %s: %s", following.key, error)
