"""The producer: messages gather into batches, which a worker sends.

A signal handler may raise in a caller, between any two instructions. So whatever the worker must
know is told before it is so, under the monitor that the worker needs to look: a wake-up that came
too early is only an idle one. Each change of the batches is one assignment or one call in C.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import Final, TypeVar

from goq import limits
from goq.client._async.publish.publisher import PreparedBatch, Publisher
from goq.client._async.runtime import Monitor, Worker
from goq.client.arguments import (
    Duration,
    HeadersLike,
    MessageLike,
    Time,
    as_message,
    as_messages,
    check_values,
    message_bytes,
    value_bytes,
)
from goq.client.delivery_options import DeliveryOptions
from goq.client.errors import client_closed
from goq.client.message_batch import MessageBatch
from goq.client.messages import PublishedBatch
from goq.client.tracing.trace_context import (
    all_with_current_span,
    has_current_span,
    with_current_span,
)
from goq.errors import GoqError, InvalidInput
from goq.http.client.process_fork import Owner
from goq.model import Message

BATCH_BYTES_MAX: Final = 12 * limits.MIB
WAITING_BATCHES_MAX: Final = 4
_WORKER_CHECK_S: Final = 1.0

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """When a batch is sent: with so many messages, so many bytes, or after ``linger_ms``."""

    batch: int
    batch_bytes: int
    linger_ms: int
    compress: bool

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= limits.FRAME_MESSAGES_MAX:
            raise InvalidInput(
                f"a batch has 1 to {limits.FRAME_MESSAGES_MAX} messages, not {self.batch}",
                field="batch",
            )
        if not 1 <= self.batch_bytes <= BATCH_BYTES_MAX:
            raise InvalidInput(
                f"a batch has 1 to {BATCH_BYTES_MAX} bytes, not {self.batch_bytes}",
                field="batch_bytes",
            )


class AsyncProducer:
    """Sends messages to one topic in batches, each exactly once.

    One request is under way at a time, so the node's append times follow the order of sending. A
    batch without keys goes to one partition, the next batch to the next one; keyed messages go
    where their key belongs.

    A message is kept until the node has stored it. A batch that cannot be stored stays first in the
    queue. The next call of ``send``, ``flush`` or ``aclose`` raises its error, and the same batch
    is then sent again. A ``send`` that raises a ``GoqError`` has not taken its message; what a
    signal handler raises may come after the message was taken. ``unsent`` tells how many messages
    the node has not confirmed. While too many batches wait, ``send`` waits too. In a forked child
    all calls but ``aclose`` raise: the messages are the parent's.

    ``on_published`` is called with each batch that was stored, by the worker: it must be quick.
    """

    def __init__(
        self,
        publisher: Publisher,
        options: ProducerOptions,
        on_published: Callable[[PublishedBatch], None] | None = None,
    ) -> None:
        self._publisher = publisher
        self._options = options
        self._on_published = on_published
        self._owner = Owner("producer")
        self._monitor = Monitor()
        self._batches: deque[MessageBatch] = deque([MessageBatch()])
        """The sealed batches, in the order of sending, and at the end the open one."""
        self._send_open_at_s = 0.0
        self._job: PreparedBatch | None = None
        self._error: Exception | None = None
        self._worker: Worker | None = None
        self._is_working = False
        self._closed = False

    @property
    def unsent(self) -> int:
        """The number of messages that the node has not confirmed."""
        return sum(map(len, list(self._batches)))

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.aclose()
            return
        try:
            await self._close(try_again=False)
        except GoqError as failure:
            error.add_note(f"and while closing the producer: {failure}")

    async def send(
        self,
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
    ) -> None:
        """Queue one message. The arguments are those of :meth:`AsyncClient.publish`.

        Raises the error of an earlier batch; the message is not queued then.
        """
        self._owner.check()
        options = DeliveryOptions(priority, delay, deliver_at, ttl, tenant, dedup_id)
        traced = with_current_span(as_message(value, key, headers))
        message = await self._publisher.applied(traced, options)
        size_bytes = message_bytes(message)
        with self._monitor:
            await self._room_for(size_bytes)
            self._batches[-1].add(message, size_bytes)
            self._seal_if_full()

    async def apply(self, message: Message, options: DeliveryOptions) -> Message:
        """Return a message for :meth:`send_many`, with options put in."""
        return await self._publisher.applied(message, options)

    async def send_many(self, messages: Iterable[MessageLike]) -> None:
        """Queue messages in their order."""
        traced = all_with_current_span(as_messages(messages))
        await self._add_all(traced, MessageBatch.add_messages, message_bytes)

    async def send_values(self, values: Sequence[bytes]) -> None:
        """Queue messages that have only a value: the fastest form."""
        if has_current_span():
            await self.send_many(values)
            return
        check_values(values)
        await self._add_all(values, MessageBatch.add_values, value_bytes)

    async def flush(self) -> None:
        """Return when the node has stored all messages that were queued before; else raise."""
        self._owner.check()
        with self._monitor:
            self._seal()
            batches = list(self._batches)
            last = batches[-2] if len(batches) > 1 else None
            while last is not None and last in self._batches:
                self._raise_error()
                await self._wait_for_worker()
            self._raise_error()

    async def aclose(self) -> None:
        """Flush, then end the producer. If it raises, ``unsent`` messages were not confirmed."""
        await self._close(try_again=True)

    async def _add_all(
        self,
        items: Sequence[Item],
        add: Callable[[MessageBatch, Sequence[Item], int], None],
        size_of: Callable[[Item], int],
    ) -> None:
        """Take items in pieces that fill the batches."""
        self._owner.check()
        with self._monitor:
            start = 0
            while start < len(items):
                self._seal_if_full()
                count, size_bytes = len(self._batches[-1]), self._batches[-1].size_bytes
                piece = items[start : start + self._options.batch - count]
                piece_bytes = sum(map(size_of, piece))
                if size_bytes + piece_bytes > self._options.batch_bytes:
                    piece = self._fitting(piece, size_of)
                    piece_bytes = sum(map(size_of, piece))
                await self._room_for(piece_bytes)
                if len(piece) > self._options.batch - len(self._batches[-1]):
                    continue  # another sender filled the batch while this one waited
                add(self._batches[-1], piece, piece_bytes)
                start += len(piece)
            self._seal_if_full()

    async def _room_for(self, size_bytes: int) -> None:
        """Have an open batch with room, and its worker told; wait while too many batches wait."""
        while True:
            self._raise_error()
            if self._closed:
                raise InvalidInput("the producer is closed")
            if self._publisher.is_closed:
                raise client_closed()
            batch = self._batches[-1]
            is_full = len(batch.values) >= self._options.batch
            if is_full or batch.size_bytes + size_bytes > self._options.batch_bytes:
                self._seal()
            if len(self._batches) - 1 <= WAITING_BATCHES_MAX:
                break
            await self._wait_for_worker()
        if not self._batches[-1].values:
            self._send_open_at_s = time.monotonic() + self._options.linger_ms / 1000
            self._wake_worker()

    def _seal_if_full(self) -> None:
        if len(self._batches[-1].values) >= self._options.batch:
            self._seal()

    def _seal(self) -> None:
        """Close the open batch, if it has messages, and open another."""
        if self._batches[-1].values:
            self._wake_worker()
            self._batches.append(MessageBatch())

    def _fitting(self, items: Sequence[Item], size_of: Callable[[Item], int]) -> Sequence[Item]:
        """Return the first of ``items`` that fill the open batch, or a whole new one."""
        room_bytes = self._options.batch_bytes - self._batches[-1].size_bytes
        ends = list(accumulate(map(size_of, items)))
        if ends[0] > room_bytes:
            room_bytes = self._options.batch_bytes
        return items[: max(1, bisect_right(ends, room_bytes))]

    async def _wait_for_worker(self) -> None:
        """Wait for a change. A worker that its ending event loop has cancelled is replaced."""
        self._wake_worker()
        await self._monitor.wait(_WORKER_CHECK_S)  # one that had not begun tells of no end

    def _wake_worker(self) -> None:
        worker = self._worker
        if worker is None or (worker.has_ended and not self._is_working):
            self._worker = Worker(self._work)
        self._monitor.notify_all()

    def _raise_error(self) -> None:
        error = self._error
        if error is not None:
            self._monitor.notify_all()  # the worker goes on with the same batch
            self._error = None
            raise error

    async def _close(self, *, try_again: bool) -> None:
        if not self._owner.is_here:
            return  # the parent sends its messages
        with self._monitor:
            if self._closed:
                return
            try:
                if try_again:
                    self._error = None
                    self._monitor.notify_all()  # the worker goes on with the batch that failed
                self._seal()
                while len(self._batches) > 1 and self._error is None:
                    await self._wait_for_worker()
            finally:
                self._monitor.notify_all()
                self._closed = True
        if self._worker is not None and not self._worker.has_ended:
            await self._worker.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    async def _work(self) -> None:
        """Send the batches in their order until the producer is closed."""
        with self._monitor:
            if self._is_working:  # a start that was interrupted has been made good by another
                return
            self._is_working = True
        try:
            while True:
                with self._monitor:
                    while not self._due():
                        if self._closed:
                            return
                        await self._monitor.wait(self._until_due_s())
                    batch = self._batches[0]
                error = await self._send(batch)
                with self._monitor:
                    self._error = error
                    self._monitor.notify_all()
        finally:
            with self._monitor:
                self._is_working = False
                self._monitor.notify_all()

    async def _send(self, batch: MessageBatch) -> Exception | None:
        """Send a batch; the job is kept when it fails, for the same numbers next time."""
        try:
            if self._job is None:
                self._job = await self._publisher.prepare(batch, compress=self._options.compress)
            published = await self._publisher.send(self._job)
        except Exception as error:
            return error
        self._job = None
        try:
            if self._on_published is not None:
                self._on_published(published)
        except Exception as error:
            return error
        finally:
            with self._monitor:
                self._batches.popleft()
        return None

    def _due(self) -> bool:
        if self._error is not None or self._closed:
            return False
        is_alone = len(self._batches) == 1 and len(self._batches[0])
        if is_alone and time.monotonic() >= self._send_open_at_s:
            self._batches.append(MessageBatch())
        return len(self._batches) > 1

    def _until_due_s(self) -> float | None:
        if self._error is not None or not len(self._batches[-1]):
            return None
        return max(0.0, self._send_open_at_s - time.monotonic())
