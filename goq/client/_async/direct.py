"""Publishing one message at a time, cheaply: callers at the same moment share a request.

Flat combining (Hendler, Incze, Shavit, Tzafrir, SPAA 2010): each caller leaves its message and
then waits for the lock. Whoever gets it sends everything that was left; the others find their
result when their turn comes. One request is under way at a time, and it grows with the load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from goq.client._async.publisher import Job, Publisher
from goq.client._async.runtime import Lock
from goq.client.arguments import message_bytes
from goq.client.batch import Batch, batches_of
from goq.client.delivery_options import DeliveryOptions
from goq.client.messages import Published, PublishedBatch, joined
from goq.errors import PartitionNotFound
from goq.model import Message

ROUND_MESSAGES_MAX: Final = 1000
MANY_MESSAGES_MAX: Final = 10_000
ROUND_BYTES_MAX: Final = 1024 * 1024


class _Entry:
    """One caller's message, and what became of it."""

    __slots__ = ("error", "message", "partition", "published")

    def __init__(self, message: Message, partition: int | None) -> None:
        self.message = message
        self.partition = partition
        self.published: Published | None = None
        self.error: Exception | None = None


class _Round(NamedTuple):
    """A request under way, and whose messages it carries."""

    entries: Sequence[_Entry]
    job: Job


class DirectPublisher:
    """The messages that a client publishes to one topic itself, outside of any producer."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._lock = Lock()
        self._left: deque[_Entry] = deque()
        self._round: _Round | None = None

    async def publish(
        self, message: Message, partition: int | None, options: DeliveryOptions
    ) -> Published:
        """Return where the node stored a message."""
        message = await self._publisher.applied(message, options)
        if partition is not None:
            await self._check_partition(partition)
        entry = _Entry(message, partition)
        self._left.append(entry)
        try:
            async with self._lock:
                while entry.published is None and entry.error is None:
                    await self._send_round()
        except BaseException:
            self._withdraw(entry)
            raise
        if entry.published is None:
            assert entry.error is not None
            raise entry.error
        return entry.published

    async def publish_many(self, messages: Sequence[Message], *, compress: bool) -> PublishedBatch:
        """Return where the node stored many messages, sent in requests of bounded size."""
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
                self._publisher.renew()
                stored = sum(map(len, done))
                error.add_note(f"{stored} of {len(messages)} messages were published before this")
                raise
        return joined(self._publisher.topic, done)

    async def _send_round(self) -> None:
        """Send what was left, or first what a cancelled caller began and did not finish."""
        entries: Sequence[_Entry] = ()
        try:
            if self._round is None:
                await self._publisher.partitions()
                entries = self._take()
                self._round = _Round(entries, await self._publisher.prepare(_batch_of(entries)))
            entries, job = self._round
            published = await self._publisher.send(job)
        except Exception as error:
            self._round = None
            self._publisher.renew()
            for entry in entries or self._take():
                entry.error = error
        else:
            self._round = None
            for entry, result in zip(entries, published, strict=True):
                entry.published = result

    def _take(self) -> list[_Entry]:
        entries: list[_Entry] = []
        size_bytes = 0
        while self._left and len(entries) < ROUND_MESSAGES_MAX and size_bytes < ROUND_BYTES_MAX:
            entries.append(self._left.popleft())
            size_bytes += message_bytes(entries[-1].message)
        return entries

    def _withdraw(self, entry: _Entry) -> None:
        try:
            self._left.remove(entry)
        except ValueError:
            pass  # it is in a request already, whose outcome nobody here waits for

    async def _check_partition(self, partition: int) -> None:
        count = await self._publisher.partitions()
        if not 0 <= partition < count:
            count = await self._publisher.partitions(anew=True)
        if not 0 <= partition < count:
            raise PartitionNotFound(
                f"{self._publisher.topic} has the partitions 0 to {count - 1}, not {partition}",
                field="partition",
            )


def _batch_of(entries: Sequence[_Entry]) -> Batch:
    batch = Batch()
    for entry in entries:
        batch.add(entry.message, message_bytes(entry.message), entry.partition)
    return batch
