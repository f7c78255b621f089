"""The loop over a group's messages."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from goq import limits
from goq.client._async.channel import Channel
from goq.client._async.http import Http
from goq.client._async.receive import AsyncDeliveryBatch, DeliveryStream, ReceiveOptions, receive
from goq.client._async.runtime import Lock, Worker, sleep
from goq.client._async.settlement import (
    AsyncReceivedMessage,
    LeaseExtender,
    Settler,
    by_group,
    nack_details,
    receipts_of,
)
from goq.client.retry import RequestFailure
from goq.errors import GoqError, Unavailable

_LAST_ANSWER_S_MAX: Final = 1.0
_EXHAUSTED_S: Final = 1.0
_SOUND_STREAM_S: Final = 1.0
_WATCH_MS: Final = 20_000
_WATCH_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """When the loop ends, and what it does meanwhile.

    ``max_messages`` counts messages, ``until_empty`` ends the loop when no message is ready, and
    ``timeout_ms`` when none has come for so long. ``before_wait`` is called when all that
    came has been passed on, ``after_wait`` when more may have come and none of it is passed on.
    """

    receive: ReceiveOptions
    max_messages: int | None
    until_empty: bool
    timeout_ms: int | None
    auto_extend: bool
    before_wait: Callable[[], Awaitable[None]] | None
    after_wait: Callable[[], Awaitable[None]] | None


class Consumer:
    """One loop, and what it was given but has not passed on.

    Each topic has a worker, which waits for messages on connections that end with the loop. So
    the loop may be left at any moment, by Ctrl-C too: the node is told that nothing more is
    wanted, the worker hears what it was handed until then, and that goes back at once.

    The node pushes, with as much credit as a batch. Its streams end with their connections, and
    give back what is in flight; so a loop that is left ends them first, for what it has passed on
    to stay leased. Where a broken one was, what came over it and was not passed on is dropped. When
    all credit is with the user, who wants to go on before settling, the node is asked for more.

    A loop that is to end when nothing is ready asks for messages instead, as a stream never says
    that there are none; so does one over several topics or several nodes that is to end after
    ``max_messages``, as the streams would each bring so many.

    Where several nodes lead partitions of a topic, each of them has a stream, and what comes is
    passed on as it came: none has more than its credit in the queue. A worker waits for others to
    lead; then streams begin with these, and end with those that lead no more.
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
        self._extender = LeaseExtender(settler, options.receive.visibility_ms)
        self._closing = Lock()
        # a worker rings when there is more (True), and when there will be none (False)
        self._channel = Channel[bool](len(topics))
        self._workers: list[Worker] = []
        self._streams = not self._until_empty and (options.max_messages is None or len(topics) == 1)
        self._feeds: list[DeliveryStream] = []
        self._was_silent = False
        self._receiving: Http | None = None
        self._running = 0

    async def messages(
        self, open_ones: set[Consumer]
    ) -> AsyncGenerator[AsyncReceivedMessage, None]:
        """Yield messages; among ``open_ones`` until the loop is left."""
        open_ones.add(self)
        self._last_s = time.monotonic()
        try:
            while not self._is_over() and await self._fill():
                while not self._is_over() and (message := self._take()) is not None:
                    self._passed_on += 1
                    yield message
                    self._last_s = time.monotonic()
        finally:
            await self.aclose()
            open_ones.discard(self)

    async def aclose(self) -> None:
        """Stop, and give back what was not passed on: nothing waits for its visibility timeout."""
        async with self._closing:
            self._channel.close()
            if self._receiving is not None:
                for feed in list(self._feeds):
                    await feed.end()
                    self._forget(feed)
                self._receiving.finish()
                give_up_at_s = time.monotonic() + _LAST_ANSWER_S_MAX
                for worker in self._workers:
                    await worker.wait(max(0.0, give_up_at_s - time.monotonic()))
                await self._receiving.aclose()
            for worker in self._workers:
                await worker.stop()
            for feed in list(self._feeds):  # that began meanwhile
                self._forget(feed)
            await self._extender.stop()
            await self._give_back(list(self._held))
            self._held.clear()

    async def _give_back(self, held: Sequence[AsyncReceivedMessage]) -> None:
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
        wait_s = None if self._until_empty else wait_ms / 1000
        if self._feeds:
            wait_s = await self._grant(wait_ms / 1000)
        bells = await self._channel.take(wait_s)
        self._was_silent = not bells
        if self._options.after_wait is not None:
            await self._options.after_wait()
        self._running -= bells.count(False)
        return bool(self._held) or self._running > 0

    async def _receive(self, http: Http, topic: str) -> bool:
        options = self._options.receive
        if self._options.max_messages is not None:
            left = self._options.max_messages - self._passed_on - len(self._held)
            options = replace(options, max_messages=max(1, min(options.max_messages, left)))
        if self._until_empty:
            options = replace(options, wait_ms=0)
        batch = await receive(http, self._settler, topic, self._group, options)
        return self._admit(batch)

    def _admit(self, batch: AsyncDeliveryBatch) -> bool:
        messages = list(batch.messages())
        if self._options.auto_extend:
            self._extender.watch(messages)
        self._held.extend(messages)
        return bool(messages)

    def _take(self) -> AsyncReceivedMessage | None:
        try:
            return self._held.popleft()
        except IndexError:  # a worker may have taken back the last
            return None

    def _start_workers(self) -> None:
        self._running = len(self._topics)
        if self._streams:
            # more for the other nodes, to ask for credit, and to say that enough has come
            self._receiving = http = self._http.fork(
                len(self._topics) * limits.CLUSTER_NODES_MAX + 1
            )
            for topic in self._topics:
                self._start_feed(http, topic)
        else:
            self._receiving = http = self._http.fork(len(self._topics))
            self._workers = [Worker(self._fetch, http, topic) for topic in self._topics]

    def _start_feed(self, http: Http, topic: str, server: str | None = None) -> None:
        feed = DeliveryStream(http, topic, self._group, self._options.receive, server)
        self._feeds.append(feed)
        self._settler.listeners.append(feed.settled)
        self._workers.append(Worker(self._follow, http, feed))

    def _forget(self, feed: DeliveryStream) -> None:
        with contextlib.suppress(ValueError):  # whoever is second has nothing to do
            self._feeds.remove(feed)
            self._settler.listeners.remove(feed.settled)

    async def _grant(self, wait_s: float) -> float:
        """Grant more where all credit is with the user; return how long to wait for messages."""
        for feed in list(self._feeds):
            if feed.is_exhausted or (self._was_silent and feed.may_be_exhausted):
                await feed.more()
        if any(feed.may_be_exhausted for feed in self._feeds):
            return min(wait_s, _EXHAUSTED_S)
        return wait_s

    async def _follow(self, http: Http, feed: DeliveryStream) -> None:
        """Take what is pushed from one topic, over one stream after another.

        Until the loop ends, or the node is no longer one to be asked.
        """
        attempts = http.attempts()
        try:
            while feed.is_wanted and not self._channel.closed:
                left = (
                    None
                    if self._options.max_messages is None
                    else self._options.max_messages - self._passed_on
                )
                if left == 0:
                    return
                opened_s, is_first = inf, feed.server is None
                try:
                    await feed.open(left)
                    opened_s = time.monotonic()
                    if feed.is_of_cluster and left is not None:
                        await self._ask_all_instead(http, feed)
                        return
                    if feed.is_of_cluster and is_first:
                        self._workers.append(Worker(self._watch, http, feed.topic))
                    await self._pass_on(feed)
                except GoqError as error:
                    if self._channel.closed:
                        return
                    if is_first and opened_s == inf:
                        raise  # it was tried for as long as it may be
                    if time.monotonic() - opened_s > _SOUND_STREAM_S:
                        attempts = http.attempts()
                    pause_s = attempts.pause_s(
                        RequestFailure(error, maybe_done=True), repeatable=True
                    )
                    if feed.is_wanted:
                        await self._withdraw(feed)
                    if pause_s is None and feed.is_wanted:
                        raise
                    await sleep(pause_s or 0)
        except Exception as error:
            self._channel.fail(error)
        finally:
            if not feed.is_wanted:
                self._forget(feed)

    async def _ask_all_instead(self, http: Http, feed: DeliveryStream) -> None:
        """Go on without streams, of which each would bring ``max_messages``."""
        if await feed.end():
            with contextlib.suppress(Unavailable):  # it has ended
                await self._pass_on(feed)
        else:
            await feed.abandon()
        self._forget(feed)
        await self._fetch(http, feed.topic)

    async def _pass_on(self, feed: DeliveryStream) -> None:
        """Take what comes over a stream, until it breaks or ends."""
        async for deliveries in feed.deliveries():
            self._admit(AsyncDeliveryBatch(self._settler, feed.topic, self._group, deliveries))
            self._channel.offer(True)

    async def _watch(self, http: Http, topic: str) -> None:
        """Have a stream with each node that leads partitions of a topic, until the loop ends."""
        try:
            await http.learn(topic)
            while not self._channel.closed:
                leaders = http.cluster_map.leaders(topic)
                followed = {f.server: f for f in self._feeds if f.topic == topic and f.is_wanted}
                for server in leaders:
                    if server not in followed:
                        self._start_feed(http, topic, server)
                for feed in followed.values():
                    if feed.server not in leaders and leaders:
                        feed.is_wanted = False
                        await feed.end()
                await http.learn(topic, wait_ms=_WATCH_MS)
                await sleep(_WATCH_PAUSE_S)
        except Exception as error:
            self._channel.fail(error)

    async def _withdraw(self, feed: DeliveryStream) -> None:
        """Drop what came over a stream that broke and was not passed on.

        The node has given it back already if it noticed; a node that was started anew has not.
        """
        taken: list[AsyncReceivedMessage] = []
        while (message := self._take()) is not None:
            taken.append(message)
        dropped: list[AsyncReceivedMessage] = []
        for message in taken:
            is_of_feed = feed.brought(message.topic, message.partition)
            (dropped if is_of_feed else self._held).append(message)
        self._channel.offer(True)
        for message in dropped:
            message.settled = True
        await self._give_back(dropped)

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
        return (
            self._options.max_messages is not None and self._passed_on >= self._options.max_messages
        )
