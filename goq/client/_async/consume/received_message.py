"""Received messages: settled one by one or together, their leases extended, given back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any

import msgspec

from goq.client._async.consume.settlement import Settler, extend_details, nack_details
from goq.client.arguments import Duration
from goq.client.leases.message_buffer import NO_LEASE, LeaseTime, MessageBuffer
from goq.client.messages import FailedReceipt, Settled
from goq.client.protocol import frames as wire
from goq.client.tracing.trace_context import traceparent_of
from goq.errors import BY_CODE, Conflict, GoqError, RouteNotFound, TopicNotFound
from goq.model import Header, MessageId, Receipt


class AsyncReceivedMessage(msgspec.Struct, eq=False):
    """A message that is leased to this consumer. Times are microseconds since 1970.

    ``timestamp`` is the append time, ``attempt`` counts deliveries from 1, and the lease ends at
    ``lease_until``. ``value`` is None for a tombstone. Settle it before the lease ends:
    ``ack`` when it is done, ``nack`` to give it back, ``reject`` to make it a dead letter,
    ``extend`` to keep it. Each is one request, but for acks that come while others are under way:
    those share one. ``client.ack_many`` settles many messages with one.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    value: bytes | None
    key: bytes | None
    headers: Sequence[Header]
    priority: str
    tenant: str | None
    deliver_at: int | None
    expires_at: int | None
    group: str
    attempt: int
    token: int
    lease_until: int
    _settler: Settler
    lease_time: LeaseTime = NO_LEASE
    settled: bool = False
    is_given_up_with_lease: bool = False
    """Whether a settlement that fails is tried again only for as long as the lease lasts."""

    @property
    def id(self) -> MessageId:
        """The id of the message: ``topic:partition:offset``."""
        return MessageId(self.topic, self.partition, self.offset)

    @property
    def traceparent(self) -> str | None:
        """The ``traceparent`` header of the message, unchecked; None without one."""
        return traceparent_of(self.headers)

    @property
    def receipt(self) -> str:
        """The receipt that settles the message, as the API writes it."""
        return str(self.claim())

    def claim(self) -> Receipt:
        """Return the receipt in its parts."""
        return Receipt(self.partition, self.token, self.offset, self.offset + 1)

    async def ack(self) -> None:
        """Mark the message as done. Raises ``LeaseLost`` where the lease has ended."""
        await self._settle("ack")

    async def nack(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """Give the message back, to be delivered again after ``delay`` or the group's backoff.

        ``reason`` is kept in the trace and in a dead letter. Raises ``LeaseLost``.
        """
        await self._settle("nack", **nack_details(delay, reason))

    async def reject(self, reason: str | None = None) -> None:
        """Give the message up: it becomes a dead letter at once. Raises ``LeaseLost``."""
        await self._settle("reject", **nack_details(None, reason))

    async def extend(self, visibility: Duration | None = None) -> None:
        """Extend the lease to ``visibility`` from now, by default the group's setting.

        Raises ``LeaseLost``.
        """
        await self._settler.settle_one(
            "extend", self.topic, self.group, self.claim(), **extend_details(visibility)
        )

    async def _settle(self, verb: str, **details: object) -> None:
        self.settled = True
        until_s = self.lease_time.ends_s if self.is_given_up_with_lease else inf
        try:
            await self._settler.settle_one(
                verb, self.topic, self.group, self.claim(), until_s=until_s, **details
            )
        except Conflict:
            raise
        except BaseException:
            self.settled = False
            raise


def by_group(
    messages: Iterable[AsyncReceivedMessage],
) -> Iterator[tuple[str, str, list[AsyncReceivedMessage]]]:
    """Yield the messages of each topic and group, with these."""
    found: dict[tuple[str, str], list[AsyncReceivedMessage]] = {}
    for message in messages:
        found.setdefault((message.topic, message.group), []).append(message)
    for (topic, group), members in found.items():
        yield topic, group, members


def receipts_of(messages: Iterable[AsyncReceivedMessage]) -> list[str]:
    """Return the fewest receipts that name all messages."""
    return [str(run) for run in wire.runs_of(message.claim() for message in messages)]


async def settle_many(
    settler: Settler, verb: str, messages: Iterable[AsyncReceivedMessage], **details: Any
) -> Settled:
    """Settle received messages, in one request for each topic and group.

    Receipts of a topic that was deleted meanwhile fail; they keep no other topic's from their end.
    """
    done, failed = 0, list[FailedReceipt]()
    for topic, group, members in by_group(messages):
        receipts = receipts_of(members)
        try:
            settled = await settler.settle(verb, topic, group, receipts, **details)
        except TopicNotFound as error:
            settled = Settled(0, [FailedReceipt(receipt, error.code) for receipt in receipts])
        leased = [Receipt.parse(each.receipt) for each in settled.failed if _may_be_leased(each)]
        for message in members:
            claim = message.claim()
            message.settled = not any(run.covers(claim) for run in leased)
        done += settled.done
        failed.extend(settled.failed)
    return Settled(done, failed)


def _may_be_leased(failed: FailedReceipt) -> bool:
    """Return whether the failure does not say that the lease has ended."""
    return not issubclass(BY_CODE.get(failed.code, Conflict), (Conflict, TopicNotFound))


async def extend_leases(
    settler: Settler,
    buffer: MessageBuffer[AsyncReceivedMessage],
    messages: Iterable[AsyncReceivedMessage],
) -> None:
    """Extend leases of a buffer to their length from now; those that are lost are dropped.

    Where no node answers they last as before.
    """
    for topic, group, some in by_group(messages):
        length_s = max(message.lease_time.length_s for message in some)
        until_s = min(message.lease_time.ends_s for message in some)
        receipts = receipts_of(some)
        asked_s = time.monotonic()
        with contextlib.suppress(GoqError):
            settled = await settler.settle(
                "extend", topic, group, receipts, until_s=until_s, **extend_details(length_s)
            )
            buffer.extended(some, LeaseTime(length_s, asked_s), settled.failed)


async def give_back(settler: Settler, messages: Sequence[AsyncReceivedMessage]) -> None:
    """Release messages that no handler began, so that none waits for its visibility timeout.

    That counts no attempt. A node that cannot release them counts one. Where no node answers they
    come again after their visibility timeout.
    """
    with contextlib.suppress(GoqError):
        for topic, group, members in by_group(messages):
            receipts = receipts_of(members)
            try:
                await settler.settle("release", topic, group, receipts)
            except RouteNotFound:
                await settler.settle("nack", topic, group, receipts, **nack_details(0, None))
            except TopicNotFound:
                continue  # nothing waits there; messages of other topics do
