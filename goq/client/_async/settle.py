"""Settling messages: done, given back, or held for longer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from goq import limits
from goq.client import routes, wire
from goq.client._async.http import Http
from goq.client.arguments import Duration, wire_duration
from goq.client.messages import FailedReceipt, Settled
from goq.client.problems import unreadable
from goq.client.tracecontext import traceparent_of
from goq.errors import BY_CODE, Conflict
from goq.model import Header, MessageId, Receipt


class Settler:
    """Sends receipts to the groups of topics.

    A settlement whose answer was lost is sent again. If the lost one had been carried out, the
    node no longer knows the lease: the receipts then come back as ``lease_lost``.
    """

    def __init__(self, http: Http) -> None:
        self._http = http
        self.listeners: list[Callable[[str, str, int], None]] = []
        """Called with topic, group and how many of their messages were let go of."""

    async def settle(
        self, verb: str, topic: str, group: str, receipts: Sequence[str], **details: object
    ) -> Settled:
        """Settle receipts, in as few requests as the limit of one allows."""
        done, failed = 0, list[FailedReceipt]()
        path = f"{routes.group(topic, group)}/{verb}"
        for start in range(0, len(receipts), limits.RECEIPTS_PER_REQUEST_MAX):
            piece = receipts[start : start + limits.RECEIPTS_PER_REQUEST_MAX]
            body = msgspec.json.encode({"receipts": piece, **details})
            answer = await self._http.request("POST", path, body, repeatable=True)
            try:
                settled = wire.decode_settled(answer.body)
            except msgspec.DecodeError as error:
                raise unreadable(path, error) from None
            done += settled.done
            failed.extend(settled.failed)
        if verb != "extend":
            for listener in list(self.listeners):
                listener(topic, group, done)
        return Settled(done, failed)

    async def settle_one(
        self, verb: str, topic: str, group: str, receipt: Receipt, **details: object
    ) -> None:
        """Settle one receipt; raise ``LeaseLost``, or what else the node says, if it is refused."""
        settled = await self.settle(verb, topic, group, [str(receipt)], **details)
        for failed in settled.failed:
            raise BY_CODE.get(failed.code, Conflict)(
                f"{topic}:{receipt.partition}:{receipt.start} could not be settled"
                f" ({failed.code}): its lease ended before, and the message was or will be given"
                " to another consumer; use a longer visibility, or extend it while you work"
            )


def nack_details(delay: Duration | None, reason: str | None) -> dict[str, Any]:
    """Return what a nack says besides its receipts."""
    details: dict[str, Any] = {}
    if delay is not None:
        details["delay"] = wire_duration(delay, "delay")
    if reason is not None:
        details["reason"] = reason[: limits.REASON_CHARS_MAX]
    return details


def extend_details(visibility: Duration | None) -> dict[str, Any]:
    """Return what an extension says besides its receipts."""
    return {} if visibility is None else {"visibility": wire_duration(visibility, "visibility")}


class AsyncReceivedMessage(msgspec.Struct, eq=False):
    """A message under a lease; times are microseconds.

    ``attempt`` counts from 1. It is this consumer's until ``lease_until``; ``ack`` says that it
    is done, ``nack`` gives it back, ``reject`` gives it up, ``extend`` keeps it for longer. Each
    costs a request: to settle many, ``client.ack_many`` costs one.
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
    settled: bool = False

    @property
    def id(self) -> MessageId:
        """Where the message is: ``topic:partition:offset``."""
        return MessageId(self.topic, self.partition, self.offset)

    @property
    def traceparent(self) -> str | None:
        """What the message says of the span that published it, unchecked."""
        return traceparent_of(self.headers)

    @property
    def receipt(self) -> str:
        """The right to settle the message, as the API writes it."""
        return str(self.claim())

    def claim(self) -> Receipt:
        """Return the receipt in its parts."""
        return Receipt(self.partition, self.token, self.offset, self.offset + 1)

    async def ack(self) -> None:
        """Mark the message as done; raise ``LeaseLost`` when it is no longer this consumer's."""
        await self._settle("ack")

    async def nack(self, delay: Duration | None = None, reason: str | None = None) -> None:
        """Give the message back, to come again after ``delay``."""
        await self._settle("nack", **nack_details(delay, reason))

    async def reject(self, reason: str | None = None) -> None:
        """Give the message up: it becomes a dead letter at once."""
        await self._settle("reject", **nack_details(None, reason))

    async def extend(self, visibility: Duration | None = None) -> None:
        """Keep the message for ``visibility`` from now, or for the group's own time."""
        await self._settler.settle_one(
            "extend", self.topic, self.group, self.claim(), **extend_details(visibility)
        )

    async def _settle(self, verb: str, **details: object) -> None:
        self.settled = True
        try:
            await self._settler.settle_one(verb, self.topic, self.group, self.claim(), **details)
        except Conflict:
            raise
        except BaseException:
            self.settled = False
            raise


def by_group(
    messages: Iterable[AsyncReceivedMessage],
) -> Iterator[tuple[str, str, list[AsyncReceivedMessage]]]:
    """Yield topic, group and the messages that came from them."""
    found: dict[tuple[str, str], list[AsyncReceivedMessage]] = {}
    for message in messages:
        found.setdefault((message.topic, message.group), []).append(message)
    for (topic, group), members in found.items():
        yield topic, group, members


def receipts_of(messages: Iterable[AsyncReceivedMessage]) -> list[str]:
    """Return the fewest receipts that name all messages."""
    return [str(run) for run in wire.runs_of(message.claim() for message in messages)]
