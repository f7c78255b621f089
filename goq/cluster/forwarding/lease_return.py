"""The return of leases whose client is gone, to the nodes that lead now.

A node releases leases that it cannot deliver, without counting an attempt. This does the same
across nodes: when the client was connected to another node than the partition's leader, and when
the leader changed before the lease was known to be on enough disks. A lease whose messages were
delivered over a connection that closed ends, and has counted an attempt. While a partition has no
leader, this waits for one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

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
_log = logging.getLogger("goq.cluster")
_RETRY_S = 0.05

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


class LeaseReturn:
    """Returns leases to the leaders, and takes them back where this node leads."""

    def __init__(self, broker: Broker, call_leader: CallLeader) -> None:
        self._broker = broker
        self._call_leader = call_leader
        self._tasks = Tasks()
        self._is_closed = False

    async def close(self) -> None:
        """Return nothing more: this node stops. What is under way has a moment to be returned."""
        self._is_closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.LEASE_RETURN_AT_STOP_S):
                await self._tasks.finish()
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
        try:
            request = msgspec.msgpack.decode(body, type=_ReturnRequest)
        except msgspec.MsgspecError as error:
            raise InvalidFrame(f"this call cannot be read: {error}") from None
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
