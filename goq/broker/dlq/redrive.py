"""Redrive and purge of dead letters.

Both apply to the dead letters of all groups of a dead-letter topic, and only to letters that are
still there: two calls at the same time never redrive a letter twice. The outbox carries out a
redrive, see :mod:`goq.broker.outbox.worker`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from goq import limits
from goq.broker.dlq.search import DeadLetterQuery, DeadLetterSearch, FoundDeadLetter
from goq.broker.log.pending_appends import Appended, wait_for_all
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.clock import TimeSlice
from goq.delivery.events.event import AnyEvent, Cancelled, Cause, CopyQueued, Range
from goq.errors import GoqError, outcome_unknown
from goq.frame.hashes import key_hash

_PURGED = "purged"
_RECORDED_AT_ONCE = 1_000  # letters; each takes 1.5 µs and more of the event loop


class RemovalResult(NamedTuple):
    """The result of a redrive or a purge.

    ``removed`` letters were redriven or purged. ``looped`` letters were redriven too often already,
    ``lost`` letters have no content to redrive. ``without_origin`` are messages that a producer
    published to the dead-letter topic. ``next`` is the position to continue after, None at the end.
    """

    matched: int
    removed: int
    looped: int = 0
    lost: int = 0
    without_origin: int = 0
    next: tuple[int, int] | None = None


class RemovalRequest(msgspec.Struct, frozen=True):
    """Which letters to remove, after which position, and how many at most.

    With ``force`` letters are redriven that reached the limit of redrives, with ``to_origin`` only
    those that have one.
    """

    query: DeadLetterQuery
    after: tuple[int, int]
    messages_max: int
    dry_run: bool = False
    force: bool = False
    to_origin: bool = False


async def redrive(
    dead: Topic, target: Topic, now_ms: int, request: RemovalRequest
) -> RemovalResult:
    """Redrive dead letters. A letter with a key goes to the partition of its key.

    Returns when the copies are recorded durably in the outbox. They arrive a little later.
    """
    hashes: defaultdict[int, dict[int, int]] = defaultdict(dict)  # of keys, by partition and offset
    looped = lost = without_origin = 0

    def is_chosen(found: FoundDeadLetter) -> bool:
        nonlocal looped, lost, without_origin
        if found.letter.origin is None and request.to_origin:
            without_origin += 1
            return False
        if found.letter.lost:
            lost += 1
            return False
        if found.letter.redrives >= limits.REDRIVES_MAX and not request.force:
            looped += 1
            return False
        if found.message.key is not None:
            hashes[found.partition][found.offset] = key_hash(found.message.key)
        return True

    def events_for(partition: Partition, offsets: list[int]) -> list[AnyEvent]:
        producer_id = partition.new_producer_id()
        number, count = partition.identity.number, target.partitions.count
        places = hashes[number]
        by_target: defaultdict[int, list[int]] = defaultdict(list)
        for offset in offsets:
            by_target[places.get(offset, number) % count].append(offset)
        return [
            CopyQueued(
                "",
                0,
                [(start, end, 0) for start, end in _ranges(some)],
                Cause.REDRIVEN,
                "",
                now_ms,
                target.name,
                target_number,
                producer_id,
            )
            for target_number, some in sorted(by_target.items())
        ]

    result = await _remove(dead, request, is_chosen, events_for)
    return result._replace(looped=looped, lost=lost, without_origin=without_origin)


async def purge(dead: Topic, request: RemovalRequest) -> RemovalResult:
    """Remove dead letters for good. They stay in the log until retention deletes them."""

    def events_for(_partition: Partition, offsets: list[int]) -> list[AnyEvent]:
        return [Cancelled(_ranges(offsets), _PURGED)]

    return await _remove(dead, request, lambda _found: True, events_for)


async def _remove(
    dead: Topic,
    request: RemovalRequest,
    is_chosen: Callable[[FoundDeadLetter], bool],
    events_for: Callable[[Partition, list[int]], list[AnyEvent]],
) -> RemovalResult:
    """Remove the chosen letters; return the result without what kept others from being chosen."""
    search = DeadLetterSearch(dead, request.query, request.after)
    chosen: dict[int, list[int]] = {}
    matched = count = 0
    async with aclosing(search.run()) as letters:
        async for found in letters:
            matched += 1
            if is_chosen(found):
                chosen.setdefault(found.partition, []).append(found.offset)
                count += 1
            if count >= request.messages_max:
                search.next = (found.partition, found.offset)
                break
    if request.dry_run:
        return RemovalResult(matched, count, next=search.next)
    partitions = {number: dead.partitions[number] for number in chosen}
    for partition in partitions.values():
        partition.check_room()
    try:
        count -= await _record(partitions, chosen, events_for)
    finally:
        dead.receiver.wake()  # messages behind them may be ready now
    return RemovalResult(matched, count, next=search.next)


async def _record(
    partitions: Mapping[int, Partition],
    chosen: Mapping[int, list[int]],
    events_for: Callable[[Partition, list[int]], list[AnyEvent]],
) -> int:
    """Record the removal of the chosen letters; return how many others have removed meanwhile."""
    gone = 0
    pending: list[asyncio.Future[Appended]] = []
    time_slice = TimeSlice()
    for number, partition in partitions.items():
        offsets = chosen[number]
        for at in range(0, len(offsets), _RECORDED_AT_ONCE):
            if time_slice.is_over:
                await time_slice.next()
            some = offsets[at : at + _RECORDED_AT_ONCE]
            left = partition.marks.uncancelled(some)
            gone += len(some) - len(left)
            if not left:
                continue
            try:
                pending.append(partition.record(events_for(partition, left)))
            except GoqError as error:
                if not pending:
                    raise
                raise outcome_unknown(error) from error  # the letters before are removed
    await wait_for_all(pending)
    return gone


def _ranges(offsets: Iterable[int]) -> list[Range]:
    """Return ascending offsets as ranges."""
    ranges: list[Range] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges
