"""The client: everything a program can ask of goq, on one object."""

from __future__ import annotations

import os
import socket
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from dataclasses import replace
from types import TracebackType

from goq import limits
from goq.client._async.admin import AsyncAdmin
from goq.client._async.consumer import ConsumeOptions, Consumer
from goq.client._async.http import Http, HttpOptions
from goq.client._async.message_admin import AsyncTracing
from goq.client._async.producer import AsyncProducer, ProducerOptions
from goq.client._async.publisher import DirectPublisher, Publisher
from goq.client._async.receive import AsyncDeliveryBatch, ReceiveOptions, receive
from goq.client._async.replay import AsyncReplays
from goq.client._async.settlement import (
    AsyncReceivedMessage,
    Settler,
    by_group,
    extend_details,
    nack_details,
    receipts_of,
)
from goq.client._async.topic_reader import LogRange, OnDamage, TopicReader, read, read_events
from goq.client.arguments import (
    Duration,
    HeadersLike,
    MessageLike,
    Time,
    as_message,
    as_messages,
    check_acks,
    wait_ms,
)
from goq.client.delivery_options import DeliveryOptions
from goq.client.messages import (
    FailedReceipt,
    LogMessage,
    Published,
    PublishedBatch,
    ReadBatch,
    Settled,
)
from goq.client.retry import BackoffPolicy
from goq.client.tracing.trace_context import with_current_span
from goq.clock import Clock, SystemClock
from goq.errors import InvalidInput
from goq.model import Receipt, check_client_id
from goq.units import format_time_us, parse_duration_ms, parse_size_bytes, parse_time_us

Receipts = Iterable[str | Receipt]


class AsyncClient(AsyncAdmin, AsyncReplays, AsyncTracing):
    """A client of one node or of the nodes of a cluster.

    ``timeout`` bounds the wait for each answer, ``retries`` how long a failing request is tried
    again in all, counted from its first failure (0: not at all). ``client_id`` is what this client
    is called where somebody asks who published or received a message; default its host and process.
    A call may name a consumer otherwise. Every error is a ``GoqError``.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "http://127.0.0.1:8080",
        *,
        token: str | None = None,
        timeout: Duration = "30s",
        client_id: str | None = None,
        retries: Duration = "10s",
        clock: Clock | None = None,
    ) -> None:
        urls = [servers] if isinstance(servers, str) else list(servers)
        if not urls:
            raise InvalidInput("a client needs at least one server", field="servers")
        self.client_id = check_client_id(
            _own_name() if client_id is None else client_id, field="client_id"
        )
        self._http = Http(
            HttpOptions(
                [url.rstrip("/") for url in urls],
                token,
                parse_duration_ms(timeout, field="timeout"),
                BackoffPolicy(parse_duration_ms(retries, field="retries")),
                self.client_id,
            )
        )
        self._clock = clock or SystemClock()
        self._settler = Settler(self._http)
        self._direct: dict[tuple[str, str | None], DirectPublisher] = {}
        self._consumptions: set[Consumer] = set()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give back what open loops hold, then close all connections."""
        for consumption in list(self._consumptions):
            await consumption.aclose()
        await self._http.aclose()

    async def publish(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        priority: str | int | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        ttl: Duration | None = None,
        tenant: str | None = None,
        dedup_id: str | None = None,
        partition: int | None = None,
        acks: str | None = None,
    ) -> Published:
        """Publish one message; return once the node has stored it.

        Exactly once, however often the request is sent. Calls at the same moment share one.

        ``priority`` names a lane of the topic or gives its number. ``delay`` or ``deliver_at``
        hold the message back. ``ttl`` is how long it may wait from when it is ready. ``tenant``
        is whose turn it takes. A second message with the same ``dedup_id`` within the topic's
        window is not stored: the answer names the first.

        In a cluster enough nodes have the message then that any one may be lost: ``acks`` is
        ``quorum``. With ``leader`` one node has it, and it is lost with that one.

        Where an OpenTelemetry span is active and ``headers`` have no ``traceparent``, the message
        carries that span's.
        """
        message = with_current_span(as_message(value, key, headers))
        options = DeliveryOptions(priority, delay, deliver_at, ttl, tenant, dedup_id)
        return await self._direct_to(topic, acks).publish(message, partition, options)

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[MessageLike],
        *,
        compress: bool = False,
        acks: str | None = None,
    ) -> PublishedBatch:
        """Publish messages in their order; return once the node has stored them all.

        When it raises, the error's note says how many were stored: the first ones.
        """
        direct = self._direct_to(topic, acks)
        return await direct.publish_many(as_messages(messages), compress=compress)

    def producer(
        self,
        topic: str,
        *,
        batch: int = 1000,
        batch_bytes: str | int = "1MiB",
        linger: Duration = "5ms",
        compress: bool = False,
        partition: int | None = None,
        acks: str | None = None,
        on_published: Callable[[PublishedBatch], None] | None = None,
    ) -> AsyncProducer:
        """Return a producer: the fast way to publish much. Close it, or use it in ``with``."""
        options = ProducerOptions(
            batch,
            parse_size_bytes(batch_bytes, field="batch_bytes"),
            parse_duration_ms(linger, field="linger"),
            compress,
        )
        publisher = Publisher(self._http, topic, partition=partition, acks=check_acks(acks))
        return AsyncProducer(publisher, options, on_published)

    async def read(
        self,
        topic: str,
        *,
        partition: int,
        offset: int | None = None,
        from_time: Time | None = None,
        to_time: Time | None = None,
        limit: int | None = None,
        bytes_max: int | None = None,
        wait: Duration | None = None,
        background: bool = False,
        include_deleted: bool = False,
    ) -> ReadBatch:
        """Return a piece of one partition's log; ``wait`` for one if there is none yet.

        With times, it holds the messages from ``offset`` on that were appended at or after
        ``from_time`` and before ``to_time``. Read on from ``next`` until it has reached ``end``;
        a piece may be empty before. In the ``background`` live traffic goes first. With
        ``include_deleted`` it begins with what retention has moved into the archive.

        A piece has up to ``limit`` messages: 10,000 by default, which is the most, but with
        ``bytes_max`` as many as so many bytes hold.
        """
        span = self._span(offset, from_time, to_time, background)
        span = replace(span, include_deleted=include_deleted)
        if limit is None and bytes_max is None:
            limit = limits.READ_MESSAGES_MAX
        return await read(
            self._http,
            topic,
            partition,
            span,
            limit=limit,
            bytes_max=bytes_max,
            wait_ms=wait_ms(wait),
        )

    async def read_events(
        self,
        topic: str,
        *,
        partition: int,
        sequence: int = 0,
        background: bool = False,
        include_deleted: bool = False,
    ) -> ReadBatch:
        """Return a piece of one partition's events, as frames; offsets are their sequences.

        ``background`` and ``include_deleted`` are as in :meth:`read`.
        """
        span = LogRange(sequence, background=background, include_deleted=include_deleted)
        return await read_events(self._http, topic, partition, span)

    def read_log(
        self,
        topic: str,
        *,
        partition: int | None = None,
        from_offset: int | None = None,
        from_time: Time | None = None,
        to_time: Time | None = None,
        follow: bool = False,
        on_damage: OnDamage | None = None,
        before_wait: Callable[[], Awaitable[None]] | None = None,
        background: bool = False,
    ) -> AsyncIterator[LogMessage]:
        """Yield the messages of all partitions, or of one, merged by append time.

        From the beginning of the log where nothing else is said, to its end as it is now, or
        with ``follow`` for ever.
        With times, exactly the messages appended at or after ``from_time`` and before ``to_time``.
        In the ``background`` the node reads only as fast as its live traffic leaves room for.
        Damaged messages go to ``on_damage``, or raise ``CorruptData``. ``before_wait`` is called
        when all that came was passed on.
        """
        span = self._span(from_offset, from_time, to_time, background)
        log = TopicReader(
            self._http,
            topic,
            partition,
            span,
            follow=follow,
            on_damage=on_damage,
            before_wait=before_wait,
        )
        return log.messages()

    def consume(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        max_messages: int | None = None,
        prefetch: int = 100,
        wait: Duration = "20s",
        visibility: Duration | None = None,
        consumer: str | None = None,
        until_empty: bool = False,
        timeout: Duration | None = None,
        auto_extend: bool = False,
        before_wait: Callable[[], Awaitable[None]] | None = None,
        after_wait: Callable[[], Awaitable[None]] | None = None,
    ) -> AsyncGenerator[AsyncReceivedMessage, None]:
        """Yield messages of a group as they become ready, ``prefetch`` in flight at most.

        Each is yours until its visibility timeout: ``ack`` it, or it comes again. The loop ends
        after ``max_messages``, when none is ready (``until_empty``), or when none has come for
        ``timeout``. When it is left early, what was not yielded yet is given back at once.
        ``auto_extend`` renews the leases of what is not settled for as long as the loop lasts.
        ``before_wait`` is called when all that came was passed on, the moment to settle it, and
        ``after_wait`` before any of what came then is.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        if not names:
            raise InvalidInput("consuming needs at least one topic", field="topics")
        options = ConsumeOptions(
            self._receive_options(prefetch, wait, visibility, consumer),
            max_messages,
            until_empty,
            None if timeout is None else parse_duration_ms(timeout, field="timeout"),
            auto_extend,
            before_wait,
            after_wait,
        )
        if options.receive.wait_ms == 0 and not until_empty:
            raise InvalidInput("a loop that does not wait asks without pause", field="wait")
        consumption = Consumer(self._http, self._settler, names, group, options)
        return consumption.messages(self._consumptions)

    async def receive(
        self,
        topic: str,
        group: str,
        *,
        max_messages: int = 100,
        wait: Duration | None = None,
        visibility: Duration | None = None,
        consumer: str | None = None,
    ) -> list[AsyncReceivedMessage]:
        """Return up to ``max_messages`` that are ready, after ``wait`` perhaps none."""
        batch = await self.receive_batch(
            topic,
            group,
            max_messages=max_messages,
            wait=wait,
            visibility=visibility,
            consumer=consumer,
        )
        return list(batch.messages())

    async def receive_batch(
        self,
        topic: str,
        group: str,
        *,
        max_messages: int = 1000,
        wait: Duration | None = None,
        visibility: Duration | None = None,
        consumer: str | None = None,
    ) -> AsyncDeliveryBatch:
        """Return messages unsplit: the fast form of ``receive``."""
        options = self._receive_options(max_messages, wait, visibility, consumer)
        return await receive(self._http, self._settler, topic, group, options)

    async def ack(self, topic: str, group: str, receipts: Receipts) -> Settled:
        """Mark messages as done."""
        return await self._settler.settle("ack", topic, group, _texts(receipts))

    async def nack(
        self,
        topic: str,
        group: str,
        receipts: Receipts,
        *,
        delay: Duration | None = None,
        reason: str | None = None,
    ) -> Settled:
        """Give messages back, to come again after ``delay``."""
        details = nack_details(delay, reason)
        return await self._settler.settle("nack", topic, group, _texts(receipts), **details)

    async def reject(
        self, topic: str, group: str, receipts: Receipts, *, reason: str | None = None
    ) -> Settled:
        """Give messages up: they become dead letters at once."""
        details = nack_details(None, reason)
        return await self._settler.settle("reject", topic, group, _texts(receipts), **details)

    async def extend(
        self, topic: str, group: str, receipts: Receipts, *, visibility: Duration | None = None
    ) -> Settled:
        """Keep messages for ``visibility`` from now, or for the group's own time."""
        details = extend_details(visibility)
        return await self._settler.settle("extend", topic, group, _texts(receipts), **details)

    async def ack_many(self, messages: Iterable[AsyncReceivedMessage]) -> Settled:
        """Mark received messages as done, in one request for each of their groups."""
        done, failed = 0, list[FailedReceipt]()
        for topic, group, members in by_group(messages):
            settled = await self._settler.settle("ack", topic, group, receipts_of(members))
            for message in members:
                message.settled = True
            done += settled.done
            failed.extend(settled.failed)
        return Settled(done, failed)

    def _direct_to(self, topic: str, acks: str | None) -> DirectPublisher:
        found = self._direct.get((topic, acks))
        if found is None:
            publisher = Publisher(self._http, topic, acks=check_acks(acks))
            found = self._direct.setdefault((topic, acks), DirectPublisher(publisher))
        return found

    def _receive_options(
        self,
        count: int,
        wait: Duration | None,
        visibility: Duration | None,
        consumer: str | None,
    ) -> ReceiveOptions:
        return ReceiveOptions(
            count,
            wait_ms(wait),
            None if visibility is None else parse_duration_ms(visibility, field="visibility"),
            consumer or self.client_id,
        )

    def _span(
        self, offset: int | None, from_time: Time | None, to_time: Time | None, background: bool
    ) -> LogRange:
        return LogRange(
            offset,
            self._wire_time(from_time, "from_time"),
            self._wire_time(to_time, "to_time"),
            background,
        )

    def _wire_time(self, time: Time | None, field: str) -> str | None:
        if time is None:
            return None
        time_us = parse_time_us(time, now_us=self._clock.wall_us(), field=field)
        return format_time_us(min(max(time_us, _TIME_US_MIN), _TIME_US_MAX))


_TIME_US_MIN, _TIME_US_MAX = -30_610_224_000_000_000, limits.TIME_MS_MAX * 1000
"""What a text of a time can say, the years 1000 to 9999: no message is from outside of them."""


def _texts(receipts: Receipts) -> list[str]:
    return [str(receipt) for receipt in receipts]


def _own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"[-limits.CLIENT_ID_CHARS_MAX :]
