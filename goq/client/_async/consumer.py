"""The loop over a group's messages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from goq.client._async.backend import Lock, Worker
from goq.client._async.channel import Channel
from goq.client._async.extender import Extender
from goq.client._async.http import Http
from goq.client._async.receive import ReceiveOptions, receive
from goq.client._async.settle import (
    AsyncReceivedMessage,
    Settler,
    by_group,
    nack_details,
    receipts_of,
)
from goq.errors import GoqError

_LAST_ANSWER_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """When the loop ends, and what it does meanwhile.

    ``max`` counts messages, ``until_empty`` ends the loop when no message is ready, and
    ``timeout_ms`` when none has come for so long. ``before_wait`` is called when all that
    came has been passed on, ``after_wait`` when more may have come and none of it is passed on.
    """

    receive: ReceiveOptions
    max: int | None
    until_empty: bool
    timeout_ms: int | None
    auto_extend: bool
    before_wait: Callable[[], Awaitable[None]] | None
    after_wait: Callable[[], Awaitable[None]] | None


class Consumption:
    """One loop, and what it was given but has not passed on.

    Each topic has a worker, which waits for messages on connections that end with the loop. So
    the loop may be left at any moment, by Ctrl-C too: a worker that is waiting then tells the node
    that it will ask no more, and hears whether it was handed something, which goes back at once.
    """

    def __init__(
        self,
        http: Http,
        settler: Settler,
        topics: Sequence[str],
        group: str,
        options: ConsumeOptions,
    ) -> None:
        self._http = http
        self._settler = settler
        self._topics = topics
        self._group = group
        self._options = options
        self._until_empty = options.until_empty or options.timeout_ms == 0
        self._held: deque[AsyncReceivedMessage] = deque()
        self._passed_on = 0
        self._asked = False
        self._last_s = 0.0
        self._extender = Extender(settler, options.receive.visibility_ms)
        self._closing = Lock()
        # a worker rings when there is more (True), and when there will be none (False)
        self._channel = Channel[bool](len(topics))
        self._workers: list[Worker] = []
        self._receiving: Http | None = None
        self._running = 0

    async def messages(
        self, open_ones: set[Consumption]
    ) -> AsyncGenerator[AsyncReceivedMessage, None]:
        """Yield messages; among ``open_ones`` until the loop is left."""
        open_ones.add(self)
        self._last_s = time.monotonic()
        try:
            while not self._is_over() and await self._fill():
                while self._held and not self._is_over():
                    self._passed_on += 1
                    yield self._held.popleft()
                    self._last_s = time.monotonic()
        finally:
            await self.aclose()
            open_ones.discard(self)

    async def aclose(self) -> None:
        """Stop, and give back what was not passed on: nothing waits for its visibility timeout."""
        async with self._closing:
            self._channel.close()
            if self._receiving is not None:
                self._receiving.finish()
                give_up_at_s = time.monotonic() + _LAST_ANSWER_S_MAX
                for worker in self._workers:
                    await worker.wait(max(0.0, give_up_at_s - time.monotonic()))
                await self._receiving.aclose()
            for worker in self._workers:
                await worker.stop()
            await self._extender.stop()
            await self._give_back()

    async def _give_back(self) -> None:
        held = list(self._held)
        self._held.clear()
        try:
            for topic, group, members in by_group(held):
                await self._settler.settle(
                    "nack", topic, group, receipts_of(members), **nack_details(0, None)
                )
        except GoqError:
            pass  # the node cannot be reached: the visibility timeout gives them back

    async def _fill(self) -> bool:
        """Get messages into ``_held``, perhaps none yet; return False when the loop is to end."""
        if self._options.before_wait is not None:
            await self._options.before_wait()
        wait_ms = self._wait_ms()
        if wait_ms is None:
            return False
        if not self._workers:
            self._start_workers()
        bells = await self._channel.take(None if self._until_empty else wait_ms / 1000)
        if self._options.after_wait is not None:
            await self._options.after_wait()
        self._running -= bells.count(False)
        return bool(self._held) or self._running > 0

    async def _receive(self, http: Http, topic: str) -> bool:
        options = self._options.receive
        if self._options.max is not None:
            left = self._options.max - self._passed_on - len(self._held)
            options = replace(options, max=max(1, min(options.max, left)))
        if self._until_empty:
            options = replace(options, wait_ms=0)
        batch = await receive(http, self._settler, topic, self._group, options)
        messages = list(batch.messages())
        if self._options.auto_extend:
            self._extender.watch(messages)
        self._held.extend(messages)
        return bool(messages)

    def _start_workers(self) -> None:
        self._receiving = http = self._http.fork(len(self._topics))
        self._running = len(self._topics)
        self._workers = [Worker(self._fetch, http, topic) for topic in self._topics]

    async def _fetch(self, http: Http, topic: str) -> None:
        """Receive from one topic until the loop ends, and only while the loop has nothing."""
        try:
            while not self._channel.closed:
                found = await self._receive(http, topic)
                if found:
                    await self._channel.put(True, until_done=True)
                elif self._until_empty:
                    await self._channel.put(False)
                    return
        except Exception as error:
            self._channel.fail(error)

    def _wait_ms(self) -> int | None:
        """Return how long to wait for messages, or None when that has been long enough."""
        wait_ms = self._options.receive.wait_ms
        if self._options.timeout_ms is None:
            return wait_ms
        left_ms = self._options.timeout_ms - int((time.monotonic() - self._last_s) * 1000)
        if left_ms <= 0 and self._asked:
            return None
        self._asked = True
        return max(0, min(wait_ms, left_ms))

    def _is_over(self) -> bool:
        if self._channel.closed:
            return True
        return self._options.max is not None and self._passed_on >= self._options.max
