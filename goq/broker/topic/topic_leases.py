"""Leases of a topic: one receive leases from one partition after the other.

It begins with the partition whose next message is in the most urgent lane, else in cyclic order. A
turn ends early to let others use the event loop, and where messages must be read from the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from goq import limits
from goq.broker.group.coordinator import Coordinator
from goq.broker.log.pending_appends import Appended
from goq.broker.partition.leases import LeasedBatch, MessagesNotCached, MustRepeat
from goq.broker.partition.partition import Partition
from goq.broker.topic.partition_table import PartitionTable
from goq.broker.topic.ready_partitions import ReadyPartitions
from goq.broker.topic.stream_credit import CreditAccount
from goq.broker.topic.waiters import Waiters
from goq.config.topic import EffectiveSettings, Ordering
from goq.delivery.group.lease import member_id
from goq.delivery.selection.redelivery import RetryRule
from goq.errors import GoqError

LeasedPart = tuple[LeasedBatch, asyncio.Future[Appended]]
Leased = list[LeasedPart]
ReturnLease = Callable[[str, LeasedBatch], None]
"""Has a group's lease released by the node that leads its partition by now."""


class LeaseRoom(Protocol):
    """How many messages the sender of a receive may still lease, over all topics."""

    def left(self) -> int:
        """Return how many may be leased now."""

    def take(self, messages: int) -> None:
        """Note messages that were leased."""


class ReceiveRequest(msgspec.Struct, frozen=True):
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
    room: LeaseRoom | None = None
    holder_id: str = ""
    """The id by which leases are returned if their leader is lost before its answer."""

    @property
    def member(self) -> str:
        """The id of the member that receives, where partitions belong to members."""
        return member_id(self.consumer, self.session_id)

    @property
    def has_room(self) -> bool:
        """Whether the sender may lease anything now."""
        return self.room is None or self.room.left() > 0

    @property
    def is_paused(self) -> bool:
        """Whether the stream may get no messages for now."""
        return self.account is not None and self.account.room <= 0

    @property
    def is_silent(self) -> bool:
        """Whether the consumer let a lease expire and has shown no life since."""
        return self.account is not None and self.account.expired_count > 0


class _Room(NamedTuple):
    """The messages and bytes that a receive may still lease."""

    messages: int
    size_bytes: int

    @staticmethod
    def of(request: ReceiveRequest) -> _Room:
        messages = request.messages_max
        if request.account is not None:  # its credit may have changed while it waited
            messages = max(0, min(messages, request.account.room))
        return _Room(messages, request.bytes_max)

    def less(self, leased: Iterable[LeasedPart]) -> _Room:
        messages, size_bytes = self
        for batch, _ in leased:
            messages -= batch.message_count
            size_bytes -= batch.size_bytes
        return _Room(messages, size_bytes)


class TopicLeases:
    """Leases the messages of one topic.

    ``wake_group`` wakes a waiter of each queue of a group. ``return_lease`` is for leases of
    partitions that other nodes lead by now.
    """

    def __init__(
        self,
        settings: EffectiveSettings,
        partitions: PartitionTable,
        ready: ReadyPartitions,
        coordinator: Coordinator,
        waiters: Waiters,
        wake_group: Callable[[str], None],
        return_lease: ReturnLease,
    ) -> None:
        self._settings = settings
        self._partitions = partitions
        self._ready = ready
        self._coordinator = coordinator
        self._waiters = waiters
        self._wake_group = wake_group
        self._return_lease = return_lease
        self._turn = 0

    async def lease_cached(self, group: str, request: ReceiveRequest) -> Leased:
        """Lease messages in turns; read those that are not in memory in a thread first."""
        warmed: int | None = None
        while True:
            try:
                leased, is_paused = self._lease(group, request, warmed)
                break
            except _Warm as warm:
                warmed = warm.partition
                await self._partitions[warmed].leases.warm(warm.offset, warm.messages)
            except MustRepeat:
                await asyncio.sleep(0)  # there may be millions to skip: yield to other tasks
            except _Rebuild as rebuild:
                await self._partitions[rebuild.partition].rebuilt()
        if is_paused:
            await self.lease_rest(group, request, leased)
        return leased

    async def lease_rest(self, group: str, request: ReceiveRequest, leased: Leased) -> None:
        """Go on with a receive whose turn ended early, and add to what it leased."""
        is_paused = True
        left = _Room.of(request).less(leased)
        try:
            while is_paused:
                await asyncio.sleep(0)
                more, is_paused = self._lease(group, request, None, left)
                left = left.less(more)
                leased += more
        except (MustRepeat, _Warm, _Rebuild, GoqError, OSError):
            pass  # the next receive deals with it
        except BaseException:
            self.undo(group, leased)
            raise

    def _lease(
        self,
        group: str,
        request: ReceiveRequest,
        warmed: int | None,
        left: _Room | None = None,
    ) -> tuple[Leased, bool]:
        """Lease what is cached and has room, in one turn; ``left`` is what earlier turns left.

        Return also whether the turn ended before the receive was full.
        """
        messages, size_bytes = left or _Room.of(request)
        if request.room is not None:
            messages = min(messages, request.room.left())
        if messages <= 0:
            return [], False
        leased: Leased = []
        failed: GoqError | OSError | None = None
        is_cut = is_paused = False
        decided = 0
        has_passed_over = False
        is_silent = request.is_silent
        rule = RetryRule(
            request.consumer,
            is_silent,
            lambda: self._waiters.other_takes_retries(group, request.consumer),
        )
        has_members = self._has_members(group)
        for partition in self._candidates(group, request, warmed):
            if messages <= 0 or size_bytes <= 0 or is_paused:
                is_cut = True
                break
            number = partition.identity.number
            if not partition.ready_manager.is_ready_for(group):
                if leased:
                    is_cut = True
                    break
                raise _Rebuild(number)
            self._ready.note_change(number, group)
            try:
                found = partition.leases.receive(
                    group,
                    request.consumer,
                    messages,
                    request.visibility_ms,
                    bytes_max=size_bytes,
                    wait=number == warmed,
                    rule=rule,
                    session_id=request.session_id if has_members else request.holder_id,
                )
                has_passed_over |= partition.leases.has_passed_over
            except MessagesNotCached as error:
                if leased:
                    is_cut = True
                    break  # return the cached ones; the next call reads the rest
                raise _Warm(number, *error.missing) from None
            except MustRepeat:
                is_cut = is_paused = True
                continue
            except (GoqError, OSError) as error:
                failed = error  # other partitions may have messages
                continue
            if found is not None:
                batch = found[0]
                leased.append(found)
                is_cut |= batch.is_cut
                count = batch.message_count
                messages -= count
                if request.room is not None:
                    request.room.take(count)
                size_bytes -= batch.size_bytes
                decided += count
                is_paused = batch.is_paused or decided >= limits.SELECTION_STEPS_MAX
        if has_passed_over:
            self._waiters.wake_other(group, None if is_silent else request.consumer)
        is_paused = is_paused and messages > 0 and size_bytes > 0
        if is_cut and not leased:
            raise MustRepeat
        if failed is not None and not leased:
            raise failed
        if leased and (is_cut or messages <= 0):
            self._wake_group(group)  # there may be more; a receive without messages waits again
        return leased, is_paused

    def _candidates(
        self, group: str, request: ReceiveRequest, warmed: int | None
    ) -> Iterator[Partition]:
        """Return the partitions to lease from, by most urgent lane, else in cyclic order.

        The partition that was ``warmed`` for this receive comes first.
        """
        by_lane = warmed is None and self._settings.topic.lane_weights is None
        if warmed is None:
            self._turn = (self._turn + 1) % self._partitions.count
        first = self._turn if warmed is None else warmed
        if not self._ready.look(group):
            raise MustRepeat
        partitions = self._ready.in_order(group, first, by_lane=by_lane)
        if not self._has_members(group):
            return partitions
        own = self._coordinator.partitions_for(group, request.member)
        return (each for each in partitions if each.identity.number in own)

    def lease_at_once(self, group: str, request: ReceiveRequest) -> tuple[Leased, bool]:
        """Lease what is ready and in memory; return also whether the turn ended early.

        Nothing is leased where a receive would have to wait, or fail.
        """
        try:
            return self._lease(group, request, None)
        except (MustRepeat, _Warm, _Rebuild, GoqError, OSError):
            return [], False  # a receive that may wait deals with it

    def _has_members(self, group: str) -> bool:
        return self._settings[group].ordering is Ordering.PARTITION

    def undo(self, group: str, leased: Iterable[LeasedPart]) -> None:
        """Release what was leased and never handed over, as far as it is recorded."""
        self.release(group, [batch for batch, _ in leased])

    def release(self, group: str, batches: Iterable[LeasedBatch]) -> None:
        """Release leases that reach no consumer, wherever their partitions are led by now."""
        for batch in batches:
            partition = self._partitions.get(batch.partition)
            return_lease = partial(self._return_lease, group, batch)
            if partition is None:
                return_lease()
                continue
            undo = partial(partition.leases.undo_receive, group, batch.token, batch.spans)
            unless_recorded(undo, return_lease)


def unless_recorded(
    record: Callable[[], asyncio.Future[Appended] | None], otherwise: Callable[[], object]
) -> None:
    """Record events in the background; call ``otherwise`` if they are not known to be committed.

    The next leader of the partition does not have them then.
    """

    def on_done(recorded: asyncio.Future[Appended]) -> None:
        if recorded.cancelled() or recorded.exception() is not None:
            otherwise()

    try:
        recorded = record()
    except GoqError:
        otherwise()
    else:
        if recorded is not None:
            recorded.add_done_callback(on_done)


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
