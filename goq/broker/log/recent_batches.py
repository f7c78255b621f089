"""The latest batches of the logs that a node leads, in memory, for followers that keep up.

Without them the leader would read back from the file what it has just written, in another thread.
What is not here is read from the file. The batches of all logs are bounded together: those of the
log that was written least recently go first.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from goq import limits
from goq.storage.log.segment import WriteBatch

BATCH_BYTES: Final = 512
"""The memory of a batch besides its frames."""


class RecentBatch(NamedTuple):
    """The frames of one batch; all lie in the segment that begins at ``segment_base``."""

    segment_base: int
    start_offset: int
    end_offset: int
    data: memoryview


class RecentBatches:
    """The latest batches of one log, without a gap between them."""

    def __init__(self, pool: RecentBatchPool, bytes_max: int) -> None:
        self._pool = pool
        self._bytes_max = bytes_max
        self._batches: deque[RecentBatch] = deque()
        self.size_bytes = 0

    def add(self, batch: WriteBatch) -> bool:
        """Keep a batch that follows the one before it; False if it is too large for memory."""
        before = self._batches[-1].end_offset if self._batches else batch.start_offset
        is_too_large = batch.size_bytes + BATCH_BYTES > self._bytes_max
        if batch.start_offset != before or is_too_large:
            self.clear()
        if is_too_large:
            return False
        data = memoryview(b"".join(batch.buffers))  # the buffers may be slices of larger ones
        place = batch.segment.base_offset, batch.start_offset, batch.end_offset
        self._batches.append(RecentBatch(*place, data))
        self._resize(len(data) + BATCH_BYTES)
        while self.size_bytes > self._bytes_max:
            self._resize(-len(self._batches.popleft().data) - BATCH_BYTES)
        self._pool.on_add(self)
        return True

    def after(self, offset: int) -> list[RecentBatch]:
        """Return the batches from an offset on in one segment; none if no batch begins there."""
        if not self._batches or offset < self._batches[0].start_offset:
            return []
        found: list[RecentBatch] = []
        for batch in reversed(self._batches):
            if batch.start_offset < offset:
                return []
            found.append(batch)
            if batch.start_offset == offset:
                found.reverse()
                return [each for each in found if each.segment_base == batch.segment_base]
        return []

    def clear(self) -> None:
        """Forget all."""
        self._batches.clear()
        self._resize(-self.size_bytes)
        self._pool.on_clear(self)

    def _resize(self, by_bytes: int) -> None:
        self.size_bytes += by_bytes
        self._pool.size_bytes += by_bytes


class RecentBatchPool:
    """The recent frames of all logs of a node; at most ``bytes_max``."""

    def __init__(
        self,
        bytes_max: int = limits.RECENT_BATCHES_BYTES_MAX,
        log_bytes_max: int = limits.RECENT_LOG_BYTES_MAX,
    ) -> None:
        self.size_bytes = 0
        self._bytes_max = bytes_max
        self._log_bytes_max = log_bytes_max
        self._logs: OrderedDict[RecentBatches, None] = OrderedDict()  # written last comes last

    def of_log(self) -> RecentBatches:
        """Return the frames of another log, none so far."""
        return RecentBatches(self, self._log_bytes_max)

    def on_add(self, frames: RecentBatches) -> None:
        """Forget the frames of other logs if there are too many."""
        self._logs[frames] = None
        self._logs.move_to_end(frames)
        while self.size_bytes > self._bytes_max:
            next(iter(self._logs)).clear()

    def on_clear(self, frames: RecentBatches) -> None:
        """Count a log no more, until it has frames again."""
        self._logs.pop(frames, None)
