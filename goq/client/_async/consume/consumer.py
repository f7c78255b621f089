"""The loop over a group's messages: workers receive them, the caller takes them one by one."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from goq.client._async.consume.receive import ReceiveOptions
from goq.client._async.consume.receive_workers import ReceiveWorkers
from goq.client._async.consume.received_message import (
    AsyncReceivedMessage,
    extend_leases,
    give_back,
)
from goq.client._async.consume.settlement import Settler
from goq.client._async.http import Http
from goq.client._async.runtime import Lock
from goq.client.leases.lease_keeper import LeaseKeeper
from goq.client.leases.message_buffer import MessageBuffer
from goq.client.leases.prefetch import PrefetchWindow
from goq.client.protocol.topic_selection import TopicSelection
from goq.client.tracing.process_span import SpanScope, is_traced, process_scope
from goq.http.client.process_fork import Owner

_EXHAUSTED_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """When the loop ends, and what it calls meanwhile.

    ``max_messages`` counts messages, ``until_empty`` ends the loop when no message is ready, and
    ``timeout_ms`` when none has come for so long. ``before_wait`` is called when all messages
    were yielded, ``after_wait`` before any of the next ones is. ``before_end`` is called when no
    more messages come, while the leases of those that the caller has are still extended.
    ``open_spans``: if the program uses OpenTelemetry, a span is active while the caller has a
    message.
    """

    receive: ReceiveOptions
    max_messages: int | None
    until_empty: bool
    timeout_ms: int | None
    auto_extend: bool
    before_wait: Callable[[], Awaitable[None]] | None
    after_wait: Callable[[], Awaitable[None]] | None
    before_end: Callable[[], Awaitable[None]] | None
    wait_for_topics: bool
    open_spans: bool


class Consumer:
    """One consume loop.

    Each message is yielded with nearly its whole lease: one that waited is extended before, and
    dropped if its lease is lost. The lease keeper extends those that wait while the caller is busy.
    The loop receives as far ahead as its caller is fast.

    The loop may be left at any moment, by Ctrl-C too: it tells the node that it wants no more
    messages, reads what was sent before, and releases that at once.
    """

    def __init__(
        self,
        http: Http,
        settler: Settler,
        topics: TopicSelection,
        group: str,
        options: ConsumeOptions,
    ) -> None:
        self._settler = settler
        self._options = options
        self._until_empty = options.until_empty or options.timeout_ms == 0
        self._passed_on = 0
        self._passed_on_max = inf if options.max_messages is None else options.max_messages
        self._asked = False
        self._last_s = 0.0
        self._owner = Owner("loop")
        self._closing = Lock()
        self._buffer = MessageBuffer[AsyncReceivedMessage](keeps_taken=options.auto_extend)
        self._window = PrefetchWindow(options.receive.credit)
        self._workers = ReceiveWorkers(
            http,
            settler,
            topics,
            group,
            options.receive,
            self._buffer,
            self._window,
            self._left,
            until_empty=self._until_empty,
            wait_for_topics=options.wait_for_topics,
        )
        self._keeper = LeaseKeeper(
            http.options, http.cluster_map, self._buffer, self._workers.streams.now
        )
        self._was_silent = False
        self._scope: SpanScope | None = None

    def leave(self) -> None:
        """End the span of the message that the caller has: the caller has dropped the loop."""
        if self._scope is not None:
            self._scope.end()

    async def messages(
        self, open_ones: set[Consumer]
    ) -> AsyncGenerator[AsyncReceivedMessage, None]:
        """Yield messages. The loop is in ``open_ones`` until it is left."""
        open_ones.add(self)
        self._last_s = time.monotonic()
        try:
            while not self._is_over() and await self._fill():
                now_s = time.monotonic()
                while not self._is_over() and (message := self._buffer.take()) is not None:
                    if now_s > message.lease_time.fresh_until_s:
                        await self._renew(message)
                        now_s = time.monotonic()
                        if not message.lease_time.is_alive(now_s):
                            message.settled = True
                            continue
                    self._passed_on += 1
                    self._buffer.lent_s = lent_s = now_s
                    if self._options.open_spans and is_traced():
                        with process_scope(message) as self._scope:
                            yield message
                    else:
                        yield message
                    self._owner.check()
                    self._last_s = now_s = time.monotonic()
                    handled_s = now_s - lent_s
                    if handled_s > self._window.unnoted_s and self._window.note(handled_s):
                        await self._workers.streams.shrink()
                self._buffer.lent_s = None
        finally:
            await self.aclose()
            open_ones.discard(self)

    async def aclose(self) -> None:
        """Stop, and release unyielded messages, so that none waits for its visibility timeout."""
        if not self._owner.is_here:
            return  # streams and messages are the parent's
        async with self._closing:
            try:
                await self._workers.aclose()
                await give_back(self._settler, self._buffer.drain())
                if self._options.before_end is not None:
                    await self._options.before_end()
            finally:
                self._keeper.stop()

    async def _fill(self) -> bool:
        """Wait for messages, perhaps in vain; return False when the loop is to end."""
        if self._options.before_wait is not None:
            await self._options.before_wait()
        wait_ms = self._wait_ms()
        if wait_ms is None:
            return False
        if not self._workers.has_started:
            await self._workers.start()
            self._keeper.start()
        wait_s = None if self._until_empty else wait_ms / 1000
        if await self._workers.streams.grant(was_silent=self._was_silent):
            wait_s = min(wait_ms / 1000, _EXHAUSTED_S)
        self._was_silent = not await self._workers.wait(wait_s)
        if self._options.after_wait is not None:
            await self._options.after_wait()
        return bool(self._buffer) or self._workers.running > 0

    async def _renew(self, message: AsyncReceivedMessage) -> None:
        """Extend the lease of a message, and of those behind it in its topic."""
        self._buffer.lent_s = None
        behind = self._buffer.held(lambda topic, _: topic == message.topic)
        await extend_leases(self._settler, self._buffer, [message, *behind])

    def _left(self) -> int | None:
        """Return how many messages the loop is still to yield, None for no bound."""
        if self._options.max_messages is None:
            return None
        return self._options.max_messages - self._passed_on

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
        return self._passed_on >= self._passed_on_max or self._workers.channel.closed
