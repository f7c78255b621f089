"""Which segments of a log may go, and when the next one may."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from goq.config.topic import Cleanup, TopicSettings
from goq.storage.log.segment import Segment


def keep_from(
    segments: Sequence[Segment],
    settings: TopicSettings,
    now_us: int,
    load: Callable[[Segment], object] = lambda _segment: None,
) -> int:
    """Return the offset before which retention wants everything deleted.

    Only sealed segments go: by age when the newest message of one is older than
    ``retention.age``, by size, oldest first, while the log is over ``retention.bytes``. A log that
    is compacted keeps everything. ``load`` is called with each segment whose time is needed; its
    index must then be loaded.
    """
    keep = segments[0].base_offset
    if settings.cleanup is Cleanup.COMPACT:
        return keep
    total_bytes = sum(segment.size_bytes for segment in segments)
    for segment in segments[:-1]:
        too_many = settings.retention_bytes is not None and total_bytes > settings.retention_bytes
        if not too_many:
            if settings.retention_age_ms is None:
                break
            load(segment)
            if segment.time_us >= now_us - settings.retention_age_ms * 1000:
                break
        keep = segment.end_offset
        total_bytes -= segment.size_bytes
    return keep


def too_old_at_us(segment: Segment, settings: TopicSettings) -> int | None:
    """Return when a sealed segment becomes too old; None if it never does."""
    if settings.retention_age_ms is None or settings.cleanup is Cleanup.COMPACT:
        return None
    return segment.time_us + settings.retention_age_ms * 1000 + 1
