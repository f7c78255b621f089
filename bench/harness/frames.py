"""Publish requests made beforehand, so that a loader costs almost nothing beside the node."""

from __future__ import annotations

import random
from collections.abc import Iterator

from goq.frame.encoder import Columns, encode_frame
from goq.frame.header import HEADER_BYTES, FrameHeader, parse_header

ANY_PARTITION = 0xFFFF_FFFF
FRAMES = "application/vnd.goq.frames"


def values(count: int, size_bytes: int) -> list[bytes]:
    """Return ``count`` values of pseudo-random bytes, the same in every run."""
    draw = random.Random(20_261_120)
    return [draw.randbytes(size_bytes) for _ in range(count)]


def request_head(topic: str, body_bytes: int, content_type: str = FRAMES) -> bytes:
    """Return the head of a publish request."""
    return (
        f"POST /v1/topics/{topic}/messages HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {body_bytes}\r\n\r\n"
    ).encode()


def anonymous_body(batch: list[bytes], partition: int = ANY_PARTITION) -> bytes:
    """Return the body that publishes a batch without a producer's identity."""
    return partition.to_bytes(4, "little") + encode_frame(Columns(batch))


def numbered_requests(
    topic: str, batch: list[bytes], *, partition: int, producer_id: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield requests that publish ``batch`` over and over, as one producer that counts up.

    Each is a request's head with the frame's header, and the frame's body, the same bytes each
    time: a step costs a header's CRC and no more.
    """
    frame = encode_frame(Columns(batch))
    body = frame[HEADER_BYTES:]
    header: FrameHeader = parse_header(frame)._replace(producer_id=producer_id)
    head = request_head(topic, 4 + len(frame)) + partition.to_bytes(4, "little")
    sequence = 0
    while True:
        yield head + header._replace(first_sequence=sequence).pack(), body
        sequence += len(batch)
