"""The return of leases whose messages never reached their client, to the nodes that granted them.

A node releases leases that it cannot deliver, without counting an attempt. This does the same
across nodes, when the client was connected to another node than the partition's leader.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from goq.broker.broker import Broker
from goq.cluster.rpc.server import CALL_PREFIX
from goq.errors import GoqError, InvalidFrame
from goq.model import Receipt

RETURN_LEASES = CALL_PREFIX + "return-leases"
_log = logging.getLogger("goq.cluster")

CallLeader = Callable[[str, int, str, bytes], Awaitable[bytes]]
"""Calls a partition's leader: topic, number, path, body. ``NotLeader`` while there is none."""


class _ReturnRequest(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    group: str
    partition: int
    leases: list[tuple[int, int, int]]
    """Tokens, and the ranges of offsets, start and end."""


class LeaseReturn:
    """Returns leases to the leaders, and takes them back where this node leads."""

    def __init__(self, broker: Broker, call_leader: CallLeader) -> None:
        self._broker = broker
        self._call_leader = call_leader

    async def return_leases(self, topic: str, group: str, receipts: Iterable[Receipt]) -> None:
        """Return leases by their receipts. If that fails, they end at their deadlines."""
        leases: dict[int, list[tuple[int, int, int]]] = {}
        for receipt in receipts:
            some = leases.setdefault(receipt.partition, [])
            some.append((receipt.token, receipt.start, receipt.end))
        for number, some in leases.items():
            request = _ReturnRequest(topic, group, number, some)
            try:
                if self._broker.topic(topic).partitions.get(number) is not None:
                    self._release(request)
                else:
                    body = msgspec.msgpack.encode(request)
                    await self._call_leader(topic, number, RETURN_LEASES, body)
            except GoqError as error:
                _log.info(
                    "partition %d of %s keeps leases until they end: %s", number, topic, error
                )

    async def handle_return(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Release leases that this node granted to a client of another node."""
        try:
            request = msgspec.msgpack.decode(body, type=_ReturnRequest)
        except msgspec.MsgspecError as error:
            raise InvalidFrame(f"this call cannot be read: {error}") from None
        self._release(request)
        return []

    def _release(self, request: _ReturnRequest) -> None:
        topic = self._broker.topic(request.topic)
        partition = topic.partitions[request.partition]
        for token, start, end in request.leases:
            partition.leases.undo_receive(request.group, token, [(start, end, 0)])
        topic.receiver.wake()
