"""The workers of a consume loop: they receive messages of its topics into its buffer."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Final

from goq import limits
from goq.client._async.channel import Channel
from goq.client._async.consume.delivery_stream import DeliveryStream
from goq.client._async.consume.open_streams import OpenStreams
from goq.client._async.consume.receive import AsyncDeliveryBatch, ReceiveOptions, receive
from goq.client._async.consume.received_message import AsyncReceivedMessage, give_back
from goq.client._async.consume.settlement import Settler
from goq.client._async.http import Http
from goq.client._async.log.topic_discovery import TopicDiscovery
from goq.client._async.log.topic_wait import pause_for_topic
from goq.client._async.runtime import ArrivalClock, Worker, sleep
from goq.client.errors import SilentStream
from goq.client.leases.message_buffer import LeaseTime, MessageBuffer
from goq.client.leases.prefetch import PrefetchWindow
from goq.client.protocol import routes
from goq.client.protocol.frames import PartitionDelivery
from goq.client.protocol.request_builder import session_header
from goq.client.protocol.topic_selection import TopicSelection
from goq.client.retry import RequestFailure
from goq.errors import GoqError, TopicNotFound, Unavailable

_log = logging.getLogger("goq.client")
_LAST_ANSWER_S_MAX: Final = 1.0
_SOUND_STREAM_S: Final = 1.0
_WATCH_MS: Final = 20_000
_WATCH_PAUSE_S: Final = 0.1
_LEASE_S_MIN, _LEASE_S_MAX = 1.0, 30.0


class ReceiveWorkers:
    """Workers that receive the topics of one loop, on connections of the loop.

    Usually the node pushes messages over a stream, with the prefetch window as its credit. A stream
    whose connection breaks releases its leases. A loop that is left therefore ends its streams
    first, so that yielded messages stay leased. After a break, messages of the stream that were not
    yielded are dropped.

    Three kinds of loops ask for messages instead. One that ends when no message is ready: a stream
    never says so. One over several topics or nodes that ends after a number of messages: each
    stream would bring as many. One whose stream does not begin, because a proxy holds answers back
    until they end: leases would run out inside it.

    Where several nodes lead partitions of a topic, each has a stream, and messages are yielded as
    they come. A worker watches the leaders: it opens streams to new ones, and ends those to nodes
    that lead nothing any more.

    ``left`` returns how many messages the loop is still to yield, None for no bound.
    """

    def __init__(
        self,
        http: Http,
        settler: Settler,
        topics: TopicSelection,
        group: str,
        options: ReceiveOptions,
        buffer: MessageBuffer[AsyncReceivedMessage],
        window: PrefetchWindow,
        left: Callable[[], int | None],
        *,
        until_empty: bool,
        wait_for_topics: bool,
    ) -> None:
        self._http = http
        self._settler = settler
        self._topics = topics
        self._discovery = TopicDiscovery(http, topics)
        self._group = group
        self._options = replace(options, session_id=None)  # the loop has its own
        self._buffer = buffer
        self._window = window
        self.streams = OpenStreams(settler, buffer, window)
        self._left = left
        self._until_empty = until_empty
        self._waits_for_topics = wait_for_topics and not until_empty
        # a worker puts True when there are more messages, False when there will be none
        self._topics_max = len(topics.names) + bool(topics.patterns) * limits.PATTERN_TOPICS_MAX
        self.channel = Channel[bool](self._topics_max)
        self.running = 0
        """How many workers may still bring messages."""
        self._workers: list[Worker] = []
        self._session_id = os.urandom(8).hex()
        self._polled: set[str] = set()
        self._receiving: Http | None = None
        self._arrivals: ArrivalClock | None = None

    @property
    def has_started(self) -> bool:
        """Whether ``start`` was called."""
        return self._receiving is not None

    async def start(self) -> None:
        """Start to receive. Raises ``TopicNotFound`` if no topic is there, nor waited for."""
        topics = list(self._topics.names)
        if self._topics.patterns and not self._waits_for_topics:
            topics += [name for name in await self._discovery.new_topics() if name not in topics]
            if not topics and (error := self._discovery.missing()):
                raise error
        self.running = len(topics)
        self._arrivals = ArrivalClock()
        polls = self._until_empty or (self._left() is not None and not self._topics.is_one_name)
        # one for each stream, and one to grant credit and to end streams
        connections_max = self._topics_max * (1 if polls else limits.CLUSTER_NODES_MAX) + 1
        self._receiving = http = self._http.fork(connections_max, self._session_id)
        begin = self._start_polling if polls else self._start_stream
        for topic in topics:
            begin(http, topic)
        if self._topics.patterns and not self._until_empty:
            self.running += 1
            self._workers.append(Worker(self._discover, http, begin))

    async def _discover(self, http: Http, begin: Callable[[Http, str], None]) -> None:
        """Receive from topics of a pattern as they are created, until the loop ends."""
        try:
            while not self.channel.closed:
                for topic in await self._discovery.new_topics():
                    if topic not in self._topics.names:
                        begin(http, topic)
                if await self.channel.is_closed_within(self._discovery.pause_s):
                    return
        except Exception as error:
            self.channel.fail(error)

    async def aclose(self) -> None:
        """Stop receiving. Messages that the node had sent are in the buffer then.

        Interrupted itself, it breaks the connections, and the node releases the leases.
        """
        self.channel.close()
        try:
            if self._receiving is not None:
                await self._finish(self._receiving)
            for worker in self._workers:
                await worker.stop()
        except BaseException:
            if self._receiving is not None:
                self._receiving.abort()
            for worker in self._workers:
                worker.cancel()
            raise
        finally:
            for stream in self.streams.now():
                self.streams.remove(stream)
            if self._arrivals is not None:
                self._arrivals.stop()
        for topic in self._polled:
            await self._leave(topic)

    async def _finish(self, http: Http) -> None:
        """End the streams and long polls, and read what the node sent before."""
        for stream in self.streams.now():
            await stream.end()
            self.streams.remove(stream)
        http.finish()
        give_up_at_s = time.monotonic() + _LAST_ANSWER_S_MAX
        for worker in self._workers:
            await worker.wait(max(0.0, give_up_at_s - time.monotonic()))
        await http.aclose()

    async def _leave(self, topic: str) -> None:
        """Leave the group: without a stream nothing else tells the node that the loop has ended."""
        target = routes.member(topic, self._group, self._options.consumer or "")
        header = session_header(self._session_id)
        with contextlib.suppress(GoqError):  # it is no member, or its session timeout ends that
            await self._http.ask(self._http.cluster_map.current, "DELETE", target, extra=[header])

    async def wait(self, timeout_s: float | None) -> bool:
        """Wait until a worker has something to tell; return False after ``timeout_s``."""
        bells = await self.channel.take(timeout_s)
        self.running -= bells.count(False)
        return bool(bells)

    async def _receive(self, http: Http, topic: str) -> bool:
        wanted = min(self._options.max_messages, self._window.size)
        left = self._left()
        if left is not None:
            wanted = max(1, min(wanted, left - len(self._buffer)))
        options = replace(self._options, max_messages=wanted)
        if self._until_empty:
            options = replace(options, wait_ms=0)
        batch = await receive(http, self._settler, topic, self._group, options)
        return self._admit(batch)

    def _admit(self, batch: AsyncDeliveryBatch) -> bool:
        assert self._arrivals is not None
        since_s = self._arrivals.since_s()
        for delivery in batch.deliveries:
            lease_time = LeaseTime(self._lease_s(delivery), since_s)
            self._buffer.add(list(batch.messages_of(delivery, lease_time)), lease_time)
        return bool(batch.deliveries)

    def _lease_s(self, delivery: PartitionDelivery) -> float:
        if delivery.lease_ms is not None:
            return delivery.lease_ms / 1000
        if self._options.visibility_ms is not None:
            return self._options.visibility_ms / 1000
        by_clocks_s = delivery.lease_until / 1_000_000 - time.time()
        return min(max(by_clocks_s, _LEASE_S_MIN), _LEASE_S_MAX)

    def _start_polling(self, http: Http, topic: str) -> None:
        self._workers.append(Worker(self._fetch, http, topic))

    def _start_stream(self, http: Http, topic: str, server: str | None = None) -> None:
        stream = DeliveryStream(http, topic, self._group, self._options, server)
        self.streams.add(stream)
        self._workers.append(Worker(self._follow, http, stream))

    async def _follow(self, http: Http, stream: DeliveryStream) -> None:
        """Read the streams of one topic, one after the other.

        Return when the loop ends, or when the node no longer leads a partition of the topic.
        """
        attempts = http.attempts()
        began_s = time.monotonic()
        try:
            while stream.is_wanted and not self.channel.closed:
                left = self._left()
                if left is not None and left <= 0:
                    return
                opened_s, is_first = inf, stream.server is None
                try:
                    await stream.open(self.streams.share, left)
                    opened_s = time.monotonic()
                    if stream.is_of_cluster and left is not None:
                        await self._ask_all_instead(http, stream)
                        return
                    if stream.is_of_cluster and is_first:
                        self._workers.append(Worker(self._watch, http, stream.topic))
                    await self._pass_on(stream)
                    await self.channel.put(True, until_done=True)  # the limit is reached
                except SilentStream as silent:
                    if self.channel.closed:
                        return
                    if is_first and await self._is_held_back(http, silent.server):
                        await self._poll_instead(http, stream)
                        return
                    error: GoqError = silent.error
                except GoqError as caught:
                    if self.channel.closed:
                        return
                    if is_first and opened_s == inf:
                        if self._is_gone(caught, stream.topic):
                            stream.is_wanted = False
                            return
                        await self._await_topic(http, caught, began_s)
                        continue
                    if self._may_come_back(caught, stream.topic):
                        await self._withdraw(stream)
                        stream.is_wanted = False  # the watch opens others if the topic is there
                        return
                    error = caught
                else:
                    continue
                if time.monotonic() - opened_s > _SOUND_STREAM_S:
                    attempts = http.attempts()
                failure = RequestFailure(error, maybe_done=True)
                pause_s = attempts.pause_s(failure, repeatable=True)
                if stream.is_wanted:
                    await self._withdraw(stream)
                    if pause_s is None:
                        raise error
                await sleep(pause_s or 0)
        except Exception as error:
            self.channel.fail(error)
        finally:
            if not stream.is_wanted:
                self.streams.remove(stream)

    def _is_gone(self, error: GoqError, topic: str) -> bool:
        """Return whether a topic of a pattern was deleted; it begins anew if it comes back."""
        if not isinstance(error, TopicNotFound) or topic in self._topics.names:
            return False
        self._discovery.forget(topic)
        return True

    def _may_come_back(self, error: GoqError, topic: str) -> bool:
        """Return whether a topic was deleted that the loop goes on with if it is made again."""
        is_expected = self._waits_for_topics or topic not in self._topics.names
        return isinstance(error, TopicNotFound) and is_expected

    async def _await_topic(self, http: Http, error: GoqError, since_s: float) -> None:
        """Pause, if the topic is still to be created; raise ``error`` if it is another one."""
        if not (isinstance(error, TopicNotFound) and self._waits_for_topics):
            raise error
        await pause_for_topic(http, error, since_s)

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
        self.streams.remove(stream)
        await self._fetch(http, stream.topic)

    async def _ask_all_instead(self, http: Http, stream: DeliveryStream) -> None:
        """Go on without streams: each would bring all messages that are left."""
        if await stream.end():
            with contextlib.suppress(Unavailable):  # it has ended
                await self._pass_on(stream)
        else:
            await stream.abandon()
        self.streams.remove(stream)
        await self._fetch(http, stream.topic)

    async def _pass_on(self, stream: DeliveryStream) -> None:
        """Take the messages of a stream, until it breaks or ends."""
        async for deliveries in stream.deliveries():
            self._admit(AsyncDeliveryBatch(self._settler, stream.topic, self._group, deliveries))
            stream.is_arriving = False  # before the loop is told, which may want more at once
            self.channel.offer(True)

    async def _watch(self, http: Http, topic: str) -> None:
        """Keep a stream to each leader of partitions of a topic, until the loop ends.

        A topic of a pattern that was deleted begins anew if it comes back.
        """
        try:
            await http.learn(topic)
            while not self.channel.closed:
                leaders = http.cluster_map.leaders(topic)
                followed = {
                    f.server: f for f in self.streams.now() if f.topic == topic and f.is_wanted
                }
                for server in leaders:
                    if server not in followed:
                        self._start_stream(http, topic, server)
                for stream in followed.values():
                    if stream.server not in leaders and leaders:
                        stream.is_wanted = False
                        await stream.end()
                await http.learn(topic, wait_ms=_WATCH_MS)
                if topic not in self._topics.names and not http.cluster_map.knows(topic):
                    await self._abandon(topic)
                    return
                await sleep(_WATCH_PAUSE_S)
        except Exception as error:
            self.channel.fail(error)

    async def _abandon(self, topic: str) -> None:
        """End the streams of a topic of a pattern that was deleted."""
        for stream in self.streams.now():
            if stream.topic == topic:
                stream.is_wanted = False
                await stream.end()
        self._discovery.forget(topic)

    async def _withdraw(self, stream: DeliveryStream) -> None:
        """Drop the messages of a broken stream that were not yielded, and return their leases.

        A node that noticed the break has done so already; one that was restarted has not.
        """
        dropped = self._buffer.drain(stream.brought)
        self.channel.offer(True)
        for message in dropped:
            message.settled = True
        await give_back(self._settler, dropped)

    async def _fetch(self, http: Http, topic: str) -> None:
        """Receive from one topic until the loop ends, and only while the loop has no message."""
        self._polled.add(topic)
        began_s = time.monotonic()
        try:
            while not self.channel.closed:
                try:
                    found = await self._receive(http, topic)
                except TopicNotFound as error:
                    if self._is_gone(error, topic):
                        if self._until_empty:
                            await self.channel.put(False)
                        return
                    await self._await_topic(http, error, began_s)
                    continue
                if found:
                    await self.channel.put(True, until_done=True)
                elif self._until_empty:
                    await self.channel.put(False)
                    return
        except Exception as error:
            self.channel.fail(error)
