"""The return of leases whose client is gone, to the nodes that lead now.

A node releases leases that it cannot deliver, without counting an attempt. This does the same
across nodes: when the client was connected to another node than the partition's leader, and when
the leader changed before the lease was known to be on enough disks. A lease whose messages were
delivered over a connection that closed ends, and has counted an attempt. While a partition has no
leader, this waits for one.

A node that leases for a client of another node records that client's stream or receive as the
*holder* of the lease. When the stream closes, or no answer to the receive came, the other node asks
all leaders to return what that holder has: the leader that leased may have died.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from goq import limits
from goq.broker.broker import Broker
from goq.broker.partition.leases import LeasedBatch
from goq.broker.runtime.tasks import Tasks
from goq.broker.topic.push_streams import CONNECTION_CLOSED
from goq.clock import TimeSlice
from goq.cluster.rpc.server import CALL_PREFIX
from goq.errors import GoqError, InvalidFrame, NotLeader, TopicNotFound
from goq.model import Receipt

RETURN_LEASES = CALL_PREFIX + "return-leases"
RETURN_HELD = CALL_PREFIX + "return-held"
_log = logging.getLogger("goq.cluster")
_RETRY_S = 0.05
_RETRY_S_MAX = 1.0
T = TypeVar("T")

CallLeader = Callable[[str, int, str, bytes], Awaitable[bytes]]
"""Calls a partition's leader: topic, number, path, body. ``NotLeader`` while there is none."""


class _ReturnRequest(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    group: str
    partition: int
    leases: list[tuple[int, int, int]]
    """Tokens, and the ranges of offsets, start and end."""
    reason: str = ""
    """Why the leases end, where their messages were delivered."""


class _HeldRequest(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    group: str
    holder_id: str
    partitions: list[int]
    reason: str


class LeaseReturn:
    """Returns leases to the leaders, and takes them back where this node leads.

    ``leaders`` returns the leader of each partition of a topic, None where there is none.
    """

    def __init__(
        self,
        broker: Broker,
        call_leader: CallLeader,
        leaders: Callable[[str], Sequence[str | None]],
    ) -> None:
        self._broker = broker
        self._call_leader = call_leader
        self._leaders = leaders
        self._tasks = Tasks()
        self._is_closed = False

    async def close(self) -> None:
        """Return nothing more: this node stops. What is under way has a moment to be returned."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.LEASE_RETURN_AT_STOP_S):
                await self._tasks.finish()
        self._is_closed = True  # not before: requests that end now have leases to return, too
        self._tasks.cancel()

    def return_lease(self, topic: str, group: str, batch: LeasedBatch) -> None:
        """Return a lease of a partition that another node leads by now, in the background."""
        if self._is_closed:
            return
        leases = [(batch.token, start, end) for start, end, _ in batch.spans]
        self._tasks.start(self._return(_ReturnRequest(topic, group, batch.partition, leases)))

    def end_leases(self, topic: str, group: str, partition: int, tokens: Iterable[int]) -> None:
        """End leases of a connection that closed, in the background."""
        if self._is_closed:
            return
        leases = [(token, 0, 0) for token in tokens]
        request = _ReturnRequest(topic, group, partition, leases, CONNECTION_CLOSED)
        self._tasks.start(self._return(request))

    async def return_leases(self, topic: str, group: str, receipts: Iterable[Receipt]) -> None:
        """Return leases by their receipts. If that fails, they end at their deadlines."""
        leases: dict[int, list[tuple[int, int, int]]] = {}
        for receipt in receipts:
            some = leases.setdefault(receipt.partition, [])
            token, start, end = receipt.token, receipt.start, receipt.end
            if some and some[-1][::2] == (token, start):  # each message of a lease has a receipt
                start = some.pop()[1]
            some.append((token, start, end))
        returns = [
            self._tasks.start(self._return(_ReturnRequest(topic, group, n, some)))
            for n, some in leases.items()
            if not self._is_closed
        ]
        await asyncio.gather(*returns, return_exceptions=True)

    def return_held(self, topic: str, group: str, holder_id: str, reason: str = "") -> None:
        """Release all leases of a receive, or end those of a stream for a ``reason``.

        This goes on in the background. The leader that leased may have died: the event log names
        the holder, so the next one knows.
        """
        if not self._is_closed:
            self._tasks.start(self._return_held(topic, group, holder_id, reason))

    async def _return_held(self, topic: str, group: str, holder_id: str, reason: str) -> None:
        """Ask each leader for its partitions, until all have been asked, or for a while."""
        until_s = asyncio.get_running_loop().time() + limits.LEASE_RETURN_S
        left, pause_s = set(range(len(self._led(topic)))), _RETRY_S
        while True:
            for numbers in self._by_leader(topic, left):
                request = _HeldRequest(topic, group, holder_id, numbers, reason)
                try:
                    left.difference_update(await self._ask_for_held(request))
                except GoqError as error:
                    if not error.retryable:  # of an earlier version
                        left.difference_update(numbers)
            left.intersection_update(range(len(self._led(topic))))
            if not left or asyncio.get_running_loop().time() >= until_s:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_S_MAX)  # all streams of a topic may wait for a leader

    def _by_leader(self, topic: str, partitions: Collection[int]) -> list[list[int]]:
        found: dict[str | None, list[int]] = {}
        for number, leader in enumerate(self._led(topic)):
            if number in partitions:
                found.setdefault(leader, []).append(number)
        found.pop(None, None)
        return list(found.values())

    def _led(self, topic: str) -> Sequence[str | None]:
        """Return the leader of each partition; of none once the topic is deleted."""
        try:
            return self._leaders(topic)
        except TopicNotFound:
            return ()

    async def _ask_for_held(self, request: _HeldRequest) -> list[int]:
        """Return the partitions that need not be asked for any more."""
        first = request.partitions[0]
        if self._broker.topic(request.topic).partitions.get(first) is not None:
            return await self._release_held(request)
        body = msgspec.msgpack.encode(request)
        answer = await self._call_leader(request.topic, first, RETURN_HELD, body)
        return msgspec.msgpack.decode(answer, type=list[int])

    async def handle_held(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Return or end what a client of another node holds; answer for which partitions."""
        done = await self._release_held(_decoded(body, _HeldRequest))
        return [msgspec.msgpack.encode(done)]

    async def _release_held(self, request: _HeldRequest) -> list[int]:
        """Return or end the leases of one holder; return the partitions where that is durable."""
        done: list[int] = []
        for number in request.partitions:
            with suppress(GoqError):
                leases = self._broker.topic(request.topic).partitions[number].leases
                held = leases.held_by(request.group, request.holder_id)
                group, reason = request.group, request.reason
                await self._release(_ReturnRequest(request.topic, group, number, held, reason))
                done.append(number)
        return done

    async def _return(self, request: _ReturnRequest) -> None:
        """Return leases of one partition; try again for a while, which changes nothing twice."""
        until_s = asyncio.get_running_loop().time() + limits.LEASE_RETURN_S
        while True:
            try:
                topic = self._broker.topic(request.topic)
                if topic.partitions.get(request.partition) is not None:
                    await self._release(request)
                else:
                    body = msgspec.msgpack.encode(request)
                    await self._call_leader(request.topic, request.partition, RETURN_LEASES, body)
                return
            except GoqError as error:
                is_over = asyncio.get_running_loop().time() >= until_s
                if is_over or not error.retryable:
                    where = f"{request.topic}:{request.partition}"
                    _log.info("%s keeps leases until they end: %s", where, error)
                    return
            await asyncio.sleep(_RETRY_S)

    async def handle_return(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Release or end leases of a client of another node."""
        request = _decoded(body, _ReturnRequest)
        try:
            await self._release(request)
        except TopicNotFound:  # the sender knows it: this node starts, and has not opened it yet
            raise NotLeader(f"this node does not lead {request.topic} yet") from None
        return []

    async def _release(self, request: _ReturnRequest) -> None:
        """Release or end leases; return when that is durable."""
        topic = self._broker.topic(request.topic)
        leases = topic.partitions[request.partition].leases
        leases.check_room()
        time_slice = TimeSlice()
        at_once = limits.LEASES_ENDED_AT_ONCE if request.reason else 1
        for at in range(0, len(request.leases), at_once):
            if time_slice.is_over:
                await time_slice.next()
            some = request.leases[at : at + at_once]
            if request.reason:
                leases.end_leases(request.group, [token for token, _, _ in some], request.reason)
            else:
                ((token, start, end),) = some
                leases.undo_receive(request.group, token, [(start, end, 0)])
        topic.receiver.wake()
        await leases.wait_for_commit()


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidFrame(f"this call cannot be read: {error}") from None
