"""Search of a topic by key, dedup id, header or text, newest messages first."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

import msgspec

from goq import limits
from goq.broker.partition.partition import Partition
from goq.broker.partition_context import PartitionId
from goq.broker.retention.archiver import Archiver
from goq.broker.retention.tiered_log import TieredLogReader, tiered_logs
from goq.broker.runtime.background import ThreadThrottle
from goq.broker.search.cursor import read_cursor, write_cursor
from goq.broker.search.partition_search import (
    TIME_US_MAX,
    TIME_US_MIN,
    FoundMessage,
    KeySearch,
    MessageQuery,
    PartitionSearch,
    ScanSearch,
    SearchBudget,
    chunk_for,
)
from goq.broker.topic.topic import Topic
from goq.errors import PartitionOffline, TooManyRequests
from goq.frame.view import FrameView
from goq.index_cache import IndexCache
from goq.storage.key_index.index import KeyIndex
from goq.storage.key_index.lookup import Pause

_STEPS_PER_CALL = 64
_REST_FACTOR = 0.1  # of the working time


class SearchPage(NamedTuple):
    """One page of results. ``next`` is the cursor of the next page, None at the end.

    ``searched`` counts the messages in the range of the search, ``scanned`` those that were looked
    at for this page. ``unreadable`` counts places that may hold a match and could not be read.
    """

    found: list[FoundMessage]
    next: str | None
    searched: int
    partitions: int
    unreadable: int
    scanned: int = 0


class TopicSearch(msgspec.Struct):
    """A running search over several partitions, newest first, until the page is full.

    When the budget is spent, the page ends with the results found so far. So every page makes
    progress. The order newest first is guaranteed only within a page.
    """

    searches: Sequence[PartitionSearch]
    limit: int
    budget: SearchBudget
    found: list[FoundMessage] = msgspec.field(default_factory=list)
    _heap: list[tuple[int, int]] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        self._heap = [self._heap_entry(number) for number in range(len(self.searches))]
        heapq.heapify(self._heap)

    def run(self, steps: int) -> bool:
        """Take up to ``steps`` steps; return whether the page is complete."""
        while self._heap and len(self.found) < self.limit:
            number = self._heap[0][1]
            search = self.searches[number]
            if search.found:
                self.found.append(search.found.popleft())
            elif search.is_done or self.budget.is_spent:
                heapq.heappop(self._heap)  # results of other partitions still count
                continue
            elif steps <= 0:
                return False
            else:
                search.step(self.budget)
                steps -= 1
            heapq.heapreplace(self._heap, self._heap_entry(number))
        return True

    def _heap_entry(self, number: int) -> tuple[int, int]:
        search = self.searches[number]
        return -(search.found[0].time_us if search.found else search.time_us), number

    def bounds(self) -> dict[int, int]:
        """Return the offset to continue before, for each partition that may have more."""
        return {
            search.number: search.found[0].offset + 1 if search.found else search.bound
            for search in self.searches
            if search.found or not search.is_done
        }


class Finder:
    """Searches the topics of a node. Few searches run at a time, each in a thread."""

    def __init__(self, archive: Archiver, executor: Executor, cache: IndexCache) -> None:
        self.is_stopped = False
        self._archive = archive
        self._executor = executor
        self._cache = cache
        self._indexes: dict[PartitionId, KeyIndex] = {}
        self._slots = asyncio.Semaphore(limits.SEARCHES_MAX)
        self._waiting = 0

    async def find(
        self, topic: Topic, query: MessageQuery, limit: int, cursor: str | None
    ) -> SearchPage:
        """Return up to ``limit`` messages, newest first, and the cursor of the next page.

        A page may be short or even empty without being the last: the work per page is bounded.
        Raises ``PartitionOffline`` if a partition cannot be searched, ``TooManyRequests`` if too
        many searches wait, and ``InvalidInput`` for a bad cursor.
        """
        bounds = None if cursor is None else read_cursor(cursor)
        topic.partitions.check_all_open()
        for partition in topic.partitions:
            if not partition.is_online:
                raise PartitionOffline(
                    f"partition {partition.identity.number} of {topic.name} is offline, so not all"
                    " its messages can be searched; goq doctor says why"
                )
        if self._waiting >= limits.SEARCHES_WAITING_MAX:
            raise TooManyRequests("too many searches are waiting", retry_after_ms=1000)
        self._waiting += 1
        try:
            async with self._slots:
                return await self._find(topic.partitions.here(), query, limit, bounds)
        finally:
            self._waiting -= 1

    async def _find(
        self,
        partitions: Sequence[Partition],
        query: MessageQuery,
        limit: int,
        bounds: dict[int, int] | None,
    ) -> SearchPage:
        loop = asyncio.get_running_loop()
        is_over = threading.Event()
        pause = ThreadThrottle(_REST_FACTOR, lambda: self.is_stopped or is_over.is_set())
        ranges = [r for p in partitions for r in self._ranges(p, bounds)]
        messages, size_bytes = limits.SEARCH_CANDIDATES_MAX, limits.SEARCH_SCANNED_BYTES_MAX
        if not query.is_indexed:
            messages = limits.SEARCH_SCANNED_MESSAGES_MAX
        budget = SearchBudget(messages, size_bytes)
        chunk = chunk_for(len(ranges), budget)
        if query.matches_all:
            chunk = SearchBudget(min(chunk.messages, limit), chunk.size_bytes)

        def begin() -> TopicSearch:
            searches = [_partition_search(one, query, pause, chunk) for one in ranges]
            return TopicSearch(searches, limit, budget)

        executor = self._executor_of(partitions)
        try:
            search = await loop.run_in_executor(executor, begin)
            while not await loop.run_in_executor(executor, search.run, _STEPS_PER_CALL):
                pass
        finally:
            is_over.set()  # stops the thread if the request was cancelled
        left = search.bounds()
        return SearchPage(
            search.found,
            write_cursor(left) if left else None,
            sum(one.end - one.start for one in ranges),
            len(partitions),
            sum(search.unreadable for search in search.searches),
            messages - budget.messages,
        )

    def _ranges(self, partition: Partition, bounds: dict[int, int] | None) -> list[_OffsetRange]:
        """Return the offsets of a partition to search for this page; empty if it is finished."""
        number, end = partition.identity.number, partition.end_offset
        if bounds is not None:
            end = min(end, bounds.get(number, 0))
        index = self.index_of(partition)
        start = index.reader.segments[0].base_offset
        return [_OffsetRange(number, index, start, end)] if start < end else []

    async def read(self, topic: Topic, found: FoundMessage) -> FrameView | None:
        """Return the frame of a found message, None if it was deleted since."""
        partition = topic.partitions.get(found.partition)
        if partition is None:
            return None
        reader, offset = self.index_of(partition).reader, found.offset
        read = partial(reader.read, offset, offset + 1, messages_max=1)
        reading = await asyncio.get_running_loop().run_in_executor(
            self._executor_of([partition]), read
        )
        return reading.frames[0] if reading.frames else None

    def _executor_of(self, partitions: Sequence[Partition]) -> Executor:
        """Return the threads for a search: an archive may wait for its store."""
        rows = (self._archive.segments.rows(each.identity, "messages") for each in partitions)
        return self._archive.readers if any(rows) else self._executor

    def index_of(self, partition: Partition) -> KeyIndex:
        """Return the key index of an open partition, archive included."""
        index = self._indexes.get(partition.identity)
        known = None if index is None else index.reader
        if (
            index is None
            or not isinstance(known, TieredLogReader)
            or known.live is not partition.message_reader
        ):
            reader = tiered_logs(self._archive, partition).messages
            index = KeyIndex(self._archive.disk, reader, self._cache)
            self._indexes[partition.identity] = index
        return index

    def forget(self, topic_id: int) -> None:
        """Drop the indexes of a deleted topic."""
        for identity in [key for key in self._indexes if key.topic_id == topic_id]:
            del self._indexes[identity]

    def stop(self) -> None:
        """End running searches early, with ``ShuttingDown``."""
        self.is_stopped = True


class _OffsetRange(NamedTuple):
    """A range of offsets of one partition."""

    partition: int
    keys: KeyIndex
    start: int
    end: int


def _partition_search(
    searched: _OffsetRange, query: MessageQuery, pause: Pause, chunk: SearchBudget
) -> PartitionSearch:
    number, keys, start, end = searched
    if query.from_us != TIME_US_MIN:
        start = max(start, min(end, keys.reader.offset_for_time(query.from_us, end)))
    if query.is_indexed:
        return KeySearch(number, keys, query, start, end, pause)
    if query.to_us != TIME_US_MAX:
        end = max(start, keys.reader.offset_for_time(query.to_us, end))
    return ScanSearch(number, keys, query, start, end, pause, chunk)
