"""The settlements of a topic: receipts of any partitions, acknowledged, returned or extended.

Each partition records its part in its own log, and a settlement ends when all have. A consumer that
settles shows life: its membership goes on, and its streams get back the credit of leases that ran
out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from goq.broker.group.coordinator import Coordinator
from goq.broker.log.pending_appends import wait_for_all
from goq.broker.partition.leases import Leases, Settling
from goq.broker.runtime.metrics import TopicStats
from goq.broker.topic.partition_table import PartitionTable
from goq.broker.topic.receiver import Receiver
from goq.broker.topic.stream_credit import CreditAccount, Key, StreamCredits
from goq.clock import TimeSlice
from goq.errors import GoqError, LeaseLost
from goq.model import Receipt, fenced_id_of

_SETTLED_AT_ONCE = 1000  # one lease of the usual size is one event
_SLICES = 4  # of so many, where there are more
_RETURN_SLICES = 10  # a message that is returned costs twice as much


class UnsettledReceipt(NamedTuple):
    """A receipt that was not settled, or perhaps not: the code of the error says which."""

    receipt: Receipt
    code: str


class TopicSettler:
    """Settles leased messages of one topic; ``receiver`` is told of those that are ready again."""

    def __init__(
        self,
        topic_id: int,
        partitions: PartitionTable,
        coordinator: Coordinator,
        credits: StreamCredits,
        receiver: Receiver,
        stats: TopicStats,
    ) -> None:
        self._fenced_id = fenced_id_of(topic_id)
        self._partitions = partitions
        self._coordinator = coordinator
        self._credits = credits
        self._receiver = receiver
        self._stats = stats

    async def acknowledge(
        self, group: str, receipts: Sequence[Receipt]
    ) -> tuple[int, list[UnsettledReceipt]]:
        """Mark leased messages as done; return how many, and the receipts that failed.

        An ack sent again counts: its lease is over, but the log has the ack.
        """
        count, failed = await self._settle(
            group, receipts, lambda leases, some: leases.acknowledge(group, some)
        )
        self._stats.begin(asyncio.get_running_loop().time())
        self._stats.acked_messages += count
        self._stats.groups[group].acked_messages += count
        if any(each.code == LeaseLost.code for each in failed):
            again, failed = await self._split_recorded(group, failed)
            count += again
        return count, failed

    async def _split_recorded(
        self, group: str, failed: Sequence[UnsettledReceipt]
    ) -> tuple[int, list[UnsettledReceipt]]:
        """Return how many messages earlier acks of these receipts settled, and the other receipts.

        If a partition cannot tell now, its receipts fail with the code of its error.
        """
        by_partition: dict[int, list[Receipt]] = {}
        others: list[UnsettledReceipt] = []
        for each in failed:
            receipt = each.receipt
            is_lost = each.code == LeaseLost.code and receipt.fenced_id == self._fenced_id
            if is_lost and receipt.partition < self._partitions.count:
                by_partition.setdefault(receipt.partition, []).append(receipt)
            else:
                others.append(each)
        count = 0
        for number, void in by_partition.items():
            try:
                settled, lost = await self._partitions[number].leases.split_recorded(group, void)
            except GoqError as error:
                others.extend(UnsettledReceipt(receipt, error.code) for receipt in void)
            else:
                count += settled
                others.extend(_lost(lost))
        return count, others

    async def nack(
        self, group: str, receipts: Sequence[Receipt], delay_ms: int | None, reason: str
    ) -> tuple[int, list[UnsettledReceipt]]:
        """Return leased messages for another attempt after a delay, None for the backoff.

        Returns as :meth:`acknowledge` does.
        """
        count, failed = await self._settle(
            group,
            receipts,
            lambda leases, some: leases.nack(group, some, delay_ms, reason),
            _RETURN_SLICES,
        )
        self._stats.nacked_messages += count
        self._stats.groups[group].nacked_messages += count
        self._receiver.wake()
        return count, failed

    async def reject(
        self, group: str, receipts: Sequence[Receipt], reason: str
    ) -> tuple[int, list[UnsettledReceipt]]:
        """Dead-letter leased messages at once; return as :meth:`acknowledge` does."""
        return await self._settle(
            group, receipts, lambda leases, some: leases.reject(group, some, reason)
        )

    async def release(
        self, group: str, receipts: Sequence[Receipt]
    ) -> tuple[int, list[UnsettledReceipt]]:
        """Return messages that were not begun, without counting an attempt.

        Returns as :meth:`acknowledge` does.
        """
        found = await self._settle(
            group, receipts, lambda leases, some: leases.release(group, some), _RETURN_SLICES
        )
        self._receiver.wake()
        return found

    async def extend(
        self, group: str, receipts: Sequence[Receipt], deadline_ms: int
    ) -> tuple[int, list[UnsettledReceipt]]:
        """Set a new deadline for leased messages; return as :meth:`acknowledge` does."""
        return await self._settle(
            group, receipts, lambda leases, some: leases.extend(group, some, deadline_ms)
        )

    async def _settle(
        self,
        group: str,
        receipts: Sequence[Receipt],
        settle: Callable[[Leases, list[Receipt]], Settling],
        slices: int = _SLICES,
    ) -> tuple[int, list[UnsettledReceipt]]:
        """Settle receipts of any partitions in slices, or raise before settling any.

        Receipts of a partition that fails are returned with the code of its error. If all
        partitions fail alike, that error is raised. The lease of a receipt of an earlier topic of
        this name is lost.
        """
        by_partition: dict[int, list[Receipt]] = {}
        foreign: list[Receipt] = []
        time_slice, at_once = None, _SETTLED_AT_ONCE
        if len(receipts) > at_once:  # a slice would call what an earlier one settled lost
            receipts = list(dict.fromkeys(receipts))
            time_slice, at_once = TimeSlice(), max(1, at_once // slices)
        for at in range(0, len(receipts), at_once):
            if time_slice is not None and time_slice.is_over:
                await time_slice.next()
            for receipt in receipts[at : at + at_once]:
                if receipt.fenced_id == self._fenced_id:
                    by_partition.setdefault(receipt.partition, []).append(receipt)
                else:
                    foreign.append(receipt)
        count, failed = 0, _lost(foreign)
        settling: list[tuple[Leases, list[Receipt]]] = []
        for number, some in by_partition.items():
            if number >= self._partitions.count:
                failed.extend(_lost(some))
            else:
                leases = self._partitions[number].leases
                leases.check_room()
                settling.append((leases, some))
        if self._credits.expired:
            self.on_life((receipt.partition, receipt.token) for receipt in receipts)
        pending: list[tuple[Settling, list[Receipt]]] = []
        has_members = group in self._coordinator.groups
        for leases, some in settling:
            if has_members:  # a settlement counts as a heartbeat
                for member in leases.members(group, {receipt.token for receipt in some}):
                    self._coordinator.touch(group, member)
            for at in range(0, len(some), at_once):
                if time_slice is not None and time_slice.is_over:
                    await time_slice.next()
                part = some[at : at + at_once]
                try:
                    pending.append((settle(leases, part), part))
                except GoqError as error:
                    if not pending:
                        raise
                    failed.extend(UnsettledReceipt(receipt, error.code) for receipt in part)
        if len(pending) == 1:
            (((settled, recorded), _),) = pending
            await wait_for_all(recorded)
            return settled.settled, failed + _lost(settled.void)
        results = await asyncio.gather(
            *(wait_for_all(recorded) for (_, recorded), _ in pending), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        bugs = [error for error in errors if not isinstance(error, GoqError)]
        if bugs:
            raise bugs[0]
        if results and len(errors) == len(results) and len(set(map(type, errors))) == 1:
            raise errors[0]
        for ((settled, _), some), result in zip(pending, results, strict=True):
            if isinstance(result, GoqError):
                failed.extend(UnsettledReceipt(receipt, result.code) for receipt in some)
            else:
                count += settled.settled
                failed.extend(_lost(settled.void))
        return count, failed

    def on_life(self, leases: Iterable[Key]) -> None:
        """Return expired credit to the streams that got these leases."""
        self._wake_silent(self._credits.on_life(leases))

    def on_heartbeat(self, group: str, consumer: str) -> None:
        """Return expired credit to the streams of a consumer."""
        self._wake_silent(self._credits.on_heartbeat(group, consumer))

    def on_grant(self, account: CreditAccount) -> None:
        """Return expired credit to a stream that was granted more."""
        self._wake_silent(self._credits.on_grant(account))

    def on_resigned(self, number: int) -> None:
        """Return the credit of all leases of a partition that this node leads no longer."""
        self._wake_silent(self._credits.on_resigned(number))

    def _wake_silent(self, groups: Iterable[str]) -> None:
        for group in groups:
            self._receiver.waiters.wake_silent(group)

    def on_settled(
        self,
        number: int,
        group: str | None,
        token: int | None,
        count: int,
        has_expired: bool = False,
    ) -> None:
        """Return the credit of settled messages to their streams, and hand partitions over.

        :class:`PartitionCallbacks` describes the values None.
        """
        if self._credits.owners:
            self._credits.on_settled(number, token, count, has_expired)
        for name in [group] if group is not None else list(self._coordinator.groups):
            if name in self._coordinator.groups:
                self._coordinator.on_settled(name, number)


def _lost(receipts: Sequence[Receipt]) -> list[UnsettledReceipt]:
    return [UnsettledReceipt(receipt, LeaseLost.code) for receipt in receipts]
