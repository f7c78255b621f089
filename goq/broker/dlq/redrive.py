"""Redrive and purge of dead letters.

Both apply to the dead letters of all groups of a dead-letter topic, and only to letters that are
still there: two calls at the same time never redrive a letter twice. The outbox carries out a
redrive, see :mod:`goq.broker.outbox.worker`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from goq import limits
from goq.broker.dlq.search import DeadLetterQuery, DeadLetterSearch, FoundDeadLetter
from goq.broker.log.pending_appends import wait_for_all
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.delivery.events.event import AnyEvent, Cancelled, Cause, CopyQueued, Range
from goq.frame.hashes import key_hash

_PURGED = "purged"


class RemovalResult(NamedTuple):
    """The result of a redrive or a purge.

    ``removed`` letters were redriven or purged. ``looped`` letters were redriven too often already,
    ``lost`` letters have no content to redrive. ``without_origin`` are messages that a producer
    published to the dead-letter topic. ``next`` is the position to continue after, None at the end.
    """

    matched: int
    removed: int
    looped: int
    lost: int
    without_origin: int
    next: tuple[int, int] | None


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

    matched, done, at = await _remove(dead, request, is_chosen, events_for)
    return RemovalResult(matched, done, looped, lost, without_origin, at)


async def purge(dead: Topic, request: RemovalRequest) -> RemovalResult:
    """Remove dead letters for good. They stay in the log until retention deletes them."""

    def events_for(_partition: Partition, offsets: list[int]) -> list[AnyEvent]:
        return [Cancelled(_ranges(offsets), _PURGED)]

    matched, done, at = await _remove(dead, request, lambda _found: True, events_for)
    return RemovalResult(matched, done, 0, 0, 0, at)


async def _remove(
    dead: Topic,
    request: RemovalRequest,
    is_chosen: Callable[[FoundDeadLetter], bool],
    events_for: Callable[[Partition, list[int]], list[AnyEvent]],
) -> tuple[int, int, tuple[int, int] | None]:
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
        return matched, count, search.next
    for number in chosen:
        dead.partitions[number].check_room()
    pending = []
    for number, offsets in chosen.items():
        partition = dead.partitions[number]
        left = partition.marks.uncancelled(offsets)
        count -= len(offsets) - len(left)
        if left:
            pending.append(partition.record(events_for(partition, left)))
    await wait_for_all(pending)
    dead.receiver.wake()  # messages behind them may be ready now
    return matched, count, search.next


def _ranges(offsets: Iterable[int]) -> list[Range]:
    """Return ascending offsets as ranges."""
    ranges: list[Range] = []
    for offset in offsets:
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges
