"""Times of delivery and expiry in a frame: the leader's clock decides.

A negative entry of the column deliver-at is a delay in milliseconds. A negative entry of expires-at
is a time to live, which counts from the delivery time, or from now if that has passed. A producer
does not know the leader's clock, so it states durations. The leader replaces them before it appends
the frame: a log has absolute times only.
"""

from __future__ import annotations

import numpy as np

from goq.frame.checksum import crc32c
from goq.frame.header import Attribute
from goq.frame.view import FrameView

_TIMES = Attribute.DELIVER_AT | Attribute.EXPIRES_AT


def with_absolute_times(view: FrameView, now_us: int) -> FrameView:
    """Return a frame with relative times counted from ``now_us``; the same frame without any."""
    header = view.header
    if not header.attributes & _TIMES or header.attributes & Attribute.REMOVED:
        return view
    count = header.message_count
    body = bytearray(view.body)
    times_ms = np.frombuffer(body, np.int64, count * bin(header.attributes & _TIMES).count("1"))
    if int(times_ms.min()) >= 0:
        return view
    now_ms = absolute_ms(0, now_us)
    begins_ms = np.full(count, now_ms)
    if header.attributes & Attribute.DELIVER_AT:
        delivers_ms = times_ms[:count]
        delivers_ms[delivers_ms < 0] = now_ms - delivers_ms[delivers_ms < 0]
        np.maximum(begins_ms, delivers_ms, out=begins_ms)
    if header.attributes & Attribute.EXPIRES_AT:
        expires_ms = times_ms[-count:]
        expires_ms[expires_ms < 0] = begins_ms[expires_ms < 0] - expires_ms[expires_ms < 0]
    header = header._replace(body_crc32c=crc32c(body))
    return FrameView(header, memoryview(header.pack() + body))


def absolute_ms(delay_ms: int, now_us: int) -> int:
    """Return the time after a delay in milliseconds, never too early."""
    return -(-now_us // 1000) + delay_ms
