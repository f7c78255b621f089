"""The calls that settle messages by receipt, and extend their leases."""

from __future__ import annotations

from collections.abc import Iterable

from goq.client._async.consume.received_message import AsyncReceivedMessage, give_back, settle_many
from goq.client._async.consume.settlement import Settler, extend_details, nack_details
from goq.client.arguments import Duration, check_list
from goq.client.messages import Settled
from goq.errors import InvalidInput
from goq.model import Receipt, check_text

Receipts = Iterable[str | Receipt]


class AsyncSettlementClient:
    """The calls that settle messages; base of the client."""

    _settler: Settler

    async def ack(self, topic: str, group: str, receipts: Receipts) -> Settled:
        """Mark messages as done. The result names the receipts whose lease was lost."""
        return await self._settler.settle("ack", topic, group, _texts(receipts))

    async def nack(
        self,
        topic: str,
        group: str,
        receipts: Receipts,
        *,
        delay: Duration | None = None,
        reason: str | None = None,
    ) -> Settled:
        """Return messages for another attempt after ``delay``, by default the group's backoff.

        ``reason`` is kept in the trace and in dead letters.
        """
        details = nack_details(delay, reason)
        return await self._settler.settle("nack", topic, group, _texts(receipts), **details)

    async def reject(
        self, topic: str, group: str, receipts: Receipts, *, reason: str | None = None
    ) -> Settled:
        """Reject messages: they become dead letters at once."""
        details = nack_details(None, reason)
        return await self._settler.settle("reject", topic, group, _texts(receipts), **details)

    async def extend(
        self, topic: str, group: str, receipts: Receipts, *, visibility: Duration | None = None
    ) -> Settled:
        """Extend leases to ``visibility`` from now, by default the group's setting."""
        details = extend_details(visibility)
        return await self._settler.settle("extend", topic, group, _texts(receipts), **details)

    async def ack_many(self, messages: Iterable[AsyncReceivedMessage]) -> Settled:
        """Mark received messages as done, in one request for each topic and group."""
        return await settle_many(self._settler, "ack", _received(messages))

    async def nack_many(
        self,
        messages: Iterable[AsyncReceivedMessage],
        delay: Duration | None = None,
        reason: str | None = None,
    ) -> Settled:
        """Return received messages as ``message.nack`` does, in one request for each group."""
        details = nack_details(delay, reason)
        return await settle_many(self._settler, "nack", _received(messages), **details)

    async def reject_many(
        self, messages: Iterable[AsyncReceivedMessage], reason: str | None = None
    ) -> Settled:
        """Reject received messages as ``message.reject`` does, in one request for each group."""
        details = nack_details(None, reason)
        return await settle_many(self._settler, "reject", _received(messages), **details)

    async def release_many(self, messages: Iterable[AsyncReceivedMessage]) -> None:
        """Return received messages whose work did not begin: that counts no attempt.

        Where no node answers they come again after their visibility timeout.
        """
        released = _received(messages)
        await give_back(self._settler, released)
        for message in released:
            message.settled = True


def _texts(receipts: Receipts) -> list[str]:
    check_list(receipts, "receipts")
    return [check_text(str(receipt), "receipts") for receipt in receipts]


def _received(messages: Iterable[AsyncReceivedMessage]) -> list[AsyncReceivedMessage]:
    check_list(messages, "messages")
    received = list(messages)
    for message in received:
        if not isinstance(message, AsyncReceivedMessage):
            kind = type(message).__name__
            raise InvalidInput(f"messages has {kind}, which was not received", field="messages")
    return received
