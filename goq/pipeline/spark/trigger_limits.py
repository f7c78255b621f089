"""The size of a stream's batches, and when a small one is due.

Spark hands a source one limit and no combination of them. So the options decide here; what Spark
asks for only says whether they count: ``ReadAllAvailable`` means that they do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from goq.pipeline.spark.offset_ranges import Offsets, backlog, limited
from goq.pipeline.spark.source_options import SourceOptions


class TriggerLimits:
    """Bounds the batches of one stream. ``clock`` is in seconds, monotonic."""

    def __init__(self, options: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._last_batch_s = clock()

    def default(self) -> ReadLimit:
        """Return what stands for the options when Spark asks for the next batch."""
        options = self._options
        if options.offsets_per_trigger_max:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def is_due(self, limit: ReadLimit, start: Offsets, end: Offsets) -> bool:
        """Whether there are enough messages for a batch, or they have waited for long enough."""
        count, now_s = backlog(start, end), self._clock()
        least = self._options.offsets_per_trigger_min
        if isinstance(limit, ReadAllAvailable) or least is None or not count:
            return True
        if count < least and now_s - self._last_batch_s < self._options.trigger_delay_s_max:
            return False
        self._last_batch_s = now_s
        return True

    def bounded(
        self,
        limit: ReadLimit,
        start: Offsets,
        end: Offsets,
        message_bytes: Callable[[], Mapping[str, float]],
    ) -> Offsets:
        """Return the end of the next batch; ``message_bytes`` gives the mean sizes by topic."""
        if isinstance(limit, ReadAllAvailable):
            return end
        most = self._options.offsets_per_trigger_max
        if isinstance(limit, ReadMaxRows):
            most = limit.max_rows
        if most:
            end = limited(start, end, most)
        most_bytes = self._options.bytes_per_trigger_max
        if most_bytes:
            end = limited(start, end, most_bytes, message_bytes())
        return end
