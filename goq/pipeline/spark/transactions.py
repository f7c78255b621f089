"""Exactly-once publication of staged messages, by a ledger of batches.

A transaction is a sequence of batches numbered from 0 (a streaming query), or the single batch 0.
Its batches are ranges of offsets in the staging topic. A commit has three steps:

    begin   append to the ledger the ranges of the batch, and the producer's next sequence in each
            partition
    copy    publish the ranges' frames with those sequences; the node drops duplicates
    done    append that the batch is complete

A second commit of the batch, after a crash at any point or concurrently, finds the first ``begin``
and continues with its ranges, whatever was staged since. The ledger's dedup ids admit only one
``begin`` of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from goq.client.message_batch import producer_id_of
from goq.errors import Conflict, OutOfOrderSequence, TimedOut

OVERTAKEN_MAX: Final = 20


class Staged(NamedTuple):
    """A range of the staging topic: offsets from ``start`` up to ``end`` of a partition.

    ``topic_id`` tells the topic from others of its name; "" in entries of earlier versions.
    """

    partition: int
    start: int
    end: int
    topic_id: str = ""


class LedgerEntry(msgspec.Struct, frozen=True):
    """A ledger entry of a batch.

    ``query`` is the id of the query that owns the transaction. ``first`` are the first sequences,
    by partition. ``topic_id`` is that of the target; "" in entries of earlier versions.
    """

    batch: int
    query: str
    ranges: Sequence[Staged]
    first: Mapping[int, int]
    done: bool = False
    topic_id: str = ""


class TransactionLedger(Protocol):
    """The ledger of all transactions into a topic."""

    def newest(self, transaction: str) -> LedgerEntry | None:
        """Return the entry of the latest batch: its ``done`` if it has one, else its ``begin``."""
        ...

    def begin(self, transaction: str, entry: LedgerEntry) -> LedgerEntry:
        """Append a ``begin``, unless the batch has one; return the batch's entry."""
        ...

    def done(self, transaction: str, entry: LedgerEntry) -> None:
        """Append the ``done`` of a batch."""
        ...


class TransactionTarget(Protocol):
    """The target topic of a transaction, and its staged messages."""

    def reached(self, producer_id: int) -> Mapping[int, int]:
        """Return the producer's next sequence in each partition that knows it."""
        ...

    def check_staged(self, staged: Sequence[Staged]) -> None:
        """Raise ``Conflict`` if ranges are of a staging topic that is not there any more."""
        ...

    def frames(self, staged: Sequence[Staged], skipped: int) -> Iterable[Sequence[bytes]]:
        """Yield the staged frames of one partition, from message number ``skipped`` on.

        Some frames at a time; raises ``Conflict`` if they are gone.
        """
        ...

    def publish(
        self, partition: int, frames: Sequence[bytes], producer_id: int, sequence: int
    ) -> int:
        """Publish frames with sequences from ``sequence`` on; return the next one."""
        ...


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction, by its ``name``; only ``query`` may use it."""

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
    """Publish a batch, unless it or a later one was published; continue an interrupted one.

    Raises ``Conflict`` if another query uses the name, or if staged messages are gone.
    """
    newest = ledger.newest(transaction.name)
    if newest is not None:
        _check_query(transaction, newest)
    if newest is None or newest.batch < batch:
        if newest is not None and not newest.done:
            _finish(transaction, newest, ledger, topic)
        if not ranges:
            return
        topic.check_staged(ranges)  # a batch that is not begun can be staged again
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
    """Publish the only batch of a transaction with a unique name."""
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
    ledger.done(transaction.name, replace(entry, ranges=(), done=True))


@dataclass(frozen=True, slots=True)
class _Share:
    """The part of a batch for one partition, with sequences from ``first`` on."""

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
        except (OutOfOrderSequence, TimedOut):  # a concurrent commit, or a lost response
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
