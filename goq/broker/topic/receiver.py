"""The receives of a topic: messages of all partitions, or a wait in the queue of the group.

Messages leave the node only when their leases are durable. A receive that waits is served while its
messages are about to be written: then their leases are in the same record of the journal.

The queue depends on the ordering of the group and on the membership. When either changes, or the
group is deleted, the waiting receives begin from the top (:meth:`Receiver.restart`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from goq.broker.group.coordinator import Coordinator
from goq.broker.log.pending_appends import Appended
from goq.broker.partition.leases import (
    LeasedBatch,
)
from goq.broker.runtime.metrics import TopicStats
from goq.broker.topic.partition_table import PartitionTable
from goq.broker.topic.ready_partitions import ReadyPartitions
from goq.broker.topic.topic_leases import Leased, ReceiveRequest, ReturnLease, TopicLeases
from goq.broker.topic.waiters import LogReaders, Waiters
from goq.config.topic import EffectiveSettings, Ordering
from goq.delivery.group.lease import member_id
from goq.errors import GoqError, TimedOut, raise_failures

_PASS_ON_S = 0.2
_ROOM_CHECK_S = 0.1
_SERVED_MAX = 4  # groups, before a write of their messages: the others' leases follow it
_SEPARATOR = "/"  # not allowed in a group's name


class Receiver:
    """Receives the messages of one topic.

    ``remember`` stores a group that it does not know. ``return_lease`` is for leases that
    reach no consumer, of partitions that other nodes lead by now.
    """

    def __init__(
        self,
        settings: EffectiveSettings,
        partitions: PartitionTable,
        coordinator: Coordinator,
        stats: TopicStats,
        remember: Callable[[str], Awaitable[None]],
        return_lease: ReturnLease,
    ) -> None:
        self.waiters = Waiters()
        self.log_readers = LogReaders(partitions)
        self.restart_count = 0
        """The number of changes after which receives and streams of a group began again."""
        self._settings = settings
        self._partitions = partitions
        self._coordinator = coordinator
        self._stats = stats
        self._remember = remember
        self._ready_count = 0
        self._ready_counts: dict[str, int] = {}
        self.ready_partitions = ReadyPartitions(partitions)
        self._leases = TopicLeases(
            settings,
            partitions,
            self.ready_partitions,
            coordinator,
            self.waiters,
            self._wake_group,
            return_lease,
        )
        self._closed: GoqError | None = None

    # Receive

    async def receive(self, group: str, request: ReceiveRequest) -> list[LeasedBatch]:
        """Lease ready messages of any partition; wait up to ``request.wait_ms`` for the first.

        Without any, raises ``PartitionOffline`` if one of the consumer's partitions is offline: it
        may have messages. If all of them are, nothing is waited for. With the ordering
        ``partition`` the consumer receives from its own partitions only, and its session lasts
        while it waits; a silent stream gets no messages and is not kept a member.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + request.wait_ms / 1000
        has_waited = False
        while True:
            await self._remember(group)
            restart_count = self.restart_count
            if request.is_silent and self.has_members(group):
                return []
            with self.presence(group, request.consumer, request.session_id) as queue:
                if request.is_paused:
                    self.waiters.wake(queue)  # the wake-up goes to the next waiter
                    return []
                try:
                    leased = await self._leases.lease_cached(group, request)
                except BaseException:
                    self.waiters.wake(queue)  # the wake-up goes to the next waiter
                    raise
                if leased:
                    return await self._hand_over(group, leased)
                left_s = until - loop.time()
                if self._closed is None:
                    self._check_online(group, request, is_over=left_s <= 0)
                if left_s <= 0:
                    return []
                if self._closed is not None:
                    raise self._closed
                if self.restart_count == restart_count:
                    consumer = None if request.is_silent else request.consumer
                    if not request.has_room:
                        self.waiters.wake(queue)  # another sender may have room
                        await asyncio.sleep(min(left_s, _ROOM_CHECK_S))
                        continue
                    serving = _Serving(self._leases, group, request)
                    try:
                        await self.waiters.wait(
                            queue, left_s, in_front=has_waited, consumer=consumer, serve=serving
                        )
                    except asyncio.CancelledError:
                        self._leases.undo(group, serving.leased)
                        raise
                    if serving.leased:
                        with suppress(GoqError):  # neither message nor lease is stored: go on
                            return await self._received(
                                group, request, serving.leased, serving.is_paused
                            )
                    has_waited = True

    def has_members(self, group: str) -> bool:
        """Return whether each partition belongs to one consumer of the group."""
        return self._settings[group].ordering is Ordering.PARTITION

    @contextmanager
    def presence(self, group: str, consumer: str, session_id: str) -> Iterator[str]:
        """Keep a consumer a member while the block runs; yield the queue in which it waits.

        Groups have members only with the ordering ``partition``. Raises as
        :meth:`Coordinator.session` does.
        """
        if not self.has_members(group):
            yield group
            return
        with self._coordinator.session(group, consumer, session_id):
            yield _queue_of(group, member_id(consumer, session_id))

    def _check_online(self, group: str, request: ReceiveRequest, *, is_over: bool) -> None:
        """Raise the error of an offline partition: of any if the wait ``is_over``, else of all."""
        failures = self._partitions.failures()
        if not failures:
            return
        numbers = {*failures, *self._partitions.numbers()}
        if self.has_members(group):
            numbers &= {*self._coordinator.partitions_for(group, request.member)}
        failed = [number for number in failures if number in numbers]
        if failed and (is_over or len(failed) == len(numbers)):
            raise failures[failed[0]]

    def receive_at_once(
        self, group: str, request: ReceiveRequest
    ) -> Coroutine[Any, Any, list[LeasedBatch]] | None:
        """Lease messages that are ready and in memory to a known group; None without any.

        The caller must run what it gets: it waits for the disk alone, and returns the batches.
        """
        if self.has_members(group):
            return None
        leased, is_paused = self._leases.lease_at_once(group, request)
        return self._received(group, request, leased, is_paused) if leased else None

    async def _received(
        self, group: str, request: ReceiveRequest, leased: Leased, is_paused: bool
    ) -> list[LeasedBatch]:
        if is_paused:
            await self._leases.lease_rest(group, request, leased)
        return await self._hand_over(group, leased)

    async def _hand_over(self, group: str, leased: Leased) -> list[LeasedBatch]:
        """Return the batches once their leases are durable; release them if cancelled.

        A lease that may be recorded, and is not known to be, is released too.
        """
        try:
            results = await _outcomes([done for _, done in leased])
        except asyncio.CancelledError:
            self._leases.undo(group, leased)
            raise
        durable = []
        self._stats.begin(asyncio.get_running_loop().time())
        for part, result in zip(leased, results, strict=True):
            if isinstance(result, TimedOut):
                self._leases.undo(group, [part])
            elif not isinstance(result, BaseException):
                batch, _ = part
                durable.append(batch)
                count = batch.message_count
                self._stats.delivered_messages += count
                self._stats.groups[group].delivered_messages += count
        if not durable:
            raise_failures(results)
        return durable

    def release(self, group: str, batches: Sequence[LeasedBatch]) -> None:
        """Release leases whose answer does not reach its consumer, without counting an attempt."""
        self._leases.release(group, batches)
        self.wake()

    # Wait

    async def wait_until_ready(
        self, group: str, consumer: str, session_id: str, seen: int, wait_ms: int
    ) -> int:
        """Return the ready count once it differs from ``seen``, or after ``wait_ms``.

        For a consumer that receives through another node: this node leases nothing to it. Its
        wake-up passes to the next waiter after 0.2 s, because the consumer may be gone.
        """
        with self.presence(group, consumer, session_id) as queue:
            if self.ready_count(group) == seen and self._closed is None:
                await self.waiters.wait(queue, wait_ms / 1000, consumer=consumer)
                if self.ready_count(group) != seen:
                    asyncio.get_running_loop().call_later(_PASS_ON_S, self.waiters.wake, queue)
        if self._closed is not None:
            raise self._closed
        return self.ready_count(group)

    def ready_count(self, group: str) -> int:
        """Return how often messages became ready for a group. The count only grows.

        A consumer that got no messages waits until the count changes.
        """
        return self._ready_count + self._ready_counts.get(group, 0)

    def _count_ready(self, group: str | None) -> None:
        if group is None:
            self._ready_count += 1
        else:
            self._ready_counts[group] = self._ready_counts.get(group, 0) + 1

    def is_awaited(self) -> bool:
        """Return whether any consumer waits for messages."""
        return bool(self.waiters.queues)

    def on_staged(self, number: int) -> None:
        """Serve the consumers that wait for what a partition is about to write, and wake them."""
        self.on_ready(number, None, served_max=_SERVED_MAX)

    def on_ready(self, number: int, group: str | None, *, served_max: int = 0) -> None:
        """Wake a consumer that may receive from a partition: one in each group, or in ``group``."""
        self.ready_partitions.note_change(number, group)
        self._count_ready(group)
        for queue in list(self.waiters.queues):
            name, _, consumer = queue.partition(_SEPARATOR)
            if group in (None, name) and (
                not consumer or self._coordinator.owner(name, number) == consumer
            ):
                self.waiters.wake(queue, serves=served_max > 0)
                served_max -= 1
        if group is None and self.log_readers.waiters.queues:
            self.log_readers.wake(number)

    def wake(self) -> None:
        """Wake one waiting consumer of each group: messages may have become ready."""
        self._ready_count += 1
        for queue in list(self.waiters.queues):
            self.waiters.wake(queue)

    def on_offline(self) -> None:
        """Wake all waiting consumers: those without another partition get the error."""
        self._ready_count += 1
        self.waiters.wake_all()

    def wake_consumers(self, group: str, consumers: Collection[str]) -> None:
        """Wake these consumers of a group, if they wait."""
        self._count_ready(group)
        for consumer in consumers:
            self.waiters.wake_group(_queue_of(group, consumer))

    def restart(self, group: str, consumers: Collection[str] | None = None) -> None:
        """Have receives and streams that wait begin again, of these consumers or of all.

        Their queue is not theirs any more: they left the group, or the group was deleted, or its
        ordering changed. A stream without credit does so once it has some.
        """
        self.restart_count += 1
        self._count_ready(group)
        if consumers is None:
            self.ready_partitions.forget(group)
            queues = [q for q in self.waiters.queues if q.partition(_SEPARATOR)[0] == group]
        else:
            queues = [_queue_of(group, consumer) for consumer in consumers]
        for queue in queues:
            self.waiters.wake_group(queue)

    def _wake_group(self, group: str) -> None:
        self._count_ready(group)
        for queue in list(self.waiters.queues):
            if queue.partition(_SEPARATOR)[0] == group:
                self.waiters.wake(queue)

    def close(self, reason: GoqError) -> None:
        """End all waiting: the topic is closing."""
        self._closed = reason
        self.waiters.wake_all()
        self.log_readers.close()


class _Serving:
    """Leases ready messages to a receive that waits, when it is called."""

    __slots__ = ("_group", "_leases", "_request", "is_paused", "leased")

    def __init__(self, leases: TopicLeases, group: str, request: ReceiveRequest) -> None:
        self._leases = leases
        self._group = group
        self._request = request
        self.leased: Leased = []
        self.is_paused = False
        """Whether the turn ended before the receive was full."""

    def __call__(self) -> None:
        self.leased, self.is_paused = self._leases.lease_at_once(self._group, self._request)


async def _outcomes(recording: Sequence[asyncio.Future[Appended]]) -> Sequence[object]:
    """Return the result or the error of each record, once all have one."""
    if len(recording) != 1:
        return await asyncio.gather(*recording, return_exceptions=True)
    try:  # nearly always: gathering costs two turns of the event loop
        return (await recording[0],)
    except Exception as error:
        return (error,)


def _queue_of(group: str, member: str) -> str:
    """Return the queue name of a member."""
    return f"{group}{_SEPARATOR}{member}"
