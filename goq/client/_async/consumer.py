"""The loop over a group's messages: workers receive them, the caller takes them one by one."""

from __future__ import annotations

import contextlib
import logging
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
from goq.client.errors import SilentStream
from goq.client.retry import RequestFailure
from goq.errors import GoqError, Unavailable
from goq.http.client.process_fork import Owner

_log = logging.getLogger("goq.client")
_LAST_ANSWER_S_MAX: Final = 1.0
_EXHAUSTED_S: Final = 1.0
_SOUND_STREAM_S: Final = 1.0
_WATCH_MS: Final = 20_000
_WATCH_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class ConsumeOptions:
    """When the loop ends, and what it calls meanwhile.

    ``max_messages`` counts messages, ``until_empty`` ends the loop when no message is ready, and
    ``timeout_ms`` when none has come for so long. ``before_wait`` is called when all messages
    were yielded, ``after_wait`` before any of the next ones is.
    """

    receive: ReceiveOptions
    max_messages: int | None
    until_empty: bool
    timeout_ms: int | None
    auto_extend: bool
    before_wait: Callable[[], Awaitable[None]] | None
    after_wait: Callable[[], Awaitable[None]] | None


class Consumer:
    """One consume loop, with the messages that it received and has not yielded.

    Each topic has a worker, which waits for messages on connections of the loop. The loop may be
    left at any moment, by Ctrl-C too: it tells the node that it wants no more messages, reads what
    was sent before, and gives that back at once.

    Usually the node pushes messages over a stream, with ``prefetch`` as its credit. A stream whose
    connection breaks releases its leases. A loop that is left therefore ends its streams first, so
    that yielded messages stay leased. After a break, messages of the stream that were not yielded
    are dropped. If the caller holds all credit and wants more before it settles, the node is asked
    for more.

    Three kinds of loops ask for messages instead. One that ends when no message is ready: a stream
    never says so. One over several topics or nodes that ends after ``max_messages``: each stream
    would bring as many. One whose stream does not begin, because a proxy holds answers back until
    they end: leases would run out inside it.

    Where several nodes lead partitions of a topic, each has a stream, and messages are yielded as
    they come. No stream has more than its credit in the queue. A worker watches the leaders: it
    opens streams to new ones, and ends those to nodes that lead nothing any more.
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
        self._owner = Owner("loop")
        self._closing = Lock()
        # a worker puts True when there are more messages, False when there will be none
        self._channel = Channel[bool](len(topics))
        self._workers: list[Worker] = []
        self._uses_streams = not self._until_empty and (
            options.max_messages is None or len(topics) == 1
        )
        self._open_streams: list[DeliveryStream] = []
        self._was_silent = False
        self._receiving: Http | None = None
        self._running = 0

    async def messages(
        self, open_ones: set[Consumer]
    ) -> AsyncGenerator[AsyncReceivedMessage, None]:
        """Yield messages. The loop is in ``open_ones`` until it is left."""
        open_ones.add(self)
        self._last_s = time.monotonic()
        try:
            while not self._is_over() and await self._fill():
                while not self._is_over() and (message := self._take()) is not None:
                    self._passed_on += 1
                    yield message
                    self._owner.check()
                    self._last_s = time.monotonic()
        finally:
            await self.aclose()
            open_ones.discard(self)

    async def aclose(self) -> None:
        """Stop, and return unyielded messages, so that none waits for its visibility timeout."""
        if not self._owner.is_here:
            return  # streams and messages are the parent's
        async with self._closing:
            self._channel.close()
            if self._receiving is not None:
                for stream in list(self._open_streams):
                    await stream.end()
                    self._forget(stream)
                self._receiving.finish()
                give_up_at_s = time.monotonic() + _LAST_ANSWER_S_MAX
                for worker in self._workers:
                    await worker.wait(max(0.0, give_up_at_s - time.monotonic()))
                await self._receiving.aclose()
            for worker in self._workers:
                await worker.stop()
            for stream in list(self._open_streams):  # that began meanwhile
                self._forget(stream)
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
            pass  # no node answers: the messages come again after their visibility timeout

    async def _fill(self) -> bool:
        """Wait for messages in ``_held``, perhaps in vain; return False when the loop is to end."""
        if self._options.before_wait is not None:
            await self._options.before_wait()
        wait_ms = self._wait_ms()
        if wait_ms is None:
            return False
        if not self._workers:
            self._start_workers()
        wait_s = None if self._until_empty else wait_ms / 1000
        if self._open_streams:
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
        if self._uses_streams:
            # one for each stream, and one to grant credit and to end streams
            self._receiving = http = self._http.fork(
                len(self._topics) * limits.CLUSTER_NODES_MAX + 1
            )
            for topic in self._topics:
                self._start_stream(http, topic)
        else:
            self._receiving = http = self._http.fork(len(self._topics))
            self._workers = [Worker(self._fetch, http, topic) for topic in self._topics]

    def _start_stream(self, http: Http, topic: str, server: str | None = None) -> None:
        stream = DeliveryStream(http, topic, self._group, self._options.receive, server)
        self._open_streams.append(stream)
        self._settler.listeners.append(stream.settled)
        self._workers.append(Worker(self._follow, http, stream))

    def _forget(self, stream: DeliveryStream) -> None:
        with contextlib.suppress(ValueError):  # the other caller was first
            self._open_streams.remove(stream)
            self._settler.listeners.remove(stream.settled)

    async def _grant(self, wait_s: float) -> float:
        """Grant credit where the caller holds all of it; return how long to wait for messages."""
        for stream in list(self._open_streams):
            if stream.is_exhausted or (self._was_silent and stream.may_be_exhausted):
                await stream.more()
        if any(stream.may_be_exhausted for stream in self._open_streams):
            return min(wait_s, _EXHAUSTED_S)
        return wait_s

    async def _follow(self, http: Http, stream: DeliveryStream) -> None:
        """Read the streams of one topic, one after the other.

        Return when the loop ends, or when the node no longer leads a partition of the topic.
        """
        attempts = http.attempts()
        try:
            while stream.is_wanted and not self._channel.closed:
                left = (
                    None
                    if self._options.max_messages is None
                    else self._options.max_messages - self._passed_on
                )
                if left == 0:
                    return
                opened_s, is_first = inf, stream.server is None
                try:
                    await stream.open(left)
                    opened_s = time.monotonic()
                    if stream.is_of_cluster and left is not None:
                        await self._ask_all_instead(http, stream)
                        return
                    if stream.is_of_cluster and is_first:
                        self._workers.append(Worker(self._watch, http, stream.topic))
                    await self._pass_on(stream)
                except (GoqError, SilentStream) as caught:
                    if self._channel.closed:
                        return
                    error = caught.error if isinstance(caught, SilentStream) else caught
                    if isinstance(caught, SilentStream):
                        if is_first and await self._is_held_back(http, caught.server):
                            await self._poll_instead(http, stream)
                            return
                    elif is_first and opened_s == inf:
                        raise  # all retries are used up
                    if time.monotonic() - opened_s > _SOUND_STREAM_S:
                        attempts = http.attempts()
                    pause_s = attempts.pause_s(
                        RequestFailure(error, maybe_done=True), repeatable=True
                    )
                    if stream.is_wanted:
                        await self._withdraw(stream)
                    if pause_s is None and stream.is_wanted:
                        raise error from None
                    await sleep(pause_s or 0)
        except Exception as error:
            self._channel.fail(error)
        finally:
            if not stream.is_wanted:
                self._forget(stream)

    async def _is_held_back(self, http: Http, server: str) -> bool:
        """Return whether a node answers small requests, though its stream does not begin."""
        if not await http.is_answered(server):
            return False
        _log.warning(
            "no stream of %s began within %d s, though it answers: a proxy before it holds answers"
            " back. Polling instead, which is slower",
            server,
            limits.STREAM_BEGINS_MS // 1000,
        )
        return True

    async def _poll_instead(self, http: Http, stream: DeliveryStream) -> None:
        """Go on with long polls, whose answers end, and are thus passed on by every proxy."""
        await stream.abandon()
        self._forget(stream)
        await self._fetch(http, stream.topic)

    async def _ask_all_instead(self, http: Http, stream: DeliveryStream) -> None:
        """Go on without streams: each would bring ``max_messages``."""
        if await stream.end():
            with contextlib.suppress(Unavailable):  # it has ended
                await self._pass_on(stream)
        else:
            await stream.abandon()
        self._forget(stream)
        await self._fetch(http, stream.topic)

    async def _pass_on(self, stream: DeliveryStream) -> None:
        """Take the messages of a stream, until it breaks or ends."""
        async for deliveries in stream.deliveries():
            self._admit(AsyncDeliveryBatch(self._settler, stream.topic, self._group, deliveries))
            self._channel.offer(True)

    async def _watch(self, http: Http, topic: str) -> None:
        """Keep a stream to each leader of partitions of a topic, until the loop ends."""
        try:
            await http.learn(topic)
            while not self._channel.closed:
                leaders = http.cluster_map.leaders(topic)
                followed = {
                    f.server: f for f in self._open_streams if f.topic == topic and f.is_wanted
                }
                for server in leaders:
                    if server not in followed:
                        self._start_stream(http, topic, server)
                for stream in followed.values():
                    if stream.server not in leaders and leaders:
                        stream.is_wanted = False
                        await stream.end()
                await http.learn(topic, wait_ms=_WATCH_MS)
                await sleep(_WATCH_PAUSE_S)
        except Exception as error:
            self._channel.fail(error)

    async def _withdraw(self, stream: DeliveryStream) -> None:
        """Drop the messages of a broken stream that were not yielded, and return their leases.

        A node that noticed the break has done so already; one that was restarted has not.
        """
        taken: list[AsyncReceivedMessage] = []
        while (message := self._take()) is not None:
            taken.append(message)
        dropped: list[AsyncReceivedMessage] = []
        for message in taken:
            is_of_feed = stream.brought(message.topic, message.partition)
            (dropped if is_of_feed else self._held).append(message)
        self._channel.offer(True)
        for message in dropped:
            message.settled = True
        await self._give_back(dropped)

    async def _fetch(self, http: Http, topic: str) -> None:
        """Receive from one topic until the loop ends, and only while the loop has no message."""
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
