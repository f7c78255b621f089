"""The client: every call of goq on one object.

A command may make one call and end. So what only some calls need is imported by them.

Longer than other modules: it is one list of calls. Those that read the log, settle receipts or
administer are mixed in.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from goq import limits
from goq.client._async.admin.admin import AsyncAdmin
from goq.client._async.consume.received_message import AsyncReceivedMessage
from goq.client._async.consume.settlement import Settler
from goq.client._async.consume.settlement_client import AsyncSettlementClient
from goq.client._async.http import Http
from goq.client._async.log.log_client import AsyncLogClient
from goq.client._async.publish.direct_publisher import DirectPublisher
from goq.client._async.publish.producer import AsyncProducer, ProducerOptions
from goq.client._async.publish.publisher import Publisher
from goq.client._async.runtime import notify_dropped
from goq.client.arguments import (
    FOREVER,
    Duration,
    HeadersLike,
    MessageLike,
    Time,
    as_message,
    as_messages,
    as_texts,
    check_acks,
    check_callable,
    check_int,
    check_partition,
    retry_policy,
    wait_ms,
)
from goq.client.delivery_options import DeliveryOptions
from goq.client.messages import Published, PublishedBatch
from goq.client.protocol.request_builder import HttpOptions
from goq.client.retry import OnRetry
from goq.client.tracing.trace_context import all_with_current_span, with_current_span
from goq.errors import InvalidInput
from goq.http.client.process_fork import renew_in_children
from goq.http.client.trust import ClientTls
from goq.model import check_client_id, check_name, check_text
from goq.units import parse_duration_ms, parse_size_bytes

if TYPE_CHECKING:
    from goq.client._async.consume.consumer import Consumer
    from goq.client._async.consume.receive import AsyncDeliveryBatch, ReceiveOptions


class AsyncClient(AsyncLogClient, AsyncSettlementClient, AsyncAdmin):
    """A client of one node, or of the nodes of a cluster.

    Example::

        from goq import AsyncClient

        async with AsyncClient("http://127.0.0.1:8080") as client:
            await client.publish("orders", b"two teapots", key="order-123")
            async for message in client.consume("orders", group="billing"):
                await message.ack()

    ``servers`` are the URLs to begin with; the client learns the other nodes of a cluster.
    ``token`` is sent as a bearer token. ``ca_file`` (PEM) has the authorities of ``https`` servers,
    by default ``GOQ_CA_FILE`` or the public ones. ``cert_file`` and ``key_file`` (PEM) are this
    client's certificate, by default ``GOQ_CERT_FILE`` and ``GOQ_KEY_FILE``. ``timeout`` bounds the
    wait for each answer.
    ``retries`` is how long a failing request is tried again, from its first failure; 0 for not at
    all, "forever" without end; ``connect_retries`` bounds it while no node can be connected to.
    ``on_retry`` is called with the error and the seconds since the first, by any thread; False ends
    the retries. ``client_id`` names this client in traces, as the producer or consumer; by default
    it is the host and the process.

    Durations are text as ``"30s"``, seconds, or a ``timedelta``. Times are text such as
    ``"2026-01-31T08:00:00Z"``, ``"-1h"`` or ``"now"``, a ``datetime`` with a zone, or a number of
    milliseconds since 1970.

    One client serves many threads or tasks at once, and each forked process: a child has its own
    connections and producer ids. A producer or a loop of the parent raises there. An asynchronous
    client serves one event loop at a time; its producers and loops end with that. Errors of calls
    are ``GoqError``: ``NotAllowed`` for a wrong token, ``Unavailable`` without a node.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "http://127.0.0.1:8080",
        *,
        token: str | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        timeout: Duration = "30s",
        client_id: str | None = None,
        retries: Duration = "10s",
        connect_retries: Duration = FOREVER,
        on_retry: OnRetry | None = None,
    ) -> None:
        urls = as_texts(servers, "servers")
        if not urls:
            raise InvalidInput("a client needs at least one server", field="servers")
        self._is_named = client_id is not None
        self.client_id = check_client_id(
            _default_client_id() if client_id is None else client_id, field="client_id"
        )
        self._http = Http(
            HttpOptions(
                [url.rstrip("/") for url in urls],
                token,
                parse_duration_ms(timeout, field="timeout"),
                retry_policy(retries, connect_retries, on_retry),
                self.client_id,
                tls=_client_tls(ca_file, cert_file, key_file),
            )
        )
        self._settler = Settler(self._http)
        self._direct_publishers: dict[tuple[str, str | None], DirectPublisher] = {}
        self._consumers: set[Consumer] = set()
        self._session_id = os.urandom(8).hex()
        renew_in_children(self, AsyncClient._renew)

    def _renew(self) -> None:
        """Begin anew in a forked child: other producer ids, no open loops, its own name."""
        self._direct_publishers = {}
        self._consumers = set()
        self._settler.listeners.clear()
        self._session_id = os.urandom(8).hex()
        if not self._is_named:
            self.client_id = _default_client_id()
            self._http.name_client(self.client_id)

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
        """Close all connections; open consume loops return their unyielded messages first.

        Loops that follow a log end, too. Calls of a closed client raise ``InvalidInput``.
        """
        try:
            for consumer in list(self._consumers):
                await consumer.aclose()
        finally:
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
        """Publish one message exactly once; return when the node has stored it.

        Concurrent calls share a request. Text is sent as UTF-8; the value None is a
        tombstone of its key. If an OpenTelemetry span is active and ``headers`` have no
        ``traceparent``, the message carries the span's.

        ``key`` chooses the partition, unless ``partition`` does; messages with one key stay in
        order. ``priority`` is a lane of the topic, by name or number. ``delay`` or ``deliver_at``
        hold the message back. ``ttl`` is how long it may wait once it is ready, before it expires.
        ``tenant`` shares the partition fairly. A second message with the same ``dedup_id`` within
        the topic's window is not stored: the result names the first.

        ``acks`` is ``quorum``, the default, or ``leader``. In a cluster the message then survives
        the loss of any one node, or only as long as its leader is not lost.

        Raises ``TopicNotFound``, ``PartitionNotFound``, ``InvalidInput``, ``TooLarge``.
        """
        message = with_current_span(as_message(value, key, headers))
        options = DeliveryOptions(priority, delay, deliver_at, ttl, tenant, dedup_id)
        publisher = self._direct_publisher(topic, acks)
        return await publisher.publish(message, check_partition(partition), options)

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[MessageLike],
        *,
        compress: bool = False,
        acks: str | None = None,
    ) -> PublishedBatch:
        """Publish messages in their order; return when the node has stored all of them.

        A message is a :class:`~goq.Message`, or a value alone. Each carries the active
        OpenTelemetry span, as in :meth:`publish`. With ``compress`` requests are
        compressed with zstd. ``acks`` is as in :meth:`publish`. If it raises, a note of the error
        says how many messages were stored: the first ones.
        """
        publisher = self._direct_publisher(topic, acks)
        traced = all_with_current_span(as_messages(messages))
        return await publisher.publish_many(traced, compress=compress)

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
        """Return a producer, which publishes many messages fast. Close it, or use it in ``with``.

        It sends a batch when that has ``batch`` messages or ``batch_bytes`` bytes, or ``linger``
        after its first message. Without ``partition`` each message goes where its key belongs.
        ``compress`` and ``acks`` are as in :meth:`publish_many`. A worker calls ``on_published``
        with each batch that was stored.
        """
        check_int(batch, "batch")
        check_callable(on_published, "on_published")
        options = ProducerOptions(
            batch,
            parse_size_bytes(batch_bytes, field="batch_bytes"),
            parse_duration_ms(linger, field="linger"),
            compress,
        )
        publisher = Publisher(
            self._http, topic, partition=check_partition(partition), acks=check_acks(acks)
        )
        return AsyncProducer(publisher, options, on_published)

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
        before_end: Callable[[], Awaitable[None]] | None = None,
        wait_for_topics: bool = True,
        open_spans: bool = True,
    ) -> AsyncGenerator[AsyncReceivedMessage, None]:
        """Yield messages of a group as they become ready.

        Each message is leased to this consumer for ``visibility``, by default the group's setting,
        counted from when it is yielded. ``ack`` it in that time, or it is delivered again. For
        handlers that take longer, ``auto_extend`` extends the leases of unsettled messages for as
        long as the loop lasts, from a thread: a handler may block.

        The loop receives ahead what its caller handles in about a second, at most ``prefetch``
        messages of a topic, and keeps their leases. If the caller has one message for longer than
        ``visibility``, those are released. ``wait`` is how long one request may wait for messages.

        The loop ends after ``max_messages``, with ``until_empty`` when no message is ready, or when
        none has come for ``timeout``; else never. When it is left early, messages that it has not
        yielded are returned to the group at once.

        ``consumer`` names this consumer in the group, by default the client id. ``before_wait`` is
        called when all received messages were yielded, so that the caller can settle them.
        ``after_wait`` is called before the next messages are yielded. ``before_end`` is called when
        the loop ends and no more messages come: ``auto_extend`` lasts until it returns.

        If the program uses OpenTelemetry, a span is active while the caller has a message, below
        the publisher's; without ``open_spans`` none is, as for a caller that hands messages on.

        ``topics`` are names, or patterns as ``"orders.*"``: ``*``, ``?`` and ``[…]`` as in a shell.
        Topics that are created later and match are consumed as well, 100 at most. Dead-letter
        topics match only a pattern that ends in ``.dlq``.

        The loop waits for topics to be created. With ``until_empty``, or without
        ``wait_for_topics``, it raises ``TopicNotFound``. Raises ``InvalidInput``.
        """
        from goq.client._async.consume.consumer import ConsumeOptions, Consumer
        from goq.client.protocol.topic_selection import TopicSelection

        check_int(max_messages, "max_messages")
        check_name(group, "group")
        check_callable(before_wait, "before_wait")
        check_callable(after_wait, "after_wait")
        check_callable(before_end, "before_end")
        selection = TopicSelection(topics)
        options = ConsumeOptions(
            self._receive_options(prefetch, "prefetch", wait, visibility, consumer),
            max_messages,
            until_empty,
            None if timeout is None else parse_duration_ms(timeout, field="timeout"),
            auto_extend,
            before_wait,
            after_wait,
            before_end,
            wait_for_topics,
            open_spans,
        )
        if options.receive.wait_ms == 0 and not until_empty:
            raise InvalidInput("a loop that does not wait asks without pause", field="wait")
        loop = Consumer(self._http, self._settler, selection, group, options)
        messages = loop.messages(self._consumers)
        return notify_dropped(messages, loop.leave) if open_spans else messages

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
        """Return up to ``max_messages`` ready messages, perhaps none.

        The request waits up to ``wait`` for a first message; by default not at all. ``visibility``
        and ``consumer`` are as in :meth:`consume`. Raises ``TopicNotFound``.
        """
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
        """Return up to ``max_messages`` ready messages as frames, unlike :meth:`receive`."""
        from goq.client._async.consume.receive import receive

        options = self._receive_options(max_messages, "max_messages", wait, visibility, consumer)
        return await receive(self._http, self._settler, topic, group, options)

    def _direct_publisher(self, topic: str, acks: str | None) -> DirectPublisher:
        if type(topic) is not str or acks is not None:
            check_text(topic, "topic")
            check_acks(acks)
        found = self._direct_publishers.get((topic, acks))
        if found is None:
            publisher = Publisher(self._http, topic, acks=acks)
            found = self._direct_publishers.setdefault((topic, acks), DirectPublisher(publisher))
        return found

    def _receive_options(
        self,
        credit: int,
        credit_field: str,
        wait: Duration | None,
        visibility: Duration | None,
        consumer: str | None,
    ) -> ReceiveOptions:
        from goq.client._async.consume.receive import ReceiveOptions

        if type(credit) is not int or credit < 1:
            raise InvalidInput(
                f"{credit_field} is a whole number from 1 on, not {credit!r:.100}",
                field=credit_field,
            )
        if consumer:
            check_text(consumer, "consumer")
        return ReceiveOptions(
            credit,
            wait_ms(wait),
            None if visibility is None else parse_duration_ms(visibility, field="visibility"),
            consumer or self.client_id,
            None if consumer else self._session_id,
        )


def _client_tls(ca_file: str | None, cert_file: str | None, key_file: str | None) -> ClientTls:
    """Return the TLS files, those of the environment where none are given."""
    get = os.environ.get
    ca_file = ca_file or get("GOQ_CA_FILE") or None
    if cert_file is None:
        return ClientTls(ca_file, get("GOQ_CERT_FILE") or None, key_file or get("GOQ_KEY_FILE"))
    return ClientTls(ca_file, cert_file, key_file)


def _default_client_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"[-limits.CLIENT_ID_CHARS_MAX :]
