"""Single messages to one topic, which share requests.

They do so by flat combining (Hendler, Incze, Shavit, Tzafrir, SPAA 2010). Each caller queues its
message, then waits for the lock. The caller that gets it sends all queued messages; the others find
their result when they get the lock. One request is under way at a time, and it grows with the load.

A signal handler may raise in any caller, between any two instructions. So each step here is one
assignment, which can be repeated: a message stays in the queue until its outcome is known, and a
request that was left is sent again as it was, under the same sequences.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from goq.client._async.publish.publisher import PreparedBatch, Publisher
from goq.client._async.runtime import Lock
from goq.client.arguments import message_bytes
from goq.client.delivery_options import DeliveryOptions
from goq.client.message_batch import MessageBatch, batches_of
from goq.client.messages import Published, PublishedBatch, joined
from goq.errors import GoqError, InvalidInput, PartitionNotFound
from goq.model import Message

ROUND_MESSAGES_MAX: Final = 1000
MANY_MESSAGES_MAX: Final = 10_000
ROUND_BYTES_MAX: Final = 1024 * 1024


class _Entry:
    """One caller's message, with its result or its error; ``done`` once it needs no request."""

    __slots__ = ("done", "error", "message", "partition", "published")

    def __init__(self, message: Message, partition: int | None) -> None:
        self.message = message
        self.partition = partition
        self.published: Published | None = None
        self.error: GoqError | None = None
        self.done = False


class _Round:
    """One request with the callers of its messages, and how it ended."""

    __slots__ = ("entries", "job", "outcome")

    def __init__(self, entries: Sequence[_Entry], job: PreparedBatch) -> None:
        self.entries = entries
        self.job = job
        self.outcome: PublishedBatch | GoqError | None = None


class DirectPublisher:
    """Publishes single messages to one topic, many callers in one request.

    ``_queue`` has the messages whose outcome is not known, also those of the request under way, in
    their order. Any caller adds at its end; only the one with the lock takes from it.

    A request that was refused is sent again in halves, so that the error is that of the wrong
    message alone. Other errors of goq are those of all messages of the request. Any other exception
    is its caller's alone: a signal handler raised it, or the caller was cancelled.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._lock = Lock()
        self._queue: deque[_Entry] = deque()
        self._round: _Round | None = None
        self._count_max = ROUND_MESSAGES_MAX

    async def publish(
        self, message: Message, partition: int | None, options: DeliveryOptions
    ) -> Published:
        """Return where the node stored a message."""
        message = await self._publisher.applied(message, options)
        if partition is not None:
            await self._check_partition(partition)
        entry = _Entry(message, partition)
        try:
            self._queue.append(entry)
            async with self._lock:
                while not entry.done:
                    await self._send_round()
        except BaseException:
            entry.done = True  # a request may already have it: its outcome is not awaited
            raise
        if entry.published is None:
            assert entry.error is not None
            raise entry.error
        return entry.published

    async def publish_many(self, messages: Sequence[Message], *, compress: bool) -> PublishedBatch:
        """Return where the node stored messages; they are sent in requests of bounded size."""
        batches = batches_of(messages, count_max=MANY_MESSAGES_MAX, bytes_max=ROUND_BYTES_MAX)
        done: list[PublishedBatch] = []
        async with self._lock:
            if self._round is not None:
                await self._send_round()
            try:
                for batch in batches:
                    job = await self._publisher.prepare(batch, compress=compress)
                    done.append(await self._publisher.send(job))
            except BaseException as error:
                stored = sum(map(len, done))
                error.add_note(f"{stored} of {len(messages)} messages were published before this")
                raise
        return joined(self._publisher.topic, done)

    async def _send_round(self) -> None:
        """Send the first queued messages, or again the request that an interrupted caller left."""
        sent = self._round
        if sent is None:
            try:
                await self._publisher.partitions()
                entries = self._first_entries()
                sent = _Round(entries, await self._publisher.prepare(_batch_of(entries)))
            except GoqError as error:
                self._end(self._first_entries(), error)
                return
            self._round = sent
        if sent.outcome is None:
            try:
                sent.outcome = await self._publisher.send(sent.job)
            except GoqError as error:
                sent.outcome = error
        self._end(sent.entries, sent.outcome)
        self._round = None

    def _first_entries(self) -> list[_Entry]:
        """Return what the next request has."""
        self._drop_done()
        entries: list[_Entry] = []
        size_bytes = 0
        for entry in list(islice(self._queue, self._count_max)):  # at once: others append
            if not entry.done:
                entries.append(entry)
                size_bytes += message_bytes(entry.message)
                if size_bytes >= ROUND_BYTES_MAX:
                    break
        return entries

    def _end(self, entries: Sequence[_Entry], outcome: PublishedBatch | GoqError) -> None:
        """Tell the callers, unless they shall be told apart; take what is done from the queue."""
        if isinstance(outcome, GoqError):
            if len(entries) > 1 and isinstance(outcome, InvalidInput | PartitionNotFound):
                self._count_max = len(entries) // 2  # until the message that is wrong is alone
                return
            for entry in entries:
                entry.error = outcome
                entry.done = True
        else:
            for entry, result in zip(entries, outcome, strict=True):
                entry.published = result
                entry.done = True
        self._count_max = min(2 * self._count_max, ROUND_MESSAGES_MAX)
        self._drop_done()

    def _drop_done(self) -> None:
        queue = self._queue
        while queue and queue[0].done:
            queue.popleft()

    async def _check_partition(self, partition: int) -> None:
        count = await self._publisher.partitions()
        if not 0 <= partition < count:
            count = await self._publisher.partitions(anew=True)
        if not 0 <= partition < count:
            raise PartitionNotFound(
                f"{self._publisher.topic} has the partitions 0 to {count - 1}, not {partition}",
                field="partition",
            )


def _batch_of(entries: Sequence[_Entry]) -> MessageBatch:
    batch = MessageBatch()
    for entry in entries:
        batch.add(entry.message, message_bytes(entry.message), entry.partition)
    return batch
