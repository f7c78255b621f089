"""Giving back messages that were leased for a client of another node and never reached it.

It counts as no attempt, as where a node does so for a client of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from goq.broker.broker import Broker
from goq.errors import GoqError, InvalidFrame
from goq.model import Receipt

RETURN_LEASES = "/cluster/give_back"
_log = logging.getLogger("goq.cluster")

CallLeader = Callable[[str, int, str, bytes], Awaitable[bytes]]
"""Calls the node that leads a partition: topic, number, path, body. ``NotLeader`` if none does."""


class _ReturnRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
    group: str
    partition: int
    leases: list[tuple[int, int, int]]
    """Tokens, and the offsets that are given back."""


class LeaseReturn:
    """Both sides of it."""

    def __init__(self, broker: Broker, call_leader: CallLeader) -> None:
        self._broker = broker
        self._call_leader = call_leader

    async def give_back(self, topic: str, group: str, receipts: Iterable[Receipt]) -> None:
        """Give back what was leased; where that fails, the end of its lease does."""
        leases: dict[int, list[tuple[int, int, int]]] = {}
        for receipt in receipts:
            some = leases.setdefault(receipt.partition, [])
            some.append((receipt.token, receipt.start, receipt.end))
        for number, some in leases.items():
            given = _ReturnRequest(topic, group, number, some)
            try:
                if self._broker.topic(topic).partitions.get(number) is not None:
                    self._take(given)
                else:
                    body = msgspec.msgpack.encode(given)
                    await self._call_leader(topic, number, RETURN_LEASES, body)
            except GoqError as error:
                _log.info(
                    "partition %d of %s keeps leases until they end: %s", number, topic, error
                )

    async def answer(self, _node: str, body: bytes) -> list[bytes | memoryview]:
        """Take back what this node leased for a client of another."""
        try:
            given = msgspec.msgpack.decode(body, type=_ReturnRequest)
        except msgspec.MsgspecError as error:
            raise InvalidFrame(f"this call cannot be read: {error}") from None
        self._take(given)
        return []

    def _take(self, given: _ReturnRequest) -> None:
        topic = self._broker.topic(given.topic)
        partition = topic.partitions[given.partition]
        for token, start, end in given.leases:
            partition.undo_receive(given.group, token, [(start, end, 0)])
        topic.wake()
