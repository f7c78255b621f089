"""Settlement: receipts sent to leaders, received messages, their extension and release."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

import msgspec

from goq import limits
from goq.client._async.consume.ack_batches import AckBatches
from goq.client._async.http import Http
from goq.client._async.runtime import sleep
from goq.client.arguments import Duration, wire_duration
from goq.client.cluster_map import TopicPartition
from goq.client.errors import UNREADABLE, unreadable
from goq.client.leases.message_buffer import NO_LEASE, LeaseTime, MessageBuffer
from goq.client.messages import FailedReceipt, Settled
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.retry import RequestFailure
from goq.client.tracing.trace_context import traceparent_of
from goq.errors import (
    BY_CODE,
    Conflict,
    GoqError,
    RouteNotFound,
    TimedOut,
    TopicNotFound,
    outcome_unknown,
    raise_failures,
)
from goq.model import Header, MessageId, Receipt, check_text


class Settler:
    """Sends the receipts of each partition to its leader.

    A settlement whose answer was lost is sent again. An ack that was carried out is then settled;
    of other verbs the node no longer knows the lease. So what it calls ``lease_lost`` then fails as
    ``timed_out``: settled, or lost. Leases survive a change of leader; while there is no leader,
    receipts are sent again.
    """

    def __init__(self, http: Http) -> None:
        self._http = http
        self._acks = AckBatches()
        self.listeners: list[Callable[[str, str, int, int], None]] = []
        """Called with topic, group, a partition, and how many messages were settled: of it and of
        others with the same leader."""

    async def settle(
        self,
        verb: str,
        topic: str,
        group: str,
        receipts: Sequence[str],
        *,
        until_s: float = inf,
        on_failed: Callable[[], None] = lambda: None,
        **details: object,
    ) -> Settled:
        """Settle receipts, with as few requests as leaders and the limit of a request allow.

        Where a leader cannot be asked and others can, its receipts fail with the code of the error.
        After ``until_s``, in monotonic seconds, nothing is tried again; ``on_failed`` comes before.
        """
        done, failed = 0, list[FailedReceipt]()
        errors: list[GoqError] = []
        if self._http.cluster_map.is_cluster:
            await self._http.find_leaders(topic)
        by_leader = self._by_leader(topic, receipts)
        for partition, some in by_leader:
            for start in range(0, len(some), limits.RECEIPTS_PER_REQUEST_MAX):
                piece = some[start : start + limits.RECEIPTS_PER_REQUEST_MAX]
                try:
                    settled = await self._settle(
                        verb, partition, group, piece, details, until_s, on_failed
                    )
                except GoqError as error:
                    if not error.retryable:
                        raise
                    errors.append(error)
                    failed.extend(FailedReceipt(receipt, error.code) for receipt in some[start:])
                    break
                done += settled.done
                failed.extend(settled.failed)
                if verb != "extend":
                    for listener in list(self.listeners):
                        listener(topic, group, partition.partition, settled.done)
        if len(errors) == len(by_leader):
            raise_failures(errors)
        return Settled(done, failed)

    async def _settle(
        self,
        verb: str,
        partition: TopicPartition,
        group: str,
        receipts: Sequence[str],
        details: Mapping[str, object],
        until_s: float,
        on_failed: Callable[[], None],
    ) -> Settled:
        """Settle receipts at one leader; retry those for which there was no leader."""
        path = f"{routes.group(partition.topic, group)}/{verb}"
        attempts = self._http.attempts(until_s, on_failed)
        done, failed = 0, list[FailedReceipt]()
        has_doubt = False
        while True:
            body = msgspec.json.encode({"receipts": receipts, **details})
            answer = await self._http.request(
                "POST",
                path,
                body,
                repeatable=True,
                partition=partition,
                until_s=until_s,
                on_failed=on_failed,
            )
            try:
                settled = wire.decode_settled(answer.body)
            except UNREADABLE as error:
                raise outcome_unknown(unreadable(path, error)) from None
            done += settled.done
            waiting = [each for each in settled.failed if _is_to_come(each)]
            has_doubt = has_doubt or answer.has_doubt
            ended = [each for each in settled.failed if each not in waiting]
            failed.extend(_doubtful(ended) if has_doubt else ended)
            has_doubt = has_doubt or any(each.code == TimedOut.code for each in waiting)
            pause_s = None
            if waiting:
                leaderless = BY_CODE[waiting[0].code](f"{path} found no leader")
                pause_s = attempts.pause_s(
                    RequestFailure(leaderless, maybe_done=True), repeatable=True
                )
            if pause_s is None:
                return Settled(done, [*failed, *(_doubtful(waiting) if has_doubt else waiting)])
            receipts = [each.receipt for each in waiting]
            await sleep(pause_s)

    def _by_leader(
        self, topic: str, receipts: Sequence[str]
    ) -> list[tuple[TopicPartition, Sequence[str]]]:
        """Return receipts by the leader of their partitions, each with one of the partitions."""
        if not receipts:
            return []
        if not self._http.cluster_map.is_cluster:
            return [(TopicPartition(topic, _partition_of(receipts[0])), receipts)]
        found: dict[str | None, tuple[TopicPartition, list[str]]] = {}
        for receipt in receipts:
            partition = TopicPartition(topic, _partition_of(receipt))
            found.setdefault(self._http.cluster_map.leader(partition), (partition, []))[1].append(
                receipt
            )
        return list(found.values())

    async def settle_one(
        self,
        verb: str,
        topic: str,
        group: str,
        receipt: Receipt,
        *,
        until_s: float = inf,
        **details: Any,
    ) -> None:
        """Settle one receipt; raise ``LeaseLost``, or the error of the node, if it is refused.

        Acks that wait for the same leader share a request.
        """
        if verb == "ack":
            failed = await self._ack(topic, group, receipt, until_s)
        else:
            given = [str(receipt)]
            settled = await self.settle(verb, topic, group, given, until_s=until_s, **details)
            failed = settled.failed[0] if settled.failed else None
        if failed is not None:
            if failed.code == TimedOut.code:
                raise TimedOut(
                    f"it is not known whether {topic}:{receipt.partition}:{receipt.start} was"
                    " settled; if it was not, the message is delivered again"
                )
            raise BY_CODE.get(failed.code, Conflict)(
                f"{topic}:{receipt.partition}:{receipt.start} could not be settled"
                f" ({failed.code}): it was settled before, or its lease ended and another consumer"
                " has or gets the message; use a longer visibility, or extend it while you work"
            )

    async def _ack(
        self, topic: str, group: str, receipt: Receipt, until_s: float
    ) -> FailedReceipt | None:
        send = partial(self.settle, "ack", topic, group)
        leader = self._http.cluster_map.leader(TopicPartition(topic, receipt.partition))
        return await self._acks.ack((topic, group, leader), str(receipt), until_s, send)


def _partition_of(receipt: str) -> int:
    """Return the partition of a receipt; 0 for a text that is none, which the node refuses."""
    text = receipt.partition(":")[0]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _doubtful(failed: Sequence[FailedReceipt]) -> list[FailedReceipt]:
    """Return receipts that an earlier attempt may have settled."""
    return [each._replace(code=TimedOut.code) for each in failed]


def _is_to_come(failed: FailedReceipt) -> bool:
    kind = BY_CODE.get(failed.code)
    return kind is not None and kind.retryable


def nack_details(delay: Duration | None, reason: str | None) -> dict[str, Any]:
    """Return the fields of a nack besides its receipts."""
    details: dict[str, Any] = {}
    if delay is not None:
        details["delay"] = wire_duration(delay, "delay")
    if reason is not None:
        details["reason"] = check_text(reason, "reason")[: limits.REASON_CHARS_MAX]
    return details


def extend_details(visibility: Duration | None) -> dict[str, Any]:
    """Return the fields of an extension besides its receipts."""
    return {} if visibility is None else {"visibility": wire_duration(visibility, "visibility")}


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
