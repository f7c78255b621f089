"""Calls and streams between simulated nodes: slow, cut one way or both, lost with their nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Protocol, TypeVar

from goq.errors import Unavailable

T = TypeVar("T")
CALL_TIMEOUT_S = 1.0
_CLOSE_S_MAX = 0.5


class StreamNode(Protocol):
    """A node that has streams."""

    name: str
    is_dead: bool

    def on_stream_open(self, peer: str, stream: SimStream) -> None: ...

    def on_stream_close(self, peer: str, stream: SimStream) -> None: ...

    def on_stream_message(self, peer: str, stream: SimStream, data: bytes) -> None: ...


class SimStream:
    """One end of a stream: it delivers in order, until a cut or the end of a node closes it."""

    def __init__(self, network: SimNetwork, owner: StreamNode, other: StreamNode) -> None:
        self.is_closed = False
        self.peer: SimStream
        self._network = network
        self._owner = owner
        self._other = other
        self._last_s = 0.0

    def send(self, *parts: bytes | memoryview) -> bool:
        if self.is_closed or self._owner.is_dead:
            return False
        loop = asyncio.get_running_loop()
        delay_s = self._network.delay_s(self._owner.name, self._other.name)
        self._last_s = max(self._last_s + 1e-7, loop.time() + delay_s)
        loop.call_at(self._last_s, self._arrive, b"".join(parts))
        return True

    def abort(self, _reason: str) -> None:
        self._close()
        self.peer.close_later()

    def _arrive(self, data: bytes) -> None:
        way = self._owner.name, self._other.name
        if way in self._network.cut or self._other.is_dead or self._owner.is_dead:
            self.close_later()
            self.peer.close_later()
        elif not self.peer.is_closed:
            self._other.on_stream_message(self._owner.name, self.peer, data)

    def close_later(self) -> None:
        """Close this end, some time later than the other."""
        loop = asyncio.get_running_loop()
        loop.call_later(self._network.random.uniform(0, _CLOSE_S_MAX), self._close)

    def _close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            if not self._owner.is_dead:
                self._owner.on_stream_close(self._other.name, self)


class SimNetwork:
    """Links are cut by pairs of names, from and to."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.cut: set[tuple[str, str]] = set()
        self.slow: set[tuple[str, str]] = set()

    async def call(self, source: str, target: str, work: Callable[[], Awaitable[T]]) -> T:
        """Have work done by another node; raise ``Unavailable`` if there is no answer in time.

        The request may have arrived nevertheless.
        """
        try:
            return await asyncio.wait_for(self._call(source, target, work), CALL_TIMEOUT_S)
        except TimeoutError:
            raise Unavailable("no answer") from None

    async def _call(self, source: str, target: str, work: Callable[[], Awaitable[T]]) -> T:
        await self._travel(source, target)
        result = await work()
        await self._travel(target, source)
        return result

    def connect(self, one: StreamNode, other: StreamNode) -> None:
        """Open a stream between two nodes, if they reach each other."""
        if one.is_dead or other.is_dead or self.cut & {(one.name, other.name)}:
            return
        here, there = SimStream(self, one, other), SimStream(self, other, one)
        here.peer, there.peer = there, here
        one.on_stream_open(other.name, here)
        other.on_stream_open(one.name, there)

    def delay_s(self, source: str, target: str) -> float:
        """Draw how long something is under way."""
        delay_s = self.random.expovariate(1 / 0.0005)
        if (source, target) in self.slow:
            delay_s += self.random.uniform(0.05, 0.4)
        return delay_s

    async def _travel(self, source: str, target: str) -> None:
        await asyncio.sleep(self.delay_s(source, target))
        if (source, target) in self.cut:
            await asyncio.sleep(2 * CALL_TIMEOUT_S)
            raise Unavailable("the link is cut")
