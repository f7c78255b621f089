"""Settlement: receipts sent to leaders, received messages, and the extension of their leases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from goq import limits
from goq.client._async.http import Http
from goq.client._async.runtime import Monitor, Worker, sleep
from goq.client.arguments import Duration, wire_duration
from goq.client.cluster_map import TopicPartition
from goq.client.errors import unreadable
from goq.client.messages import FailedReceipt, Settled
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.retry import RequestFailure
from goq.client.tracing.trace_context import traceparent_of
from goq.errors import BY_CODE, Conflict, GoqError, TimedOut
from goq.model import Header, MessageId, Receipt


class Settler:
    """Sends the receipts of each partition to its leader.

    A settlement whose answer was lost is sent again. If the first one was carried out, the node no
    longer knows the lease. So what it calls ``lease_lost`` then fails as ``timed_out``: settled, or
    lost. Leases survive a change of leader; while there is no leader, receipts are sent again.
    """

    def __init__(self, http: Http) -> None:
        self._http = http
        self.listeners: list[Callable[[str, str, int, int], None]] = []
        """Called with topic, group, a partition, and how many messages were settled: of it and of
        others with the same leader."""

    async def settle(
        self, verb: str, topic: str, group: str, receipts: Sequence[str], **details: object
    ) -> Settled:
        """Settle receipts, with as few requests as leaders and the limit of a request allow."""
        done, failed = 0, list[FailedReceipt]()
        if self._http.cluster_map.is_cluster:
            await self._http.find_leaders(topic)
        for partition, some in self._by_leader(topic, receipts):
            for start in range(0, len(some), limits.RECEIPTS_PER_REQUEST_MAX):
                piece = some[start : start + limits.RECEIPTS_PER_REQUEST_MAX]
                settled = await self._settle(verb, partition, group, piece, details)
                done += settled.done
                failed.extend(settled.failed)
                if verb != "extend":
                    for listener in list(self.listeners):
                        listener(topic, group, partition.partition, settled.done)
        return Settled(done, failed)

    async def _settle(
        self,
        verb: str,
        partition: TopicPartition,
        group: str,
        receipts: Sequence[str],
        details: Mapping[str, object],
    ) -> Settled:
        """Settle receipts at one leader; retry those for which there was no leader."""
        path = f"{routes.group(partition.topic, group)}/{verb}"
        attempts = self._http.attempts()
        done, failed = 0, list[FailedReceipt]()
        has_doubt = False
        while True:
            body = msgspec.json.encode({"receipts": receipts, **details})
            answer = await self._http.request(
                "POST", path, body, repeatable=True, partition=partition
            )
            try:
                settled = wire.decode_settled(answer.body)
            except msgspec.DecodeError as error:
                raise unreadable(path, error) from None
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
        self, verb: str, topic: str, group: str, receipt: Receipt, **details: object
    ) -> None:
        """Settle one receipt; raise ``LeaseLost``, or the error of the node, if it is refused."""
        settled = await self.settle(verb, topic, group, [str(receipt)], **details)
        for failed in settled.failed:
            if failed.code == TimedOut.code:
                raise TimedOut(
                    f"it is not known whether {topic}:{receipt.partition}:{receipt.start} was"
                    " settled; if it was not, the message is delivered again"
                )
            raise BY_CODE.get(failed.code, Conflict)(
                f"{topic}:{receipt.partition}:{receipt.start} could not be settled"
                f" ({failed.code}): its lease ended before, and the message was or will be given"
                " to another consumer; use a longer visibility, or extend it while you work"
            )


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
        details["reason"] = reason[: limits.REASON_CHARS_MAX]
    return details


def extend_details(visibility: Duration | None) -> dict[str, Any]:
    """Return the fields of an extension besides its receipts."""
    return {} if visibility is None else {"visibility": wire_duration(visibility, "visibility")}


class AsyncReceivedMessage(msgspec.Struct, eq=False):
    """A message that is leased to this consumer. Times are microseconds since 1970.

    ``timestamp`` is the append time, ``attempt`` counts deliveries from 1, and the lease ends at
    ``lease_until``. ``value`` is None for a tombstone. Settle it before the lease ends:
    ``ack`` when it is done, ``nack`` to give it back, ``reject`` to make it a dead letter,
    ``extend`` to keep it. Each is one request; ``client.ack_many`` settles many messages with one.
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
    """Yield the messages of each topic and group, with these."""
    found: dict[tuple[str, str], list[AsyncReceivedMessage]] = {}
    for message in messages:
        found.setdefault((message.topic, message.group), []).append(message)
    for (topic, group), members in found.items():
        yield topic, group, members


def receipts_of(messages: Iterable[AsyncReceivedMessage]) -> list[str]:
    """Return the fewest receipts that name all messages."""
    return [str(run) for run in wire.runs_of(message.claim() for message in messages)]


_PERIOD_MS_MIN, _PERIOD_MS_MAX = 1000, 10_000


class LeaseExtender:
    """Extends the leases of the messages that it watches, three times within their visibility.

    A message is watched until it is settled, its lease is found lost, or the extender stops.
    """

    def __init__(self, settler: Settler, visibility_ms: int | None) -> None:
        self._settler = settler
        self._visibility_ms = visibility_ms
        self._watched: list[AsyncReceivedMessage] = []
        self._period_s = 0.0
        self._monitor = Monitor()
        self._worker: Worker | None = None
        self._stopped = False

    def watch(self, messages: Sequence[AsyncReceivedMessage]) -> None:
        """Watch messages as they were received."""
        with self._monitor:
            self._watched.extend(messages)
        if self._worker is None and messages:
            self._period_s = self._period_of(messages[0]) / 1000
            self._worker = Worker(self._work)

    async def stop(self) -> None:
        """Stop extending; return when the worker has ended."""
        with self._monitor:
            self._stopped = True
            self._monitor.notify_all()
        if self._worker is not None:
            await self._worker.join()

    async def renew(self) -> None:
        """Extend the leases of watched messages that are not settled; forget the others."""
        with self._monitor:
            self._watched = [message for message in self._watched if not message.settled]
            watched = list(self._watched)
        asked = {}
        if self._visibility_ms is not None:
            asked = extend_details(self._visibility_ms / 1000)
        for topic, group, members in by_group(watched):
            try:
                settled = await self._settler.settle(
                    "extend", topic, group, receipts_of(members), **asked
                )
            except GoqError:
                continue  # the next period tries again, while the lease lasts
            lost = [Receipt.parse(failed.receipt) for failed in settled.failed]
            self._forget([message for message in members if _is_in(message.claim(), lost)])

    async def _work(self) -> None:
        while True:
            renew_at_s = time.monotonic() + self._period_s
            with self._monitor:
                while not self._stopped and (left_s := renew_at_s - time.monotonic()) > 0:
                    await self._monitor.wait(left_s)
                if self._stopped:
                    return
            await self.renew()

    def _forget(self, messages: Sequence[AsyncReceivedMessage]) -> None:
        gone = set(map(id, messages))
        with self._monitor:
            self._watched = [message for message in self._watched if id(message) not in gone]

    def _period_of(self, message: AsyncReceivedMessage) -> float:
        if self._visibility_ms is not None:
            return max(self._visibility_ms / 3, 100)
        lasts_ms = message.lease_until / 1000 - time.time() * 1000
        return min(max(lasts_ms / 3, _PERIOD_MS_MIN), _PERIOD_MS_MAX)


def _is_in(claim: Receipt, runs: Sequence[Receipt]) -> bool:
    return any(run[:2] == claim[:2] and run.start <= claim.start < run.end for run in runs)
