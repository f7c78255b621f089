"""Publishing staged messages exactly once: a ledger says what belongs to which batch.

A transaction is a stream of batches, numbered from 0 (a query that writes), or a single batch 0.
Its batches lie in the staging topic as ranges of offsets. Committing one goes by three steps:

    begin   append to the ledger which ranges the batch is, and with which number the transaction's
            producer goes on in each partition
    copy    publish the ranges' frames under those numbers; the node refuses what it has
    done    append that all are there

Whoever commits the batch again, after a crash at any point or at the same time, finds the first
``begin`` and goes on with its ranges, whatever was staged since. The ledger's dedup ids let only
one ``begin`` of a batch in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec

from goq.client.message_batch import producer_id_of
from goq.errors import Conflict, OutOfOrderSequence

OVERTAKEN_MAX: Final = 20


class Staged(NamedTuple):
    """Messages of the staging topic: offsets from ``start`` up to ``end`` of a partition."""

    partition: int
    start: int
    end: int


class LedgerEntry(msgspec.Struct, frozen=True):
    """What the ledger says of a batch.

    ``query`` is whose batches these are. ``first`` are the numbers of the first messages, by
    partition.
    """

    batch: int
    query: str
    ranges: Sequence[Staged]
    first: Mapping[int, int]
    done: bool = False


class TransactionLedger(Protocol):
    """The entries of all transactions into a topic."""

    def newest(self, transaction: str) -> LedgerEntry | None:
        """Return the latest batch's entry, the one that is done rather than the one begun."""
        ...

    def begin(self, transaction: str, entry: LedgerEntry) -> LedgerEntry:
        """Append an entry, unless its batch has one; return the batch's entry."""
        ...

    def done(self, transaction: str, entry: LedgerEntry) -> None:
        """Append that a batch is done."""
        ...


class TransactionTarget(Protocol):
    """The topic that is written to, and what is staged for it."""

    def reached(self, producer_id: int) -> Mapping[int, int]:
        """Return the producer's next number in each partition that knows it."""
        ...

    def frames(self, staged: Sequence[Staged], skipped: int) -> Iterable[Sequence[bytes]]:
        """Yield what is staged of one partition, from the message ``skipped`` on.

        Some frames at a time; raises ``Conflict`` where they are gone.
        """
        ...

    def publish(
        self, partition: int, frames: Sequence[bytes], producer_id: int, sequence: int
    ) -> int:
        """Store frames under the producer's numbers from ``sequence`` on; return the next one."""
        ...


@dataclass(frozen=True, slots=True)
class Transaction:
    """Who publishes: ``name`` is what is remembered, ``query`` the one query that may use it."""

    topic: str
    name: str
    query: str = ""

    @property
    def producer_id(self) -> int:
        """The producer of all its batches."""
        return producer_id_of(("spark", self.topic, self.name))


def commit(
    transaction: Transaction,
    batch: int,
    ranges: Sequence[Staged],
    ledger: TransactionLedger,
    topic: TransactionTarget,
) -> None:
    """Publish a batch, unless it or a later one was published; go on with one begun before.

    Raises ``Conflict`` for a name that another query uses, and where what is staged is gone.
    """
    newest = ledger.newest(transaction.name)
    if newest is not None:
        _check_query(transaction, newest)
    if newest is None or newest.batch < batch:
        if newest is not None and not newest.done:
            _finish(transaction, newest, ledger, topic)
        if not ranges:
            return
        reached = topic.reached(transaction.producer_id)
        first = {p: reached.get(p, 0) for p in sorted({each.partition for each in ranges})}
        begun = LedgerEntry(batch, transaction.query, ranges, first)
        newest = ledger.begin(transaction.name, begun)
        _check_query(transaction, newest)
    if newest.batch == batch and not newest.done:
        _finish(transaction, newest, ledger, topic)


def commit_once(
    transaction: Transaction, ranges: Sequence[Staged], topic: TransactionTarget
) -> None:
    """Publish the only batch of a transaction whose name nobody else will ever give again."""
    _copy(transaction, LedgerEntry(0, transaction.query, ranges, {}), topic)


def _check_query(transaction: Transaction, entry: LedgerEntry) -> None:
    if entry.query != transaction.query:
        raise Conflict(
            f"txnId {transaction.name!r} is that of another query, or of this one before it got a"
            " new checkpoint: its batches cannot be told apart from these; use another txnId",
            field="txnId",
        )


def _finish(
    transaction: Transaction,
    entry: LedgerEntry,
    ledger: TransactionLedger,
    topic: TransactionTarget,
) -> None:
    _copy(transaction, entry, topic)
    ledger.done(transaction.name, msgspec.structs.replace(entry, ranges=(), done=True))


@dataclass(frozen=True, slots=True)
class _Share:
    """What of a batch goes to one partition, under the numbers from ``first`` on."""

    partition: int
    ranges: Sequence[Staged]
    first: int

    @property
    def end(self) -> int:
        return self.first + sum([each.end - each.start for each in self.ranges])


def _copy(transaction: Transaction, entry: LedgerEntry, topic: TransactionTarget) -> None:
    ranges: dict[int, list[Staged]] = {}
    for each in entry.ranges:
        ranges.setdefault(each.partition, []).append(each)
    reached = topic.reached(transaction.producer_id)
    for partition, own in ranges.items():
        share = _Share(partition, own, entry.first.get(partition, 0))
        _copy_share(transaction, share, reached, topic)


def _copy_share(
    transaction: Transaction, share: _Share, reached: Mapping[int, int], topic: TransactionTarget
) -> None:
    overtaken, at = 0, _next(transaction, share, reached)
    while at < share.end:
        before = at
        try:
            for frames in topic.frames(share.ranges, at - share.first):
                at = topic.publish(share.partition, frames, transaction.producer_id, at)
        except OutOfOrderSequence:  # another one commits the same, or an answer was lost
            at = _next(transaction, share, topic.reached(transaction.producer_id))
            overtaken = 0 if at > before else overtaken + 1
            if overtaken > OVERTAKEN_MAX:
                raise


def _next(transaction: Transaction, share: _Share, reached: Mapping[int, int]) -> int:
    at = reached.get(share.partition)
    if at is None and share.first == 0:
        return 0
    if at is None or at < share.first:
        raise Conflict(
            f"how much of a batch of {transaction.name!r} is in {transaction.topic}, partition"
            f" {share.partition}, is not known: the topic was made anew since the batch began, or"
            " its node lost what it had; write what is missing under another txnId",
            field="txnId",
        )
    return at
