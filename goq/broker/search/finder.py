"""Finding messages of a topic by key, by dedup id or by a header, the newest first."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import NamedTuple

from goq import limits
from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionId
from goq.broker.retention.archiver import Archive
from goq.broker.retention.tiered_log import WholeReader, whole_logs
from goq.broker.runtime.background import ThreadThrottle
from goq.broker.search.cursor import read_cursor, write_cursor
from goq.broker.search.partition_search import (
    TIME_US_MAX,
    TIME_US_MIN,
    Budget,
    Found,
    HeaderSource,
    KeySource,
    Source,
    Wanted,
    piece_for,
)
from goq.broker.topic.topic import Topic
from goq.errors import PartitionOffline, TooManyRequests
from goq.storage.key_index.index import KeyIndex
from goq.storage.key_index.lookup import Pause
from goq.storage.key_index.sealed_keys import KeyCache

_STEPS_AT_ONCE = 64
_SEARCH_REST = 0.1  # of the time that it works


class FoundPage(NamedTuple):
    """What a search found; ``next`` is where it goes on, None at the end.

    ``searched`` counts the messages that the whole search is about, ``unreadable`` the places
    where it might have found something and could not read.
    """

    found: list[Found]
    next: str | None
    searched: int
    partitions: int
    unreadable: int


@dataclass(slots=True)
class Search:
    """A search under way. The sources are asked newest first, until there is enough.

    When the budget is spent, what was found until then is given out; so each page gets on, and
    only within a page is it certain that the newest come first.
    """

    sources: Sequence[Source]
    limit: int
    budget: Budget
    found: list[Found] = field(default_factory=list)
    _heap: list[tuple[int, int]] = field(init=False)

    def __post_init__(self) -> None:
        self._heap = [self._entry(number) for number in range(len(self.sources))]
        heapq.heapify(self._heap)

    def run(self, steps: int) -> bool:
        """Go on for so many steps; return whether the page is done."""
        while self._heap and len(self.found) < self.limit:
            number = self._heap[0][1]
            source = self.sources[number]
            if source.found:
                self.found.append(source.found.popleft())
            elif source.is_done or self.budget.is_spent:
                heapq.heappop(self._heap)  # what the others have found is not looked for again
                continue
            elif steps <= 0:
                return False
            else:
                source.step(self.budget)
                steps -= 1
            heapq.heapreplace(self._heap, self._entry(number))
        return True

    def _entry(self, number: int) -> tuple[int, int]:
        source = self.sources[number]
        return -(source.found[0].time_us if source.found else source.time_us), number

    def bounds(self) -> dict[int, int]:
        """Return where it goes on in each partition that may have more."""
        return {
            source.number: source.found[0].offset + 1 if source.found else source.bound
            for source in self.sources
            if source.found or not source.is_done
        }


class Finder:
    """Searches the topics of a node: few at a time, each in a thread."""

    def __init__(self, archive: Archive, executor: Executor) -> None:
        self.is_stopped = False
        self._archive = archive
        self._executor = executor
        self._memory = KeyCache()
        self._indexes: dict[PartitionId, KeyIndex] = {}
        self._turns = asyncio.Semaphore(limits.SEARCHES_MAX)
        self._waiting = 0

    async def find(self, topic: Topic, wanted: Wanted, limit: int, cursor: str | None) -> FoundPage:
        """Return up to ``limit`` messages, the newest first, and where to go on.

        A page may have fewer, even none, and still not be the last: a search looks only so far.
        Raises ``PartitionOffline`` where not all can be searched, ``TooManyRequests``.
        """
        bounds = None if cursor is None else read_cursor(cursor)
        for partition in topic.partitions:
            if not partition.is_online:
                raise PartitionOffline(
                    f"partition {partition.identity.number} of {topic.name} is offline, so not all"
                    " its messages can be searched; goq doctor says why"
                )
        if self._waiting >= limits.SEARCHES_WAITING_MAX:
            raise TooManyRequests("too many searches wait for their turn", retry_after_ms=1000)
        self._waiting += 1
        try:
            async with self._turns:
                return await self._find(topic.partitions.here(), wanted, limit, bounds)
        finally:
            self._waiting -= 1

    async def _find(
        self,
        partitions: Sequence[Partition],
        wanted: Wanted,
        limit: int,
        bounds: dict[int, int] | None,
    ) -> FoundPage:
        loop = asyncio.get_running_loop()
        is_over = threading.Event()
        pause = ThreadThrottle(_SEARCH_REST, lambda: self.is_stopped or is_over.is_set())
        ranges = [r for p in partitions for r in self._ranges(p, bounds)]
        messages, size_bytes = limits.SEARCH_CANDIDATES_MAX, limits.SEARCH_SCANNED_BYTES_MAX
        if wanted.header is not None:
            messages = limits.SEARCH_SCANNED_MESSAGES_MAX
        budget = Budget(messages, size_bytes)
        piece = piece_for(len(ranges), budget)

        def begin() -> Search:
            sources = [_source(one, wanted, pause, piece) for one in ranges]
            return Search(sources, limit, budget)

        try:
            search = await loop.run_in_executor(self._executor, begin)
            while not await loop.run_in_executor(self._executor, search.run, _STEPS_AT_ONCE):
                pass
        finally:
            is_over.set()  # for the thread, if nobody waits for it any more
        left = search.bounds()
        return FoundPage(
            search.found,
            write_cursor(left) if left else None,
            sum(one.end - one.start for one in ranges),
            len(partitions),
            sum(source.unreadable for source in search.sources),
        )

    def _ranges(self, partition: Partition, bounds: dict[int, int] | None) -> list[_Range]:
        """Return the offsets of a partition that a page is about, none where it is done."""
        number, end = partition.identity.number, partition.end_offset
        if bounds is not None:
            end = min(end, bounds.get(number, 0))
        index = self.index_of(partition)
        start = index.reader.segments[0].base_offset
        return [_Range(number, index, start, end)] if start < end else []

    def index_of(self, partition: Partition) -> KeyIndex:
        """Return what finds a partition's messages, archived and live, as long as it is open."""
        index = self._indexes.get(partition.identity)
        known = None if index is None else index.reader
        if (
            index is None
            or not isinstance(known, WholeReader)
            or known.live is not partition.message_reader
        ):
            reader = whole_logs(self._archive, partition).messages
            index = KeyIndex(self._archive.disk, reader, self._memory)
            self._indexes[partition.identity] = index
        return index

    def forget(self, topic: str) -> None:
        """Let go of a topic that was deleted."""
        for identity in [key for key in self._indexes if key.topic == topic]:
            del self._indexes[identity]

    def stop(self) -> None:
        """Let searches end early, with ``ShuttingDown``."""
        self.is_stopped = True


class _Range(NamedTuple):
    """Offsets of one partition."""

    partition: int
    keys: KeyIndex
    start: int
    end: int


def _source(searched: _Range, wanted: Wanted, pause: Pause, piece: Budget) -> Source:
    number, keys, start, end = searched
    if wanted.from_us != TIME_US_MIN:
        start = max(start, min(end, keys.reader.offset_for_time(wanted.from_us, end)))
    if wanted.header is None:
        return KeySource(number, keys, wanted, start, end, pause)
    if wanted.to_us != TIME_US_MAX:
        end = max(start, keys.reader.offset_for_time(wanted.to_us, end))
    return HeaderSource(number, keys, wanted, start, end, pause, piece)
