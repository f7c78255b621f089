"""Taking dead letters away: putting them back where they came from, or for good.

Both are done for all groups of the topic of dead letters at once, and only to what is still there:
two calls at the same time never put a message back twice. What is put back leaves as dead letters
do, see :mod:`goq.broker.outbox.worker`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from goq import limits
from goq.broker.dlq.search import DeadLetterSearch, Found, Wanted
from goq.broker.partition.partition import Partition
from goq.broker.topic.topic import Topic
from goq.delivery.events.event import AnyEvent, Cancelled, Cause, CopyQueued, Range
from goq.frame.hashes import key_hash

_PURGED = "purged"


class Took(NamedTuple):
    """What became of the dead letters that were meant.

    ``looped`` were put back too often already, ``lost`` have nothing to be put back. ``next`` is
    the position to go on behind, None at the end.
    """

    matched: int
    done: int
    looped: int
    lost: int
    next: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Taking:
    """How much of what is wanted to take, and from where on; ``force`` also what looped."""

    wanted: Wanted
    after: tuple[int, int]
    messages_max: int
    dry_run: bool = False
    force: bool = False


async def redrive(dead: Topic, target: Topic, now_ms: int, taking: Taking) -> Took:
    """Put dead letters back, those with a key into the partition of their key.

    Returns when it is certain that they arrive, which may be a little later.
    """
    hashes: dict[tuple[int, int], int] = {}
    looped = lost = 0

    def choose(found: Found) -> bool:
        nonlocal looped, lost
        if found.letter.lost:
            lost += 1
            return False
        if found.letter.redrives >= limits.REDRIVES_MAX and not taking.force:
            looped += 1
            return False
        if found.message.key is not None:
            hashes[found.partition, found.offset] = key_hash(found.message.key)
        return True

    def decide(partition: Partition, offsets: list[int]) -> list[AnyEvent]:
        producer_id = partition.new_producer_id()
        number, count = partition.identity.number, target.partitions.count
        by_place: dict[int, list[int]] = {}
        for offset in offsets:
            place = hashes.get((number, offset), number) % count
            by_place.setdefault(place, []).append(offset)
        return [
            CopyQueued(
                "",
                0,
                [(start, end, 0) for start, end in _runs(some)],
                Cause.REDRIVEN,
                "",
                now_ms,
                target.name,
                place,
                producer_id,
            )
            for place, some in sorted(by_place.items())
        ]

    matched, done, at = await _take(dead, taking, choose, decide)
    return Took(matched, done, looped, lost, at)


async def purge(dead: Topic, taking: Taking) -> Took:
    """Take dead letters away for good: they are in the log as long as it is kept, and nowhere."""

    def decide(_partition: Partition, offsets: list[int]) -> list[AnyEvent]:
        return [Cancelled(_runs(offsets), _PURGED)]

    matched, done, at = await _take(dead, taking, lambda _found: True, decide)
    return Took(matched, done, 0, 0, at)


async def _take(
    dead: Topic,
    taking: Taking,
    choose: Callable[[Found], bool],
    decide: Callable[[Partition, list[int]], list[AnyEvent]],
) -> tuple[int, int, tuple[int, int] | None]:
    search = DeadLetterSearch(dead, taking.wanted, taking.after)
    chosen: dict[int, list[int]] = {}
    matched = count = 0
    async with aclosing(search.run()) as letters:
        async for found in letters:
            matched += 1
            if choose(found):
                chosen.setdefault(found.partition, []).append(found.offset)
                count += 1
            if count >= taking.messages_max:
                search.next = (found.partition, found.offset)
                break
    if taking.dry_run:
        return matched, count, search.next
    for number in chosen:
        dead.partitions[number].check_room()
    pending = []
    for number, offsets in chosen.items():
        partition = dead.partitions[number]
        left = [offset for offset in offsets if not partition.is_cancelled(offset)]
        count -= len(offsets) - len(left)
        if left:
            pending.append(partition.record(decide(partition, left)))
    for recorded in await asyncio.gather(*pending, return_exceptions=True):
        if isinstance(recorded, BaseException):
            raise recorded
    dead.receiver.wake()  # what stood behind them may go
    return matched, count, search.next


def _runs(offsets: Iterable[int]) -> list[Range]:
    """Return rising offsets as runs."""
    runs: list[Range] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    return runs
