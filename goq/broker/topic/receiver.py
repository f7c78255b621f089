"""The receives of a topic: from all partitions in one call, waiting if nothing is ready.

A receive leases from one partition after the other until it has enough messages. It begins with the
partition whose next message is in the most urgent lane. If nothing is ready, the receive waits in
the queue of its group. Messages leave the node only when their leases are durable.

The queue depends on the ordering of the group and on the membership. When either changes, or the
group is deleted, the waiting receives begin from the top (:meth:`Receiver.restart`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from goq import limits
from goq.broker.group.coordinator import Coordinator
from goq.broker.log.pending_appends import Appended
from goq.broker.partition.leases import (
    LeasedBatch,
    MessagesNotCached,
    OnlySkipped,
)
from goq.broker.partition.partition import Partition
from goq.broker.runtime.metrics import TopicStats
from goq.broker.topic.partition_table import PartitionTable
from goq.broker.topic.stream_credit import CreditAccount
from goq.broker.topic.waiters import LogReaders, Waiters
from goq.config.topic import EffectiveSettings, Ordering
from goq.delivery.group.group import member_id
from goq.delivery.selection.redelivery import RetryRule
from goq.errors import GoqError, NotLeader, raise_failures

_PASS_ON_S = 0.2
_SEPARATOR = "/"  # not allowed in a group's name

_LeasedPart = tuple[LeasedBatch, asyncio.Future[Appended]]
_Leased = list[_LeasedPart]


@dataclass(frozen=True, slots=True)
class ReceiveRequest:
    """The parameters of a receive."""

    consumer: str
    messages_max: int
    bytes_max: int
    wait_ms: int
    visibility_ms: int | None
    session_id: str = ""
    """The stream, or the loop of a client: it tells members of one name apart."""
    account: CreditAccount | None = None
    """The credit of the stream that receives."""

    @property
    def member(self) -> str:
        """The id of the member that receives, where partitions belong to members."""
        return member_id(self.consumer, self.session_id)

    @property
    def is_silent(self) -> bool:
        """Whether the consumer let a lease expire and has shown no life since."""
        return self.account is not None and self.account.expired_count > 0


class Receiver:
    """Leases the messages of one topic. ``remember`` stores a group that it does not know."""

    def __init__(
        self,
        settings: EffectiveSettings,
        partitions: PartitionTable,
        coordinator: Coordinator,
        stats: TopicStats,
        remember: Callable[[str], Awaitable[None]],
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
        self._turn = 0
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
                try:
                    leased = await self._lease_cached(group, request)
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
                    await self.waiters.wait(queue, left_s, in_front=has_waited, consumer=consumer)
                    has_waited = True

    def has_members(self, group: str) -> bool:
        """Return whether each partition belongs to one consumer of the group."""
        return self._settings[group].ordering is Ordering.PARTITION

    @contextmanager
    def presence(self, group: str, consumer: str, session_id: str) -> Iterator[str]:
        """Keep a consumer a member while the block runs; yield the queue in which it waits.

        Nobody is a member unless the ordering is ``partition``. Raises as
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

    async def _lease_cached(self, group: str, request: ReceiveRequest) -> _Leased:
        """Lease messages in turns; read those that are not in memory in a thread first."""
        warmed: int | None = None
        while True:
            try:
                leased, is_paused = self._lease(group, request, warmed)
                break
            except _Warm as warm:
                warmed = warm.partition
                await self._partitions[warmed].warm(warm.offset, warm.messages)
            except OnlySkipped:
                await asyncio.sleep(0)  # there may be millions to skip: yield to other tasks
            except _Rebuild as rebuild:
                await self._partitions[rebuild.partition].rebuilt()
        if is_paused:
            await self._lease_rest(group, request, leased)
        return leased

    async def _lease_rest(self, group: str, request: ReceiveRequest, leased: _Leased) -> None:
        """Go on with a receive whose turn ended early, and add to what it leased."""
        is_paused = True
        try:
            while is_paused:
                await asyncio.sleep(0)
                more, is_paused = self._lease(group, request, None, leased)
                leased += more
        except (OnlySkipped, _Warm, _Rebuild, GoqError, OSError):
            pass  # the next receive deals with it
        except BaseException:
            self._undo(group, leased)
            raise

    def _lease(
        self,
        group: str,
        request: ReceiveRequest,
        warmed: int | None,
        before: Sequence[_LeasedPart] = (),
    ) -> tuple[_Leased, bool]:
        """Lease what is cached and has room besides what was leased ``before``, in one turn.

        Return also whether the turn ended before the receive was full.
        """
        messages = request.messages_max - sum([batch.message_count for batch, _ in before])
        size_bytes = request.bytes_max - sum([batch.size_bytes for batch, _ in before])
        leased: _Leased = []
        failed: GoqError | OSError | None = None
        is_cut = is_paused = False
        decided = 0
        has_passed_over = False
        is_silent = request.is_silent
        rule = RetryRule(
            request.consumer, is_silent, lambda: self._others_wait(group, request.consumer)
        )
        has_members = self.has_members(group)
        for partition in self._candidates(group, request, warmed):
            if messages <= 0 or size_bytes <= 0 or is_paused:
                is_cut = True
                break
            number = partition.identity.number
            try:
                found = partition.leases.receive(
                    group,
                    request.consumer,
                    messages,
                    request.visibility_ms,
                    bytes_max=size_bytes,
                    wait=number == warmed,
                    rule=rule,
                    session_id=request.session_id if has_members else "",
                )
                has_passed_over |= partition.leases.has_passed_over
            except MessagesNotCached as error:
                if leased:
                    is_cut = True
                    break  # return the cached ones; the next call reads the rest
                raise _Warm(number, *error.missing) from None
            except OnlySkipped:
                is_cut = is_paused = True
                continue
            except (GoqError, OSError) as error:
                failed = error  # other partitions may have messages
                continue
            if found is not None:
                batch = found[0]
                leased.append(found)
                is_cut |= batch.is_cut
                messages -= batch.message_count
                size_bytes -= batch.size_bytes
                decided += batch.message_count
                is_paused = batch.is_paused or decided >= limits.SELECTION_STEPS_MAX
        if has_passed_over:
            self.waiters.wake_other(group, None if is_silent else request.consumer)
        is_paused = is_paused and messages > 0 and size_bytes > 0
        if is_cut and not leased:
            raise OnlySkipped
        if failed is not None and not leased:
            raise failed
        if leased and (is_cut or messages <= 0):
            self._wake_group(group)  # there may be more; a receive without messages waits again
        return leased, is_paused

    def _others_wait(self, group: str, consumer: str) -> bool:
        """Return whether another consumer waits that takes retries."""
        queue = self.waiters.queues.get(group)
        return queue is not None and any(
            name is not None and name != consumer for name in queue.values()
        )

    def _candidates(
        self, group: str, request: ReceiveRequest, warmed: int | None
    ) -> Sequence[Partition]:
        """Return the online partitions to lease from, by most urgent lane, else in cyclic order.

        The partition that was ``warmed`` for this receive comes first.
        """
        if warmed is None:
            self._turn = (self._turn + 1) % self._partitions.count
        first = self._turn if warmed is None else warmed
        partitions = [p for p in self._partitions.in_turn(first) if p.availability.error is None]
        if self.has_members(group):
            own = self._coordinator.partitions_for(group, request.member)
            partitions = [p for p in partitions if p.identity.number in own]
        for partition in partitions:
            if not partition.ready_manager.is_ready_for(group):
                raise _Rebuild(partition.identity.number)
        if warmed is None and self._settings.topic.lane_weights is None and len(partitions) > 1:
            partitions.sort(key=lambda partition: partition.leases.next_lane(group))
        return partitions

    def receive_at_once(
        self, group: str, request: ReceiveRequest
    ) -> Coroutine[Any, Any, list[LeasedBatch]] | None:
        """Lease messages that are ready and in memory to a known group; None without any.

        The caller must run what it gets: it waits for the disk alone, and returns the batches.
        """
        if self.has_members(group):
            return None
        try:
            leased, is_paused = self._lease(group, request, None)
        except (OnlySkipped, _Warm, _Rebuild, GoqError, OSError):
            return None  # a receive that may wait deals with it
        return self._received(group, request, leased, is_paused) if leased else None

    async def _received(
        self, group: str, request: ReceiveRequest, leased: _Leased, is_paused: bool
    ) -> list[LeasedBatch]:
        if is_paused:
            await self._lease_rest(group, request, leased)
        return await self._hand_over(group, leased)

    async def _hand_over(self, group: str, leased: _Leased) -> list[LeasedBatch]:
        """Return the batches once their leases are durable; release them if cancelled."""
        try:
            results = await asyncio.gather(*(done for _, done in leased), return_exceptions=True)
        except asyncio.CancelledError:
            self._undo(group, leased)
            raise
        durable = []
        self._stats.begin(asyncio.get_running_loop().time())
        for (batch, _), result in zip(leased, results, strict=True):
            if not isinstance(result, BaseException):
                durable.append(batch)
                self._stats.delivered_messages += batch.message_count
        if not durable:
            raise_failures(results)
        return durable

    def _undo(self, group: str, leased: _Leased) -> None:
        for batch, _ in leased:
            with suppress(NotLeader):  # then the lease ends at the new leader
                leases = self._partitions[batch.partition].leases
                leases.undo_receive(group, batch.token, batch.spans)

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

    def on_ready(self, number: int, group: str | None) -> None:
        """Wake a consumer that may receive from a partition: one in each group, or in ``group``."""
        self._count_ready(group)
        for queue in list(self.waiters.queues):
            name, _, consumer = queue.partition(_SEPARATOR)
            if group in (None, name) and (
                not consumer or self._coordinator.owner(name, number) == consumer
            ):
                self.waiters.wake(queue)
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


def _queue_of(group: str, member: str) -> str:
    """Return the queue name of a member."""
    return f"{group}{_SEPARATOR}{member}"


class _Warm(Exception):
    """A receive has to read messages into memory before it can lease."""

    def __init__(self, partition: int, offset: int, messages: int) -> None:
        super().__init__()
        self.partition = partition
        self.offset = offset
        self.messages = messages


class _Rebuild(Exception):
    """A receive has to wait for a partition's ready state before it can lease."""

    def __init__(self, partition: int) -> None:
        super().__init__()
        self.partition = partition
