"""Settlement: receipts that are sent to leaders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from goq.client.messages import FailedReceipt, Settled
from goq.client.protocol import frames as wire
from goq.client.protocol import routes
from goq.client.retry import RequestFailure
from goq.errors import (
    BY_CODE,
    Conflict,
    GoqError,
    TimedOut,
    outcome_unknown,
    raise_failures,
)
from goq.model import Receipt, check_text


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
        So do those of a request that fails when another one was answered.
        After ``until_s``, in monotonic seconds, nothing is tried again; ``on_failed`` comes before.
        """
        done, failed, has_answer = 0, list[FailedReceipt](), False
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
                    if not (error.retryable or has_answer):
                        raise
                    errors.append(error)
                    failed.extend(FailedReceipt(receipt, error.code) for receipt in some[start:])
                    break
                has_answer = True
                done += settled.done
                failed.extend(settled.failed)
                if verb != "extend":
                    for listener in list(self.listeners):
                        listener(topic, group, partition.partition, settled.done)
        if errors and not has_answer:
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
