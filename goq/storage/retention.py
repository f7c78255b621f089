"""Which segments of a log may go."""

from __future__ import annotations

from collections.abc import Sequence

from goq.settings import Cleanup, TopicSettings
from goq.storage.segment import Segment


def keep_from(segments: Sequence[Segment], settings: TopicSettings, now_us: int) -> int:
    """Return the offset before which retention wants everything deleted.

    Only sealed segments go: by age when the newest message of one is older than
    ``retention.age``, by size, oldest first, while the log is over ``retention.bytes``. The
    segments' indexes must have been loaded, for their times. Where messages go by compaction,
    nothing goes by age or size.
    """
    keep = segments[0].base_offset
    if settings.cleanup is Cleanup.COMPACT:
        return keep
    total_bytes = sum(segment.size_bytes for segment in segments)
    for segment in segments[:-1]:
        too_old = (
            settings.retention_age_ms is not None
            and segment.time_us < now_us - settings.retention_age_ms * 1000
        )
        too_many = settings.retention_bytes is not None and total_bytes > settings.retention_bytes
        if not too_old and not too_many:
            break
        keep = segment.end_offset
        total_bytes -= segment.size_bytes
    return keep
