"""What is handed over of a frame where it is only a few of its messages."""

from __future__ import annotations

import asyncio
import random

from goq.api.codec.messages import deliveries_parts
from goq.broker.partition.leases import LeasedBatch
from goq.client.protocol.frames import decode_deliveries
from goq.config.topic import TopicSettings
from goq.frame.encoder import Columns, encode_frame
from goq.frame.header import stamp
from goq.frame.view import FrameView


class _Topic:
    id = 0
    settings = TopicSettings()


def _frame(base: int, count: int) -> FrameView:
    values = [b"%d:" % offset + bytes(200) for offset in range(base, base + count)]
    keys = [None if offset % 3 else b"k%d" % offset for offset in range(base, base + count)]
    headers = [(("n", b"%d" % offset),) * (offset % 2) for offset in range(base, base + count)]
    data = encode_frame(Columns(values, keys, headers, lanes=[o % 3 for o in range(count)]))
    view = FrameView.parse(data)
    header = stamp(view.header, base_offset=base, append_time_us=base, leader_epoch=1)
    return FrameView.parse(header.pack() + bytes(view.body))


def _body(delivery: LeasedBatch) -> bytes:
    return b"".join(asyncio.run(deliveries_parts(_Topic(), [delivery], 0)))  # type: ignore[arg-type]


def test_scattered_messages_arrive_in_their_order_whole_and_alone() -> None:
    rng = random.Random(7)
    for _ in range(60):
        frames = [_frame(base, 50) for base in (0, 50, 100)]
        offsets = rng.sample(range(150), rng.randint(1, 60))
        spans = [(offset, offset + 1, 1) for offset in offsets]
        delivery = LeasedBatch(2, 77, "c", 1000, spans, frames, False)
        body = _body(delivery)
        (found,) = decode_deliveries(body)
        seen = []
        for frame, start, end, _, first in found.pieces():
            for said, message in enumerate(frame.messages(start, end), first):
                assert message.value is not None
                offset = int(message.value.partition(b":")[0])
                seen.append(offset)
                assert said == offset
                assert message.key == (None if offset % 3 else b"k%d" % offset)
                assert message.lane == offset % 50 % 3
                assert frame.header.append_time_us == offset // 50 * 50
        assert seen == offsets


def test_few_messages_of_a_large_frame_cost_few_bytes() -> None:
    delivery = LeasedBatch(0, 1, "c", 0, [(0, 1, 1), (49, 50, 1)], [_frame(0, 50)], False)
    body = _body(delivery)
    assert len(body) < 1500 < _frame(0, 50).header.frame_bytes
