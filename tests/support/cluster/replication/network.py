"""Calls between simulated nodes: slow, cut one way or both, lost with those who make them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from goq.errors import Unavailable

T = TypeVar("T")
CALL_TIMEOUT_S = 1.0


class SimNetwork:
    """Links are cut by pairs of names, from and to."""

    def __init__(self, random: Random) -> None:
        self._random = random
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

    async def _travel(self, source: str, target: str) -> None:
        delay_s = self._random.expovariate(1 / 0.0005)
        if (source, target) in self.slow:
            delay_s += self._random.uniform(0.05, 0.4)
        await asyncio.sleep(delay_s)
        if (source, target) in self.cut:
            await asyncio.sleep(2 * CALL_TIMEOUT_S)
            raise Unavailable("the link is cut")
